"""The collector may ask for more noise, by a public step for all metrics, and for nothing else."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from devices import BALANCED, BOOLEAN, Opener, lose, metric_of
from rappor_client import Answer, Client
from rappor_client.cli.show import device_record
from rappor_client.remote_params import at_noise_step, is_quick_to_read, step_asked_for
from rappor_client.testing import FixedClock, MemoryTransport, peek
from registries import registry_of

from rappor import Metric, Params, Registry, epsilon_inf
from rappor.protocol.noise_steps import STEPS

STRICT = Params.profile("strict")
QUIET = dataclasses.replace(BALANCED, p=0.375, q=0.625)
LOUD = dataclasses.replace(BOOLEAN, p=0.2, q=0.8)
METRICS = (metric_of(), metric_of("sound", LOUD), metric_of("theme", epoch="month"))
"""Step 1 is more noise for the second alone, steps 2 and 3 for all."""


def offer_of(*metrics: Metric) -> str:
    """Write a registry as the collector serves it."""
    lines = ["[budget]", "total = inf"]
    for metric in metrics:
        params = metric.params
        lines += [f"[metrics.{metric.name}]", 'description = "offered"', 'owner = "x"']
        lines += ["expires = 2031-01-01", f'epoch = "{metric.epoch}"', 'interval = "none"']
        lines += [f'encoding = "{params.encoding}"']
        lines += [f"{key} = {getattr(params, key)!r}" for key in ("k", "h", "m", "f", "p", "q")]
    return "\n".join(lines)


def with_noise(metric: Metric, **letters: Any) -> Metric:
    """Return a metric with other letters."""
    return dataclasses.replace(metric, params=dataclasses.replace(metric.params, **letters))


def at(step: int) -> list[Metric]:
    """Return the metrics of this test at a step."""
    return list(at_noise_step(registry_of(*METRICS), step).values())


@pytest.mark.parametrize("step", range(len(STEPS) + 1))
def test_step_of_all_metrics_is_followed(step: int) -> None:
    """Each metric takes its p and q where that is more noise, and is the shipped one else."""
    shipped = registry_of(*METRICS)
    assert step_asked_for(shipped, registry_of(*at(step))) == step
    for metric, changed in zip(METRICS, at(step), strict=True):
        assert changed.params in (metric.params, dataclasses.replace(metric.params, **noise(step)))
        assert dataclasses.replace(changed, params=metric.params) == metric


def noise(step: int) -> dict[str, Any]:
    """Return p and q of a step."""
    return dict(zip("pq", STEPS[step - 1], strict=True)) if step else {}


WRONG = {
    "other f": [with_noise(metric, f=0.3) for metric in at(2)],
    "off the steps": [with_noise(metric, p=0.38, q=0.62) for metric in METRICS],
    "less noise": [with_noise(metric, p=0.01, q=0.99) for metric in METRICS],
    "two steps": [at(2)[0], at(3)[1], at(2)[2]],
    "one metric alone": [at(2)[0], *METRICS[1:]],
    "other size": [metric_of(params=STRICT)],
    "another metric": [metric_of("other", QUIET)],
}


@pytest.mark.parametrize("offered", WRONG)
def test_whatever_is_no_step_for_all_is_not_followed(offered: str) -> None:
    """f, k, h, m, another noise, fewer bits of it, or a choice among metrics."""
    step = step_asked_for(registry_of(*METRICS), registry_of(*WRONG[offered]))
    assert not step


def sent_after(offers: Sequence[str], open_client: Opener, clock: FixedClock, folder: str) -> Any:
    """Serve one offer a day and return the fingerprints that the device sends after a restart."""
    transport = MemoryTransport()
    for text in offers:
        transport.offered = text
        with open_client(*METRICS, folder=folder, transport=transport, offers=True) as client:
            client.record("page", "x")
            assert client.flush()
        clock.advance(days=1)
    transport.reports.clear()
    with open_client(*METRICS, folder=folder, transport=transport, offers=True) as client:
        for name, value in (("page", "x"), ("sound", True), ("theme", "y")):
            assert client.record(name, value)
        assert client.flush()
    return frozenset((report.metric, report.params) for report in transport.reports)


def test_offers_cannot_single_out(open_client: Opener, clock: FixedClock) -> None:
    """Devices that are served answers of their own send what all others send."""
    shipped = {(metric.name, metric.fingerprint) for metric in METRICS}
    letters: list[dict[str, Any]] = [{"f": 0.2384 + i * 1e-9} for i in range(3)] + [
        {"p": 0.3 + i * 1e-9, "q": 0.7} for i in range(3)
    ]
    for i, changed in enumerate(letters):
        text = offer_of(*(with_noise(metric, **changed) for metric in METRICS))
        assert sent_after([text], open_client, clock, f"own-{i}") == shipped


def test_all_offers_together_tell_devices_into_four(open_client: Opener, clock: FixedClock) -> None:
    """Any choice of steps for two metrics, on two days: one of four sets is sent."""
    choices = [
        offer_of(at(one)[0], at(other)[1]) for one, other in itertools.product(range(4), repeat=2)
    ]
    seen = {
        sent_after([text], open_client, clock, f"one-{i}")
        for i, text in enumerate(dict.fromkeys(choices))
    }
    assert len(seen) == 1 + len(STEPS)
    offers = [offer_of(*at(step)) for step in range(4)]
    for i, days in enumerate(itertools.pairwise([*offers, *reversed(offers)])):
        assert sent_after(days, open_client, clock, f"two-{i}") in seen


def test_noise_goes_upwards_only(open_client: Opener, clock: FixedClock) -> None:
    """A later offer of less noise than an earlier one changes nothing."""
    quiet, loud = offer_of(*at(3)), offer_of(*at(2))
    up = sent_after([quiet], open_client, clock, "up")
    assert sent_after([quiet, loud], open_client, clock, "down") == up


def test_all_offers_together_stay_under_one_price(open_client: Opener, clock: FixedClock) -> None:
    """Eight days of offers, eight reports a day: one value costs epsilon_inf at most."""
    transport = MemoryTransport()
    client = open_client(*METRICS, transport=transport, offers=True)
    for day in range(8):
        transport.offered = offer_of(*at(day % 4))
        for _ in range(8):
            client.record("page", "x")
        assert client.flush()
        clock.advance(days=1)
    assert len({report.params for report in transport.reports}) == 3  # shipped, and steps 2 and 3
    assert client.spent().nats <= epsilon_inf(BALANCED)
    assert client.spent().metrics["page"].patterns == 1


def test_offer_is_asked_for_once_a_day_and_shown(open_client: Opener, tmp_path: Any) -> None:
    """After an upload; `rappor-client show` tells what was taken."""
    transport = MemoryTransport(registry=offer_of(*at(2)))
    client = open_client(*METRICS, transport=transport, offers=True)
    assert client.registry["page"].params == BALANCED
    assert "asked for no more noise" in str(record_of(client, tmp_path))
    assert client.registry["page"].params == QUIET
    transport.offered = offer_of(*at(3))
    told = str(record_of(client, tmp_path))
    assert "The collector asks for more noise: step 2 of 3, p = 0.375 and q = 0.625." in told
    assert client.registry["page"].params == QUIET  # asked today already
    assert peek(tmp_path / "device").noise_step == 2


def record_of(client: Client, tmp_path: Any) -> Any:
    """Return what the command shows before an upload, and make that upload."""
    client.record("page", "x")
    shown = device_record(tmp_path / "device")
    assert client.flush()
    return shown


class Odd(MemoryTransport):
    """A transport that answers any question for the registry in its own way."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def registry(self, *, timeout: float) -> Any:
        """Raise, or return, whatever it was given."""
        del timeout
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "not toml [",
        "[budget]\ntotal = 1" + "0" * 5000,
        "\N{PILE OF POO}" * 1000,
        "[" * 100_000,
        "a = {" * 10_000,
        b"\xff\xfe\0",
        None,
        ValueError("a host's own transport"),
        KeyError("x"),
    ],
    ids=range(10),
)
def test_offer_of_any_content_changes_nothing(answer: Any, open_client: Opener) -> None:
    """No registry, nonsense, or a transport that raises: the sender goes on."""
    if isinstance(answer, str | bytes):
        answer = Answer(status=200, body=answer.encode() if isinstance(answer, str) else answer)
    client = open_client(*METRICS, transport=Odd(answer), offers=True)
    for _ in range(2):
        client.record("page", "x")
        assert client.flush()
    assert client.registry["page"] == METRICS[0]


def test_without_the_hosts_leave_nothing_is_asked(open_client: Opener) -> None:
    """The shipped registry is the only one."""
    transport = Odd(AssertionError("nobody asked for it"))
    client = open_client(transport=transport)
    client.record("page", "x")
    assert client.flush()
    assert client.registry["page"] == metric_of()


def test_registry_that_fits_in_a_later_year_takes_offers(clock: FixedClock, tmp_path: Any) -> None:
    """A metric that expired long ago counts in no year that is left."""
    old = metric_of("old", expires=datetime.date(2020, 1, 1))
    registry = Registry([old, metric_of()], total=4.01, today=datetime.date(2026, 1, 1))
    transport = MemoryTransport(registry=offer_of(with_noise(metric_of(), **noise(2))))
    with Client.open(
        tmp_path / "d",
        registry=registry,
        consent=True,
        transport=transport,
        offers=True,
        background=False,
        clock=clock,
    ) as client:
        client.record("page", "x")
        assert client.flush()
        assert client.registry["page"].params == QUIET


def test_step_outlives_the_database(open_client: Opener, tmp_path: Path) -> None:
    """It is never back: the copy of the budget holds it too."""
    asked = offer_of(*at(2))
    settings: dict[str, Any] = {"transport": MemoryTransport(registry=asked), "offers": True}
    client = open_client(*METRICS, **settings)
    for _ in range(2):  # the step comes after the first upload, the copy before the second
        client.record("page", "x")
        assert client.flush()
    client.close()
    lose(tmp_path / "device")
    client = open_client(*METRICS, offers=True)
    assert client.registry["page"].params == at(2)[0].params
    client.withdraw()
    assert open_client(*METRICS, offers=True).registry["page"].params == METRICS[0].params


def test_dots_in_texts_are_no_keys() -> None:
    """A description, and a list of names with dots, are read."""
    names = ", ".join(f"'www.a{i}.example'" for i in range(50))
    assert is_quick_to_read(
        f'description = "Where \\"to\\"? ... ... ... ..."\na = [{names}]'.encode()
    )


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 100_000 + " = 1",
        "#" * 10**6,
        "[" + "a." * 500 + "a]\n" + "".join("b." * 499 + f"c{i} = 1\n" for i in range(60)),
        '"\\""' + ".a" * 11 + '."x" = 1',
        'a = """\n\'"""' + "." * 11,
    ],
    ids=range(5),
)
def test_offer_that_takes_long_to_read_is_not_read(text: str, open_client: Opener) -> None:
    """A parser's time grows with the square of a key's dots: one of these would take hours."""
    assert not is_quick_to_read(text.encode())
    client = open_client(transport=MemoryTransport(registry=text), offers=True)
    client.record("page", "x")
    assert client.flush()
    assert client.registry["page"].params == BALANCED
