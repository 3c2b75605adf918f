"""Metrics, clients, folders and failing disks for the tests of the client."""

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
from registries import build_registry

from rappor import Metric, Params
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import derive_cohort, derive_permanent_response

UNCAPPED = BudgetCap()
"""Budget cap that lowers no budget."""
BALANCED = dataclasses.replace(Params.profile("balanced"), m=1)
"""Parameters with one cohort. Equal values set equal bits in every run. With many cohorts, two
values may collide in the cohort that a random secret draws."""
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
"""Parameters with one bit, so that a test can enumerate all reports."""


CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Parameters without instantaneous noise. A report equals its permanent response. The values of the
tests do not collide in 128 bits."""

Opener = Callable[..., Client]
"""Type of a function that opens a client. Its arguments are metrics, `folder`, and settings of
`Client.open` and `ClientOptions`."""


def build_metric(name: str = "page", params: Params = BALANCED, **fields: Any) -> Metric:
    """Return a metric for life that expires in 2030. `fields` replace its other fields."""
    defaults = {"expires": datetime.date(2030, 12, 31)}
    return registries.build_metric(params, name, **defaults | fields)


_PATIENCE = 60.0
"""Longest wait for a commit, in seconds. No test ends later because of the wait: the commits of a
test take less."""

_OPEN = weakref.WeakSet[Client]()
"""Contains all open clients of the present test."""
CLOCKS = weakref.WeakKeyDictionary[Client, testing.FixedClock]()
"""Contains the clock of each client that was opened with a FixedClock."""
OPEN_ARGUMENTS = frozenset({"consent", "collector", "opted_out"})
"""Names of the arguments of `Client.open` beside folder and registry. All other settings belong to
`ClientOptions`."""


def open_device(folder: Path, *metrics: Metric, **settings: Any) -> Client:
    """Open a client on the device of a folder.

    The settings are arguments of `Client.open`, fields of `ClientOptions`, or `registry`. By
    default consent is given, the budget has no cap, nothing is sent in the background, and mistakes
    raise.
    """
    arguments: dict[str, Any] = {"consent": True} | {
        name: settings.pop(name) for name in OPEN_ARGUMENTS & settings.keys()
    }
    options: dict[str, Any] = {
        "budget_cap": UNCAPPED,
        "max_delay": 3600.0,
        "background": False,
        "raise_errors": True,
    }
    registry = settings.pop("registry", None) or build_registry(*(metrics or [build_metric()]))
    client = Client.open(
        folder, registry=registry, **arguments, options=ClientOptions(**options | settings)
    )
    _OPEN.add(client)
    if isinstance(clock := settings.get("clock"), testing.FixedClock):
        CLOCKS[client] = clock
    return client


def close_device(client: Client) -> None:
    """Close a client for good.

    `peek` asks all other clients to write their events. A closed client would open its files again,
    and keep them open until the end of the process.
    """
    client.close()
    _OPEN.discard(client)


class Home:
    """A device of a test: a folder, a clock, a transport, and clients that are closed at the end.

    The clock begins at noon of Wednesday, 2026-11-18. A client uses the transport only if the test
    passes it as `collector`. `parent` is the folder that contains the device's folder, and the
    folders of further devices.
    """

    def __init__(self, parent: Path) -> None:
        self.parent, self.folder = parent, parent / "device"
        self.clock = testing.FixedClock("2026-11-18T12:00:00")
        self.transport = testing.MemoryTransport()
        self._opened = list[Client]()

    def open(self, *metrics: Metric, folder: str = "device", **settings: Any) -> Client:
        """Open a client as `open_device` does, with the clock of this device."""
        client = open_device(self.parent / folder, *metrics, **{"clock": self.clock} | settings)
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Close all clients, so that no later test writes the events in their memory."""
        for client in self._opened:
            close_device(client)


def list_sender_threads() -> set[threading.Thread]:
    """Return the background senders that are running."""
    return {thread for thread in threading.enumerate() if thread.name == "rappor-sender"}


def write_events(client: Client) -> None:
    """Write the events of a client from its memory to its folder. Nothing is sent.

    `record` may leave an event in memory. A test writes the event before it moves the clock, forks,
    or damages files.
    """
    # `queued_count` writes all events before it counts, but gives up after two seconds. A busy
    # machine may need more for a thousand events.
    client._run_safely(lambda: client._count_queued(time.monotonic() + _PATIENCE), 0)


def peek(folder: Path) -> Contents:
    """Return the contents of a folder, after all open clients have written the events in memory."""
    for client in list(_OPEN):
        write_events(client)
    return testing.peek(folder)


def get_identity_folder(folder: Path) -> Path:
    """Return the path of the identity's folder inside a host's folder."""
    return folder / "device"


def find_spool(folder: Path) -> Path:
    """Return the path of the spool. A folder has one spool, that of its secret."""
    (path,) = get_identity_folder(folder).glob("spool-*.sqlite3")
    return path


def read_device_state(folder: Path) -> State:
    """Return the state in the copies of a host's folder."""
    state_and_spool = read_state(folder)
    assert state_and_spool is not None
    return state_and_spool[0]


def read_secret(folder: Path) -> bytes:
    """Return the bytes of the secret in a host's folder."""
    return read_device_state(folder).sealed_secret.bytes


def compute_response(
    secret: bytes, value: str, *, name: str = "page", epoch: str = "", params: Params = CLEAR
) -> bytes:
    """Return the permanent response to a value, computed by the protocol without the client."""
    bits = get_encoder(params).encode(value, derive_cohort(secret, name, epoch, params))
    return derive_permanent_response(secret, name, epoch, params, bits)


def write_device(folder: Path, secret: bytes) -> None:
    """Write the folder of a device that has this secret and has reported nothing yet."""
    folder.mkdir(mode=0o700)
    get_identity_folder(folder).mkdir(mode=0o700)
    reservation_record.write(folder, {})
    copies.create(
        IdentityFolder(get_identity_folder(folder)), State.from_secret(Sealed(secret)).to_text()
    )


def remove_spool(folder: Path) -> None:
    """Remove the spool, as a person or a failing disk does."""
    for path in get_identity_folder(folder).glob("spool-*"):
        path.unlink()


@contextlib.contextmanager
def open_spool(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the spool beside its client, and commit the changes of the block."""
    db = sqlite3.connect(find_spool(folder))
    try:
        with db:
            yield db
    finally:
        db.close()


@contextlib.contextmanager
def hold_folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder while the block runs, as another process does."""
    second_folder = IdentityFolder(get_identity_folder(folder))
    try:
        while True:  # the client may hold the lock for some milliseconds
            with second_folder.try_lock() as is_locked:
                if is_locked:
                    yield
                    return
            time.sleep(0.001)
    finally:
        second_folder.close()


@contextlib.contextmanager
def refuse_new_rows(folder: Path, table: str = "report") -> Iterator[None]:
    """Let the spool refuse every new row of a table while the block runs.

    Rows of `report` are finished reports. Rows of `held` are pending reports of open intervals.
    """
    refuse = f"BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with open_spool(folder) as db:
        db.execute(f"CREATE TRIGGER refusing {refuse}")
    try:
        yield
    finally:
        with open_spool(folder) as db:
            db.execute("DROP TRIGGER refusing")


@contextlib.contextmanager
def simulate_full_disk(folder: Path) -> Iterator[None]:
    """Let no file of this process grow beyond the largest file of the device, as on a full disk."""
    import resource  # noqa: PLC0415 - POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in get_identity_folder(folder).iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
