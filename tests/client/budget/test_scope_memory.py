"""Scopes of the client: which value each scope repeats, over restarts, registries and clocks.

A scope is one permanent response: of one metric in one epoch, under one parameter set. A scope
memoizes the first value and repeats its permanent response for later values. `build_metric` returns
the metric `page` for life with daily reports. The clock begins at noon of Wednesday, 2026-11-18.
"""

from __future__ import annotations

import dataclasses
import datetime

from days import record_days
from devices import CLEAR, Home, Opener, build_metric, compute_response, peek, read_secret
from rappor_client import Outcome
from rappor_client.testing import MemoryTransport

from rappor import Metric, Params

NOISY = dataclasses.replace(CLEAR, p=0.25, q=0.75)
"""Parameters that differ from `CLEAR` only in p and q, so both have equal permanent responses."""


def send_value(open_client: Opener, metric: Metric, value: str) -> list[bytes]:
    """Record a value, and return the bits of the reports that arrive on the next day."""
    transport = MemoryTransport()
    client = open_client(metric, collector=transport)
    record_days(client, "page", [value])
    assert client.flush()
    client.close()
    return [report.bits for report in transport.reports]


def test_clock_that_was_ahead_memoizes_no_later_epoch(home: Home) -> None:
    """After a clock was ten years ahead, each true epoch memoizes a value of its own."""
    metric = build_metric(params=CLEAR, epoch="month", expires=datetime.date(2099, 1, 1))
    home.clock.set("2036-11-18T00:00:00")
    send_value(home.open, metric, "wrong")
    for day, epoch in (("2026-11-18", "2026-11"), ("2026-12-01", "2026-12")):
        home.clock.set(f"{day}T00:00:00")
        sent_bits = send_value(home.open, metric, epoch)
        assert sent_bits == [compute_response(read_secret(home.folder), epoch, epoch=epoch)]


def test_metric_for_life_follows_a_change_of_p_and_q(home: Home) -> None:
    """A scope for life uses changed p and q at once, and repeats its permanent response."""
    client = home.open(build_metric(params=NOISY), collector=home.transport)
    record_days(client, "page", "abc")
    client.close()
    client = home.open(build_metric(params=CLEAR), collector=home.transport)
    record_days(client, "page", "b")
    reports = peek(home.folder).queued_reports
    fingerprints = [report.params for report in reports]
    before, after = (build_metric(params=params).fingerprint for params in (NOISY, CLEAR))
    assert fingerprints == [before] * 3 + [after]
    assert reports[-1].bits == compute_response(read_secret(home.folder), "a")
    assert client.privacy_spent().metrics["page"].scopes == 1


def test_epoch_keeps_its_p_and_q(home: Home) -> None:
    """The scope of an epoch keeps p and q of its first report until the epoch ends."""
    for params in (NOISY, CLEAR):
        client = home.open(build_metric(params=params, epoch="year"), collector=home.transport)
        record_days(client, "page", "a")
        assert client.flush()
        client.close()
    fingerprint = build_metric(params=NOISY, epoch="year").fingerprint
    assert [report.params for report in home.transport.reports] == [fingerprint] * 2


def test_metric_for_life_begins_a_scope_under_another_fingerprint(home: Home) -> None:
    """A metric for life with another number of bits begins a new scope for its next value.

    The permanent fingerprint contains k, so the old permanent response does not fit.
    """
    client = home.open(build_metric(params=CLEAR))
    record_days(client, "page", "a")
    client.close()
    client = home.open(build_metric(params=dataclasses.replace(CLEAR, k=64)))
    record_days(client, "page", "bab")
    assert client.privacy_spent().metrics["page"].scopes == 2


def test_pending_report_belongs_to_the_epoch_of_its_event(home: Home) -> None:
    """A pending report leaves in the epoch of its event, under the parameters of that epoch.

    The interval is decided in the next epoch and under a changed registry.
    """
    before = build_metric(params=CLEAR, epoch="quarter", interval="day")
    client = home.open(before)
    home.clock.set("2026-12-31T23:00:00")
    assert client.record("page", "a") == Outcome.RECORDED
    client.close()
    home.clock.set("2027-01-01T01:00:00")
    changed = build_metric(params=NOISY, epoch="quarter", interval="day")
    client = home.open(changed, collector=home.transport)
    assert client.record("page", "b") == Outcome.RECORDED
    assert client.flush()
    (report,) = home.transport.reports
    sent_bits = compute_response(read_secret(home.folder), "a", epoch="2026-Q4")
    assert (report.params, report.bits) == (before.fingerprint, sent_bits)
    (scope,) = peek(home.folder).scopes
    assert scope.epoch == "2026-Q4"


def test_values_without_a_category_are_reported_and_counted(home: Home) -> None:
    """A text that is no category leads to a report as any other value does.

    The counter `unfit` stays on the device.
    """
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.5, p=0.25, q=0.75)
    client = home.open(build_metric(params=params))
    record_days(client, "page", "azz")
    assert client.event_counts() == {"recorded": 3, "unfit": 2}


def test_epoch_keeps_its_interval(home: Home) -> None:
    """The scope of an epoch keeps the interval of its first report until the epoch ends."""
    weekly = build_metric(epoch="year", interval="week")
    daily = build_metric(epoch="year", interval="day")
    client = home.open(weekly)
    assert client.record("page", "a") == Outcome.RECORDED
    home.clock.advance(days=7)
    assert client.record("page", "a") == Outcome.RECORDED  # ends the first week
    client.close()
    client = home.open(daily)
    n_waiting = client.queued_count()
    # Under the weekly interval, four days from Wednesday 2026-11-25 on end no interval. A daily
    # interval would end four times.
    record_days(client, "page", "abab")
    assert client.queued_count() == n_waiting
    home.clock.set("2027-06-01T00:00:00")
    record_days(client, "page", "ab")
    # The report of the second week, and the reports of two days of the new epoch.
    assert client.queued_count() == n_waiting + 3
