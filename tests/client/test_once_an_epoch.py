"""interval = "epoch": one report from the day on that the secret draws, and then no other."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from devices import BOOLEAN, Opener, lose, metric_of, secret_of
from rappor_client import Client, Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric, MetricError, Params, Registry, epsilon_1
from rappor.protocol.randomizer import drawn_day

ONCE = Params.profile("once")
START = "2026-10-01T12:00:00"
DAYS = 92


def once(params: Params = ONCE, **fields: Any) -> Metric:
    return metric_of(params=params, **{"epoch": "quarter", "interval": "epoch"} | fields)


class Quarter:
    """A device that records a value each day of a quarter, in some way."""

    def __init__(self, opener: Opener, clock: FixedClock, base: Path, name: str) -> None:
        self.opener, self.clock, self.folder = opener, clock, base / name
        self.transport = MemoryTransport()
        self.clock.set(START)
        self.client = self.open(once())

    def open(self, *metrics: Metric) -> Client:
        """Open the device."""
        settings: dict[str, Any] = {"transport": self.transport, "folder": self.folder.name}
        return self.opener(*metrics, **settings)

    @property
    def drawn(self) -> int:
        """The day that its secret draws."""
        return drawn_day(secret_of(self.folder), "page", "2026-Q4", ONCE, DAYS)

    def live(self, days: range) -> list[Outcome]:
        """Record a value on each of these days of the quarter, and send what may go."""
        told = []
        for day in days:
            self.clock.set(START)
            self.clock.advance(days=day)
            told.append(self.client.record("page", f"value of day {day}"))
            self.client.flush()
        return told


@pytest.fixture
def quarter(open_client: Opener, clock: FixedClock, tmp_path: Path) -> Quarter:
    return Quarter(open_client, clock, tmp_path, "device")


def test_one_report_from_the_drawn_day_on(quarter: Quarter) -> None:
    """Nothing before it, one on it that leaves on the next day, and nothing after it."""
    told = quarter.live(range(DAYS))
    drawn = quarter.drawn
    held = [Outcome.HELD] * (drawn < DAYS)
    assert told == [*[Outcome.SILENT] * drawn, *held, *[Outcome.CLOSED] * (DAYS - 1 - drawn)]
    quarter.clock.set("2027-01-03T12:00:00")
    quarter.client.flush()
    assert len(quarter.transport.reports) == 1
    assert quarter.client.spent().nats == pytest.approx(epsilon_1(ONCE))


def test_who_comes_late_answers_on_the_first_day(quarter: Quarter) -> None:
    """From the drawn day on, the first day with an event is the one."""
    quarter.live(range(1))
    late = quarter.drawn + 1
    assert quarter.live(range(late, min(late + 3, DAYS)))[:1] == [Outcome.HELD]


def test_one_event_of_the_day_is_chosen(quarter: Quarter) -> None:
    """Others of that day take part in the choice; those of the next day do not."""
    quarter.live(range(1))
    day = quarter.drawn
    assert quarter.live(range(day, day + 1)) == [Outcome.HELD]
    quarter.clock.advance(hours=3)
    assert quarter.client.record("page", "another") is Outcome.HELD
    quarter.clock.advance(days=1)
    assert quarter.client.record("page", "later") is Outcome.CLOSED


@pytest.mark.parametrize(
    "later",
    [{"interval": "day"}, {"interval": "none"}, {"params": dataclasses.replace(ONCE, p=0.1)}],
)
@pytest.mark.parametrize("is_lost", [False, True])
def test_no_registry_opens_it_again(quarter: Quarter, later: dict[str, Any], is_lost: bool) -> None:
    """Nor a lost database, nor a clock that is set back; the next epoch is another one."""
    quarter.live(range(1))
    quarter.live(range(quarter.drawn, min(quarter.drawn + 3, DAYS)))
    quarter.clock.set("2026-12-31T23:00:00")
    quarter.client.flush()
    quarter.client.close()
    if is_lost:
        lose(quarter.folder)
    quarter.client = quarter.open(once(**later))
    for moment in ("2026-12-31T23:30:00", "2026-11-15T00:00:00", "2026-10-02T00:00:00"):
        quarter.clock.set(moment)
        assert not quarter.client.record("page", "again") or is_lost
        quarter.clock.advance(days=2)
        quarter.client.flush()
    quarter.clock.set("2027-01-05T12:00:00")
    quarter.client.flush()
    patterns = {report.params for report in quarter.transport.reports}
    assert len(patterns) <= 1
    assert len(quarter.transport.reports) <= 1


def test_its_price_is_that_of_one_report() -> None:
    """In the registry's budget, for any epoch that ends."""
    balanced = Params.profile("balanced")
    for epoch, scopes in (("year", 1), ("quarter", 4), ("month", 12)):
        metric = once(balanced, epoch=epoch)
        Registry([metric], total=2.0 * scopes)
        with pytest.raises(MetricError, match="total must be at least"):
            Registry([metric], total=2.0 * scopes - 0.01)


@pytest.mark.parametrize("fields", [{"epoch": "life"}, {"patterns": 2}])
def test_it_needs_an_epoch_that_ends_and_one_pattern(fields: dict[str, Any]) -> None:
    """One sentence names both."""
    with pytest.raises(MetricError, match="interval = 'epoch' needs an epoch that ends and patter"):
        once(BOOLEAN, **fields)


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ("profile = 'once'", "profile = 'once'"),
        ("k = 128\nm = 128\nf = 0.5\ng = 0.1\np = 0\nq = 1", "p = 0 with q = 1"),
    ],
)
def test_a_bare_permanent_response_is_for_it(noise: str, said: str) -> None:
    """A daily metric would send the permanent response itself every day."""
    text = (
        "[budget]\ntotal = 100\n[metrics.page]\ndescription = 'a'\nowner = 'b'\n"
        f"expires = 2099-12-31\nepoch = 'month'\nencoding = 'bloom'\n{noise}\n"
    )
    with pytest.raises(MetricError, match=f"{said} needs interval = 'epoch'"):
        Registry.loads(text)
    for allowed in ("interval = 'epoch'\n", "insecure = true\n"):
        metric = Registry.loads(text + allowed, today=datetime.date(2026, 1, 1))["page"]
        assert metric.params.is_bare
