"""What analysts may read: whole days above the minimum, in steps of it."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest
from collectors import REGISTRY, TODAY, commit, report_of, total, upload_of
from rappor_server.analysis import releases
from rappor_server.analysis.release_json import read_release, write_release
from rappor_server.analysis.releases import DayReports
from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import writing
from rappor_server.storage.store import Store

from rappor import Counts, Registry

SMALL = Registry.loads(REGISTRY)["small"]
ALL_DAYS = (datetime.date.min, datetime.date.max)


def day(offset: int) -> datetime.date:
    """Return the day some days after TODAY."""
    return TODAY + datetime.timedelta(days=offset)


def send(store: Store, n: int, *, on: datetime.date = TODAY, metric: str = "small") -> None:
    """Store n reports on a day."""
    commit(store, *(upload_of(report_of(metric, bits=i, cohort=i % 4)) for i in range(n)), today=on)


def n_released(
    store: Store, first: datetime.date = ALL_DAYS[0], last: datetime.date = ALL_DAYS[1]
) -> int:
    """Return how many reports of the small metric are released."""
    return releases.release(store, SMALL, first, last).n_reports


def test_small_days_are_withheld_whole(store: Store) -> None:
    """A day below the minimum is in no range, alone or with others."""
    send(store, 4, on=day(-2))
    send(store, 7, on=day(-1))
    send(store, 5, on=day(0))
    everything = releases.release(store, SMALL, *ALL_DAYS)
    assert everything.days == (DayReports(day(-1), 7), DayReports(day(0), 5))
    assert everything.withheld == (day(-2),)
    assert n_released(store, day(-2), day(-2)) == 0
    assert n_released(store, day(-2), day(0)) - n_released(store, day(-1), day(0)) == 0


def test_a_day_advances_in_steps_of_the_minimum(store: Store) -> None:
    """What was released stays the answer until as many reports again have come."""
    shown = []
    for _ in range(16):
        send(store, 1)
        shown.append(n_released(store))
    assert shown == [0] * 4 + [5] * 5 + [10] * 5 + [15] * 2
    send(store, 3, on=day(1))
    assert n_released(store) == 15  # the rest of yesterday stays withheld


def test_no_two_answers_differ_by_fewer_reports_than_the_minimum(store: Store) -> None:
    """Answers for any ranges at any time are 0 or at least 5 reports."""
    rng = np.random.default_rng()
    seen = {0}
    for _ in range(12):
        send(store, int(rng.integers(1, 5)), on=day(int(rng.integers(0, 3))))
        for first in range(3):
            seen |= {n_released(store, day(first), day(last)) for last in range(first, 3)}
    assert all(n == 0 or n >= 5 for n in seen)


def test_without_a_minimum_everything_shows_at_once(store: Store) -> None:
    """Without a minimum the first report is released."""
    send(store, 1, metric="page")
    assert total(store) == 1


def test_released_sums_are_the_step_s_own(store: Store) -> None:
    """A release holds the bits and cohorts of the released reports only."""
    send(store, 5)
    (before,) = releases.release(store, SMALL, *ALL_DAYS).collections
    send(store, 2)
    (after,) = releases.release(store, SMALL, *ALL_DAYS).collections
    assert after == before
    assert before.n_reports == 5


def test_impossible_counts_in_the_database_are_a_store_error(store: Store) -> None:
    """More ones than reports are no answer, and no fault of who asks."""
    send(store, 5)
    with writing(store.engine) as db:
        db.execute(schema.tally.update().values(reports=0))
    with pytest.raises(StoreError, match="impossible counts of small") as caught:
        releases.release(store, SMALL, *ALL_DAYS)
    assert not caught.value.retryable


def test_release_survives_its_json(store: Store) -> None:
    """A release that is written and read back is the same."""
    send(store, 6)
    release = releases.release(store, SMALL, *ALL_DAYS)
    assert read_release(write_release(release)) == release


def test_json_of_one_parameter_set_is_read_by_counts(store: Store, tmp_path: Path) -> None:
    """An analyst saves the answer of the collector and loads it."""
    send(store, 6)
    release = releases.release(store, SMALL, *ALL_DAYS)
    path = tmp_path / "counts.json"
    path.write_bytes(write_release(release))
    assert Counts.load(path) == release.collections[0]
