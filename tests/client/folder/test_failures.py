"""Failures of a device: counted, logged once a minute by kind, and never raised to the host."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from days import FallingCoins, build_metrics, finish_days, record_days
from devices import (
    Home,
    build_metric,
    get_identity_folder,
    hold_folder_lock,
    open_device,
    peek,
    write_events,
)
from programs import run_python
from rappor_client import (
    BudgetCap,
    Client,
    ClientOptions,
    Outcome,
    QueueLimits,
    SkipReason,
    TransportResponse,
    testing,
)
from rappor_client.folder.failures import DamagedError, Failures, is_busy
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.identity_folder import BusyError
from rappor_client.folder.store import Store
from rappor_client.folder.system import SYSTEM
from rappor_client.network.transport import UploadError
from rappor_client.outbox.writer import _end_all
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Registry
from rappor.base.errors import ParamsError


def test_first_failure_imports_logging() -> None:
    """The first failure imports `logging`.

    If the import is impossible, as while an interpreter ends, the log line is lost and nothing is
    raised. The next failure imports `logging` again.
    """
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rappor_client.folder.failures import Failures\n"
        "assert 'logging' not in sys.modules\n"
        "sys.modules['logging'] = None\n"
        "Failures(Path('first')).note(OSError(28, ''))\n"
        "del sys.modules['logging']\n"
        "Failures(Path('second')).note(OSError(28, ''))\n"
    )
    assert run_python("-c", program).stderr == "telemetry failed in second: ENOSPC\n"


def test_each_kind_is_logged_once_a_minute_and_counted_always(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of failure has one log line a minute, so the log does not fill a full disk.

    Every failure is counted.
    """
    now = FixedClock("2026-11-18")
    failures = Failures(tmp_path, now)
    for _ in range(500):
        failures.note(OSError(28, "full"))
        failures.note(DamagedError("JSONDecodeError"))
        failures.note(RuntimeError("a host's own words"))
    assert failures.count == 1500
    messages = [
        record.getMessage().removeprefix(f"telemetry failed in {tmp_path}: ")
        for record in caplog.records
    ]
    assert messages == ["ENOSPC", "damaged, JSONDecodeError", "RuntimeError"]
    now.advance(seconds=59)
    failures.note(OSError(28, "full"))
    assert len(caplog.records) == 3
    now.advance(seconds=1)
    failures.note(OSError(28, "full"))
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("code", "busy"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_RECOVERY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_FULL, False),
        (None, False),
    ],
)
def test_lock_is_no_failure(code: int | None, *, busy: bool) -> None:
    """`is_busy` recognizes a lock, also while another process repairs the log of a killed one."""
    error = sqlite3.OperationalError("database is locked")
    if code is not None:
        error.sqlite_errorcode = code
    assert is_busy(error) is busy


class WrongTransport(MemoryTransport):
    """A transport of the host with errors: its first `send` raises or returns a wrong result."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._wrong_results = [result]

    def send(self, body: bytes, *, timeout: float) -> Any:
        """Raise or return the wrong result once, then accept every upload."""
        if not self._wrong_results:
            return super().send(body, timeout=timeout)
        result = self._wrong_results.pop()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Raise an error."""
        raise RuntimeError("closing failed")


WRONG_RESULTS: list[Any] = [
    *(ValueError("x"), KeyError("x"), RecursionError(), None, "200"),
    *(
        TransportResponse(status=200, body=body)
        for body in (
            *(b"[" * 100_000, b'{"reports": {"a": 1}}', b'{"reports": [1]}', b"\xff"),
            b'{"reports": [{"status": 1' + b"0" * 5000 + b"}]}",
        )
    ),
    TransportResponse(status=200, body="a text"),  # type: ignore[arg-type]
    TransportResponse(status="200", body=b""),  # type: ignore[arg-type]
    TransportResponse(status=503, body=b"", retry_after=float("nan")),
    *(TransportResponse(status=503, body=b"", retry_after=text) for text in ("120", "soon")),  # type: ignore[arg-type]
    UploadError("x", retry_after="120"),  # type: ignore[arg-type]
]
"""Contains results that a correct transport never has: exceptions, wrong types, wrong JSON."""


@pytest.mark.parametrize("result", WRONG_RESULTS, ids=range(len(WRONG_RESULTS)))
def test_wrong_transport_does_not_reach_the_host(result: Any, home: Home) -> None:
    """The upload stays queued, the failure is counted, and the upload leaves two days later."""
    transport = WrongTransport(result)
    client = home.open(build_metric(), collector=transport)
    record_days(client, "page", "x")
    assert not client.flush(timeout=0.0)
    assert client.queued_count() == 1
    home.clock.advance(days=2)
    assert client.flush()
    assert len(transport.reports) == 1
    client.close()
    assert client.event_counts()["failures"] >= 1
    assert "spool_lost" not in client.event_counts()


@pytest.mark.parametrize("limit", ["reports", "n_bytes", "log"])
def test_limits_are_integers_of_the_database(limit: str) -> None:
    """A queue limit is an integer from 1 to 2^63 - 1, the largest integer of SQLite.

    The period of a budget cap is a year or the life of the device.
    """
    assert getattr(QueueLimits(**{limit: 2**63 - 1}), limit) == 2**63 - 1
    with pytest.raises(ParamsError, match=f"{limit} must be an integer in"):
        QueueLimits(**{limit: 2**63})
    with pytest.raises(ParamsError, match=r"reports must be an integer in \[1, "):
        QueueLimits(reports=0)
    with pytest.raises(ParamsError, match="per must be one of year, life"):
        BudgetCap(total=1.0, per="month")  # type: ignore[arg-type]


def test_client_without_a_home_is_disabled(tmp_path: Path) -> None:
    """Without a home folder the client is disabled, and no method raises.

    This happens in a container whose user has no entry and no HOME.
    """
    program = (
        "import os\nimport tempfile\n"
        # A first client loads all modules of the package before the change of user: Python and the
        # package may be installed where only root can read, such as below /root.
        "with tempfile.TemporaryDirectory() as first:\n"
        "    client = Client.open(first, registry=registry, consent=True)\n"
        "    client.record('page', 'x')\n    client.flush()\n    client.withdraw()\n"
        "os.environ.pop('HOME', None)\n"
        "if os.getuid() == 0:\n    os.setuid(4242)\n"
        "client = Client.open('~/telemetry', registry=registry, consent=True)\n"
        "assert client.disabled_reason and client.record('page', 'x') == Outcome.SKIPPED\n"
        "assert client.privacy_spent().nats == 0 and client.sent_uploads() == []\n"
        "assert not client.queued_count()\n"
        "client.flush()\nclient.close()\nclient.withdraw()\n"
        "print(client.disabled_reason)\n"
        "Client.open('~/telemetry', registry=registry, consent=False)\n"
    )
    head = (
        "from devices import build_metric\nfrom registries import build_registry\n"
        "from rappor_client import Client, Outcome\nregistry = build_registry(build_metric())\n"
    )
    process = run_python("-c", head + program, folder=tmp_path)
    assert process.stdout == "the folder cannot be used: Not a directory (ENOTDIR)\n", (
        process.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_handles_and_long_paths_disable_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is disabled with a reason if no file handle is free, or if the path is too long.

    SQLite opens no path of more than 512 bytes.
    """
    deep = open_device(tmp_path.joinpath(*["x" * 100] * 5))
    assert deep.disabled_reason == "its path is too long: it must have at most 400 bytes"
    assert deep.record("page", "x").reason is SkipReason.DISABLED

    def fail(_: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(SYSTEM, "open_folder", fail)
    reason = open_device(tmp_path / "device").disabled_reason
    assert reason == "the folder cannot be used: Too many open files (EMFILE)"


# Access to the folder


def is_private(folder: Path) -> bool:
    """Return whether other users can neither write to the folder nor read its device."""
    inside = [get_identity_folder(folder), *get_identity_folder(folder).iterdir()]
    return not folder.stat().st_mode & 0o022 and not any(
        path.stat().st_mode & 0o077 for path in inside
    )


def test_folder_is_made_private(home: Home) -> None:
    """The client takes the permissions of other users away.

    Kubernetes opens a volume for its group at each start of a pod.
    """
    home.folder.mkdir(mode=0o700)
    for _ in range(2):
        client = home.open()
        assert client.disabled_reason == ""
        assert client.record("page", "x")
        client.close()
        assert is_private(home.folder)
        for path in (
            home.folder,
            get_identity_folder(home.folder),
            *get_identity_folder(home.folder).iterdir(),
        ):
            path.chmod(path.stat().st_mode | 0o066)
        home.folder.chmod(0o2770)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user's files"
)
@pytest.mark.parametrize("name", [".", "device", "device/state.1"])
def test_files_of_another_user_disable_the_device(name: str, home: Home) -> None:
    """A folder or file of another user disables the device: its owner could replace the secret."""
    home.open().close()
    os.chown(home.folder / name, 4242, 4242)
    client = home.open()
    assert "belongs to another user" in client.disabled_reason
    assert client.record("page", "x").reason is SkipReason.DISABLED
    assert client.flush().detail == client.disabled_reason


@pytest.mark.parametrize("name", [".", "device", "device/state.1"])
def test_links_disable_the_device(name: str, home: Home) -> None:
    """A symbolic link disables the device, because it may lead to a folder of another user."""
    home.open().close()
    path = home.folder / name
    path.rename(home.parent / "elsewhere")
    path.symlink_to(home.parent / "elsewhere")
    client = home.open()
    assert "symbolic link" in client.disabled_reason
    client.record("page", "x")
    assert client.queued_count() == 0


@pytest.mark.parametrize("name", ["RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"])
def test_environment_disables_the_device_if_respected(
    name: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `respect_environment` a variable disables the device, and nothing is written.

    Without `respect_environment` the variable has no effect, and neither has the text "false".
    """
    for variable in ("RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "1")
    client = home.open(respect_environment=True)
    assert client.disabled_reason == f"the environment has {name}=1"
    assert not client.record("page", "x")
    assert not home.folder.exists()
    assert home.open().record("page", "x")
    monkeypatch.setenv(name, "false")
    assert home.open(respect_environment=True).disabled_reason == ""


def test_mistakes_are_logged_without_raise_errors(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `raise_errors` an unknown metric and a wrong value are logged and skipped."""
    client = home.open(raise_errors=False)
    assert client.record("telltale", "page").reason is SkipReason.UNKNOWN_METRIC
    for _ in range(20):
        assert client.record("page", b"telltale").reason is SkipReason.WRONG_KIND
    assert len(caplog.records) == 2  # one line a minute for each kind
    assert "telltale" not in caplog.text


def test_a_log_line_about_a_value_names_its_metric(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """The log line contains the metric and never the value.

    The metric leads the developer of the host to the wrong call. Each metric has one line a minute.
    """
    client = home.open(build_metric("page"), build_metric("site"), raise_errors=False)
    for name in ("page", "page", "site"):
        client.record(name, 12345)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition("metric ")[2].partition(":")[0] for line in lines] == ["page", "site"]
    assert all(line.endswith("a value must be a text, got int") for line in lines)
    assert "12345" not in caplog.text


def test_failing_log_does_not_reach_the_host(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing filter of the log and a failing import of `logging` do not reach `record`."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    client = home.open(raise_errors=False)
    with monkeypatch.context() as broken:
        broken.setattr("logging.Logger.filter", fail)
        unknown = client.record("telltale", "x")
        broken.setattr("logging.getLogger", fail)
        outcome_of_bytes = client.record("page", b"telltale")
    assert unknown.reason is SkipReason.UNKNOWN_METRIC
    assert outcome_of_bytes.reason is SkipReason.WRONG_KIND


def test_relative_folder_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is resolved once, at opening.

    A daemon changes its working folder, and another device may be there.
    """
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    first_client = open_device(Path("device"), clock=FixedClock("2026-11-18"))
    monkeypatch.chdir("elsewhere")
    second_client = open_device(Path("device"), clock=FixedClock("2026-11-18"))
    for client in (first_client, second_client):
        record_days(client, "page", "x")
        assert client.queued_count() == 1
    assert first_client.withdraw().secret_gone
    assert not peek(tmp_path / "device").has_secret
    assert peek(tmp_path / "elsewhere" / "device").has_secret


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list handles")
def test_close_closes_every_handle(home: Home) -> None:
    """No file handle is open after `close`. A later event opens the files again."""
    handles = Path("/proc/self/fd")
    client = home.open()
    for n in (1, 2):
        record_days(client, "page", "x")
        assert client.queued_count() == n
        client.close()
        assert str(home.folder) not in " ".join(map(os.path.realpath, handles.iterdir()))


def test_handler_of_a_signal_does_not_wait_for_the_commit_that_it_interrupted(home: Home) -> None:
    """A commit in a signal's handler fails at once if the handler has interrupted a commit."""
    client = home.open(*build_metrics(2))
    client.record("page0", "x")
    writer = client._writer
    assert writer is not None
    with writer._turn.acquire(seconds=5.0):
        client.record("page1", "y")
        with pytest.raises(BusyError):
            writer.commit(lock_seconds=0.05)
    finish_days(client)
    assert client.queued_count() == 2


@pytest.mark.parametrize("end", [Client.close, lambda _: _end_all()], ids=["close", "exit handler"])
def test_program_ends_beside_a_hung_commit(
    end: Callable[[Client], object], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` and the exit handler return while a commit hangs.

    The commit is made when the disk responds again.
    """
    client = home.open()
    is_committing, is_thawed = threading.Event(), threading.Event()
    begin_transaction = Store.transaction

    def hang(*args: Any, **kwargs: Any) -> Any:
        is_committing.set()
        is_thawed.wait()
        return begin_transaction(*args, **kwargs)

    # The exit handler sets `_ENDING`, which is for the rest of the process. It gets another event.
    monkeypatch.setattr("rappor_client.folder.folder_thread._ENDING", threading.Event())
    monkeypatch.setattr(Store, "transaction", hang)
    client.record("page", "x")
    end(client)
    assert is_committing.is_set()
    is_thawed.set()
    finish_days(client)
    assert client.queued_count() == 1


def test_person_reads_the_device_beside_a_process_that_keeps_its_lock(home: Home) -> None:
    """Log and counters are read although the events in memory cannot be committed."""
    client = home.open(collector=home.transport)
    record_days(client, "page", "x")
    assert client.flush()
    log, counts = client.sent_uploads(), client.event_counts()
    assert len(log) == counts["accepted"] == 1
    with hold_folder_lock(home.folder):
        client.record("page", "x")
        assert client.sent_uploads() == log
        assert client.event_counts() == counts | {"failures": 2}
        assert client.queued_count() == 0


def test_failure_at_the_timeout_of_its_caller_is_not_lost() -> None:
    """A job fails after the timeout of its caller, and before the caller can ask for its failure.

    The caller gets the exception of the job, and no HungError.
    """

    class SlowCaller(FolderThread):
        @property
        def on_failure(self) -> Callable[[Exception], object]:
            may_fail.set()
            assert has_ended.wait(10.0)
            return print

        @on_failure.setter
        def on_failure(self, _: Callable[[Exception], object]) -> None:
            pass

    def fail() -> None:
        next_job.start()
        assert may_fail.wait(10.0)
        raise ConnectionError

    may_fail, has_ended = threading.Event(), threading.Event()
    thread = SlowCaller(print)
    next_job = threading.Thread(target=lambda: thread.run_within(has_ended.set, seconds=10.0))
    with pytest.raises(ConnectionError):
        thread.run_within(fail, seconds=0.01, is_kept_after_timeout=True)
    next_job.join()
    thread.end(10.0)


def test_memory_has_a_thousand_events(home: Home) -> None:
    """Memory stores 1,000 events while another process has the lock. Further events are counted."""
    client = home.open(coins=FallingCoins())  # so that no event is redundant and left out
    client.record("page", "x")
    assert client.queued_count() == 0  # writes the event
    with hold_folder_lock(home.folder):
        outcomes = [client.record("page", "x") for _ in range(1005)]
    assert outcomes.count(Outcome.RECORDED) == 1000
    assert {outcome.reason for outcome in outcomes if not outcome} == {SkipReason.FULL}
    finish_days(client)
    assert client.queued_count() == 1
    assert client.event_counts()["dropped_full"] == 5


def test_memory_stays_bounded_while_the_disk_fails(home: Home) -> None:
    """The events of a running commit count, too, because the commit may fail."""
    outcomes = list[Outcome]()
    is_failing = threading.Event()

    def clock() -> float:
        if is_failing.is_set():  # the clock is read in the middle of a commit
            is_failing.clear()
            outcomes.extend(client.record("page", "x") for _ in range(1000))
            raise OSError
        return 1.8e9

    client = home.open(clock=clock, coins=FallingCoins())
    with hold_folder_lock(home.folder):
        for _ in range(1000):
            client.record("page", "x")
        is_failing.set()
    write_events(client)
    assert {outcome.reason for outcome in outcomes} == {SkipReason.FULL}
    assert client.event_counts()["dropped_full"] == 1000
    assert len(peek(home.folder).pending_reports) == 1


def test_durable_metric_is_on_the_disk_when_record_returns(home: Home) -> None:
    """A durable event is on the disk when `record` returns, or the outcome is LOCKED."""
    client = home.open(*build_metrics(3, durable=True))
    assert client.record("page0", "x") == Outcome.RECORDED
    assert len(testing.peek(home.folder).pending_reports) == 1
    with hold_folder_lock(home.folder):
        assert client.record("page1", "x").reason is SkipReason.LOCKED
    assert client.record("page2", "x") == Outcome.RECORDED
    assert len(testing.peek(home.folder).pending_reports) == 3


def test_repeated_events_write_nothing(home: Home) -> None:
    """Further events of an interval write nothing if the scope is memoized.

    The report is the same for every value, so the first event of the interval is enough.
    """
    client = home.open(build_metric(interval="day"))
    client.record("page", "x")
    home.clock.advance(days=1)
    client.record("page", "y")
    assert client.queued_count() == 1  # the report of the first day, so the scope is memoized
    files = [get_identity_folder(home.folder), *get_identity_folder(home.folder).iterdir()]
    before = [(path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    assert {client.record("page", f"value {i}") for i in range(2000)} == {Outcome.RECORDED}
    assert client.queued_count() == 1
    assert [(path.stat().st_mtime_ns, path.stat().st_size) for path in files] == before


def test_last_events_are_written_at_the_end_of_the_program(tmp_path: Path) -> None:
    """A program that neither closes nor flushes loses no event."""
    program = (
        "from pathlib import Path\nfrom devices import open_device\n"
        f"open_device(Path({str(tmp_path / 'device')!r})).record('page', 'x')\n"
    )
    run_python("-c", program)
    assert len(testing.peek(tmp_path / "device").pending_reports) == 1


# Budgets that several programs share


def test_programs_with_different_registries_share_one_budget(home: Home) -> None:
    """Two programs that open before either of them records stay within one total.

    Each metric costs 4 nats, so the total has room for one metric.
    """
    cap = BudgetCap(total=4.01)
    first_client = home.open(build_metric("one"), budget_cap=cap)
    second_client = home.open(build_metric("two"), budget_cap=cap)
    record_days(first_client, "one", "x")
    assert first_client.queued_count() == 1
    # `second_client` has not read the reservation of `first_client` yet. The write of this event
    # reads it.
    second_client.record("two", "x")
    assert second_client.queued_count() == 1  # the report of the first program
    assert second_client.record("two", "x") == Outcome.SKIPPED
    assert first_client.record("one", "x") == Outcome.RECORDED
    assert first_client.privacy_spent().reserved == {2026: pytest.approx(4, abs=0.001)}


def test_cap_for_life_counts_all_years(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """Under a cap for life an epoch counts in its own year, and a metric for life counts once.

    Each reservation is 4 nats. The cap has room for three: that of `life`, and two of `year`. The
    log names the metric whose next reservation does not fit.
    """
    metrics = (build_metric("life"), build_metric("year", epoch="year"))
    cap = BudgetCap(total=12.01, per="life")
    outcomes = []
    for year in (2026, 2027, 2028):
        home.clock.set(f"{year}-06-01T00:00:00")
        with home.open(*metrics, budget_cap=cap) as client:
            outcomes.append([bool(client.record(metric.name, "x")) for metric in metrics])
    assert outcomes == [[True, True], [True, True], [True, False]]
    assert [record.getMessage() for record in caplog.records] == [
        "the budget of 2028 has no room for year: nothing is sent"
    ]


def test_cap_for_life_never_raises_the_registrys_total(tmp_path: Path, clock: FixedClock) -> None:
    """A cap for life that is larger than the registry's total does not raise the total."""
    outcomes = []
    for name in ("old", "new"):
        registry = Registry([build_metric(name, epoch="year")], total=4.01)
        cap = BudgetCap(total=1000.0, per="life")
        options = ClientOptions(budget_cap=cap, clock=clock)
        with Client.open(
            tmp_path / "device", registry=registry, consent=True, options=options
        ) as client:
            outcomes.append(client.record(name, "x"))
    assert outcomes == [Outcome.RECORDED, Outcome.SKIPPED]
