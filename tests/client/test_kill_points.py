"""A process is killed at each moment of a flush, and a second process continues.

A moment is a use of the disk, or a line of the modules that write to the disk. For n = 0, 1, 2, ...
a child process sends two reports and is killed at its moment n, until a child finishes. The folder
of each killed child is copied, and continued in five states:

    killed             as the child left it: each report must arrive once (`check_killed`)
    lost, older        without the spool, or with an older spool: each scope must repeat its
                       permanent response, and the spent nats must stay (`check_lost`)
    state.1, state.2   with one damaged copy of the state: the other copy has no further scope

The folder `left` of a trial contains the uploads that arrived at the collector.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from days import finish_days, record_days
from devices import (
    CLEAR,
    CLOCKS,
    Home,
    Opener,
    identity_path,
    metric_of,
    open_device,
    read_device_state,
    remove_spool,
    write_events,
)
from forks import KILLED, at_touch, end_folder_threads, in_child, is_killed
from rappor_client import Client, TransportResponse
from rappor_client.folder import copies
from rappor_client.folder.identity_folder import IdentityFolder
from rappor_client.testing import FixedClock, MemoryTransport
from registries import registry_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

METRICS = (
    metric_of("event", params=CLEAR, epoch="year"),
    metric_of("daily", params=CLEAR, epoch="year", interval="day"),
)
TOUCHING: Final = frozenset({"write", "fsync", "replace", "rename", "unlink", "link"})
"""Contains the names of the functions whose calls are the moments."""
SENDING: Final = (
    "admission.py",
    "backoff.py",
    "cooldowns.py",
    "copies.py",
    "database.py",
    "identity.py",
    "identity_folder.py",
    "pending_reports.py",
    "spool.py",
    "store.py",
    "upload_response.py",
    "uploader.py",
    "writer.py",
)
"""Contains the files whose lines are the moments in the acceptance stage."""


class StoringTransport(MemoryTransport):
    """A collector that accepts every upload and stores it in a folder, where it survives a kill."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Store an upload under its id, and assert that all attempts have the same bytes.

        The state must be on the disk in both copies, with the scope of the report.
        """
        path = self.folder / f"{json.loads(body)['id']}.body"
        assert not path.exists() or path.read_bytes() == body
        path.with_suffix(".half").write_bytes(body)
        path.with_suffix(".half").rename(path)
        device = self.folder.parent / "device"
        for report in json.loads(body)["reports"]:  # nothing leaves before its cost is on the disk
            scopes = {scope.metric for scope in read_device_state(device).scopes.values()}
            assert report["metric"] in scopes
        assert len(copies.read(IdentityFolder(identity_path(device)))) == len(copies.NAMES)
        return super().send(body, timeout=timeout)


def kill_at(moment: int, *, is_fine: bool) -> None:
    """Kill this process at its n-th moment.

    A moment is a call that uses the disk, or (`is_fine`) a line of the sending modules.
    """
    moments = itertools.count()

    def watch(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "c_call" and not is_fine:
            is_commit = (arg.__name__, frame.f_code.co_name) == ("execute", "transaction")
            is_touch = arg.__name__ in TOUCHING or is_commit
        else:
            is_touch = is_fine and event == "line" and frame.f_code.co_filename.endswith(SENDING)
        if is_touch and next(moments) == moment:
            os._exit(KILLED)
        return watch

    end_folder_threads()
    for module in (threading, sys):  # new threads, and this one
        (module.settrace if is_fine else module.setprofile)(watch)


def create_device(base: Path, opener: Opener, clock: FixedClock) -> None:
    """Create a device with one queued report, and one pending report of a day that is over."""
    client = opener(*METRICS, folder=f"{base.name}/device")
    record_days(client, "event", "a")
    client.close()
    shutil.copytree(base / "device", base / "older")
    client = opener(*METRICS, folder=f"{base.name}/device")
    client.record("daily", "a")
    client.close()
    clock.advance(days=2)


def send_until_killed(place: Path, clock: FixedClock, moment: int, *, is_fine: bool) -> bool:
    """Send both reports, and be killed at a moment; return whether a report was not sent.

    The result is the exit code of the child: 0 says that it finished, and 1 is an error.
    """
    transport = StoringTransport(place / "left")
    client = open_device(place / "device", *METRICS, collector=transport, clock=clock)
    kill_at(moment, is_fine=is_fine)
    client.flush()
    return len(transport.reports) != 2


def kill_devices(
    base: Path, clock: FixedClock, moments: Iterable[int], *, is_fine: bool
) -> Iterator[Path]:
    """Yield the folder of a device that was killed, for each moment, until a device finishes."""
    for moment in moments:
        place = base.with_name(f"moment{moment}")
        shutil.copytree(base, place)
        (place / "left").mkdir()
        code = in_child(partial(send_until_killed, place, clock, moment, is_fine=is_fine))
        assert code in (0, KILLED)
        yield place
        shutil.rmtree(place)
        if code == 0:
            return


def bits_of(bodies: list[bytes]) -> dict[str, list[str]]:
    """Return the bits of the reports in some uploads, by metric."""
    bits_by_metric = collections.defaultdict(list)
    for body in bodies:
        for report in json.loads(body)["reports"]:
            bits_by_metric[report["metric"]].append(report["bits"])
    return bits_by_metric


def read_arrivals(place: Path) -> dict[str, list[str]]:
    """Return the bits of the reports that have left a device, by metric, once for each id."""
    return bits_of([path.read_bytes() for path in (place / "left").glob("*.body")])


def check_killed(place: Path, opener: Opener) -> None:
    """Continue a killed device, and assert that each report arrives once, and none is dropped."""
    client = opener(
        *METRICS, folder=f"{place.name}/device", collector=StoringTransport(place / "left")
    )
    assert client.flush()
    assert {name: len(bits) for name, bits in read_arrivals(place).items()} == {
        "daily": 1,
        "event": 1,
    }
    counts = client.event_counts()
    client.close()
    assert counts == {"accepted": 2, "recorded": 2}


def check_lost(place: Path, opener: Opener) -> None:
    """Continue without the spool, or with an older spool, and record another value.

    Each memoized scope must repeat its permanent response, and the spent nats must stay.
    """
    before, state = read_arrivals(place), read_device_state(place / "device")
    transport = StoringTransport(place / "left")
    client = opener(*METRICS, folder=f"{place.name}/device", collector=transport)
    assert {*before} <= {scope.metric for scope in state.scopes.values()}
    now = CLOCKS[client].now
    for metric in METRICS:
        client.record(metric.name, "b")
    for _ in range(2):  # a report that was queued before leaves on the first day
        finish_days(client)
        client.flush()
    assert client.queued_count() == 0
    CLOCKS[client].now = now  # later moments begin at the same time
    assert client.privacy_spent().nats >= sum(scope.cost for scope in state.scopes.values())
    client.close()
    after = bits_of(transport.bodies)
    memoized = {scope.metric for scope in state.scopes.values()}
    # The noise parameters make each report equal to its permanent response, so equal reports show
    # that the response was repeated. A set of one element has equal reports only.
    assert all(set(bits) | set(after[name]) == set(bits) for name, bits in before.items())
    assert all(len(set(after[name])) <= 1 for name in memoized)


def copy_in_state(place: Path, name: str) -> Path:
    """Return a copy of a killed device whose folder is in the state `name` (see the module)."""
    trial = place.with_name(f"{place.name}.{name}")
    shutil.copytree(place, trial)
    device = trial / "device"
    match name:
        case "lost":
            remove_spool(device)
        case "older":
            remove_spool(device)
            for path in identity_path(trial / "older").glob("spool-*"):
                shutil.copy(path, identity_path(device))
        case "state.1" | "state.2":
            (identity_path(device) / name).write_bytes(b"rappor state 1 9\n")
    return trial


def check_all_moments(
    base: Path, opener: Opener, clock: FixedClock, moments: Iterable[int], *, is_fine: bool
) -> int:
    """Kill at each moment, and check all states of the folder; return the number of moments."""
    create_device(base, opener, clock)
    n_moments = 0
    for place in kill_devices(base, clock, moments, is_fine=is_fine):
        n_moments += 1
        clock.advance(seconds=10)  # the claim of the killed process ends
        for name in ("killed", "lost", "older"):
            trial = copy_in_state(place, name)
            (check_killed if name == "killed" else check_lost)(trial, opener)
            shutil.rmtree(trial)
        n_valid = len(copies.read(IdentityFolder(identity_path(place / "device"))))
        for name in copies.NAMES if n_valid == len(copies.NAMES) else ():
            before = read_device_state(place / "device").scopes
            trial = copy_in_state(place, name)
            numbers = [
                copy.number for copy in copies.read(IdentityFolder(identity_path(trial / "device")))
            ]
            if len(numbers) == 1:
                # The copies were written one after the other, so the remaining copy may be older,
                # and lack the scope that was written last.
                after = read_device_state(trial / "device").scopes
                assert {*after} <= {*before}
            shutil.rmtree(trial)
    return n_moments


@pytest.mark.slow
def test_killed_at_each_use_of_the_disk(home: Home) -> None:
    """Each moment is a call that writes, flushes or renames a file, or ends a transaction."""
    moments = itertools.count()
    assert (
        check_all_moments(home.place / "base", home.open, home.clock, moments, is_fine=False) > 15
    )


@pytest.mark.acceptance
@pytest.mark.parametrize("first", range(4))
def test_killed_at_every_line(first: int, home: Home) -> None:
    """Each moment is a line of the modules that write to the disk."""
    moments = itertools.count(first, 4)
    assert (
        check_all_moments(home.place / "base", home.open, home.clock, moments, is_fine=True) > 100
    )


@pytest.mark.slow
def test_killed_during_the_creation_of_a_device(home: Home) -> None:
    """A device that was killed during its creation reports after the next start.

    The killed process has reserved no budget that is lost.
    """
    for moment in itertools.count():
        begin = partial(open_device, home.place / f"new{moment}")
        is_over = not is_killed(moment, TOUCHING | {"execute"}, begin)
        client = home.open(folder=f"new{moment}")
        record_days(client, "page", "a")
        assert client.queued_count() == 1
        client.close()
        if is_over:
            break
    assert moment > 5  # fewer moments would mean that the uses of the disk are not noticed


@pytest.mark.slow
def test_killed_while_a_first_event_is_written(home: Home, clock: FixedClock) -> None:
    """A report that leaves after a kill has its cost reserved, for a kill at each use of the disk.

    A process is killed while it writes the first event of a device. A second process sends the
    report of the event, if the event was written. A report costs at least 1 nat.
    """
    n_left = 0
    for moment in itertools.count():
        folder = f"first{moment}"
        child = os.fork()
        if child == 0:
            try:
                client = open_device(home.place / folder, *METRICS, clock=clock)
                kill_at(moment, is_fine=False)
                client.record("daily", "a")
                write_events(client)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        clock.advance(days=1)
        transport = MemoryTransport()
        client = home.open(*METRICS, folder=folder, collector=transport)
        assert client.flush()
        spent = client.privacy_spent()
        client.close()
        assert spent.reserved.get(2026, 0.0) >= spent.nats >= len(transport.reports)
        n_left += len(transport.reports)
        if not status:
            break
    assert moment > 5
    assert n_left > 0


def test_paused_process_writes_nothing_back(home: Home) -> None:
    """A process that is paused during a withdrawal and a second consent writes no old file back.

    The process is paused at each fifth use of the disk. In the pause, consent is withdrawn and
    given again, which creates a device with a new secret. Afterwards the folder must contain no
    file of the earlier device.
    """
    withdrawn = list[bool]()

    def withdraw() -> None:
        other = Client.open(home.folder, registry=registry_of(*METRICS), consent=False)
        withdrawn.append(bool(other.withdraw()))
        open_device(home.folder, *METRICS).close()

    for moment in itertools.count(step=5):
        client = home.open(*METRICS, collector=MemoryTransport())
        secret = read_device_state(home.folder).sealed_secret.bytes
        with at_touch(moment, TOUCHING, withdraw):
            client.record("event", "a")
            write_events(client)
            home.clock.advance(days=1)
            client.flush()
        client.close()
        # Without a pause, the process used the disk less often than `moment`.
        if len(withdrawn) <= moment // 5:
            break
        written = b"".join(path.read_bytes() for path in home.folder.rglob("*") if path.is_file())
        assert secret.hex().encode() not in written
        assert len(list(identity_path(home.folder).glob("spool-*.sqlite3"))) <= 1
        assert read_device_state(home.folder).sealed_secret.bytes != secret
        home.open(consent=False)
    assert moment > 5
