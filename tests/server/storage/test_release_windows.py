"""Release windows: two results of a reader differ by whole windows.

A fingerprint is a short hash of the parameters of a report. A block is the sum of the reports of
one fingerprint and cohort on consecutive days. A block is closed when it has enough reports, and
never changes afterwards. A window is a set of closed blocks of one fingerprint that has at least
`min_reports` reports.

Each night, the counters (the sums of the reports of a day) are moved into blocks, and windows are
formed from the blocks that have no window yet. A result for a range of days is the sum of the
windows that are dated in the range. So the difference of two results is no report at all, or at
least `min_reports` reports of each fingerprint.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from collectors import build_metric, build_rules, day
from databases import ON_BOTH_DATABASES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rappor_server.operations.closing import close_all
from rappor_server.releases.overviews import read_overviews
from rappor_server.releases.releases import (
    ReleaseQuery,
    read_release,
    read_releases_by_period,
)
from rappor_server.storage import blocks, schema
from rappor_server.storage.blocks import Rules, rules_in_force
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import open_database, utc_today, write_transaction
from rappor_server.storage.forgetting import forget
from rappor_server.storage.release_windows import combine_rules, record_rules, store_rates
from rappor_server.storage.tallies import Tally
from registries import build_registry
from sqlalchemy import Engine, event, func, select

from rappor import Metric, Params
from rappor.protocol.segments import Dimension

PARAMS = Params(k=2, h=1, m=4097, f=0.5, p=0.25, q=0.75)
"""With 4,097 cohorts, the counters of a day are moved into blocks in two transactions, of at most
4,096 cohorts each. A process can be killed between the two transactions."""
METRIC = build_metric(params=PARAMS, interval="day", segments=(Dimension("version", ("1", "2")),))
OLDER = dataclasses.replace(METRIC, params=dataclasses.replace(PARAMS, p=0.2))
"""The metric in the previous registry. It has another fingerprint."""
SEGMENT_METRICS = [
    metric.in_segment({"version": version}) for metric in (METRIC, OLDER) for version in ("1", "2")
]
METRIC_OF_FINGERPRINT = {metric.fingerprint: metric for metric in SEGMENT_METRICS}
"""Maps each of the four fingerprints to its metric. Both registries have two segments."""
COHORTS = (0, 4096)
"""Cohorts of the generated reports. The first of the two transactions moves cohort 0, and the
second moves cohort 4,096."""
N_NIGHTS = 4
"""Largest number of nights in a history. With more nights, the test takes longer."""


class Arrival(NamedTuple):
    """Reports of one fingerprint and cohort, which may be counted on an earlier day."""

    fingerprint: str
    cohort: int
    days_late: int
    reports: int


class Night(NamedTuple):
    """One step of a random history: the reports of a day, and the night after the day.

    Attributes
    ----------
    arrivals : reports of the day
    min_reports, min_cohort : minimums of the registry in the night
    has_older : whether the previous registry is in force, too. A night closes blocks of the
        fingerprints of all registries in force. Blocks of another fingerprint wait, because their
        minimums are unknown
    is_killed : whether the process is killed after the first of the two transactions of the night
    days_kept : number of days that are kept by `forget` after the night; None if nothing is deleted
    """

    arrivals: list[Arrival]
    min_reports: int
    min_cohort: int
    has_older: bool
    is_killed: bool
    days_kept: int | None


ARRIVALS = st.builds(
    Arrival,
    fingerprint=st.sampled_from(sorted(METRIC_OF_FINGERPRINT)),
    cohort=st.sampled_from(COHORTS),
    days_late=st.sampled_from([0, 0, 0, 1, 2]),
    reports=st.integers(1, 12),
)
NIGHTS = st.builds(
    Night,
    arrivals=st.lists(ARRIVALS, max_size=8),
    min_reports=st.integers(1, 25),
    min_cohort=st.integers(1, 4),
    has_older=st.booleans(),
    is_killed=st.booleans(),
    days_kept=st.sampled_from([None, None, None, 0, 1, 2]),
)


def store(engine: Engine, day_number: int, arrivals: Sequence[Arrival]) -> None:
    """Add the reports of a day to the counters. In every report bit 0 is 1, and bit 1 is 0."""
    numbers: Counter[tuple[str, datetime.date, int]] = Counter()
    for arrival in arrivals:
        date = day(day_number - arrival.days_late)
        numbers[arrival.fingerprint, date, arrival.cohort] += arrival.reports
    with write_transaction(engine) as db:
        for (fingerprint, date, cohort), reports in numbers.items():
            params = METRIC_OF_FINGERPRINT[fingerprint].params
            insert_rows(db, schema.params, [(fingerprint, params.to_json())], skip_stored=True)
            tally = schema.tally.c
            query = select(tally.reports).where(
                tally.params == fingerprint,
                tally.day == date,
                tally.cohort == cohort,
            )
            stored_reports = db.execute(query).scalar_one_or_none() or 0
            n = stored_reports + reports
            row = ("page", fingerprint, date, cohort, n, Tally(n, np.array([n, 0])).to_bytes())
            insert_rows(
                db, schema.tally, [row], update="reports = excluded.reports, ones = excluded.ones"
            )


def close(engine: Engine, day_number: int, night: Night) -> Metric:
    """Close blocks in the night after a day, and return the metric with the minimums of the night.

    A transaction moves a piece, which is the counters of one day in at most 4,096 cohorts. A killed
    process has moved the first piece only.
    """
    metric, older = (
        dataclasses.replace(version, min_reports=night.min_reports, min_cohort=night.min_cohort)
        for version in (METRIC, OLDER)
    )
    registries = [build_registry(metric), *([build_registry(older)] if night.has_older else [])]
    rules = rules_in_force(registries)
    if night.is_killed:
        with engine.connect() as db:
            pieces = list(blocks._list_pieces(db, "page", day(day_number + 1)))
        if pieces:
            with write_transaction(engine) as db:
                store_rates(db, "page", rules["page"], day(day_number))
                blocks._move_piece(db, "page", pieces[0], rules["page"])
    else:
        close_all(engine, rules, day(day_number + 1))
    return metric


ReleasedNumbers = dict[str, tuple[int, ...]]
"""Contains six numbers of a range for each fingerprint: the reports of the two cohorts, and then
the sums of the two bits of each cohort."""


def read_numbers(engine: Engine, metric: Metric, first: int, last: int) -> ReleasedNumbers:
    """Return the released numbers of the days first to last."""
    release = read_release(engine, metric, day(first), day(last), separate_segments=True)
    return {
        counts.params.fingerprint: (
            *counts.cohort_reports[list(COHORTS)].tolist(),
            *counts.bit_counts[list(COHORTS)].ravel().tolist(),
        )
        for counts in release.collections
    }


def check_queries_of_all_days(engine: Engine, metric: Metric) -> None:
    """Assert that all queries of a range agree on the number of reports and the withheld days.

    The queries have separate segments, one fingerprint, or the sum of all segments.
    """
    days = (datetime.date.min, datetime.date.max)
    release = read_release(engine, metric, *days, separate_segments=True)
    reports = {counts.params.fingerprint: counts.n_reports for counts in release.collections}
    for fingerprint in METRIC_OF_FINGERPRINT:
        release_of_one = read_release(engine, metric, *days, params=fingerprint)
        assert release_of_one.n_reports == reports.get(fingerprint, 0)
        assert release_of_one.withheld == release.withheld
    added = read_release(engine, metric, *days)
    assert (added.n_reports, added.withheld) == (release.n_reports, release.withheld)
    assert all(not counts.params.segment for counts in added.collections)


@pytest.mark.slow
@given(nights=st.lists(NIGHTS, min_size=2, max_size=N_NIGHTS))
@settings(
    max_examples=20,
    deadline=None,
    # Shrinking a failure would take minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_two_results_differ_by_whole_windows(
    nights: list[Night], migrated_files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The difference of any two results is a sum of whole windows, in random histories.

    The histories have late reports, rules that change, killed processes, deleted days, and four
    fingerprints. The test reads each single day every night, and asserts two facts, from which the
    promise follows:

    - The result of a day is empty, or has a window with the `min_reports` of its night. After the
      day was moved into blocks, its result never changes, until it is deleted.
    - The result of every range is the sum of the results of its days.
    """
    folder = tmp_path_factory.mktemp("history")
    for path in migrated_files:
        shutil.copy(path, folder)
    with open_database(f"sqlite:///{folder}/counts.sqlite3") as engine:
        # Results of days that earlier nights have moved. They must never change.
        final: dict[int, ReleasedNumbers] = {}
        for day_number, night in enumerate(nights):
            store(engine, day_number, night.arrivals)
            metric = close(engine, day_number, night)
            if night.days_kept is not None:
                first_kept = day_number + 1 - night.days_kept
                forget(engine, "page", before=day(first_kept))
                final |= {i: {} for i in final if i < first_kept}
            # The earliest late reports are two days late, so the first day is -2.
            days = range(-2, day_number + 1)
            windows_of_day = {i: read_numbers(engine, metric, i, i) for i in days}
            for i, windows in windows_of_day.items():
                assert final.get(i, windows) == windows
                for numbers in windows.values():
                    # A day that is not in `final` has its window from this night, so the minimum of
                    # this night holds. The first two numbers are the reports of the two cohorts.
                    assert i in final or sum(numbers[:2]) >= night.min_reports
            last_moved_day = find_last_moved_day(engine)
            final |= {i: windows_of_day[i] for i in days if day(i) <= last_moved_day}
            assert not any(windows_of_day[i] for i in days if day(i) > last_moved_day)
            for first, last in itertools.combinations(days, 2):
                total: dict[str, Counter[int]] = {}
                for i in range(first, last + 1):
                    for fingerprint, numbers in windows_of_day[i].items():
                        total.setdefault(fingerprint, Counter()).update(dict(enumerate(numbers)))
                expected = {
                    fingerprint: tuple(numbers[i] for i in range(6))
                    for fingerprint, numbers in total.items()
                }
                assert read_numbers(engine, metric, first, last) == expected
            check_queries_of_all_days(engine, metric)
            check_totals(engine, metric)


def find_last_moved_day(engine: Engine) -> datetime.date:
    """Return the last day whose counters were moved into blocks; the first of Python if none."""
    with engine.connect() as db:
        last_day: datetime.date | None = db.execute(select(schema.blocked.c.through)).scalar()
    return last_day or datetime.date.min


def check_totals(engine: Engine, metric: Metric) -> None:
    """Assert that stored totals of blocks and windows equal sums of the blocks themselves.

    The totals are added up when blocks are closed and windows are formed.
    """
    block, total = schema.block.c, schema.block_total.c
    key = (block.params, block.last, block.first)
    query = select(*key, func.min(block.reports), func.sum(block.reports)).where(block.closed)
    totals = select(total.params, total.last, total.first, total.smallest, total.reports)
    with engine.connect() as db:
        blocks_of_days = {tuple(row) for row in db.execute(query.group_by(*key))}
        assert {tuple(row) for row in db.execute(totals)} == blocks_of_days
    everything = read_release(
        engine, metric, datetime.date.min, datetime.date.max, separate_segments=True
    )
    (overview,) = read_overviews(engine, [metric])
    assert (overview.days, overview.withheld) == (everything.days, everything.withheld)
    assert {cohorts.fingerprint: cohorts.reports.tolist() for cohorts in overview.cohorts} == {
        counts.params.fingerprint: counts.cohort_reports.tolist()
        for counts in everything.collections
    }


SMALL = build_metric("small", Params(k=2, h=1, m=1, f=0.5, p=0.25, q=0.75), min_cohort=2)
"""A metric with one cohort, so a day has at most one block. A block needs two reports for each day,
because `min_cohort` is 2."""


def run_nights(engine: Engine, *nights: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """Run nights, and return all windows after each night, as pairs of day and reports.

    A night is a pair: the number of reports of the day, and the `min_reports` of the night.
    """
    windows = []
    for day_number, (reports, min_reports) in enumerate(nights):
        if reports:
            store_small(engine, day_number, reports)
        metric = dataclasses.replace(SMALL, min_reports=min_reports)
        close_all(engine, build_rules(metric), day(day_number + 1))
        query = ReleaseQuery(metric, datetime.date.min, datetime.date.max)
        releases = read_releases_by_period(engine, query, "day")
        windows.append(
            [
                ((release.first - day(0)).days, release.n_reports)
                for release in releases
                if release.n_reports
            ]
        )
    return windows


def store_small(engine: Engine, day_number: int, reports: int) -> None:
    """Add reports of the metric SMALL to the counters of a day."""
    row = (
        "small",
        SMALL.fingerprint,
        day(day_number),
        0,
        reports,
        Tally(reports, np.array([reports, 0])).to_bytes(),
    )
    with write_transaction(engine) as db:
        insert_rows(
            db, schema.params, [(SMALL.fingerprint, SMALL.params.to_json())], skip_stored=True
        )
        insert_rows(db, schema.tally, [row])


def test_blocks_wait_until_they_have_min_reports_together(engine: Engine) -> None:
    """Blocks of 12 and 15 reports wait for a window, which needs 30. Eleven more complete it."""
    assert run_nights(engine, (12, 30), (15, 30), (11, 30), (40, 30)) == [
        [],
        [],
        [(2, 38)],
        [(2, 38), (3, 40)],
    ]


def test_windows_stay_when_min_reports_changes(engine: Engine) -> None:
    """A window stays after `min_reports` rises from 30 to 100.

    The 30 reports of the second day wait for the 75 reports of the third day.
    """
    rise = run_nights(engine, (30, 30), (30, 100), (75, 100))
    assert rise == [[(0, 30)], [(0, 30)], [(0, 30), (2, 105)]]


def test_a_fall_of_min_reports_changes_no_past_range(engine: Engine) -> None:
    """After `min_reports` falls, a window forms with the next block, and not before.

    The 12 reports of the first day are enough on the second day, when `min_reports` falls from 30
    to 10. A window of them would be dated on the first day, and change a range that was read. They
    are released with the two reports of the third day.
    """
    assert run_nights(engine, (12, 30), (0, 10), (2, 10)) == [[], [], [(2, 14)]]


def test_the_larger_min_reports_of_two_registries_holds(engine: Engine) -> None:
    """The largest `min_reports` of the registries in force holds for a fingerprint.

    The fingerprint does not depend on `min_reports`, so a window may contain reports of devices
    with different registries. 15 reports are enough for the first registry, and 20 for both.
    """
    registries = [
        build_registry(dataclasses.replace(SMALL, min_reports=min_reports))
        for min_reports in (10, 20)
    ]
    for day_number, reports in enumerate((15, 5)):
        store_small(engine, day_number, reports)
        close_all(engine, rules_in_force(registries), day(day_number + 1))
    release = read_release(engine, SMALL, day(0), day(1))
    assert [(row.day, row.reports) for row in release.days] == [(day(1), 20)]


class Host(NamedTuple):
    """A collector with its own registries on the common database.

    Attributes
    ----------
    rules : rules of its registries
    reports : reports that it counts on each day, by fingerprint
    """

    rules: dict[str, Rules]
    reports: dict[str, int]


def make_hosts() -> tuple[Host, Host, str]:
    """Return two hosts whose registries differ, and the fingerprint that only the second accepts.

    The second host has another rate and larger minimums, and still accepts an older fingerprint.
    """
    strict = dataclasses.replace(SMALL, min_cohort=6, min_reports=30, sampling_rate=0.5)
    older = dataclasses.replace(strict, params=dataclasses.replace(SMALL.params, p=0.2))
    return (
        Host(build_rules(dataclasses.replace(SMALL, min_reports=10)), {SMALL.fingerprint: 5}),
        Host(
            rules_in_force([build_registry(strict), build_registry(older)]),
            {SMALL.fingerprint: 5, older.fingerprint: 12},
        ),
        older.fingerprint,
    )


@ON_BOTH_DATABASES
@pytest.mark.parametrize("first", [0, 1])
def test_hosts_with_different_registries_use_the_strictest_rules(
    engine: Engine, first: int
) -> None:
    """For six days, two hosts have different registries, and one of them closes every night first.

    The result is the same for both. Blocks need the larger `min_cohort`, and windows the larger
    `min_reports`. No window of the common fingerprint has a sampling rate. The fingerprint that
    only one host accepts is released, too, with the rate of that host. No report is lost. On the
    seventh day the hosts have one registry again, and the rate of its reports is known.

    The days are in the past, because PostgreSQL has a clock of its own.
    """
    *hosts, older = make_hosts()
    days = [utc_today() - datetime.timedelta(days=ago) for ago in range(7, 0, -1)]
    both = Counter(hosts[0].reports) + Counter(hosts[1].reports)
    for on in days[:6]:
        for host in (*hosts, hosts[0]):
            record_rules(engine, host.rules, on)
        store_numbers(engine, on, both)
        for host in (hosts[first], hosts[1 - first]):
            close_all(engine, host.rules, on + datetime.timedelta(days=1))
    window, block = schema.release_window.c, schema.block.c
    columns = (window.params, window.reports, window.minimum, window.sampling_rate)
    with engine.connect() as db:
        windows = Counter(tuple(row) for row in db.execute(select(*columns)))
        blocks_of_days = db.execute(select(block.params, block.reports, block.closed)).all()
        assert not db.scalar(select(func.count()).select_from(schema.tally))
    # 10 and 12 reports a day are enough for a block of a day. Three blocks have 30 and 36 reports.
    assert windows == {(SMALL.fingerprint, 30, 30, None): 2, (older, 36, 30, 0.5): 2}
    assert Counter(blocks_of_days) == {(SMALL.fingerprint, 10, True): 6, (older, 12, True): 6}
    if engine.dialect.name == "sqlite":
        for host in (hosts[1], hosts[1]):
            record_rules(engine, host.rules, days[5])
        store_numbers(engine, days[6], {SMALL.fingerprint: 40})
        close_all(engine, hosts[1].rules, utc_today())
        with engine.connect() as db:
            query = select(window.sampling_rate).where(window.last == days[6])
            assert db.execute(query).scalars().all() == [0.5]


@ON_BOTH_DATABASES
def test_a_smaller_minimum_holds_from_the_next_day(engine: Engine) -> None:
    """A registry with smaller minimums comes into force at noon. The night uses the larger ones.

    Devices sent the reports of the morning under the promise of the larger minimums.
    """
    noon = utc_today() - datetime.timedelta(days=1)
    strict = build_rules(dataclasses.replace(SMALL, min_cohort=10, min_reports=20))
    loose = build_rules(dataclasses.replace(SMALL, min_cohort=2, min_reports=5))
    record_rules(engine, strict, noon)
    store_numbers(engine, noon, {SMALL.fingerprint: 6})
    record_rules(engine, loose, noon)
    close_all(engine, loose, utc_today())
    with engine.connect() as db:
        assert db.execute(select(schema.block.c.closed)).scalars().all() == [False]
        assert (
            combine_rules(db, "small", loose["small"], utc_today() + datetime.timedelta(1))
            == (loose["small"])
        )


def test_an_unchanged_registry_is_not_written_again(engine: Engine) -> None:
    """A second record of a day writes nothing. A collector makes thousands of records each day."""
    rules = build_rules(SMALL)
    record_rules(engine, rules, utc_today())
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    record_rules(engine, rules, utc_today())
    assert statements
    assert not [statement for statement in statements if not statement.startswith("SELECT")]


def store_numbers(engine: Engine, on: datetime.date, numbers: Mapping[str, int]) -> None:
    """Add reports of the metric SMALL to the counters of a day, by fingerprint."""
    params = {
        fingerprint: dataclasses.replace(SMALL.params, p=p)
        for p in (0.25, 0.2)
        for fingerprint in [dataclasses.replace(SMALL.params, p=p).fingerprint]
    }
    with write_transaction(engine) as db:
        for fingerprint, n in numbers.items():
            document = params[fingerprint].to_json()
            insert_rows(db, schema.params, [(fingerprint, document)], skip_stored=True)
            row = ("small", fingerprint, on, 0, n, Tally(n, np.array([n, 0])).to_bytes())
            insert_rows(db, schema.tally, [row])


@ON_BOTH_DATABASES
def test_windows_and_the_last_moved_day_are_one_transaction(engine: Engine) -> None:
    """Windows, blocks and the last moved day are stored in one transaction.

    A process that is killed before it stores the window leaves the counter as it was, and no row in
    the other four tables. A second killed run finds the same state, and leaves it, too. The next
    run that is not killed moves the counter. A further run changes nothing.
    """
    store_small(engine, 0, 100)
    tables = (schema.tally, schema.block, schema.block_total, schema.blocked, schema.release_window)

    def count_rows() -> list[int]:
        with engine.connect() as db:
            return [db.scalar(select(func.count()).select_from(table)) or 0 for table in tables]

    def kill(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "INTO release_window" in statement:
            raise KeyboardInterrupt

    event.listen(engine, "before_cursor_execute", kill)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            close_all(engine, build_rules(SMALL), day(1))
        assert count_rows() == [1, 0, 0, 0, 0]
    event.remove(engine, "before_cursor_execute", kill)
    for _ in range(2):
        close_all(engine, build_rules(SMALL), day(1))
        assert count_rows() == [0, 1, 1, 1, 1]
