"""A process that is killed, or loses power, at each moment of a step that sends.

A step is run once for every moment at which it touches the disk. A child is killed there; then the
folder stays as it is, or its spool is lost, damaged or of an earlier day, or one copy of the state.
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
SENDING: Final = (
    "admission.py",
    "copies.py",
    "identity.py",
    "identity_folder.py",
    "spool.py",
    "store.py",
    "uploader.py",
    "writer.py",
)


class Writing(MemoryTransport):
    """Accepts every upload, and keeps it where a killed process leaves it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Keep the bytes under the upload's id: the same ones however often it comes."""
        path = self.folder / f"{json.loads(body)['id']}.body"
        assert not path.exists() or path.read_bytes() == body
        path.with_suffix(".half").write_bytes(body)
        path.with_suffix(".half").rename(path)
        device = self.folder.parent / "device"
        for report in json.loads(body)["reports"]:  # nothing leaves before its price is there
            scopes = {scope.metric for scope in read_device_state(device).scopes.values()}
            assert report["metric"] in scopes
        assert len(copies.read(IdentityFolder(identity_path(device)))) == len(copies.NAMES)
        return super().send(body, timeout=timeout)


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

    end_folder_threads()
    for module in (threading, sys):  # whichever thread is first
        (module.settrace if is_fine else module.setprofile)(watch)


def lead(base: Path, opener: Opener, clock: FixedClock) -> None:
    """Make a device with one report that waits and one that is held for a day that is over."""
    client = opener(*METRICS, folder=f"{base.name}/device")
    record_days(client, "event", "a")
    client.close()
    shutil.copytree(base / "device", base / "older")
    client = opener(*METRICS, folder=f"{base.name}/device")
    client.record("daily", "a")
    client.close()
    clock.advance(days=2)


def send_until_killed(place: Path, clock: FixedClock, moment: int, *, is_fine: bool) -> bool:
    """Send both reports, killed at a moment if there are as many; return whether that failed."""
    transport = Writing(place / "left")
    client = open_device(place / "device", *METRICS, collector=transport, clock=clock)
    kill_at(moment, is_fine=is_fine)
    client.flush()
    return len(transport.reports) != 2


def killed_devices(
    base: Path, clock: FixedClock, moments: Iterable[int], *, is_fine: bool
) -> Iterator[Path]:
    """Yield a folder for each moment, with a device that was killed there, until one finishes."""
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
    """Return the bits of each metric's uploads."""
    found = collections.defaultdict(list)
    for body in bodies:
        for report in json.loads(body)["reports"]:
            found[report["metric"]].append(report["bits"])
    return found


def arrived(place: Path) -> dict[str, list[str]]:
    """Return the bits of what has left a device, once for each id."""
    return bits_of([path.read_bytes() for path in (place / "left").glob("*.body")])


def check_killed(place: Path, opener: Opener) -> None:
    """Go on: each report arrives once, under one id, and nothing counts as older."""
    client = opener(*METRICS, folder=f"{place.name}/device", collector=Writing(place / "left"))
    assert client.flush()
    assert {name: len(bits) for name, bits in arrived(place).items()} == {"daily": 1, "event": 1}
    counted = client.event_counts()
    client.close()
    assert counted == {"accepted": 2, "recorded": 2}


def check_lost(place: Path, opener: Opener) -> None:
    """Go on without the spool, or with an older one: whoever has answered answers the same."""
    before, state = arrived(place), read_device_state(place / "device")
    transport = Writing(place / "left")
    client = opener(*METRICS, folder=f"{place.name}/device", collector=transport)
    assert {*before} <= {scope.metric for scope in state.scopes.values()}
    now = CLOCKS[client].now
    for metric in METRICS:
        client.record(metric.name, "b")
    for _ in range(2):  # a report that was waiting takes the turn of a day
        finish_days(client)
        client.flush()
    assert client.queued_count() == 0
    CLOCKS[client].now = now  # the devices of later moments do not see these days
    assert client.privacy_spent().nats >= sum(scope.cost for scope in state.scopes.values())
    client.close()
    after = bits_of(transport.bodies)
    latched = {scope.metric for scope in state.scopes.values()}
    assert all(set(bits) | set(after[name]) == set(bits) for name, bits in before.items())
    assert all(len(set(after[name])) <= 1 for name in latched)


def state_after(place: Path, name: str) -> Path:
    """Return a copy of a killed device with its folder in a state."""
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


def go_through(
    base: Path, opener: Opener, clock: FixedClock, moments: Iterable[int], *, is_fine: bool
) -> int:
    """Kill at each moment and check every state of the disk; return how many moments there are."""
    lead(base, opener, clock)
    n_moments = 0
    for place in killed_devices(base, clock, moments, is_fine=is_fine):
        n_moments += 1
        clock.advance(seconds=10)  # past the claim of the killed process
        for name in ("killed", "lost", "older"):
            trial = state_after(place, name)
            (check_killed if name == "killed" else check_lost)(trial, opener)
            shutil.rmtree(trial)
        whole = len(copies.read(IdentityFolder(identity_path(place / "device"))))
        for name in copies.NAMES if whole == len(copies.NAMES) else ():
            before = read_device_state(place / "device").scopes
            trial = state_after(place, name)
            numbers = [
                each.number for each in copies.read(IdentityFolder(identity_path(trial / "device")))
            ]
            if len(numbers) == 1:
                after = read_device_state(trial / "device").scopes
                assert {*after} <= {*before}
            shutil.rmtree(trial)
    return n_moments


@pytest.mark.slow
def test_killed_when_it_touches_the_disk(home: Home) -> None:
    """At each call that writes, flushes or renames a file, or ends a transaction."""
    moments = itertools.count()
    assert go_through(home.place / "base", home.open, home.clock, moments, is_fine=False) > 15


@pytest.mark.acceptance
@pytest.mark.parametrize("first", range(4))
def test_killed_at_every_line(first: int, home: Home) -> None:
    """At each line that a step runs of the modules that touch the disk."""
    moments = itertools.count(first, 4)
    assert go_through(home.place / "base", home.open, home.clock, moments, is_fine=True) > 100


def test_killed_while_a_device_begins(home: Home) -> None:
    """At each touch of the disk: it has spent nothing, so no budget is lost with it."""
    for moment in itertools.count():
        begin = partial(open_device, home.place / f"new{moment}")
        is_over = not is_killed(moment, TOUCHING | {"execute"}, begin)
        client = home.open(folder=f"new{moment}")
        record_days(client, "page", "a")
        assert client.queued_count() == 1
        client.close()
        if is_over:
            break
    assert moment > 5


def test_killed_while_a_first_event_is_written(home: Home, clock: FixedClock) -> None:
    """At each touch of the disk: whatever leaves afterwards has its price reserved."""
    n_left = 0
    for moment in itertools.count():
        folder = f"first{moment}"
        child = os.fork()
        if child == 0:
            try:
                client = open_device(home.place / folder, *METRICS, clock=clock)
                kill_at(moment, is_fine=False)
                client.record("daily", "a")
                client.queued_count()
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


def test_a_stopped_process_puts_nothing_back(home: Home) -> None:
    """It is stopped at each touch of the disk, while another one withdraws and agrees again."""
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
            client.queued_count()
            home.clock.advance(days=1)
            client.flush()
        client.close()
        if len(withdrawn) <= moment // 5:
            break
        written = b"".join(path.read_bytes() for path in home.folder.rglob("*") if path.is_file())
        assert secret.hex().encode() not in written
        assert len(list(identity_path(home.folder).glob("spool-*.sqlite3"))) <= 1
        assert read_device_state(home.folder).sealed_secret.bytes != secret
        home.open(consent=False)
    assert moment > 5
