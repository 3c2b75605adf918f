"""Both clients send the same reports for the same history of a device.

A history has registries, a secret, coins and events. Python and Node replay it.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices import metric_of, write_device
from node import answers
from rappor_client import BudgetCap, Client, ClientOptions
from rappor_client.network.transport import TransportResponse
from rappor_client.periods import find_interval_end

from rappor import Metric, Params, Registry
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.sealed_json import format_sealed_json

DAY = 86_400
START = int(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp())
WORDS = ("", "a", "A", "duckduckgo", " duckduckgo ", "Straße", "日本語", "🎈 x")
SHAPES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "theme": (
        {"k": 3, "encoding": "onehot", "categories": ("a", "b", "ü")},
        ["a", "b", "ü", "c", "other", "cd"],
    ),
    "boolean": ({"k": 1, "encoding": "boolean"}, [True, False]),
    "choice": (
        {
            "k": 4,
            "encoding": "onehot",
            "field_names": ("editor", "system"),
            "categories": ("vim\x1flinux", "vim\x1fmac", "Code\x1flinux", "Code\x1fmac"),
            "normalize": "casefold,none",
        },
        [
            {"editor": editor, "system": system}
            for editor in ("VIM", "code", "", "a\x1fb")
            for system in ("linux", "mac", "Mac")
        ],
    ),
    "seconds": (
        {"k": 3, "encoding": "buckets", "categories": ("0.5", "10")},
        [0, 0.5, 7.25, 1e300, "NaN"],
    ),
}
"""Encodings except that of strings, and values for them."""
SEGMENTS: tuple[tuple[Dimension, ...], ...] = (
    (),
    (),
    (Dimension("version", ("1", "2")),),
    (Dimension("version", ("2",)), Dimension("country", ("de", "fr"))),
)
TAIL = (1, 2, 4, 8, 16, 32, 64)
"""Days after a history on which the device flushes the remaining reports."""
COIN = 2**31 - 2**26
"""About every coin: an instantaneous response is the permanent one."""


def coin_at(now: float) -> int:
    """Return the coin of a time, so that any event of an interval can have the smallest tag."""
    return COIN + int(now) * 7919 % 1009


def bloom(rng: random.Random, normalize: str) -> Params:
    """Return a random parameter set of strings. Two of them may differ in p and q only."""
    p, q = rng.choice(((0.25, 0.75), (0.375, 0.625)))
    return Params(k=16, h=2, m=8, f=0.25, g=rng.choice((0.5, 0.1)), p=p, q=q, normalize=normalize)


def a_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
    """Return a random metric, and values for it."""
    fields: dict[str, Any] = {
        "epoch": rng.choice(("life", "year", "quarter", "month")),
        "interval": rng.choice(("day", "day", "week", "epoch")),
        "expires": rng.choice((*[datetime.date(2030, 12, 31)] * 9, datetime.date(2026, 12, 5))),
        "sampling_rate": rng.choice((1.0, 1.0, 0.7)),
        "segments": rng.choice(SEGMENTS),
    }
    if fields["interval"] == "epoch":
        fields["epoch"] = rng.choice(("year", "quarter", "month"))
    kind = rng.choice(("words", "parts", "pair", "theme", "choice", "boolean", "seconds"))
    noise: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": rng.choice((0.75, 0.5))}
    if kind == "pair":
        normalizers = rng.choice(("none", "strip,none", "none,strip", "casefold,strip"))
        params = dataclasses.replace(bloom(rng, "none"), field_names=("site", "country"))
        params = dataclasses.replace(params, normalize=normalizers)
        return metric_of(name, params, **fields), PAIRS
    if kind in ("words", "parts"):
        normalize = rng.choice(("none", "strip", "casefold", "nfc"))
        if kind == "parts":
            share = rng.choice((0.3, 0.6))
            fields["parts"] = (Part("prefix:2", share), Part("whole"))
        return metric_of(name, bloom(rng, normalize), **fields), list(WORDS)
    shape, values = SHAPES[kind]
    return metric_of(name, Params(**shape, **noise), **fields), values


CHOICE = SHAPES["choice"][0]
PAIRS = [
    {"site": site, "country": country}
    for site in ("", "a", "A", " a\x1f", "a\x1fb", "日本語")
    for country in ("de", " de ", "\x1fde", "x" * 9000)
]
"""Values of a metric of the fields site and country. Some values contain white space, the separator
of fields, or 9,000 characters. Both clients must encode them equally."""


BUCKETS: dict[str, tuple[Params, list[Any]]] = {
    "set": (
        Params(k=24, m=8, items=2, keep=0.4, encoding="set", normalize="casefold"),
        [[], ["git"], ["Git", "vim", "git"], ["a", "b", "c", "d"], ["x\ud800", "日本語"], [""]],
    ),
    "theme": (
        Params.profile("once", encoding="onehot", categories=("a", "b", "ü")),
        SHAPES["theme"][1],
    ),
    "seconds": (
        Params.profile("once", encoding="buckets", categories=("0.5", "10")),
        SHAPES["seconds"][1],
    ),
}
"""Parameters whose reports name one bucket, and values for them."""


def a_metric_of_buckets(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
    """Return a metric whose reports name one bucket, and values for it."""
    params, values = BUCKETS[rng.choice(("set", "set", "theme", "seconds"))]
    metric = metric_of(
        name,
        params,
        epoch=rng.choice(("year", "quarter", "month")),
        interval="epoch",
        expires=datetime.date(2030, 12, 31),
        sampling_rate=rng.choice((1.0, 1.0, 0.7)),
        segments=rng.choice(SEGMENTS),
    )
    return metric, values


def changed(metric: Metric, rng: random.Random) -> Metric:
    """Return the metric as a later registry may have it."""
    params = metric.params
    if params.keep is not None:
        if rng.random() < 0.3:
            params = dataclasses.replace(params, keep=0.3)
        return dataclasses.replace(metric, params=params, segments=rng.choice(SEGMENTS))
    if rng.random() < 0.5:
        params = dataclasses.replace(params, p=0.3125, q=0.6875)
    if rng.random() < 0.2:
        params = dataclasses.replace(params, f=0.125)
    more: dict[str, Any] = {"params": params}
    if rng.random() < 0.3:
        more["interval"] = rng.choice(("day", "week", "epoch"))
    if rng.random() < 0.3:
        more["epoch"] = rng.choice(("life", "year", "quarter", "month"))
    if rng.random() < 0.3:
        more["sampling_rate"] = rng.choice((1.0, 0.5, 0.01))
    if rng.random() < 0.3:
        more["segments"] = rng.choice(SEGMENTS)
    is_once = more.get("interval", metric.interval) == "epoch"
    if is_once and more.get("epoch", metric.epoch) == "life":
        more["epoch"] = "month"
    return dataclasses.replace(metric, **more)


def a_stop(rng: random.Random, names: list[str], now: float) -> object:
    """Return the stops of a response, valid ones and others."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
    last = day + datetime.timedelta(days=rng.choice((-1, 0, 9, 60)))
    odd = rng.choice((7, "soon", [last.isoformat()], "2026-13-01"))
    asked = {rng.choice(names): rng.choice((last.isoformat(), odd)), "no metric": "2027-01-01"}
    return rng.choice((asked, asked, asked, odd))


Maker = Callable[[random.Random, str], tuple[Metric, list[Any]]]
"""A function that returns a metric and values for it."""


def a_history(seed: int, make_metric: Maker = a_metric) -> dict[str, Any]:
    """Return the history of a device: registries, a secret, and events with their times."""
    rng = random.Random(seed)  # noqa: S311  (a seed, no secret)
    names = ["first", "second", "constructor"][: rng.randint(1, 3)]
    pairs = {name: make_metric(rng, name) for name in names}
    metrics = [metric for metric, _ in pairs.values()]
    later = [changed(metric, rng) for metric in metrics]
    owns: list[dict[str, str]] = [{}, {"version": "1"}, {"version": "9", "country": "de"}]
    now = float(START + rng.randrange(90 * DAY))
    caps: list[dict[str, Any]] = [*[{}] * 6, {"total": 12.0}, {"total": 20.0, "per": "life"}]
    caps += [{"total": rng.choice((3.0, 6.0, 30.0))}] * 2
    events: list[dict[str, Any]] = [
        {"now": now, "open": 0, "caps": rng.choice(caps), "segment": rng.choice(owns)}
    ]
    for _ in range(rng.randint(6, 25)):
        now = max(0.0, now + rng.choice((60, 3000, DAY, DAY, 8 * DAY, 40 * DAY, 200 * DAY, -DAY)))
        draw = rng.random()
        if draw < 0.75:
            name = rng.choice(names)
            value = rng.choice(pairs[name][1])
            events.append({"now": now, "metric": name, "value": value})
        elif draw < 0.85:
            more = {"stop": rng.choice(({}, {}, a_stop(rng, names, now)))}
            events.append({"now": now, "flush": rng.choice(([200], [503], [200, 503]))} | more)
        elif draw < 0.93:
            more = {"caps": rng.choice(caps), "segment": rng.choice(owns)}
            events.append({"now": now, "open": rng.randint(0, 1)} | more)
        elif draw < 0.95:
            events.append({"now": now, "optOut": rng.choice(names)})
        elif draw < 0.96:
            events.append({"now": now, "withdraw": True})
            break
    registries = [Registry(each, total=math.inf) for each in (metrics, later)]
    return {
        "secret": rng.randbytes(32),
        "registries": registries,
        "events": [*events, *({"now": now + days * DAY, "flush": []} for days in TAIL)],
    }


class Scripted:
    """A transport that returns the statuses of a list in turn, and then accepts every report."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.stop: dict[str, str] = {}
        self.sent: dict[str, list[Any]] = {}

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:  # noqa: ARG002  (the protocol's)
        """Store the body, and return the next response."""
        status = self.statuses.pop(0) if self.statuses else 200
        upload = json.loads(body)
        (report,) = upload["reports"]
        self.sent[upload["id"]] = [report[key] for key in ("metric", "params", "cohort", "bits")]
        answer = {"reports": [{"status": "accepted"}], "stop": self.stop}
        return TransportResponse(status=status, body=json.dumps(answer).encode(), retry_after=None)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def in_python(history: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replay a history with the Python client; return the sent reports and the losses."""
    write_device(folder, history["secret"])
    now = [0.0]
    recorded: list[bool] = []
    client = None
    transport = Scripted()
    for event in history["events"]:
        now[0] = event["now"]
        if "open" in event:
            if client is not None:
                client.close()
            client = Client.open(
                folder,
                registry=history["registries"][event["open"]],
                consent=True,
                collector=transport,
                options=ClientOptions(
                    budget_cap=BudgetCap(**event["caps"]),
                    segment=event.get("segment", {}),
                    background=False,
                    clock=lambda: now[0],
                    coins=lambda n: [coin_at(now[0])] * n,
                ),
            )
        assert client is not None
        if "metric" in event:
            value = math.nan if event["value"] == "NaN" else event["value"]
            recorded.append(bool(client.record(event["metric"], value)))
            client.privacy_spent()  # it is written before the clock moves
        if "optOut" in event:
            client.opt_out(event["optOut"])
        if "flush" in event:
            transport.statuses = list(event["flush"])
            transport.stop = event.get("stop", {})
            client.flush(timeout=1.0)
        if "withdraw" in event:
            assert client.withdraw()
    assert client is not None
    spent = client.privacy_spent()
    client.close()
    return {
        "recorded": recorded,
        "sent": sorted(transport.sent.values()),
        "reserved": {str(year): nats for year, nats in spent.reserved.items()},
    }


def question(history: dict[str, Any]) -> dict[str, Any]:
    """Return a history as the program for Node reads it."""
    documents = [
        json.loads(format_sealed_json(each, dict.fromkeys(each, "")))
        for each in history["registries"]
    ]
    return {
        "secret": history["secret"].hex(),
        "registries": documents,
        "events": history["events"],
        "coin": COIN,
    }


def on_time(history: dict[str, Any]) -> list[bool]:
    """Return of each recorded value whether its interval cannot be over yet.

    It is over where a clock that went back, or an opting out, has ended it, and once an epoch where
    a client has looked at its day. There one client says that the value's report stays, the other
    that it does not: the same reports leave.
    """
    latest = left = -math.inf
    registry, told = history["registries"][0], []
    for event in history["events"]:
        registry = history["registries"][event["open"]] if "open" in event else registry
        left = latest if event["now"] < latest or "optOut" in event else left
        latest = max(latest, event["now"])
        if "metric" in event:
            is_over = latest < over(registry, event["metric"], left)
            told.append(event["now"] == latest and not is_over)
    return told


def over(registry: Registry, name: str, left: float) -> float:
    """Return when the interval of a metric ends that was left early at a moment."""
    if name not in registry or left == -math.inf:
        return left
    interval = registry[name].interval
    return math.inf if interval == "epoch" else find_interval_end(interval, left)


def compare(histories: dict[int, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Replay histories by seed in both clients and compare; return what each was answered."""
    answered = answers("history.mjs", map(question, histories.values()))
    replayed: list[dict[str, Any]] = []
    for (seed, history), answer in zip(histories.items(), answered, strict=True):
        expected = in_python(history, folder / str(seed))
        assert sorted(answer["sent"]) == expected["sent"], f"seed {seed}"
        assert answer["reserved"] == pytest.approx(expected["reserved"]), f"seed {seed}"
        # a page learns of an epoch's sample and day after the epoch's first event
        both = zip(on_time(history), answer["recorded"], expected["recorded"], strict=True)
        assert all(page or not program for told, page, program in both if told), f"seed {seed}"
        replayed.append(expected)
    return replayed


@pytest.mark.slow
def test_the_same_history_leaves_the_same_reports(tmp_path: Path) -> None:
    """Outcomes, permanent responses, memoization, intervals and costs.

    Over changed registries, clocks that jump, refusals, opting out, and withdrawal.
    """
    replayed = compare({seed: a_history(seed) for seed in range(70)}, tmp_path)
    assert sum(len(device["sent"]) for device in replayed) > 60
    assert {told for device in replayed for told in device["recorded"]} == {True, False}


@pytest.mark.slow
def test_reports_of_tuples_once_an_epoch_leave_alike(tmp_path: Path) -> None:
    """The same combination of categories, or the same bucket for other values, is reported."""
    shape = {key: value for key, value in CHOICE.items() if key != "k"}
    params, values = Params.profile("once", **shape), SHAPES["choice"][1]

    def make_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
        return metric_of(
            name, params, epoch=rng.choice(("quarter", "month")), interval="epoch"
        ), values

    replayed = compare({seed: a_history(seed, make_metric) for seed in range(120)}, tmp_path)
    assert sum(len(device["sent"]) for device in replayed) > 40


@pytest.mark.slow
def test_reports_of_one_bucket_leave_alike(tmp_path: Path) -> None:
    """Sets, categories and numbers once an epoch: the same buckets, and the same costs."""
    histories = {seed: a_history(seed, a_metric_of_buckets) for seed in range(160)}
    replayed = compare(histories, tmp_path)
    assert sum(len(device["sent"]) for device in replayed) > 40


@pytest.mark.slow
def test_a_device_that_has_answered_stays_in_its_sample(tmp_path: Path) -> None:
    """A smaller share is for the epochs that it has not begun."""
    params = Params(k=16, h=2, m=8, f=0.25, p=0.25, q=0.75)
    fields: dict[str, Any] = {"epoch": "quarter", "interval": "day"}
    shares = [metric_of("page", params, sampling_rate=share, **fields) for share in (1.0, 1e-9)]
    days = (0, 1, 9, 99)
    first, *later = ({"now": START + day * DAY, "metric": "page", "value": "a"} for day in days)
    history = {
        "secret": bytes(range(32)),
        "registries": [Registry([metric], total=math.inf) for metric in shares],
        "events": [
            {"now": START, "open": 0, "caps": {}},
            first,
            {"now": START + DAY, "flush": []},  # the device has reported
            {"now": START + DAY, "open": 1, "caps": {}},
            *later,
        ],
    }
    (replayed,) = compare({0: history}, tmp_path)
    assert replayed["recorded"] == [True, True, True, False]


@pytest.mark.acceptance
def test_many_histories_leave_the_same_reports(tmp_path: Path) -> None:
    """The same, a thousand times."""
    compare({seed: a_history(seed) for seed in range(1000, 2000)}, tmp_path)
