"""`Client.record`: accepted values, refused values, forks, intervals and consent.

`home` is a device whose clock begins at noon of Wednesday, 2026-11-18. `build_metric()` is a metric
named "page" with daily reports of 128 bits, one cohort and one epoch. `build_metrics(n)` are n
copies of it with the names "page0", "page1" and so on. `record_days` records one value a day, each
followed by `finish_days`, which moves the clock to the next day and queues the report.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from days import FallingCoins, build_metrics, finish_days, finish_ended_intervals, record_days
from devices import BALANCED, BOOLEAN, Home, build_metric, list_sender_threads, peek
from forks import run_in_child
from rappor_client import Client, FlushReason, Outcome, QueueLimits, SkipReason
from rappor_client.testing import MemoryTransport, constant_coins
from registries import build_registry

from rappor import Params, Registry
from rappor.base.errors import MetricError, ParamsError, ReportError

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
ONEHOT = Params(k=3, encoding="onehot", categories=("a", "b", "c"), **NOISE)
BUCKETS = Params(k=3, encoding="buckets", categories=("0", "1"), **NOISE)
KINDS: list[tuple[Params, list[object], list[object]]] = [
    (BALANCED, ["duckduckgo", "", "ü" * 10_000_000], [b"bytes", "\ud800", True, None, 3]),
    (ONEHOT, ["d", "b"], [["a"]]),
    (BOOLEAN, [False], ["yes", 1]),
    (BUCKETS, [math.nan, 0.5, math.inf, -3], [True, "1"]),
]
"""Contains parameters, values of the right kind, and values of the wrong kind.

A text outside the categories, such as "d", has the right kind. It sets the bit of other values.
"""


@pytest.mark.parametrize(("params", "right", "wrong"), KINDS)
def test_right_values_are_recorded_and_wrong_values_raise(
    params: Params, right: list[object], wrong: list[object], home: Home
) -> None:
    """A value of the right kind is recorded. A value of the wrong kind raises and costs nothing."""
    metrics = build_metrics(len(right), params=params)
    client = home.open(*metrics, collector=home.transport)
    for value in wrong:
        with pytest.raises(ReportError):
            client.record("page0", value)
    finish_days(client)
    assert (client.queued_count(), client.privacy_spent().nats) == (0, 0)
    for metric, value in zip(metrics, right, strict=True):
        assert client.record(metric.name, value) == Outcome.RECORDED
    finish_days(client)
    assert client.flush()
    sent = [(report.params, len(report.bits)) for report in home.transport.reports]
    fingerprint = build_metric(params=params).fingerprint
    assert sent == [(fingerprint, params.n_bytes)] * len(right)


@pytest.mark.parametrize("name", ["telltale", None, ["page"], 3, b"page"])
def test_unknown_metric_raises(name: Any, home: Home) -> None:
    """The error lists the known metrics and does not quote the name.

    A host that swaps the arguments, `record(value, name)`, passes its value as the name. A quoted
    name would then put the value into a log. The error therefore shows only the type of a name that
    is no text: NoneType, list, int or bytes.
    """
    message = "unknown metric; the registry has page|a metric's name must be a text, got [a-zNT]+"
    with pytest.raises(MetricError, match=f"^({message})$"):
        home.open().record(name, "telltale")


def test_expired_metric_is_not_recorded(home: Home) -> None:
    """The last day of a metric counts, the following day does not."""
    client = home.open(build_metric(expires=datetime.date(2026, 11, 18)))
    assert client.record("page", "x") == Outcome.RECORDED
    home.clock.set("2026-11-18T23:59:59")
    assert client.record("page", "x") == Outcome.RECORDED
    home.clock.set("2026-11-19T00:00:00")
    assert client.record("page", "x") == Outcome.SKIPPED
    finish_ended_intervals(client)
    assert client.queued_count() == 1


def test_hundred_threads_record_at_once(home: Home) -> None:
    """All 500 events of 100 threads are recorded, and the day has one report."""
    client = home.open(build_metric(), queue_limits=QueueLimits(reports=10_000))
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
    assert Counter(outcomes) == {Outcome.RECORDED: 500}
    finish_days(client)
    assert client.queued_count() == 1
    # A scope is a metric in an epoch: the value has cost one permanent response.
    assert client.privacy_spent().metrics["page"].scopes == 1


def list_open_spools(folder: Path) -> list[str]:
    """Return the open files of the spool in this process, where the system lists them (Linux)."""
    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    opened = [str(link.readlink()) for link in links]
    return [name for name in opened if name.startswith(f"{folder}/device/spool-")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system lists no open files")
def test_fork_shares_no_handle_no_thread_and_no_randomness(home: Home) -> None:
    """Parent and child go on recording, with one secret and different instantaneous coins."""
    later = 1e9  # seconds, so the sender never sends in this test
    client = home.open(collector=home.transport, background=True, max_delay=later)
    record_days(client, "page", "x")
    assert client.queued_count() == 1
    assert len(list_sender_threads()) == 1
    assert list_open_spools(home.folder)

    def record_in_child() -> None:
        assert not list_open_spools(home.folder)
        assert not list_sender_threads()
        record_days(client, "page", ["x"] * 20)
        assert client.queued_count() == 21
        assert len(list_sender_threads()) == 1

    assert run_in_child(record_in_child) == 0
    home.clock.advance(days=20)  # the child has moved its copy of the clock
    record_days(client, "page", ["x"] * 20)
    assert client.queued_count() == 41
    assert client.privacy_spent().metrics["page"].scopes == 1
    bits = {report.bits for report in peek(home.folder).queued_reports}
    # All reports repeat one permanent response. A bit has a fresh coin with the probability p =
    # 0.101 or q = 0.766 of a 1, so it agrees in two reports with probability at most p^2 + (1 -
    # p)^2 = 0.818. 41 reports are 820 pairs: 820 times 0.818^128 is below 1e-8.
    assert len(bits) == 41


# Intervals


@pytest.mark.parametrize(
    ("interval", "within", "after"),
    [
        ("day", "2026-11-18T23:59:59", "2026-11-19T00:00:00"),
        ("week", "2026-11-22T23:59:59", "2026-11-23T00:00:00"),
    ],
)
def test_one_report_leaves_an_interval(interval: str, within: str, after: str, home: Home) -> None:
    """An interval with several events has one report, which leaves when the interval is over."""
    metric = build_metric(interval=interval)
    client = home.open(metric, collector=home.transport)
    for value in "abcde":
        assert client.record("page", value) == Outcome.RECORDED
    home.clock.set(within)
    assert client.record("page", "f") == Outcome.RECORDED
    assert client.flush()
    assert home.transport.reports == []
    assert client.privacy_spent().nats == 0
    client.close()
    home.clock.set(after)
    reopened_client = home.open(metric, collector=home.transport)  # after a restart
    assert reopened_client.flush()
    assert len(home.transport.reports) == 1
    assert reopened_client.privacy_spent().metrics["page"].scopes == 1
    assert reopened_client.flush()
    assert len(home.transport.reports) == 1


# Consent


def test_consent_has_no_default(tmp_path: Path) -> None:
    """`Client.open` has no default for `consent`."""
    with pytest.raises(TypeError, match="consent"):
        Client.open(tmp_path / "device", registry=build_registry(build_metric()))  # type: ignore[call-arg]
    assert not (tmp_path / "device").exists()


def test_without_consent_nothing_is_computed_stored_or_sent(home: Home) -> None:
    """Without consent no folder is created, and a value of the wrong kind is not looked at."""
    client = home.open(consent=False, collector=home.transport)
    assert client.record("page", object()) == Outcome.SKIPPED
    assert client.flush()
    assert client.privacy_spent().nats == 0
    assert client.sent_uploads() == []
    assert client.event_counts() == {}
    assert home.transport.bodies == []
    assert not (home.folder).exists()


def test_withdrawal_by_another_client_ends_recording(home: Home) -> None:
    """A client records nothing after its writer has found that the folder is gone."""
    # Each event draws a tag, and the event with the smallest tag is the report of its interval.
    # Only an event with a smaller tag than all before is written to the folder. With falling coins
    # that is every event, so the writer soon notices the withdrawal.
    client = home.open(coins=FallingCoins())
    assert home.open().withdraw()
    while client.record("page", "a"):
        time.sleep(0.001)
    assert client.record("page", "a").reason is SkipReason.NO_CONSENT


def test_flush_after_withdrawal_by_another_client_has_not_failed(home: Home) -> None:
    """A flush that finds the folder gone has nothing to send, as after a withdrawal of its own."""
    client = home.open(collector=home.transport)
    assert home.open().withdraw()
    assert client.record("page", "a")
    assert client.flush().reason is FlushReason.NOTHING_WAITING
    assert client.record("page", "a").reason is SkipReason.NO_CONSENT
    assert "failures" not in client.event_counts()


def test_opt_out_drops_the_reports_of_a_metric(home: Home) -> None:
    """Queued, tried and pending reports of a refused metric are dropped, others stay."""
    metrics = [build_metric(name) for name in ("one", "two", "four")]
    # None is a network that fails. With the largest coins the random wait after a failure is the
    # longest, 5 s. So a flush of 2 s does not try again, and both uploads stay queued.
    transport = MemoryTransport([None, None])
    settings: dict[str, Any] = {"collector": transport, "coins": constant_coins(2**32 - 1)}
    client = home.open(*metrics, build_metric("three", interval="day"), **settings)
    for name in ("one", "four"):
        client.record(name, "x")
    finish_days(client)
    for _ in range(2):  # both uploads are tried once
        assert not client.flush(timeout=2.0)
    for name in ("one", "two"):
        client.record(name, "x")
    finish_days(client)
    client.record("three", "x")
    assert client.queued_count() == 4
    for name in ("one", "three"):
        client.opt_out(name)
        assert client.record(name, "x") == Outcome.SKIPPED
    assert client.queued_count() == 2
    home.clock.advance(days=2)
    assert client.flush()
    assert {report.metric for report in transport.reports} == {"two", "four"}
    # The counters count reports of intervals that are over. The report of "three" is in no counter,
    # and two reports of "one" were dropped.
    assert client.event_counts() == {"accepted": 2, "opted_out": 2, "recorded": 4}
    with pytest.raises(MetricError):
        client.opt_out("five")


def test_opt_out_beside_a_record_ends_recording(home: Home) -> None:
    """A metric is skipped after `opt_out`, whenever the call comes during a `record`.

    `record` looks up its metric in several collections. The name of this test calls `opt_out` at
    one of the look-ups, as another thread may do.
    """

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            if next(n_lookups) == n_before:
                client.opt_out("page")
            return super().__hash__()

    for n_before in range(20):
        n_lookups = itertools.count()
        client = home.open(folder=str(n_before))
        client.record(Name("page"), "x")
        if next(n_lookups) <= n_before:
            assert n_before > 3  # the name was looked up a few times
            break
        assert client.record("page", "x").reason is SkipReason.OPTED_OUT
    else:
        pytest.fail("the last look-up was not reached")


def test_opt_out_at_opening(home: Home) -> None:
    """A metric that is refused at opening is skipped, also if the registry lacks it for a while."""
    with home.open(build_metric("old")) as client:
        record_days(client, "old", "x")
    with home.open(build_metric("new"), opted_out={"old"}) as client:
        record_days(client, "new", "x")
        assert client.event_counts() == {"opted_out": 1, "recorded": 2}
    client = home.open(build_metric("old"), build_metric("new"), opted_out={"old"})
    assert client.record("old", "x") == Outcome.SKIPPED
    assert client.record("new", "x") == Outcome.RECORDED


def test_a_refused_name_that_no_metric_has_is_logged_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line lists the refused names that no metric has.

    Without consent nothing is logged.
    """
    home.open(build_metric(), opted_out={"pgae", "page", "Theme \n" + 100 * "x", "\ud800"}).close()
    home.open(build_metric(), opted_out={"page"}).close()
    home.open(build_metric(), opted_out={"pgae"}, consent=False).close()
    (line,) = [record.getMessage() for record in caplog.records]
    # A name is cut after 64 characters: 7 and 57 letters x.
    assert line.endswith(f"no metric has: 'Theme \\n{57 * 'x'}', 'pgae', '\\ud800'")


# Options


ADDRESS = "https://example.org"
# The message of an error, and the settings that raise it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("consent must be True or False, got 'no'", {"consent": "no"}),
    *(
        ("max_delay must be a number in", {"max_delay": delay})
        for delay in (-1.0, math.nan, math.inf, "5", None, True)
    ),
    *(
        ("opted_out must be a collection of names", {"opted_out": wrong})
        for wrong in ("page", [None], [b"page"], [("page",)])
    ),
    *(
        ("segment must be a mapping", {"segment": wrong})
        for wrong in ("version", {"version": 2}, [("version", "2")])
    ),
    *(
        (
            "upload_key must be absent without the address",
            {"upload_key": "sesame", "collector": collector},
        )
        for collector in (None, MemoryTransport())
    ),
    *(
        (
            "upload_key must be printable ASCII without spaces",
            {"upload_key": key, "collector": ADDRESS},
        )
        for key in ("", "two words", "line\n", "k\u00e9y")
    ),
    ("collector must be an address or a Transport, got int", {"collector": 8080}),
    ("registry must be a path or a Registry, got dict", {"registry": {"page": {}}}),
]


@pytest.mark.parametrize(
    ("folder", "got"), [("", "an empty text"), (None, "NoneType"), (b"telemetry", "bytes")]
)
def test_folder_must_be_a_path(
    folder: Any, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is no path, or empty, raises. An empty text is not the working folder."""
    monkeypatch.chdir(tmp_path)
    for consent in (True, False):
        with pytest.raises(ParamsError, match=f"folder must be the path of a folder, got {got}"):
            Client.open(folder, registry=Registry([build_metric()], total=1e9), consent=consent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("message", "wrong"), MISTAKES)
def test_settings_are_checked(message: str, wrong: dict[str, Any], home: Home) -> None:
    """A wrong option raises before anything is created, and no message contains a key."""
    with pytest.raises(ParamsError, match=message) as caught:
        home.open(**wrong)
    assert not re.search("sesame|two words", str(caught.value))
    assert not (home.folder).exists()
