"""A process is killed at each kill point of a flush, and a second process continues.

A kill point is a use of the disk, or a line of the modules that write to the disk. For n = 0, 1, 2,
... a child process sends two reports and is killed at its kill point n, until a child finishes. The
folder of each killed child is copied, and continued in five states:

    killed             as the child left it: each report must arrive once (`check_killed`)
    lost, older        without the spool, or with an older spool: each scope must repeat its
                       permanent response, and the spent nats must stay (`check_lost`)
    state.1, state.2   with one damaged copy of the state: the other copy has no further scope

The folder of a trial contains `device` (the device's folder), `older` (a copy of an earlier state),
and `arrived` (the uploads that arrived at the collector).
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
    build_metric,
    get_identity_folder,
    open_device,
    read_device_state,
    remove_spool,
    write_events,
)
from forks import KILLED, end_folder_threads, run_before_call, run_in_child, run_until_killed
from rappor_client import Client, TransportResponse
from rappor_client.folder import copies
from rappor_client.folder.identity_folder import IdentityFolder
from rappor_client.testing import FixedClock, MemoryTransport
from registries import build_registry

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

METRICS = (
    build_metric("event", params=CLEAR, epoch="year"),
    build_metric("daily", params=CLEAR, epoch="year", interval="day"),
)
DISK_FUNCTIONS: Final = frozenset({"write", "fsync", "replace", "rename", "unlink", "link"})
"""The calls of these functions are the kill points."""
SENDING_FILES: Final = (
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
"""The lines of these files are the kill points in the acceptance stage."""


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
        assert len(copies.read(IdentityFolder(get_identity_folder(device)))) == len(copies.NAMES)
        return super().send(body, timeout=timeout)


def kill_at(kill_point: int, *, by_line: bool) -> None:
    """Let this process be killed at a kill point, counted from 0.

    A kill point is a call that uses the disk, or (`by_line`) a line of the sending modules.
    """
    kill_points = itertools.count()

    def watch(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "c_call" and not by_line:
            is_commit = (arg.__name__, frame.f_code.co_name) == ("execute", "transaction")
            is_kill_point = arg.__name__ in DISK_FUNCTIONS or is_commit
        else:
            is_kill_point = (
                by_line and event == "line" and frame.f_code.co_filename.endswith(SENDING_FILES)
            )
        if is_kill_point and next(kill_points) == kill_point:
            os._exit(KILLED)
        return watch

    end_folder_threads()
    for module in (threading, sys):  # new threads, and this one
        (module.settrace if by_line else module.setprofile)(watch)


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


def send_until_killed(trial: Path, clock: FixedClock, kill_point: int, *, by_line: bool) -> bool:
    """Send both reports, and be killed at a kill point; return whether a report was not sent.

    The result is the exit code of the child: 0 if both reports were sent, 1 after an error.
    """
    transport = StoringTransport(trial / "arrived")
    client = open_device(trial / "device", *METRICS, collector=transport, clock=clock)
    kill_at(kill_point, by_line=by_line)
    client.flush()
    return len(transport.reports) != 2


def kill_devices(
    base: Path, clock: FixedClock, kill_points: Iterable[int], *, by_line: bool
) -> Iterator[Path]:
    """Yield the folder of a killed trial for each kill point, until a trial is not killed."""
    for kill_point in kill_points:
        trial = base.with_name(f"trial{kill_point}")
        shutil.copytree(base, trial)
        (trial / "arrived").mkdir()
        code = run_in_child(partial(send_until_killed, trial, clock, kill_point, by_line=by_line))
        assert code in (0, KILLED)
        yield trial
        shutil.rmtree(trial)
        if code == 0:
            return


def collect_bits(bodies: list[bytes]) -> dict[str, list[str]]:
    """Return the bits of the reports in some uploads, by metric."""
    bits_by_metric = collections.defaultdict(list)
    for body in bodies:
        for report in json.loads(body)["reports"]:
            bits_by_metric[report["metric"]].append(report["bits"])
    return bits_by_metric


def read_arrivals(trial: Path) -> dict[str, list[str]]:
    """Return the bits of the reports that have left a device, by metric, once for each id."""
    return collect_bits([path.read_bytes() for path in (trial / "arrived").glob("*.body")])


def check_killed(trial: Path, opener: Opener) -> None:
    """Continue a killed device, and assert that each report arrives once, and none is dropped."""
    client = opener(
        *METRICS, folder=f"{trial.name}/device", collector=StoringTransport(trial / "arrived")
    )
    assert client.flush()
    assert {name: len(bits) for name, bits in read_arrivals(trial).items()} == {
        "daily": 1,
        "event": 1,
    }
    counts = client.event_counts()
    client.close()
    assert counts == {"accepted": 2, "recorded": 2}


def check_lost(trial: Path, opener: Opener) -> None:
    """Continue without the spool, or with an older spool, and record another value.

    Each memoized scope must repeat its permanent response, and the spent nats must stay.
    """
    before, state = read_arrivals(trial), read_device_state(trial / "device")
    transport = StoringTransport(trial / "arrived")
    client = opener(*METRICS, folder=f"{trial.name}/device", collector=transport)
    assert {*before} <= {scope.metric for scope in state.scopes.values()}
    now = CLOCKS[client].now
    for metric in METRICS:
        client.record(metric.name, "b")
    for _ in range(2):  # a report that was queued before leaves on the first day
        finish_days(client)
        client.flush()
    assert client.queued_count() == 0
    CLOCKS[client].now = now  # the next trial begins at the same time
    assert client.privacy_spent().nats >= sum(scope.cost for scope in state.scopes.values())
    client.close()
    after = collect_bits(transport.bodies)
    memoized = {scope.metric for scope in state.scopes.values()}
    # The noise parameters make each report equal to its permanent response, so equal reports show
    # that the response was repeated. A set of one element has equal reports only.
    assert all(set(bits) | set(after[name]) == set(bits) for name, bits in before.items())
    assert all(len(set(after[name])) <= 1 for name in memoized)


def copy_in_state(trial: Path, name: str) -> Path:
    """Return a copy of a killed trial whose device is in the state `name` (see the module)."""
    copy = trial.with_name(f"{trial.name}.{name}")
    shutil.copytree(trial, copy)
    device = copy / "device"
    match name:
        case "lost":
            remove_spool(device)
        case "older":
            remove_spool(device)
            for path in get_identity_folder(copy / "older").glob("spool-*"):
                shutil.copy(path, get_identity_folder(device))
        case "state.1" | "state.2":
            (get_identity_folder(device) / name).write_bytes(b"rappor state 1 9\n")
    return copy


def check_all_kill_points(
    base: Path, opener: Opener, clock: FixedClock, kill_points: Iterable[int], *, by_line: bool
) -> int:
    """Kill a trial at each kill point, and check all states of its folder.

    Returns the number of trials.
    """
    create_device(base, opener, clock)
    n_trials = 0
    for trial in kill_devices(base, clock, kill_points, by_line=by_line):
        n_trials += 1
        clock.advance(seconds=10)  # the claim of the killed process ends
        for name in ("killed", "lost", "older"):
            copy = copy_in_state(trial, name)
            (check_killed if name == "killed" else check_lost)(copy, opener)
            shutil.rmtree(copy)
        n_valid = len(copies.read(IdentityFolder(get_identity_folder(trial / "device"))))
        for name in copies.NAMES if n_valid == len(copies.NAMES) else ():
            before = read_device_state(trial / "device").scopes
            copy = copy_in_state(trial, name)
            valid_copies = copies.read(IdentityFolder(get_identity_folder(copy / "device")))
            if len(valid_copies) == 1:
                # The copies were written one after the other, so the remaining copy may be older,
                # and lack the scope that was written last.
                after = read_device_state(copy / "device").scopes
                assert {*after} <= {*before}
            shutil.rmtree(copy)
    return n_trials


@pytest.mark.slow
def test_killed_at_each_use_of_the_disk(home: Home) -> None:
    """A trial is killed before each call that writes, flushes or renames a file.

    The begin and the end of a transaction are kill points, too.
    """
    base, kill_points = home.parent / "base", itertools.count()
    assert check_all_kill_points(base, home.open, home.clock, kill_points, by_line=False) > 15


@pytest.mark.acceptance
@pytest.mark.parametrize("first", range(4))
def test_killed_at_every_line(first: int, home: Home) -> None:
    """A trial is killed before each line of the modules that write to the disk."""
    base, kill_points = home.parent / "base", itertools.count(first, 4)
    assert check_all_kill_points(base, home.open, home.clock, kill_points, by_line=True) > 100


@pytest.mark.slow
def test_killed_during_the_creation_of_a_device(home: Home) -> None:
    """A device that was killed during its creation reports after the next start.

    The killed process has reserved no budget that is lost.
    """
    for kill_point in itertools.count():
        create = partial(open_device, home.parent / f"new{kill_point}")
        is_over = not run_until_killed(kill_point, DISK_FUNCTIONS | {"execute"}, create)
        client = home.open(folder=f"new{kill_point}")
        record_days(client, "page", "a")
        assert client.queued_count() == 1
        client.close()
        if is_over:
            break
    assert kill_point > 5  # otherwise the uses of the disk are not noticed


@pytest.mark.slow
def test_killed_while_a_first_event_is_written(home: Home, clock: FixedClock) -> None:
    """A report that leaves after a kill has its cost reserved, for a kill at each use of the disk.

    A process is killed while it writes the first event of a device. A second process sends the
    report of the event, if the event was written. A report costs at least 1 nat.
    """
    n_sent = 0
    for kill_point in itertools.count():
        folder = f"first{kill_point}"
        child = os.fork()
        if child == 0:
            try:
                client = open_device(home.parent / folder, *METRICS, clock=clock)
                kill_at(kill_point, by_line=False)
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
        n_sent += len(transport.reports)
        if not status:
            break
    assert kill_point > 5
    assert n_sent > 0


def test_paused_process_writes_nothing_back(home: Home) -> None:
    """A process that is paused during a withdrawal and a second consent writes no old file back.

    The process is paused at each fifth use of the disk. In the pause, consent is withdrawn and
    given again, which creates a device with a new secret. Afterwards the folder must contain no
    file of the earlier device.
    """
    withdrawals = list[bool]()

    def withdraw() -> None:
        client = Client.open(home.folder, registry=build_registry(*METRICS), consent=False)
        withdrawals.append(bool(client.withdraw()))
        open_device(home.folder, *METRICS).close()

    for pause_point in itertools.count(step=5):
        client = home.open(*METRICS, collector=MemoryTransport())
        secret = read_device_state(home.folder).sealed_secret.bytes
        with run_before_call(pause_point, DISK_FUNCTIONS, withdraw):
            client.record("event", "a")
            write_events(client)
            home.clock.advance(days=1)
            client.flush()
        client.close()
        # Without a pause, the process has used the disk less often.
        if len(withdrawals) <= pause_point // 5:
            break
        data = b"".join(path.read_bytes() for path in home.folder.rglob("*") if path.is_file())
        assert secret.hex().encode() not in data
        assert len(list(get_identity_folder(home.folder).glob("spool-*.sqlite3"))) <= 1
        assert read_device_state(home.folder).sealed_secret.bytes != secret
        home.open(consent=False)
    assert pause_point > 5
