"""Closing of blocks when their days have ended, by a running collector and by `prune`.

Readers close no blocks, and cannot read a day that no block contains yet. If a reader closed the
blocks of a day, the first reader after midnight would wait for all of them.

A collector looks every 30 seconds whether a metric has ended days that were not moved into blocks:
at its start, and after midnight (UTC). A process of its own then closes the blocks, in tasks of
some seconds. Each task continues where the one before stopped, also after the process was killed.
Several collectors on one database may do the same at the same time; each day is moved once.
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
"""Time in seconds between two looks for ended days. A larger value delays the release of a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseTask:
    """Merge the inbox, then close blocks of some metrics for about `seconds` seconds.

    `rules` has the rules of each metric, as `rules_in_force` returns them.
    """

    rules: Mapping[str, Rules]
    today: datetime.date
    seconds: float = _TASK_SECONDS

    def run(self, engine: Engine, report_step: ReportStep) -> None:
        """Merge, and close blocks from the first metric on that has ended days."""
        report_step("closing")
        close_ended_days(engine, self.rules, self.today, seconds=self.seconds)


def close_ended_days(
    engine: Engine,
    rules: Mapping[str, Rules],
    today: datetime.date,
    *,
    seconds: float = math.inf,
) -> None:
    """Merge the inbox, then close the blocks of all days that have ended.

    Parameters
    ----------
    engine : the database
    rules : rules of each metric, as `rules_in_force` returns them
    today : day (UTC) by the clock of this machine
    seconds : time in seconds after which no further transaction begins
    """
    # Uploads of the last minute of a day may still be in the inbox. After the day was moved, their
    # reports would be late. So the day is determined first, and all uploads of the days before it
    # are merged afterwards. Bad case: with the opposite order, midnight came between the two steps,
    # and a day was closed whose last uploads were in the inbox.
    today = earlier_of_clocks(engine, today)
    merge_all(engine)
    check_uploads(engine, today)  # the merged uploads may show that the clock is far ahead
    close_all(engine, rules, today, until=time.monotonic() + seconds)


def earlier_of_clocks(engine: Engine, today: datetime.date) -> datetime.date:
    """Return the earlier of today by this machine's clock and today by PostgreSQL's clock.

    A host whose clock is ahead would close days that have not ended, for all hosts. Reports of
    those days would then be late, and no block could contain them before the day of the wrong
    clock. Raises StoreError if both clocks may be far ahead.
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
    """Close the blocks of each metric; raise the first error after all metrics were tried.

    `rules` has the rules of each metric. The function stops soon after `until`, a time of
    `time.monotonic`.
    """
    errors: list[Exception] = []
    for metric, rules_of_metric in rules.items():
        try:
            if not close_blocks(engine, metric, rules_of_metric, today=today, until=until):
                return
        except Exception as error:  # noqa: BLE001 - damaged counters of one metric stop no other
            # Metrics are closed in the order of the registry. If the error were raised here, no
            # metric after a damaged one would ever be released.
            if isinstance(error, StoreError):
                # The line of the log must name the metric, of which there may be a hundred.
                reason = f"blocks of {metric}: {error}"
                errors.append(StoreError(reason, retryable=error.retryable))
            else:
                errors.append(error)
            if time.monotonic() > until:
                break
    if errors:
        raise errors[0]


def select_due(
    engine: Engine, rules: Mapping[str, Rules], today: datetime.date
) -> dict[str, Rules]:
    """Return the rules of the metrics with ended days that no block contains yet."""
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
    stop_idle : ends the worker process when there is nothing to do, until the next midnight
    find_due : returns the rules of the metrics with ended days that no block contains yet
    today : returns the day by the clock of this machine
    after_closing : does the work that follows from closed blocks, such as pages
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
