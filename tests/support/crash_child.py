"""A host program that a test kills while it records in a loop.

The program prints the number of each recorded event. A number above 0 says that the event is on the
disk, so it must survive the kill. A number below 0 says that the event is in memory, because
another process has the lock of the folder. Such an event may survive.

The test must recognise the report of each event. So the coins of a report write the number of the
event into its bits: a coin of 0 gives a 1, and the largest coin gives a 0, whatever the permanent
response is. Each numbered event has a metric of its own, because a device sends one report of a
metric a day. Reports of the metric `daily` have no instantaneous noise, so they show their
permanent response. The test checks that the permanent response never changes in an epoch.

A draw of one coin decides a delay. Such coins are small, so delays are short. The clock runs so
fast that a day takes seconds. At random times the clock is ten years off, or the host forks, and
both processes go on.
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

from devices import build_metric
from rappor_client import Client, ClientOptions, QueueLimits

from rappor import Metric, Params, Registry
from rappor.registry.budget import reserve

LARGEST = 2**32 - 1
"""Contains the largest value of a coin, which has 32 bits."""
CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Parameters without instantaneous noise. A report equals its permanent response."""
_LAST = datetime.date(2099, 12, 31)
"""Last day of the metrics. The fast clock, ten years ahead, does not reach it."""
DAILY = build_metric("daily", CLEAR, epoch="month", expires=_LAST)
N_NUMBERED = 30
"""Number of events of a host that have a metric of their own. Its fork has as many."""
SPEED = 20_000
"""Factor by which the clock runs too fast. A day takes four seconds."""
VALUES = [f"value {i}" for i in range(5)]
CLOCK_ERRORS = (0.0, 0.0, 3650 * 86400.0, -3650 * 86400.0)
"""Errors of the clock in seconds. The host draws one of them, so the clock is right half of the
time."""


class NumberedCoins:
    """Source of coins that writes a number into the bits of a report, lowest bit first."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, n: int) -> Sequence[int]:
        """Return coins that write the number. If one coin is requested, return a small coin."""
        if n == 1:
            return [random.randrange(2**32 // 1000)]  # noqa: S311 - a test's pace
        return [0 if self.number >> i & 1 else LARGEST for i in range(n)]


def fast_clock(started: float) -> float:
    """Return the time of the fast clock, which is the same in all hosts of a run."""
    return started + SPEED * (time.time() - started)


def make_numbered_metrics(process: int) -> list[Metric]:
    """Return the metrics of the numbered events of a host and of its fork."""
    names = (f"numbered{process}x{i}" for i in range(2 * N_NUMBERED))
    return [build_metric(name, expires=_LAST, durable=True) for name in names]


def compute_total(kills: int) -> int:
    """Return a total that is enough for `kills` hosts with new metrics each, in nats."""
    metrics = [DAILY, *kills * make_numbered_metrics(1)]
    return math.ceil(sum(reserve(metric).total for metric in metrics))


def main(folder: str, collector: str, process: int, started: float, total: int) -> None:
    """Record until the process is killed."""
    numbered = make_numbered_metrics(process)
    coins, clock_error = NumberedCoins(), [0.0]
    client = Client.open(
        folder,
        registry=Registry([DAILY, *numbered], total=total),
        collector=collector,
        consent=True,
        options=ClientOptions(
            queue_limits=QueueLimits(reports=100),
            max_delay=5.0,
            clock=lambda: fast_clock(started) + clock_error[0],
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
            clock_error[0] = random.choice(CLOCK_ERRORS)  # noqa: S311 - as above
        if i < N_NUMBERED:
            coins.number = process << 32 | numbered.index(metrics[i])
            is_safe = client.record(metrics[i].name, VALUES[0])
            os.write(1, f"{coins.number if is_safe else -coins.number}\n".encode())
        client.record("daily", VALUES[i % 5])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
