"""Both clients, Python's and JavaScript's, send the same reports for the same history of a device.

A history has two registries, a secret, a coin and events: values, flushes, reopenings, an opting
out, a withdrawal. The test draws random histories, and replays each history in both clients.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devices import build_metric, write_device
from node import query_program
from rappor_client import BudgetCap, Client, ClientOptions
from rappor_client.budget.identity import read_state
from rappor_client.network.transport import TransportResponse
from rappor_client.periods import day_of, find_interval_end

from rappor import Metric, Params, Registry
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.sealed_json import format_sealed_json

DAY = 86_400
START = int(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp())
STRINGS = ("", "a", "A", "duckduckgo", " duckduckgo ", "Straße", "日本語", "🎈 x")
"""A metric of strings gets these values."""
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
"""Encodings by name, except that of strings: fields of `Params`, and values."""
SEGMENTS: tuple[tuple[Dimension, ...], ...] = (
    (),
    (),
    (Dimension("version", ("1", "2")),),
    (Dimension("version", ("2",)), Dimension("country", ("de", "fr"))),
)
"""Segments of a metric. A random choice has no segment in half of all cases."""
LAST_FLUSH_DAYS = (1, 2, 4, 8, 16, 32, 64)
"""Days after a history on which the device flushes the remaining reports."""
COIN = 2**31 - 2**26
"""Smallest coin of a history. All coins lie between p and q of every metric, so an instantaneous
response equals the permanent one."""


def coin_at(now: float) -> int:
    """Return the coin of a time, so that any event of an interval can have the smallest tag."""
    return COIN + int(now) * 7919 % 1009


def bloom(rng: random.Random, normalize: str) -> Params:
    """Return a random parameter set of strings. Only g, p and q are random."""
    p, q = rng.choice(((0.25, 0.75), (0.375, 0.625)))
    return Params(k=16, h=2, m=8, f=0.25, g=rng.choice((0.5, 0.1)), p=p, q=q, normalize=normalize)


def draw_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
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
        return build_metric(name, params, **fields), PAIRS
    if kind in ("words", "parts"):
        normalize = rng.choice(("none", "strip", "casefold", "nfc"))
        if kind == "parts":
            share = rng.choice((0.3, 0.6))
            fields["parts"] = (Part("prefix:2", share), Part("whole"))
        return build_metric(name, bloom(rng, normalize), **fields), list(STRINGS)
    shape, values = SHAPES[kind]
    return build_metric(name, Params(**shape, **noise), **fields), values


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


def draw_bucket_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
    """Return a random metric whose reports name one bucket, and values for it."""
    params, values = BUCKETS[rng.choice(("set", "set", "theme", "seconds"))]
    metric = build_metric(
        name,
        params,
        epoch=rng.choice(("year", "quarter", "month")),
        interval="epoch",
        expires=datetime.date(2030, 12, 31),
        sampling_rate=rng.choice((1.0, 1.0, 0.7)),
        segments=rng.choice(SEGMENTS),
    )
    return metric, values


def change_metric(metric: Metric, rng: random.Random) -> Metric:
    """Return the metric with random changes, as a later registry may have it."""
    params = metric.params
    if params.keep is not None:
        # Another `keep`, or another number of items, begins a new scope within the epoch.
        keep = rng.choice((None, None, 0.3)) or params.keep
        items = 3 if params.encoding == "set" and rng.random() < 0.3 else params.items
        params = dataclasses.replace(params, keep=keep, items=items)
        return dataclasses.replace(metric, params=params, segments=rng.choice(SEGMENTS))
    if rng.random() < 0.5:
        params = dataclasses.replace(params, p=0.3125, q=0.6875)
    if rng.random() < 0.2:
        params = dataclasses.replace(params, f=0.125)
    changes: dict[str, Any] = {"params": params}
    if rng.random() < 0.3:
        changes["interval"] = rng.choice(("day", "week", "epoch"))
    if rng.random() < 0.3:
        changes["epoch"] = rng.choice(("life", "year", "quarter", "month"))
    if rng.random() < 0.3:
        changes["sampling_rate"] = rng.choice((1.0, 0.5, 0.01))
    if rng.random() < 0.3:
        changes["segments"] = rng.choice(SEGMENTS)
    is_once = changes.get("interval", metric.interval) == "epoch"
    if is_once and changes.get("epoch", metric.epoch) == "life":
        changes["epoch"] = "month"
    return dataclasses.replace(metric, **changes)


def draw_stop(rng: random.Random, names: list[str], now: float) -> object:
    """Return the key `stop` of a response: last days of stops by metric, or an invalid value."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
    last_day = day + datetime.timedelta(days=rng.choice((-1, 0, 9, 60)))
    invalid = rng.choice((7, "soon", [last_day.isoformat()], "2026-13-01"))
    stop = {
        rng.choice(names): rng.choice((last_day.isoformat(), invalid)),
        "no metric": "2027-01-01",
    }
    return rng.choice((stop, stop, stop, invalid))


MetricMaker = Callable[[random.Random, str], tuple[Metric, list[Any]]]
"""Type of a function that returns a metric of a name, and values for it."""


def draw_history(seed: int, make_metric: MetricMaker = draw_metric) -> dict[str, Any]:
    """Return a random history of a device: registries, a secret, and events with their times."""
    rng = random.Random(seed)  # noqa: S311  (a seed, no secret)
    # "constructor" is a property of every object in JavaScript.
    names = ["first", "second", "constructor"][: rng.randint(1, 3)]
    metrics_and_values = {name: make_metric(rng, name) for name in names}
    metrics = [metric for metric, _ in metrics_and_values.values()]
    changed_metrics = [change_metric(metric, rng) for metric in metrics]
    segments: list[dict[str, str]] = [{}, {"version": "1"}, {"version": "9", "country": "de"}]
    now = float(START + rng.randrange(90 * DAY))
    caps: list[dict[str, Any]] = [*[{}] * 6, {"total": 12.0}, {"total": 20.0, "per": "life"}]
    caps += [{"total": rng.choice((3.0, 6.0, 30.0))}] * 2
    events: list[dict[str, Any]] = [
        {"now": now, "open": 0, "caps": rng.choice(caps), "segment": rng.choice(segments)}
    ]
    for _ in range(rng.randint(6, 25)):
        now = max(0.0, now + rng.choice((60, 3000, DAY, DAY, 8 * DAY, 40 * DAY, 200 * DAY, -DAY)))
        draw = rng.random()
        if draw < 0.75:
            name = rng.choice(names)
            _, values = metrics_and_values[name]
            events.append({"now": now, "metric": name, "value": rng.choice(values)})
        elif draw < 0.85:
            stop = rng.choice(({}, {}, draw_stop(rng, names, now)))
            statuses = rng.choice(([200], [503], [200, 503]))
            events.append({"now": now, "flush": statuses, "stop": stop})
        elif draw < 0.93:
            settings = {"caps": rng.choice(caps), "segment": rng.choice(segments)}
            events.append({"now": now, "open": rng.randint(0, 1)} | settings)
        elif draw < 0.95:
            events.append({"now": now, "optOut": rng.choice(names)})
        elif draw < 0.96:
            events.append({"now": now, "withdraw": True})
            break
    registries = [Registry(entries, total=math.inf) for entries in (metrics, changed_metrics)]
    return {
        "secret": rng.randbytes(32),
        "registries": registries,
        "events": [*events, *({"now": now + days * DAY, "flush": []} for days in LAST_FLUSH_DAYS)],
    }


class ScriptedTransport:
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
        response_body = json.dumps({"reports": [{"status": "accepted"}], "stop": self.stop})
        return TransportResponse(status=status, body=response_body.encode(), retry_after=None)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def replay_in_python(history: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replay a history in the Python client; return outcomes, sent reports and reserved nats.

    The program `history.mjs` does the same in the JavaScript client.
    """
    write_device(folder, history["secret"])
    now = [0.0]  # a list, so that the functions of the client read the present item
    recorded: list[bool] = []
    client = None
    transport = ScriptedTransport()
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
            client.privacy_spent()  # writes the event before the clock moves
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
    # A device that has made no report, or has withdrawn, has no state.
    state = read_state(folder)
    scopes = state[0].scopes.values() if state else ()
    return {
        "recorded": recorded,
        "nats": spent.nats,
        "scopes": [(scope.metric, scope.epoch, scope.params) for scope in scopes],
        "sent": sorted(transport.sent.values()),
        "reserved": {str(year): nats for year, nats in spent.reserved.items()},
    }


def format_query(history: dict[str, Any]) -> dict[str, Any]:
    """Return a history in the form that the program for Node reads."""
    documents = [
        json.loads(format_sealed_json(registry, dict.fromkeys(registry, "")))
        for registry in history["registries"]
    ]
    return {
        "secret": history["secret"].hex(),
        "registries": documents,
        "events": history["events"],
        "coin": COIN,
    }


def find_comparable_events(history: dict[str, Any]) -> list[bool]:
    """Return for each event with a value whether the outcomes of both clients can be compared.

    They cannot be compared in two cases. The same reports leave in both.

    - The interval of the event was ended early, by a clock that went back or by an opting out. One
      client then skips the event as late, and the other client records it.
    - The metric has one report an epoch, and the event is not the first of its epoch. A client
      compares the drawn day with the clock when it stores events. The clients store at different
      times, so one of them may find earlier that the drawn day is over, and skip the event.
    """
    latest = early_end = -math.inf
    begun_epochs: set[tuple[str, str]] = set()
    registry, are_comparable = history["registries"][0], []
    for event in history["events"]:
        registry = history["registries"][event["open"]] if "open" in event else registry
        if event["now"] < latest or "optOut" in event:
            early_end = latest
        latest = max(latest, event["now"])
        if "metric" in event:
            is_over = latest < find_regular_end(registry, event["metric"], early_end)
            is_later = is_later_event_of_epoch(registry, event, begun_epochs)
            are_comparable.append(event["now"] == latest and not is_over and not is_later)
    return are_comparable


def is_later_event_of_epoch(
    registry: Registry, event: dict[str, Any], begun_epochs: set[tuple[str, str]]
) -> bool:
    """Return whether a metric with one report an epoch had an event in the epoch of this event.

    `begun_epochs` has the epochs with an event, each with its metric. The epoch is added.
    """
    name = event["metric"]
    if name not in registry or registry[name].interval != "epoch":
        return False
    key = (name, registry[name].epoch_at(day_of(event["now"])))
    is_later = key in begun_epochs
    begun_epochs.add(key)
    return is_later


def find_regular_end(registry: Registry, name: str, early_end: float) -> float:
    """Return the regular end of a metric's interval that was ended early at a time."""
    if name not in registry or early_end == -math.inf:
        return early_end
    interval = registry[name].interval
    return math.inf if interval == "epoch" else find_interval_end(interval, early_end)


def replay_in_both(
    histories: dict[int, dict[str, Any]], folder: Path
) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Replay histories in both clients, and compare the sent reports and the reserved nats.

    Yields the seed of each history, and its results in JavaScript and in Python.
    """
    node_results = query_program("history.mjs", map(format_query, histories.values()))
    for (seed, history), in_node in zip(histories.items(), node_results, strict=True):
        in_python = replay_in_python(history, folder / str(seed))
        assert sorted(in_node["sent"]) == in_python["sent"], f"seed {seed}"
        assert in_node["reserved"] == pytest.approx(in_python["reserved"]), f"seed {seed}"
        yield seed, in_node, in_python


def compare_clients(histories: dict[int, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Replay histories by seed in both clients, and compare; return the results of Python."""
    python_results: list[dict[str, Any]] = []
    for seed, in_node, in_python in replay_in_both(histories, folder):
        compare_outcomes(histories[seed], in_node, in_python, f"seed {seed}")
        python_results.append(in_python)
    return python_results


def compare_outcomes(
    history: dict[str, Any], in_node: dict[str, Any], in_python: dict[str, Any], message: str
) -> None:
    """Assert that each event that Python records is recorded by JavaScript, too.

    JavaScript may record more events: it computes whether a device belongs to the sample of an
    epoch, and its drawn day, only after the first event of the epoch.
    """
    outcomes = zip(in_node["recorded"], in_python["recorded"], strict=True)
    for is_comparable, (is_in_node, is_in_python) in zip(
        find_comparable_events(history), outcomes, strict=True
    ):
        assert is_in_node or not is_in_python or not is_comparable, message


@pytest.mark.slow
def test_the_same_history_leaves_the_same_reports(tmp_path: Path) -> None:
    """Both clients have the same outcomes, permanent responses, memoization, intervals and costs.

    The histories have changed registries, clocks that jump, stops, opting out and withdrawal. A
    difference that one history of six shows is found among 40 with probability 1 - (5/6)^40 = .999.
    """
    histories = {seed: draw_history(seed) for seed in range(40)}
    results = compare_clients(histories, tmp_path)
    assert sum(len(result["sent"]) for result in results) > 34
    assert {is_recorded for result in results for is_recorded in result["recorded"]} == {
        True,
        False,
    }


@pytest.mark.slow
def test_reports_of_tuples_once_an_epoch_are_equal(tmp_path: Path) -> None:
    """Both clients report the same combination of categories, or the same bucket of others."""
    shape = {key: value for key, value in CHOICE.items() if key != "k"}
    params, values = Params.profile("once", **shape), SHAPES["choice"][1]

    def make_metric(rng: random.Random, name: str) -> tuple[Metric, list[Any]]:
        epoch = rng.choice(("quarter", "month"))
        return build_metric(name, params, epoch=epoch, interval="epoch"), values

    histories = {seed: draw_history(seed, make_metric) for seed in range(60)}
    results = compare_clients(histories, tmp_path)
    assert sum(len(result["sent"]) for result in results) > 20


def compute_loss(params: Params) -> float:
    """Return the privacy loss of one report that names one bucket, in nats.

    With n own buckets of k, and T = 2^32 keep, the loss is
    ln(1 + T ceil(2^32 / n) / ((2^32 - T) floor(2^32 / k))).
    """
    assert params.keep is not None
    n, k, t, one = params.items, params.k, round(params.keep * 2**32), 2**32
    return math.log(1 + t * math.ceil(one / n) / ((one - t) * (one // k)))


def check_each_report_is_charged(
    in_node: dict[str, Any], in_python: dict[str, Any], message: str
) -> None:
    """Assert that both clients charge a scope for each report of one bucket.

    An epoch has one report of a metric, so each report begins a scope. JavaScript decides pending
    reports at least as often as Python. So it has each scope that Python has, and perhaps a scope
    whose report was not sent before its epoch ended, and that Python has not begun.
    """
    spent = in_node["metrics"]
    total = sum(metric["nats"] for metric in spent.values())
    assert in_node["nats"] == pytest.approx(total, abs=1e-9), message
    assert all(metric["reports"] == metric["scopes"] for metric in spent.values()), message
    for name, n_scopes in Counter(name for name, _, _ in in_python["scopes"]).items():
        assert name in spent, message
        assert spent[name]["scopes"] >= n_scopes, message


@pytest.mark.parametrize(
    "n",
    [pytest.param(40, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.acceptance)],
)
def test_reports_of_one_bucket_are_equal_and_cost_their_losses(tmp_path: Path, n: int) -> None:
    """Sets, categories and numbers once an epoch: the same buckets, and the same costs.

    Both clients spend the loss of one report for each scope that has a report of one bucket. A
    difference that one history of six shows is found among 40 with probability .999.
    """
    n_sent = 0
    n_scopes = 0
    histories = {seed: draw_history(seed, draw_bucket_metric) for seed in range(n)}
    for seed, in_node, in_python in replay_in_both(histories, tmp_path):
        compare_outcomes(histories[seed], in_node, in_python, f"seed {seed}")
        n_sent += len(in_python["sent"])
        scopes = in_python["scopes"]
        n_scopes += len(scopes)
        # An epoch has one report of a metric, so a device has at most one scope of each.
        assert len({scope[:2] for scope in scopes}) == len(scopes), f"seed {seed}"
        # The Python client reports the cost of a scope: its loss, rounded up to .001 nats.
        costs = [math.ceil(1000 * compute_loss(params)) / 1000 for _, _, params in scopes]
        assert in_python["nats"] == pytest.approx(sum(costs), abs=1e-9), f"seed {seed}"
        check_each_report_is_charged(in_node, in_python, f"seed {seed}")
        for name, spent in in_node["metrics"].items():
            # A scope has the parameters of either registry. JavaScript reveals only their number.
            first, later = (
                compute_loss(registry[name].params) for registry in histories[seed]["registries"]
            )
            possible_sums = [
                n_first * first + (spent["scopes"] - n_first) * later
                for n_first in range(spent["scopes"] + 1)
            ]
            assert any(
                spent["nats"] == pytest.approx(possible, abs=1e-9) for possible in possible_sums
            ), f"seed {seed}"
    assert n_scopes > n / 2
    assert n_sent > n / 4


@pytest.mark.slow
def test_a_device_that_has_reported_stays_in_its_sample(tmp_path: Path) -> None:
    """A smaller sampling rate applies to later epochs, and not to an epoch with a report."""
    params = Params(k=16, h=2, m=8, f=0.25, p=0.25, q=0.75)
    fields: dict[str, Any] = {"epoch": "quarter", "interval": "day"}
    metrics = [build_metric("page", params, sampling_rate=rate, **fields) for rate in (1.0, 1e-9)]
    days = (0, 1, 9, 99)
    first, *later = ({"now": START + day * DAY, "metric": "page", "value": "a"} for day in days)
    history = {
        "secret": bytes(range(32)),
        "registries": [Registry([metric], total=math.inf) for metric in metrics],
        "events": [
            {"now": START, "open": 0, "caps": {}},
            first,
            {"now": START + DAY, "flush": []},  # the device has reported
            {"now": START + DAY, "open": 1, "caps": {}},
            *later,
        ],
    }
    (result,) = compare_clients({0: history}, tmp_path)
    assert result["recorded"] == [True, True, True, False]  # the last event is in the next epoch


@pytest.mark.acceptance
def test_many_histories_leave_the_same_reports(tmp_path: Path) -> None:
    """The test of random histories, with a thousand histories."""
    compare_clients({seed: draw_history(seed) for seed in range(1000, 2000)}, tmp_path)
