"""Simulated devices that report to a demo's collector, day by day, over HTTP.

The collector cannot make a report: `rappor simulate` does, in processes of its own that read one
command line after another.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rappor_server.base.errors import ConfigError
from rappor_server.cli.demo_metrics import WEEKS, Stream, write_populations

_PROCESSES: Final = 2
_DAY: Final = datetime.timedelta(days=1)
_READ_COMMANDS: Final = """\
import json, sys
from rappor.cli.app import run
for line in sys.stdin:
    print("status", run(json.loads(line)), flush=True)
"""


class Clock:
    """The day of the demo's collector, which its devices move."""

    def __init__(self, day: datetime.date) -> None:
        self.day = day

    def __call__(self) -> datetime.date:
        """Return the day."""
        return self.day


def first_day(today: datetime.date) -> datetime.date:
    """Return the Monday on which eight whole weeks begin that are over by today."""
    return today - datetime.timedelta(days=today.weekday() + 7 * WEEKS)


def report(
    url: str, registry: Path, clock: Clock, last: datetime.date, tell: Callable[[int], None]
) -> None:
    """Send the reports of every day up to the last one, and tell how many weeks are done.

    Raises
    ------
    ConfigError
        A simulation has failed; it has said why.
    """
    first = clock.day
    with tempfile.TemporaryDirectory() as folder, _simulators() as run:
        populations = list(write_populations(Path(folder)))
        while clock.day <= last:
            day = (clock.day - first).days
            week = min(day // 7, WEEKS - 1)
            run([
                _command(stream, path, url, registry, seed=len(populations) * day + number)
                for number, (at, stream, path) in enumerate(populations) if at == week
            ])  # fmt: skip
            # Up to a Sunday there are nine whole weeks: the last one repeats the eighth's values.
            if day % 7 == 6 and day // 7 < WEEKS:
                tell(day // 7 + 1)
            clock.day += _DAY


def _command(stream: Stream, path: Path, url: str, registry: Path, *, seed: int) -> list[str]:
    """Return the command line that sends the reports of a stream on one day."""
    segment = ["--segment", stream.segment] if stream.segment else []
    return [
        *("simulate", "--registry", str(registry), "--metric", stream.metric, "--json"),
        *("--population", str(path), "--reports", str(stream.reports), "--seed", str(seed)),
        *("--to", url, *segment),
    ]


@contextlib.contextmanager
def _simulators() -> Iterator[Callable[[list[list[str]]], None]]:
    """Start processes that simulate; yield what lets them run some command lines."""
    processes = [_start() for _ in range(_PROCESSES)]
    threads = ThreadPoolExecutor(_PROCESSES)

    def run(commands: list[list[str]]) -> None:
        shares = [commands[number::_PROCESSES] for number in range(_PROCESSES)]
        list(threads.map(_run, processes, shares))

    try:
        yield run
    finally:
        for each in processes:
            each.kill()
            each.wait()
        threads.shutdown()


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - this interpreter, and lines of our own
        [sys.executable, "-c", _READ_COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which ends them
    )


def _run(process: subprocess.Popen[str], commands: list[list[str]]) -> None:
    """Let a process run command lines one after another."""
    assert process.stdin is not None
    assert process.stdout is not None
    for command in commands:
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except OSError:
            raise _failed() from None
        status = next((line for line in process.stdout if line.startswith("status ")), "")
        if status.strip() != "status 0":
            raise _failed()


def _failed() -> ConfigError:
    return ConfigError("the demo must be able to simulate devices, but rappor simulate failed")
