"""What each metric has answered for: a scope's patterns, never its values.

A scope begins with its first report. It answers for as many values as the metric has patterns, one
unless it says more; then it closes and repeats its last report's permanent response. The memory of
an epoch is in force on all days of that epoch, whatever the registry says meanwhile; interval and
patterns stay with it, for the price of the scope counts on them. It is never dropped: a clock that
is set back finds what was answered. The memory of a metric for life is in force whenever its
permanent responses are the same; p and q may change. A value that comes under another scope than
the one in force is not looked at: the last response is repeated.

An epoch keeps p, q and segment of its first report. A segment that the registry lists no more is
not told any more: the device tells none until the epoch ends.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from rappor.protocol.closing import Answered
from rappor.protocol.params import Params
from rappor.protocol.randomizer import Coins
from rappor.protocol.segments import is_listed
from rappor.protocol.wire import Report
from rappor.registry.metric import INTERVALS, Metric
from rappor_client.budget.prepared import PATTERN_BYTES, Prepared, prepare_again
from rappor_client.budget.terms import Terms

Key = tuple[str, str, str]
"""Metric, epoch and permanent fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A scope that has answered: its price, its latch and, where reports count, the last of them.

    At most `patterns` values are answered for, each for `price` nats at most. `permanent` is the
    response behind the last report, under `params`. `answered` is the end of the interval that
    had the last report, in seconds since 1970, and the tag of its event; None where the price
    does not count on the number of reports.
    """

    metric: str
    epoch: str
    first_day: str
    last_day: str
    params: Params
    cohort: int
    permanent: bytes = field(repr=False)
    names: Answered[bytes] = field(repr=False)
    patterns: int
    interval: str
    price: float
    is_counted: bool
    answered: tuple[float, int] | None = None

    @property
    def key(self) -> Key:
        """What tells it from all other scopes."""
        return self.metric, self.epoch, self.params.permanent_fingerprint

    @property
    def is_latched(self) -> bool:
        """Whether every further report is drawn from the same permanent response."""
        return self.names.closed or self.patterns == 1

    @property
    def nats(self) -> float:
        """What it can have cost at most."""
        return len(self.names.admitted) * self.price

    @property
    def last(self) -> Prepared:
        """The source of its last report."""
        assert self.names.last is not None
        report = Report(
            metric=self.metric, params=self.params.fingerprint, cohort=self.cohort, bits=b""
        )
        return Prepared(
            params=self.params,
            epoch=self.epoch,
            pattern=self.names.last,
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
            "names": [
                [name.hex() for name in self.names.admitted],
                self.last.pattern.hex(),
                self.names.closed,
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], params: Mapping[str, Params]) -> Self:
        """Read what `to_plain` wrote; ValueError and others for what it cannot have written."""
        admitted, last, closed = plain["names"]
        names = tuple(map(bytes.fromhex, admitted))
        answered = plain["answered"]
        scope = cls(
            **{
                **plain,
                "params": params[plain["params"]],
                "permanent": bytes.fromhex(plain["permanent"]),
                "names": Answered(names, bytes.fromhex(last), bool(closed)),
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
            self.names.last in self.names.admitted and self.patterns >= 1 and self.price >= 0,
            {len(name) for name in self.names.admitted} == {PATTERN_BYTES},
            self.interval in INTERVALS,
        )
        if not all(sound):
            raise ValueError("scope")


class Answer(NamedTuple):
    """What a scope is after an event, and the report that the event leads to."""

    scope: Scope
    report: Prepared


Scopes = Mapping[Key, Scope]


def in_force(scopes: Scopes, terms: Terms, own: Params, name: str, epoch: str) -> Scope | None:
    """Return the scope that answers for a metric, None if a new one begins.

    `own` are the parameters of the metric, or of the part that it would answer for.
    """
    mine = [each for key, each in scopes.items() if key[0] == name]
    for scope in sorted(mine, key=lambda each: (each.last_day, each.first_day, each.key)):
        if not scope.first_day <= terms.day <= scope.last_day:
            continue
        kept = scope.params
        if not is_listed(kept.segment, terms.segments):
            kept = kept.unsegmented
        if scope.epoch:
            patterns = min(scope.patterns, terms.patterns)
            return dataclasses.replace(scope, params=kept, patterns=patterns)
        if (params := _with_same_response(terms, own, epoch, kept)) is not None:
            return dataclasses.replace(
                scope, params=params, patterns=terms.patterns, interval=terms.interval
            )
    return None


def answer(scopes: Scopes, terms: Terms, prepared: Prepared, coins: Coins) -> Answer:
    """Return what the scope is after a report of a value, and that report; nothing is kept yet."""
    scope = in_force(scopes, terms, prepared.params, prepared.report.metric, prepared.epoch)
    if scope is None:
        return Answer(_begun(terms, prepared), prepared)
    names, source = scope.names, scope.last
    if _is_of(prepared, source):
        names = names.with_value(prepared.pattern, patterns=scope.patterns)
    if names.last == prepared.pattern:
        if prepared.params.fingerprint == source.params.fingerprint:
            return _answered(scope, names, prepared)
        source = dataclasses.replace(source, pattern=prepared.pattern, permanent=prepared.permanent)
    return _answered(scope, names, prepare_again(source, coins))


def latched_part(scopes: Iterable[Scope], metric: Metric, epoch: str) -> str | None:
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


def _begun(terms: Terms, prepared: Prepared) -> Scope:
    nothing: Answered[bytes] = Answered()
    return Scope(
        metric=prepared.report.metric,
        epoch=prepared.epoch,
        first_day=terms.first_day,
        last_day=terms.last_day,
        params=prepared.params,
        cohort=prepared.report.cohort,
        permanent=prepared.permanent,
        names=nothing.with_value(prepared.pattern, patterns=terms.patterns),
        patterns=terms.patterns,
        interval=terms.interval,
        price=terms.price,
        is_counted=terms.is_counted,
    )


def _answered(scope: Scope, names: Answered[bytes], report: Prepared) -> Answer:
    after = dataclasses.replace(
        scope, names=names, params=report.params, permanent=report.permanent
    )
    return Answer(after, report)


def _is_of(prepared: Prepared, last: Prepared) -> bool:
    """Return whether a report was prepared in the scope that is in force."""
    mine, its = prepared.params, last.params
    return (prepared.epoch, mine.permanent_fingerprint) == (last.epoch, its.permanent_fingerprint)


def _with_same_response(terms: Terms, own: Params, epoch: str, params: Params) -> Params | None:
    """Return the metric's own parameters with the permanent responses of these, if there are."""
    if epoch or params.part not in terms.parts:
        return None
    own = own if own.part == params.part else dataclasses.replace(own, part=params.part)
    return own if own.permanent_fingerprint == params.permanent_fingerprint else None
