"""Blocks: consecutive whole days of one cohort that hold enough reports to be shown together.

Day by day, once it has ended, the counts of a cohort are added to its open block. The block is
closed as soon as it holds `min_cohort` reports for each interval that it touches. A device sends
one report in an interval, so none has sent more than one in `min_cohort` of a block. Where the
last interval alone holds enough and the whole block does not, the reports before it are set aside:
counted as refused, and never shown. A closed block never changes. Whatever arrives for
a day that was moved already, because some collector's clock lags, goes into the next block, which
then begins on that day: a device may be in it with a report of each of its days. Days are moved in
short transactions, so collectors write between them, and one that is interrupted goes on where it
was.
"""

from __future__ import annotations

import datetime
import functools
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, or_, select

from rappor.counts.devices import most_reports, same_interval
from rappor.registry.metric import Metric
from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert
from rappor_server.storage.database import (
    PAUSE_SECONDS,
    as_day,
    failing_as_store_error,
    wait_alone,
    writing,
)
from rappor_server.storage.fold import add_refusals
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import Tally

_BLOCKS: Final = BulkInsert(schema.block)
_THROUGH: Final = BulkInsert(schema.blocked, keys=("metric",))
_OPEN: Final = BulkDelete(
    schema.block,
    keys=("metric", "params", "cohort"),
    returning=("params", "cohort", "first", "last", "reports", "ones"),
    only="own.closed = false",  # an equality, or SQLite would look at all blocks of the metric
)
_DAY: Final = datetime.timedelta(days=1)
_COHORTS: Final = 4096
"""Those of a day that are moved at once."""
_TRANSACTION_SECONDS: Final = 0.02
"""How long a transaction goes on taking pieces, while uploads wait."""
SET_ASIDE: Final = "set aside"
"""The reason under which reports are counted that no block may ever show."""


class _Piece(NamedTuple):
    """Some cohorts of a day, from `start` on."""

    day: datetime.date
    start: int
    is_last: bool


class _Cohort(NamedTuple):
    """Whose counts a block holds, within a metric."""

    params: str
    cohort: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a block of a metric may be shown.

    `pace` is the time in which a device reports at most once, as `Metric.pace`; `min_cohort` is
    the number of reports for each of these times. `epoch` is the metric's.
    """

    pace: str
    min_cohort: int
    epoch: str = "life"

    @classmethod
    def of(cls, metric: Metric) -> Self:
        """Return the rule of a metric."""
        return cls(pace=metric.pace, min_cohort=metric.min_cohort, epoch=metric.epoch)

    def least(self, first: datetime.date, last: datetime.date) -> int:
        """Return from how many reports on no device has more than one in `min_cohort`.

        Where devices report every event, it asks for `min_cohort` reports in all.
        """
        return self.min_cohort * (most_reports(self.pace, first, last) + self._more(first, last))

    def _more(self, first: datetime.date, last: datetime.date) -> int:
        """Return how many more reports of a device may leave on these days than have intervals.

        One leaves on the day after the day that an epoch is asked about, perhaps in the next epoch.
        One of a week leaves in the 7 days after it; an epoch that ends in a week cuts it in two.
        """
        days_later = {self.epoch: 1, "week": 7}.get(self.pace, 0)
        if self.epoch == "life" or not days_later:
            return 0
        before = first - min(days_later * _DAY, first - datetime.date.min)
        n_epochs = most_reports(self.epoch, before, last)
        return n_epochs - (1 if self.pace == "week" else most_reports(self.epoch, first, last))

    def shows(self, block: Block) -> bool:
        """Return whether a block may be shown."""
        return block.tally.reports >= self.least(block.first, block.last)

    def settle(self, blocks: Sequence[Block]) -> Settled:
        """Decide on the open blocks of a cohort, by their first days; the last one is a day."""
        whole = functools.reduce(Block.joined, blocks)
        if self.shows(whole):
            return Settled(closed=whole)
        newest = [each for each in blocks if same_interval(self.pace, each.first, whole.last)]
        earlier = blocks[: len(blocks) - len(newest)]
        last = functools.reduce(Block.joined, newest)
        if not earlier:
            return Settled(waiting=(last,))
        before = functools.reduce(Block.joined, earlier)
        if self.shows(last):
            return Settled(closed=last, set_aside=before.tally.reports)
        return Settled(waiting=(before, last))


class Block(NamedTuple):
    """Counts of a cohort on consecutive days."""

    first: datetime.date
    last: datetime.date
    tally: Tally

    def joined(self, later: Block) -> Block:
        """Return this block and one that does not begin before it as one."""
        return Block(self.first, max(self.last, later.last), self.tally + later.tally)


class Settled(NamedTuple):
    """What becomes of the open blocks of a cohort.

    Of those that wait, the first one ends before the interval of the second one.
    """

    closed: Block | None = None
    waiting: tuple[Block, ...] = ()
    set_aside: int = 0


def last_day(store: Store, metric: Metric, *, today: datetime.date) -> datetime.date:
    """Return the last day whose reports may be read: the last one that is in blocks.

    A metric without a minimum has its last day with reports, today's too.
    """
    day, through = schema.tally.c.day, schema.blocked.c.through
    own = select(func.max(day)).where(schema.tally.c.metric == metric.name, day <= today)
    last = select(through).where(schema.blocked.c.metric == metric.name)
    with failing_as_store_error(), store.engine.connect() as db:
        found = db.execute(last if metric.min_reports else own).scalar_one_or_none()
    return found or (today - _DAY if metric.min_reports else today)


def n_reports(store: Store, metric: Metric) -> int:
    """Return how many reports of a metric are counted and in no block."""
    columns = schema.tally.c
    query = select(func.coalesce(func.sum(columns.reports), 0)).where(
        columns.metric == metric.name, ~columns.quarantine
    )
    with failing_as_store_error(), store.engine.connect() as db:
        return int(db.execute(query).scalar_one())


def due(engine: Engine, metrics: Collection[str], *, today: datetime.date) -> list[str]:
    """Return which of the metrics have counts of days before today that no block holds."""
    tally, blocked = schema.tally.c, schema.blocked
    is_open = or_(blocked.c.through.is_(None), blocked.c.through < today - _DAY)
    query = (
        select(tally.metric)
        .outerjoin(blocked, blocked.c.metric == tally.metric)
        .where(tally.metric.in_(metrics), tally.day < today, ~tally.quarantine, is_open)
    )
    with failing_as_store_error(), engine.connect() as db:
        return sorted(db.execute(query.distinct()).scalars())


def close_blocks(
    engine: Engine,
    metric: str,
    rule: Rule,
    *,
    today: datetime.date,
    until: float = math.inf,
) -> bool:
    """Move the counts of all days before today into blocks; those in quarantine stay.

    No transaction begins after `until`, a time of `time.monotonic`, but the first one always does.
    Returns whether all counts were moved.
    """
    with failing_as_store_error(), engine.connect() as db:
        pieces = deque(_pieces(db, metric, today))
    while pieces:
        with writing(engine) as db:
            wait_alone(db)
            enough = time.monotonic() + _TRANSACTION_SECONDS
            while pieces:
                _move_piece(db, metric, pieces.popleft(), rule)
                if time.monotonic() > enough:
                    break
        if time.monotonic() > until:
            break
        time.sleep(PAUSE_SECONDS)
    return not pieces


def _pieces(db: Connection, metric: str, today: datetime.date) -> Iterator[_Piece]:
    """Yield what is to be moved, day by day."""
    columns = schema.tally.c
    next_day = _through(db, metric) + _DAY
    days = sorted({max(day, next_day) for day in _days_before(db, metric, today)})
    if not days:
        return
    ends = select(func.min(columns.cohort), func.max(columns.cohort))
    first, last = db.execute(ends.where(columns.metric == metric)).one()
    if first is None:  # another one has moved all of it meanwhile
        return
    for day in days:
        if day < today:
            for start in range(first, last + 1, _COHORTS):
                yield _Piece(day, start, is_last=start + _COHORTS > last)


def _move_piece(db: Connection, metric: str, piece: _Piece, rule: Rule) -> None:
    """Move a piece, unless another one has moved its day meanwhile."""
    if _through(db, metric) >= piece.day:
        return
    _move(db, metric, piece, rule)
    if piece.is_last:
        _THROUGH.run(db, [(metric, piece.day)])


def _through(db: Connection, metric: str) -> datetime.date:
    """Return the last day that was moved."""
    columns = schema.blocked.c
    found = db.execute(select(columns.through).where(columns.metric == metric)).scalar()
    return datetime.date.min if found is None else found


def _days_before(db: Connection, metric: str, today: datetime.date) -> Iterable[datetime.date]:
    columns = schema.tally.c
    query = select(columns.day).where(
        columns.metric == metric, columns.day < today, ~columns.quarantine
    )
    return db.execute(query.distinct()).scalars()


def _move(db: Connection, metric: str, piece: _Piece, rule: Rule) -> None:
    """Move the counts of a piece, and those that came late for days before it."""
    added = _take_counts(db, metric, piece)
    waiting = _take_open(db, metric, added)
    rows, set_aside = [], 0
    for own, days in added.items():
        settled = _settle(rule, waiting[own], days, piece.day)
        closed = [] if settled.closed is None else [settled.closed]
        set_aside += settled.set_aside
        rows += [
            (
                metric,
                *own,
                each.last,
                each.first,
                bool(closed),
                each.tally.reports,
                each.tally.to_bytes(),
            )
            for each in (*closed, *settled.waiting)
        ]
    _BLOCKS.run(db, rows)
    if set_aside:
        add_refusals(db, Counter({(piece.day, metric, SET_ASIDE): set_aside}))


def _settle(
    rule: Rule, waiting: Sequence[Block], days: Sequence[Block], day: datetime.date
) -> Settled:
    """Decide on a cohort's blocks when a day is moved; `days` has its counts, and late ones."""
    ordered = sorted([*waiting, *days], key=lambda each: each.first)
    is_late = days[0].first < day
    if days[-1].first < day:
        ordered.append(Block(day, day, Tally(0, np.zeros_like(days[-1].tally.ones))))
    settled = rule.settle(ordered)
    if is_late and settled.waiting:  # as one: a closed block may end on a day that came late
        return Settled(waiting=(functools.reduce(Block.joined, settled.waiting),))
    return settled


def _take_counts(db: Connection, metric: str, piece: _Piece) -> dict[_Cohort, list[Block]]:
    """Delete the counters of some cohorts, of all days up to one, and return them in order.

    A collector whose clock lags writes before that and is included, or finds its counters gone.
    Where an interrupted run has closed the block of this day already, they stay for the next day.
    """
    columns, block = schema.tally.c, schema.block.c
    is_closed = select(block.metric).where(
        block.metric == columns.metric,
        block.params == columns.params,
        block.cohort == columns.cohort,
        block.last == piece.day,
        block.closed,
    )
    gone = delete(schema.tally).where(
        columns.metric == metric,
        columns.day <= piece.day,
        columns.cohort >= piece.start,
        columns.cohort < piece.start + _COHORTS,
        ~columns.quarantine,
        ~is_closed.exists(),
    )
    returned = gone.returning(
        columns.params, columns.cohort, columns.day, columns.reports, columns.ones
    )
    return _by_cohort((*row[:3], *row[2:]) for row in db.execute(returned))


def _take_open(
    db: Connection, metric: str, cohorts: Iterable[_Cohort]
) -> defaultdict[_Cohort, list[Block]]:
    """Delete the open blocks of cohorts and return what they held, each cohort's in order."""
    return _by_cohort(_OPEN.run(db, [(metric, *own) for own in cohorts]))


def _by_cohort(rows: Iterable[Any]) -> defaultdict[_Cohort, list[Block]]:
    """Return the blocks of each cohort, in order."""
    found: defaultdict[_Cohort, list[Block]] = defaultdict(list)
    for params, cohort, first, last, reports, ones in rows:
        tally = Tally.from_bytes(reports, bytes(ones))
        found[_Cohort(params, cohort)].append(Block(as_day(first), as_day(last), tally))
    for blocks in found.values():
        blocks.sort(key=lambda each: each.first)
    return found
