"""Two processes use one folder of a device at the same time.

The first process is paused right before its n-th use of the disk. A second process does all of its
work in this pause, and then the first process continues. A test repeats this for n = 0, 1, 2, ...,
until the first process uses the disk less often. For each pause, no budget may be renewed, no
second secret may be created, and no erased file may come back.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from devices import build_metric, open_device, write_events
from forks import run_before_call
from rappor_client import Client
from rappor_client.budget import reservation_record
from rappor_client.budget.identity import create_identity
from rappor_client.folder.identity_folder import lock_host_folder
from rappor_client.person.contents import read_spent
from rappor_client.person.erasure import erase
from rappor_client.testing import FixedClock, MemoryTransport

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

DISK_FUNCTIONS: Final = {
    *("open", "write", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir"),
    *("iterdir", "flock", "execute"),
}
"""Contains the names of C functions that use the disk. `execute` runs a statement of SQLite."""
METRIC: Final = build_metric(epoch="year")
CLOCK: Final = FixedClock("2026-11-30T12:00:00")
N_TRIALS: Final = 8
"""Number of trials that run at the same time. A trial mostly waits for the lock of a paused
process, so eight trials are faster than two even on a machine with two processors."""
Action = Callable[[Path], None]
"""Changes the folder of a device. The actions are `record`, `withdraw` and `withdraw_later`."""


def record(folder: Path) -> None:
    """Give consent, if the withdrawal allows it now, record an event, and send its report."""
    client = open_device(folder, METRIC, clock=CLOCK, collector=MemoryTransport())
    client.record("page", "a")
    write_events(client)
    CLOCK.advance(days=1)
    client.flush(timeout=0.1)
    CLOCK.advance(days=-1)


def withdraw(folder: Path) -> None:
    """Withdraw consent."""
    erase(folder, now=CLOCK())


def withdraw_later(folder: Path) -> None:
    """Give consent, send a report, and withdraw consent."""
    record(folder)
    withdraw(folder)


@contextlib.contextmanager
def prepare_action(action: Action, folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that runs an action in another process, and waits until the action ends.

    The process is forked at once, before the caller opens files or starts threads. It waits for a
    byte in the first pipe, and writes a byte to the second pipe after the action. If the action is
    never run, the first pipe is closed, and the process ends.
    """
    (start_reader, start_writer), (end_reader, end_writer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(start_writer)
            if os.read(start_reader, 1):
                action(folder)
                os.write(end_writer, b"!")
        finally:
            os._exit(0)
    os.close(start_reader)
    os.close(end_writer)

    def run_action() -> None:
        os.write(start_writer, b"!")
        assert os.read(end_reader, 1)  # nothing is read if the action raised

    try:
        yield run_action
    finally:
        os.close(start_writer)
        os.waitpid(child, 0)
        os.close(end_reader)


def pause_at(pause_point: int, first: Action, second: Action, folder: Path) -> bool:
    """Run the first action, and the second action right before a use of the disk by the first.

    `pause_point` is the number of this use, counted from 0. Returns False if the first action uses
    the disk less often. The second action has not run then.
    """
    pauses = list[bool]()

    def pause() -> None:
        pauses.append(True)
        run_second()

    with (
        prepare_action(second, folder) as run_second,
        run_before_call(pause_point, DISK_FUNCTIONS, pause),
    ):
        first(folder)
    return bool(pauses)


def create_used_device(folder: Path) -> Path:
    """Create a device that has sent a report, so it has reserved nats of its budget."""
    record(folder)
    return folder


def create_withdrawn(folder: Path) -> Path:
    """Create a folder with the record of a withdrawal."""
    withdraw_later(folder)
    return folder


START_FOLDERS: Final = {"used": create_used_device, "withdrawn": create_withdrawn}
"""Contains functions that create the folder in which both actions begin."""
DEFAULT_CASES: Final = [
    ("used", withdraw, withdraw_later),
    ("withdrawn", record, withdraw_later),
]
"""Contains the folder at the beginning, and the first and second action, of the default run."""
ALL_CASES: Final = list(
    itertools.product(
        START_FOLDERS, (record, withdraw, withdraw_later), (record, withdraw, withdraw_later)
    )
)
"""Contains every folder at the beginning with every pair of actions."""


def run_trial(base: Path, first: Action, second: Action, pause_point: int) -> bool:
    """Pause the first action once, and assert that reserved nats never decrease in this trial.

    The trial begins with a fresh copy of `base`, and ends with a withdrawal, after which only the
    record of reserved nats may be in the folder. A year whose reserved nats are lost is unknown. It
    counts as infinitely many nats. Returns False if the first action did not reach the pause.
    """
    folder = base.with_name(f"trial{pause_point}")
    shutil.copytree(base, folder)
    is_reached = pause_at(pause_point, first, second, folder)
    withdraw(folder)
    reserved = reservation_record.read(folder, 2026)[2026]
    assert read_spent(base).reserved[2026] <= reserved < math.inf, folder.name
    assert [path.name for path in folder.iterdir()] == ["budget"]
    shutil.rmtree(folder)
    return is_reached


def check_budget(
    base_name: str, first: Action, second: Action, parent: Path, pause_points: Iterator[int]
) -> None:
    """Assert that no budget is renewed, for each pause of the first action.

    `pause_points` are the numbers of the uses of the disk at which the first action is paused. The
    trials end with points that the first action does not reach. Trials run side by side, because
    most of their time passes in waits for the lock of a paused process.
    """
    base = START_FOLDERS[base_name](parent / "base")
    with ProcessPoolExecutor(N_TRIALS, multiprocessing.get_context("fork")) as pool:
        for points in iter(lambda: [*itertools.islice(pause_points, N_TRIALS)], []):
            trials = [pool.submit(run_trial, base, first, second, point) for point in points]
            if not all(trial.result() for trial in trials):
                return


@pytest.mark.slow
@pytest.mark.parametrize(("base_name", "first", "second"), DEFAULT_CASES)
def test_no_budget_is_renewed(
    base_name: str, first: Action, second: Action, tmp_path: Path
) -> None:
    """No budget is renewed when one process withdraws or begins inside the action of another.

    The first action is paused at each eleventh use of the disk, and at the uses 5 to 7, at which a
    withdrawal reads the state that it ends.
    """
    pause_points = itertools.chain(range(5, 8), itertools.count(step=11))
    check_budget(base_name, first, second, tmp_path, pause_points)


@pytest.mark.acceptance
@pytest.mark.timeout(1800)  # some hundred trials wait for paused processes
@pytest.mark.parametrize(("base_name", "first", "second"), ALL_CASES)
def test_no_budget_is_renewed_at_any_moment(
    base_name: str, first: Action, second: Action, tmp_path: Path
) -> None:
    """No budget is renewed, for all pairs of actions, and for a pause at each use of the disk."""
    check_budget(base_name, first, second, tmp_path, itertools.count())


def test_clients_that_open_together_wait_for_the_first_only(tmp_path: Path) -> None:
    """Clients that open together wait until the first client has created the identity.

    They read the identity without the lock, which the test has until all clients are open.
    """
    folder = tmp_path / "device"
    folder.mkdir(mode=0o700)
    clients = list[Client]()
    with lock_host_folder(folder):
        threads = [
            threading.Thread(target=lambda: clients.append(open_device(folder))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        create_identity(folder, {})
        for thread in threads:
            thread.join()
    assert [client.disabled_reason for client in clients] == [""] * 4
