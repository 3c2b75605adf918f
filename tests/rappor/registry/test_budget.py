"""The budget: the reservations of a calendar year, and registries that exceed the total."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import pytest
from registries import entry_of, metric_of

from rappor.base.errors import MetricError, RapporError
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.registry.budget import most_reports, reserve, scope_cost, scope_identity
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

NOISE = Params(k=64, h=2, m=8, f=0.5, p=0.25, q=0.75)
BARE = Params(k=1, encoding="boolean", f=0, p=0.25, q=0.75)


def make_metric(params: Params | None = None, **changes: Any) -> Metric:
    """Return a metric with quarters as epochs."""
    return metric_of(params or Params.profile("balanced"), **{"epoch": "quarter"} | changes)


@pytest.mark.parametrize(
    ("epoch", "interval", "n"),
    [
        ("life", "day", None),
        ("year", "epoch", 1),
        ("month", "week", 6),
        ("month", "day", 31),
        ("quarter", "day", 92),
    ],
)
def test_epoch_and_interval_bound_the_reports(epoch: str, interval: str, n: int | None) -> None:
    """The bound is that of the longest epoch. A metric for life has no bound."""
    assert most_reports(make_metric(epoch=epoch, interval=interval)) == n


@pytest.mark.slow
@pytest.mark.parametrize("epoch", ["month", "quarter", "year"])
def test_no_epoch_touches_more_weeks(epoch: str) -> None:
    """The bound equals a count over 28 years, after which the calendar repeats."""
    first = datetime.date(2000, 1, 1)
    touched: dict[str, set[tuple[int, int]]] = {}
    for n in range(28 * 366):
        day = first + datetime.timedelta(days=n)
        week = day.isocalendar()
        touched.setdefault(make_metric(epoch=epoch).epoch_at(day), set()).add(
            (week.year, week.week)
        )
    most = most_reports(make_metric(epoch=epoch, interval="week"))
    assert max(map(len, touched.values())) == most


def test_a_cost_is_the_loss_of_one_scope() -> None:
    """The cost is rounded up to a thousandth of a nat.

    A metric for life has one scope in every year.
    """
    params = Params(k=64, h=2, m=8, f=0.3, p=0.2, q=0.7)
    weekly = make_metric(params, epoch="month", interval="week")
    assert 0 <= scope_cost(weekly) - epsilon_n(params, 6) < 0.001
    assert 0 <= scope_cost(make_metric(params, epoch="life")) - epsilon_inf(params) < 0.001
    assert reserve(make_metric(params, epoch="life")).scopes == 1


def test_without_permanent_noise_the_calendar_must_bound_the_reports() -> None:
    """With f = 0 a metric has a finite cost only if its epoch ends."""
    assert scope_cost(make_metric(BARE, epoch="month", interval="week")) == pytest.approx(
        6 * math.log(3), abs=0.001
    )
    metric = make_metric(BARE, epoch="life", interval="week")
    assert scope_cost(metric) == math.inf
    with pytest.raises(MetricError, match="a limit needs a bounded number of reports"):
        Registry([metric], total=1e6)
    assert len(Registry([metric], total=math.inf)) == 1


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"interval": "week"}, True),
        ({"params": dataclasses.replace(NOISE, p=0.2, q=0.7)}, True),
        ({"params": dataclasses.replace(NOISE, f=0.25)}, False),
        ({"epoch": "month"}, False),
        ({"parts": ()}, False),
        ({"parts": (Part("prefix:2", 0.2), Part("prefix:4", 0.2), Part("whole"))}, False),
    ],
)
def test_scopes_are_named_by_epoch_and_permanent_noise(changed: dict[str, Any], same: bool) -> None:
    """The identity contains the permanent noise of every part.

    A device whose scopes have another identity pays anew.
    """
    metric = make_metric(NOISE, parts=(Part("prefix:2", 0.2), Part("whole")))
    assert (
        scope_identity(dataclasses.replace(metric, **changed)) == scope_identity(metric)
    ) == same


def test_a_small_total_is_refused_with_a_sufficient_one() -> None:
    """The message contains the nats of each metric."""
    metrics = [make_metric(), make_metric(name="theme", epoch="month")]
    assert Registry(metrics, total=64).total == 64
    reason = (
        r"budget: total must be at least 64 nats for these metrics in a calendar year "
        r"\(page 16, theme 48\), got 63"
    )
    with pytest.raises(MetricError, match=reason):
        Registry(metrics, total=63)
    reserved = {
        reservation.metric: reservation.total
        for reservation in Registry(metrics, total=64).reserved
    }
    assert reserved == pytest.approx({"page": 16, "theme": 48})


def test_epochs_after_the_expiry_are_not_reserved() -> None:
    """An entry stays in the registry, and epochs after its last day cost nothing."""
    old = make_metric(name="old", expires=datetime.date(2026, 5, 20))
    assert [reserve(old, year=year).scopes for year in (2025, 2026, 2027)] == [4, 2, 0]
    assert (
        reserve(make_metric(name="old", expires=old.expires, epoch="life"), year=2027).scopes == 0
    )
    with pytest.raises(MetricError, match="at least 32 nats"):
        Registry([make_metric(), old], total=16)


@pytest.mark.parametrize(
    ("epoch", "expires", "scopes"),
    [
        ("quarter", (2026, 6, 30), 2),
        ("quarter", (2026, 7, 1), 3),
        ("month", (2026, 6, 30), 6),
        ("month", (2026, 7, 1), 7),
        ("month", (2027, 1, 1), 12),
        ("year", (2026, 1, 1), 1),
        ("life", (2026, 1, 1), 1),
    ],
)
def test_the_last_day_may_begin_an_epoch(
    epoch: str, expires: tuple[int, int, int], scopes: int
) -> None:
    """The scope of the last day is reserved, too, because devices report on that day."""
    metric = make_metric(epoch=epoch, expires=datetime.date(*expires))
    assert reserve(metric, year=2026).scopes == scopes


def test_an_expired_metric_without_a_bound_costs_nothing() -> None:
    """No scope at an infinite cost is 0 nats.

    A small total of the other metrics is still refused.
    """
    old = make_metric(BARE, name="old", epoch="life", expires=datetime.date(2026, 5, 20))
    assert reserve(old, year=2027).total == 0
    today = datetime.date(2027, 1, 1)
    assert len(Registry([make_metric(), old], total=16, today=today)) == 2
    with pytest.raises(MetricError, match="at least 16 nats"):
        Registry([make_metric(), old], total=15, today=today)


def test_sums_are_of_thousandths() -> None:
    """A total that equals the printed sum is enough, in spite of rounding."""
    cheap = make_metric(Params(k=1, encoding="boolean", f=0.99852, p=0.25, q=0.75), epoch="month")
    needed = reserve(cheap).total
    assert needed > 0.036
    assert len(Registry([cheap], total=0.036)) == 1
    with pytest.raises(MetricError, match=r"at least 0\.036 nats"):
        Registry([cheap], total=0.0359)


@pytest.mark.parametrize("total", [0, -1, math.nan, True, "16"])
def test_a_total_is_a_positive_number(total: Any) -> None:
    """The total is checked for registries of metrics, too, also for an empty registry."""
    for metrics in ([make_metric()], []):
        with pytest.raises(MetricError, match=r"total must be a number in \(0, infinity\]"):
            Registry(metrics, total=total)


ENTRY = entry_of("page", epoch='"quarter"')


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("", r"r.toml: the budget .* must be written, in nats: \[budget\] with total = 16 or more"),
        ("budget = 3\n", "r.toml: budget must be a table with the one key total"),
        ("[budget]\n", "r.toml: budget must be a table with the one key total"),
        ("[budget]\ntotal = 16\nper = 1\n", "r.toml: budget must be a table with the one key"),
        ("[budget]\ntotal = 0\n", "r.toml: total must be a number above 0, in nats, got 0"),
        ("[budget]\ntotal = nan\n", "r.toml: total must be a number above 0, in nats, got nan"),
        ('[budget]\ntotal = "9"\n', "r.toml: total must be a number above 0, in nats, got '9'"),
        ("[budget]\ntotal = true\n", "r.toml: total must be a number above 0, in nats, got True"),
        ("[budget]\ntotal = 15.999\n", "budget: total must be at least 16 nats"),
    ],
)
def test_a_budget_must_be_written(head: str, reason: str) -> None:
    """One positive number of nats that covers the metrics."""
    with pytest.raises(MetricError, match=f"^{reason}"):
        Registry.loads(head + ENTRY, path="r.toml")


@pytest.mark.parametrize("total", [16, 2**63 - 1])
def test_a_budget_that_fits_is_read(total: int) -> None:
    """The smallest total that fits and the largest integer of TOML are read as floats."""
    assert Registry.loads(f"[budget]\ntotal = {total}\n{ENTRY}").total == float(total)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000])
def test_a_total_of_too_many_digits_is_refused(number: str) -> None:
    """TOML forbids integers of more than 63 bits, and Python refuses more than 4,300 digits."""
    with pytest.raises(RapporError, match=r"numbers|below 2\^63"):
        Registry.loads(f"[budget]\ntotal = {number}\n{ENTRY}")
