"""What `record` knows of a metric until its interval or the day ends, so that it asks nobody.

A lane is made from one state of the device. It says that the metric is silent, or what a report is
drawn from. It writes nothing: the writer decides, under its lock.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rappor.encode import takes_part
from rappor.protocol.encodings import Encoding, encoder
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor_client.budget import scopes
from rappor_client.budget.admission import TAGS, Offered
from rappor_client.budget.prepared import is_early, own_params, prepare, prepare_again
from rappor_client.budget.scopes import Scope
from rappor_client.budget.state import State
from rappor_client.budget.terms import Terms
from rappor_client.outbox.outcome import Reason
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Event
from rappor_client.periods import DAY, day_of, interval_end

_HALF: Final = 1 << 32


@dataclass(slots=True)
class Lane:
    """A metric, and what is answered together with it, from one moment to another.

    `reason` says why it is silent. `memoized` are the scopes that have reported, None where the
    value decides. `best` is the smallest tag that this process has offered in the interval;
    `is_quiet` says that the interval needs no further event.
    """

    state: State
    begins: float
    ends: float
    metrics: tuple[Metric, ...]
    ready: Encoding
    reason: Reason | None = None
    epoch: str = ""
    parts: tuple[str | None, ...] = ()
    terms: tuple[Terms, ...] = ()
    memoized: tuple[Scope | None, ...] = ()
    has_interval: bool = False
    best: int = TAGS
    is_quiet: bool = False
    stops: object = field(default=None, repr=False)

    def holds(self, state: State, now: float, stops: object) -> bool:
        """Return whether the lane says what is so at a moment, by the newest state."""
        return self.state is state and self.begins <= now < self.ends and self.stops is stops

    def wants(self, tag: int) -> bool:
        """Return whether an event of this tag may be the one that is reported."""
        return not self.is_quiet and (not self.has_interval or tag < self.best)

    def event(self, value: object, now: float, tag: int, coins: Coins) -> Event:
        """Draw the reports of a value."""
        secret = self.state.secret
        assert secret is not None
        drawn = []
        for metric, part, terms, scope in zip(
            self.metrics, self.parts, self.terms, self.memoized, strict=True
        ):
            if scope is not None:
                prepared = prepare_again(scope.memoized, coins)
            else:
                prepared = prepare(secret, metric, value, epoch=self.epoch, part=part, coins=coins)
            drawn.append(Offered(terms=terms, prepared=prepared, upload_id=Upload.new_id()))
        return Event(
            mark=self.state.mark, metrics=self.metrics, offered=tuple(drawn), tag=tag, now=now
        )

    def offered(self, tag: int) -> None:
        """Note that an event of this tag waits to be written."""
        self.best = min(self.best, tag)
        self.is_quiet = self.has_interval and None not in self.memoized


def draw_tag(coins: Coins) -> int:
    """Draw 64 bits."""
    high, low = coins(2)
    return high * _HALF + low


def lane_of(
    metrics: tuple[Metric, ...],
    state: State,
    now: float,
    stops: Stops,
    silent: Callable[[State, int], frozenset[str]],
) -> Lane:
    """Return what is known of a metric at a moment, by a state."""
    asked, day = metrics[0], day_of(now)
    midnight = (now // DAY + 1) * DAY
    lane = Lane(state, now, midnight, metrics, encoder(asked.params), stops=stops.until)
    if day > asked.expires:
        lane.reason = Reason.EXPIRED
    elif asked.name in silent(state, day.year):
        lane.reason = Reason.NO_BUDGET
    elif stops.is_stopped(asked.name, day):
        lane.reason = Reason.STOPPED
    else:
        _look_up(lane, day, now)
    return lane


def _look_up(lane: Lane, day: datetime.date, now: float) -> None:
    state, asked = lane.state, lane.metrics[0]
    secret = state.secret
    assert secret is not None
    known = state.scopes.values()
    lane.epoch = asked.epoch_at(day)
    is_begun = scopes.is_begun(known, asked.name, day)
    if not (is_begun or takes_part(secret, asked, lane.epoch)):
        lane.reason = Reason.NOT_IN_SAMPLE
        return
    lane.parts = tuple(scopes.memoized_part(known, each, lane.epoch) for each in lane.metrics)
    lane.terms = tuple(Terms.of(each, day) for each in lane.metrics)
    forces = []
    for metric, part, terms in zip(lane.metrics, lane.parts, lane.terms, strict=True):
        own = own_params(secret, metric, lane.epoch, part)
        forces.append(scopes.in_force(state.scopes, terms, own, metric.name, lane.epoch))
    if asked.interval == "epoch" and not is_begun:
        own = own_params(secret, asked, lane.epoch, lane.parts[0])
        if is_early(secret, asked, lane.epoch, own, day):
            lane.reason = Reason.EARLY
    if any(each is not None and each.interval == "epoch" for each in forces):
        lane.reason = Reason.ANSWERED
    lane.memoized = tuple(forces)
    intervals = [
        metric.interval if scope is None else scope.interval
        for metric, scope in zip(lane.metrics, forces, strict=True)
    ]
    lane.has_interval = "none" not in intervals
    if lane.has_interval:
        lane.ends = min(lane.ends, *(interval_end(each, now) for each in intervals))
