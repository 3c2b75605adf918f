"""Changing a live metric: what it costs a device, in nats and in the words of all who tell it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rappor.base.sentence_numbers import format_count
from rappor.protocol.loss import epsilon_inf, epsilon_n, epsilon_reports
from rappor.protocol.params import Params
from rappor.registry.budget import reserve, scope_identity
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLoss:
    """What a device loses, in nats, by reports of one value before and after a change.

    `kept` tells that the permanent response stays. `epsilon_inf` is the loss by any number of
    reports.
    """

    kept: bool
    epsilon: float
    epsilon_inf: float


def compute_change_loss(
    old: Params, new: Params, *, before: int, after: int, for_life: bool = True
) -> ChangeLoss:
    """Account for numbers of reports of one value before and after the change.

    A change of p and q alone keeps the permanent response, and so epsilon_inf. Any
    other one draws a new permanent response, and the losses add. So they do with epochs
    (`for_life` is false): there a change waits for the next one.
    """
    if for_life and old.permanent_fingerprint == new.permanent_fingerprint:
        reports = {old: before + after} if old == new else {old: before, new: after}
        return ChangeLoss(kept=True, epsilon=epsilon_reports(reports), epsilon_inf=epsilon_inf(old))
    return ChangeLoss(
        kept=False,
        epsilon=epsilon_n(old, before) + epsilon_n(new, after),
        epsilon_inf=epsilon_inf(old) + epsilon_inf(new),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """What a device loses when a metric's entry changes, by reports of one value on both sides.

    `params` is the fingerprint of the new entry. `same` tells that nothing changes for devices,
    `kept` that they keep their permanent responses, `waits` that a device which has reported in
    an epoch goes on with it as it was. `reserved_before` and `reserved` are the nats of a calendar
    year that the metric reserves without the change, and in the year of the change.
    """

    params: str
    old_epoch: str
    new_epoch: str
    same: bool
    kept: bool
    waits: bool
    reports: int
    epsilon: float
    epsilon_inf: float
    reserved_before: float
    reserved: float

    @property
    def summary(self) -> str:
        """All of it in sentences."""
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.same:
            yield "Nothing changes for devices."
        elif self.waits:
            yield (
                f"The change takes effect with the next {self.old_epoch} for devices that have "
                "reported in this one, and at once for others; the losses of epochs add as before."
            )
        elif self.kept:
            yield "The change takes effect at once: devices keep their permanent responses."
        else:
            yield (
                "The change takes effect at once: devices draw new permanent responses, and the "
                "losses add up."
            )
        yield (
            f"{format_count(self.reports, 'report')} of a value before and "
            f"{self.reports:,} after lose "
            f"{_nats(self.epsilon)} nats; any number of reports loses {_nats(self.epsilon_inf)}."
        )
        if not self.same:
            yield (
                f"In the year of the change it reserves {_nats(self.reserved)} nats of a device's "
                f"budget, {_nats(self.reserved_before)} without the change."
            )


def cost_of_change(old: Metric, new: Metric, *, reports: int) -> EntryChange:
    """Price a change of a metric's entry, as devices carry it out.

    A device that has reported in an epoch ends it under the old entry. A metric for life changes
    at once. It reserves the prices of all scopes that it may use: those of both entries, or the
    higher one where the scopes are the same.
    """
    is_for_life = old.epoch == new.epoch == "life"
    same_scopes = scope_identity(old) == scope_identity(new)
    cost = compute_change_loss(
        old.params, new.params, before=reports, after=reports, for_life=is_for_life and same_scopes
    )
    before, after = reserve(old).total, reserve(new).total
    return EntryChange(
        params=new.params.fingerprint,
        old_epoch=old.epoch,
        new_epoch=new.epoch,
        same=_seen_by_devices(old) == _seen_by_devices(new),
        kept=cost.kept,
        waits=old.epoch != "life",
        reports=reports,
        epsilon=cost.epsilon,
        epsilon_inf=cost.epsilon_inf,
        reserved_before=before,
        reserved=max(before, after) if same_scopes else before + after,
    )


def _seen_by_devices(metric: Metric) -> tuple[object, ...]:
    """Return all of an entry that a device's reports depend on, but for the last day."""
    return (
        tuple(metric.accepted),
        metric.parts,
        metric.epoch,
        metric.interval,
        metric.sampling_rate,
    )


def _nats(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"
