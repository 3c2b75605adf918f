"""Blocks: consecutive whole days of one cohort that hold enough reports to be shown together.

The README says when they are closed. Whatever arrives for a day that was moved already, because
some collector's clock lags, goes into the next block, which then begins on that day: a device may
be in it with a report of each of its days. Days are moved in short transactions, so collectors
write between them, and one that is interrupted goes on where it was.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Connection, Delete, Engine, delete, func, or_, select

from rappor.counts.devices import most_reports, same_interval
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
from rappor_server.storage.tallies import Tally

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Number of reports that a block of one fingerprint needs before it may be shown.

    Attributes
    ----------
    pace : time in which a device sends at most one report under the fingerprint (`Params.pace`)
    min_cohort : reports of a block for each of these times that its days touch
    """

    pace: str
    min_cohort: int

    def least(self, first: datetime.date, last: datetime.date) -> int:
        """Return the number of reports from which no device made more than 1 / min_cohort.

        A device sends at most `most_reports` reports on the days from first to last.
        """
        return self.min_cohort * most_reports(self.pace, first, last)

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


_Blocks = defaultdict[tuple[str, int], list[Block]]
"""Those of a metric by the fingerprint of their parameters and their cohort."""


Rules = Mapping[str, Rule]
"""Rules of a metric, by the fingerprint of the reports."""


def rules_in_force(registries: Sequence[Registry]) -> dict[str, Rules]:
    """Return the rules of each metric that has a minimum of reports in the current registry.

    `registries` are all registries under which reports are accepted, the current one first.

    The pace of a rule is the pace of the fingerprint's own parameters. Devices that were not
    updated after an interval became slower report as often as before, but under the fingerprint of
    the older registry, so their reports are judged by the quicker pace.

    `min_cohort` does not belong to the fingerprint. Its largest value in all registries that have
    the fingerprint counts, because devices of any of these registries may be in the block.
    """
    rules: dict[str, dict[str, Rule]] = {
        name: {} for name, metric in registries[0].items() if metric.min_reports
    }
    for registry in registries:
        for name in rules.keys() & registry.keys():
            metric, rules_of_metric = registry[name], rules[name]
            for fingerprint, params in metric.accepted.items():
                known = rules_of_metric.get(fingerprint)
                min_cohort = max(metric.min_cohort, known.min_cohort if known else 0)
                rules_of_metric[fingerprint] = Rule(pace=params.pace, min_cohort=min_cohort)
    return dict(rules)


def last_day(engine: Engine, metric: Metric, *, today: datetime.date) -> datetime.date:
    """Return the last day whose reports may be read: the last one that is in blocks.

    A metric without a minimum has its last day with reports, today's too.
    """
    day, through = schema.tally.c.day, schema.blocked.c.through
    own = select(func.max(day)).where(schema.tally.c.metric == metric.name, day <= today)
    last = select(through).where(schema.blocked.c.metric == metric.name)
    with translate_errors(), engine.connect() as db:
        found = db.execute(last if metric.min_reports else own).scalar_one_or_none()
    return found or (today - _DAY if metric.min_reports else today)


def due(engine: Engine, metrics: Collection[str], *, today: datetime.date) -> list[str]:
    """Return which of the metrics have counts of days before today that no block holds."""
    tally, blocked = schema.tally.c, schema.blocked
    is_open = or_(blocked.c.through.is_(None), blocked.c.through < today - _DAY)
    query = (
        select(tally.metric)
        .outerjoin(blocked, blocked.c.metric == tally.metric)
        .where(tally.metric.in_(metrics), tally.day < today, is_open)
    )
    with translate_errors(), engine.connect() as db:
        return sorted(db.execute(query.distinct()).scalars())


def close_blocks(
    engine: Engine,
    metric: str,
    rules: Rules,
    *,
    today: datetime.date,
    until: float = math.inf,
) -> bool:
    """Move the counts of all days before today into blocks.

    Counts under a fingerprint without a rule stay where they are, because nobody knows how many
    reports a block of them needs. They wait until a registry in force has the fingerprint again.
    No transaction begins after `until`, a time of `time.monotonic`, but the first one always does.
    Returns whether all counts were moved.
    """
    with translate_errors(), engine.connect() as db:
        pieces = deque(_pieces(db, metric, today))
    while pieces:
        with write_transaction(engine) as db:
            lock_maintenance(db)
            enough = time.monotonic() + _TRANSACTION_SECONDS
            while pieces:
                _move_piece(db, metric, pieces.popleft(), rules)
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
    own = (columns.metric == metric, columns.day < today)
    days = db.execute(select(columns.day).where(*own).distinct()).scalars().all()
    ends = select(func.min(columns.cohort), func.max(columns.cohort))
    first, last = db.execute(ends.where(*own)).one()
    if first is None:  # there is nothing, or another one has moved all of it meanwhile
        return
    for day in sorted({max(day, next_day) for day in days}):
        if day < today:
            for start in range(first, last + 1, _COHORTS):
                yield _Piece(day, start, is_last=start + _COHORTS > last)


def _through(db: Connection, metric: str) -> datetime.date:
    """Return the last day that was moved."""
    columns = schema.blocked.c
    found = db.execute(select(columns.through).where(columns.metric == metric)).scalar()
    return datetime.date.min if found is None else found


def _move_piece(db: Connection, metric: str, piece: _Piece, rules: Rules) -> None:
    """Move the counts of a piece, and those that came late for days before it.

    It does nothing if another one has moved the day meanwhile.
    """
    if _through(db, metric) >= piece.day:
        return
    added, waiting = _take_counts(db, metric, piece, rules), _Blocks(list)
    for params, some in itertools.groupby(sorted(added), lambda own: own[0]):
        waiting |= _take_open(db, metric, params, [cohort for _, cohort in some])
    rows, set_aside = [], 0
    for own, days in added.items():
        settled = _settle(rules[own[0]], waiting[own], days, piece.day)
        set_aside += settled.set_aside
        for each in filter(None, (settled.closed, *settled.waiting)):
            of_block = each.last, each.first, each is settled.closed, each.tally.reports
            rows.append((metric, *own, *of_block, each.tally.to_bytes()))
    insert_rows(db, schema.block, rows)
    if set_aside:
        add_refusals(db, {(piece.day, metric, SET_ASIDE): set_aside})
    if piece.is_last:
        insert_rows(db, schema.blocked, [(metric, piece.day)], update="through = excluded.through")


def _settle(
    rule: Rule, waiting: Sequence[Block], days: Sequence[Block], day: datetime.date
) -> Settled:
    """Decide on a cohort's blocks when a day is moved; `days` has its counts, and late ones."""
    open_ones = [*waiting, *days]
    is_late = days[0].first < day
    if days[-1].first < day:
        open_ones.append(Block(day, day, Tally(0, np.zeros_like(days[-1].tally.ones))))
    # an interrupted run may have left a block of a later day
    settled = rule.settle(sorted(open_ones, key=lambda each: each.first))
    if is_late and settled.waiting:  # as one: a closed block may end on a day that came late
        return Settled(waiting=(functools.reduce(Block.joined, settled.waiting),))
    return settled


def _take_counts(
    db: Connection, metric: str, piece: _Piece, fingerprints: Collection[str]
) -> _Blocks:
    """Delete the counters of some cohorts, of all days up to one, and return them.

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
        columns.params.in_(fingerprints),
        columns.day <= piece.day,
        columns.cohort >= piece.start,
        columns.cohort < piece.start + _COHORTS,
        ~is_closed.exists(),
    )
    return _returned(db, gone, columns.day.label("first"), columns.day.label("last"))


def _take_open(db: Connection, metric: str, params: str, cohorts: Collection[int]) -> _Blocks:
    """Delete the open blocks of cohorts and return what they held."""
    columns = schema.block.c
    same = (columns.metric == metric, columns.params == params, columns.cohort.in_(cohorts))
    gone = delete(schema.block).where(*same, ~columns.closed)
    return _returned(db, gone, columns.first, columns.last)


def _returned(db: Connection, gone: Delete, *days: ColumnElement[datetime.date]) -> _Blocks:
    """Delete rows and return them as the blocks of each cohort, in order."""
    columns, found = gone.table.c, _Blocks(list)
    own = gone.returning(columns.params, columns.cohort, *days, columns.reports, columns.ones)
    for params, cohort, first, last, reports, ones in db.execute(own):
        block = Block(first, last, Tally.from_bytes(reports, bytes(ones)))
        found[params, cohort].append(block)
    for blocks in found.values():
        blocks.sort(key=lambda each: each.first)
    return found
