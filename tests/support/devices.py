"""Metrics, settings and disks that the tests of the device share."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import registries
from rappor_client import BudgetCap, Client, ClientOptions, testing
from rappor_client.budget import reservation_record
from rappor_client.budget.identity import read_state
from rappor_client.budget.state import State
from rappor_client.folder import copies
from rappor_client.folder.copies import Sealed
from rappor_client.folder.identity_folder import IdentityFolder
from rappor_client.person.contents import Contents
from registries import registry_of

from rappor import Metric, Params
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import derive_cohort, derive_permanent_response

UNCAPPED = BudgetCap()
BALANCED = dataclasses.replace(Params.profile("balanced"), m=1)
"""In one cohort the same values share their bits in every run; in many, now and then others."""
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)


CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself, of values that do not collide."""

Opener = Callable[..., Client]
"""(*metrics, folder=..., **settings of Client.open and ClientOptions) -> an open client."""


def metric_of(name: str = "page", params: Params = BALANCED, **fields: Any) -> Metric:
    """Return a metric that lasts until 2030."""
    given = {"expires": datetime.date(2030, 12, 31)}
    return registries.metric_of(params, name, **given | fields)


_OPEN = weakref.WeakSet[Client]()
CLOCKS = weakref.WeakKeyDictionary[Client, testing.FixedClock]()
"""The clock of each client that was opened with one that stands still."""
OF_OPEN = frozenset({"consent", "collector", "opted_out"})


def open_device(folder: Path, *metrics: Metric, **chosen: Any) -> Client:
    """Open a device; what is chosen are settings of Client.open and ClientOptions, or a registry.

    Unless told, it has consent, no budget cap and no background sender, and mistakes raise.
    """
    settings: dict[str, Any] = {"consent": True} | {
        name: chosen.pop(name) for name in OF_OPEN & chosen.keys()
    }
    habits: dict[str, Any] = {
        "budget_cap": UNCAPPED,
        "max_delay": 3600.0,
        "background": False,
        "raise_errors": True,
    }
    registry = chosen.pop("registry", None) or registry_of(*(metrics or [metric_of()]))
    client = Client.open(
        folder, registry=registry, **settings, options=ClientOptions(**habits | chosen)
    )
    _OPEN.add(client)
    if isinstance(clock := chosen.get("clock"), testing.FixedClock):
        CLOCKS[client] = clock
    return client


class Home:
    """A device of a test: its folder in a place, its clock, and clients that are closed at the end.

    The clock stands at a Wednesday's noon; the transport keeps what clients send that are given it.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.folder = place, place / "device"
        self.clock = testing.FixedClock("2026-11-18T12:00:00")
        self.transport = testing.MemoryTransport()
        self._opened = list[Client]()

    def open(self, *metrics: Metric, folder: str = "device", **chosen: Any) -> Client:
        """Open a client as `open_device` does, on the clock."""
        client = open_device(self.place / folder, *metrics, **{"clock": self.clock} | chosen)
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Close all clients; no other test writes what they have in memory."""
        for client in self._opened:
            client.close()
            _OPEN.discard(client)


def senders() -> set[threading.Thread]:
    """Return the sender threads that are alive."""
    return {thread for thread in threading.enumerate() if thread.name == "rappor-sender"}


def peek(folder: Path) -> Contents:
    """Return what a folder holds, after all clients have written what they have in memory."""
    for client in list(_OPEN):
        client.queued_count()
    return testing.peek(folder)


def own(folder: Path) -> Path:
    """Return the folder of the identity that lives in a host's folder."""
    return folder / "device"


def spool_of(folder: Path) -> Path:
    """Return the database of the reports that wait; there is one of each secret."""
    (path,) = own(folder).glob("spool-*.sqlite3")
    return path


def state_of(folder: Path) -> State:
    """Return what the folder's copies say."""
    known = read_state(folder)
    assert known is not None
    return known[0]


def secret_of(folder: Path) -> bytes:
    """Return the secret as the folder's files hold it."""
    return state_of(folder).sealed_secret.bytes


def response_of(
    secret: bytes, value: str, *, name: str = "page", epoch: str = "", params: Params = CLEAR
) -> bytes:
    """Return the permanent response of a value, by the protocol alone."""
    truth = get_encoder(params).encode(value, derive_cohort(secret, name, epoch, params))
    return derive_permanent_response(secret, name, epoch, params, truth)


def write_device(folder: Path, secret: bytes) -> None:
    """Write the state of a device that has spent nothing yet."""
    folder.mkdir(mode=0o700)
    own(folder).mkdir(mode=0o700)
    reservation_record.write(folder, {})
    copies.begin(IdentityFolder(own(folder)), State.from_secret(Sealed(secret)).to_text())


def lose(folder: Path) -> None:
    """Remove the spool."""
    for path in own(folder).glob("spool-*"):
        path.unlink()


@contextlib.contextmanager
def database(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a device's database beside its client; keep what the block writes."""
    db = sqlite3.connect(spool_of(folder))
    try:
        with db:
            yield db
    finally:
        db.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the device's lock, as another process would, while the block runs."""
    other = IdentityFolder(own(folder))
    try:
        while True:  # a writer may be inside for a moment
            with other.try_lock() as is_inside:
                if is_inside:
                    yield
                    return
            time.sleep(0.001)
    finally:
        other.close()


@contextlib.contextmanager
def refusing_disk(folder: Path, table: str = "report") -> Iterator[None]:
    """Let the database refuse every further row of a table while the block runs.

    The rows of `report` are finished reports, those of `held` the events of open intervals.
    """
    refuse = f"BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with database(folder) as db:
        db.execute(f"CREATE TRIGGER refusing {refuse}")
    try:
        yield
    finally:
        with database(folder) as db:
            db.execute("DROP TRIGGER refusing")


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Let no file of this process grow past the database's largest while the block runs."""
    import resource  # noqa: PLC0415 - POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in own(folder).iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
