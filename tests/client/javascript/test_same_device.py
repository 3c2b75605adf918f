"""Both clients are one device: the same history leaves the same state in both."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from devices import metric_of, open_device, state_of, write_device
from node import answers
from rappor_client import Caps, FlushReason, Reason
from rappor_client.budget.scopes import Scope
from rappor_client.network.transport import Answer
from rappor_client.person.contents import read_contents

from rappor import Metric, Params, Registry
from rappor.protocol.parts import Part
from rappor.protocol.wire import encode_base64url
from rappor.registry.sealed_json import sealed_json

DAY = 86_400
START = int(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp())
WORDS = ("", "a", "A", "duckduckgo", " duckduckgo ", "Straße", "日本語", "🎈 x")
SCOPE = (
    *("metric", "epoch", "response", "first", "end", "params", "cohort"),
    *("permanent", "admitted", "last", "closed", "patterns", "interval"),
)
SHAPES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "theme": ({"k": 3, "encoding": "onehot", "categories": ("a", "b", "ü")}, ["a", "b", "ü", "c"]),
    "boolean": ({"k": 1, "encoding": "boolean"}, [True, False]),
    "flags": (
        {"k": 3, "encoding": "flags", "categories": ("a", "b", "ü")},
        [[], ["a"], ["a", "ü"], ["z"]],
    ),
    "seconds": (
        {"k": 3, "encoding": "buckets", "categories": ("0.5", "10")},
        [0, 0.5, 7.25, 1e300, "NaN"],
    ),
}
"""Encodings but that of strings, and values for them."""
KEPT = {"recorded": "kept", "held": "kept", "repeated": "kept", "closed": "kept"}
SILENT = {
    Reason.NO_CONSENT: "no consent",
    Reason.OPTED_OUT: "opted out",
    Reason.EXPIRED: "expired",
    **dict.fromkeys(
        (Reason.NO_BUDGET, Reason.NOT_IN_SAMPLE, Reason.EARLY, Reason.STOPPED), "silent"
    ),
}
"""What the other client says of an outcome; it says more of what is kept."""
FLUSHES = {
    FlushReason.NOTHING_WAITING: "nothing waiting",
    FlushReason.SENT: "sent",
    FlushReason.REFUSED: "refused",
    FlushReason.UNREACHABLE: "unreachable",
    FlushReason.COLLECTOR_ERROR: "collector error",
    FlushReason.ASKED_TO_WAIT: "asked to wait",
    FlushReason.BUSY: "busy",
    FlushReason.TIMEOUT: "timeout",
    FlushReason.NO_CONSENT: "no consent",
}


def bloom(rng: random.Random, normalize: str) -> Params:
    """Return a parameter set of strings, two of which can differ in p and q alone."""
    p, q = rng.choice(((0.25, 0.75), (0.375, 0.625)))
    return Params(k=16, h=2, m=8, f=0.25, g=rng.choice((0.5, 0.1)), p=p, q=q, normalize=normalize)


def a_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
    """Return some metric, and values for it."""
    fields: dict[str, Any] = {
        "epoch": rng.choice(("life", "year", "quarter", "month")),
        "interval": rng.choice(("none", "hour", "day", "week", "epoch")),
        "expires": rng.choice((datetime.date(2030, 12, 31), datetime.date(2026, 12, 5))),
        "sample": rng.choice((1.0, 1.0, 0.7)),
    }
    if fields["interval"] == "epoch":
        fields["epoch"] = rng.choice(("year", "quarter", "month"))
    kind = rng.choice(("words", "parts", "theme", "boolean", "flags", "seconds"))
    noise: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": rng.choice((0.75, 0.5))}
    if kind in ("words", "parts"):
        normalize = rng.choice(("none", "strip", "casefold", "nfc"))
        if normalize in ("none", "strip") and fields["interval"] != "epoch":
            fields["patterns"] = rng.choice((1, 2, 3))
        if kind == "parts":
            share = rng.choice((0.3, 0.6))
            fields["parts"] = (Part("prefix:2", share), Part("whole"))
        return metric_of(name, bloom(rng, normalize), **fields), list(WORDS)
    fields["patterns"] = 1 if fields["interval"] == "epoch" else rng.choice((1, 2))
    shape, values = SHAPES[kind]
    return metric_of(name, Params(**shape, **noise), **fields), values


def changed(metric: Metric, rng: random.Random) -> Metric:
    """Return what a later registry may say of a metric."""
    params = metric.params
    if rng.random() < 0.5:
        params = dataclasses.replace(params, p=0.3125, q=0.6875)
    if rng.random() < 0.2:
        params = dataclasses.replace(params, f=0.125)
    more: dict[str, Any] = {"params": params}
    if rng.random() < 0.3:
        more["interval"] = rng.choice(("none", "hour", "day", "week", "epoch"))
    if rng.random() < 0.3:
        more["epoch"] = rng.choice(("life", "year", "quarter", "month"))
    if rng.random() < 0.3:
        more["sample"] = rng.choice((1.0, 0.5, 0.01))
    if metric.patterns > 1:
        more["patterns"] = rng.choice((1, 2, 3))
    if more.get("interval", metric.interval) == "epoch":
        more["patterns"] = 1
        if more.get("epoch", metric.epoch) == "life":
            more["epoch"] = "month"
    return dataclasses.replace(metric, **more)


def a_history(seed: int) -> dict[str, Any]:
    """Return a device's history: registries, a secret, and what happened when."""
    rng = random.Random(seed)  # noqa: S311  (a seed, no secret)
    names = ["first", "second", "constructor"][: rng.randint(1, 3)]
    pairs = {name: a_metric(rng, name) for name in names}
    metrics = [metric for metric, _ in pairs.values()]
    later = [changed(metric, rng) for metric in metrics]
    registries = [Registry(each, total=math.inf) for each in (metrics, later)]
    now = float(START + rng.randrange(90 * DAY))
    caps: list[dict[str, Any]] = [{}, {}, {"total": 12.0}, {"total": 20.0, "per": "life"}]
    events: list[dict[str, Any]] = [{"now": now, "open": 0, "caps": rng.choice(caps)}]
    for _ in range(rng.randint(3, 25)):
        now = max(0.0, now + rng.choice((60, 3000, DAY, DAY, 8 * DAY, 40 * DAY, 200 * DAY, -DAY)))
        if rng.random() < 0.05:
            now = float(START)
        draw = rng.random()
        if draw < 0.75:
            name = rng.choice(names)
            value = rng.choice(pairs[name][1])
            events.append({"now": now, "metric": name, "value": value})
        elif draw < 0.85:
            events.append({"now": now, "flush": rng.choice(([200], [503], [400], [200, 503]))})
        elif draw < 0.93:
            events.append({"now": now, "open": rng.randint(0, 1), "caps": rng.choice(caps)})
        elif draw < 0.97:
            events.append({"now": now, "optOut": rng.choice(names)})
        else:
            events += [{"now": now, "withdraw": True}]
            break
    return {
        "secret": rng.randbytes(32),
        "registries": registries,
        "events": events,
        "coin": 2**32 - 1,  # in both, an interval keeps its first event
    }


class Scripted:
    """A transport that answers with the statuses it is given, then accepts."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.stop: dict[str, str] = {}

    def send(self, body: bytes, *, timeout: float) -> Answer:  # noqa: ARG002  (the protocol's)
        """Answer."""
        status = self.statuses.pop(0) if self.statuses else 200
        answer = {"reports": [{"status": "accepted"}], "stop": self.stop}
        return Answer(status=status, body=json.dumps(answer).encode(), retry_after=None)

    def close(self) -> None:
        """Sever nothing."""


def in_python(history: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replay a history with the Python client and return what the folder holds."""
    write_device(folder, history["secret"])
    now, tags = [0.0], itertools.count()  # an interval keeps its first event
    told: list[str] = []
    client = None
    transport = Scripted()
    for event in history["events"]:
        now[0] = event["now"]
        if "open" in event:
            if client is not None:
                client.close()
            client = open_device(
                folder,
                registry=history["registries"][event["open"]],
                caps=Caps(**event["caps"]),
                collector=transport,
                clock=lambda: now[0],
                coins=lambda n: [0, next(tags)] if n == 2 else [history["coin"]] * n,
            )
        assert client is not None
        if "metric" in event:
            value = math.nan if event["value"] == "NaN" else event["value"]
            outcome = client.record(event["metric"], value)
            client.waiting()  # which writes it
            told.append("kept" if outcome.reason is None else SILENT.get(outcome.reason, "kept"))
        if "optOut" in event:
            client.opt_out(event["optOut"])
        if "flush" in event:
            transport.statuses = list(event["flush"])
            transport.stop = event.get("stop", {})
            told.append(FLUSHES[client.flush(timeout=0.0).reason])
        if "withdraw" in event:
            told.append(str(bool(client.withdraw())).lower())
    assert client is not None
    client.close()
    return {"answers": told} | held(folder)


def held(folder: Path) -> dict[str, Any]:
    """Return what a folder holds, in the words of the other client."""
    contents = read_contents(folder)
    if not contents.has_secret:
        years = {str(year): nats for year, nats in contents.spent.reserved.items()}
        return {"scopes": [], "reserved": years}
    reserved = state_of(folder).reserved.nats
    return {
        "scopes": sorted(scope(each) for each in contents.scopes),
        "reserved": sorted([*row, nats] for row, nats in reserved.items()),
    }


def scope(each: Scope) -> list[Any]:
    """Return a scope with texts for bytes."""
    admitted, last, closed = each.names
    metric, epoch, response = each.key
    assert last is not None
    told = [metric, epoch, response, each.first_day, each.last_day, each.params.fingerprint]
    told += [str(each.cohort), encode_base64url(each.permanent)]
    names = [encode_base64url(name) for name in admitted]
    is_closed = closed and each.patterns > 1  # one pattern is never asked again
    return [*told, names, encode_base64url(last), is_closed, each.patterns, each.interval]


def in_javascript(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of the other client in the same form."""
    device = answer.get("device") or {"reserved": []}
    told = [KEPT.get(each, each) for each in answer["answers"]]
    if not answer["hasSecret"]:
        years = {str(row[0]): row[3] for row in device["reserved"]}
        return {"answers": told, "scopes": [], "reserved": years}
    scopes = [
        [each[key] for key in SCOPE[:-3]]
        + [each["closed"] and each["patterns"] > 1, each["patterns"], each["interval"]]
        for each in device["scopes"]
    ]
    return {
        "answers": told,
        "scopes": sorted([*each[:6], str(each[6]), *each[7:]] for each in scopes),
        "reserved": sorted(device["reserved"]),
    }


def question(history: dict[str, Any]) -> dict[str, Any]:
    """Return a history as the other client reads it."""
    documents = [
        json.loads(sealed_json(each, dict.fromkeys(each, ""))) for each in history["registries"]
    ]
    return {
        "secret": history["secret"].hex(),
        "registries": documents,
        "events": history["events"],
        "coin": history["coin"],
    }


def compare(histories: dict[int, dict[str, Any]], folder: Path) -> list[list[str]]:
    """Replay histories by seed in both clients and compare; return what each was answered."""
    answered = answers("history.mjs", map(question, histories.values()))
    seen: list[list[str]] = []
    for (seed, history), answer in zip(histories.items(), answered, strict=True):
        expected = in_python(history, folder / str(seed))
        assert in_javascript(answer) == expected, f"seed {seed}"
        seen.append(expected["answers"])
    return seen


def test_the_same_history_leaves_the_same_device(tmp_path: Path) -> None:
    """Outcomes, permanent responses, latches, closing, prices, ledger, intervals and spool.

    Over changed registries, clocks that jump, refusals, opting out, and withdrawal.
    """
    told = compare({seed: a_history(seed) for seed in range(60)}, tmp_path)
    seen = set().union(*told)
    assert {"kept", "silent", "expired", "opted out", "sent"} <= seen


def test_a_device_that_has_answered_stays_in_its_sample(tmp_path: Path) -> None:
    """A smaller share is for the epochs that it has not begun."""
    params = Params(k=16, h=2, m=8, f=0.25, p=0.25, q=0.75)
    fields: dict[str, Any] = {"epoch": "quarter", "interval": "none"}
    shares = [metric_of("page", params, sample=share, **fields) for share in (1.0, 1e-9)]
    records = [{"now": START + day * DAY, "metric": "page", "value": "a"} for day in (0, 9, 99)]
    history = {
        "secret": bytes(range(32)),
        "registries": [Registry([metric], total=math.inf) for metric in shares],
        "events": [
            {"now": START, "open": 0, "caps": {}},
            records[0],
            {"now": START, "open": 1, "caps": {}},
            *records[1:],
        ],
        "coin": 2**32 - 1,
    }
    assert compare({0: history}, tmp_path) == [["kept", "kept", "silent"]]


@pytest.mark.parametrize("first", ["year", "quarter", "month"])
@pytest.mark.parametrize("second", ["year", "quarter", "month"])
def test_a_changed_epoch_has_no_second_report(first: str, second: str, tmp_path: Path) -> None:
    """Of what two registries hold on one day, only one leaves for the scope that it begins."""
    params = Params.profile("once")
    metrics = [metric_of("page", params, epoch=each, interval="epoch") for each in (first, second)]
    last = START + 41 * DAY  # of all epochs: no device draws a later day
    history = {
        "secret": bytes(range(32)),
        "registries": [Registry([metric], total=math.inf) for metric in metrics],
        "events": [
            {"now": last, "open": 0, "caps": {}},
            {"now": last, "metric": "page", "value": "a"},
            {"now": last, "open": 1, "caps": {}},
            {"now": last, "metric": "page", "value": "b"},
            *({"now": last + days * DAY, "flush": [200]} for days in (2, 2, 3)),
        ],
        "coin": 2**32 - 1,
    }
    (told,) = compare({0: history}, tmp_path)
    assert told == ["kept", "kept", "sent", *["nothing waiting"] * 2]


def test_a_stop_holds_in_both_what_waits(tmp_path: Path) -> None:
    """Reports of the stopped metric wait until its day is over; others leave meanwhile."""
    params = Params(k=16, h=2, m=8, f=0.25, p=0.25, q=0.75)
    metrics = [
        metric_of(name, params, epoch="quarter", interval="none") for name in ("first", "second")
    ]
    stop = {"first": "2026-11-22"}
    history = {
        "secret": bytes(range(32)),
        "registries": [Registry(metrics, total=math.inf)],
        "events": [
            {"now": START, "open": 0, "caps": {}},
            *({"now": START, "metric": "first", "value": "a"} for _ in range(3)),
            {"now": START, "flush": [503]},
            {"now": START + DAY, "flush": [200], "stop": stop},
            {"now": START + DAY, "metric": "first", "value": "a"},
            {"now": START + DAY, "metric": "second", "value": "a"},
            *({"now": START + 2 * DAY, "flush": [200], "stop": stop} for _ in range(2)),
            *({"now": START + 3 * DAY, "flush": []} for _ in range(2)),
        ],
        "coin": 2**32 - 1,
    }
    (told,) = compare({0: history}, tmp_path)
    assert told[3:7] == ["collector error", "timeout", "silent", "kept"]  # one step a flush
    assert told[7:] == ["timeout", "asked to wait", "timeout", "sent"]


@pytest.mark.acceptance
def test_many_histories_leave_the_same_device(tmp_path: Path) -> None:
    """The same, a thousand times."""
    compare({seed: a_history(seed) for seed in range(1000, 2000)}, tmp_path)
