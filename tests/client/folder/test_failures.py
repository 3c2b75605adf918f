"""What is nobody's mistake reaches nobody: counted, logged once a minute, and survived."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from devices import DATABASE, Opener, database, metric_of
from places import ROOT
from rappor_client import Answer, Caps, Client, Outcome, SpoolLimits
from rappor_client.errors import UploadError
from rappor_client.folder.failures import DamagedError, Failures, is_busy
from rappor_client.folder.private_folder import check_private
from rappor_client.folder.state import count, counters
from rappor_client.folder.store import Store
from rappor_client.person.soundness import damaged_file
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Registry
from rappor.ground.errors import FileError, MetricError, ParamsError, ReportError
from rappor.protocol.randomizer import system_coins


class Now:
    """A clock of seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.seconds


def test_failure_is_logged_where_nobody_has_imported_logging() -> None:
    """It is imported then; where that cannot be, as when an interpreter ends, the line is lost."""
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
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "telemetry failed in second: ENOSPC\n")


def test_each_kind_is_logged_once_a_minute_and_counted_always(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full is not filled by the log that says so."""
    now = Now()
    failures = Failures(tmp_path, now)
    for _ in range(500):
        failures.note(OSError(28, "full"))
        failures.note(DamagedError("JSONDecodeError"))
        failures.note(RuntimeError("a host's own words"))
    assert failures.n == 1500
    told = [
        record.getMessage().removeprefix(f"telemetry failed in {tmp_path}: ")
        for record in caplog.records
    ]
    assert told == ["ENOSPC", "damaged, JSONDecodeError", "RuntimeError"]
    now.seconds = 59.9
    failures.note(OSError(28, "full"))
    assert len(caplog.records) == 3
    now.seconds = 60.0
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
def test_lock_is_told_from_failures(code: int | None, *, busy: bool) -> None:
    """Also where another process brings the database in order after a third was killed."""
    error = sqlite3.OperationalError("database is locked")
    if code is not None:
        error.sqlite_errorcode = code
    assert is_busy(error) is busy


class SoftTimeLimitError(Exception):
    """What the handler of a signal raises, anywhere."""


@pytest.mark.parametrize(
    "kind",
    [
        SoftTimeLimitError,
        RuntimeError,
        RecursionError,
        MemoryError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
    ],
)
def test_exception_from_elsewhere_is_no_damage(
    kind: type[Exception], open_client: Opener, tmp_path: Path
) -> None:
    """In the middle of a transaction: it is a failure, and all that waits stays."""
    is_armed = False

    def coins(n: int) -> Sequence[int]:
        if is_armed and client._store._inside is not None:
            raise kind
        return system_coins(n)

    client = open_client(metric_of(), metric_of("daily", interval="day"), coins=coins)
    assert client.record("page", "a")
    assert client.record("daily", "a")
    is_armed = True
    assert client.record("daily", "a") == Outcome.FAILED
    is_armed = False
    assert client.record("daily", "a") == Outcome.KEPT
    assert client.waiting() == 1
    assert "rebuilt" not in client.counters()
    assert not (tmp_path / "device" / "damaged.sqlite3").exists()


class Interrupting(Store):
    """A database that a signal meets while it is looked at."""

    def copy_to(self, other: sqlite3.Connection) -> None:
        """Copy it after a signal to this process."""
        os.kill(os.getpid(), signal.SIGUSR1)
        super().copy_to(other)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no such signal")
def test_handler_that_raises_in_a_look_for_damage_finds_none(
    open_client: Opener, tmp_path: Path
) -> None:
    """What it raises would be damage, had a row raised it."""
    open_client().record("page", "a")

    def handle(*_: object) -> None:
        raise ValueError

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert damaged_file(Interrupting(tmp_path / "device")) is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_successor_of_a_damaged_database_stays(open_client: Opener, tmp_path: Path) -> None:
    """Another process was faster to set it apart, and another thread uses what came after it."""
    folder = tmp_path / "device"
    open_client().close()
    with database(folder) as db:
        db.execute("UPDATE state SET value = 'x'")
    store = Store(folder)
    damaged = damaged_file(store)
    assert damaged is not None
    store.set_apart(damaged)
    store.begin()
    with store.transaction() as db:
        count(db, "recorded")
    store.set_apart(damaged)
    with store.reading() as db:
        assert counters(db) == {"recorded": 1}


def test_handler_that_closes_the_client_ends_the_program(open_client: Opener) -> None:
    """In the middle of a transaction or of a look: SystemExit goes through."""
    is_armed = False

    def coins(n: int) -> Sequence[int]:
        if is_armed:
            client.close()
            raise SystemExit
        return system_coins(n)

    client = open_client(metric_of("daily", interval="day"), coins=coins)
    assert client.record("daily", "a")
    is_armed = True
    with pytest.raises(SystemExit):
        client.record("daily", "a")
    with pytest.raises(SystemExit), client._store.reading():
        coins(1)


def test_database_is_set_apart_once_an_hour(tmp_path: Path) -> None:
    """What looks like damage again and again is something else."""
    now = Now()
    failures = Failures(tmp_path, now)
    assert not failures.is_to_mend(OSError(28, "full"))
    assert failures.is_to_mend(DamagedError("x"))
    failures.mended()
    now.seconds = 3599.0
    assert not failures.is_to_mend(DamagedError("x"))
    now.seconds = 3600.0
    assert failures.is_to_mend(DamagedError("x"))


class Broken(MemoryTransport):
    """A transport of the host's own that fails in its own ways."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__()
        self.answers = answers

    def send(self, body: bytes, *, timeout: float) -> Any:
        """Raise or return the next answer, or accept."""
        answer = self.answers.pop(0) if self.answers else super().send(body, timeout=timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Raise too."""
        raise RuntimeError("closing failed")


@pytest.mark.parametrize(
    "answer",
    [
        ValueError("x"),
        KeyError("x"),
        RecursionError(),
        None,
        "200",
        Answer(status=200, body=b"[" * 100_000),
        Answer(status=200, body=b'{"reports": {"a": 1}}'),
        Answer(status=200, body=b'{"reports": [1]}'),
        Answer(status=200, body=b'{"reports": [{"status": 1' + b"0" * 5000 + b"}]}"),
        Answer(status=200, body=b"\xff"),
        Answer(status=200, body="a text"),  # type: ignore[arg-type]
        Answer(status="200", body=b""),  # type: ignore[arg-type]
        Answer(status=503, body=b"", retry_after=float("nan")),
        Answer(status=503, body=b"", retry_after="120"),  # type: ignore[arg-type]
        Answer(status=503, body=b"", retry_after="soon"),  # type: ignore[arg-type]
        UploadError("x", retry_after="120"),  # type: ignore[arg-type]
    ],
    ids=range(16),
)
def test_transport_that_raises_or_answers_nonsense_reaches_nobody(
    answer: Any, open_client: Opener, clock: FixedClock
) -> None:
    """What waits stays, and leaves once the transport works."""
    transport = Broken([answer])
    client = open_client(metric_of(), collector=transport)
    assert client.record("page", "x") == Outcome.KEPT
    assert not client.flush(timeout=0.0)
    assert client.waiting() == 1
    clock.advance(days=2)
    assert client.flush()
    assert len(transport.reports) == 1
    client.close()
    assert client.counters()["failures"] >= 1
    assert "rebuilt" not in client.counters()


@pytest.mark.parametrize("name", ["caf\udce9", "a\0b", "", "Page", "a" * 65])
def test_name_that_no_metric_can_have_is_no_damage(
    name: str, open_client: Opener, tmp_path: Path
) -> None:
    """In a collector's answer, and among what a person has refused: all that waits stays."""
    document = {"reports": [{"status": "accepted"}], "stop": {name: "2026-11-20"}}
    transport = MemoryTransport([Answer(status=200, body=json.dumps(document).encode())])
    client = open_client(collector=transport)
    client.record("page", "x")
    client.record("page", "x")
    assert client.flush(timeout=60.0).sent == 2
    client.record("page", "x")
    client.close()
    again = open_client(opted_out={name})
    assert again.waiting() == 1
    assert "failures" not in again.counters()
    assert not (tmp_path / "device" / "damaged.sqlite3").exists()


@pytest.mark.parametrize("names", [[None], [b"page"], [("page",)]])
def test_what_is_no_name_is_a_mistake_of_the_program(names: Any, open_client: Opener) -> None:
    """Nothing could be refused by it."""
    with pytest.raises(ParamsError, match="opted_out must be a collection of names"):
        open_client(opted_out=names)


@pytest.mark.parametrize("limit", ["reports", "n_bytes", "log"])
def test_limits_are_numbers_that_the_database_can_hold(limit: str) -> None:
    """The largest is taken, the next one refused."""
    assert getattr(SpoolLimits(**{limit: 2**63 - 1}), limit) == 2**63 - 1
    with pytest.raises(ParamsError, match=f"{limit} must be an integer in"):
        SpoolLimits(**{limit: 2**63})


def test_mistakes_of_the_program_are_raised(open_client: Opener) -> None:
    """An unknown metric, a value of the wrong kind, an argument outside its range."""
    client = open_client()
    with pytest.raises(MetricError, match=r"unknown metric; the registry has page$"):
        client.opt_out("other")
    with pytest.raises(ReportError):
        client.record("page", 1)
    with pytest.raises(ParamsError, match="per must be one of year, life"):
        Caps(total=1.0, per="month")  # type: ignore[arg-type]
    assert "failures" not in client.counters()


def test_swapped_arguments_do_not_tell_the_value(open_client: Opener) -> None:
    """The value stands where the name of the metric belongs."""
    with pytest.raises(MetricError, match=r"unknown metric; the registry has page$"):
        open_client().record("private thing", "page")


def test_without_a_home_nothing_is_recorded_and_nothing_raised(tmp_path: Path) -> None:
    """As in a container whose user has no entry and no HOME."""
    program = (
        "import os\nos.environ.pop('HOME', None)\n"
        "if os.getuid() == 0:\n    os.setuid(4242)\n"
        "client = Client.open('~/telemetry', registry=registry, consent=True)\n"
        "assert client.record('page', 'x') == Outcome.FAILED\n"
        "assert client.spent().nats == 0 and client.log() == [] and not client.waiting()\n"
        "client.flush()\nclient.close()\nclient.withdraw()\n"
        "print(client.counters()['failures'] > 0)\n"
        "Client.open('~/telemetry', registry=registry, consent=False)\n"
    )
    head = (
        "from devices import metric_of\nfrom registries import registry_of\n"
        "from rappor_client import Client, Outcome\nregistry = registry_of(metric_of())\n"
    )
    paths = os.pathsep.join([str(ROOT / "tests" / "support"), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, "-c", head + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "True\n", ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_clock_of_no_calendar_reaches_nobody(open_client: Opener) -> None:
    """Not a number, or beyond the last year."""
    for moment in (float("nan"), 1e20, -1e20):
        client = open_client(clock=lambda moment=moment: moment, collector=MemoryTransport())
        client.record("page", "x")
        client.flush(timeout=0.0)
        client.close()


# The folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_folder_that_others_may_write_to_is_refused(
    mode: int, open_client: Opener, tmp_path: Path
) -> None:
    """With a sentence that says what to do; an answer of no is heeded all the same."""
    folder = tmp_path / "device"
    open_client().record("page", "x")
    folder.chmod(mode)
    with pytest.raises(FileError, match="no one else may write to it; run chmod 700 on it"):
        open_client()
    open_client(consent=False)
    assert [path.name for path in folder.iterdir()] == ["budget"]


def test_folders_and_files_of_another_user_are_refused(open_client: Opener, tmp_path: Path) -> None:
    """Whoever owns them may put another secret into them; withdrawing is allowed all the same."""
    told = "it must belong to the user who runs the program, got another user's; "
    if os.getuid():  # only the superuser gives files away
        with pytest.raises(FileError, match=told):
            open_client(folder="/usr")
        return
    folder = tmp_path / "device"
    open_client().close()
    os.chown(folder / "identity", 65534, 65534)
    with pytest.raises(FileError, match=rf"identity: {told}"):
        open_client()
    os.chown(folder / "identity", 0, 0)
    os.chown(folder, 65534, 65534)
    with pytest.raises(FileError, match=rf"device: {told}"):
        open_client()
    open_client(consent=False)
    assert not (folder / "identity").exists()


def test_links_are_refused(open_client: Opener, tmp_path: Path) -> None:
    """In the folder's place, and in the place of each file, dangling ones too."""
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "device").symlink_to(tmp_path / "other")
    with pytest.raises(FileError, match="it must be a folder, got a symbolic link"):
        open_client()
    (tmp_path / "device").unlink()
    for name in ("identity", "budget", DATABASE):
        open_client().close()
        path = tmp_path / "device" / name
        path.unlink()
        path.symlink_to(tmp_path / "absent")
        with pytest.raises(FileError, match="it must be a file, got a symbolic link"):
            open_client()
        path.unlink()
        open_client(consent=False)
    assert not (tmp_path / "absent").exists()


def test_file_that_another_process_removes_meanwhile_is_no_failure(tmp_path: Path) -> None:
    """The log of a database goes when the last process closes it, at any moment of an opening."""
    path, is_over = tmp_path / "telemetry.sqlite3-wal", threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            path.touch()
            path.unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(2000):
            check_private(tmp_path, [path.name])
    finally:
        is_over.set()
        other.join()


def test_files_that_others_may_read_are_closed_to_them(open_client: Opener, tmp_path: Path) -> None:
    """A restored backup may have opened them."""
    folder = tmp_path / "device"
    open_client().close()
    for path in folder.iterdir():
        path.chmod(0o644)
    open_client()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


# Room, as it is when a report is kept


def test_programs_with_different_registries_share_one_budget(open_client: Opener) -> None:
    """Both opened before either recorded: together they stay within the total."""
    caps = Caps(total=4.01)
    one, other = open_client(metric_of("one"), caps=caps), open_client(metric_of("two"), caps=caps)
    assert one.record("one", "x") == Outcome.KEPT
    assert other.record("two", "x") == Outcome.SILENT
    assert one.record("one", "x") == Outcome.KEPT
    assert one.spent().reserved == {2026: pytest.approx(4, abs=0.001)}


def test_order_of_a_new_registry_takes_no_room_that_is_taken(open_client: Opener) -> None:
    """A metric that stands before one that has reserved gets what is left."""
    caps = Caps(total=4.01)
    client = open_client(metric_of("late"), caps=caps)
    assert client.record("late", "x")
    client.close()
    client = open_client(metric_of("early"), metric_of("late"), caps=caps)
    assert client.record("early", "x") == Outcome.SILENT
    assert client.record("late", "x") == Outcome.KEPT
    assert sum(client.spent().reserved.values()) <= 4.01


def test_cap_for_life_counts_all_years(
    open_client: Opener, clock: FixedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch in its own year, a metric without epochs once; what is silent is named."""
    metrics = (metric_of("life"), metric_of("year", epoch="year"))
    caps = Caps(total=12.01, per="life")
    heard = []
    for year in (2026, 2027, 2028):
        clock.set(f"{year}-06-01T00:00:00")
        with open_client(*metrics, caps=caps) as client:
            heard.append([bool(client.record(metric.name, "x")) for metric in metrics])
    assert heard == [[True, True], [True, True], [True, False]]
    assert [record.getMessage() for record in caplog.records] == [
        "the budget of 2028 has no room for year: nothing is sent"
    ]


def test_cap_for_life_never_raises_the_registrys_total(tmp_path: Path, clock: FixedClock) -> None:
    """Both limits hold."""
    settings: dict[str, Any] = {"consent": True, "clock": clock}
    outcomes = []
    for name in ("old", "new"):
        registry = Registry([metric_of(name, epoch="year")], total=4.01)
        caps = Caps(total=1000.0, per="life")
        with Client.open(tmp_path / "device", registry=registry, caps=caps, **settings) as client:
            outcomes.append(client.record(name, "x"))
    assert outcomes == [Outcome.KEPT, Outcome.SILENT]
