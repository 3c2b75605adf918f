"""Raw reports as Parquet files."""

from __future__ import annotations

import datetime
from pathlib import Path

from collectors import REGISTRY, TODAY, commit, report_of, upload_of
from rappor_server.analysis.export import export
from rappor_server.storage.store import Store

from rappor import Registry
from rappor.engines.parquet import aggregate_parquet


def day(offset: int) -> datetime.date:
    """Return the day some days after TODAY."""
    return TODAY + datetime.timedelta(days=offset)


def test_export_is_parquet_for_any_lake(store: Store, tmp_path: Path) -> None:
    """There is a file for each day and parameter set; aggregated, they are the counts."""
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
