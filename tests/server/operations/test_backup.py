"""Backup and restore: a database that has rows, and reports that wait in a backup."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from collectors import (
    ACCEPTED,
    build_report,
    build_upload,
    close_days,
    commit,
    count_reports,
)
from rappor_server.base.errors import StoreError
from rappor_server.operations.backup import backup, restore
from rappor_server.releases.releases import read_release
from rappor_server.releases.warning_signs import Refusals, read_refusals
from rappor_server.storage.blocks import SET_ASIDE, rules_in_force
from rappor_server.storage.database import open_database, sqlite_url, utc_today
from rappor_server.storage.release_windows import record_rules
from sqlalchemy import Engine

SMALL = ACCEPTED.registry["small"]
"""A daily metric. A block needs two reports for each day, and a window five reports."""
DAY = datetime.timedelta(days=1)
ALL_DAYS = (datetime.date.min, datetime.date.max)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_refused_restore_says_how_to_go_on(engine: Engine, tmp_path: Path) -> None:
    """The refusal names every file to move away, and the option for another database.

    The collector has two SQLite files: counts and inbox. An operator who moved only the first file
    away would merge the old inbox into the restored counts. A second attempt would fail in the same
    way, so the error is not retryable.
    """
    address = engine.url.render_as_string()
    backup(address, tmp_path / "counts.bak")
    with pytest.raises(StoreError, match="name another database with --database, or move") as error:
        restore(tmp_path / "counts.bak", address, today=utc_today(), is_complete=True)
    file = engine.url.database
    assert str(error.value).endswith(f"or move {file} and {file}-inbox away")
    assert not error.value.retryable


@pytest.mark.parametrize(("days_later", "is_complete"), [(0, False), (1, False), (1, True)])
def test_a_restored_database_releases_no_window_twice(
    engine: Engine, tmp_path: Path, days_later: int, is_complete: bool
) -> None:
    """Reports that wait in a backup are set aside if the original may have released them since.

    The backup has a window of 6 reports of yesterday, a block of 2 reports that wait for a window,
    an open block of 1 report, and 5 reports of today. One more report comes after the backup. In
    the night, the original releases 2 + 5 + 1 reports. A restored database that released 2 + 5
    reports would show the last one to a reader of both. The reports of a trial, which has no
    minimum, stay.
    """
    today = utc_today()
    small, page = build_report("small", cohort=0), build_report("page")
    record_rules(engine, rules_in_force([ACCEPTED.registry], include_trials=True), today)
    commit(engine, build_upload(*[small] * 6), today=today - 3 * DAY)
    close_days(engine, SMALL, today - 2 * DAY)
    commit(engine, build_upload(*[small] * 2), today=today - 2 * DAY)
    close_days(engine, SMALL, today - DAY)
    commit(engine, build_upload(build_report("small", cohort=1)), today=today - DAY)
    close_days(engine, SMALL, today)
    commit(engine, build_upload(*[small] * 5, page), today=today)
    backup(engine.url.render_as_string(hide_password=False), tmp_path / "counts.bak")
    first = read_release(engine, SMALL, *ALL_DAYS)
    commit(engine, build_upload(small), today=today)
    close_days(engine, SMALL, today + DAY)
    released = read_release(engine, SMALL, *ALL_DAYS)
    assert (first.n_reports, released.n_reports) == (6, 6 + 2 + 6)
    restored = sqlite_url(tmp_path / "restored.sqlite3")
    restored_on = today + days_later * DAY
    n_set_aside = restore(
        tmp_path / "counts.bak", restored, today=restored_on, is_complete=is_complete
    )
    has_lost = bool(days_later) and not is_complete
    assert n_set_aside == (2 + 1 + 5 if has_lost else 0)
    with open_database(restored) as copy:
        assert read_refusals(copy) == (
            [Refusals(restored_on, "small", SET_ASIDE, 8)] if has_lost else []
        )
        assert read_release(copy, SMALL, *ALL_DAYS).days == first.days
        commit(copy, build_upload(*[small] * 7), today=restored_on)
        close_days(copy, SMALL, restored_on + DAY)
        windows = [day.reports for day in read_release(copy, SMALL, *ALL_DAYS).days]
        assert windows == ([6, 7] if has_lost else [6, 7 + 7] if days_later == 0 else [6, 7, 7])
        assert count_reports(copy) == 1
