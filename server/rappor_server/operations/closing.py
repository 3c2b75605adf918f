"""Close blocks of reports after their days have ended, in a running collector and in `prune`.

A block is the sum of the reports of one cohort over consecutive whole days. A closed block has
enough reports to protect each of them, and never changes. Analysts read closed blocks only, after
a release window contains them (`storage/blocks.py`). Until then, the reports of a day are counters:
one row of sums for each cohort of the day. After the day has ended, its counters are moved into
blocks, and the blocks that have enough reports are closed.

A query of an analyst closes no blocks. It cannot read a day whose counters were not moved yet. If
queries closed the blocks, the first query after midnight would wait for the blocks of all cohorts.

A collector searches every 30 seconds for metrics with ended days whose counters were not moved yet.
It finds such days when it starts, and after each midnight (UTC). A worker process then moves the
counters, in tasks of some seconds. Each task continues where the task before it stopped, even if
the process was killed in between. Several collectors on one database may run such tasks at the same
time. Each day is moved once.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Engine

from rappor.base.errors import RapporError
from rappor_server.base import logs
from rappor_server.base.errors import StoreError
from rappor_server.operations.retention import check_uploads
from rappor_server.queries.worker import ReportStep
from rappor_server.storage.blocks import Rules, close_blocks, count_due_days
from rappor_server.storage.database import read_today, translate_errors
from rappor_server.storage.merge import merge_all

_TASK_SECONDS: Final = 5.0
"""Time in seconds after which a task stops and leaves the remaining days to the next task. A
larger value would let a task of a long backlog exceed the time limit of worker processes."""
_POLL_SECONDS: Final = 30.0
"""Time in seconds between two searches for ended days. With a larger value, analysts can read a day
later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseTask:
    """Task of a worker process: close the blocks of some metrics.

    Attributes
    ----------
    rules
        For each metric, the minimum numbers of reports that close and release a block, by the
        fingerprint of the reports (`storage.blocks.rules_in_force`).
    today
        Day (UTC) by the clock of this machine.
    seconds
        Time in seconds after which the task begins no further transaction.
    """

    rules: Mapping[str, Rules]
    today: datetime.date
    seconds: float = _TASK_SECONDS

    def run(self, engine: Engine, report_step: ReportStep) -> None:
        """Close the blocks of the metrics in their order, until the time of the task is over."""
        report_step("closing")
        close_ended_days(engine, self.rules, self.today, seconds=self.seconds)


def close_ended_days(
    engine: Engine,
    rules: Mapping[str, Rules],
    today: datetime.date,
    *,
    seconds: float = math.inf,
) -> None:
    """Add the accepted uploads to the counters, then close the blocks of all ended days.

    The accepted uploads wait in the inbox until a merge adds their reports to the counters.

    Parameters
    ----------
    engine : the database
    rules : rules of the blocks of each metric (`storage.blocks.rules_in_force`)
    today : day (UTC) by the clock of this machine
    seconds : time in seconds after which no further transaction begins
    """
    # Uploads of the last minute of a day may still be in the inbox. If the day is moved without
    # their reports, these reports are late: they join the block of a later day, and that block then
    # needs more reports. So today is determined first. The merge after it adds all uploads of the
    # days before today. Bad case: with the opposite order, midnight came between the two steps, and
    # a day was moved while its last uploads were in the inbox.
    today = earlier_of_clocks(engine, today)
    merge_all(engine)
    check_uploads(engine, today)  # the merged uploads may show that the clock is far ahead
    close_all(engine, rules, today, until=time.monotonic() + seconds)


def earlier_of_clocks(engine: Engine, today: datetime.date) -> datetime.date:
    """Return the earlier of today by this machine's clock and today by PostgreSQL's clock.

    Bad case: the clock of one of several hosts is a week ahead. This host would move the days of
    the week before they have ended. All reports that come during this week would be late. The next
    day that is moved is the day after the week, so no block would contain the reports before then.

    Raises
    ------
    StoreError
        Both clocks may be far ahead (`check_uploads`).
    """
    if engine.dialect.name == "postgresql":
        with translate_errors(), engine.connect() as db:
            today = min(today, read_today(db))
    check_uploads(engine, today)
    return today


def close_all(
    engine: Engine,
    rules: Mapping[str, Rules],
    today: datetime.date,
    *,
    until: float = math.inf,
) -> None:
    """Close the blocks of each metric, also of the metrics after a metric that fails.

    Parameters
    ----------
    engine : the database
    rules : rules of the blocks of each metric (`storage.blocks.rules_in_force`)
    today : first day (UTC) that is not moved
    until : time of `time.monotonic` after which no further transaction begins

    Raises
    ------
    Exception
        The first error, after the other metrics were tried. No error is raised if the time is over
        while a metric without errors still has days to move. The next task meets the error again.
    """
    errors: list[Exception] = []
    for metric, rules_of_metric in rules.items():
        try:
            is_complete = close_blocks(engine, metric, rules_of_metric, today=today, until=until)
            if not is_complete:
                # The time is over. Earlier errors are dropped here, because `keep_closing` waits
                # for 30 seconds after an error. Bad case: a metric with damaged counters comes
                # before a metric with a long backlog. With an error, the backlog would get 5 of
                # every 35 seconds. Without an error, the next task follows at once.
                return
        except Exception as error:  # noqa: BLE001 - damaged counters of one metric stop no other
            # Metrics are closed in the order of the registry. If the error were raised here, no
            # metric after a damaged one would ever be released.
            if isinstance(error, StoreError):
                # A collector may have a hundred metrics, so the line of the log names the metric.
                reason = f"blocks of {metric}: {error}"
                errors.append(StoreError(reason, retryable=error.retryable))
            else:
                errors.append(error)
            # If the database does not respond, each metric fails after a long wait. The time of the
            # task limits the number of waits.
            if time.monotonic() > until:
                break
    if errors:
        raise errors[0]


def select_due(
    engine: Engine, rules: Mapping[str, Rules], today: datetime.date
) -> dict[str, Rules]:
    """Return the rules of the metrics with ended days whose counters were not moved yet."""
    day_counts = count_due_days(engine, rules.keys(), today=today)
    return {metric: rules[metric] for metric in day_counts}


async def keep_closing(
    run: Callable[[CloseTask], Awaitable[None]],
    stop_idle: Callable[[], Awaitable[None]],
    find_due: Callable[[], Awaitable[Mapping[str, Rules]]],
    today: Callable[[], datetime.date],
    *,
    after_closing: Callable[[], Awaitable[None]] | None = None,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Close blocks when a collector starts, and after each midnight (UTC), until cancelled.

    Parameters
    ----------
    run : runs a task in a worker process
    stop_idle : ends the worker process, which has no task until the next midnight
    find_due : returns the rules of the metrics with ended days whose counters were not moved yet
    today : returns the day (UTC) by the clock of this machine
    after_closing : computes the results that new blocks change, such as the overviews of the pages
    poll_seconds : seconds between two calls of `find_due`
    """

    async def close_due() -> None:
        while rules := await find_due():
            await run(CloseTask(rules=rules, today=today()))
        await stop_idle()

    steps = [close_due] if after_closing is None else [close_due, after_closing]
    is_failing = False
    while True:
        errors: list[Exception] = []
        for step in steps:
            # The second step runs even if the first one fails. Case: the counters of one metric are
            # damaged, so `close_due` fails for good. The blocks of all other metrics were closed
            # before it fails, and `after_closing` computes their pages. Bad case of an error that
            # is no RapporError: the disk of uploaded lists failed in `after_closing`. The task
            # ended, and no day was closed until a restart of the collector.
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - an unexpected error must not end the loop
                errors.append(error)
        # Only the first of several failures is logged. The same line every 30 seconds would fill
        # the log.
        if errors and not is_failing:
            _log_failure(errors[0])
        is_failing = bool(errors)
        await asyncio.sleep(poll_seconds)


def _log_failure(error: Exception) -> None:
    """Write a line for a failure; an unexpected error is named by its class and lines of code."""
    if isinstance(error, RapporError):
        logs.log_event("closing blocks failed", level=logging.WARNING, reason=str(error))
    else:
        logs.log_unexpected_error(error)
