"""PrivacyReport: everything that a metric promises, and what stays visible, as one record.

Each part is a frozen record of its own, so that a terminal, a page and JSON show the same numbers.
Losses are in nats. What a change of parameters does to estimates is no question of privacy: see
`rappor.planning.joint_error`.
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
from rappor.privacy.shuffling import bound_shuffled_epsilon, bound_smallest_cohort
from rappor.privacy.unchanged_values import UnchangedValueLoss, list_unchanged_losses
from rappor.protocol.loss import epsilon_inf, epsilon_n, posterior_bound
from rappor.protocol.params import Params
from rappor.registry.budget import most_reports
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

REPORTS: Final = (1, 2, 3, 5, 10, 100)
"""Numbers of reports whose loss is told; then comes any number, or the most that there can be."""

PRIORS: Final = (0.01, 0.1, 0.5, 0.9)
"""An observer's beliefs before the reports."""

_SHUFFLED: Final = (1, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The least and the most that an observer with this belief can believe after some reports."""

    prior: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of some reports of one value; `reports` is None for any number of them."""

    reports: int | None
    epsilon: float
    beliefs: tuple[Belief, ...]

    @property
    def of_half(self) -> float:
        """The most that a belief of 50 % becomes."""
        return next(each.most for each in self.beliefs if each.prior == 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledLoss:
    """The loss of some reports of a device: `local` alone, `epsilon` inside a shuffled batch."""

    reports: int
    local: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffling:
    """Losses in a shuffled batch, each inside the smallest cohort, at probability 1 - delta.

    `counted` tells a counted smallest cohort from a likely one. `losses` are empty where a
    cohort may hold one device alone.
    """

    devices: int
    smallest_cohort: int
    counted: bool
    delta: float
    losses: tuple[ShuffledLoss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLoss:
    """One metric's part of an account: after some reports of each value, and after all it can have.

    `epsilon_inf` counts as many reports as the price of a scope does.
    """

    metric: str
    epoch: str
    epsilon: float
    epsilon_inf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonLoss:
    """What one person loses over a registry, and a group whose devices report the same."""

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
    """What a metric, or a parameter set alone, promises a person.

    `metric` and `promise` are None for parameters alone, `account` without a registry, `change`
    without a new entry, `shuffling` without a batch. `staying` is for a value that stays for years.
    `without_noise` says what devices send in the clear, None if nothing: the devices of `shuffling`
    and `linkability` are then those that send the same.
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
        """Return beliefs after reports of one value, a row for each loss and prior."""
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
    """What one person's device does: values of each metric (or epochs), reports of each value.

    `group` people are counted as one.
    """

    values: int = 1
    reports: int = 10
    group: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledBatch:
    """Reports that are shuffled before anybody sees them; nothing of this project shuffles.

    `cohorts` are the reports of each cohort where they have been counted; otherwise `devices`
    fall into cohorts at random. The bounds hold with probability 1 - delta.
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
    """Assess a metric.

    `registry` has all metrics of a device, for the account of one person, and `changed` is the
    metric as it would become. `batch` is for a shuffler that neither the reader nor the collector
    runs.

    Raises ParamsError for a number of `usage` or `batch` outside its range.

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
    report = privacy_report_of(metric.params, batch=batch)
    return replace(
        report,
        metric=metric.name,
        losses=list_losses(metric.params, most_reports(metric)),
        promise=describe_promise(metric),
        without_noise=next(describe_segments(metric), None),
        staying=list_unchanged_losses(metric.params, metric),
        account=None if registry is None else _account(registry, usage),
        change=None if changed is None else cost_of_change(metric, changed, reports=usage.reports),
    )


def privacy_report_of(params: Params, *, batch: ShuffledBatch | None = None) -> PrivacyReport:
    """Assess parameters alone: what depends on a metric is None."""
    return PrivacyReport(
        params=params,
        epsilon_1=epsilon_n(params, 1),
        epsilon_inf=epsilon_inf(params),
        losses=list_losses(params),
        staying=list_unchanged_losses(params),
        shuffling=None if batch is None else _shuffling(params, batch),
        linkability=linkability(params),
    )


def list_losses(params: Params, most: int | None = None) -> tuple[Loss, ...]:
    """Return the losses of more and more reports of one value; any number last, or the most."""
    fewer = (n for n in REPORTS if most is None or n < most)
    return tuple(compute_loss(params, n) for n in (*fewer, most))


def compute_loss(params: Params, n: int | None) -> Loss:
    """Return the loss of n reports of one value, None for any number."""
    epsilon = epsilon_inf(params) if n is None else epsilon_n(params, n)
    bounds = ((prior, *posterior_bound(epsilon, prior)) for prior in PRIORS)
    beliefs = (Belief(prior=prior, least=least, most=most) for prior, least, most in bounds)
    return Loss(reports=n, epsilon=epsilon, beliefs=tuple(beliefs))


def _shuffling(params: Params, batch: ShuffledBatch) -> Shuffling:
    """Bound losses inside the smallest cohort: the counted or a likely one."""
    devices, delta = batch.devices, batch.delta
    if batch.cohorts is not None:
        devices = sum(batch.cohorts)
        smallest = min((n for n in batch.cohorts if n), default=0)
    elif params.m == 1:
        smallest = devices
    else:
        # Half of delta is for a cohort that turns out smaller.
        delta = batch.delta / 2
        smallest = bound_smallest_cohort(devices, params.m, delta=delta)
    return Shuffling(
        devices=devices,
        smallest_cohort=smallest,
        counted=batch.cohorts is not None,
        delta=batch.delta,
        losses=tuple(
            ShuffledLoss(
                reports=n, local=local, epsilon=bound_shuffled_epsilon(local, smallest, delta=delta)
            )
            for n in (_SHUFFLED if smallest else ())
            for local in [epsilon_n(params, n)]
        ),
    )


def _account(registry: Registry, usage: Usage) -> PersonLoss:
    """Add up a person's loss over the registry, after some reports and after any number."""
    some = compose_losses(registry.values(), values=usage.values, reports=usage.reports)
    every = compose_losses(registry.values(), values=usage.values)
    return PersonLoss(
        values=usage.values,
        reports=usage.reports,
        metrics=tuple(
            MetricLoss(metric=a.metric, epoch=a.epoch, epsilon=a.epsilon, epsilon_inf=b.epsilon)
            for a, b in zip(some.items, every.items, strict=True)
        ),
        epsilon=some.epsilon,
        epsilon_inf=every.epsilon,
        group=usage.group,
        group_epsilon=some.of_group(usage.group),
        group_epsilon_inf=every.of_group(usage.group),
    )
