"""A metric with `other`: a device answers for its category and for its text, or for neither."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from devices import Home, database, metric_of, peek, secret_of, write_device
from enumeration import coin_classes, instantaneous_of
from rappor_client import Answer, Caps, Outcome
from rappor_client.budget.admission import Offered
from rappor_client.budget.prepared import prepare
from rappor_client.testing import Device, FixedCoins, MemoryTransport, constant_coins
from registries import registry_of

from rappor import Metric, MetricError, Params, Registry, epsilon_1
from rappor.encode import encode_value, takes_part
from rappor.protocol.encodings.catalogue import encoder
from rappor.protocol.parts import Part
from rappor.registry.budget import scope_price
from rappor.registry.other import with_other

NAMED = Params(k=3, encoding="onehot", categories=("emacs", "vim", "vscode"), f=0.25, p=0.1, q=0.6)
PARTS = (Part("prefix:3", 0.5), Part("whole"))
NAMES = ("editor", "editor.other")


def pair_of(params: Params = NAMED, **fields: Any) -> tuple[Metric, Metric]:
    """Return both metrics of an entry with `other`."""
    first, second = with_other(params)
    parts = fields.pop("parts", PARTS)
    return metric_of("editor", first, **fields), metric_of(
        "editor.other", second, parts=parts, **fields
    )


def test_each_value_is_answered_twice(home: Home) -> None:
    """A category tells no text; another text is told; bit for bit what the encoder makes of it."""
    for number, value in enumerate(("vim", "helix", "")):
        client = home.open(*pair_of(), folder=str(number), coins=lambda n: [2**31] * n)
        assert client.record("editor", value) == Outcome.KEPT
        waiting = peek(home.place / str(number)).waiting
        secret = secret_of(home.place / str(number))
        expected = [
            encode_value(secret, metric, value, coins=lambda n: [2**31] * n).report
            for metric in pair_of()
        ]
        assert list(waiting) == expected


def exact_pair() -> tuple[Metric, Metric]:
    """Return a pair of two bits each without permanent noise: fresh coins decide what leaves."""
    named = Params(
        k=2, encoding="onehot", categories=("vim", "other"), other=True, f=0.0, p=0.25, q=0.75
    )
    texts = Params(k=2, m=1, categories=("vim",), other=True, f=0.0, p=0.25, q=0.75)
    return metric_of("editor", named), metric_of("editor.other", texts)


def expected_of(metric: Metric, value: str) -> dict[bytes, Fraction]:
    """Return the distribution of one report of a value, as the protocol says."""
    truth = encoder(metric.params).encode(value, 0)
    return instantaneous_of(truth, metric.params)


def test_both_reports_are_as_probable_as_the_ledger_says(home: Home) -> None:
    """For each value and every way in which the coins of the real client can fall.

    Two reports leave whatever the value is, alike in all but their bits. The probabilities of the
    bits are those of two independent responses, and two values differ by both losses, no more.
    """
    pair = exact_pair()
    values = ("vim", "helix", "zed", "")
    falls = list(itertools.product(coin_classes((2**30, 3 * 2**30)), repeat=4))
    found: dict[str, dict[tuple[bytes, ...], Fraction]] = {}
    beside = set()
    coins: list[int] = []

    def fall_as_told(n: int) -> list[int]:
        return [coins.pop(0) for _ in range(n)]

    for value in values:
        client = home.open(*pair, folder=value or "empty", coins=fall_as_told)
        found[value] = {}
        for fall in falls:
            coins[:] = [0, 0, *(coin for coin, _ in fall)]  # the tag comes first
            assert client.record("editor", value) == Outcome.KEPT
            assert coins == []
        waiting = peek(client._settings.folder).waiting
        reports = zip(waiting[::2], waiting[1::2], strict=True)
        for fall, both in zip(falls, reports, strict=True):
            beside.add(tuple((each.metric, each.params, each.cohort) for each in both))
            bits = tuple(each.bits for each in both)
            weight = math.prod((weight for _, weight in fall), start=Fraction(1))
            found[value][bits] = found[value].get(bits, Fraction(0)) + weight
    assert beside == {tuple((metric.name, metric.fingerprint, 0) for metric in pair)}
    for value in values:
        first, second = (expected_of(metric, value) for metric in pair)
        assert found[value] == {
            (a, b): first[a] * second[b] for a, b in itertools.product(first, second)
        }
    worst = max(
        found[one][bits] / found[other][bits]
        for one, other in itertools.permutations(values, 2)
        for bits in found[one]
    )
    assert math.isclose(math.log(worst), sum(epsilon_1(metric.params) for metric in pair))


@pytest.mark.parametrize("interval", ["none", "day"])
def test_later_values_change_nothing_of_what_leaves(interval: str, tmp_path: Path) -> None:
    """Both answers keep to the first value: number, order and bytes of the reports are the same."""
    lives = (("helix",) * 4, ("helix", "vim", "", "helix"), ("helix", "zed", "vscode", "emacs"))
    bodies = []
    for number, life in enumerate(lives):
        folder = tmp_path / str(number)
        write_device(folder, bytes(range(32)))
        with Device(folder) as device:
            registry = registry_of(*pair_of(interval=interval))
            client = device.open(registry, coins=constant_coins(2**30))
            for value in life:
                client.record("editor", value)
                device.clock.advance(days=1)
                client.flush()
            client.record("editor", "helix")
            device.clock.advance(days=1)
            client.flush()
            bodies.append([(each.metric, each.bits) for each in device.transport.reports])
    assert len(bodies[0]) == 10
    assert bodies[0] == bodies[1] == bodies[2]


def test_both_answers_of_an_interval_are_of_one_event(tmp_path: Path) -> None:
    """Of many events each answer keeps the same one, whichever it is."""
    low_noise = dataclasses.replace(NAMED, f=0.01, p=0.001, q=0.999)
    values = ["vim", "helix", "emacs", "zed"]
    chosen = set()
    for number in range(12):
        write_device(tmp_path / str(number), bytes([number]) * 32)
        with Device(tmp_path / str(number)) as device:
            device.coins = FixedCoins(seed=number)
            pair = pair_of(low_noise, interval="day", epoch="quarter", parts=())
            client = device.open(registry_of(*pair))
            for value in values:
                assert client.record("editor", value)
            held = held_responses(device)
            secret = secret_of(device.folder)
            events = [
                {
                    value
                    for value in values
                    if prepare(secret, metric, value, epoch="2026-Q4", coins=device.coins).permanent
                    == permanent
                }
                for metric, permanent in zip(pair, held, strict=True)
            ]
            (event,) = events[0] & events[1]
            chosen.add(event)
    assert len(chosen) > 1


def held_responses(device: Device) -> list[bytes]:
    """Return the permanent response of each pending report, by metric."""
    assert device.contents.held
    query = "SELECT metric, epoch, report FROM held WHERE report IS NOT NULL ORDER BY metric"
    with database(device.folder) as db:
        rows = db.execute(query).fetchall()
        return [Offered.from_text(db, *row).prepared.permanent for row in rows]


def switched(*, on: bool) -> Registry:
    """Return the registry of a version that looks for what is in other, or of one that does not."""
    fields: dict[str, Any] = {"interval": "day", "epoch": "quarter"}
    return registry_of(*pair_of(**fields) if on else [metric_of("editor", NAMED, **fields)])


def test_what_is_held_is_of_one_event_after_a_switch(tmp_path: Path) -> None:
    """Where an interval has met events without other, the choice begins anew for both."""
    with Device(tmp_path / "device") as device:
        device.open(switched(on=True)).record("editor", "helix")
        assert len(device.contents.held) == 2  # it is written before the next one
        alone = device.open(switched(on=False), coins=constant_coins(0))  # it is chosen
        alone.record("editor", "vim")
        assert len(device.contents.held) == 2
        device.open(switched(on=False)).close()
        coins = constant_coins(2**32 - 1)  # no later event is chosen where one is held
        again = device.open(switched(on=True), coins=coins)
        again.record("editor", "zed")
        secret = secret_of(device.folder)
        assert held_responses(device) == [
            prepare(secret, metric, "zed", epoch="2026-Q4", coins=coins).permanent
            for metric in switched(on=True).values()
        ]


def test_neither_is_answered_where_one_has_had_its_report(tmp_path: Path) -> None:
    """An interval that is over for the categories alone is over for what is in other, too."""
    with Device(tmp_path / "device") as device:
        alone = device.open(switched(on=False))
        alone.record("editor", "helix")
        device.clock.advance(days=1)
        alone.flush()
        device.clock.advance(days=-1, hours=1)
        client = device.open(switched(on=True))
        before = device.contents
        client.record("editor", "helix")
        after = device.contents
        assert (after.waiting, after.held) == (before.waiting, before.held)
        assert set(client.spent().metrics) == {"editor"}


@pytest.mark.parametrize("name", NAMES)
def test_refusal_is_of_both_where_the_registry_has_one(name: str, tmp_path: Path) -> None:
    """What an earlier version has left of either is dropped, and neither is recorded again."""
    with Device(tmp_path / "device") as device:
        device.open(switched(on=True)).record("editor", "helix")
        assert len(device.contents.held) == 2  # it is written on its own day
        device.clock.advance(days=1)
        device.open(switched(on=True)).record("editor", "helix")
        assert len(device.contents.waiting) == len(device.contents.held) == 2
        client = device.open(switched(on=False), opted_out=[name])
        assert client.record("editor", "helix") == Outcome.SILENT
        left = device.contents
        assert [*left.waiting, *left.held] == []


def test_other_metric_cannot_be_recorded_alone(home: Home) -> None:
    """The error names what is to be recorded."""
    client = home.open(*pair_of())
    with pytest.raises(MetricError, match="answered together with editor"):
        client.record("editor.other", "helix")


@pytest.mark.parametrize("name", NAMES)
def test_refusal_is_of_both(name: str, home: Home) -> None:
    """Refused by either name, at once or when the client opens, nothing of either waits."""
    client = home.open(*pair_of())
    client.record("editor", "helix")
    client.opt_out(name)
    assert peek(home.folder).waiting == ()
    assert client.record("editor", "helix") == Outcome.SILENT
    client.close()
    again = home.open(*pair_of(), opted_out=[name])
    assert again.record("editor", "helix") == Outcome.SILENT


@pytest.mark.parametrize("name", NAMES)
def test_stop_is_of_both(name: str, home: Home) -> None:
    """Whichever the collector names: nothing new is recorded, and what waits stays."""
    document = {"reports": [{"status": "accepted"}], "stop": {name: "2026-11-20"}}
    transport = MemoryTransport([Answer(status=200, body=json.dumps(document).encode())])
    client = home.open(*pair_of(), collector=transport)
    client.record("editor", "helix")
    client.flush()
    assert len(transport.bodies) == 1
    assert client.waiting() == 1
    assert client.record("editor", "vim") == Outcome.SILENT


def test_budget_is_reserved_for_both_or_neither(home: Home) -> None:
    """With room for one of them both are silent, and a later metric takes the room."""
    pair = pair_of(epoch="year")
    price = scope_price(pair[0])
    page = metric_of("page", pair[1].params, epoch="year")
    client = home.open(*pair, page, caps=Caps(total=2 * price - 0.001))
    assert client.record("editor", "vim") == Outcome.SILENT
    assert client.record("page", "vim") == Outcome.KEPT
    assert set(client.spent().metrics) == {"page"}
    wider = home.open(*pair, folder="wider", caps=Caps(total=2 * price))
    assert wider.record("editor", "vim") == Outcome.KEPT
    assert wider.spent().reserved == {2026: pytest.approx(2 * price)}
    assert set(wider.spent().metrics) == set(NAMES)


def test_neither_is_answered_where_another_process_took_the_room_of_one(home: Home) -> None:
    """Where the categories had their reservation already, from a registry that had them alone."""
    pair = pair_of(epoch="year")
    price = scope_price(pair[0])
    page = metric_of("page", pair[1].params, epoch="year")
    caps = Caps(total=2 * price)
    with home.open(pair[0], caps=caps) as first:
        first.record("editor", "vim")
    client = home.open(*pair, caps=caps)
    with home.open(page, caps=caps) as other:
        assert other.record("page", "vim") == Outcome.KEPT
    client.record("editor", "vim")
    assert client.waiting() == 2
    assert client.record("editor", "vim") == Outcome.SILENT
    assert set(client.spent().metrics) == {"editor", "page"}
    assert client.spent().reserved == {2026: pytest.approx(2 * price)}


def test_sample_is_one_for_both(home: Home) -> None:
    """A device is in the sample of the categories, and then answers both."""
    seen = set()
    for number in range(12):
        secret = bytes([number]) * 32
        write_device(home.place / str(number), secret)
        client = home.open(*pair_of(sample=0.5), folder=str(number))
        outcome = client.record("editor", "helix")
        is_in = takes_part(secret, pair_of(sample=0.5)[0], "")
        assert outcome == (Outcome.KEPT if is_in else Outcome.SILENT)
        assert len(peek(home.place / str(number)).waiting) == (2 if is_in else 0)
        seen.add(is_in)
    assert seen == {True, False}


@pytest.mark.parametrize("value", ["vim", "helix", "zed", "emacs", ""])
def test_a_value_is_unfit_only_if_it_is_empty(value: str, home: Home) -> None:
    """It is counted once, not for each answer."""
    client = home.open(*pair_of())
    client.record("editor", value)
    assert client.counters().get("unfit", 0) == (value == "")
