"""Which value a scope reports, on the real client: restarts, changed registries, clocks."""

from __future__ import annotations

import dataclasses
import datetime

from days import record_days
from devices import CLEAR, Home, Opener, metric_of, peek, response_of, secret_of
from rappor_client import Outcome
from rappor_client.testing import MemoryTransport

from rappor import Metric, Params

NOISY = dataclasses.replace(CLEAR, p=0.25, q=0.75)


def bits_of(open_client: Opener, metric: Metric, value: str) -> list[bytes]:
    """Record a value; return the bits of the reports that arrive on the next day."""
    transport = MemoryTransport()
    client = open_client(metric, collector=transport)
    record_days(client, "page", [value])
    assert client.flush()
    client.close()
    return [report.bits for report in transport.reports]


def test_clock_that_was_wrong_freezes_no_epoch(home: Home) -> None:
    """After a boot ten years ahead, the true epochs answer for their own values."""
    metric = metric_of(params=CLEAR, epoch="month", expires=datetime.date(2099, 1, 1))
    home.clock.set("2036-11-18T00:00:00")
    bits_of(home.open, metric, "wrong")
    for day, epoch in (("2026-11-18", "2026-11"), ("2026-12-01", "2026-12")):
        home.clock.set(f"{day}T00:00:00")
        shown = bits_of(home.open, metric, epoch)
        assert shown == [response_of(secret_of(home.folder), epoch, epoch=epoch)]


def test_metric_for_life_follows_a_change_of_p_and_q(home: Home) -> None:
    """Its permanent responses are the same: the scope stays memoized."""
    client = home.open(metric_of(params=NOISY), collector=home.transport)
    record_days(client, "page", "abc")
    client.close()
    client = home.open(metric_of(params=CLEAR), collector=home.transport)
    record_days(client, "page", "b")
    reports = peek(home.folder).queued_reports
    fingerprints = [report.params for report in reports]
    before, after = (metric_of(params=params).fingerprint for params in (NOISY, CLEAR))
    assert fingerprints == [before] * 3 + [after]
    assert reports[-1].bits == response_of(secret_of(home.folder), "a")
    assert client.privacy_spent().metrics["page"].scopes == 1


def test_epoch_keeps_its_p_and_q(home: Home) -> None:
    """Other noise waits for the next epoch, for a value that repeats as well."""
    for params in (NOISY, CLEAR):
        client = home.open(metric_of(params=params, epoch="year"), collector=home.transport)
        record_days(client, "page", "a")
        assert client.flush()
        client.close()
    kept = metric_of(params=NOISY, epoch="year").fingerprint
    assert [report.params for report in home.transport.reports] == [kept] * 2


def test_metric_for_life_draws_anew_under_another_response(home: Home) -> None:
    """Any other change begins a scope, which answers for its own first value."""
    client = home.open(metric_of(params=CLEAR))
    record_days(client, "page", "a")
    client.close()
    client = home.open(metric_of(params=dataclasses.replace(CLEAR, k=64)))
    record_days(client, "page", "bab")
    assert client.privacy_spent().metrics["page"].scopes == 2


def test_held_report_goes_under_the_scope_that_it_was_prepared_in(home: Home) -> None:
    """Released in the next epoch and under a changed registry, it is charged to its own."""
    before = metric_of(params=CLEAR, epoch="quarter", interval="day")
    client = home.open(before)
    home.clock.set("2026-12-31T23:00:00")
    assert client.record("page", "a") == Outcome.RECORDED
    client.close()
    home.clock.set("2027-01-01T01:00:00")
    changed = metric_of(params=NOISY, epoch="quarter", interval="day")
    client = home.open(changed, collector=home.transport)
    assert client.record("page", "b") == Outcome.RECORDED
    assert client.flush()
    (report,) = home.transport.reports
    shown = response_of(secret_of(home.folder), "a", epoch="2026-Q4")
    assert (report.params, report.bits) == (before.fingerprint, shown)
    (scope,) = peek(home.folder).scopes
    assert scope.epoch == "2026-Q4"


def test_values_that_fit_nowhere_are_reported_and_counted(home: Home) -> None:
    """A report leaves as for any other value; the count stays on the device."""
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.5, p=0.25, q=0.75)
    client = home.open(metric_of(params=params))
    record_days(client, "page", "azz")
    assert client.event_counts() == {"recorded": 3, "unfit": 2}


def test_epoch_keeps_its_interval(home: Home) -> None:
    """More reports wait for the next epoch, as other noise does."""
    rare = metric_of(epoch="year", interval="week")
    often = metric_of(epoch="year", interval="day")
    client = home.open(rare)
    assert client.record("page", "a") == Outcome.RECORDED
    home.clock.advance(days=7)
    assert client.record("page", "a") == Outcome.RECORDED  # the first week's report is settled
    client.close()
    client = home.open(often)
    n_waiting = client.queued_count()
    record_days(client, "page", "abab")  # from Wednesday on
    assert client.queued_count() == n_waiting
    home.clock.set("2027-06-01T00:00:00")
    record_days(client, "page", "ab")
    assert client.queued_count() == n_waiting + 3  # with that of the second week
