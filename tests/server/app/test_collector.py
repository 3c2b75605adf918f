"""A collector without its sockets."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from collectors import REGISTRY, released, report_of, upload_of
from programs import run_python
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.cli.serve import prepare
from rappor_server.storage.database import utc_today
from rappor_server.storage.merge import merge_all

PROGRAM = """
import asyncio, datetime, sys
import rappor_server.http.app
from collectors import report_of, upload_of
from rappor_server.releases import releases
from rappor_server.cli.serve import prepare
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.storage.merge import merge_all

async def main():
    settings = Settings(registry=sys.argv[1], suspicious="accept")
    prepare(settings)
    days = (datetime.date.min, datetime.date.max)
    collector = Collector(settings)
    try:
        for _ in range(3):
            await collector.enqueue(collector.read(upload_of(report_of(), report_of("small"))))
        merge_all(collector.engine)
        for metric in collector.accepted_params.registry.values():
            released = releases.release(collector.engine, metric, *days)
            print(metric.name, released.n_reports)
    finally:
        await collector.close()

asyncio.run(main())
print("rappor.counts.counts" in sys.modules, "numba" in sys.modules, "scipy" in sys.modules)
"""


def test_the_process_of_a_collector_loads_no_compiler(tmp_path: Path) -> None:
    """It stores and releases Counts without numba, 150 MB, and without scipy."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    answer = run_python("-c", PROGRAM, str(registry))
    *released, loaded = answer.stdout.splitlines()
    assert released == ["page 3", "sound 0", "small 0", "old 0"]
    assert loaded == "True False False"


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("days", [-1, 1])
async def test_reports_count_on_the_day_of_the_database(
    tmp_path: Path, database: str, days: int
) -> None:
    """A host whose clock is wrong does not count reports of two days on one."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    settings = Settings(registry=str(registry), database=database, suspicious="accept")
    prepare(settings)
    wrong, before = datetime.timedelta(days=days), utc_today()
    collector = Collector(settings, today=lambda: utc_today() + wrong)
    try:
        await collector.enqueue(collector.read(upload_of(report_of())))
        merge_all(collector.engine)
        (found,) = released(collector.engine).days
        assert before <= found.day <= utc_today()
    finally:
        await collector.close()
