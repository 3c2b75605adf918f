"""Privacy assessment of a metric: `PrivacyReport` contains its losses and its promise.

The input is a `Metric` or `Params`. The command `rappor privacy` computes the report, and
`rappor.reporting` renders it. Each part is a frozen record, so that a terminal, a page and JSON
show the same numbers. All losses are in nats. Each field of the report answers one question:

    field         question that the field answers
    losses        How much do 1, 2, 3, ... reports of one value reveal?
    staying       How much do the reports of a value that stays the same for years reveal?
    shuffling     How much less does a report reveal inside a shuffled batch?
    linkability   How often does an observer recognise two reports of one device?
    account       How much does one person lose by all metrics together?
    change        How much does a change of the metric's entry add?

A belief is the probability that an observer assigns to the statement that a device has a certain
value. A loss epsilon multiplies the odds of a belief by a factor between e^-epsilon and e^epsilon.

The report does not contain the effect of changed parameters on the errors of estimates.
`rappor.planning.joint_error` computes that effect.
"""

from __future__ import annotations

import math
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
"""Numbers of reports of one value whose loss `PrivacyReport.losses` lists. A convention: the loss
grows fast over the first reports and slowly after ten. One more row follows, for any number of
reports or for the largest number that the metric allows."""

PRIORS: Final = (0.01, 0.1, 0.5, 0.9)
"""Beliefs of an observer before the reports, as probabilities. `Loss.beliefs` contains the range of
the belief after the reports for each of them. A convention: rare, uncommon, even odds, likely.
`Loss.of_half` needs the entry 0.5."""

_SHUFFLED_REPORTS: Final = (1, 10)
"""Numbers of reports of a device for which `Shuffling.losses` contains the loss in a shuffled
batch. A convention: the smallest number, and a number at which the local loss of the profiles is
near epsilon_inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Range of the beliefs of an observer after some reports, as probabilities.

    Attributes
    ----------
    prior : belief before the reports.
    least, most : smallest and largest belief after the reports. The device's noise decides where
        in the range the belief lies.
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
        """Largest belief after the reports if the belief before the reports was 50 %."""
        return next(belief.most for belief in self.beliefs if belief.prior == 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledLoss:
    """Privacy loss of several reports of a device in a shuffled batch.

    Attributes
    ----------
    reports : number of reports of the device.
    local : loss of the same reports without a shuffler, in nats.
    epsilon : loss if the observer sees only the whole batch in random order, in nats.
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
        cohorts reach with probability 1 - delta / 2.
    delta : delta of (epsilon, delta)-differential privacy (`rappor.privacy.shuffling`).
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
    epoch : length of an epoch: "life", "year", "quarter" or "month".
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
    values : number of values of each metric that the person's device reports.
    reports : number of reports of each value.
    metrics : loss by each metric, in the order of the registry.
    epsilon : loss of these reports, in nats, added up over the metrics.
    epsilon_inf : loss of all reports that epoch and interval allow, in nats.
    group : number of people in the group.
    group_epsilon, group_epsilon_inf : losses of the group, in nats.
    reserved : loss of all reports of all epochs of a calendar year, in nats: the bound that the
        registry's total limits.
    """

    values: int
    reports: int
    metrics: tuple[MetricLoss, ...]
    epsilon: float
    epsilon_inf: float
    group: int
    group_epsilon: float
    group_epsilon_inf: float
    reserved: float


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
    promise : sentence about the promise of a scope (one metric in one epoch); None without a
        metric.
    without_noise : sentence about the public properties, such as the country, that devices send
        without noise; None if devices send none. If devices send properties, the numbers of
        devices in `shuffling` and `linkability` count only devices with equal properties.
    staying : losses of a value that stays the same for one year and for two years, by length of an
        epoch.
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
        """Return the columns of a table with one row for each pair of a loss and a prior."""
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
    """Assumed numbers of values and reports of one person's device.

    Attributes
    ----------
    values : number of distinct values that the device reports for each metric. For a metric whose
        epochs end, number of epochs in which the device reports.
    reports : number of reports of each value.
    group : number of people whose devices report the same values, such as a household.

    Raises
    ------
    ParamsError
        A number is not a positive integer.
    """

    values: int = 1
    reports: int = 10
    group: int = 2

    def __post_init__(self) -> None:
        check_integer("values", self.values, 1)
        check_integer("reports", self.reports, 1)
        check_integer("group", self.group, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledBatch:
    """Reports that a shuffler mixes before an observer sees them.

    No part of this project shuffles reports.

    Attributes
    ----------
    devices : number of devices in the batch, which draw their cohorts at random.
    delta : delta of (epsilon, delta)-differential privacy, in (0, 1). The default 1e-9 is far below
        one divided by the default number of devices.
    cohorts : number of reports of each cohort, one report of each device, if a counts file has
        them. `devices` is ignored then.

    Raises
    ------
    ParamsError
        devices is not a positive integer, delta is not in (0, 1), or a number of `cohorts` is not
        an integer of at least 0.
    """

    devices: int = 1_000_000
    delta: float = 1e-9
    cohorts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_integer("devices", self.devices, 1)
        check_number("delta", self.delta, "(0, 1)")
        for n in self.cohorts or ():
            check_integer("cohorts", n, 0)


_USAGE: Final = Usage()
"""Usage that `privacy_report` assumes by default. Linters refuse a call as a default argument."""


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
    registry : all metrics of a device, to add up the loss of one person. Without a registry, the
        field `account` is None.
    usage : numbers of values and reports of the person's device. `usage.reports` is also the number
        of reports on each side of a change.
    batch : a shuffled batch. The losses in the batch hold against observers of the shuffler's
        output. A party other than the analyst and the collector must run the shuffler.
    changed : the metric after a change of its entry in the registry file.

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
    # `privacy_report_of` has no metric, so it does not know epoch and interval. The fields below
    # are computed again, because they depend on the metric or on the number of reports that its
    # epoch and interval allow.
    report = privacy_report_of(metric.params, batch=batch)
    return replace(
        report,
        metric=metric.name,
        losses=list_losses(metric.params, most_reports(metric)),
        promise=describe_promise(metric),
        without_noise=next(describe_segments(metric), None),
        staying=list_unchanged_losses(metric.params, metric.interval),
        linkability=linkability(metric.params, most_reports=most_reports(metric)),
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
    # Without instantaneous noise, as under "once", a registry asks for interval = "epoch". A device
    # then sends one report in an epoch, and the epoch ends. So there is no row for life, and no
    # second report to link.
    interval, most = (None, None) if params.has_instantaneous_noise else ("epoch", 1)
    return PrivacyReport(
        params=params,
        epsilon_1=epsilon_n(params, 1),
        epsilon_inf=epsilon_inf(params),
        losses=list_losses(params, most),
        staying=list_unchanged_losses(params, interval),
        shuffling=None if batch is None else _compute_shuffling(params, batch),
        linkability=linkability(params, most_reports=most),
    )


def list_losses(params: Params, most: int | None = None) -> tuple[Loss, ...]:
    """List the losses of growing numbers of reports of one value.

    The last loss is for `most` reports, or for any number if `most` is None.
    """
    # A metric with a monthly epoch and a daily interval has at most 31 reports an epoch. A row for
    # 100 reports would show a loss that no device can reach.
    fewer = (n for n in REPORTS if most is None or n < most)
    return tuple(compute_loss(params, n) for n in (*fewer, most))


def compute_loss(params: Params, n: int | None) -> Loss:
    """Compute the loss of n reports of one value, or of any number if n is None."""
    epsilon = epsilon_inf(params) if n is None else epsilon_n(params, n)
    bounds = ((prior, *posterior_bound(epsilon, prior)) for prior in PRIORS)
    beliefs = (Belief(prior=prior, least=least, most=most) for prior, least, most in bounds)
    return Loss(reports=n, epsilon=epsilon, beliefs=tuple(beliefs))


def _compute_shuffling(params: Params, batch: ShuffledBatch) -> Shuffling:
    """Bound the losses inside the smallest cohort, whose size is counted or bounded from below.

    A report contains the number of its cohort, so only reports of the same cohort conceal it.
    """
    devices, delta = batch.devices, batch.delta
    if batch.cohorts is not None:
        # The cohorts were counted, with one report of each device. An empty cohort has no device
        # that needs protection.
        devices = sum(batch.cohorts)
        smallest = min((n for n in batch.cohorts if n), default=0)
    elif params.m == 1:
        # All devices are in the one cohort.
        smallest = devices
    else:
        # The sizes are random. Half of delta is for the event that a cohort is smaller than
        # `smallest`. The other half is the delta of the batch if no cohort is smaller. The device
        # then has (epsilon, delta)-differential privacy over both cases.
        delta = batch.delta / 2
        smallest = compute_smallest_cohort(devices, params.m, delta=delta)
    losses = []
    # Case smallest = 0: too few devices for so many cohorts. A device may be alone in its cohort,
    # so a loss below the local loss cannot be promised, and the list stays empty.
    for n in _SHUFFLED_REPORTS if smallest else ():
        local = epsilon_n(params, n)
        epsilon = compute_shuffled_epsilon(local, smallest, delta=delta)
        losses.append(ShuffledLoss(reports=n, local=local, epsilon=epsilon))
    return Shuffling(
        devices=devices,
        smallest_cohort=smallest,
        counted=batch.cohorts is not None,
        delta=batch.delta,
        losses=tuple(losses),
    )


def _compute_person_loss(registry: Registry, usage: Usage) -> PersonLoss:
    """Add up a person's loss over the registry, for some reports and for all allowed reports."""
    costs = compose_losses(registry.values(), values=usage.values, reports=usage.reports)
    limits = compose_losses(registry.values(), values=usage.values)
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
            for cost, limit in zip(costs.items, limits.items, strict=True)
        ),
        epsilon=costs.epsilon,
        epsilon_inf=limits.epsilon,
        group=usage.group,
        group_epsilon=costs.epsilon_of_group(usage.group),
        group_epsilon_inf=limits.epsilon_of_group(usage.group),
        reserved=math.fsum(reservation.total for reservation in registry.reserved),
    )
