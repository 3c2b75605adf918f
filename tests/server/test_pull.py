"""From a collector to an analyst: `rappor.CollectorClient` and `rappor pull`."""

from __future__ import annotations

import datetime
import functools
import operator
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from collectors import Running, build_report, build_upload, commit, make_token, run_file_collector
from programs import run_python
from rappor_server.storage.database import open_database

from rappor import CollectorClient, Counts, decode
from rappor.base.errors import CollectorError
from rappor.counts.released_counts import ReleasedCounts

DAYS = tuple(datetime.date(2026, 11, day) for day in (2, 3, 9))
"""Days on which the collector has reports: two of one week, and one of the next week."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector with forty reports of three days."""
    with run_file_collector(tmp_path_factory.mktemp("pull"), "--suspicious", "accept") as collector:
        with open_database(collector.database) as engine:
            for day, n in zip(DAYS, (10, 20, 10), strict=True):
                commit(
                    engine, build_upload(*[build_report(cohort=i % 4) for i in range(n)]), today=day
                )
        yield collector


@pytest.fixture(scope="module")
def token(running: Running) -> str:
    """A read token for one metric."""
    return make_token(running.database, "page")


def add_counts(collections: Sequence[Counts]) -> Counts:
    """Add collections of one parameter set."""
    return functools.reduce(operator.add, collections)


@pytest.mark.slow
def test_client_reads_counts_metrics_and_estimates(running: Running, token: str) -> None:
    """Counts by day and by week have the same sums. Estimates equal those of the collector."""
    collector = CollectorClient(running.admin_url, token)
    by_day = collector.counts("page", DAYS[0], DAYS[-1], by="day")
    by_week = collector.counts("page", DAYS[0], DAYS[-1], by="week")
    in_one_period = collector.counts("page")
    assert [(period.first, period.n_reports) for period in by_day.periods] == [
        (DAYS[0], 10),
        (DAYS[1], 20),
        (DAYS[2], 10),
    ]
    assert [period.n_reports for period in by_week.periods] == [30, 10]
    counts = [
        add_counts(by_day.collections),
        add_counts(by_week.collections),
        in_one_period.collections[0],
    ]
    for collection in counts[:2]:
        assert (collection.bit_counts == counts[2].bit_counts).all()
        assert (collection.cohort_reports == counts[2].cohort_reports).all()
    # Added periods are assumed to have the same devices, so their bound on the squared reports is
    # larger than the bound that the collector computes for the whole range.
    squares = [collection.sum_squared_reports or 0 for collection in counts]
    assert squares == sorted(squares, reverse=True)
    assert squares[2] >= 40
    (metric,) = collector.metrics()
    assert (metric.name, metric.n_reports) == ("page", 40)
    collector_estimates = collector.estimates("page", ["a", "b"])
    local_estimates = decode(by_day.collections, ["a", "b"]).to_dict()
    for expected_row, row in zip(
        local_estimates["estimates"], collector_estimates["estimates"], strict=True
    ):
        assert row == pytest.approx(expected_row)
    assert collector.estimates("page")["reports"] == 40


@pytest.mark.slow
def test_error_has_the_message_of_the_collector(running: Running, token: str) -> None:
    """The cases are a forbidden metric, days in the wrong order, and an invalid token."""
    collector = CollectorClient(running.admin_url, token)
    with pytest.raises(CollectorError, match="the token does not allow this metric") as caught:
        collector.counts("sound")
    assert caught.value.status == 403
    with pytest.raises(CollectorError, match="from must be a day no later than to"):
        collector.counts("page", DAYS[1], DAYS[0])
    with pytest.raises(CollectorError, match="neither expired nor revoked"):
        CollectorClient(running.admin_url, "nobody").metrics()


def pull(
    running: Running, token: str, *words: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `rappor pull` with the token in the environment."""
    program = "import sys; from rappor.cli import main; sys.exit(main())"
    words = ("-c", program, "pull", running.admin_url, *words)
    return run_python(*words, code=code, RAPPOR_TOKEN=token)


@pytest.mark.slow
def test_pull_writes_a_counts_file(running: Running, token: str, tmp_path: Path) -> None:
    """The command prints each day, and `Counts.load` reads the file."""
    path = tmp_path / "november.json"
    result = pull(running, token, "page", "--to", "2026-11-05", "--by", "day", "--out", str(path))
    assert [line.split() for line in result.stdout.splitlines()[1:3]] == [
        ["2026-11-02", "10"],
        ["2026-11-03", "20"],
    ]
    assert [counts.n_reports for counts in Counts.load_all(path)] == [10, 20]
    assert ReleasedCounts.load(path).last == datetime.date(2026, 11, 5)


@pytest.mark.slow
def test_pull_without_counts_writes_no_file(running: Running, token: str, tmp_path: Path) -> None:
    """Days without reports and a forbidden metric give exit code 1 and one sentence."""
    path = tmp_path / "none.json"
    empty = pull(running, token, "page", "--from", "2026-12-01", "--out", str(path), code=1)
    refused = pull(running, token, "sound", "--out", str(path), code=1)
    assert "releases no reports of page on these days" in empty.stderr
    assert "when at least `min_reports` reports of the metric wait" in empty.stderr
    assert "responded 403" in refused.stderr
    assert not path.exists()
    assert token not in empty.stderr + refused.stderr
