"""`PrivacyReport`: the privacy losses and the promise of a metric, as one record.

Each part of the report is a frozen record, so that a terminal, a page and JSON show the same
numbers. Losses are in nats. `rappor.planning.joint_error` computes the effect of changed parameters
on estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from rappor.base.display import DisplayedRecord
from rappor.base.ranges import check_integer, check_number
from rappor.privacy.accountant import compose_losses
from rappor.privacy.notice import describe_promise, describe_segments
from rappor.privacy.parameter_changes import EntryChange, cost_of_change
from rappor.privacy.report_linkage import Linkability, linkability
from rappor.privacy.shuffling import compute_shuffled_epsilon, compute_smallest_cohort
from rappor.privacy.unchanged_values import UnchangedValueLoss, list_unchanged_losses
from rappor.protocol.loss import epsilon_inf, epsilon_n, posterior_bound
from rappor.protocol.params import Params
from rappor.registry.budget import most_reports
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

REPORTS: Final = (1, 2, 3, 5, 10, 100)
"""Numbers of reports whose loss a report lists. The last row is for any number of reports, or for
the largest number that the metric allows."""

PRIORS: Final = (0.01, 0.1, 0.5, 0.9)
"""Beliefs of an observer before the reports, for which a report lists the beliefs afterwards."""

_SHUFFLED_REPORTS: Final = (1, 10)
"""Numbers of reports of a device for which a report lists the loss in a shuffled batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Range of the beliefs of an observer after some reports.

    Attributes
    ----------
    prior : belief before the reports.
    least, most : smallest and largest belief after the reports.
    """

    prior: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Privacy loss of several reports of one value.

    Attributes
    ----------
    reports : number of reports; None for any number.
    epsilon : loss in nats.
    beliefs : beliefs of observers after the reports, one for each of `PRIORS`.
    """

    reports: int | None
    epsilon: float
    beliefs: tuple[Belief, ...]

    @property
    def of_half(self) -> float:
        """Largest belief after the reports, of an observer who believed 50 % before."""
        return next(belief.most for belief in self.beliefs if belief.prior == 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledLoss:
    """Privacy loss of several reports of a device in a shuffled batch.

    Attributes
    ----------
    reports : number of reports of the device.
    local : loss without the batch, in nats.
    epsilon : loss inside the batch, in nats.
    """

    reports: int
    local: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffling:
    """Privacy losses in a shuffled batch, inside the smallest cohort.

    Attributes
    ----------
    devices : number of devices in the batch.
    smallest_cohort : number of devices in the smallest cohort.
    counted : whether the cohorts were counted. Otherwise `smallest_cohort` is a size that all
        cohorts probably reach.
    delta : probability with which the losses may exceed their bounds.
    losses : losses by number of reports; empty if the smallest cohort may be empty.
    """

    devices: int
    smallest_cohort: int
    counted: bool
    delta: float
    losses: tuple[ShuffledLoss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLoss:
    """Privacy loss of one person by one metric.

    Attributes
    ----------
    metric : name of the metric.
    epoch : length of an epoch.
    epsilon : loss of the person's reports, in nats.
    epsilon_inf : loss of all reports that epoch and interval allow, in nats.
    """

    metric: str
    epoch: str
    epsilon: float
    epsilon_inf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonLoss:
    """Privacy loss of one person over a registry, and of a group with the same values.

    Attributes
    ----------
    values : number of values of each metric that the person reports.
    reports : number of reports of each value.
    metrics : loss by each metric.
    epsilon, epsilon_inf : loss of these reports, and of all reports that are allowed, in nats.
    group : number of people in the group.
    group_epsilon, group_epsilon_inf : losses of the group, in nats.
    """

    values: int
    reports: int
    metrics: tuple[MetricLoss, ...]
    epsilon: float
    epsilon_inf: float
    group: int
    group_epsilon: float
    group_epsilon_inf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyReport(DisplayedRecord):
    """Privacy losses and promise of a metric, or of parameters without a metric.

    Attributes
    ----------
    metric : name of the metric; None for parameters without a metric.
    params : the parameters.
    epsilon_1 : loss of one report, in nats.
    epsilon_inf : loss of any number of reports of one value in one scope, in nats.
    losses : losses by number of reports.
    promise : sentence about the promise of a scope; None without a metric.
    without_noise : sentence about the properties that devices send without noise; None if devices
        send none. If devices send properties, the devices in `shuffling` and `linkability` are the
        devices with equal properties.
    staying : losses of a value that stays the same for one year and for two years.
    shuffling : losses in a shuffled batch; None without a batch.
    linkability : how well reports of one device can be linked.
    account : loss of one person over the registry; None without a registry.
    change : loss by a change of the entry; None without a changed entry.
    """

    _renderer: ClassVar[str] = "privacy"

    metric: str | None = None
    params: Params
    epsilon_1: float
    epsilon_inf: float
    losses: tuple[Loss, ...]
    promise: str | None = None
    without_noise: str | None = None
    staying: tuple[UnchangedValueLoss, ...]
    shuffling: Shuffling | None
    linkability: Linkability
    account: PersonLoss | None = None
    change: EntryChange | None = None

    def _table(self) -> dict[str, list[Any]]:
        """Return the beliefs after reports of one value, with a row for each loss and prior."""
        rows = [(loss, belief) for loss in self.losses for belief in loss.beliefs]
        return {
            "reports": [loss.reports for loss, _ in rows],
            "epsilon": [loss.epsilon for loss, _ in rows],
            "prior": [belief.prior for _, belief in rows],
            "least": [belief.least for _, belief in rows],
            "most": [belief.most for _, belief in rows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one person's device reports.

    Attributes
    ----------
    values : number of distinct values of each metric, or number of epochs.
    reports : number of reports of each value.
    group : number of people whose devices report the same values.
    """

    values: int = 1
    reports: int = 10
    group: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledBatch:
    """Reports that a shuffler mixes before an observer sees them.

    No part of this project shuffles reports.

    Attributes
    ----------
    devices : number of devices in the batch, which fall into cohorts at random.
    delta : probability in (0, 1) with which a bound may fail.
    cohorts : number of reports of each cohort, if the cohorts were counted. `devices` is ignored
        then.

    Raises
    ------
    ParamsError
        devices is not a positive integer, or delta is not in (0, 1).
    """

    devices: int = 1_000_000
    delta: float = 1e-9
    cohorts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_integer("devices", self.devices, 1)
        check_number("delta", self.delta, "(0, 1)")


_USAGE: Final = Usage()


def privacy_report(
    metric: Metric,
    *,
    registry: Registry | None = None,
    usage: Usage = _USAGE,
    batch: ShuffledBatch | None = None,
    changed: Metric | None = None,
) -> PrivacyReport:
    """Compute privacy losses, promise and linkability of a metric.

    Parameters
    ----------
    metric : the metric.
    registry : all metrics of a device, to add up the loss of one person.
    usage : what the person's device reports.
    batch : a shuffled batch. The losses in the batch hold against observers behind the shuffler,
        which must be run by a party other than reader and collector.
    changed : the metric after a change of its entry.

    Returns
    -------
    PrivacyReport, with losses in nats.

    Raises
    ------
    ParamsError
        A number of `usage` or `batch` is outside its range.

    Examples
    --------
    >>> import datetime
    >>> metric = Metric(
    ...     name="page", params=Params.profile("balanced"), description="d", owner="o",
    ...     expires=datetime.date(2030, 1, 1), epoch="year",
    ... )
    >>> report = privacy_report(metric)
    >>> round(report.epsilon_1, 4), round(report.epsilon_inf, 4)
    (2.0, 4.0)
    """
    # The report of the parameters assumes any number of reports. Four fields depend on the number
    # that the metric allows.
    report = privacy_report_of(metric.params, batch=batch)
    return replace(
        report,
        metric=metric.name,
        losses=list_losses(metric.params, most_reports(metric)),
        promise=describe_promise(metric),
        without_noise=next(describe_segments(metric), None),
        staying=list_unchanged_losses(metric.params, metric),
        account=None if registry is None else _compute_person_loss(registry, usage),
        change=None if changed is None else cost_of_change(metric, changed, reports=usage.reports),
    )


def privacy_report_of(params: Params, *, batch: ShuffledBatch | None = None) -> PrivacyReport:
    """Compute privacy losses and linkability of parameters without a metric.

    Parameters
    ----------
    params : the parameters.
    batch : a shuffled batch.

    Returns
    -------
    PrivacyReport. Fields that depend on a metric are None.

    Raises
    ------
    ParamsError
        A number of `batch` is outside its range.

    Examples
    --------
    >>> report = privacy_report_of(Params.profile("strict"))
    >>> report.metric is None, round(report.epsilon_inf, 4)
    (True, 2.0)
    """
    return PrivacyReport(
        params=params,
        epsilon_1=epsilon_n(params, 1),
        epsilon_inf=epsilon_inf(params),
        losses=list_losses(params),
        staying=list_unchanged_losses(params),
        shuffling=None if batch is None else _compute_shuffling(params, batch),
        linkability=linkability(params),
    )


def list_losses(params: Params, most: int | None = None) -> tuple[Loss, ...]:
    """List the losses of growing numbers of reports of one value.

    The last loss is for `most` reports, or for any number if `most` is None.
    """
    # A metric with at most 31 reports an epoch has no row for 100 reports.
    fewer = (n for n in REPORTS if most is None or n < most)
    return tuple(compute_loss(params, n) for n in (*fewer, most))


def compute_loss(params: Params, n: int | None) -> Loss:
    """Compute the loss of n reports of one value, or of any number if n is None."""
    epsilon = epsilon_inf(params) if n is None else epsilon_n(params, n)
    bounds = ((prior, *posterior_bound(epsilon, prior)) for prior in PRIORS)
    beliefs = (Belief(prior=prior, least=least, most=most) for prior, least, most in bounds)
    return Loss(reports=n, epsilon=epsilon, beliefs=tuple(beliefs))


def _compute_shuffling(params: Params, batch: ShuffledBatch) -> Shuffling:
    """Bound the losses inside the smallest cohort, counted or probable."""
    devices, delta = batch.devices, batch.delta
    # Three cases: the cohorts were counted, there is one cohort, or the sizes are random.
    if batch.cohorts is not None:
        devices = sum(batch.cohorts)
        # No device is in an empty cohort.
        smallest = min((n for n in batch.cohorts if n), default=0)
    elif params.m == 1:
        smallest = devices
    else:
        # Half of delta is for a cohort that is smaller than its bound.
        delta = batch.delta / 2
        smallest = compute_smallest_cohort(devices, params.m, delta=delta)
    losses = []
    for n in _SHUFFLED_REPORTS if smallest else ():
        local = epsilon_n(params, n)
        epsilon = compute_shuffled_epsilon(local, smallest, delta=delta)
        losses.append(ShuffledLoss(reports=n, local=local, epsilon=epsilon))
    return Shuffling(
        devices=devices,
        smallest_cohort=smallest,
        counted=batch.cohorts is not None,
        # The whole delta: half for the sizes of cohorts, half for the losses.
        delta=batch.delta,
        losses=tuple(losses),
    )


def _compute_person_loss(registry: Registry, usage: Usage) -> PersonLoss:
    """Add up a person's loss over the registry, for some reports and for all allowed reports."""
    some = compose_losses(registry.values(), values=usage.values, reports=usage.reports)
    every = compose_losses(registry.values(), values=usage.values)
    return PersonLoss(
        values=usage.values,
        reports=usage.reports,
        metrics=tuple(
            MetricLoss(
                metric=cost.metric,
                epoch=cost.epoch,
                epsilon=cost.epsilon,
                epsilon_inf=limit.epsilon,
            )
            for cost, limit in zip(some.items, every.items, strict=True)
        ),
        epsilon=some.epsilon,
        epsilon_inf=every.epsilon,
        group=usage.group,
        group_epsilon=some.epsilon_of_group(usage.group),
        group_epsilon_inf=every.epsilon_of_group(usage.group),
    )
