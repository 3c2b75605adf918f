"""A collector's newer registry changes only what cannot weaken the shipped one."""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any

import pytest
from devices import BALANCED, Opener, metric_of
from rappor_client import Client, OfferCap
from rappor_client.remote_params import within
from rappor_client.testing import FixedClock, MemoryTransport
from registries import registry_of

from rappor import Metric, Params, Registry
from rappor.errors import ParamsError

STRICT = Params.profile("strict")
ACCURATE = Params.profile("accurate")
CAP = OfferCap(epsilon_1=2.001, epsilon_inf=4.001)
OFFERED = """
[budget]
total = inf
[metrics.page]
description = "offered"
owner = "someone else"
expires = 2031-01-01
epoch = "life"
interval = "none"
encoding = "bloom"
profile = "{profile}"
"""


def answer(shipped: Metric, offered: Metric) -> Metric:
    """Return what becomes of a metric."""
    return within(registry_of(shipped), registry_of(offered), CAP)[shipped.name]


def test_noise_and_size_may_change_inside_the_cap() -> None:
    """Description, owner and all else stay the shipped ones."""
    changed = answer(metric_of(), metric_of(params=STRICT, description="other", owner="x"))
    assert changed == metric_of(params=STRICT)
    other = Params(k=64, m=32, f=STRICT.f, p=STRICT.p, q=STRICT.q)
    assert answer(metric_of(), metric_of(params=other)).params == other


@pytest.mark.parametrize(
    "offered",
    [
        metric_of(params=ACCURATE),
        metric_of(params=Params(k=128, m=1, f=BALANCED.f, p=0.01, q=0.99)),
        metric_of(params=Params(k=128, m=128, f=0.1, p=0.4, q=0.6)),
        metric_of(params=Params.profile("strict", normalize="casefold")),
        metric_of(params=Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)),
        metric_of(params=STRICT, epoch="month"),
        metric_of("other", STRICT),
    ],
    ids=[
        "both losses",
        "one report",
        "any number",
        "normalizer",
        "encoding",
        "epoch",
        "new metric",
    ],
)
def test_whatever_weakens_or_means_something_else_is_not_taken(offered: Metric) -> None:
    """The shipped metric stays whole, and no metric is added."""
    shipped = metric_of()
    result = within(registry_of(shipped), registry_of(offered), CAP)
    assert list(result) == ["page"]
    assert result["page"] == shipped


@pytest.mark.parametrize(
    ("day", "kept"), [("2027-01-01", "2027-01-01"), ("2040-01-01", "2030-12-31")]
)
def test_collection_may_end_earlier_and_never_later(day: str, kept: str) -> None:
    """The last day moves towards today only."""
    offered = metric_of(expires=datetime.date.fromisoformat(day))
    assert answer(metric_of(), offered).expires == datetime.date.fromisoformat(kept)


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_cap_is_a_number(wrong: float) -> None:
    """NaN would admit everything or nothing."""
    with pytest.raises(ParamsError, match="must be a number in"):
        OfferCap(epsilon_1=wrong, epsilon_inf=4.0)
    with pytest.raises(ParamsError, match="must be a number in"):
        OfferCap(epsilon_1=4.0, epsilon_inf=wrong)


def offered_client(open_client: Opener, transport: MemoryTransport, **settings: Any) -> Any:
    """Open a client that takes offers."""
    return open_client(transport=transport, offers=CAP, **settings)


def test_offer_is_taken_after_an_upload_and_remembered(
    open_client: Opener, clock: FixedClock
) -> None:
    """From then on, over restarts; at most one question a day."""
    transport = MemoryTransport(registry=OFFERED.format(profile="strict"))
    client = offered_client(open_client, transport)
    assert client.registry["page"].params == BALANCED
    client.record("page", "x")
    assert client.flush()
    assert client.registry["page"] == dataclasses.replace(metric_of(), params=STRICT)
    client.close()
    again = offered_client(open_client, transport)
    assert again.registry["page"].params == STRICT
    transport.offered = OFFERED.format(profile="balanced")
    again.record("page", "x")
    assert again.flush()
    assert again.registry["page"].params == STRICT  # asked today already
    clock.advance(days=1)
    again.record("page", "x")
    assert again.flush()
    assert again.registry["page"].params == Params.profile("balanced")


@pytest.mark.parametrize("text", ["", "not toml [", OFFERED.format(profile="accurate")])
def test_offer_that_cannot_be_taken_changes_nothing(text: str, open_client: Opener) -> None:
    """No registry, nonsense, or too much loss."""
    transport = MemoryTransport(registry=text)
    client = offered_client(open_client, transport)
    client.record("page", "x")
    assert client.flush()
    assert client.registry["page"] == metric_of()


def test_offer_beyond_the_shipped_total_changes_nothing(clock: FixedClock, tmp_path: Path) -> None:
    """Prices that pass the registry's budget are no failure of the device's program."""
    transport = MemoryTransport(registry=OFFERED.format(profile="balanced"))
    shipped = metric_of(params=STRICT)
    for _ in range(2):  # and after a restart
        with Client.open(
            tmp_path / "device",
            registry=Registry([shipped], total=2.01),
            consent=True,
            transport=transport,
            offers=CAP,
            clock=clock,
        ) as client:
            assert client.record("page", "x")
            assert client.flush()
            assert client.registry["page"] == shipped
            clock.advance(days=1)


def test_without_a_cap_nothing_is_asked(open_client: Opener) -> None:
    """The shipped registry is the only one."""

    class Silent(MemoryTransport):
        def registry(self, **_: object) -> Any:
            raise AssertionError("nobody asked for it")

    client = open_client(transport=Silent())
    client.record("page", "x")
    assert client.flush()
    assert client.registry["page"] == metric_of()
