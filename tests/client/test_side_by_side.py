"""Two processes side by side: one is paused at each use of the disk while the other one works.

Whatever their order, no budget is renewed, no second secret is made, and no erased file comes back.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from devices import metric_of, open_device
from forks import at_touch
from rappor_client import Client
from rappor_client.budget import reservation_record
from rappor_client.budget.identity import create_identity
from rappor_client.folder.identity_folder import lock_host_folder
from rappor_client.person.contents import read_spent
from rappor_client.person.erasure import erase
from rappor_client.testing import FixedClock, MemoryTransport

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

TOUCHING: Final = {
    *("open", "write", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir"),
    *("iterdir", "flock", "execute"),
}
METRIC: Final = metric_of(epoch="year")
CLOCK: Final = FixedClock("2026-11-30T12:00:00")
Action = Callable[[Path], None]


def record(folder: Path) -> None:
    """Agree, if that is possible now, and send a report."""
    client = open_device(folder, METRIC, clock=CLOCK, collector=MemoryTransport())
    client.record("page", "a")
    client.queued_count()
    CLOCK.advance(days=1)
    client.flush(timeout=0.1)
    CLOCK.advance(days=-1)


def withdraw(folder: Path) -> None:
    """Withdraw consent."""
    erase(folder, now=CLOCK())


def withdraw_later(folder: Path) -> None:
    """Agree, report and withdraw consent."""
    record(folder)
    withdraw(folder)


@contextlib.contextmanager
def prepare_action(action: Action, folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that runs an action in another process, which has been started before."""
    (told, tell), (ended, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(tell)
            if os.read(told, 1):
                action(folder)
                os.write(end, b"!")
        finally:
            os._exit(0)
    os.close(told)
    os.close(end)

    def do() -> None:
        os.write(tell, b"!")
        assert os.read(ended, 1)

    try:
        yield do
    finally:
        os.close(tell)
        os.waitpid(child, 0)
        os.close(ended)


def pause_at(moment: int, first: Action, second: Action, folder: Path) -> bool:
    """Run the first action, and the second one at a moment inside of it.

    Returns whether the first action has such a moment.
    """
    seen = list[bool]()

    def stop() -> None:
        seen.append(True)
        do_second()

    with prepare_action(second, folder) as do_second, at_touch(moment, TOUCHING, stop):
        first(folder)
    return bool(seen)


def create_used_device(folder: Path) -> Path:
    """Create a device that has reserved nats."""
    record(folder)
    return folder


def create_withdrawn(folder: Path) -> Path:
    """Create a folder with the record of a withdrawal."""
    withdraw_later(folder)
    return folder


BASES: Final = {"used": create_used_device, "withdrawn": create_withdrawn}
FEW: Final = [
    ("used", withdraw, withdraw_later),
    ("withdrawn", record, withdraw_later),
]
ALL: Final = list(
    itertools.product(BASES, (record, withdraw, withdraw_later), (record, withdraw, withdraw_later))
)


def run_trials(base: Path, first: Action, second: Action, moments: Iterable[int]) -> Iterator[Path]:
    """Yield a folder for each moment of the first action, until it has no more moments."""
    for moment in moments:
        folder = base.with_name(f"moment{moment}")
        shutil.copytree(base, folder)
        is_there = pause_at(moment, first, second, folder)
        yield folder
        shutil.rmtree(folder)
        if not is_there:
            return


def check_budget(
    begun: str, first: Action, second: Action, place: Path, moments: Iterable[int]
) -> None:
    """Assert that reserved nats never decrease, and that no year becomes unknown."""
    base = BASES[begun](place / "base")
    reserved_before = read_spent(base).reserved[2026]
    for folder in run_trials(base, first, second, moments):
        withdraw(folder)
        reserved = reservation_record.read(folder, 2026)[2026]
        assert reserved_before <= reserved < math.inf, folder.name
        assert [path.name for path in folder.iterdir()] == ["budget"]


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "first", "second"), FEW)
def test_no_budget_is_renewed(begun: str, first: Action, second: Action, tmp_path: Path) -> None:
    """Two actions that withdraw or begin, one inside of the other, renew no budget.

    At the moments 5 to 7 a withdrawal reads the state that it ends.
    """
    moments = itertools.chain(range(5, 8), itertools.count(step=11))
    check_budget(begun, first, second, tmp_path, moments)


@pytest.mark.acceptance
@pytest.mark.timeout(1800)  # each of some hundred run_trials waits for paused processes
@pytest.mark.parametrize(("begun", "first", "second"), ALL)
def test_no_budget_is_renewed_at_any_moment(
    begun: str, first: Action, second: Action, tmp_path: Path
) -> None:
    """The same for all pairs of actions, and at each use of the disk."""
    check_budget(begun, first, second, tmp_path, itertools.count())


def test_clients_that_open_together_wait_for_the_first_only(tmp_path: Path) -> None:
    """Clients that open together wait for the first one only: they need no lock after it."""
    folder = tmp_path / "device"
    folder.mkdir(mode=0o700)
    opened = list[Client]()
    with lock_host_folder(folder):
        others = [
            threading.Thread(target=lambda: opened.append(open_device(folder))) for _ in range(4)
        ]
        for other in others:
            other.start()
        create_identity(folder, {})
        for other in others:
            other.join()
    assert [client.disabled_reason for client in opened] == [""] * 4
