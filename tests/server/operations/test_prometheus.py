"""Gauges of one process for Prometheus."""

from __future__ import annotations

import time

from rappor_server.operations.prometheus import Metrics


def read(metrics: Metrics) -> dict[str, float]:
    """Return the values of the samples without labels."""
    lines = metrics.render().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.count(" ") == 1}


def test_the_time_of_the_last_commit_is_a_minute() -> None:
    """A scrape does not show when a device sent an upload."""
    metrics = Metrics(lambda: 0)
    before = time.time()
    metrics.observe_commit(0.01, [])
    shown = read(metrics)["rappor_last_commit_timestamp_seconds"]
    assert shown % 60 == 0
    assert before - 60 < shown <= time.time()


def test_gauges_show_how_long_maintenance_is_stuck() -> None:
    """Both gauges exist from the start, with the value 0."""
    metrics = Metrics(lambda: 0)
    names = ("rappor_unclosed_days", "rappor_overdue_key_days")
    assert [read(metrics)[name] for name in names] == [0, 0]
    metrics.show_maintenance(3, 5)
    assert [read(metrics)[name] for name in names] == [3, 5]
