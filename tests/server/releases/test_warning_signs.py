"""Warning signs: overfull cohorts and small blocks."""

from __future__ import annotations

import numpy as np
import pytest
from collectors import day, metric_of
from rappor_server.releases.overviews import CohortReports
from rappor_server.releases.warning_signs import (
    OverfullCohort,
    count_in_small_blocks,
    find_overfull_cohorts,
)
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import write_transaction
from rappor_server.storage.release_windows import BlockKey, BlockTotal, add_block_totals
from sqlalchemy import Engine

from rappor.counts.squared_reports import count_max_reports


@pytest.mark.parametrize(
    ("reports", "overfull"),
    [([2500, 2450, 2550, 2500], []), ([2500, 2450, 2550, 9000], [3]), ([0, 0, 0, 0], [])],
)
def test_overfull_cohorts_show_a_flood(reports: list[int], overfull: list[int]) -> None:
    """A cohort with thousands of reports more than the others is overfull."""
    cohorts = CohortReports(fingerprint="f", reports=np.array(reports))
    expected = tuple(OverfullCohort("f", j, reports[j]) for j in overfull)
    assert find_overfull_cohorts([cohorts]) == expected


def test_blocks_of_a_smaller_min_cohort_are_counted(engine: Engine) -> None:
    """The interval of the fingerprint and the present `min_cohort` determine the small blocks.

    The open block, and the block after the window, are not released.
    """
    daily, weekly = (metric_of(interval=interval) for interval in ("day", "week"))
    blocks = [
        (0, 0, 10, True),
        (1, 10, 10, True),
        (11, 12, 20, True),
        (13, 13, 3, False),
        (14, 14, 1, True),
    ]
    with write_transaction(engine) as db:
        for params in (daily.params, weekly.params):
            fingerprint = params.fingerprint
            insert_rows(db, schema.params, [(fingerprint, params.to_json())])
            for first, last, reports, closed in blocks:
                days = (day(last), day(first))
                row = ("page", fingerprint, 1, *days, closed, reports, b"")
                insert_rows(db, schema.block, [row])
                if closed:
                    intervals = count_max_reports(params.pace, params.epoch, day(first), day(last))
                    total = BlockTotal(intervals, reports, reports)
                    add_block_totals(db, "page", {BlockKey(fingerprint, *days): total})
            insert_rows(db, schema.release_window, [("page", fingerprint, day(12), day(0), 40, 1)])
    # TODAY is a Saturday, so the second block touches three weeks. Of ten days, it needs ten times
    # `min_cohort`.
    for min_cohort, small in ((1, 0), (3, 10), (4, 20), (11, 60)):
        metric = metric_of(interval="week", min_cohort=min_cohort)
        # The `min_cohort` of another metric changes nothing, although one statement reads both.
        other = metric_of("sound", min_cohort=1000)
        for metrics in ([metric], [metric, other]):
            assert count_in_small_blocks(engine, metrics)["page"] == small
            assert count_in_small_blocks(engine, metrics)["sound"] == 0
    assert count_in_small_blocks(engine, []) == {}
