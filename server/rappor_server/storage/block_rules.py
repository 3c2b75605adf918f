"""Rule of blocks: which reports of a cohort are enough to be shown as one sum.

The decision depends on days and numbers only, so this module uses no database. `blocks` reads the
counters and the open blocks of a cohort, calls `Rule.decide_day`, and stores the decision. The
docstring of `blocks` explains the terms and the states of a report.

Promise
-------
One device made at most one in `min_cohort` of the reports of a closed block. A device sends at most
one report in an interval (a day, a week or an epoch), so the promise holds if

    reports of the block >= min_cohort * (number of intervals that contain a day of the block)

Example with `min_cohort` = 10:

    days of the block    interval is a day    interval is a week    interval is an epoch
    Mon                  1 * 10 reports       1 * 10                1 * 10
    Mon to Wed           3 * 10               1 * 10                1 * 10
    Fri to next Mon      4 * 10               2 * 10                1 * 10, or 2 * 10 if an epoch
                                                                    ends on these days

Decision
--------
When a day is moved, its reports join the open blocks of the cohort. Three results are possible: all
reports are enough for one block, only the reports of the newest interval are, or all reports wait.
`Rule.decide` lists the cases.

A counter is late if its day was moved before, because the clock of its collector lagged.
`Rule.decide_day` adds two rules for late counters, so that each block ends on a day of its own:

    counters of the cohort       decision
    of the day only              as `Rule.decide` says
    of the day, and late ones    as `Rule.decide` says, but two waiting blocks are joined to one
    late ones only               an empty block of the day is added first, then as in the row above

A cohort can have only one block for each last day, because the last day is a part of the primary
key of the table `block`. An earlier run may have closed a block that ends on the day of the late
counter, so the block of a late counter must end on another day: the day that is being moved.

If a run was killed within a day, the next run moves the counters of this day that came afterwards.
The killed run may have joined a late counter to the day in one open block. The new counter and this
open block have the same last day, so they are joined, too.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rappor.counts.squared_reports import count_max_reports, is_same_interval
from rappor_server.storage.tallies import Tally


class Block(NamedTuple):
    """Counts of a cohort under one fingerprint, on consecutive days.

    Attributes
    ----------
    first, last : first and last day. A day between them may have no report
    tally : number of reports and sums of bits
    """

    first: datetime.date
    last: datetime.date
    tally: Tally

    def join(self, later: Block) -> Block:
        """Return one block of the days of this block and of a block that begins no earlier."""
        return Block(self.first, max(self.last, later.last), self.tally + later.tally)


class Decision(NamedTuple):
    """Decision on the open blocks of a cohort.

    Attributes
    ----------
    closed : the block that can be read from now on, or None
    waiting : blocks that stay open, at most two. The first one ends before the second one begins
    set_aside : number of reports that are deleted and never shown
    """

    closed: Block | None = None
    waiting: tuple[Block, ...] = ()
    set_aside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule of the blocks and release windows of one fingerprint, from the registries in force.

    Attributes
    ----------
    pace : length of the fingerprint's interval: "day", "week", or, if the interval is an epoch, the
        length of the epoch: "month", "quarter" or "year"
    epoch : "month", "quarter", "year" or "life". An interval ends with its epoch at the latest, so
        a week across the end of a month is two intervals of the epoch "month"
    min_cohort : number of reports that a block needs for each interval that contains a day of it
    min_reports : number of reports that a release window needs
    sampling_rate : share of the devices that take part; None if the registries disagree
    """

    pace: str
    epoch: str
    min_cohort: int
    min_reports: int
    sampling_rate: float | None

    def count_intervals(self, block: Block) -> int:
        """Return the largest number of reports that one device sends on the days of a block."""
        return count_max_reports(self.pace, self.epoch, block.first, block.last)

    def allows(self, block: Block) -> bool:
        """Return whether a block has enough reports to be closed."""
        return block.tally.reports >= self.min_cohort * self.count_intervals(block)

    def decide(self, blocks: Sequence[Block]) -> Decision:
        """Decide which open blocks of a cohort are closed, wait, or are set aside.

        `blocks` are ordered by their first days. The last block ends on the day that is being
        moved. The interval of that day is the newest interval. The first true row decides:

            all blocks together have enough reports        they are closed as one block
            no block is before the newest interval         all blocks wait as one block
            the blocks of the newest interval have         these blocks are closed as one block, and
            enough reports without the earlier blocks      the earlier blocks are set aside
            otherwise                                      the earlier blocks wait as one block, and
                                                           the newest interval as a second block
        """
        all_days = _join_blocks(blocks)
        if self.allows(all_days):
            return Decision(closed=all_days)
        # The days of one interval stay together, because together they need `min_cohort` reports
        # only once. In two blocks, each part of the interval would need them.
        newest = [
            block
            for block in blocks
            if is_same_interval(self.pace, self.epoch, block.first, all_days.last)
        ]
        earlier = blocks[: len(blocks) - len(newest)]
        newest_days = _join_blocks(newest)
        if not earlier:
            return Decision(waiting=(newest_days,))
        earlier_days = _join_blocks(earlier)
        if self.allows(newest_days):
            # The cohort has enough devices now, and had too few before. Joined to the earlier days,
            # today would wait for reports that may never come.
            return Decision(closed=newest_days, set_aside=earlier_days.tally.reports)
        return Decision(waiting=(earlier_days, newest_days))

    def decide_day(
        self, waiting: Sequence[Block], days: Sequence[Block], day: datetime.date
    ) -> Decision:
        """Decide on the blocks of a cohort when a day is moved, also if late counters came.

        The module docstring lists the cases of late counters.

        Parameters
        ----------
        waiting : open blocks of the cohort
        days : counters of the cohort, as blocks of one day each, ordered by their days. The last
            one is of `day` or late, and all others are late
        day : the day that is being moved
        """
        blocks = [*waiting, *days]
        has_late_counters = days[0].first < day
        has_only_late_counters = days[-1].first < day
        if has_only_late_counters:
            # An empty block of the day makes the joined block end on the day.
            blocks.append(Block(day, day, Tally(0, np.zeros_like(days[-1].tally.ones))))
        # `decide` needs blocks in the order of their days. They are out of order if a run that was
        # killed left an open block of a later day, and a late counter came afterwards.
        decision = self.decide(sorted(blocks, key=lambda block: block.first))
        if not decision.waiting:
            return decision
        # Bad case: a run was killed after it had joined a late counter of Sunday and the counter of
        # Monday to one open block. Another counter of Monday came afterwards. Two waiting blocks
        # would both end on Monday, and the table `block` would store only one of them.
        earlier, newest = decision.waiting[0], decision.waiting[-1]
        has_common_day = len(decision.waiting) > 1 and earlier.last >= newest.first
        # If there are late counters, the first of two waiting blocks would end on a late day.
        if has_late_counters or has_common_day:
            return Decision(waiting=(_join_blocks(decision.waiting),))
        return decision


def _join_blocks(blocks: Sequence[Block]) -> Block:
    """Return one block of all days of some blocks, which are ordered by their first days."""
    return functools.reduce(Block.join, blocks)
