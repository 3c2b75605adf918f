"""Blocks: sums of the reports of a cohort that are large enough to protect each report.

Terms
-----
fingerprint    short hash of the parameters of a report (encoding, noise, interval, segment, ...)
cohort         group of devices with the same hash functions
interval       a day, a week or an epoch, in which a device sends at most one report of a metric.
               The fingerprint determines the length of the interval
counter        number of reports and sums of bits of one metric, fingerprint, cohort and day: a row
               of the table `tally`, written by a merge (`merge`)
min_cohort     the registry's minimum for a block, for each interval
min_reports    the registry's minimum for a release window

Theory of operation
-------------------
A sum of one report is the report itself. So analysts read sums of blocks only. A block contains the
reports of consecutive whole days, of one metric, fingerprint and cohort. A block is closed as soon
as it has at least

    min_cohort * (number of intervals that contain a day of the block)

reports. One device has at most one report for each of these intervals. So one device made at most
one in `min_cohort` of the reports of a closed block. `block_rules` decides from numbers which
blocks of one cohort are closed. This module reads and writes the blocks in the database.

A report passes through these states:

    counter      row of `tally` for one day
      |          `close_blocks` moves the day after the day has ended
    open block   row of `block` with closed = false. It waits for more reports, and nobody reads it
      |                            |
      | it has enough reports      | it has too few, and the reports of a later interval are
      |                            | enough for a block without it
    closed block                 set aside: deleted, and only the number of its reports is stored,
      | it never changes                    in the table of refusals
      |
      | the closed blocks of the fingerprint together have `min_reports` reports
    window       analysts read it (`release_windows`)

`close_blocks` moves the days of a metric in order. The column `blocked.through` stores the last day
that was moved. A block that is closed when day D is moved ends on D: D is its last day. It ends on
a later day if a killed run has left an open block of that later day, and a counter of D came
afterwards.

Invariants:

1. A closed block is never changed. Only `forget` and `retention` delete it, with its window.
2. A cohort has at most two open blocks under a fingerprint: one of the newest interval, and one of
   the intervals before, because the newest interval may be closed without them. The first one ends
   before the second one begins.
3. `through` never decreases. A day is moved once.
4. Every report that was counted is in a counter, in an open block, in a closed block, or set aside.
5. A window of an earlier night never gets another block. The window contains the blocks that end on
   days up to its date, and a block that is closed later ends on a later day.

Example: two cohorts of a daily metric with `min_cohort` = 10 and `min_reports` = 40.

    night after  cohort 1                     cohort 2                    window of the fingerprint
    -----------  ---------------------------  --------------------------  -------------------------
    Mon          4 reports wait: 4 < 10       1 report waits: 1 < 10      none: no block is closed
    Tue          4 + 9 wait: 13 < 20, 9 < 10  1 + 12 < 20, but 12 >= 10.  none: 12 < 40
                                              Block Tue of 12 reports;
                                              Mon is set aside
    Wed          4 + 9 + 30 >= 30.            11 >= 10.                   Wed: 12 + 43 + 11 = 66
                 Block Mon-Tue-Wed of 43      Block Wed of 11             reports

Tuesday of cohort 2 is closed without Monday, and Monday is set aside. Joined to Monday, Tuesday
would need 20 reports. Many quiet days before a block would need many reports, so the reports of the
later days would wait with them, perhaps for ever.

A collector whose clock lags may count reports for a day that was moved already. Such reports are
called late. Their counter is joined to the next day that is moved, and the block then begins on the
day of the late reports. One device may have a report in each interval from that day on, so the
block needs `min_cohort` reports for each of these intervals (`Rule.decide_day`).

Days are moved in short transactions, so collectors write between them. Each transaction moves one
or more pieces. A piece is the counters of one day in at most `_COHORTS_PER_PIECE` cohorts. The last
piece of a day also advances `through` and forms the windows of the night. A run that was killed
leaves one of these states:

    committed                stored after the kill             next run
    nothing of the day       counters                          moves the day
    some pieces of the day   closed blocks of some cohorts,    moves the other cohorts. New counters
                             in no window                      of a cohort whose block of the day is
                                                               closed are late
    all pieces               `through` is the day, and the     moves the next day
                             windows exist

A collector computes the rules from its registries (`rules_in_force`). `operations.closing` then
calls `count_due_days` and `close_blocks`. Analysts' queries call `find_last_day` only.
"""

from __future__ import annotations

import datetime
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Delete, Engine, delete, func, or_, select

from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.storage import schema
from rappor_server.storage.block_rules import Block, Rule
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
    combine_rules,
    form_windows,
    store_rates,
)
from rappor_server.storage.tallies import Tally

_DAY: Final = datetime.timedelta(days=1)
_COHORTS_PER_PIECE: Final = 4096
"""Largest number of cohorts of a day that are moved at once. A larger piece makes the transactions
longer, and uploads wait for a transaction."""
_TRANSACTION_SECONDS: Final = 0.02
"""Time after which a transaction takes no further piece, in seconds. Uploads wait about as long.
With a larger value, days are moved in fewer transactions, and uploads wait longer."""
SET_ASIDE: Final = "set aside"
"""Reason in the table of refusals for reports that were set aside, as the module docstring explains
it."""


class _Piece(NamedTuple):
    """Some cohorts of a day, whose counters are moved together.

    Attributes
    ----------
    day : the day
    start : first cohort. The piece has at most `_COHORTS_PER_PIECE` cohorts, up to the start of the
        next piece
    is_last : whether it is the last piece of the day
    """

    day: datetime.date
    start: int
    is_last: bool


_Blocks = defaultdict[tuple[str, int], list[Block]]
"""Blocks of a metric by (fingerprint, cohort). The blocks of a cohort are ordered by their first
days."""


Rules = Mapping[str, Rule]
"""Rules of a metric. A rule applies to the reports under one fingerprint, which is its key."""


def rules_in_force(
    registries: Sequence[Registry], *, include_trials: bool = False
) -> dict[str, Rules]:
    """Return the rules of each metric whose entry in the current registry has `min_reports` > 0.

    A metric has a rule for each fingerprint under which its reports are accepted. The interval is a
    parameter, so a registry with another interval has another fingerprint. Example: the interval of
    a metric changes from a day to a week. Devices that were not updated report every day under the
    old fingerprint, whose rule still has the interval of a day.

    `min_cohort` and `min_reports` are no parameters, so several registries may have one fingerprint
    with different minimums. The rule has their largest values, because reports of devices of each
    of these registries may be in one block. `sampling_rate` is no parameter either, and reports do
    not contain it. If the registries have different rates, the rule has none.

    Parameters
    ----------
    registries : all registries under which reports are accepted, the current registry first
    include_trials : whether to return the rules of metrics with `min_reports` = 0, too. These
        metrics have sampling rates, and no blocks
    """
    rules: dict[str, dict[str, Rule]] = {
        name: {} for name, metric in registries[0].items() if metric.min_reports or include_trials
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
                    sampling_rate=float(metric.sampling_rate),
                )
                previous_rule = rules_of_metric.get(fingerprint, rule)
                is_same_rate = rule.sampling_rate == previous_rule.sampling_rate
                rules_of_metric[fingerprint] = replace(
                    rule,
                    min_cohort=max(rule.min_cohort, previous_rule.min_cohort),
                    min_reports=max(rule.min_reports, previous_rule.min_reports),
                    sampling_rate=rule.sampling_rate if is_same_rate else None,
                )
    return dict(rules)


def find_last_day(engine: Engine, metric: Metric, *, today: datetime.date) -> datetime.date:
    """Return the last day whose reports may be read: the last day that was moved into blocks.

    A metric with `min_reports` = 0 has no blocks, and analysts read its counters. Its last day is
    the last day that has a counter, which may be today.
    """
    if metric.min_reports:
        columns = schema.blocked.c
        query = select(columns.through).where(columns.metric == metric.name)
        # No day was moved yet, so the range up to yesterday has no window.
        default = today - _DAY
    else:
        day = schema.tally.c.day
        # A collector whose clock is ahead may have written a counter of a day after today.
        query = select(func.max(day)).where(schema.tally.c.metric == metric.name, day <= today)
        default = today
    with translate_errors(), engine.connect() as db:
        return db.execute(query).scalar_one_or_none() or default


def count_due_days(
    engine: Engine, metrics: Collection[str], *, today: datetime.date
) -> dict[str, int]:
    """Return the metrics that have days to move, each with the number of these days.

    The number is 1 after each midnight until the day is moved. A larger number means that moving
    fails. If yesterday was moved, the metric has no days to move, even if it has late counters:
    they are moved together with the next day.

    Example: today is Friday, and counters wait for Monday (late) and for Wednesday.

        last day that was moved    result
        none                       4: Monday to Thursday
        Tuesday                    2: Wednesday and Thursday
        Thursday                   the metric is not in the result
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
    """Move the counters of all days before today into blocks; return whether all days were moved.

    Counters under a fingerprint without a rule stay counters, because the number of reports that
    their block needs is unknown. They wait until a registry in force has the fingerprint again.

    Parameters
    ----------
    engine : the database
    metric : name of the metric
    rules : rule of each fingerprint of the metric, from the registries of this process. The rules
        of other collectors on the database are added (`combine_rules`)
    today : day (UTC). Today has not ended and is not moved
    until : time of `time.monotonic` after which no further transaction begins. The first
        transaction always begins, so a task without time left still makes progress
    """
    with translate_errors(), engine.connect() as db:
        pieces = deque(_list_pieces(db, metric, today))
    while pieces:
        with write_transaction(engine) as db:
            # On PostgreSQL, another collector, a merge or `prune` must not change the same rows
            # meanwhile. SQLite has one writer at a time anyway.
            lock_maintenance(db)
            store_rates(db, metric, rules, today - _DAY)
            last_start = time.monotonic() + _TRANSACTION_SECONDS
            while pieces:
                piece = pieces.popleft()
                _move_piece(db, metric, piece, combine_rules(db, metric, rules, piece.day))
                if time.monotonic() > last_start:
                    break
        if time.monotonic() > until:
            break
        # Without a pause, the next transaction would take SQLite's lock before a waiting upload.
        time.sleep(PAUSE_SECONDS)
    return not pieces


def _list_pieces(db: Connection, metric: str, today: datetime.date) -> Iterator[_Piece]:
    """Yield the pieces to move, in the order of their days and cohorts.

    Example: Tuesday was moved, today is Friday, and counters exist for Monday (late) and Thursday.
    The pieces are of Wednesday, which takes the late counters of Monday, and of Thursday.
    """
    columns = schema.tally.c
    next_day = _read_through(db, metric) + _DAY
    is_ended = (columns.metric == metric, columns.day < today)
    days = db.execute(select(columns.day).where(*is_ended).distinct()).scalars().all()
    ends = select(func.min(columns.cohort), func.max(columns.cohort))
    first, last = db.execute(ends.where(*is_ended)).one()
    if first is None:  # another process moved the counters after this metric was found due
        return
    # A late counter has a day up to `through`. It is moved with the first day after `through`.
    for day in sorted({max(day, next_day) for day in days}):
        # The first day after `through` may be today, which has not ended. Late counters then wait.
        if day < today:
            for start in range(first, last + 1, _COHORTS_PER_PIECE):
                yield _Piece(day, start, is_last=start + _COHORTS_PER_PIECE > last)


def _read_through(db: Connection, metric: str) -> datetime.date:
    """Return the last day of a metric that was moved into blocks, or 0001-01-01 if none was."""
    columns = schema.blocked.c
    query = select(columns.through).where(columns.metric == metric)
    return db.execute(query).scalar() or datetime.date.min


def _move_piece(db: Connection, metric: str, piece: _Piece, rules: Rules) -> None:
    """Move the counters of a piece, and late counters of its cohorts, into blocks.

    The counters and the open blocks of the same cohorts are deleted, `Rule.decide_day` joins them,
    and the resulting blocks are inserted. Open blocks of cohorts without a counter stay as they
    are. Further days without reports give them no reason to be closed.

    The function does nothing if another process moved the day after the piece was listed.
    """
    if _read_through(db, metric) >= piece.day:
        return
    counters, open_blocks = _take_counters(db, metric, piece, rules.keys()), _Blocks(list)
    for fingerprint, keys in itertools.groupby(sorted(counters), lambda key: key[0]):
        open_blocks |= _take_open_blocks(db, metric, fingerprint, [cohort for _, cohort in keys])
    rows, set_aside = [], 0
    totals: dict[BlockKey, BlockTotal] = {}
    for key, days in counters.items():
        rule = rules[key[0]]
        decision = rule.decide_day(open_blocks[key], days, piece.day)
        set_aside += decision.set_aside
        for block in filter(None, (decision.closed, *decision.waiting)):
            is_closed = block is decision.closed
            # A row has the order of the columns of `schema.block`, and `key` is (fingerprint,
            # cohort).
            numbers = (block.last, block.first, is_closed, block.tally.reports)
            rows.append((metric, *key, *numbers, block.tally.to_bytes()))
        if decision.closed is not None:
            _add_closed_block(totals, key[0], decision.closed, rule)
    insert_rows(db, schema.block, rows)
    add_block_totals(db, metric, totals)
    if set_aside:
        add_refusals(db, {(piece.day, metric, SET_ASIDE): set_aside})
    if piece.is_last:
        # The day and its windows are written in one transaction. After a kill between two
        # transactions, either the next run would form the windows of this day again, or the blocks
        # of this day would be in a window of a later date.
        # The last number is `forgotten` of a new row: no reports were deleted. The update of an
        # existing row changes `through` only.
        row = (metric, piece.day, datetime.date.min)
        insert_rows(db, schema.blocked, [row], update="through = excluded.through")
        form_windows(db, metric, rules, piece.day)


def _add_closed_block(
    totals: dict[BlockKey, BlockTotal], fingerprint: str, block: Block, rule: Rule
) -> None:
    """Add a block to the numbers of the closed blocks of other cohorts with the same days."""
    key, reports = BlockKey(fingerprint, block.last, block.first), block.tally.reports
    if key in totals:
        totals[key] = totals[key].add(reports)
    else:
        totals[key] = BlockTotal(rule.count_intervals(block), reports, reports)


def _take_counters(
    db: Connection, metric: str, piece: _Piece, fingerprints: Collection[str]
) -> _Blocks:
    """Delete the counters of the cohorts of a piece, up to its day, and return them as blocks.

    A collector whose clock lags may write a counter of these days at the same time. If its
    transaction commits first, the counter is included. If its transaction commits later, it begins
    a new counter for the day, and the new counter is late.
    """
    columns, block = schema.tally.c, schema.block.c
    # A run that was killed may have closed a block of this day in some cohorts. A closed block
    # never changes, so counters that came afterwards are not taken. They are late and join the next
    # day.
    has_closed_block = select(block.metric).where(
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
        ~has_closed_block.exists(),
    )
    return _delete_and_return(db, statement, columns.day.label("first"), columns.day.label("last"))


def _take_open_blocks(
    db: Connection, metric: str, fingerprint: str, cohorts: Collection[int]
) -> _Blocks:
    """Delete the open blocks of some cohorts and return them."""
    columns = schema.block.c
    # These columns are in the index `ix_block_reports`. Without the index, the database would read
    # a year of closed blocks to find an open one.
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
    """Delete rows of `tally` or `block`, and return them as blocks by fingerprint and cohort.

    `days` are the columns of the first and of the last day of a row.
    """
    columns, blocks = statement.table.c, _Blocks(list)
    rows = statement.returning(columns.params, columns.cohort, *days, columns.reports, columns.ones)
    for fingerprint, cohort, first, last, reports, ones in db.execute(rows):
        block = Block(first, last, Tally.from_bytes(reports, bytes(ones)))
        blocks[fingerprint, cohort].append(block)
    for blocks_of_cohort in blocks.values():
        blocks_of_cohort.sort(key=lambda block: block.first)
    return blocks
