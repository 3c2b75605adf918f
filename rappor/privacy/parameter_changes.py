"""Privacy loss of a device when the entry of a live metric changes.

An entry is the section of a metric in the registry file. Team and privacy reviewer read the loss
before they release a new registry: `rappor privacy METRIC --changed NEW.toml` prints it.

A permanent response is a noisy version of a value's bits. A device draws the response once for a
scope (one metric in one epoch) and repeats it in all reports of the scope. p and q are the
probabilities of the second noise, which every report draws anew. A device that has reported in an
epoch ends the epoch under the old entry. A metric for life has an epoch that never ends, so it
changes at once. Three cases follow:

    case                                  permanent response   loss of all reports, in nats
    p or q of a metric for life changes   kept                 epsilon_inf(old)
    another one of its parameters changes drawn anew           epsilon_inf(old) + epsilon_inf(new)
    the metric has epochs that end        drawn anew           as before: the losses of epochs add

In the first case all reports are computed from one permanent response, so all of them together lose
at most its epsilon_inf ([EPK14] Theorem 1).
"""

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
    """Privacy loss of reports of one value before and after a change of parameters.

    Attributes
    ----------
    kept : whether devices keep their permanent responses.
    epsilon : loss of the counted reports, in nats.
    epsilon_inf : loss of any number of reports, in nats.
    """

    kept: bool
    epsilon: float
    epsilon_inf: float


def compute_change_loss(
    old: Params, new: Params, *, before: int, after: int, is_for_life: bool = True
) -> ChangeLoss:
    """Compute the loss of reports of one value before and after a change of parameters.

    Parameters
    ----------
    old, new : the parameters before and after the change.
    before, after : numbers of reports under the old and the new parameters, at least 1.
    is_for_life : whether the reports of both sides belong to one scope for life. Otherwise the two
        sides have independent permanent responses, and their losses add.

    Returns
    -------
    ChangeLoss, in nats; infinite if a loss has no limit.
    """
    if is_for_life and old.permanent_fingerprint == new.permanent_fingerprint:
        # Equal parameters are one key of the dictionary: their reports are added.
        reports = {old: before + after} if old == new else {old: before, new: after}
        return ChangeLoss(kept=True, epsilon=epsilon_reports(reports), epsilon_inf=epsilon_inf(old))
    return ChangeLoss(
        kept=False,
        epsilon=epsilon_n(old, before) + epsilon_n(new, after),
        epsilon_inf=epsilon_inf(old) + epsilon_inf(new),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """Privacy loss and reserved budget of a device when a metric's entry changes.

    Attributes
    ----------
    params : fingerprint (short hash) of the parameters of the new entry.
    old_epoch, new_epoch : length of an epoch before and after the change: "life", "year", "quarter"
        or "month".
    same : whether nothing changes for devices.
    kept : whether devices keep their permanent responses.
    waits : whether a device that has reported in an epoch ends the epoch under the old entry.
    reports : number of reports of one value on each side of the change.
    epsilon : loss of these reports, in nats.
    epsilon_inf : loss of any number of reports on both sides, in nats.
    reserved_before : nats that the metric reserves of a calendar year without the change.
    reserved : nats that the metric reserves in the year of the change.
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
        """The change in sentences for people."""
        return " ".join(self._list_sentences())

    def _list_sentences(self) -> Iterator[str]:
        """Yield the time of effect, the loss of the reports, and the reserved budget."""
        # `waits` comes before `kept`: if epochs end, no permanent response outlives the change.
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
            f"{format_count(self.reports, 'report')} of a value before and {self.reports:,} after "
            f"lose {_format_nats(self.epsilon)} nats; any number of reports loses "
            f"{_format_nats(self.epsilon_inf)}."
        )
        if not self.same:
            yield (
                "In the year of the change the metric reserves "
                f"{_format_nats(self.reserved)} nats of a device's budget, "
                f"{_format_nats(self.reserved_before)} without the change."
            )


def cost_of_change(old: Metric, new: Metric, *, reports: int) -> EntryChange:
    """Compute privacy loss and reserved budget of a device when a metric's entry changes.

    Parameters
    ----------
    old, new : the metric before and after the change.
    reports : number of reports of one value on each side of the change, at least 1.

    Returns
    -------
    EntryChange. Losses and reserved budget are in nats, and infinite if a loss has no limit.

    Raises
    ------
    ParamsError
        reports is not a positive integer.

    Examples
    --------
    >>> import dataclasses, datetime
    >>> old = Metric(
    ...     name="page", params=Params.profile("balanced"), description="Home page",
    ...     owner="web@example.org", expires=datetime.date(2030, 12, 31), epoch="life",
    ... )
    >>> more_cohorts = dataclasses.replace(old.params, m=256)
    >>> change = cost_of_change(old, dataclasses.replace(old, params=more_cohorts), reports=1)
    >>> change.kept, round(change.epsilon_inf, 3), round(change.reserved, 3)
    (False, 8.0, 8.0)
    """
    is_for_life = old.epoch == new.epoch == "life"
    same_scopes = scope_identity(old) == scope_identity(new)
    loss = compute_change_loss(
        old.params,
        new.params,
        before=reports,
        after=reports,
        is_for_life=is_for_life and same_scopes,
    )
    before, after = reserve(old).total, reserve(new).total
    return EntryChange(
        params=new.params.fingerprint,
        old_epoch=old.epoch,
        new_epoch=new.epoch,
        same=_list_device_rules(old) == _list_device_rules(new),
        kept=loss.kept,
        # A scope for life never ends, so a change cannot wait for the next scope.
        waits=old.epoch != "life",
        reports=reports,
        epsilon=loss.epsilon,
        epsilon_inf=loss.epsilon_inf,
        reserved_before=before,
        # A device reserves the scopes of both entries, for it may have used both. Scopes that both
        # entries have are the same scopes at the larger cost.
        reserved=max(before, after) if same_scopes else before + after,
    )


def _list_device_rules(metric: Metric) -> tuple[object, ...]:
    """List the rules of an entry on which a device's reports depend, except the last day.

    A later last day extends a metric. It changes no report, so it is no change for the loss.
    """
    return (
        tuple(metric.accepted),
        metric.parts,
        metric.epoch,
        metric.interval,
        metric.sampling_rate,
    )


def _format_nats(epsilon: float) -> str:
    """Format a loss in nats with four decimals; without decimals from 100 nats on."""
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"
