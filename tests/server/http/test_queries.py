"""What analysts may read: minimums, steps, frozen ranges, tokens, retention, export."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest
from collectors import REGISTRY, TODAY, commit, report_of, submission_of, total, upload_of
from rappor_server.analysis import releases
from rappor_server.analysis.export import export
from rappor_server.analysis.releases import Release
from rappor_server.storage import schema, tokens
from rappor_server.storage.retention import prune
from rappor_server.storage.store import Store
from sqlalchemy import func, select

from rappor import Params, Registry
from rappor.engines.parquet import aggregate_parquet

SMALL = Registry.loads(REGISTRY)["small"]
EVER = (datetime.date.min, datetime.date.max)


def day(offset: int) -> datetime.date:
    """Return a day near TODAY."""
    return TODAY + datetime.timedelta(days=offset)


def send(store: Store, n: int, *, on: datetime.date = TODAY, metric: str = "small") -> None:
    """Store n reports on a day."""
    commit(store, *(upload_of(report_of(metric, bits=i, cohort=i % 4)) for i in range(n)), today=on)


def n_released(store: Store, first: datetime.date = EVER[0], last: datetime.date = EVER[1]) -> int:
    """Return how many reports of the small metric are released."""
    return sum(c.total for c in releases.release(store, SMALL, first, last).collections)


def test_small_days_are_withheld_whole(store: Store) -> None:
    """A day below the minimum is in no range, alone or with others."""
    send(store, 4, on=day(-2))
    send(store, 7, on=day(-1))
    send(store, 5, on=day(0))
    everything = releases.release(store, SMALL, *EVER)
    assert everything.days == ((day(-1), 7), (day(0), 5))
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
    """Over ranges and moments: differences are 0 or at least 5."""
    rng = np.random.default_rng()
    seen = {0}
    for _ in range(12):
        send(store, int(rng.integers(1, 5)), on=day(int(rng.integers(0, 3))))
        for first in range(3):
            seen |= {n_released(store, day(first), day(last)) for last in range(first, 3)}
    for offset in range(3):
        single = {n for n in seen if n}
        assert all(n >= 5 for n in single), offset


def test_without_a_minimum_everything_shows_at_once(store: Store) -> None:
    """From the first report on."""
    send(store, 1, metric="page")
    assert total(store) == 1


def test_released_sums_are_the_step_s_own(store: Store) -> None:
    """Bits and cohorts of the released reports only."""
    send(store, 5)
    (before,) = releases.release(store, SMALL, *EVER).collections
    send(store, 2)
    (after,) = releases.release(store, SMALL, *EVER).collections
    assert np.array_equal(before.ones, after.ones)
    assert np.array_equal(before.reports, after.reports)


def test_frozen_range_stays(store: Store) -> None:
    """Whatever comes later; it belongs to its metric."""
    send(store, 6)
    released = releases.release(store, SMALL, day(-1), day(0))
    name = releases.freeze(store, released, today=TODAY)
    send(store, 20)
    frozen = releases.frozen(store, "small", name)
    assert frozen is not None
    assert frozen.to_json() == released.to_json()
    assert releases.frozen(store, "page", name) is None
    assert releases.frozen(store, "small", "0" * 16) is None


def test_release_survives_its_json(store: Store) -> None:
    """Read back, it is the same."""
    send(store, 6)
    released = releases.release(store, SMALL, *EVER)
    assert Release.from_json(released.to_json()).to_json() == released.to_json()


def test_cohort_excess_shows_a_flood(store: Store) -> None:
    """Ten thousand even reports have none, one cohort with all of them does."""
    params = Params(k=2, m=4, f=0.5, p=0.25, q=0.75)
    even = np.array([2500, 2450, 2550, 2500])
    flood = np.array([2500, 2450, 2550, 9000])
    for reports, cohorts in ((even, []), (flood, [3])):
        counts = releases.DayCounts(TODAY, params, np.zeros((4, 2), np.int64), reports)
        assert [row["cohort"] for row in releases.cohort_excess(counts)] == cohorts
    assert total(store) == 0


# Tokens


def test_token_is_shown_once_and_hashed_at_rest(store: Store) -> None:
    """The database holds its hash, which does not open anything."""
    token = tokens.create(store, metrics=None, expires=None, today=TODAY)
    found = tokens.verify(store, token, today=TODAY)
    assert found is not None
    assert found.allows("anything")
    with store.engine.connect() as db:
        row = db.execute(select(schema.token)).mappings().one()
    secret = token.split(".")[2]
    assert secret not in str(dict(row))
    assert secret.encode() not in bytes(row["digest"])
    assert tokens.verify(store, row["digest"].hex(), today=TODAY) is None


def test_tokens_end(store: Store) -> None:
    """By expiry, whose day counts, and by revocation."""
    token = tokens.create(store, metrics=["page"], expires=TODAY, today=TODAY)
    assert tokens.verify(store, token, today=TODAY) is not None
    assert tokens.verify(store, token, today=day(1)) is None
    other = tokens.create(store, metrics=["page"], expires=None, today=TODAY)
    found = tokens.verify(store, other, today=day(1000))
    assert found is not None
    assert found.allows("page")
    assert not found.allows("sound")
    assert tokens.revoke(store, found.id, today=TODAY)
    assert not tokens.revoke(store, "nothing", today=TODAY)
    assert tokens.verify(store, other, today=TODAY) is None
    listed = {token.id: token.revoked for token in tokens.list_all(store)}
    assert listed[found.id] == TODAY
    assert len(listed) == 2


@pytest.mark.parametrize("wrong", ["", "x", "rappor.a.b", "rappor..", "a.b.c.d", "ü.ü.ü"])
def test_nonsense_is_no_token(wrong: str, store: Store) -> None:
    """Nor is a real one with one character changed."""
    token = tokens.create(store, metrics=None, expires=None, today=TODAY)
    assert tokens.verify(store, wrong, today=TODAY) is None
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert tokens.verify(store, changed, today=TODAY) is None


# Retention and export


def test_ids_are_forgotten_after_their_window(store: Store) -> None:
    """14 days they are known; then the id is gone and the counts stay."""
    body = upload_of()
    commit(store, body)
    assert prune(store, today=day(14), report_days=90).ids == 0
    assert commit(store, body, today=day(14)) == [submission_of(body).answer]
    assert prune(store, today=day(15), report_days=90).ids == 1
    assert total(store) == 1
    with store.engine.connect() as db:
        assert db.execute(select(func.count()).select_from(schema.upload)).scalar_one() == 0


def test_forgotten_ids_leave_no_trace_in_the_files(store: Store, tmp_path: Path) -> None:
    """Neither in SQLite's file nor in its log."""
    if store.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL's files are its own; it overwrites rows when it vacuums")
    ids = [submission_of(upload_of()) for _ in range(50)]
    store.commit(ids, {}, today=TODAY)

    def found() -> int:
        data = b"".join(path.read_bytes() for path in tmp_path.glob("counts.sqlite3*"))
        return sum(submission.id in data for submission in ids)

    assert found() == 50
    assert prune(store, today=day(30), report_days=90).ids == 50
    assert found() == 0


def test_many_raw_reports_are_forgotten_in_parts(store: Store) -> None:
    """More than one transaction takes, and no younger one."""
    old = [report_of("sound")] * 500
    commit(store, *(upload_of(*old) for _ in range(21)))
    commit(store, upload_of(report_of("sound")), today=day(1))
    assert prune(store, today=day(31), report_days=30).reports == 10_500
    with store.engine.connect() as db:
        assert db.execute(select(func.count()).select_from(schema.kept)).scalar_one() == 1


def test_raw_reports_are_forgotten_after_theirs(store: Store) -> None:
    """Counts of them stay."""
    commit(store, upload_of(report_of("sound")))
    assert prune(store, today=day(30), report_days=30).reports == 0
    assert prune(store, today=day(31), report_days=30).reports == 1
    assert total(store, "sound") == 1


def test_shards_of_past_days_are_folded(store: Store) -> None:
    """Fewer rows, the same counts; again and again, and beside later reports."""
    others = [Store(store.engine) for _ in range(3)]
    for which in (store, *others):
        commit(which, *(upload_of(report_of(cohort=i, bits=i)) for i in range(4)))
    (before,) = releases.release(store, Registry.loads(REGISTRY)["page"], *EVER).collections
    assert prune(store, today=day(1), report_days=90).counters == 0
    assert prune(store, today=day(2), report_days=90).counters == 12
    commit(Store(store.engine), upload_of(report_of(cohort=1, bits=1)))  # a clock that lags
    prune(store, today=day(3), report_days=90)
    (after,) = releases.release(store, Registry.loads(REGISTRY)["page"], *EVER).collections
    assert after.total == before.total + 1
    assert np.array_equal(after.ones.sum(axis=0) - before.ones.sum(axis=0), [1] + [0] * 15)
    with store.engine.connect() as db:
        assert db.execute(select(func.count()).select_from(schema.tally)).scalar_one() == 4


def test_export_is_parquet_for_any_lake(store: Store, tmp_path: Path) -> None:
    """A file for each day and parameter set; aggregated, they are the counts."""
    metric = Registry.loads(REGISTRY)["sound"]
    for offset in (0, 1):
        bodies = [upload_of(report_of("sound", bits=i % 2)) for i in range(10 + offset)]
        commit(store, *bodies, today=day(offset))
    written = export(store, tmp_path / "lake", metric="sound", first=day(0), last=day(1))
    assert len(written) == 2
    for path, n in zip(written, (10, 11), strict=True):
        counts = aggregate_parquet(path, params=metric.params, metric="sound")
        assert counts.n_reports == n
        assert counts.ones.tolist() == [[n // 2]]
    assert export(store, tmp_path / "none", metric="page", first=day(0), last=day(1)) == []
