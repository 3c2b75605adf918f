"""Forgetting: deletion of the counters, blocks and whole release windows of a metric."""

from __future__ import annotations

import dataclasses
import datetime
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    append,
    build_report,
    build_upload,
    call_command,
    close_days,
    commit,
    day,
    parse_submission,
)
from databases import ON_BOTH_DATABASES
from rappor_server.operations.backup import backup, restore
from rappor_server.operations.retention import forget_expired, forget_metric
from rappor_server.queries.page_queries import RankingQuery
from rappor_server.queries.query import Range, Subject
from rappor_server.releases import releases
from rappor_server.releases.overviews import read_overviews
from rappor_server.storage import schema
from rappor_server.storage.database import open_database, sqlite_url, utc_today
from rappor_server.storage.forgetting import (
    Forgotten,
    find_first_whole_day,
    forget,
    list_stored_metrics,
)
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, event, func, select

from rappor.estimator.error_control import ErrorControl

SMALL = ACCEPTED.registry["small"]
"""A daily metric. A window has five reports, and a block two reports for each of its days."""
ALL_DAYS = (datetime.date.min, datetime.date.max)
N_DAYS = 4


def fill(engine: Engine) -> None:
    """Store windows, a waiting block and a counter of `small`, and one report of `page` a day.

    Each of four days has a window of six reports, in the blocks of two cohorts. The waiting block
    has one report of day 2, in a third cohort. The counter has one report of day 4.
    """
    for on in range(N_DAYS):
        reports = [build_report("small", bits=on, cohort=j % 2) for j in range(6)]
        commit(engine, build_upload(*reports, build_report("page")), today=day(on))
    commit(engine, build_upload(build_report("small", cohort=3)), today=day(2))
    close_days(engine, SMALL, day(N_DAYS))
    commit(engine, build_upload(build_report("small")), today=day(N_DAYS))


def read_days(engine: Engine) -> list[tuple[datetime.date, int]]:
    """Return the windows of the metric, and check that the overview has the same numbers."""
    release = releases.read_release(engine, SMALL, *ALL_DAYS)
    (overview,) = read_overviews(engine, [SMALL])
    assert overview.days == release.days
    assert [cohorts.reports.tolist() for cohorts in overview.cohorts] == [
        counts.cohort_reports.tolist() for counts in release.collections
    ]
    return [(day_reports.day, day_reports.reports) for day_reports in release.days]


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
    """Windows before a day are deleted. Later windows, waiting reports and other metrics stay."""
    fill(engine)
    release = releases.read_release(engine, SMALL, day(2), day(3))
    assert forget_metric(engine, "small", before=day(2)) == Forgotten(blocks=4, reports=12)
    assert read_days(engine) == [(day(2), 6), (day(3), 6)]
    assert releases.read_release(engine, SMALL, day(2), day(3)) == release
    assert forget_metric(engine, "small", before=day(2)) == Forgotten()
    assert find_first_whole_day(engine, "small") == day(2)
    assert forget_metric(engine, "small", before=day(N_DAYS)) == Forgotten(blocks=5, reports=13)
    assert read_days(engine) == []
    assert count_rows(engine, "small") == {"blocked": 1, "rate_in_force": 1, "tally": 1}
    assert releases.read_release(engine, ACCEPTED.registry["page"], *ALL_DAYS).n_reports == N_DAYS


def test_the_first_whole_day_never_becomes_earlier(engine: Engine) -> None:
    """The first whole day follows a window, a waiting block or a counter that was deleted.

    A deletion before an earlier day does not change it, even if late reports are deleted. After
    everything was deleted, the metric begins anew.
    """
    fill(engine)
    days = []
    # Two windows, then a late counter, a window with a waiting block, and the newest counter.
    for before in (0, 2, 1, 3, 5):
        if before == 1:
            commit(engine, build_upload(build_report("small")), today=day(0))
        is_anything_deleted = forget(engine, "small", before=day(before)) != Forgotten()
        assert is_anything_deleted == (before > 0)
        days.append(find_first_whole_day(engine, "small"))
    assert days == [datetime.date.min, day(2), day(2), day(3), day(5)]
    forget(engine, "small")
    assert find_first_whole_day(engine, "small") == datetime.date.min


def test_a_window_across_the_day_stays_whole(engine: Engine) -> None:
    """A window that is dated on the day stays with its blocks of earlier days.

    Each day has three reports, and a window needs five. So the window of day 1 has the blocks of
    the days 0 and 1. Without the block of day 0, three reports would be shown. The block of day 2
    waits for a window, and is deleted if it ends before the day.
    """
    for on in range(3):
        commit(engine, build_upload(*[build_report("small")] * 3), today=day(on))
    close_days(engine, SMALL, day(3))
    assert read_days(engine) == [(day(1), 6)]
    assert forget_metric(engine, "small", before=day(1)) == Forgotten()
    assert read_days(engine) == [(day(1), 6)]
    assert forget_metric(engine, "small", before=day(2)) == Forgotten(blocks=2, reports=6)
    assert forget_metric(engine, "small", before=day(3)) == Forgotten(blocks=1, reports=3)
    assert read_days(engine) == []


@ON_BOTH_DATABASES
def test_a_window_that_is_formed_meanwhile_is_forgotten(engine: Engine) -> None:
    """Another process forms a window after `forget` has listed the windows.

    The window would stay without the numbers of its cohorts.
    """
    commit(engine, build_upload(*[build_report("small")] * 6), today=day(0))
    with open_database(engine.url.render_as_string(hide_password=False)) as second_engine:
        # The first connection that is given back has listed the windows.
        event.listen(
            engine, "checkin", lambda *_: close_days(second_engine, SMALL, day(1)), once=True
        )
        assert forget(engine, "small") == Forgotten(blocks=1, reports=6)
    assert count_rows(engine, "small") == {"rate_in_force": 1}


@ON_BOTH_DATABASES
def test_everything_of_a_metric_is_forgotten(engine: Engine) -> None:
    """Without a day, all sums of the metric and its reports in the inbox are deleted.

    Later reports are counted and released as before. The sampling rate stays, because it is still
    in force.
    """
    fill(engine)
    append(engine, [parse_submission(build_upload(build_report("small")))])
    assert list_stored_metrics(engine) == {"page", "small"}
    assert forget_metric(engine, "small").reports == 6 * N_DAYS + 3
    assert count_rows(engine, "small") == {"rate_in_force": 1}
    assert list_stored_metrics(engine) == {"page"}
    commit(engine, build_upload(*[build_report("small")] * 6), today=day(N_DAYS + 1))
    close_days(engine, SMALL, day(N_DAYS + 2))
    assert read_days(engine) == [(day(N_DAYS + 1), 6)]


@ON_BOTH_DATABASES
def test_a_killed_run_leaves_whole_windows(engine: Engine) -> None:
    """A killed run leaves whole windows, because each window is deleted in one transaction.

    The run is killed within the transaction of the third window: the row of the window is deleted,
    and its blocks are not. The next run deletes the remaining windows.
    """
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
    # The week or month of the remaining windows has lost reports.
    assert find_first_whole_day(engine, "small") == day(N_DAYS)
    forget(engine, "small")
    assert count_rows(engine, "small") == {"rate_in_force": 1}


def test_windows_older_than_the_retention_are_deleted(engine: Engine) -> None:
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
    # This retention begins before the year 1.
    longest = [dataclasses.replace(SMALL, retention="9999 years")]
    assert forget_expired(engine, longest, today=day(9999)) == {}


@ON_BOTH_DATABASES
def test_a_stored_result_of_forgotten_days_is_not_found_again(engine: Engine) -> None:
    """The key of a result changes when windows are deleted, and not before."""
    fill(engine)
    query = RankingQuery(
        subject=Subject(metric=SMALL, source=None, error_control=ErrorControl()),
        range=Range(first=str(day(0)), last=str(day(3))),
        include_all=False,
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
    restore(tmp_path / "counts.bak", restored, today=utc_today(), is_complete=True)
    with open_database(restored) as restored_engine:
        assert read_days(restored_engine) == [(day(on), 6) for on in range(N_DAYS)]
        forget_expired(
            restored_engine, [dataclasses.replace(SMALL, retention="14 days")], today=day(17)
        )
        assert read_days(restored_engine) == read_days(engine) == [(day(3), 6)]


@pytest.mark.slow
def test_commands_forget_and_name_lost_metrics(tmp_path: Path) -> None:
    """`check` names a metric that left the registry until `forget` has deleted its sums.

    A metric whose reports are all in the inbox is known. `check` finds the database beside the
    registry, and by the file of settings.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(
        '[budget]\ntotal = inf\n[metrics.other]\ndescription = "a"\nowner = "b"\n'
        'expires = 2100-01-01\nepoch = "quarter"\nencoding = "boolean"\nprofile = "strict"\n'
    )
    address = sqlite_url(tmp_path / "metrics.sqlite3")
    migrate(address)
    options = ("--registry", str(registry))
    with open_database(address) as engine:
        append(engine, [parse_submission(build_upload(build_report("page")))])
        first_run = call_command("forget", "page", "--before", str(day(0)), *options)
        assert first_run.stdout == "deleted 0 reports of page in 0 blocks and 0 counters\n"
        fill(engine)
        lines = call_command("check", str(registry)).stdout.splitlines()
        lost = [line for line in lines if "rappor-server forget" in line]
        assert [line.split(":")[1].strip() for line in lost] == ["page", "small"]
        # An installed collector has its registry and its database in different folders, and a file
        # of settings names both.
        edited = tmp_path / "edit" / "metrics.toml"
        edited.parent.mkdir()
        shutil.copy(registry, edited)
        assert "rappor-server forget" not in call_command("check", str(edited)).stdout
        for settings in (f'database = "{address}"\n', f'registry = "{registry}"\n'):
            config = tmp_path / "server.toml"
            config.write_text(settings)
            named = call_command("check", str(edited), RAPPOR_SERVER_CONFIG=str(config))
            assert [line for line in named.stdout.splitlines() if line in lost] == lost
        before = call_command("forget", "small", "--before", str(day(2)), *options)
        assert before.stdout == "deleted 12 reports of small in 4 blocks and 0 counters\n"
        for name in ("small", "page"):
            assert call_command("forget", name, *options).returncode == 0
        assert list_stored_metrics(engine) == set()
    assert "rappor-server forget" not in call_command("check", str(registry)).stdout
    unknown = call_command("forget", "smal", *options)
    assert unknown.returncode == 2
    assert "METRIC must have counters or blocks, got smal" in unknown.stderr


@pytest.mark.parametrize(
    ("expires", "words", "is_told"),
    [
        ("2100-01-01", (), True),
        ("2100-01-01", ("--before", str(day(2))), False),
        # The day has passed, so the collector accepts no report any more.
        ("2020-01-01", (), False),
        # The registry is invalid. The sums are deleted all the same.
        ("soon", (), False),
    ],
)
def test_forgetting_a_collected_metric_says_that_the_collection_goes_on(
    expires: str, words: tuple[str, ...], is_told: bool, tmp_path: Path
) -> None:
    """After `forget` has deleted all days of a metric that is still collected, it says so.

    Somebody who deletes a metric may expect that nothing is collected any more.
    """
    registry = tmp_path / "metrics.toml"
    registry.write_text(
        '[budget]\ntotal = inf\n[metrics.small]\ndescription = "a"\nowner = "b"\n'
        f'expires = {expires}\nepoch = "quarter"\nencoding = "boolean"\nprofile = "strict"\n'
    )
    address = sqlite_url(tmp_path / "metrics.sqlite3")
    migrate(address)
    with open_database(address) as engine:
        fill(engine)
    result = call_command("forget", "small", *words, "--registry", str(registry))
    assert result.returncode == 0
    first, *others = result.stdout.splitlines()
    assert re.fullmatch("deleted [1-9][0-9]* reports of small in .*", first)
    sentence = "small is still collected until 2100-01-01, and new reports are counted"
    assert [line.split(";")[0] for line in others] == [sentence] * is_told
