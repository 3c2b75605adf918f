"""Cache of the rules and the scope of a metric, for the many calls of `record` within one day.

`record` must return within microseconds. So it reads one object, which is valid until midnight or
the end of the interval, and does not look up registry, budget, sample and scope for each event.

A cache is built from one state of the device. It is stale, and is built anew, when

- the clock leaves the period of the cache: the next day, the next interval, or a clock set back;
- another state was committed: the metric may be memoized now, or its budget reserved;
- the collector has stopped other metrics than before.

A cache either has a reason to skip the metric, or everything from which a report is drawn. Its
decisions are preliminary: the writer decides again, under its lock, from the state on the disk.

The reasons to skip, in the order of the checks:

    EXPIRED         the last day of the metric is over
    NO_BUDGET       the year's budget has no room for the metric
    STOPPED         the collector has stopped the metric
    NOT_IN_SAMPLE   the secret has not drawn this device into the sample
    EARLY, LATE     `interval = "epoch"`: before the drawn day, or on the last day of the epoch
    ANSWERED        `interval = "epoch"`: the epoch has had its report

None of them depends on a value.

An interval needs one event only. Before a scope is memoized, every event draws a random tag of 64
bits, and only an event with a smaller tag than all earlier events is written. Of n events of an
interval about ln n are written. After a scope is memoized, the first event of an interval is
written, and all further events are ignored, because each of them would report the same permanent
response.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rappor.encode import is_sampled
from rappor.protocol.encodings import Encoding, get_encoder
from rappor.protocol.responses.response import Coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor_client.budget import scopes
from rappor_client.budget.metric_rules import MetricRules
from rappor_client.budget.pending_reports import N_TAGS, AdmissionRequest
from rappor_client.budget.prepared_report import (
    derive_params,
    is_before_drawn_day,
    is_last_day_of_epoch,
    prepare_report,
    redraw_report,
)
from rappor_client.budget.scopes import Scope
from rappor_client.budget.state import State
from rappor_client.outbox.outcome import SkipReason
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Event
from rappor_client.periods import DAY, day_of, find_interval_end

_TWO_TO_32: Final = 1 << 32
"""Number of values of a coin. A tag is the first coin times this number, plus the second coin."""


@dataclass(slots=True)
class MetricCache:
    """Rules and scope of a metric, valid for a period of at most a day.

    Attributes
    ----------
    state
        State of the device from which the cache was built.
    valid_from, valid_until
        The period, in seconds since 1970.
    metric
        Entry of the registry.
    encoding
        Encoding of the metric, which checks values.
    stopped_until
        The stops of all metrics from which the cache was built: last day by metric.
    skip_reason
        Reason to skip the metric, None if it is recorded.
    epoch
        Name of the epoch, such as 2026-Q4.
    part
        Part of a string that the device has reported in this epoch, and must report again. None
        before its first report, when the secret chooses the part, and for a metric without parts.
    rules
        The metric's rules of the day.
    memoized_scope
        The scope of the next report. None if the next report begins a scope.
    smallest_tag
        Smallest tag of this process's events in the interval. Before the first event it is 2^64,
        which is larger than every tag.
    is_complete
        Whether the interval needs no further event.
    """

    state: State
    valid_from: float
    valid_until: float
    metric: Metric
    encoding: Encoding
    stopped_until: object = field(repr=False)
    skip_reason: SkipReason | None = None
    epoch: str = ""
    part: str | None = None
    rules: MetricRules | None = None
    memoized_scope: Scope | None = None
    smallest_tag: int = N_TAGS
    is_complete: bool = False

    def is_valid(self, state: State, now: float, stopped_until: object) -> bool:
        """Return whether the cache is valid for a state of the device, a time and the stops.

        State and stops are compared as objects, which takes nanoseconds. Each change of the state
        or of the stops creates another object.
        """
        is_same = self.state is state and self.stopped_until is stopped_until
        return is_same and self.valid_from <= now < self.valid_until

    def needs_event(self, tag: int) -> bool:
        """Return whether an event with a tag may become the report of the interval."""
        return not self.is_complete and tag < self.smallest_tag

    def draw_event(self, value: object, now: float, tag: int, coins: Coins) -> Event:
        """Draw the report of a value, and return it as an event for the writer."""
        secret, metric, part = self.state.secret, self.metric, self.part
        assert secret is not None
        assert self.rules is not None
        if self.memoized_scope is not None:
            prepared = redraw_report(self.memoized_scope.report_template, coins)
        else:
            prepared = prepare_report(
                secret, metric, value, epoch=self.epoch, part=part, coins=coins
            )
        request = AdmissionRequest(rules=self.rules, prepared=prepared, upload_id=Upload.new_id())
        return Event(
            secret_id=self.state.secret_id, metric=metric, request=request, tag=tag, timestamp=now
        )

    def note_event(self, tag: int) -> None:
        """Remember that an event with a tag is in the writer's memory.

        A memoized scope needs no other event in this interval.
        """
        self.smallest_tag = min(self.smallest_tag, tag)
        self.is_complete = self.memoized_scope is not None


def draw_tag(coins: Coins) -> int:
    """Draw a tag: a uniform integer of 64 bits. The event with the smallest tag is reported."""
    high, low = coins(2)
    return high * _TWO_TO_32 + low


def build_cache(
    metric: Metric,
    state: State,
    now: float,
    stops: Stops,
    find_unaffordable: Callable[[State, int], frozenset[str]],
) -> MetricCache:
    """Build the cache of a metric.

    Parameters
    ----------
    metric
        Entry of the registry.
    state
        State of the device.
    now
        Time of the event, in seconds since 1970.
    stops
        Metrics that the collector has stopped.
    find_unaffordable
        Returns the metrics that do not fit into the budget of a year.
    """
    day = day_of(now)
    # A metric may expire, a stop may end and an epoch may begin at midnight.
    midnight = (now // DAY + 1) * DAY
    cache = MetricCache(state, now, midnight, metric, get_encoder(metric.params), stops.last_days)
    if day > metric.expires:
        cache.skip_reason = SkipReason.EXPIRED
    elif metric.name in find_unaffordable(state, day.year):
        cache.skip_reason = SkipReason.NO_BUDGET
    elif stops.is_stopped(metric.name, day):
        cache.skip_reason = SkipReason.STOPPED
    else:
        _look_up_scope(cache, day, now)
    return cache


def _look_up_scope(cache: MetricCache, day: datetime.date, now: float) -> None:
    """Set the fields of a cache that depend on the metric's scopes."""
    state, metric = cache.state, cache.metric
    secret = state.secret
    assert secret is not None
    all_scopes = state.scopes.values()
    cache.epoch = metric.epoch_at(day)
    has_reported = scopes.has_reported(all_scopes, metric.name, day)
    # A device that has reported stays in its sample until the epoch ends, also after a change of
    # the sampling rate.
    if not (has_reported or is_sampled(secret, metric, cache.epoch)):
        cache.skip_reason = SkipReason.NOT_IN_SAMPLE
        return
    # Order matters: the memoized part determines the parameters, and these determine the scope.
    cache.part = scopes.find_memoized_part(all_scopes, metric, cache.epoch)
    cache.rules = MetricRules.for_day(metric, day)
    params = derive_params(secret, metric, cache.epoch, cache.part)
    scope = scopes.find_scope(state.scopes, cache.rules, params, metric.name, cache.epoch)
    # These two rules are for the first report of an epoch. A scope that has reported under another
    # interval keeps that interval.
    is_once = metric.interval == "epoch" and not has_reported
    if is_once and is_before_drawn_day(secret, metric, cache.epoch, params, day):
        cache.skip_reason = SkipReason.EARLY
    elif is_once and is_last_day_of_epoch(metric, day):
        cache.skip_reason = SkipReason.LATE
    # The scope has its own interval. It differs from the metric's if a new registry has changed the
    # interval within an epoch.
    if scope is not None and scope.interval == "epoch":
        cache.skip_reason = SkipReason.ANSWERED
    cache.memoized_scope = scope
    interval = metric.interval if scope is None else scope.interval
    cache.valid_until = min(cache.valid_until, find_interval_end(interval, now))
