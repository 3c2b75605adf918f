"""Blocks are closed when their days have ended: by a running collector, and by `prune`.

Readers close nothing. A day that is in no block yet is one that they cannot see.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Engine

from rappor.base.errors import RapporError
from rappor.registry.metric import Metric
from rappor_server.base import logs
from rappor_server.operations.retention import check_uploads
from rappor_server.queries.worker import Tell
from rappor_server.storage.blocks import close_blocks, due, rule_of
from rappor_server.storage.database import read_today, translate_errors
from rappor_server.storage.merge import merge_all

_PIECE_SECONDS: Final = 5.0
"""How long a task goes on; a process answers for a task within a limit of time."""
_LOOK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseTask:
    """Close blocks of some metrics for about this many seconds, after what waits was folded."""

    metrics: Sequence[Metric]
    today: datetime.date
    seconds: float = _PIECE_SECONDS

    def run(self, engine: Engine, tell: Tell) -> None:
        """Go on with the first metric that is not done."""
        tell("closing")
        merge_all(engine)
        today = earlier_of_clocks(engine, self.today)
        close_all(engine, self.metrics, today, until=time.monotonic() + self.seconds)


def earlier_of_clocks(engine: Engine, today: datetime.date) -> datetime.date:
    """Return the day that has begun by this machine's clock, and by PostgreSQL's.

    A host whose clock is ahead would end day after day for all hosts, and what comes on those days
    would be late: no block of it could be closed before the clock's own day. Raises StoreError
    where both may be far ahead.
    """
    if engine.dialect.name == "postgresql":
        with translate_errors(), engine.connect() as db:
            today = min(today, read_today(db))
    check_uploads(engine, today)
    return today


def close_days(
    engine: Engine, metric: Metric, today: datetime.date, *, until: float = math.inf
) -> bool:
    """Close the blocks of all days that have ended, where a metric has a minimum.

    Returns whether that is done; it stops some time after `until`, by `time.monotonic`.
    """
    if not metric.min_reports:
        return True
    return close_blocks(engine, metric.name, rule_of(engine, metric), today=today, until=until)


def close_all(
    engine: Engine, metrics: Iterable[Metric], today: datetime.date, *, until: float = math.inf
) -> None:
    """Do what `close_days` does for each metric; raise what one fails with after the others."""
    errors: list[Exception] = []
    for metric in metrics:
        try:
            if not close_days(engine, metric, today, until=until):
                return
        except Exception as error:  # noqa: BLE001 - damaged counters of one metric stop no other
            errors.append(error)
            if time.monotonic() > until:
                break
    if errors:
        raise errors[0]


def metrics_due(engine: Engine, metrics: Sequence[Metric], today: datetime.date) -> list[Metric]:
    """Return the metrics that have days to be closed."""
    bounded = {metric.name: metric for metric in metrics if metric.min_reports}
    return [bounded[name] for name in due(engine, list(bounded), today=today)]


async def keep_closing(
    run: Callable[[CloseTask], Awaitable[None]],
    rest: Callable[[], Awaitable[None]],
    look: Callable[[], Awaitable[Sequence[Metric]]],
    today: Callable[[], datetime.date],
    *,
    then: Callable[[], Awaitable[None]] | None = None,
    pause: float = _LOOK_SECONDS,
) -> None:
    """Close what is due when a collector starts, and after each midnight (UTC).

    `look` returns the metrics that are due; when there are none any more, whoever runs the tasks
    may `rest`, and what follows from closed blocks may be done `then`. It is asked again after
    `pause` seconds.
    """
    is_failing = False
    while True:
        try:
            while found := await look():
                await run(CloseTask(metrics=found, today=today()))
            await rest()
            if then is not None:
                await then()
            is_failing = False
        except RapporError as error:
            if not is_failing:
                logs.event("closing blocks failed", level=logging.WARNING, reason=str(error))
            is_failing = True
        await asyncio.sleep(pause)
