"""The first days on which a metric is recorded and its report may leave, before it has happened.

Each test compares the predicted days with a device that records a value and flushes on every day.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from devices import Home, build_metric, write_device
from rappor_client import BudgetCap, Client, Outcome, SkipReason
from rappor_client.outbox.next_report import NextReport
from rappor_client.periods import day_of

from rappor import Metric, Params

ONCE = Params.profile("once")
SECRETS = [number.to_bytes(32, "big") for number in range(3)]
"""Secrets of devices. Each draws other days and other samples."""
START = datetime.date(2026, 11, 18)
"""The first day of every device is a Wednesday."""
OBSERVED_DAYS = 200
"""Number of days that a device is observed at most. Two quarters are shorter."""

METRICS = {
    "day": build_metric(epoch="quarter"),
    "week": build_metric(epoch="quarter", interval="week"),
    "month": build_metric(params=ONCE, epoch="month", interval="epoch"),
    "quarter": build_metric(params=ONCE, epoch="quarter", interval="epoch"),
    "sample": build_metric(params=ONCE, epoch="month", interval="epoch", sampling_rate=0.5),
}
"""Metrics with every interval, by name. Half of the devices are in the sample of `sample`."""


def observe(home: Home, client: Client, value: str = "vim") -> NextReport:
    """Record a value and flush at noon of each day, until a report has left; return both days."""
    recorded_from = None
    n_before = len(home.transport.bodies)
    for _ in range(OBSERVED_DAYS):
        day = day_of(home.clock())
        client.flush()
        if len(home.transport.bodies) > n_before:
            assert recorded_from is not None
            return NextReport(recorded_from, day)
        if client.record("page", value) == Outcome.RECORDED and recorded_from is None:
            recorded_from = day
        home.clock.advance(days=1)
    raise AssertionError("the device has sent nothing")


@pytest.mark.parametrize("secret", SECRETS, ids=["0", "1", "2"])
@pytest.mark.parametrize("name", METRICS)
def test_prediction_is_what_the_device_does(home: Home, name: str, secret: bytes) -> None:
    """A new device records and sends on the predicted days, and so it does after its first report.

    The second prediction of a metric with one report in an epoch is in another epoch.
    """
    write_device(home.folder, secret)
    client = home.open(METRICS[name], collector=home.transport)
    first = client.find_next_reports()["page"]
    assert first.recorded_from >= START
    assert observe(home, client) == first
    second = client.find_next_reports()["page"]
    assert second.leaves_from > first.leaves_from
    assert observe(home, client) == second


def test_prediction_writes_and_records_nothing(home: Home) -> None:
    """The prediction leaves the device as it is, also the counters and the log."""
    client = home.open(METRICS["quarter"], collector=home.transport)

    def read_files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in home.folder.rglob("*") if path.is_file()}

    before = read_files()
    assert client.find_next_reports()
    assert read_files() == before
    assert client.event_counts() == {}


@pytest.mark.parametrize(
    ("metric", "settings"),
    [
        (build_metric(epoch="year", expires=datetime.date(2026, 11, 17)), {}),
        (build_metric(epoch="year"), {"opted_out": {"page"}}),
        (build_metric(epoch="year"), {"consent": False}),
        # No year has room for the metric.
        (build_metric(epoch="month"), {"budget_cap": BudgetCap(total=1)}),
    ],
    ids=["expired", "opted out", "no consent", "no budget"],
)
def test_a_metric_that_never_reports_has_no_prediction(
    home: Home, metric: Metric, settings: dict[str, Any]
) -> None:
    """A metric that has ended, that the person refuses, or that has no budget is missing."""
    client = home.open(metric, **settings)
    assert client.find_next_reports() == {}
    assert client.record("page", "vim") == Outcome.SKIPPED


def test_a_stop_of_the_collector_is_waited_for(home: Home) -> None:
    """A stopped metric is recorded on the day after the last day of its stop."""
    client = home.open(METRICS["day"], collector=home.transport)
    client._stops.last_days = {"page": "2026-11-20"}
    assert client.record("page", "vim").reason is SkipReason.STOPPED
    expected = NextReport(datetime.date(2026, 11, 21), datetime.date(2026, 11, 22))
    assert client.find_next_reports() == {"page": expected}
