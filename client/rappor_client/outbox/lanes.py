"""What `record` knows of a metric until its interval or the day ends, so that it asks nobody.

A lane is made from one state of the device. It says that the metric is silent, or what a report is
drawn from. It writes nothing: the writer decides, under its lock.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rappor.encode import is_sampled
from rappor.protocol.encodings import Encoding, get_encoder
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor_client.budget import scopes
from rappor_client.budget.admission import TAGS, AdmissionRequest
from rappor_client.budget.prepared import is_early, is_last_day, own_params, prepare, prepare_again
from rappor_client.budget.scopes import Scope
from rappor_client.budget.state import State
from rappor_client.budget.terms import MetricRules
from rappor_client.outbox.outcome import SkipReason
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Event
from rappor_client.periods import DAY, day_of, interval_end

_HALF: Final = 1 << 32


@dataclass(slots=True)
class MetricCache:
    """A metric from one moment to another.

    `reason` says why it is silent. `memoized` is the scope that has reported, None where the
    value decides. `best` is the smallest tag that this process has offered in the interval;
    `is_quiet` says that the interval needs no further event.
    """

    state: State
    begins: float
    ends: float
    metric: Metric
    ready: Encoding
    reason: SkipReason | None = None
    epoch: str = ""
    part: str | None = None
    terms: MetricRules | None = None
    memoized: Scope | None = None
    best: int = TAGS
    is_quiet: bool = False
    stops: object = field(default=None, repr=False)

    def holds(self, state: State, now: float, stops: object) -> bool:
        """Return whether the lane says what is so at a moment, by the newest state."""
        return self.state is state and self.begins <= now < self.ends and self.stops is stops

    def wants(self, tag: int) -> bool:
        """Return whether an event of this tag may be the one that is reported."""
        return not self.is_quiet and tag < self.best

    def event(self, value: object, now: float, tag: int, coins: Coins) -> Event:
        """Draw the report of a value."""
        secret, metric, part = self.state.secret, self.metric, self.part
        assert secret is not None
        assert self.terms is not None
        if self.memoized is not None:
            prepared = prepare_again(self.memoized.memoized, coins)
        else:
            prepared = prepare(secret, metric, value, epoch=self.epoch, part=part, coins=coins)
        offered = AdmissionRequest(terms=self.terms, prepared=prepared, upload_id=Upload.new_id())
        return Event(mark=self.state.mark, metric=metric, offered=offered, tag=tag, now=now)

    def offered(self, tag: int) -> None:
        """Note that an event of this tag waits to be written."""
        self.best = min(self.best, tag)
        self.is_quiet = self.memoized is not None


def draw_tag(coins: Coins) -> int:
    """Draw 64 bits."""
    high, low = coins(2)
    return high * _HALF + low


def lane_of(
    metric: Metric,
    state: State,
    now: float,
    stops: Stops,
    silent: Callable[[State, int], frozenset[str]],
) -> MetricCache:
    """Return what is known of a metric at a moment, by a state."""
    day = day_of(now)
    midnight = (now // DAY + 1) * DAY
    lane = MetricCache(state, now, midnight, metric, get_encoder(metric.params), stops=stops.until)
    if day > metric.expires:
        lane.reason = SkipReason.EXPIRED
    elif metric.name in silent(state, day.year):
        lane.reason = SkipReason.NO_BUDGET
    elif stops.is_stopped(metric.name, day):
        lane.reason = SkipReason.STOPPED
    else:
        _look_up(lane, day, now)
    return lane


def _look_up(lane: MetricCache, day: datetime.date, now: float) -> None:
    state, metric = lane.state, lane.metric
    secret = state.secret
    assert secret is not None
    known = state.scopes.values()
    lane.epoch = metric.epoch_at(day)
    is_begun = scopes.is_begun(known, metric.name, day)
    if not (is_begun or is_sampled(secret, metric, lane.epoch)):
        lane.reason = SkipReason.NOT_IN_SAMPLE
        return
    lane.part = scopes.memoized_part(known, metric, lane.epoch)
    lane.terms = MetricRules.of(metric, day)
    own = own_params(secret, metric, lane.epoch, lane.part)
    scope = scopes.in_force(state.scopes, lane.terms, own, metric.name, lane.epoch)
    is_once = metric.interval == "epoch" and not is_begun
    if is_once and is_early(secret, metric, lane.epoch, own, day):
        lane.reason = SkipReason.EARLY
    elif is_once and is_last_day(metric, day):
        lane.reason = SkipReason.LATE
    if scope is not None and scope.interval == "epoch":
        lane.reason = SkipReason.ANSWERED
    lane.memoized = scope
    interval = metric.interval if scope is None else scope.interval
    lane.ends = min(lane.ends, interval_end(interval, now))
