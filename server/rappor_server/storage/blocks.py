"""Blocks: sums of the reports of a cohort that are large enough to protect each report.

Theory of operation
-------------------
A sum of one report is the report itself. So analysts read sums of blocks only. A block contains the
reports of consecutive whole days, of one metric, fingerprint and cohort. A block is closed when no
device made more than one in `min_cohort` of its reports:

    reports >= min_cohort * (intervals that the days of the block touch)

because a device sends at most one report in an interval. A fingerprint determines its interval.

A report passes through these states:

    counter      row of `tally` for one day. The day has not ended, or was not moved yet
      |          the day has ended, and `close_blocks` moves it
    open block   row of `block` with closed = false. It waits for more reports, and nobody reads it
      |          it has enough reports                  | a later interval has enough by itself
    closed block it never changes                       set aside: deleted, and counted as refused
      |          the closed blocks of the fingerprint together have `min_reports` reports
    window       analysts read it (`release_windows`)

Days are moved in order. `blocked.through` is the last day of a metric that was moved. The closed
blocks of a day end on that day, also if they contain days before it.

Invariants:

1. A closed block is never changed. Only `forget` and `retention` delete it, with its window.
2. A cohort has at most two open blocks under a fingerprint. The first one ends before the interval
   in which the second one begins.
3. `through` never decreases. A day is moved once.
4. Every report that was counted is in a counter, in an open block, in a closed block, or set aside.
5. A block that is closed in the night after day D ends on D or later, so windows of earlier nights
   stay as they are.

Example: two cohorts of a daily metric with `min_cohort` = 10 and `min_reports` = 40.

    night after  cohort 1                     cohort 2                    window of the fingerprint
    -----------  ---------------------------  --------------------------  -------------------------
    Mon          4 reports wait: 4 < 10       1 report waits: 1 < 10      none: no block is closed
    Tue          4 + 9 wait: 13 < 20, 9 < 10  1 + 12 < 20, but 12 >= 10.  none: 12 < 40
                                              Block Tue of 12 reports;
                                              Mon is set aside
    Wed          4 + 9 + 30 >= 30.            11 >= 10.                   Wed: 12 + 43 + 11 = 66
                 Block Mon-Tue-Wed of 43      Block Wed of 11             reports

Monday of cohort 2 is set aside because it could otherwise wait for ever. Reports of many quiet days
need many reports of later days, and the days in between would wait with them.

A collector whose clock lags may count reports for a day that was moved already. These late reports
go into the next block, which then begins on their day. The block may have a report of a device for
each of its days, and needs as many reports as all its days do.

Days are moved in short transactions, so collectors write between them. Each transaction moves some
pieces: the counters of a day and of at most `_COHORTS_PER_PIECE` cohorts. The last piece of a day
also advances `through` and forms the windows of the night. A run that was interrupted, by a kill
for instance, continues with the first piece that was not committed:

    committed                state after the kill              next run
    nothing of the day       counters                          moves the day
    some pieces of the day   closed blocks of some cohorts,    moves the other cohorts. Counters
                             in no window                      of closed cohorts are late
    all pieces               `through` is the day, and the     moves the next day
                             windows exist
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Connection, Delete, Engine, delete, func, or_, select

from rappor.counts.squared_reports import count_max_reports, is_same_interval
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    PAUSE_SECONDS,
    lock_maintenance,
    translate_errors,
    write_transaction,
)
from rappor_server.storage.merge import add_refusals
from rappor_server.storage.release_windows import (
    BlockKey,
    BlockTotal,
    add_block_totals,
    form_windows,
)
from rappor_server.storage.tallies import Tally

_DAY: Final = datetime.timedelta(days=1)
_COHORTS_PER_PIECE: Final = 4096
"""Largest number of cohorts of a day that are moved at once. A larger piece makes the transactions
longer, and uploads wait for a transaction."""
_TRANSACTION_SECONDS: Final = 0.02
"""Time after which a transaction takes no further piece, in seconds. Uploads wait about as long."""
SET_ASIDE: Final = "set aside"
"""Reason under which reports are counted that no block may ever show."""


class _Piece(NamedTuple):
    """The cohorts of a day from `start` on, at most `_COHORTS_PER_PIECE` of them."""

    day: datetime.date
    start: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Numbers of reports that a block and a release window of one fingerprint need.

    Attributes
    ----------
    pace : length of the fingerprint's interval, in which a device sends at most one report
    epoch : the fingerprint's epoch. An interval ends with its epoch at the latest
    min_cohort : reports of a block for each interval that its days touch
    min_reports : reports of a release window
    """

    pace: str
    epoch: str
    min_cohort: int
    min_reports: int

    def count_intervals(self, block: Block) -> int:
        """Return the largest number of reports that one device sends on the days of a block."""
        return count_max_reports(self.pace, self.epoch, block.first, block.last)

    def allows(self, block: Block) -> bool:
        """Return whether a block has enough reports to be closed."""
        return block.tally.reports >= self.min_cohort * self.count_intervals(block)

    def decide(self, blocks: Sequence[Block]) -> Decision:
        """Decide which open blocks of a cohort are closed, wait, or are set aside.

        `blocks` are ordered by their first days. The last block is the day that is being moved.
        """
        whole = functools.reduce(Block.join, blocks)
        if self.allows(whole):
            return Decision(closed=whole)
        # An interval is not divided: a device sends one report in it, on any of its days.
        newest = [
            block
            for block in blocks
            if is_same_interval(self.pace, self.epoch, block.first, whole.last)
        ]
        earlier = blocks[: len(blocks) - len(newest)]
        last = functools.reduce(Block.join, newest)
        if not earlier:
            return Decision(waiting=(last,))
        before = functools.reduce(Block.join, earlier)
        if self.allows(last):
            # The cohort has enough devices now, and had too few before. Together with the earlier
            # days, today would wait for reports that may never come.
            return Decision(closed=last, set_aside=before.tally.reports)
        return Decision(waiting=(before, last))


class Block(NamedTuple):
    """Counts of a cohort under one fingerprint, on consecutive days."""

    first: datetime.date
    last: datetime.date
    tally: Tally

    def join(self, later: Block) -> Block:
        """Return one block of the days of this block and of a block that begins no earlier."""
        return Block(self.first, max(self.last, later.last), self.tally + later.tally)


class Decision(NamedTuple):
    """What happens to the open blocks of a cohort.

    Attributes
    ----------
    closed : the block that can be read from now on, or None
    waiting : blocks that stay open. The first one ends before the interval of the second one
    set_aside : number of reports that are deleted and never shown
    """

    closed: Block | None = None
    waiting: tuple[Block, ...] = ()
    set_aside: int = 0


_Blocks = defaultdict[tuple[str, int], list[Block]]
"""Blocks of a metric by (fingerprint, cohort), ordered by their first days."""


Rules = Mapping[str, Rule]
"""`Rules` has the rules of a metric, by the fingerprint of the reports."""


def rules_in_force(registries: Sequence[Registry]) -> dict[str, Rules]:
    """Return the rules of each metric that has a minimum of reports in the current registry.

    `registries` are all registries under which reports are accepted, the current one first.

    The interval of a rule is the interval of the fingerprint's own parameters. Devices that were
    not updated after an interval became slower report as often as before, but under the fingerprint
    of the older registry, so the quicker interval applies to their reports.

    `min_cohort` and `min_reports` do not belong to the fingerprint. Their largest values in all
    registries that have the fingerprint count, because devices of any of these registries may be in
    the block.
    """
    rules: dict[str, dict[str, Rule]] = {
        name: {} for name, metric in registries[0].items() if metric.min_reports
    }
    for registry in registries:
        for name in rules.keys() & registry.keys():
            metric, rules_of_metric = registry[name], rules[name]
            for fingerprint in metric.accepted:
                rule = Rule(
                    pace=metric.pace,
                    epoch=metric.epoch,
                    min_cohort=metric.min_cohort,
                    min_reports=metric.min_reports,
                )
                known = rules_of_metric.get(fingerprint, rule)
                rules_of_metric[fingerprint] = replace(
                    rule,
                    min_cohort=max(rule.min_cohort, known.min_cohort),
                    min_reports=max(rule.min_reports, known.min_reports),
                )
    return dict(rules)


def find_last_day(engine: Engine, metric: Metric, *, today: datetime.date) -> datetime.date:
    """Return the last day whose reports may be read: the last day that was moved into blocks.

    For a metric without a minimum it is the last day with reports, which may be today.
    """
    if metric.min_reports:
        columns = schema.blocked.c
        query = select(columns.through).where(columns.metric == metric.name)
        default = today - _DAY
    else:
        day = schema.tally.c.day
        # A day after today is of a clock that is ahead.
        query = select(func.max(day)).where(schema.tally.c.metric == metric.name, day <= today)
        default = today
    with translate_errors(), engine.connect() as db:
        return db.execute(query).scalar_one_or_none() or default


def count_due_days(
    engine: Engine, metrics: Collection[str], *, today: datetime.date
) -> dict[str, int]:
    """Return the number of ended days whose counters wait, of each metric that has such days.

    The number is 1 after each midnight until the day is moved. A larger number means that moving
    fails. Late counters make a metric due only while `through` is before yesterday, because they
    wait for the next day anyway.
    """
    tally, blocked = schema.tally.c, schema.blocked
    has_days_to_move = or_(blocked.c.through.is_(None), blocked.c.through < today - _DAY)
    query = (
        select(tally.metric, func.min(tally.day), blocked.c.through)
        .outerjoin(blocked, blocked.c.metric == tally.metric)
        .where(tally.metric.in_(metrics), tally.day < today, has_days_to_move)
        .group_by(tally.metric, blocked.c.through)
    )
    with translate_errors(), engine.connect() as db:
        return {
            metric: (today - max(oldest, through + _DAY if through else oldest)).days
            for metric, oldest, through in db.execute(query)
        }


def close_blocks(
    engine: Engine,
    metric: str,
    rules: Rules,
    *,
    today: datetime.date,
    until: float = math.inf,
) -> bool:
    """Move the counters of all days before today into blocks.

    Counters under a fingerprint without a rule stay where they are, because the number of reports
    that their block needs is unknown. They wait until a registry in force has the fingerprint
    again.

    No transaction begins after `until`, a time of `time.monotonic`, but the first transaction
    always begins. Returns whether all days were moved.
    """
    with translate_errors(), engine.connect() as db:
        pieces = deque(_list_pieces(db, metric, today))
    while pieces:
        with write_transaction(engine) as db:
            # On PostgreSQL, another collector, a merge or `prune` must not change the same rows
            # meanwhile. SQLite has one writer at a time anyway.
            lock_maintenance(db)
            enough = time.monotonic() + _TRANSACTION_SECONDS
            while pieces:
                _move_piece(db, metric, pieces.popleft(), rules)
                if time.monotonic() > enough:
                    break
        if time.monotonic() > until:
            break
        # Without a pause, the next transaction would take SQLite's lock before a waiting upload.
        time.sleep(PAUSE_SECONDS)
    return not pieces


def _list_pieces(db: Connection, metric: str, today: datetime.date) -> Iterator[_Piece]:
    """Yield the pieces to move, in the order of their days and cohorts."""
    columns = schema.tally.c
    next_day = _read_through(db, metric) + _DAY
    is_ended = (columns.metric == metric, columns.day < today)
    days = db.execute(select(columns.day).where(*is_ended).distinct()).scalars().all()
    ends = select(func.min(columns.cohort), func.max(columns.cohort))
    first, last = db.execute(ends.where(*is_ended)).one()
    if first is None:  # another process moved the counters after this metric was found due
        return
    # A late counter, of a day up to `through`, is moved with the first day that follows.
    for day in sorted({max(day, next_day) for day in days}):
        if day < today:
            for start in range(first, last + 1, _COHORTS_PER_PIECE):
                yield _Piece(day, start, is_last=start + _COHORTS_PER_PIECE > last)


def _read_through(db: Connection, metric: str) -> datetime.date:
    """Return the last day of a metric that was moved into blocks; the first day ever if none."""
    columns = schema.blocked.c
    query = select(columns.through).where(columns.metric == metric)
    return db.execute(query).scalar() or datetime.date.min


def _move_piece(db: Connection, metric: str, piece: _Piece, rules: Rules) -> None:
    """Move the counters of a piece into blocks, and the late counters of days before it.

    The function does nothing if another process moved the day after the piece was listed.
    """
    if _read_through(db, metric) >= piece.day:
        return
    added, waiting = _take_counters(db, metric, piece, rules.keys()), _Blocks(list)
    for fingerprint, keys in itertools.groupby(sorted(added), lambda key: key[0]):
        waiting |= _take_open_blocks(db, metric, fingerprint, [cohort for _, cohort in keys])
    rows, set_aside = [], 0
    totals: dict[BlockKey, BlockTotal] = {}
    for key, days in added.items():
        rule = rules[key[0]]
        decision = _decide(rule, waiting[key], days, piece.day)
        set_aside += decision.set_aside
        for block in filter(None, (decision.closed, *decision.waiting)):
            is_closed = block is decision.closed
            numbers = (block.last, block.first, is_closed, block.tally.reports)
            rows.append((metric, *key, *numbers, block.tally.to_bytes()))
        if decision.closed is not None:
            _add_block(totals, key[0], decision.closed, rule)
    insert_rows(db, schema.block, rows)
    add_block_totals(db, metric, totals)
    if set_aside:
        add_refusals(db, {(piece.day, metric, SET_ASIDE): set_aside})
    if piece.is_last:
        # In one transaction: windows without `through` would be formed twice, and `through` without
        # windows would leave blocks that end on this day to a window of a later date.
        insert_rows(db, schema.blocked, [(metric, piece.day)], update="through = excluded.through")
        minimums = {fingerprint: rule.min_reports for fingerprint, rule in rules.items()}
        form_windows(db, metric, minimums, piece.day)


def _add_block(
    totals: dict[BlockKey, BlockTotal], fingerprint: str, block: Block, rule: Rule
) -> None:
    """Add a block that is being closed to the numbers of the blocks with the same days."""
    key, reports = BlockKey(fingerprint, block.last, block.first), block.tally.reports
    if key in totals:
        totals[key] = totals[key].add(reports)
    else:
        totals[key] = BlockTotal(rule.count_intervals(block), reports, reports)


def _decide(
    rule: Rule, waiting: Sequence[Block], days: Sequence[Block], day: datetime.date
) -> Decision:
    """Decide on the blocks of a cohort when a day is moved.

    Parameters
    ----------
    waiting : open blocks of the cohort
    days : counters of the cohort for this day and for earlier days that came late, as blocks
    day : the day that is being moved
    """
    open_blocks = [*waiting, *days]
    is_late = days[0].first < day
    if days[-1].first < day:
        # Only late counters came. The block must still reach to the day that is being moved, or
        # its last day could be that of a closed block, which has the same key in the table.
        open_blocks.append(Block(day, day, Tally(0, np.zeros_like(days[-1].tally.ones))))
    # A run that was interrupted may have left a block of a later day. Without sorting, it would be
    # joined twice: once by its position and once by its interval.
    decision = rule.decide(sorted(open_blocks, key=lambda block: block.first))
    if is_late and decision.waiting:
        # The first of two waiting blocks would end on a late day, on which a closed block may end.
        return Decision(waiting=(functools.reduce(Block.join, decision.waiting),))
    return decision


def _take_counters(
    db: Connection, metric: str, piece: _Piece, fingerprints: Collection[str]
) -> _Blocks:
    """Delete the counters of the cohorts of a piece, up to its day, and return them as blocks.

    A collector whose clock lags may write a counter of these days at the same time. Either its
    transaction comes first, and the counter is included. Or the collector finds its counter gone,
    and begins a new one, which is late.
    """
    columns, block = schema.tally.c, schema.block.c
    # A run that was interrupted may have closed a block of this day in some cohorts. Counters that
    # came afterwards stay for the next day, because a closed block never changes.
    is_closed = select(block.metric).where(
        block.metric == columns.metric,
        block.params == columns.params,
        block.cohort == columns.cohort,
        block.last == piece.day,
        block.closed,
    )
    statement = delete(schema.tally).where(
        columns.metric == metric,
        columns.params.in_(fingerprints),
        columns.day <= piece.day,
        columns.cohort >= piece.start,
        columns.cohort < piece.start + _COHORTS_PER_PIECE,
        ~is_closed.exists(),
    )
    return _delete_and_return(db, statement, columns.day.label("first"), columns.day.label("last"))


def _take_open_blocks(
    db: Connection, metric: str, fingerprint: str, cohorts: Collection[int]
) -> _Blocks:
    """Delete the open blocks of some cohorts and return them."""
    columns = schema.block.c
    # The columns of an index: otherwise a year of closed blocks would be read to find an open one.
    statement = delete(schema.block).where(
        columns.metric == metric,
        columns.params == fingerprint,
        columns.cohort.in_(cohorts),
        ~columns.closed,
    )
    return _delete_and_return(db, statement, columns.first, columns.last)


def _delete_and_return(
    db: Connection, statement: Delete, *days: ColumnElement[datetime.date]
) -> _Blocks:
    """Delete rows and return them as blocks. `days` are the columns of the first and last day."""
    columns, blocks = statement.table.c, _Blocks(list)
    rows = statement.returning(columns.params, columns.cohort, *days, columns.reports, columns.ones)
    for fingerprint, cohort, first, last, reports, ones in db.execute(rows):
        block = Block(first, last, Tally.from_bytes(reports, bytes(ones)))
        blocks[fingerprint, cohort].append(block)
    for blocks_of_cohort in blocks.values():
        blocks_of_cohort.sort(key=lambda block: block.first)
    return blocks
