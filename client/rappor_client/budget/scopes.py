"""Scopes of a device: for each metric and epoch, the permanent response that all reports repeat.

A scope begins with its first report, whose permanent response is memoized. Every later report of
the scope is drawn from it, whatever the value is by then. So a scope costs the loss of one value,
however often the value changes.

A scope of an epoch is in force on all days of that epoch, whatever a later registry says. It keeps
the interval, because its price assumes that interval, and because a collector judges the reports of
a fingerprint by the interval in it. It keeps p, q and the segment of its first report. A segment
that the registry no longer lists is left out of further reports until the epoch ends. A scope is
never dropped: a clock that is set back finds the scope of its day again, and gets no second
permanent response.

A scope of a metric for life is in force as long as the permanent fingerprint is the same. p, q and
the interval may change.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from rappor.protocol.params import Params
from rappor.protocol.randomizer import Coins
from rappor.protocol.segments import is_listed
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.budget.prepared import Prepared, prepare_again
from rappor_client.budget.terms import MetricRules

Key = tuple[str, str, str]
"""Metric, epoch and permanent fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A scope that has reported: its price and its memoized permanent response.

    `price` is the most that all its reports can cost, in nats. `permanent` is the memoized
    permanent response, under `params`. `answered` is the end of the interval of the last report, in
    seconds since 1970, and the tag of its event. It is None where the price does not depend on the
    number of reports.
    """

    metric: str
    epoch: str
    first_day: str
    last_day: str
    params: Params
    cohort: int
    permanent: bytes = field(repr=False)
    price: float
    is_counted: bool
    answered: tuple[float, int] | None = None

    @property
    def key(self) -> Key:
        """What tells it from all other scopes."""
        return self.metric, self.epoch, self.params.permanent_fingerprint

    @property
    def interval(self) -> str:
        """The interval of its reports, which the fingerprint of every report states."""
        return self.params.interval

    @property
    def memoized(self) -> Prepared:
        """The memoized permanent response, from which `prepare_again` draws a report."""
        report = Report(
            metric=self.metric, params=self.params.fingerprint, cohort=self.cohort, bits=b""
        )
        return Prepared(
            params=self.params,
            epoch=self.epoch,
            permanent=self.permanent,
            report=report,
        )

    def may_answer(self, ends: float, tag: int) -> bool:
        """Return whether the interval that ends then may have a report, that of this tag."""
        if not self.is_counted or self.answered is None:
            return True
        if self.answered[1] == tag:  # it was answered, and the process killed at that moment
            return True
        return self.interval != "epoch" and ends > self.answered[0]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it; the parameters by their fingerprint."""
        plain: dict[str, Any] = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(self)
        }
        return plain | {
            "params": self.params.fingerprint,
            "permanent": self.permanent.hex(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], params: Mapping[str, Params]) -> Self:
        """Read what `to_plain` wrote; ValueError and others for what it cannot have written."""
        answered = plain["answered"]
        scope = cls(
            **{
                **plain,
                "params": params[plain["params"]],
                "permanent": bytes.fromhex(plain["permanent"]),
                "answered": None if answered is None else (float(answered[0]), int(answered[1])),
            }
        )
        scope._check()
        return scope

    def _check(self) -> None:
        first, last = map(datetime.date.fromisoformat, (self.first_day, self.last_day))
        sound = (
            isinstance(self.metric, str) and isinstance(self.epoch, str) and first <= last,
            0 <= self.cohort < self.params.m and len(self.permanent) == self.params.n_bytes,
            self.price >= 0 and self.interval != "",
        )
        if not all(sound):
            raise ValueError("scope")


class Answer(NamedTuple):
    """A scope, new or memoized, and the report of an event in it."""

    scope: Scope
    report: Prepared


Scopes = Mapping[Key, Scope]


def in_force(
    scopes: Scopes, terms: MetricRules, own: Params, name: str, epoch: str
) -> Scope | None:
    """Return the scope that answers for a metric, None if a new one begins.

    `own` are the parameters of the metric, or of the part that it would answer for.
    """
    mine = [each for key, each in scopes.items() if key[0] == name]
    for scope in sorted(mine, key=lambda each: (each.last_day, each.first_day, each.key)):
        if not scope.first_day <= terms.day <= scope.last_day:
            continue
        kept = scope.params
        if not is_listed(kept.segment, terms.segments):
            kept = kept.without_segment
        if scope.epoch:
            return dataclasses.replace(scope, params=kept)
        if (params := _with_same_response(terms, own, epoch, kept)) is not None:
            return dataclasses.replace(scope, params=params)
    return None


def answer(scopes: Scopes, terms: MetricRules, prepared: Prepared, coins: Coins) -> Answer:
    """Return the scope of a prepared report, and the report that leaves; nothing is kept yet.

    A report that was not drawn from the memoized response is drawn again from it: another process
    has reported meanwhile, or a registry has changed.
    """
    scope = in_force(scopes, terms, prepared.params, prepared.report.metric, prepared.epoch)
    if scope is None:
        return Answer(_begin_scope(terms, prepared), prepared)
    memoized = scope.memoized
    if not _is_same_response(prepared, memoized):
        prepared = prepare_again(memoized, coins)
    return Answer(scope, prepared)


def memoized_part(scopes: Iterable[Scope], metric: Metric, epoch: str) -> str | None:
    """Return the part of a metric that the device has answered for, None if it may choose.

    A part stays over changed shares as long as the registry has one of its name.
    """
    own = {params.part: params.permanent_fingerprint for params in metric.part_sets}
    for scope in scopes:
        if (scope.metric, scope.epoch) == (metric.name, epoch):
            part = scope.params.part
            if own.get(part) == scope.params.permanent_fingerprint:
                return part
    return None


def is_begun(scopes: Iterable[Scope], name: str, day: datetime.date) -> bool:
    """Return whether a metric has answered in an epoch that holds a day; never for life."""
    text = day.isoformat()
    return any(
        scope.metric == name and scope.epoch and scope.first_day <= text <= scope.last_day
        for scope in scopes
    )


def _begin_scope(terms: MetricRules, prepared: Prepared) -> Scope:
    return Scope(
        metric=prepared.report.metric,
        epoch=prepared.epoch,
        first_day=terms.first_day,
        last_day=terms.last_day,
        params=prepared.params,
        cohort=prepared.report.cohort,
        permanent=prepared.permanent,
        price=terms.price,
        is_counted=terms.is_counted,
    )


def _is_same_response(prepared: Prepared, memoized: Prepared) -> bool:
    """Return whether a report was drawn from the memoized response, under the same parameters."""
    return (
        prepared.epoch == memoized.epoch
        and prepared.params.fingerprint == memoized.params.fingerprint
        and prepared.report.cohort == memoized.report.cohort
        and prepared.permanent == memoized.permanent
    )


def _with_same_response(
    terms: MetricRules, own: Params, epoch: str, params: Params
) -> Params | None:
    """Return the metric's own parameters with the permanent responses of these, if there are."""
    if epoch or params.part not in terms.parts:
        return None
    own = own if own.part == params.part else dataclasses.replace(own, part=params.part)
    return own if own.permanent_fingerprint == params.permanent_fingerprint else None
