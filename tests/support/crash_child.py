"""A host program that is killed: it records in a loop and prints the numbers of safe events.

A printed number above 0 is on the disk. A number below 0 waits in memory for the lock of another
process, and may become safe.

The coins write the number of an event into the bits of its report: a coin of 0 gives a 1, the
largest coin gives a 0, whatever the permanent response is. So each report can be told from all
others. Each numbered event has a metric of its own, because a day has one report of a metric.
Reports of the metric `daily` show their permanent response, whatever the coins are.

Single coins, which decide delays, are small, and the clock runs so fast that a day takes seconds.
At random times the clock is ten years off, or the host forks, and both processes go on.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Sequence

from devices import metric_of
from rappor_client import Client, ClientOptions, QueueLimits

from rappor import Metric, Params, Registry
from rappor.registry.budget import reserve

LARGEST = 2**32 - 1
CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Adds no instantaneous noise, so a report shows its permanent response."""
_LAST = datetime.date(2099, 12, 31)
DAILY = metric_of("daily", CLEAR, epoch="month", expires=_LAST)
N_NUMBERED = 30
"""Number of events of a host that have a metric of their own. Its fork has as many."""
SPEED = 20_000
"""Factor by which the clock runs too fast. A day takes four seconds."""
VALUES = [f"value {i}" for i in range(5)]
OFF = (0.0, 0.0, 3650 * 86400.0, -3650 * 86400.0)
"""Errors of the clock in seconds, of which half are none."""


class Numbered:
    """Coins that write a number into the bits of a report, least significant bit first."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, n: int) -> Sequence[int]:
        """Return the bits of the number as coins; a small coin for a single draw."""
        if n == 1:
            return [random.randrange(2**32 // 1000)]  # noqa: S311 - a test's pace
        return [0 if self.number >> i & 1 else LARGEST for i in range(n)]


def fast_clock(started: float) -> float:
    """Return the time of the fast clock, which is the same in all hosts of a run."""
    return started + SPEED * (time.time() - started)


def numbered_metrics(process: int) -> list[Metric]:
    """Return the metrics of the numbered events of a host and of its fork."""
    names = (f"numbered{process}x{i}" for i in range(2 * N_NUMBERED))
    return [metric_of(name, expires=_LAST, durable=True) for name in names]


def total_of(kills: int) -> int:
    """Return a budget that is enough for some hosts, in nats."""
    metrics = [DAILY, *kills * numbered_metrics(1)]
    return math.ceil(sum(reserve(metric).total for metric in metrics))


def main(folder: str, collector: str, process: int, started: float, total: int) -> None:
    """Record until the process is killed."""
    numbered = numbered_metrics(process)
    coins, off = Numbered(), [0.0]
    client = Client.open(
        folder,
        registry=Registry([DAILY, *numbered], total=total),
        collector=collector,
        consent=True,
        options=ClientOptions(
            queue_limits=QueueLimits(reports=100),
            max_delay=5.0,
            clock=lambda: fast_clock(started) + off[0],
            coins=coins,
        ),
    )
    forks_at = random.randrange(30)  # noqa: S311 - as above
    metrics = numbered[:N_NUMBERED]
    for i in itertools.count():
        if i == forks_at and os.fork() == 0:
            metrics = numbered[N_NUMBERED:]
        time.sleep(random.uniform(0, 0.01))  # noqa: S311 - as above
        if random.randrange(20) == 0:  # noqa: S311 - as above
            off[0] = random.choice(OFF)  # noqa: S311 - as above
        if i < N_NUMBERED:
            coins.number = process << 32 | numbered.index(metrics[i])
            is_safe = client.record(metrics[i].name, VALUES[0])
            os.write(1, f"{coins.number if is_safe else -coins.number}\n".encode())
        client.record("daily", VALUES[i % 5])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
