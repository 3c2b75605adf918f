"""Warning signs: overfull cohorts and small blocks."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from collectors import TODAY, metric_of
from rappor_server.releases.releases import CohortReports
from rappor_server.releases.warning_signs import (
    OverfullCohort,
    count_in_small_blocks,
    find_overfull_cohorts,
)
from rappor_server.storage import schema
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, insert


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
    """The interval of the fingerprint and the present `min_cohort` determine the small blocks."""
    daily, weekly = (metric_of(interval=interval) for interval in ("day", "week"))
    blocks = [(0, 0, 10, True), (1, 10, 10, True), (11, 12, 20, True), (13, 13, 3, False)]
    with write_transaction(engine) as db:
        for params in (daily.params, weekly.params):
            document = params.to_json()
            known = insert(schema.params).values(fingerprint=params.fingerprint, document=document)
            db.execute(known)
            for first, last, reports, closed in blocks:
                days = (TODAY + datetime.timedelta(each) for each in (first, last))
                row = dict(zip(("first", "last"), days, strict=True), reports=reports)
                row |= {"metric": "page", "params": params.fingerprint, "closed": closed}
                db.execute(insert(schema.block).values(cohort=1, ones=b"", **row))
    # TODAY is a Saturday, so the second block touches three weeks. Of ten days, it needs ten times
    # `min_cohort`.
    for min_cohort, small in ((1, 0), (3, 10), (4, 20), (11, 60)):
        metric = metric_of(interval="week", min_cohort=min_cohort)
        assert count_in_small_blocks(engine, metric) == small
    assert count_in_small_blocks(engine, metric_of("sound")) == 0
