"""Simulated devices of the demo: they report to the collector over HTTP, day by day.

The collector's package must not be able to encode a report: it never draws noise. The devices are
therefore runs of the command `rappor simulate`. A start of this command takes a second, mostly for
imports, and the demo needs hundreds of runs. Two processes (simulators) import the command once,
and then run one command line after another:

    demo       -> simulator   ["simulate", "theme", "--reports", "400", ...]   JSON, one line
    simulator  -> demo        output of the command, then "status 0"

The day of the reports is the day of the collector's clock, which `send_reports` moves forward.
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
from rappor_server.cli.demo_metrics import Stream, write_populations

_PROCESSES: Final = 2
"""Number of simulators. Two simulators and the collector keep three cores busy. More simulators are
faster on a machine with more cores, and slower on a machine with fewer."""
_DAY: Final = datetime.timedelta(days=1)
_SIMULATOR_PROGRAM: Final = """\
import json, sys
from rappor.cli.app import run
for line in sys.stdin:
    print("status", run(json.loads(line)), flush=True)
"""
"""Program that a simulator runs by `python -c`. It runs each line of standard input, a JSON list of
words, as a command line of `rappor`, and prints the exit code."""


class Clock:
    """The present day of the demo's collector. The simulated devices move the day forward.

    Attributes
    ----------
    day : the present day, which the thread of the devices writes and the collector reads
    """

    def __init__(self, day: datetime.date) -> None:
        self.day = day

    def __call__(self) -> datetime.date:
        """Return the day."""
        return self.day


def compute_first_day(today: datetime.date, weeks: int) -> datetime.date:
    """Return the Monday at which the last whole weeks before `today` begin."""
    return today - datetime.timedelta(days=today.weekday() + 7 * weeks)


def send_reports(
    url: str,
    registry: Path,
    clock: Clock,
    last: datetime.date,
    weeks: int,
    on_week: Callable[[int], None],
) -> None:
    """Send the reports of every day from the day of the clock to the last day.

    Parameters
    ----------
    url : URL of the collector
    registry : path of the registry
    clock : clock of the collector. The function sets it to the next day after the reports of each
        day, and in the end to the day after `last`
    last : last day with reports
    weeks : number of whole weeks from the day of the clock
    on_week : called with the number of complete weeks

    Raises
    ------
    ConfigError
        A simulation failed. The simulator has printed the reason.
    """
    first = clock.day
    with tempfile.TemporaryDirectory() as folder, _start_simulators() as run:
        populations = list(write_populations(Path(folder), weeks))
        while clock.day <= last:
            day = (clock.day - first).days
            # The whole weeks end on the Sunday before the current week. The days of the current
            # week up to today have the population of the last whole week.
            week = min(day // 7, weeks - 1)
            run([
                _format_command(stream, path, url, registry, seed=len(populations) * day + number)
                for number, (stream_week, stream, path) in enumerate(populations)
                if stream_week == week
            ])  # fmt: skip
            # The current week is complete if today is a Sunday. It is not counted.
            if day % 7 == 6 and day // 7 < weeks:
                on_week(day // 7 + 1)
            clock.day += _DAY


def _format_command(
    stream: Stream, path: Path, url: str, registry: Path, *, seed: int
) -> list[str]:
    """Return the words of the command line that sends the reports of a stream on one day.

    Parameters
    ----------
    stream : devices that report
    path : CSV with the values of these devices and their weights
    url : URL of the collector
    registry : path of the registry
    seed : seed of the simulation, which makes every demo show the same numbers. Each stream and day
        needs a seed of its own. With one seed, the noise of all days would be the same
    """
    segment = ["--segment", stream.segment] if stream.segment else []
    return [
        *("simulate", stream.metric, "--registry", str(registry), "--json"),
        *("--population", str(path), "--reports", str(stream.reports), "--seed", str(seed)),
        *("--to", url, *segment),
    ]


@contextlib.contextmanager
def _start_simulators() -> Iterator[Callable[[list[list[str]]], None]]:
    """Start the simulators; yield a function that runs command lines in them; end them."""
    processes = [_start_simulator() for _ in range(_PROCESSES)]
    threads = ThreadPoolExecutor(_PROCESSES)

    def run(commands: list[list[str]]) -> None:
        """Distribute command lines over the simulators, and wait for all of them."""
        batches = [commands[number::_PROCESSES] for number in range(_PROCESSES)]
        # `list` waits for all threads, and raises the error of a failed one.
        list(threads.map(_run_commands, processes, batches))

    try:
        yield run
    finally:
        for process in processes:
            process.kill()
            process.wait()
        threads.shutdown()


def _start_simulator() -> subprocess.Popen[str]:
    """Start a process that runs command lines from its standard input."""
    return subprocess.Popen(  # noqa: S603 - this interpreter, and a program from this file
        [sys.executable, "-c", _SIMULATOR_PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C must reach only the demo, which ends the simulators in order.
        start_new_session=True,
    )


def _run_commands(process: subprocess.Popen[str], commands: list[list[str]]) -> None:
    """Run command lines in a simulator; raise ConfigError if one fails."""
    assert process.stdin is not None
    assert process.stdout is not None
    for command in commands:
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        except OSError:
            # The simulator has ended, for example because the system ended it when memory was full.
            raise _make_failure() from None
        # The lines before the exit code are the output of the command, which nobody needs. There is
        # no line with an exit code if the simulator has ended.
        status = next((line for line in process.stdout if line.startswith("status ")), "")
        if status.strip() != "status 0":
            raise _make_failure()


def _make_failure() -> ConfigError:
    """Return the error of a simulation that failed. The simulator has printed the reason."""
    return ConfigError("the demo cannot simulate devices: rappor simulate failed, see above")
