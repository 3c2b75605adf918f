"""Gauges of one process for Prometheus."""

from __future__ import annotations

import time

from rappor_server.operations.prometheus import Metrics


def read_gauges(metrics: Metrics) -> dict[str, float]:
    """Return the values of all samples of a scrape that have no labels, by name."""
    lines = metrics.render().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.count(" ") == 1}


def test_the_time_of_the_last_commit_is_rounded_to_a_minute() -> None:
    """The gauge of the last commit shows the minute, not the second.

    A commit follows an upload at once. On a quiet collector, an exact time would be the time at
    which one device sent its upload, for everybody who may read the gauges.
    """
    metrics = Metrics(lambda: 0)
    before = time.time()
    metrics.observe_commit(0.01, [])
    commit_timestamp = read_gauges(metrics)["rappor_last_commit_timestamp_seconds"]
    assert commit_timestamp % 60 == 0
    assert before - 60 < commit_timestamp <= time.time()


def test_gauges_show_how_long_maintenance_is_stuck() -> None:
    """The gauges of unclosed days and overdue deduplication keys exist from the start.

    An alert on a gauge that does not exist never fires. Both are 0 until the first maintenance, and
    then show the days that maintenance has still to do.
    """
    metrics = Metrics(lambda: 0)
    names = ("rappor_unclosed_days", "rappor_overdue_key_days")
    assert [read_gauges(metrics)[name] for name in names] == [0, 0]
    metrics.show_maintenance(unclosed_days=3, overdue_key_days=5)
    assert [read_gauges(metrics)[name] for name in names] == [3, 5]
