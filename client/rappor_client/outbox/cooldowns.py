"""Cooldowns and spreads: when a metric may send its next report after an attempt.

A collector protects a device by adding the reports of many devices, and it counts devices by
counting reports. So at most one report of a metric leaves a device in an interval, although several
reports may be queued, for example after days without network. An attempt begins the cooldown, in
which no other report of the metric leaves:

    attempt of report A              the interval of the attempt ends
    Oct 5, 08:00                     Oct 6, 00:00           Oct 6, 06:00
    |------------ cooldown ----------|-------- spread ------|
                                                            report B may leave

- The cooldown ends with the interval of the attempt, and not before report A has a result. Report A
  may have reached the collector although no response came back.
- The spread is a random part of the next interval. It applies if report B could have left before
  the cooldown ended. Without the spread, all devices that were offline would send at midnight. A
  flush ignores the spread, and the background sender ignores it for the backlog of an earlier run.

The table `state` of the spool has one value for each metric, under the name `last_attempt METRIC`:
a JSON list of the time of the last attempt, in seconds since 1970, and of the random part, in
[0, 1). The part is drawn at the attempt. A part that each step drew anew would be the smallest of
many, so late reports would leave soon after midnight.

The length of an interval comes from the reports that are queued: a collector judges a report by the
interval in the report's own fingerprint, and an earlier registry may have had another interval.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from typing import Final, NamedTuple

from rappor.protocol.params import INTERVALS
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor.registry.metric import name_epochs
from rappor_client.folder import spool
from rappor_client.folder.spool import GIVE_UP_SECONDS
from rappor_client.folder.spool_tables import read_value, write_value
from rappor_client.periods import (
    day_of,
    find_interval_end,
    get_interval_seconds,
    is_far_ahead,
)

_LAST_ATTEMPT: Final = "last_attempt"


class _Attempt(NamedTuple):
    """The last attempt of a metric.

    Attributes
    ----------
    timestamp
        Time of the attempt, in seconds since 1970; -1 before the first attempt.
    part
        Part of the next interval for the spread, uniform on [0, 1).
    """

    timestamp: float
    part: float


def record_attempt(db: sqlite3.Connection, metric: str, now: float, coins: Coins) -> None:
    """Store the time of a metric's attempt, which begins its cooldown.

    The stored time never decreases, unless it is too far ahead:

        clock                                       stored time
        as usual: later than the last attempt       now
        set back a little since the last attempt    the last attempt. The time `now` would end the
                                                    cooldown too early. Two reports once left in
                                                    one week by it.
        far ahead at the last attempt, right now    now
    """
    interval = _find_interval(db, metric)
    last = _read_last_attempt(db, metric).timestamp
    is_wrong = is_far_ahead(find_interval_end(interval, last), get_interval_seconds(interval), now)
    attempt = _Attempt(now if is_wrong else max(last, now), coins(1)[0] / ONE)
    write_value(db, f"{_LAST_ATTEMPT} {metric}", json.dumps(attempt))


def find_cooldowns(
    db: sqlite3.Connection, now: float, sendable: Mapping[str, float], *, ignore_spread: bool
) -> dict[str, float]:
    """Return the end of the cooldown of each metric, in seconds since 1970.

    Parameters
    ----------
    db
        The open transaction.
    now
        The present time.
    sendable
        Earliest send_after of the untried uploads, by metric.
    ignore_spread
        Whether the result is the end of the cooldown without the spread.

    Returns
    -------
    dict of str to float
        Infinity while an upload of the metric was tried and has no result: the uploader sends this
        upload first. Metrics without a cooldown are absent.
    """
    cooldowns = {}
    unanswered = {upload.metric for upload in spool.list_tried_uploads(db)}
    for metric, send_after in sendable.items():
        if metric in unanswered:
            cooldowns[metric] = math.inf
            continue
        attempt = _read_last_attempt(db, metric)
        has_attempt = attempt.timestamp >= 0
        if not has_attempt:
            continue
        interval = _find_interval(db, metric)
        seconds = get_interval_seconds(interval)
        end = _find_cooldown_end(db, metric, interval, attempt.timestamp, now)
        # The clock was ahead at the last attempt.
        if is_far_ahead(end, seconds, now):
            continue
        is_spread = send_after < end and not ignore_spread
        if is_spread:
            # The spread must not reach the time at which the report is given up.
            longest = max(send_after + GIVE_UP_SECONDS - end, 0.0)
            end += attempt.part * min(seconds, longest)
        cooldowns[metric] = end
    return cooldowns


def _find_cooldown_end(
    db: sqlite3.Connection, metric: str, interval: str, last: float, now: float
) -> float:
    """Return the end of the interval in which the last attempt was made, in seconds since 1970.

    With `interval = "epoch"` the result is the end of today, as long as the epoch of the attempt is
    not over. The cooldown is then computed again tomorrow. So it ends with the epoch. A report of
    last month that leaves in this month counts as the report of this month: the collector would
    otherwise get two reports of one device in one epoch.
    """
    if interval == "epoch" and _is_same_epoch(db, metric, last, now):
        last = now
    return find_interval_end(interval, last)


def _read_last_attempt(db: sqlite3.Connection, metric: str) -> _Attempt:
    """Return the last attempt of a metric."""
    return _Attempt(*json.loads(read_value(db, f"{_LAST_ATTEMPT} {metric}") or "[-1, 0]"))


def _find_interval(db: sqlite3.Connection, metric: str) -> str:
    """Return the longest interval among the queued reports of a metric, which has some."""
    intervals = {params.interval for params in spool.list_queued_params(db, metric)}
    return max(intervals, key=INTERVALS.index)


def _is_same_epoch(db: sqlite3.Connection, metric: str, first: float, second: float) -> bool:
    """Return whether two times lie in one epoch of a metric's queued reports."""
    epochs = {params.epoch for params in spool.list_queued_params(db, metric)}
    before, after = name_epochs(day_of(first)), name_epochs(day_of(second))
    return any(before[epoch] == after[epoch] for epoch in epochs)
