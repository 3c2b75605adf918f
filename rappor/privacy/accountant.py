"""Sequential composition: the privacy loss of one person's device over a whole registry, in nats.

A privacy loss of epsilon nats means: the reports change the odds of any belief about the device's
value by a factor of at most e^epsilon, for example by 7.4 for 2 nats.

A registry is the list of all metrics of a program. A scope is one metric in one epoch (a month, a
quarter, a year, or the device's life). A device draws one permanent response for a scope, from the
first value of the scope, and repeats it in all reports of the scope. The loss of a scope is
therefore limited, and the loss of a person is the sum

    epsilon = sum over metrics of (number of scopes) * (loss of one scope)

A metric whose epochs end has a scope in each epoch in which the device reports. A metric with
`epoch = "life"` has one scope, because a device of this project repeats the response of its first
value. A device of the RAPPOR paper draws a permanent response for each distinct value. For such
devices the number of distinct values takes the place of the number of scopes.

The sum is an upper bound, because the permanent responses of different scopes are independent
(sequential composition). Computations on the reports add nothing to the loss (post-processing).

Example: a device reports a metric with 4 nats an epoch for four epochs, and one value of a metric
with 2 nats for life. Its loss is at most 4 * 4 + 2 = 18 nats. Two people whose devices report the
same values lose 36 nats together (group privacy). The losses of people whose values are unrelated
do not add: each person has his own bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rappor.base.ranges import check_integer
from rappor.registry.budget import scope_loss
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCost:
    """Privacy loss of one device by one metric.

    Attributes
    ----------
    metric : name of the metric.
    epoch : length of an epoch: "life", "year", "quarter" or "month".
    per_value : loss of the reports of one value, in nats. For a metric whose epochs end, loss of
        one epoch.
    epsilon : loss of all values, in nats: `per_value` times the number of values.
    """

    metric: str
    epoch: str
    per_value: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyCost:
    """Privacy loss of one device, metric by metric.

    Attributes
    ----------
    items : the loss by every metric, in the order of the registry.
    """

    items: tuple[MetricCost, ...]

    @property
    def epsilon(self) -> float:
        """Sum of the losses of all metrics, in nats."""
        return sum(item.epsilon for item in self.items)

    def epsilon_of_group(self, n_people: int) -> float:
        """Compute the loss of a group of people whose devices report the same values.

        Parameters
        ----------
        n_people : number of people, at least 1.

        Returns
        -------
        The loss of one device times `n_people`, in nats.

        Raises
        ------
        ParamsError
            n_people is not a positive integer.
        """
        check_integer("n_people", n_people, 1)
        return n_people * self.epsilon


def compose_losses(
    metrics: Iterable[Metric], *, values: int = 1, reports: int | None = None
) -> PrivacyCost:
    """Add up the privacy loss of one device over several metrics.

    Parameters
    ----------
    metrics : the metrics that the device reports.
    values : number of distinct values that the device reports for each metric. For a metric whose
        epochs end, number of epochs in which the device reports.
    reports : number of reports of each value. None stands for as many reports as epoch and interval
        allow. A larger number is reduced to the reports that epoch and interval allow.

    Returns
    -------
    PrivacyCost, in nats. The loss is infinite if the loss of a scope has no limit.

    Raises
    ------
    ParamsError
        values or reports is not a positive integer.

    Examples
    --------
    >>> import datetime
    >>> from rappor import Metric, Params
    >>> page = Metric(
    ...     name="page", params=Params.profile("balanced"), description="Home page",
    ...     owner="web@example.org", expires=datetime.date(2030, 12, 31), epoch="quarter",
    ... )
    >>> year = compose_losses([page], values=4)
    >>> round(year.epsilon, 3), round(year.epsilon_of_group(2), 3)
    (16.0, 32.0)
    """
    check_integer("values", values, 1)
    if reports is not None:
        check_integer("reports", reports, 1)
    items = []
    for metric in metrics:
        # Sequential composition: the reports of distinct values, and of distinct epochs, come from
        # independent permanent responses, so their losses add.
        per_value = scope_loss(metric, reports)
        items.append(
            MetricCost(
                metric=metric.name,
                epoch=metric.epoch,
                per_value=per_value,
                epsilon=values * per_value,
            )
        )
    return PrivacyCost(items=tuple(items))
