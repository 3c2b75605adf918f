"""A process that is killed, or loses power, at each moment of a step that sends.

A step is run once for every moment at which it touches the disk. A child is killed there; then the
database stays as it is, or is lost, or is as it was when the disk was last waited for.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from devices import DATABASE, Opener, database, lose, metric_of
from rappor_client import Answer, Client, Outcome
from rappor_client.folder.store import Store
from rappor_client.outbox.flushed import FlushReason, Step
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.uploader import Uploader
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Params, epsilon_inf

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself, of values that do not collide."""
METRICS = (
    metric_of("event", params=CLEAR, epoch="year"),
    metric_of("daily", params=CLEAR, epoch="year", interval="day"),
)
TOUCHING: Final = frozenset({"write", "fsync", "replace", "rename"})
SENDING: Final = ("budget_copy.py", "files.py", "spool.py", "store.py", "uploader.py")
KILLED: Final = 9


class Writing(MemoryTransport):
    """Accepts every upload, and keeps it where a killed process leaves it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Keep the bytes under the upload's id: the same ones however often it comes."""
        path = self.folder / f"{json.loads(body)['id']}.body"
        assert not path.exists() or path.read_bytes() == body
        path.with_suffix(".half").write_bytes(body)
        path.with_suffix(".half").rename(path)
        return super().send(body, timeout=timeout)


class Syncing(Store):
    """A store that keeps a copy of what the disk held for sure when it was last waited for."""

    def sync(self) -> None:
        """Wait for the disk, and copy the database with its log."""
        super().sync()
        place = self._path.parent.with_suffix(".synced")
        for name in (DATABASE, f"{DATABASE}-wal"):
            shutil.copy(self._path.with_name(name), place)


def step_of(client: Client, store: Store, transport: MemoryTransport) -> Step:
    """Make one step of a client that has another store."""
    stops = Stops(client.registry.together)
    uploader = Uploader(store, transport, client._settings, client._obstacle, stops)
    return uploader.step()


def kill_at(moment: int, *, is_fine: bool) -> None:
    """Kill this process when it is about to touch the disk for the n-th time, or runs a line."""
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

    (sys.settrace if is_fine else sys.setprofile)(watch)


def lead(base: Path, opener: Opener, clock: FixedClock) -> None:
    """Make a device with one report that waits and one that is held for a day that is over.

    Beside it are its first database, and what the disk holds for sure.
    """
    device = base / "device"
    opener(*METRICS, folder=f"{base.name}/device").close()
    shutil.copy(device / DATABASE, base / "older")
    client = opener(*METRICS, folder=f"{base.name}/device")
    client.record("event", "a")
    client.record("daily", "a")
    client.close()
    shutil.copytree(device, base / "device.synced")
    clock.advance(days=2)


def killed_devices(
    base: Path, opener: Opener, moments: Iterable[int], *, is_fine: bool
) -> Iterator[Path]:
    """Yield a folder for each moment, with a device that was killed there, until one finishes."""
    for moment in moments:
        place = base.with_name(f"moment{moment}")
        shutil.copytree(base, place)
        (place / "left").mkdir()
        child = os.fork()
        if child == 0:
            try:
                live(place, opener, moment, is_fine=is_fine)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, KILLED)
        yield place
        shutil.rmtree(place)
        if not status:
            return


def live(place: Path, opener: Opener, moment: int, *, is_fine: bool) -> None:
    """Send both reports in a process that is killed at a moment, unless it ends before."""
    transport = Writing(place / "left")
    client = opener(*METRICS, folder=f"{place.name}/device", collector=transport)
    store = Syncing(place / "device")
    kill_at(moment, is_fine=is_fine)
    for _ in range(3):
        step_of(client, store, transport)
    os._exit(0)


def bits_of(bodies: list[bytes]) -> dict[str, list[str]]:
    """Return the bits of each metric's uploads."""
    found = collections.defaultdict(list)
    for body in bodies:
        for report in json.loads(body)["reports"]:
            found[report["metric"]].append(report["bits"])
    return found


def finish(place: Path, opener: Opener) -> Client:
    """Send what is left after a kill; each report has arrived once, under one id."""
    client = opener(*METRICS, folder=f"{place.name}/device", collector=Writing(place / "left"))
    assert client.flush()
    arrived = bits_of([path.read_bytes() for path in (place / "left").glob("*.body")])
    assert {name: len(bits) for name, bits in arrived.items()} == {"daily": 1, "event": 1}
    client.close()
    return client


def check_killed(place: Path, opener: Opener) -> None:
    """Go on with everything as it was left: nothing is lost, nothing counts as older."""
    client = finish(place, opener)
    assert client.counters() == {"accepted": 2, "recorded": 2}
    assert {name: each.reports for name, each in client.spent().metrics.items()} == {
        "daily": 1,
        "event": 1,
    }


def check_powerless(place: Path, opener: Opener) -> None:
    """Go on with the database as it was for sure: it is not behind the copy."""
    assert not {"dropped_old", "rebuilt"} & set(finish(place, opener).counters())


def check_lost(place: Path, opener: Opener) -> None:
    """Go on with an older database or none: whatever has left is charged, and answers again."""
    before = bits_of([path.read_bytes() for path in (place / "left").glob("*.body")])
    transport = MemoryTransport()
    client = opener(*METRICS, folder=f"{place.name}/device", collector=transport)
    spent = client.spent().metrics
    assert all(spent[name].nats >= epsilon_inf(CLEAR) for name in before)
    assert all(spent[name].reports >= len(bits) for name, bits in before.items() if name == "daily")
    for metric in METRICS:
        client.record(metric.name, "b")
    assert client.flush()
    client.close()
    after = bits_of(transport.bodies)
    assert all(set(bits) | set(after[name]) == set(bits) for name, bits in before.items())


def state_of(place: Path, name: str) -> Path:
    """Return a copy of a killed device with its database in a state."""
    trial = place.with_name(f"{place.name}.{name}")
    shutil.copytree(place, trial)
    if name != "killed":
        lose(trial / "device")
    if name == "older":
        shutil.copy(trial / "older", trial / "device" / DATABASE)
    if name == "powerless":
        for path in (trial / "device.synced").glob(f"{DATABASE}*"):
            shutil.copy(path, trial / "device")
    return trial


def go_through(
    base: Path, opener: Opener, clock: FixedClock, moments: Iterable[int], *, is_fine: bool
) -> int:
    """Kill at each moment and check every state of the disk; return how many moments there are."""
    checks = {
        "killed": check_killed,
        "powerless": check_powerless,
        "older": check_lost,
        "lost": check_lost,
    }
    lead(base, opener, clock)
    n_moments = 0
    for place in killed_devices(base, opener, moments, is_fine=is_fine):
        n_moments += 1
        clock.advance(seconds=10)  # past the claim of the killed process
        for name, check in checks.items():
            trial = state_of(place, name)
            check(trial, opener)
            shutil.rmtree(trial)
    return n_moments


def test_killed_when_it_touches_the_disk(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """At each call that writes, flushes or renames a file, or ends a transaction."""
    moments = itertools.count()
    assert go_through(tmp_path / "base", open_client, clock, moments, is_fine=False) > 15


@pytest.mark.acceptance
@pytest.mark.parametrize("first", range(4))
def test_killed_at_every_line(
    first: int, open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """At each line that a step runs of the modules that touch the disk."""
    moments = itertools.count(first, 4)
    assert go_through(tmp_path / "base", open_client, clock, moments, is_fine=True) > 200


def test_killed_while_a_device_begins(open_client: Opener) -> None:
    """At each touch of the disk: it has spent nothing, so no budget is lost with it."""
    for moment in itertools.count():
        folder = f"new{moment}"
        child = os.fork()
        if child == 0:
            try:
                kill_at(moment, is_fine=False)
                open_client(folder=folder)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        client = open_client(folder=folder)
        assert client.record("page", "a") == Outcome.KEPT
        client.close()
        if not status:
            break
    assert moment > 5


def test_no_lock_is_held_while_the_disk_is_waited_for(
    open_client: Opener, clock: FixedClock, tmp_path: Path
) -> None:
    """At each call of fsync another process, and another thread, may begin to write."""
    transport = MemoryTransport()
    client = open_client(*METRICS, collector=transport)
    client.record("event", "a")
    client.record("daily", "a")
    clock.advance(days=2)
    waits: list[bool] = []

    def watch(_frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and arg.__name__ == "fsync":
            sys.setprofile(None)
            with database(tmp_path / "device") as other:
                other.execute("PRAGMA busy_timeout = 0")
                other.execute("BEGIN IMMEDIATE")
            waits.append(client._store._inside is None)
            sys.setprofile(watch)

    sys.setprofile(watch)
    try:
        flushed = client.flush()
    finally:
        sys.setprofile(None)
    assert flushed.sent == 2
    assert waits == [True] * 5  # database, copy, its name, and the claim of each report


def test_two_processes_that_send_never_set_the_copy_back(
    open_client: Opener, tmp_path: Path
) -> None:
    """One sends another metric's first report while the other one has its version ready."""
    folder, seen = tmp_path / "device", list[set[str]]()

    class Looking(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            document = json.loads((folder / "budget").read_text().splitlines()[1])
            seen.append({row[0] for row in document["scopes"]})
            return super().send(body, timeout=timeout)

    class Interrupted(Store):
        n_synced = 0

        def sync(self) -> None:
            self.n_synced += 1
            if self.n_synced == 1:
                other.record("two", "x")
                assert other.flush(timeout=0.0).sent == 1
            super().sync()

    metrics = (metric_of("one"), metric_of("two"))
    client = open_client(*metrics, collector=Looking())
    other = open_client(*metrics, collector=Looking())
    client.record("one", "x")
    store, transport = Interrupted(folder), Looking()
    assert step_of(client, store, transport).due is not None
    assert seen == [{"one", "two"}]
    assert step_of(client, store, transport).is_attempt
    assert seen == [{"one", "two"}] * 2
    store.close()


def test_withdrawal_while_the_disk_is_waited_for_lets_nothing_leave(
    open_client: Opener, tmp_path: Path
) -> None:
    """Its first act is to remove the secret, which whoever claims an upload looks for."""
    folder, transport = tmp_path / "device", MemoryTransport()

    class Interrupted(Store):
        def sync(self) -> None:
            (folder / "identity").unlink(missing_ok=True)
            super().sync()

    client = open_client()
    client.record("page", "a")
    store = Interrupted(folder)
    assert step_of(client, store, transport).reason is FlushReason.NO_CONSENT
    assert transport.bodies == []
    store.close()
