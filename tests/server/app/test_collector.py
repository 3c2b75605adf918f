"""A `Collector` without an HTTP server: its modules, its day, and the totals in its log.

`REGISTRY` has the metrics `page`, `sound` and `small`, and `old`, which has expired.
`build_report()` is a report of `page`, and `build_upload()` is an upload of one such report.
"""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

import pytest
from collectors import (
    ACCEPTED,
    REGISTRY,
    build_report,
    build_upload,
    close_days,
    parse_submission,
    read_counts_without_minimum,
)
from programs import run_python
from rappor_server.app.collector import Collector, UploadTotals
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.cli.serve import prepare_database
from rappor_server.ingest.validate import Submission
from rappor_server.storage import schema
from rappor_server.storage.database import utc_today
from rappor_server.storage.merge import merge_all
from sqlalchemy import select

PROGRAM = """
import asyncio, datetime, sys
import rappor_server.http.application
from collectors import build_report, build_upload
from rappor_server.releases import releases
from rappor_server.cli.serve import prepare_database
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.storage.merge import merge_all

async def main():
    settings = Settings(registry=sys.argv[1], suspicious="accept")
    prepare_database(settings)
    days = (datetime.date.min, datetime.date.max)
    collector = Collector(settings)
    try:
        for _ in range(3):
            body = build_upload(build_report(), build_report("small"))
            await collector.enqueue(collector.parse_upload(body))
        merge_all(collector.engine)
        for metric in collector.accepted_params.registry.values():
            released = releases.read_release(collector.engine, metric, *days)
            print(metric.name, released.n_reports)
    finally:
        await collector.close()

asyncio.run(main())
print("rappor.counts.counts" in sys.modules, "numba" in sys.modules, "scipy" in sys.modules)
"""
"""Program that stores three uploads, reads the counts, and prints which modules are loaded."""


@pytest.mark.slow
def test_the_process_of_a_collector_loads_no_compiler(tmp_path: Path) -> None:
    """A collector stores and releases counts without numba, which needs 150 MB, and scipy.

    `page` has no minimum, so its three reports are released. `small` has a minimum of 5 reports.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    result = run_python("-c", PROGRAM, str(registry))
    *counts, loaded = result.stdout.splitlines()
    assert counts == ["page 3", "sound 0", "small 0", "old 0"]
    # The program has used counts, and neither numba nor scipy.
    assert loaded == "True False False"


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("days", [-1, 1])
async def test_reports_count_on_the_day_of_the_database(
    tmp_path: Path, database: str, days: int
) -> None:
    """A host whose clock is wrong by a day counts reports on the day of PostgreSQL's clock.

    Midnight may pass during the test, so the counted day may be that of the beginning or of the
    end.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    settings = Settings(registry=str(registry), database=database, suspicious="accept")
    prepare_database(settings)
    wrong, before = datetime.timedelta(days=days), utc_today()
    collector = Collector(settings, today=lambda: utc_today() + wrong)
    try:
        await collector.enqueue(collector.parse_upload(build_upload(build_report())))
        merge_all(collector.engine)
        (released_day,) = read_counts_without_minimum(collector.engine).days
        assert before <= released_day.day <= utc_today()
    finally:
        await collector.close()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("min_reports", [5, 0])
async def test_a_registry_in_force_has_its_sampling_rates_in_the_database(
    tmp_path: Path, min_reports: int
) -> None:
    """The rate of each registry is stored with the day on which it came into force.

    A window of this day has no rate then, because its reports may have been made under either
    registry. The first registry has no day: no report came before it. Its metric may be a trial
    with `min_reports` = 0. The reports of the trial join the first window, so they need a rate.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY.replace("min_reports = 5", f"min_reports = {min_reports}"))
    settings = Settings(registry=str(registry))
    prepare_database(settings)
    noon = datetime.date(2026, 11, 23)
    collector = Collector(settings, today=lambda: noon)
    columns = schema.rate_in_force.c

    async def read_rates() -> list[tuple[float, datetime.date]]:
        await collector._find_due()
        query = select(columns.sampling_rate, columns.changed).where(columns.metric == "small")
        with collector.engine.connect() as db:
            return [tuple(row) for row in db.execute(query)]

    try:
        assert await read_rates() == [(1.0, datetime.date.min)]
        entry = "[metrics.small]\n"
        registry.write_text(REGISTRY.replace(entry, f"{entry}sampling_rate = 0.5\n"))
        collector.adopt(InputFiles.read(settings, today=noon))
        assert await read_rates() == [(0.5, noon)]
        assert await read_rates() == [(0.5, noon)]
    finally:
        await collector.close()


SMALL = ACCEPTED.registry["small"]
"""This metric has a minimum of 5 reports, and of 2 reports of a cohort."""


@pytest.mark.slow
@pytest.mark.anyio
async def test_minimums_of_a_host_whose_task_hangs_hold_at_another_host(
    tmp_path: Path, database: str
) -> None:
    """A host accepts 3 reports of a metric, and its task that closes blocks never runs.

    Another host with smaller minimums closes the day. It releases no window of 3 reports, because
    the hanging host has promised 5.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    settings = Settings(registry=str(registry), database=database, suspicious="accept")
    prepare_database(settings)
    collector = Collector(settings)
    try:
        # The task is cancelled before its first step.
        collector._tasks[-1].cancel()
        for _ in range(3):
            body = build_upload(build_report("small"))
            await collector.enqueue(collector.parse_upload(body))
        merge_all(collector.engine)
        loose = dataclasses.replace(SMALL, min_reports=1, min_cohort=1)
        # Midnight may pass during the test. The day of the reports has ended in both cases.
        close_days(collector.engine, loose, utc_today() + datetime.timedelta(days=2))
        window, block = schema.release_window.c, schema.block.c
        with collector.engine.connect() as db:
            assert db.execute(select(block.reports)).scalars().all() == [3]
            assert not db.execute(select(window.reports)).all()
    finally:
        await collector.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_upload_parsed_before_a_reload_keeps_its_minimums(tmp_path: Path) -> None:
    """The first upload of a day is parsed just before a reload with smaller minimums.

    The minimums of both registries hold on this day. Three days later only the minimums of the
    new registry hold: the earlier registry has accepted nothing since.
    """
    registry, day = tmp_path / "metrics.toml", datetime.date(2026, 11, 23)
    registry.write_text(REGISTRY)
    settings = Settings(registry=str(registry), suspicious="accept")
    prepare_database(settings)
    collector = Collector(settings, today=lambda: day)
    collector._tasks[-1].cancel()
    columns = schema.minimums_in_force.c
    query = select(columns.min_reports).where(columns.metric == "small")

    def parse() -> Submission:
        return collector.parse_upload(build_upload(build_report("small")))

    def reload(min_reports: int) -> None:
        text = REGISTRY.replace("min_reports = 5", f"min_reports = {min_reports}")
        registry.write_text(text)
        collector.adopt(InputFiles.read(settings, today=day))

    def list_minimums() -> set[int]:
        with collector.engine.connect() as db:
            return set(db.execute(query.where(columns.day >= day)).scalars())

    try:
        await collector.enqueue(parse())
        assert list_minimums() == {5}
        day += datetime.timedelta(days=1)
        submission = parse()
        reload(4)
        await collector.enqueue(submission)
        assert list_minimums() == {5, 4}
        await collector.enqueue(parse())
        day += datetime.timedelta(days=3)
        reload(3)
        await collector.enqueue(parse())
        assert list_minimums() == {3}
    finally:
        await collector.close()


def test_a_log_line_has_the_totals_since_the_last_line() -> None:
    """A line counts accepted reports, refused reports and refused uploads; idle minutes have none.

    An upload that was refused as a whole counts as one refusal (`count_refused`). The first line
    has three accepted reports, the refused report of the expired metric `old`, and one refused
    upload.
    """
    lines: list[dict[str, object]] = []
    totals = UploadTotals(write=lambda event, **fields: lines.append({"event": event, **fields}))
    totals.write_line()
    body = build_upload(build_report(), build_report("sound"), build_report("old"))
    totals.count([parse_submission(body), parse_submission(build_upload())])
    totals.count_refused()
    totals.write_line()
    totals.count_refused()
    totals.write_line()
    totals.write_line()
    assert lines == [
        {"event": "uploads received", "uploads": 2, "reports": 3, "refused": 2},
        {"event": "uploads received", "uploads": 0, "reports": 0, "refused": 1},
    ]
