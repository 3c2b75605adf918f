"""What analysts may read: sums of whole blocks, and never of one report."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from collectors import (
    REGISTRY,
    close_days,
    commit,
    count_group,
    day,
    metric_of,
    report_of,
    submission_of,
    total,
    upload_of,
)
from numpy.typing import NDArray
from rappor_server.base.errors import StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.operations.closing import close_all
from rappor_server.queries.counts import JSON
from rappor_server.queries.estimates import EstimatesQuery
from rappor_server.queries.query import QueryResult, Subject
from rappor_server.releases import releases
from rappor_server.releases.release_json import write_releases
from rappor_server.releases.releases import DayReports
from rappor_server.releases.warning_signs import Refusals, read_refusals
from rappor_server.storage import schema
from rappor_server.storage.blocks import SET_ASIDE, rules_in_force
from rappor_server.storage.database import write_transaction
from registries import registry_of
from sqlalchemy import Engine, event

from rappor import Counts, Metric, Registry, decode
from rappor.base.errors import ParamsError
from rappor.counts.released import Released
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Dimension

SMALL = Registry.loads(REGISTRY)["small"]
"""A daily metric. Its minimum is five reports, and two reports of a cohort for each day."""
ALL_DAYS = (datetime.date.min, datetime.date.max)


def send(engine: Engine, *cohorts: int, on: int = 0, bits: int = 0x0F0F) -> None:
    """Store a report of each of these cohorts on a day."""
    bodies = (upload_of(report_of("small", bits=bits, cohort=j)) for j in cohorts)
    commit(engine, *bodies, today=day(on))


def read(
    engine: Engine,
    first: int | None = None,
    last: int | None = None,
    *,
    on: int = 100,
    metric: Metric = SMALL,
) -> releases.Release:
    """Close blocks on a day, and return what is released of the days from first to last."""
    close_days(engine, metric, day(on))
    days = (
        ALL_DAYS[0] if first is None else day(first),
        ALL_DAYS[1] if last is None else day(last),
    )
    return releases.release(engine, metric, *days)


def by_cohort(release: releases.Release) -> list[int]:
    """Return the released reports of each cohort."""
    (counts,) = release.collections
    return [int(n) for n in counts.cohort_reports]


def test_days_of_a_cohort_wait_until_their_block_holds_enough(engine: Engine) -> None:
    """A cohort's report waits for another one of a later day, and both are shown together."""
    send(engine, 0, 0, 1, 2, 2, 2, on=0)
    send(engine, 0, 0, 3, on=1)
    before = read(engine, on=2)
    assert by_cohort(before) == [4, 0, 3, 0]
    assert before.days == (DayReports(day(0), 5), DayReports(day(1), 2))
    assert before.withheld == (day(0), day(1))
    send(engine, *[1] * 5, on=2)
    after = read(engine, on=3)
    assert by_cohort(after) == [4, 6, 3, 0]
    assert after.days == (DayReports(day(0), 5), DayReports(day(1), 2), DayReports(day(2), 6))
    assert after.withheld == (day(1),)


def test_a_range_is_a_sum_of_whole_blocks(engine: Engine) -> None:
    """A block that begins before a range, or ends after it, is not in it."""
    send(engine, *[0] * 6, 1, on=0)
    send(engine, *[0] * 5, on=1)
    send(engine, *[0] * 5, *[1] * 5, on=2)
    assert by_cohort(read(engine, 0, 2)) == [16, 6, 0, 0]
    assert by_cohort(read(engine, 0, 1)) == [11, 0, 0, 0]
    assert by_cohort(read(engine, 1, 2)) == [10, 0, 0, 0]
    assert read(engine, 0, 1).withheld == (day(0),)
    assert read(engine, 1, 2).withheld == (day(2),)
    assert read(engine, 1, 1).withheld == ()


def test_one_parameter_set_has_its_own_days(engine: Engine) -> None:
    """Where a fingerprint is named, days list the reports under it and no others."""
    page = Registry.loads(REGISTRY)["page"]
    changed = dataclasses.replace(page, params=dataclasses.replace(page.params, p=0.2))
    later = changed.params
    accepted = AcceptedParams(registry_of(page), [registry_of(changed)])
    for on, params in ((0, page.params), (1, later), (1, later)):
        body = upload_of(report_of("page", params=params))
        count_group(engine, [submission_of(body, accepted, today=day(on))], today=day(on))
    everything = releases.release(engine, page, *ALL_DAYS)
    own = releases.release(engine, page, *ALL_DAYS, params=later.fingerprint)
    assert everything.days == (DayReports(day(0), 1), DayReports(day(1), 2))
    assert own.days == (DayReports(day(1), 2),)
    assert [each.params for each in own.collections] == [later]


def test_blocks_never_change(engine: Engine) -> None:
    """A report that comes late, from a clock that lags, counts in a later block."""
    send(engine, *[0] * 6, on=0)
    first = read(engine, 0, 0, on=1)
    send(engine, 0, on=0, bits=1)
    late = dataclasses.replace(first, withheld=(day(0),))
    assert read(engine, 0, 0, on=2) == late
    send(engine, *[0] * 7, on=3)
    assert read(engine, 0, 0, on=4) == late
    assert read(engine, on=4).n_reports == 6 + 8
    assert read(engine, 1, 3, on=4).withheld == (day(3),)  # the block begins before the range


def test_without_a_minimum_everything_shows_at_once(engine: Engine) -> None:
    """Without a minimum the first report is released, and blocks made before are shown as well."""
    send(engine, *[0] * 6, 1, on=0)
    read(engine, on=1)
    send(engine, 1, on=1)
    metric = dataclasses.replace(SMALL, min_reports=0)
    shown = releases.release(engine, metric, *ALL_DAYS)
    assert by_cohort(shown) == [6, 2, 0, 0]
    assert shown.days == (DayReports(day(0), 7), DayReports(day(1), 1))
    assert shown.withheld == ()
    commit(engine, upload_of(report_of("page")))
    assert total(engine) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("min_reports", [0, 5])
def test_overview_reads_no_sums_of_bits(engine: Engine, min_reports: int) -> None:
    """Blocks are counted in an index that has no sums, and nothing else is asked for them."""
    send(engine, *[0] * 6, on=0)
    read(engine, on=1)
    asked: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
    releases.overview(engine, dataclasses.replace(SMALL, min_reports=min_reports))
    questions = [each for each in asked if "FROM block" in each[0]]
    assert len(questions) >= 2
    for statement, values in questions:
        assert "ones" not in statement
        with engine.connect() as db:
            plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        (step,) = [row[3] for row in plan if row[3].startswith("SEARCH block")]
        assert "USING COVERING INDEX" in step


def test_overview_counts_what_a_release_shows(engine: Engine) -> None:
    """Days, waiting days and reports by cohort are those of a release of all days."""
    send(engine, 0, 0, 1, 2, 2, 2, on=0)
    send(engine, 0, 0, 3, on=1)
    read(engine, on=2)
    for metric in (SMALL, dataclasses.replace(SMALL, min_reports=0)):
        shown = releases.release(engine, metric, *ALL_DAYS)
        seen = releases.overview(engine, metric)
        assert (seen.days, seen.withheld) == (shown.days, shown.withheld)
        assert [(each.fingerprint, each.reports.tolist()) for each in seen.cohorts] == [
            (counts.params.fingerprint, counts.cohort_reports.tolist())
            for counts in shown.collections
        ]
    send(engine, 0, on=2)
    none = dataclasses.replace(SMALL, min_reports=1000)
    assert releases.overview(engine, none).cohorts == ()
    assert releases.overview(engine, none).withheld == (day(0), day(1), day(2))


def all_answers(engine: Engine, until: int) -> list[Counts]:
    """Return what any range of days shows at the end of one of them."""
    ranges = itertools.combinations_with_replacement(range(until + 1), 2)
    found = (read(engine, *days, on=until) for days in ranges)
    return [counts for release in found for counts in release.collections]


def as_vector(counts: Counts) -> NDArray[np.int64]:
    """Return reports and ones of all cohorts in one row."""
    return np.concatenate([counts.cohort_reports, counts.bit_counts.ravel()])


def spanned(answers: list[Counts], wanted: NDArray[np.int64]) -> bool:
    """Return whether additions and subtractions of answers give a vector."""
    rows = np.array([as_vector(each) for each in answers], dtype=float)
    solution, *_ = np.linalg.lstsq(rows.T, wanted.astype(float), rcond=None)
    return bool(np.allclose(rows.T @ solution, wanted, atol=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_combination_of_ranges_and_times_gives_a_report(engine: Engine, seed: int) -> None:
    """Whoever reads every range on every day cannot add and subtract them to a single report."""
    rng = np.random.default_rng(seed)
    answers: list[Counts] = []
    sent: list[tuple[int, int]] = []
    for now in range(5):
        for _ in range(int(rng.integers(2, 12))):
            sent.append((int(rng.integers(4)), int(rng.integers(1 << 16))))
            send(engine, sent[-1][0], on=now, bits=sent[-1][1])
        answers += all_answers(engine, now)
    assert answers
    assert spanned(answers, as_vector(answers[0]))
    for cohort, bits in sent:
        report = np.zeros(4 + 4 * 16, dtype=np.int64)
        report[cohort] = 1
        report[4 + 16 * cohort : 4 + 16 * (cohort + 1)] = [bits >> i & 1 for i in range(16)]
        assert not spanned(answers, report)


def test_forged_reports_around_a_victim_do_not_isolate_it(engine: Engine) -> None:
    """Forged reports before and after it, and reading at every step, leave it among its cohort.

    The forger knows all forged reports and subtracts them from whatever is shown. What is left of
    a block are all honest reports of its days and cohort, never the victim's alone.
    """
    honest = [0x0001 << i for i in range(8)]
    victim = 0x1234
    forged = 0xFFFF
    left: list[tuple[int, list[int]]] = []
    for step, bits in enumerate([*honest, victim]):
        send(engine, *[0] * 9, bits=forged)
        left += [strip(each, 9 * (step + 1)) for each in all_answers(engine, 0)]
        send(engine, 0, bits=bits)
        left += [strip(each, 9 * (step + 1)) for each in all_answers(engine, 0)]
    assert left == []  # nothing is shown of a day that has not ended
    left = [strip(each, 9 * 9) for each in all_answers(engine, 1)]
    together = [sum(bits >> i & 1 for bits in [*honest, victim]) for i in range(16)]
    assert set(map(repr, left)) == {repr((9, together))}


def strip(counts: Counts, n_forged: int) -> tuple[int, list[int]]:
    """Subtract forged reports of all ones from cohort 0."""
    return int(counts.cohort_reports[0]) - n_forged, (counts.bit_counts[0] - n_forged).tolist()


def test_impossible_counts_in_the_database_are_a_store_error(engine: Engine) -> None:
    """More ones than reports are no answer, and no fault of who asks."""
    send(engine, *[0] * 5)
    read(engine)
    with write_transaction(engine) as db:
        db.execute(schema.block.update().values(reports=0))
    with pytest.raises(StoreError, match="impossible counts of small") as caught:
        releases.release(engine, metric_of("small", min_reports=0), *ALL_DAYS)
    assert not caught.value.retryable


def test_counts_know_how_often_a_device_may_have_reported(engine: Engine) -> None:
    """By the interval and the days of each cohort, a device sends one report a day at most."""
    send(engine, 0, 0, 0, 1, 1, 1, 1)
    send(engine, 0, 0, 1, on=1)
    (one,) = read(engine, 0, 0).collections
    assert one.sum_squared_reports == 7
    (both,) = read(engine, 0, 1).collections
    # The two of the second day may be among the three of the first. The lone report waits.
    assert (both.n_reports, both.sum_squared_reports) == (9, 3 + 2 + 2 * 2 + 4)


def test_a_block_of_several_days_counts_as_many_reports_of_a_device(engine: Engine) -> None:
    """Two reports are in one block, of different days, so a device may have sent two of four."""
    send(engine, 0, *[1] * 5)
    send(engine, 0, 0, 0, on=1)
    (counts,) = read(engine).collections
    assert counts.sum_squared_reports == 4 * 2 + 5


def test_reports_that_no_block_may_show_are_counted(engine: Engine) -> None:
    """A lone report may be of a later day's device: it is set aside once that day has enough."""
    send(engine, 0, *[1] * 5)
    send(engine, 0, on=2)
    assert by_cohort(read(engine, on=3)) == [0, 5, 0, 0]
    assert read_refusals(engine) == []
    send(engine, 0, 0, on=4)
    assert by_cohort(read(engine, on=5)) == [2, 5, 0, 0]
    assert read_refusals(engine) == [Refusals(day(4), "small", SET_ASIDE, 2)]
    send(engine, 1, on=5)
    send(engine, 1, 1, 1, on=6)
    assert by_cohort(read(engine, on=7)) == [2, 9, 0, 0]


def read_by(engine: Engine, by: str, first: int, last: int) -> list[releases.Release]:
    """Return what is released by stretches of the days from first to last."""
    read(engine)
    return releases.releases_by(engine, releases.BlockQuery(SMALL, day(first), day(last)), by)


def test_stretches_add_up_to_the_range(engine: Engine) -> None:
    """A block counts where it ends; each day has its sums, its reports and its withheld days."""
    send(engine, *[0] * 6, 1)
    send(engine, *[0] * 5, *[1] * 3, on=1)
    send(engine, *[2] * 4, on=2)
    by_day = read_by(engine, "day", 0, 5)
    assert [(each.first, each.last) for each in by_day] == [(day(i), day(i)) for i in range(3)]
    assert [by_cohort(each) for each in by_day[:2]] == [[6, 0, 0, 0], [5, 4, 0, 0]]
    assert by_day[2].collections == ()
    assert by_day[2].withheld == (day(2),)
    whole = read(engine, 0, 1).collections[0]
    parts = [as_vector(stretch.collections[0]) for stretch in by_day[:2]]
    assert np.array_equal(np.sum(parts, axis=0), as_vector(whole))


def test_a_range_by_day_is_the_same_reports(engine: Engine) -> None:
    """Days are parts where they have the minimum of five; others are added to their neighbours."""
    sizes = {0: 6, 1: 2, 2: 4, 4: 8, 5: 2}
    for offset, number in sizes.items():
        send(engine, *[0] * number, on=offset)
    found = read(engine)
    by_day = releases.release_by_day(engine, SMALL, *ALL_DAYS)
    assert dataclasses.replace(by_day, collections=(), parts=()) == dataclasses.replace(
        found, collections=()
    )
    (whole,) = found.collections
    assert [counts.sha256 for counts in by_day.collections] == [whole.sha256]
    assert [counts.n_reports for counts in by_day.parts] == [6, 6, 10]
    assert sum((counts.bit_counts for counts in by_day.parts), 0 * whole.bit_counts).tolist() == (
        whole.bit_counts.tolist()
    )


def test_estimates_of_a_range_are_those_of_its_days(engine: Engine) -> None:
    """What the endpoint says is what days that were read apart say."""
    for offset in range(6):
        send(engine, *[0, 1, 2, 3] * 10, on=offset, bits=0x0F0F if offset % 2 else 0x0FF0)
    read(engine)
    days = releases.releases_by(engine, releases.BlockQuery(SMALL, *ALL_DAYS), "day")
    apart = decode([counts for each in days for counts in each.collections], ["a", "b"])
    together = decode(releases.release(engine, SMALL, *ALL_DAYS).collections, ["a", "b"])
    body = b'{"candidates": ["a", "b"], "all": true}'
    query = EstimatesQuery(
        subject=Subject(metric=SMALL, source=None, error_control=ErrorControl()),
        body=body,
        fields=None,
        media_type=JSON,
        max_candidates=10,
    )
    result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
    answer = json.loads(result.files[JSON])
    assert answer["assumptions"] == apart.assumptions != together.assumptions
    assert answer["estimates"] == apart.to_dict()["estimates"]


@pytest.mark.parametrize("least", [0, 5])
def test_repeats_are_bounded_by_the_pace_of_each_fingerprint(engine: Engine, least: int) -> None:
    """Daily devices go on beside weekly ones; all four days are of one week."""
    daily, weekly = (
        dataclasses.replace(SMALL, interval=interval, min_reports=least, min_cohort=1)
        for interval in ("day", "week")
    )
    registries = [registry_of(weekly), registry_of(daily)]
    accepted = AcceptedParams(registries[0], registries[1:])
    for metric, on, number in ((daily, 2, 30), (daily, 3, 20), (weekly, 3, 10), (weekly, 4, 5)):
        reports = [report_of("small", params=metric.params)] * number
        count_group(engine, [submission_of(upload_of(*reports), accepted)], today=day(on))
    close_all(engine, rules_in_force(registries), day(5))
    shown = releases.release(engine, weekly, day(2), day(4)).collections
    squares = {counts.params.interval: counts.sum_squared_reports for counts in shown}
    # The 20 devices of day 3 may be among the 30 of day 2. A weekly device reports once.
    assert squares == {"day": 30 + 20 + 2 * 20, "week": 15}


def test_weeks_begin_on_monday_and_end_with_the_range(engine: Engine) -> None:
    """TODAY is a Saturday; a stretch without reports is left out, one that waits is not."""
    send(engine, *[0] * 6)
    send(engine, *[0] * 6, on=1)
    send(engine, *[0] * 6, on=9)
    weeks = read_by(engine, "week", 0, 10)
    assert [(each.first, each.last) for each in weeks] == [(day(0), day(1)), (day(9), day(10))]
    (month,) = read_by(engine, "month", 0, 30)
    assert (month.first, month.last, month.n_reports) == (day(0), day(9), 18)


def test_a_stretch_needs_the_minimum_of_its_own(engine: Engine) -> None:
    """Five reports: those of two days are released together, not day by day."""
    send(engine, *[0] * 3)
    send(engine, *[0] * 3, on=1)
    assert read(engine, 0, 1).n_reports == 6
    by_day = read_by(engine, "day", 0, 1)
    assert [each.n_reports for each in by_day] == [0, 0]
    assert [each.withheld for each in by_day] == [(day(0),), (day(1),)]


def test_stretches_of_one_answer_are_bounded(engine: Engine) -> None:
    """One more is refused while they are read, also where its reports wait."""
    for i in range(3):
        send(engine, *[0] * 6, on=i)
    for _ in range(2):
        with pytest.raises(ParamsError, match="by must give at most 2 days"):
            releases.releases_by(engine, releases.BlockQuery(SMALL, day(0), day(9)), "day", most=2)
        read(engine)
    assert len(read_by(engine, "day", 0, 9)) == 3


def test_stretches_are_one_document(engine: Engine, tmp_path: Path) -> None:
    """Each collection names its own days, and the document's are those of the range."""
    send(engine, *[0] * 6)
    send(engine, *[1] * 6, on=1)
    path = tmp_path / "counts.json"
    path.write_bytes(write_releases("small", read_by(engine, "day", 0, 5), day(0), day(5)))
    assert [list(each.cohort_reports) for each in Counts.load_all(path)] == [
        [6, 0, 0, 0],
        [0, 6, 0, 0],
    ]
    found = Released.load(path)
    assert [(each.first, each.n_reports) for each in found.periods] == [(day(0), 6), (day(1), 6)]
    assert (found.first, found.last, found.withheld) == (day(0), day(5), ())


SPLIT = dataclasses.replace(SMALL, segments=(Dimension("version", ("1", "2")),))
"""Devices tell a version; each segment is released from five reports on."""


def send_segment(engine: Engine, version: str, *cohorts: int, on: int = 0) -> None:
    """Store a report of a version for each of these cohorts on a day."""
    params = SPLIT.in_segment({"version": version}).params
    accepted = AcceptedParams(registry_of(SPLIT))
    bodies = (upload_of(report_of("small", cohort=j, params=params)) for j in cohorts)
    count_group(engine, [submission_of(body, accepted) for body in bodies], today=day(on))


def test_segments_are_one_sum_unless_they_are_asked_for(engine: Engine) -> None:
    """Their counts name them, and add up to the sum, also by day; devices have one cohort."""
    send_segment(engine, "1", *[0, 0, 1, 1, 2, 2])
    send_segment(engine, "2", *[0, 0, 1, 1, 3, 3], on=1)
    close_days(engine, SPLIT, day(5))
    whole = releases.release(engine, SPLIT, *ALL_DAYS)
    apart = releases.release(engine, SPLIT, *ALL_DAYS, segments=True)
    (together,) = whole.collections
    assert together.params == SPLIT.params
    assert {each.params.segment: each.n_reports for each in apart.collections} == {
        (("version", "1"),): 6,
        (("version", "2"),): 6,
    }
    assert together.cohort_reports.tolist() == [4, 4, 2, 2]
    ones = np.sum([each.bit_counts for each in apart.collections], axis=0)
    assert np.array_equal(ones, together.bit_counts)
    assert together.sum_squared_reports == 4 * 2 + 4 * 2 + 2 + 2
    by_day = releases.releases_by(
        engine, releases.BlockQuery(SPLIT, day(0), day(1)), "day", segments=True
    )
    assert [[each.n_reports for each in one.collections] for one in by_day] == [[6], [6]]


def test_a_small_segment_is_in_no_sum(engine: Engine) -> None:
    """Else it could be subtracted out; its days wait."""
    send_segment(engine, "1", *[0, 0, 1, 1, 2, 2])
    send_segment(engine, "2", *[0, 0, 1, 1])
    close_days(engine, SPLIT, day(5))
    whole = releases.release(engine, SPLIT, *ALL_DAYS)
    apart = releases.release(engine, SPLIT, *ALL_DAYS, segments=True)
    assert whole.n_reports == apart.n_reports == 6
    assert [each.params.segment for each in apart.collections] == [(("version", "1"),)]
    assert whole.withheld == apart.withheld == (day(0),)
