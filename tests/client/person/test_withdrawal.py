"""The end of consent: the secret first, everything else after it, and a true account of it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from devices import DATABASE, Opener, database, full_disk, metric_of, peek, secret_of
from rappor_client import Answer, Caps, Client, IdentityError, Outcome, Withdrawal
from rappor_client.folder import spool
from rappor_client.folder.store import Store
from rappor_client.person.withdrawal import UNDER_WAY, erase
from rappor_client.testing import FixedClock, MemoryTransport
from registries import registry_of

from rappor import Registry
from rappor.ground.errors import FileError, MetricError, ParamsError

GONE = Withdrawal(secret_gone=True)
METRICS = (metric_of("page", patterns=2), metric_of("slow", epoch="month", interval="day"))
NOBODY = 65534


def lived_in(open_client: Opener) -> Client:
    """Return a client whose folder holds sent, pending, waiting and held reports."""
    transport = MemoryTransport()
    client = open_client(*METRICS, collector=transport)
    client.record("page", "a")
    assert client.flush()
    transport.script = [None]
    client.record("page", "b")
    assert not client.flush(timeout=0.0)
    client.record("page", "b")
    client.record("slow", "a")
    return client


def traces_of(folder: Path) -> list[bytes]:
    """Return the secret, names of patterns, responses and reports as they stand in the files."""
    contents = peek(folder)
    traces = [secret_of(folder), *(pattern.name for pattern in contents.patterns)]
    traces += [report.bits for report in contents.waiting]
    traces += [upload.id.encode() for upload in contents.sent]
    with database(folder) as db:
        traces += [
            row[0] for row in db.execute("SELECT permanent FROM scope UNION SELECT bits FROM held")
        ]
    assert len(traces) >= 8
    return [*traces, *(trace.hex().encode() for trace in traces)]


def files_of(folder: Path) -> bytes:
    """Return all bytes of a folder."""
    return b"\0".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[None]:
    """Let somebody else read the database while the block runs."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM report").fetchall()
        yield


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[None]:
    """Let somebody else keep the database locked while the block runs."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM counter")
        yield
        db.execute("ROLLBACK")


@contextlib.contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Overwrite the first pages of the database."""
    with (folder / DATABASE).open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 3000)
    yield


@contextlib.contextmanager
def header(folder: Path) -> Iterator[None]:
    """Overwrite what tells that it is a database."""
    with (folder / DATABASE).open("r+b") as file:
        file.write(b"no database at all")
    yield


def nothing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Let nothing be wrong."""
    assert folder.exists()
    return contextlib.nullcontext()


@pytest.mark.parametrize("how", ["withdraw", "open"])
@pytest.mark.parametrize("trouble", [nothing, reader, writer, damage, header, full_disk])
def test_withdrawal_leaves_no_trace(
    trouble: Callable[[Path], contextlib.AbstractContextManager[None]],
    how: str,
    open_client: Opener,
    tmp_path: Path,
) -> None:
    """Whoever reads, locks or has damaged the database; nothing of it is in any file."""
    folder = tmp_path / "device"
    client = lived_in(open_client)
    nats, traces = client.spent().nats, traces_of(folder)
    assert sum(trace in files_of(folder) for trace in traces) >= len(traces) / 2
    with trouble(folder):
        if how == "withdraw":
            assert client.withdraw() == GONE
            assert client.record("page", "a") == Outcome.SILENT
        else:
            client.close()
            open_client(*METRICS, consent=False)
        left = files_of(folder)
        assert not any(trace in left for trace in traces)
        assert [path.name for path in folder.iterdir()] == ["budget"]
    client = open_client(*METRICS)
    spent = client.spent()
    assert spent.carried >= nats - 1e-9
    assert spent.reserved == {2026: pytest.approx(8 + 12 * 4, abs=0.1)}
    assert client.record("page", "a") == Outcome.KEPT


@pytest.mark.parametrize("has_copy", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE reserved SET year = 2026.5",
        "UPDATE reserved SET nats = -5",
        "INSERT INTO state VALUES ('carried_nats', -1e9)",
        "UPDATE pattern SET nats = 'many'",
        "UPDATE pattern SET nats = -1e9",
        "UPDATE scope SET admitted = 'text'",
    ],
)
def test_database_that_can_be_read_but_is_wrong_is_erased(
    statement: str, *, has_copy: bool, open_client: Opener, tmp_path: Path
) -> None:
    """Nothing that stands in it keeps it from going; what was spent never becomes less than 0."""
    folder = tmp_path / "device"
    client = lived_in(open_client)
    with database(folder) as db:
        db.execute(statement)
    if not has_copy:
        (folder / "budget").unlink()
    assert "epsilon" in str(client.spent())
    assert client.withdraw() == GONE
    assert [path.name for path in folder.iterdir()] == ["budget"]
    assert open_client(*METRICS).spent().nats >= 0


def test_damaged_database_that_is_all_there_is_uses_the_year_up(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """Nothing tells what was reserved, so a new consent brings no budget before the next year."""
    folder = tmp_path / "device"
    lived_in(open_client).close()
    (folder / "identity").unlink()
    (folder / "budget").unlink()
    with header(folder):
        open_client(*METRICS, consent=False)
    client = open_client(*METRICS)
    assert client.record("slow", "a") == Outcome.SILENT
    clock.set("2027-01-01T00:00:00")
    assert client.record("slow", "a") == Outcome.KEPT


def test_withdrawal_is_told_in_words() -> None:
    """What was verified, and nothing more."""
    assert str(GONE) == "The secret is gone; everything else is erased."
    assert GONE
    left = Withdrawal(secret_gone=False, left=("identity", "telemetry.sqlite3"))
    assert str(left) == (
        "The secret could not be erased; still there: identity, telemetry.sqlite3."
    )
    assert not left
    assert not Withdrawal(secret_gone=True, left=("budget",))


def as_nobody(place: Path, action: Callable[[], object]) -> str:
    """Run an action in a process without privileges, whose current folder is the place."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(place)
            if os.getuid() == 0:
                os.setuid(NOBODY)
            os.write(writing, str(action()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


def give_to_nobody(folder: Path, *, folder_mode: int, file_mode: int) -> None:
    """Let a process without privileges own a folder, with these permissions."""
    folder.parent.chmod(0o711)
    for path in folder.iterdir():
        path.chmod(file_mode)
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    folder.chmod(folder_mode)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes of another user")
def test_read_only_folder_is_overwritten_as_far_as_it_lets_itself(
    open_client: Opener, tmp_path: Path
) -> None:
    """Names stay where the folder is read-only, bytes do not; then both, and that is told."""
    folder = tmp_path / "device"
    registry = registry_of(*METRICS)

    def withdraw() -> object:
        client = Client.open("device", registry=registry, consent=False)
        assert not client.flush() or not client.waiting()
        return client.withdraw()

    client = lived_in(open_client)
    traces = traces_of(folder)
    client.close()
    give_to_nobody(folder, folder_mode=0o500, file_mode=0o400)
    told = as_nobody(tmp_path, withdraw)
    assert told == (f"The secret could not be erased; still there: identity, {DATABASE}, budget.")
    give_to_nobody(folder, folder_mode=0o500, file_mode=0o600)
    told = as_nobody(tmp_path, withdraw)
    assert told == f"The secret is gone; still there: identity, {DATABASE}."
    left = files_of(folder)
    assert not any(trace in left for trace in traces)
    give_to_nobody(folder, folder_mode=0o700, file_mode=0o600)
    assert as_nobody(tmp_path, withdraw) == str(GONE)
    for path in (folder, *folder.iterdir()):
        os.chown(path, os.getuid(), os.getgid())
    client = open_client(*METRICS)
    assert client.spent().reserved == {2026: pytest.approx(8, abs=0.1)}  # of what had left


def test_withdrawal_comes_before_all_that_may_be_wrong_with_the_program(
    open_client: Opener, tmp_path: Path
) -> None:
    """A registry that is gone or wrong, and an address that is none, keep nothing alive."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[budget]\n")
    for number, (registry, kind) in enumerate(
        [(tmp_path / "absent.toml", FileError), (wrong, MetricError)]
    ):
        open_client(folder=str(number)).record("page", "a")
        with pytest.raises(kind):
            Client.open(tmp_path / str(number), registry=registry, consent=False)
        assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["budget"]
    open_client(folder="address").record("page", "a")
    with pytest.raises(ParamsError):
        open_client(folder="address", consent=False, collector="ftp://example.org")
    assert [path.name for path in (tmp_path / "address").iterdir()] == ["budget"]


def test_registry_that_fits_only_later_is_silence_and_no_error(
    tmp_path: Path, open_client: Opener
) -> None:
    """On a device whose clock is behind; and consent can be withdrawn there."""
    registry = tmp_path / "metrics.toml"
    entry = 'description="a"\nowner="b"\nencoding="bloom"\nprofile="strict"\nepoch="year"\n'
    registry.write_text(
        f"[budget]\ntotal = 3\n[metrics.old]\n{entry}expires=2020-01-01\n"
        f"[metrics.new]\n{entry}expires=2090-01-01\n"
    )
    with pytest.raises(MetricError, match="total must be at least 4 nats"):
        Registry.load(registry)  # in development
    folder = tmp_path / "device"
    with Client.open(folder, registry=registry, consent=True, clock=lambda: 0.0) as client:
        assert client.record("old", "x") == Outcome.KEPT
        assert client.record("new", "x") == Outcome.SILENT
    with Client.open(folder, registry=registry, consent=False, clock=lambda: 0.0):
        assert not peek(folder).has_secret
    del open_client


def test_withdrawal_that_was_killed_is_finished(open_client: Opener, tmp_path: Path) -> None:
    """After the secret alone, and after the budget: what was answered never comes back."""
    folder, caps = tmp_path / "device", Caps(total=4.01)
    client = open_client(caps=caps, collector=MemoryTransport())
    client.record("page", "a")
    assert client.flush()
    client.close()
    shutil.copytree(folder, tmp_path / "secret gone")
    (tmp_path / "secret gone" / "identity").unlink()
    shutil.copytree(folder, tmp_path / "budget kept")
    client = open_client()
    client.withdraw()
    (tmp_path / "budget kept" / "identity").unlink()
    shutil.copy(folder / "budget", tmp_path / "budget kept" / "budget")
    with pytest.raises(IdentityError):
        open_client(folder="secret gone", caps=caps)
    open_client(folder="secret gone", consent=False)
    for name in ("secret gone", "budget kept"):
        client = open_client(folder=name, caps=caps)
        assert client.log() == []
        assert client.record("page", "a") == Outcome.SILENT
        assert client.spent().reserved == {2026: pytest.approx(4, abs=0.001)}


def withdraw_until_killed(folder: Path, moment: int) -> bool:
    """Withdraw in a process that is killed when it touches the disk so often; false if not."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    touches = itertools.count(1)

    def kill(event: str, _: object) -> None:
        if event in ("os.remove", "os.rename", "open") and next(touches) == moment:
            os._exit(9)

    sys.addaudithook(kill)
    erase(folder, Store(folder), now=0.0)
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_program_starts_again_wherever_a_withdrawal_was_killed(
    open_client: Opener, tmp_path: Path
) -> None:
    """At any touch of the disk: the next start finishes the erasure, and nothing is renewed."""
    donor, n_killed = tmp_path / "device", 0
    client = open_client(caps=Caps(total=4.01), collector=MemoryTransport())
    client.record("page", "a")
    client.close()
    secret = secret_of(donor)
    for moment in itertools.count(1):
        folder = tmp_path / f"killed {moment}"
        shutil.copytree(donor, folder)
        if not withdraw_until_killed(folder, moment):
            break
        if (folder / "withdrawing").exists():
            n_killed += 1
            client = open_client(folder=folder.name, caps=Caps(total=4.01))
            assert client.log() == []
            assert client.waiting() == 0
            assert client.record("page", "a") == Outcome.SILENT
            assert secret_of(folder) != secret
            assert not (folder / "withdrawing").exists()
    assert n_killed > 5


def test_withdrawal_that_was_killed_at_its_end_takes_nothing_of_a_new_device(
    open_client: Opener, tmp_path: Path
) -> None:
    """It had spent nothing, and so it left nothing but the note that it had begun."""
    open_client().withdraw()
    assert not list((tmp_path / "device").iterdir())
    (tmp_path / "device" / "withdrawing").touch()
    client = open_client()
    assert client.record("page", "a") == Outcome.KEPT
    assert not (tmp_path / "device" / "withdrawing").exists()


def test_claim_of_a_clock_that_was_ahead_is_no_upload_under_way(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """It lasts for seconds, so one that ends later was made at another time."""
    for seconds, left in ((60.0, ()), (1.0, (UNDER_WAY,))):
        client = lived_in(open_client)
        with database(tmp_path / "device") as db:
            db.execute("UPDATE upload SET claimed_until = ?", (clock() + seconds,))
        assert client.withdraw().left == left


def test_zeros_are_on_the_disk_when_a_withdrawal_returns(open_client: Opener) -> None:
    """Each file is overwritten, and then the disk is waited for."""
    client, calls = lived_in(open_client), list[str]()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        is_call = event == "c_call" and frame.f_code.co_name == "_fill_with_zeros"
        if is_call and arg.__name__ in ("write", "fsync"):
            calls.append(arg.__name__)

    sys.setprofile(watch)
    try:
        assert client.withdraw() == GONE
    finally:
        sys.setprofile(None)
    waits = [after for name, after in itertools.pairwise(calls) if name == "write"]
    assert waits == ["fsync"] * len(waits)
    assert len(waits) >= 3  # secret, budget, database


def test_claim_that_is_being_written_is_waited_for(open_client: Opener, tmp_path: Path) -> None:
    """Another program's, which withdraws nothing: it sends once its transaction has ended."""
    client = open_client()
    client.record("page", "a")
    store, now = Store(tmp_path / "device"), FixedClock("2026-11-18T12:00:00")()
    is_claiming = threading.Event()

    def claim() -> None:
        with store.transaction() as db:
            spool.build(db, due_by=math.inf)
            spool.claim(db, spool.pending(db)[0], first_attempt=now, until=now + 2.0)
            is_claiming.set()
            time.sleep(0.3)

    claiming = threading.Thread(target=claim)
    claiming.start()
    assert is_claiming.wait(60)
    assert client.withdraw().left == (UNDER_WAY,)
    claiming.join()
    store.close()


def test_secret_that_reappears_after_withdrawal_is_not_used(
    open_client: Opener, tmp_path: Path
) -> None:
    """A backup of the file alone brings no permanent response back."""
    client = open_client()
    secret = secret_of(tmp_path / "device")
    shutil.copy(tmp_path / "device" / "identity", tmp_path)
    client.record("page", "a")
    client.withdraw()
    shutil.copy(tmp_path / "identity", tmp_path / "device")
    open_client()
    assert secret_of(tmp_path / "device") != secret


def test_files_that_a_killed_process_left_are_erased(open_client: Opener, tmp_path: Path) -> None:
    """Half a secret in a file without its name, and the damaged database set apart."""
    client, folder = lived_in(open_client), tmp_path / "device"
    for name in (".identity.0123456789abcdef.tmp", ".budget.0123456789abcdef.tmp"):
        shutil.copy(folder / "identity", folder / name)
    shutil.copy(folder / DATABASE, folder / "damaged.sqlite3")
    assert client.withdraw() == GONE
    assert [path.name for path in folder.iterdir()] == ["budget"]


def test_drafts_that_a_killed_process_left_are_erased_at_opening(
    open_client: Opener, tmp_path: Path
) -> None:
    """After an hour: a newer one may be of a process that is alive."""
    open_client()
    old, new = (tmp_path / "device" / f".budget.{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"a permanent response")
        path.chmod(0o600)
    os.utime(old, (0.0, time.time() - 3660.0))
    open_client()
    assert not old.exists()
    assert new.exists()


def test_what_cannot_be_removed_is_named(open_client: Opener, tmp_path: Path) -> None:
    """A folder in a file's place, which is not ours to empty."""
    client, folder = lived_in(open_client), tmp_path / "device"
    (folder / "damaged.sqlite3").mkdir()
    (folder / "damaged.sqlite3" / "file").touch()
    assert client.withdraw() == Withdrawal(secret_gone=True, left=("damaged.sqlite3",))
    assert client.withdraw() == Withdrawal(secret_gone=True, left=("damaged.sqlite3",))


def test_device_that_was_never_used_leaves_nothing(open_client: Opener, tmp_path: Path) -> None:
    """Not even a number; withdrawing twice, or without ever consenting, is fine."""
    client = open_client()
    assert client.withdraw() == client.withdraw() == GONE
    assert list((tmp_path / "device").iterdir()) == []
    assert open_client(folder="other", consent=False).withdraw() == GONE
    assert not (tmp_path / "other").exists()


def test_links_lead_the_erasure_nowhere(open_client: Opener, tmp_path: Path) -> None:
    """Another person's file behind a link keeps its bytes."""
    client, folder = lived_in(open_client), tmp_path / "device"
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (folder / "damaged.sqlite3").symlink_to(other)
    assert client.withdraw() == GONE
    assert other.read_bytes() == b"precious"


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_upload_that_cannot_be_severed_is_told(
    seconds: float, open_client: Opener, clock: FixedClock
) -> None:
    """A transport of the host's own that hangs and heeds no closing, for however long."""
    is_over, is_sending = threading.Event(), threading.Event()

    class Deaf(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            is_sending.set()
            is_over.wait(60)
            return super().send(body, timeout=timeout)

    client = open_client(collector=Deaf())
    client.record("page", "a")
    flushing = threading.Thread(target=client.flush)
    flushing.start()
    assert is_sending.wait(60)
    clock.advance(seconds=seconds)
    withdrawal = client.withdraw()
    assert withdrawal == Withdrawal(secret_gone=True, left=("an upload under way",))
    is_over.set()
    flushing.join()


def test_files_of_the_host_are_left_alone(open_client: Opener, tmp_path: Path) -> None:
    """A folder may hold more than the device."""
    folder = tmp_path / "device"
    folder.mkdir(mode=0o755)
    (folder / "settings.ini").write_text("mine")
    (folder / "settings.ini").chmod(0o644)
    (folder / "link").symlink_to(tmp_path / "absent")
    client = open_client()
    client.record("page", "a")
    assert client.withdraw() == GONE
    assert (folder / "settings.ini").read_text() == "mine"
    assert (folder / "settings.ini").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in folder.iterdir()) == ["budget", "link", "settings.ini"]


def test_upload_of_another_client_is_told(open_client: Opener) -> None:
    """Of another process, or of this one: it has been claimed, and may arrive."""
    is_over, is_sending = threading.Event(), threading.Event()

    class Slow(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            is_sending.set()
            is_over.wait(60)
            return super().send(body, timeout=timeout)

    client, other = open_client(), open_client(collector=Slow())
    client.record("page", "a")
    flushing = threading.Thread(target=other.flush)
    flushing.start()
    assert is_sending.wait(60)
    assert client.withdraw() == Withdrawal(secret_gone=True, left=("an upload under way",))
    assert client.withdraw() == GONE
    is_over.set()
    flushing.join()
