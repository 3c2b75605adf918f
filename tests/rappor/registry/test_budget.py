"""The budget: the reservations of a calendar year, and registries that exceed the total."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from typing import Any

import pytest
from registries import build_metric, format_entry

from rappor.base.errors import MetricError, RapporError
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.registry.budget import most_reports, reserve, scope_cost, scope_identity
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

NOISE = Params(k=64, h=2, m=8, f=0.5, p=0.25, q=0.75)
WITHOUT_PERMANENT_NOISE = Params(k=1, encoding="boolean", f=0, p=0.25, q=0.75)
"""Parameters whose loss grows with every report, without a limit. One report loses ln 3 nats."""


def make_metric(params: Params | None = None, **changes: Any) -> Metric:
    """Return a metric with quarters as epochs, by default of the profile "balanced" (4 nats)."""
    return build_metric(params or Params.profile("balanced"), **{"epoch": "quarter"} | changes)


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
    """A device makes at most as many reports in an epoch as the longest epoch has intervals.

    The cost of a scope is the loss of this number of reports. A metric for life has no bound.
    """
    assert most_reports(make_metric(epoch=epoch, interval=interval)) == n


@pytest.mark.slow
@pytest.mark.parametrize("epoch", ["month", "quarter", "year"])
def test_the_bound_on_weekly_reports_covers_every_epoch(epoch: str) -> None:
    """The bound on weekly reports is the largest number of weeks that touch one epoch.

    The weeks of every epoch are counted over 28 years, after which the calendar repeats.
    """
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
    """The cost of a scope is the loss of all its reports, rounded up to a thousandth of a nat.

    A month touches at most six weeks. A metric for life has one scope in every year.
    """
    params = Params(k=64, h=2, m=8, f=0.3, p=0.2, q=0.7)
    weekly = make_metric(params, epoch="month", interval="week")
    assert 0 <= scope_cost(weekly) - epsilon_n(params, 6) < 0.001
    assert 0 <= scope_cost(make_metric(params, epoch="life")) - epsilon_inf(params) < 0.001
    assert reserve(make_metric(params, epoch="life")).scopes == 1


def test_without_permanent_noise_the_calendar_must_bound_the_reports() -> None:
    """With f = 0 a metric has a finite cost only if its epoch ends.

    Without permanent noise every report adds its loss. An infinite cost is refused beside a finite
    total, and allowed beside an infinite total.
    """
    assert scope_cost(
        make_metric(WITHOUT_PERMANENT_NOISE, epoch="month", interval="week")
    ) == pytest.approx(6 * math.log(3), abs=0.001)
    metric = make_metric(WITHOUT_PERMANENT_NOISE, epoch="life", interval="week")
    assert scope_cost(metric) == math.inf
    with pytest.raises(MetricError, match="a limit needs a bounded number of reports"):
        Registry([metric], total=1e6)
    assert len(Registry([metric], total=math.inf)) == 1


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"interval": "week"}, True),
        ({"params": dataclasses.replace(NOISE, p=0.2, q=0.7)}, True),
        ({"params": dataclasses.replace(NOISE, f=0.25)}, False),
        ({"epoch": "month"}, False),
        ({"parts": ()}, False),
        ({"parts": (Part("prefix:2", 0.2), Part("prefix:4", 0.2), Part("whole"))}, False),
    ],
)
def test_scopes_are_identified_by_epoch_and_permanent_noise(
    changed: dict[str, Any], is_same: bool
) -> None:
    """The identity of a metric's scopes contains its epoch and the permanent noise of every part.

    After a change of the identity, a device draws new permanent responses, so it has to reserve the
    cost again.
    """
    metric = make_metric(NOISE, parts=(Part("prefix:2", 0.2), Part("whole")))
    assert (
        scope_identity(dataclasses.replace(metric, **changed)) == scope_identity(metric)
    ) == is_same


def test_the_total_of_the_message_is_enough_with_all_its_digits() -> None:
    """A sum of more than six digits is not rounded, so a registry with this total is accepted."""
    params = Params(k=128, h=1, m=8, f=0.1, p=0.1, q=0.9)
    metrics = [make_metric(params, name=f"m{i}", epoch="month") for i in range(23)]
    with pytest.raises(MetricError, match=r"at least [0-9.]+ nats") as caught:
        Registry(metrics, total=1)
    total = float(re.search(r"at least ([0-9.]+)", str(caught.value))[1])  # type: ignore[index]
    assert total > 1000
    assert total != float(f"{total:g}")
    assert Registry(metrics, total=total).total == total


def test_a_small_total_is_refused_with_a_sufficient_one() -> None:
    """A total that is too small is refused. The message has the smallest total that is enough.

    It also has the nats of each metric, so that the reader sees which metric is expensive.
    """
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
    """Epochs after the last day of a metric reserve nothing, although its entry stays.

    Entries stay in the registry so that old counts can be decoded.
    """
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
    """An expired metric with infinite cost reserves 0 nats, because it has no scope any more.

    0 times infinity would be NaN, with which every comparison is false. So the test also checks
    that a total below the cost of the other metric is refused.
    """
    old = make_metric(
        WITHOUT_PERMANENT_NOISE, name="old", epoch="life", expires=datetime.date(2026, 5, 20)
    )
    assert reserve(old, year=2027).total == 0
    today = datetime.date(2027, 1, 1)
    assert len(Registry([make_metric(), old], total=16, today=today)) == 2
    with pytest.raises(MetricError, match="at least 16 nats"):
        Registry([make_metric(), old], total=15, today=today)


def test_a_total_equal_to_the_printed_sum_is_enough() -> None:
    """A total of 0.036 is enough for twelve scopes of 0.003 nats.

    Sums of floats are inexact: the twelve costs add to a little more than 0.036. A user copies the
    total from the message that refuses a smaller total.
    """
    cheap = make_metric(Params(k=1, encoding="boolean", f=0.99852, p=0.25, q=0.75), epoch="month")
    needed = reserve(cheap).total
    assert needed > 0.036
    assert len(Registry([cheap], total=0.036)) == 1
    with pytest.raises(MetricError, match=r"at least 0\.036 nats"):
        Registry([cheap], total=0.0359)


@pytest.mark.parametrize("total", [0, -1, math.nan, True, "16"])
def test_a_total_is_a_positive_number(total: Any) -> None:
    """The total of a registry made by a program is a positive number, also without any metric."""
    for metrics in ([make_metric()], []):
        with pytest.raises(MetricError, match=r"total must be a number in \(0, infinity\]"):
            Registry(metrics, total=total)


ENTRY = format_entry("page", epoch='"quarter"')


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("", r"r.toml: the budget .* must be written, in nats: \[budget\] with total = 16 or more"),
        ("budget = 3\n", "r.toml: budget must be a table with the one key total, got 3"),
        ("[budget]\n", "r.toml: budget must be a table with the one key total"),
        ("[budget]\ntotal = 16\nper = 1\n", "r.toml: budget must be a table with the one key"),
        ("[budget]\ntotal = 0\n", "r.toml: total must be a number above 0, in nats, got 0"),
        ("[budget]\ntotal = nan\n", "r.toml: total must be a number above 0, in nats, got nan"),
        ('[budget]\ntotal = "9"\n', "r.toml: total must be a number above 0, in nats, got '9'"),
        ("[budget]\ntotal = true\n", "r.toml: total must be a number above 0, in nats, got True"),
        ("[budget]\ntotal = 15.999\n", "r.toml: budget: total must be at least 16 nats"),
    ],
)
def test_a_budget_must_be_written(head: str, reason: str) -> None:
    """A registry file must have a budget: one positive number of nats that covers its metrics.

    Nobody should collect without having decided how much a device may lose in a year.
    """
    with pytest.raises(MetricError, match=f"^{reason}"):
        Registry.loads(head + ENTRY, path="r.toml")


@pytest.mark.parametrize("total", [16, 2**63 - 1])
def test_a_budget_that_fits_is_read(total: int) -> None:
    """The smallest sufficient total, and the largest integer of TOML, are read as floats."""
    assert Registry.loads(f"[budget]\ntotal = {total}\n{ENTRY}").total == float(total)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000])
def test_a_total_of_too_many_digits_is_refused(number: str) -> None:
    """An integer that no float can hold is refused, and does not end in an error of Python.

    TOML forbids integers of more than 63 bits, but Python's reader accepts them. Python refuses to
    convert more than 4,300 decimal digits.
    """
    with pytest.raises(RapporError, match=r"numbers|below 2\^63"):
        Registry.loads(f"[budget]\ntotal = {number}\n{ENTRY}")
