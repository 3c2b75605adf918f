"""Forgetting: deletion of the counters, blocks and whole release windows of a metric."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    append,
    close_days,
    commit,
    day,
    report_of,
    run_command,
    submission_of,
    upload_of,
)
from rappor_server.operations.backup import backup, restore
from rappor_server.operations.retention import forget_expired, forget_metric
from rappor_server.queries.page_queries import RankingQuery
from rappor_server.queries.query import Range, Subject
from rappor_server.releases import releases
from rappor_server.releases.overviews import read_overviews
from rappor_server.storage import schema
from rappor_server.storage.database import open_database, sqlite_url
from rappor_server.storage.forgetting import Forgotten, forget, list_stored_metrics
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, event, func, select

from rappor.estimator.error_control import ErrorControl

SMALL = ACCEPTED.registry["small"]
"""A daily metric. A window has five reports, and a block two reports for each of its days."""
ALL_DAYS = (datetime.date.min, datetime.date.max)
N_DAYS = 4


def fill(engine: Engine) -> None:
    """Store a window of six reports for each of four days, one waiting block, and one counter."""
    for on in range(N_DAYS):
        reports = [report_of("small", bits=on, cohort=j % 2) for j in range(6)]
        commit(engine, upload_of(*reports, report_of("page")), today=day(on))
    commit(engine, upload_of(report_of("small", cohort=3)), today=day(2))
    close_days(engine, SMALL, day(N_DAYS))
    commit(engine, upload_of(report_of("small")), today=day(N_DAYS))


def read_days(engine: Engine) -> list[tuple[datetime.date, int]]:
    """Return the windows of the metric, and check that the overview has the same numbers."""
    release = releases.read_release(engine, SMALL, *ALL_DAYS)
    (overview,) = read_overviews(engine, [SMALL])
    assert overview.days == release.days
    assert [cohorts.reports.tolist() for cohorts in overview.cohorts] == [
        counts.cohort_reports.tolist() for counts in release.collections
    ]
    return [(each.day, each.reports) for each in release.days]


def count_rows(engine: Engine, metric: str) -> dict[str, int]:
    """Return the number of rows of a metric in each table that has some."""
    numbers = {}
    with engine.connect() as db:
        for name, table in schema.metadata.tables.items():
            if "metric" in table.c:
                query = select(func.count()).select_from(table).where(table.c.metric == metric)
                numbers[name] = db.scalar(query) or 0
    return {name: number for name, number in numbers.items() if number}


def test_windows_before_a_day_are_forgotten(engine: Engine) -> None:
    """Later windows stay as they are, and so do waiting reports and other metrics."""
    fill(engine)
    kept = releases.read_release(engine, SMALL, day(2), day(3))
    assert forget_metric(engine, "small", before=day(2)) == Forgotten(blocks=4, reports=12)
    assert read_days(engine) == [(day(2), 6), (day(3), 6)]
    assert releases.read_release(engine, SMALL, day(2), day(3)) == kept
    assert forget_metric(engine, "small", before=day(2)) == Forgotten()
    assert forget_metric(engine, "small", before=day(N_DAYS)) == Forgotten(blocks=5, reports=13)
    assert read_days(engine) == []
    assert count_rows(engine, "small") == {"blocked": 1, "tally": 1}
    assert releases.read_release(engine, ACCEPTED.registry["page"], *ALL_DAYS).n_reports == N_DAYS


def test_everything_of_a_metric_is_forgotten(engine: Engine) -> None:
    """No table has a row of the metric, and reports that wait in the inbox are deleted, too."""
    fill(engine)
    append(engine, [submission_of(upload_of(report_of("small")))])
    assert list_stored_metrics(engine) == {"page", "small"}
    assert forget_metric(engine, "small").reports == 6 * N_DAYS + 3
    assert count_rows(engine, "small") == {}
    assert list_stored_metrics(engine) == {"page"}
    commit(engine, upload_of(*[report_of("small")] * 6), today=day(N_DAYS + 1))
    close_days(engine, SMALL, day(N_DAYS + 2))
    assert read_days(engine) == [(day(N_DAYS + 1), 6)]


def test_a_killed_run_leaves_whole_windows(engine: Engine) -> None:
    """Each window is deleted in a transaction of its own, which a kill undoes."""
    fill(engine)
    n_deleted = 0

    def kill(*arguments: Any) -> None:
        nonlocal n_deleted
        n_deleted += arguments[2].startswith("DELETE FROM release_window")
        if n_deleted == 3 and arguments[2].startswith("DELETE FROM block "):
            raise KeyboardInterrupt

    event.listen(engine, "before_cursor_execute", kill)
    with pytest.raises(KeyboardInterrupt):
        forget(engine, "small")
    event.remove(engine, "before_cursor_execute", kill)
    assert read_days(engine) == [(day(2), 6), (day(3), 6)]
    forget(engine, "small")
    assert count_rows(engine, "small") == {}


def test_retention_deletes_what_is_older(engine: Engine) -> None:
    """Windows before the retention of their metric are deleted.

    A metric without a retention keeps all windows.
    """
    fill(engine)
    metrics = [dataclasses.replace(SMALL, retention="2 weeks"), ACCEPTED.registry["page"]]
    assert forget_expired(engine, metrics, today=day(14)) == {}
    deleted = forget_expired(engine, metrics, today=day(16))
    assert deleted == {"small": Forgotten(blocks=4, reports=12)}
    assert read_days(engine) == [(day(2), 6), (day(3), 6)]
    assert forget_expired(engine, [SMALL], today=day(9999)) == {}


def test_a_stored_result_of_forgotten_days_is_not_found_again(engine: Engine) -> None:
    """The key of a result changes when windows are deleted, and not before."""
    fill(engine)
    query = RankingQuery(
        subject=Subject(metric=SMALL, source=None, error_control=ErrorControl()),
        range=Range(first=str(day(0)), last=str(day(3))),
        everything=False,
    )
    key = query.compute_key(engine)
    forget(engine, "small", before=day(0))
    assert query.compute_key(engine) == key
    forget(engine, "small", before=day(1))
    assert query.compute_key(engine) != key


@pytest.mark.slow
def test_a_restored_backup_has_the_forgotten_sums(engine: Engine, tmp_path: Path) -> None:
    """A backup contains sums that were forgotten after it was made.

    After a restoration, the next run of the retention deletes these sums again.
    """
    fill(engine)
    address = engine.url.render_as_string(hide_password=False)
    backup(address, tmp_path / "counts.bak")
    forget(engine, "small", before=day(3))
    restored = sqlite_url(tmp_path / "restored.sqlite3")
    restore(tmp_path / "counts.bak", restored)
    with open_database(restored) as other:
        assert read_days(other) == [(day(on), 6) for on in range(N_DAYS)]
        forget_expired(other, [dataclasses.replace(SMALL, retention="14 days")], today=day(17))
        assert read_days(other) == read_days(engine) == [(day(3), 6)]


@pytest.mark.slow
def test_commands_forget_and_name_lost_metrics(tmp_path: Path) -> None:
    """`check` names a metric that left the registry until `forget` has deleted its sums."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(
        '[budget]\ntotal = inf\n[metrics.other]\ndescription = "a"\nowner = "b"\n'
        'expires = 2100-01-01\nepoch = "quarter"\nencoding = "boolean"\nprofile = "strict"\n'
    )
    address = sqlite_url(tmp_path / "metrics.sqlite3")
    migrate(address)
    with open_database(address) as engine:
        fill(engine)
        lines = run_command("check", str(registry)).stdout.splitlines()
        lost = [line for line in lines if "rappor-server forget" in line]
        assert [line.split(":")[1].strip() for line in lost] == ["page", "small"]
        options = ("--registry", str(registry))
        before = run_command("forget", "small", "--before", str(day(2)), *options)
        assert before.stdout == "deleted 12 reports of small in 4 blocks and 0 counters\n"
        for name in ("small", "page"):
            assert run_command("forget", name, *options).returncode == 0
        assert list_stored_metrics(engine) == set()
    assert "rappor-server forget" not in run_command("check", str(registry)).stdout
    unknown = run_command("forget", "smal", *options)
    assert unknown.returncode == 2
    assert "METRIC must have counters or blocks, got smal" in unknown.stderr
