"""One process is stopped in the middle of what another one does as well.

The first is stopped at each touch of the disk, for as long as the second works; then it goes on.
Whatever their order: no budget is renewed, no second secret is made, and nothing ended comes back.
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
from rappor_client.person.withdrawal import erase
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
    """End consent."""
    erase(folder, now=CLOCK())


def withdraw_later(folder: Path) -> None:
    """Agree, report and end consent."""
    record(folder)
    withdraw(folder)


@contextlib.contextmanager
def ready_to(action: Action, folder: Path) -> Iterator[Callable[[], None]]:
    """Lend a call that does something in another process, which is there already."""
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


def stopped_at(moment: int, first: Action, second: Action, folder: Path) -> bool:
    """Do the first, and in its middle the second; return whether there was such a moment."""
    seen = list[bool]()

    def stop() -> None:
        seen.append(True)
        do_second()

    with ready_to(second, folder) as do_second, at_touch(moment, TOUCHING, stop):
        first(folder)
    return bool(seen)


def lived_in(folder: Path) -> Path:
    """Make a device that has reserved something."""
    record(folder)
    return folder


def withdrawn(folder: Path) -> Path:
    """Make a folder with the line of a withdrawal."""
    withdraw_later(folder)
    return folder


BASES: Final = {"lived in": lived_in, "withdrawn": withdrawn}
FEW: Final = [
    ("lived in", withdraw, withdraw_later),
    ("withdrawn", record, withdraw_later),
]
ALL: Final = list(
    itertools.product(BASES, (record, withdraw, withdraw_later), (record, withdraw, withdraw_later))
)


def trials(base: Path, first: Action, second: Action, moments: Iterable[int]) -> Iterator[Path]:
    """Yield a folder for each moment of the first, until there are no more."""
    for moment in moments:
        folder = base.with_name(f"moment{moment}")
        shutil.copytree(base, folder)
        is_there = stopped_at(moment, first, second, folder)
        yield folder
        shutil.rmtree(folder)
        if not is_there:
            return


def check_budget(
    begun: str, first: Action, second: Action, place: Path, moments: Iterable[int]
) -> None:
    """Nothing of what was reserved at the beginning is free in the end, nor is the year lost."""
    base = BASES[begun](place / "base")
    least = read_spent(base).reserved[2026]
    for folder in trials(base, first, second, moments):
        withdraw(folder)
        reserved = reservation_record.read(folder, 2026)[2026]
        assert least <= reserved < math.inf, folder.name
        assert [path.name for path in folder.iterdir()] == ["budget"]


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "first", "second"), FEW)
def test_no_budget_is_renewed(begun: str, first: Action, second: Action, tmp_path: Path) -> None:
    """Two that withdraw or begin, one in the middle of the other.

    At the moments 5 to 7 a withdrawal reads the state that it ends.
    """
    moments = itertools.chain(range(5, 8), itertools.count(step=11))
    check_budget(begun, first, second, tmp_path, moments)


@pytest.mark.acceptance
@pytest.mark.timeout(1800)  # whoever is stopped is waited for, some hundred times
@pytest.mark.parametrize(("begun", "first", "second"), ALL)
def test_no_budget_is_renewed_at_any_moment(
    begun: str, first: Action, second: Action, tmp_path: Path
) -> None:
    """The same for all pairs, and each touch of the disk."""
    check_budget(begun, first, second, tmp_path, itertools.count())


def test_many_that_start_together_wait_for_the_first_alone(tmp_path: Path) -> None:
    """As soon as there is a device, nobody needs the lock any more."""
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
