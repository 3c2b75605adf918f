"""record(): what it takes, what it refuses, and when."""

from __future__ import annotations

import datetime
import math
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from devices import BALANCED, BOOLEAN, Opener, metric_of, open_device, peek
from rappor_client import Caps, Client, Outcome, Reason, SpoolLimits
from rappor_client.budget.spent import NOTHING_SPENT
from rappor_client.testing import (
    FixedClock,
    MemoryTransport,
    constant_coins,
)
from registries import registry_of

from rappor import Params
from rappor.ground.errors import FileError, MetricError, ParamsError, ReportError

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
CLEAR: dict[str, Any] = {"f": 0.5, "p": 0.0, "q": 1.0}
"""Reports that show the permanent response itself."""
ONEHOT = Params(k=3, encoding="onehot", categories=("a", "b", "c"), **NOISE)
FLAGS = Params(k=2, encoding="flags", categories=("a", "b"), **NOISE)
BUCKETS = Params(k=3, encoding="buckets", categories=("0", "1"), **NOISE)
TOML = """
[budget]
total = inf
[metrics.page]
description = "a"
owner = "b"
expires = 2030-12-31
epoch = "life"
encoding = "bloom"
profile = "balanced"
interval = "day"
"""


@pytest.mark.parametrize(
    ("params", "value"),
    [
        (BALANCED, "duckduckgo"),
        (BALANCED, ""),
        (ONEHOT, "d"),
        (FLAGS, ["z"]),
        (BUCKETS, math.nan),
        (BALANCED, "ü" * 10_000_000),
        (ONEHOT, "b"),
        (BOOLEAN, False),
        (FLAGS, []),
        (FLAGS, {"a", "b"}),
        (BUCKETS, 0.5),
        (BUCKETS, math.inf),
        (BUCKETS, -3),
    ],
    ids=range(13),
)
def test_values_of_every_kind_are_recorded(
    params: Params, value: object, open_client: Opener
) -> None:
    """Strings, categories, booleans, flags and numbers."""
    transport = MemoryTransport()
    client = open_client(metric_of(params=params), collector=transport)
    assert client.record("page", value) == Outcome.KEPT
    assert client.flush()
    (report,) = transport.reports
    assert report.params == params.fingerprint
    assert len(report.bits) == params.n_bytes


@pytest.mark.parametrize(
    ("params", "value"),
    [
        (BALANCED, b"bytes"),
        (BALANCED, "\ud800"),
        (BALANCED, True),
        (BALANCED, None),
        (BALANCED, 3),
        (ONEHOT, ["a"]),
        (BOOLEAN, "yes"),
        (BOOLEAN, 1),
        (FLAGS, "a"),
        (BUCKETS, True),
        (BUCKETS, "1"),
    ],
    ids=range(11),
)
def test_wrong_values_are_errors_at_the_call(
    params: Params, value: object, open_client: Opener
) -> None:
    """The host has a bug: it hears of it, and nothing is kept or charged."""
    client = open_client(metric_of(params=params))
    with pytest.raises(ReportError):
        client.record("page", value)
    assert client.waiting() == 0
    assert client.spent().nats == 0


@pytest.mark.parametrize("name", ["telltale", None, ["page"], 3, b"page"])
def test_unknown_metric_is_an_error_at_the_call(name: Any, open_client: Opener) -> None:
    """One sentence tells the names that there are, not the given one: it may be a swapped value."""
    told = "unknown metric; the registry has page|a metric's name must be a text, got [a-zNT]+"
    with pytest.raises(MetricError, match=f"^({told})$"):
        open_client().record(name, "telltale")


def test_registry_is_read_from_its_file(tmp_path: Path, clock: FixedClock) -> None:
    """The path of a TOML file will do, and an interval may stand in it."""
    path = tmp_path / "metrics.toml"
    path.write_text(TOML)
    with open_device(tmp_path / "d", registry=path, clock=clock) as client:
        assert client.record("page", "x") == Outcome.KEPT
    with pytest.raises(FileError):
        Client.open(tmp_path / "d", registry=tmp_path / "absent.toml", consent=True)


def test_expired_metric_is_not_recorded(open_client: Opener, clock: FixedClock) -> None:
    """Its last day counts, the day after does not."""
    client = open_client(metric_of(expires=datetime.date(2026, 11, 18)))
    assert client.record("page", "x") == Outcome.KEPT
    clock.set("2026-11-18T23:59:59")
    assert client.record("page", "x") == Outcome.KEPT
    clock.set("2026-11-19T00:00:00")
    assert client.record("page", "x") == Outcome.SILENT
    assert client.waiting() == 2


def test_hundred_threads_record_at_once(open_client: Opener) -> None:
    """Every value is kept once and charged once."""
    client = open_client(metric_of(patterns=8), limits=SpoolLimits(reports=10_000))
    outcomes: list[Outcome] = []
    start = threading.Barrier(100)

    def work(i: int) -> None:
        start.wait()
        outcomes.extend(client.record("page", f"v{i % 7}") for _ in range(5))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {Outcome.KEPT: 500}
    assert client.waiting() == 500
    spent = client.spent().metrics["page"]
    assert spent.patterns == 7


def handles(folder: Path) -> list[str]:
    """Return this process's open files of a folder, where the system lists them (Linux)."""
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    opened = [str(link.readlink()) for link in links]
    return [name for name in opened if name.startswith(f"{folder}/device/spool-")]


def senders() -> set[threading.Thread]:
    """Return the sender threads that are alive."""
    return {thread for thread in threading.enumerate() if thread.name == "rappor-sender"}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system lists no open files")
def test_fork_shares_no_handle_no_thread_and_no_randomness(
    open_client: Opener, tmp_path: Path
) -> None:
    """Parent and child go on recording; their instantaneous coins differ, their secret does not."""
    transport = MemoryTransport()
    later = 1e9  # the sender's first step is a random part of it away
    client = open_client(
        metric_of(params=BALANCED), collector=transport, background=True, max_delay=later
    )
    client.record("page", "x")
    folder = tmp_path / "device"
    assert client.waiting() == 1
    assert len(senders()) == 1
    assert handles(folder)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fresh = not handles(folder) and not senders()
            kept = [client.record("page", "x") for _ in range(20)]
            n_waiting = client.waiting()
            code = 0 if fresh and all(kept) and n_waiting == 21 and len(senders()) == 1 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for _ in range(20):  # after the child: whoever waits for its lock may only queue a report
        assert client.record("page", "x")
    assert client.waiting() == 41
    assert client.spent().metrics["page"].patterns == 1
    bits = {report.bits for report in peek(folder).waiting}
    assert len(bits) == 41  # of 128 fresh coins each: two are equal with probability below 2^-60


# Intervals


@pytest.mark.parametrize(
    ("interval", "within", "after"),
    [
        ("hour", "2026-11-18T12:59:59", "2026-11-18T13:00:00"),
        ("day", "2026-11-18T23:59:59", "2026-11-19T00:00:00"),
        ("week", "2026-11-22T23:59:59", "2026-11-23T00:00:00"),
    ],
)
def test_one_report_leaves_an_interval(
    interval: str, within: str, after: str, open_client: Opener, clock: FixedClock
) -> None:
    """However many events: one report, charged and sent once the interval is over."""
    transport = MemoryTransport()
    metric = metric_of(interval=interval, patterns=8)
    client = open_client(metric, collector=transport)
    for value in "abcde":
        assert client.record("page", value) == Outcome.KEPT
    clock.set(within)
    assert client.record("page", "f") == Outcome.KEPT
    assert client.flush()
    assert transport.reports == []
    assert client.spent().nats == 0
    client.close()
    clock.set(after)
    again = open_client(metric, collector=transport)  # after a restart
    assert again.flush()
    assert len(transport.reports) == 1
    assert again.spent().metrics["page"].patterns == 1
    assert again.flush()
    assert len(transport.reports) == 1


# Epochs


def test_silent_metric_is_silent_for_every_value(open_client: Opener, tmp_path: Path) -> None:
    """Without room nothing is reported, whichever value it is, and no trace is left."""
    client = open_client(metric_of(epoch="month"), caps=Caps(total=2.0001))
    assert [client.record("page", value) for value in "aab"] == [Outcome.SILENT] * 3
    assert client.spent() == NOTHING_SPENT
    assert peek(tmp_path / "device").scopes == ()


# Consent


def test_consent_is_asked_and_not_assumed(tmp_path: Path) -> None:
    """Without the argument nothing opens, and a text is no answer."""
    registry = registry_of(metric_of())
    with pytest.raises(TypeError, match="consent"):
        Client.open(tmp_path / "device", registry=registry)  # type: ignore[call-arg]
    with pytest.raises(ParamsError, match="consent must be True or False, got 'no'"):
        Client.open(tmp_path / "device", registry=registry, consent="no")  # type: ignore[arg-type]
    assert not (tmp_path / "device").exists()


def test_without_consent_nothing_is_computed_stored_or_sent(
    open_client: Opener, tmp_path: Path
) -> None:
    """Not even the folder is created, and a value of the wrong kind is not looked at."""
    transport = MemoryTransport()
    client = open_client(consent=False, collector=transport)
    assert client.record("page", object()) == Outcome.SILENT
    assert client.flush()
    assert client.spent().nats == 0
    assert client.log() == []
    assert client.counters() == {}
    assert transport.bodies == []
    assert not (tmp_path / "device").exists()


def test_withdrawal_elsewhere_is_noticed_by_the_writer(open_client: Opener) -> None:
    """Nothing more is drawn once the writer has found no folder."""
    client = open_client()
    assert open_client().withdraw()
    while client.record("page", "a"):
        time.sleep(0.001)
    assert client.record("page", "a").reason is Reason.NO_CONSENT


def test_opting_out_of_a_metric_drops_what_waits_of_it(
    open_client: Opener, clock: FixedClock
) -> None:
    """Spooled, held and pending reports of it go; those of other metrics stay, pending too."""
    metrics = [metric_of(name) for name in ("one", "two", "four")]
    transport = MemoryTransport([None, None])
    settings: dict[str, Any] = {"collector": transport, "coins": constant_coins(2**32 - 1)}
    client = open_client(*metrics, metric_of("three", interval="day"), **settings)
    for name in ("one", "four"):
        client.record(name, "x")
        assert not client.flush(timeout=0.01)  # an upload with it is pending now
    for name in ("one", "two", "three"):
        client.record(name, "x")
    assert client.waiting() == 4
    for name in ("one", "three"):
        client.opt_out(name)
        assert client.record(name, "x") == Outcome.SILENT
    assert client.waiting() == 2
    clock.advance(days=2)
    assert client.flush()
    assert {report.metric for report in transport.reports} == {"two", "four"}
    assert client.counters() == {"accepted": 2, "opted_out": 2, "recorded": 4}
    with pytest.raises(MetricError):
        client.opt_out("five")


def test_opting_out_at_opening(open_client: Opener) -> None:
    """The host keeps the choice and says it each time, also while the registry lacks the metric."""
    with open_client(metric_of("old")) as client:
        client.record("old", "x")
    with open_client(metric_of("new"), opted_out={"old"}) as client:
        assert client.record("new", "x") == Outcome.KEPT
        assert client.counters() == {"opted_out": 1, "recorded": 2}
    client = open_client(metric_of("old"), metric_of("new"), opted_out={"old"})
    assert client.record("old", "x") == Outcome.SILENT
    assert client.record("new", "x") == Outcome.KEPT


# Surroundings


def test_settings_are_checked(open_client: Opener) -> None:
    """A delay is a number of seconds; a spool holds something."""
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ParamsError, match="max_delay must be"):
            open_client(max_delay=wrong)
    with pytest.raises(ParamsError, match=r"reports must be an integer in \[1, "):
        SpoolLimits(reports=0)
    with pytest.raises(ParamsError, match="opted_out must be a collection of names"):
        open_client(opted_out="page")
    with pytest.raises(ParamsError, match="key must be absent without the address"):
        open_client(collector=MemoryTransport(), key="sesame")
