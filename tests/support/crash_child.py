"""A host program to be killed: records in a loop and tells on standard output what is safe.

A number below 0 is a report that waits in memory for another process's lock: it may become safe.

Its coins write the record's number into the report's bits (a coin of 0 shows 1, the largest
shows 0, whatever the permanent response), so that each report can be told from all others. Their
metrics have one value: a report that the writer draws again, later, would spell another's number.
Reports of the metrics `shown` and `daily` show their permanent response instead, whatever the
coins. Single coins, which decide delays, are small, and its clock runs a thousand times too fast:
it waits for milliseconds where a device waits for minutes. Now and then the clock is ten years
off, and now and then the host forks, and both go on.
"""

from __future__ import annotations

import datetime
import math
import os
import random
import sys
import time
from collections.abc import Sequence

from devices import metric_of
from rappor_client import Client, ClientOptions, QueueLimits

from rappor import Params, Registry
from rappor.registry.budget import reserve

LARGEST = 2**32 - 1
CLEAR = Params(k=128, h=4, m=64, f=0.5, p=0.0, q=1.0)
"""Reports that show the permanent response itself, of values that do not collide."""
_LAST = datetime.date(2099, 12, 31)
METRICS = (
    metric_of("one", expires=_LAST, durable=True),
    metric_of("two", expires=_LAST, durable=True),
    metric_of("shown", CLEAR, epoch="month", expires=_LAST),
    metric_of("daily", CLEAR, epoch="month", interval="day", expires=_LAST),
)
TOTAL = math.ceil(sum(reserve(metric).total for metric in METRICS))
REGISTRY = Registry(METRICS, total=TOTAL)
VALUES = [f"value {i}" for i in range(5)]
OFF = (0.0, 0.0, 3650 * 86400.0, -3650 * 86400.0)


class Numbered:
    """Coins that spell a number, least significant bit first."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, n: int) -> Sequence[int]:
        """Spell the number in reports; hurry everywhere else."""
        if n == 1:
            return [random.randrange(2**32 // 1000)]  # noqa: S311 - a test's pace
        return [0 if self.number >> i & 1 else LARGEST for i in range(n)]


def fast_clock(started: float) -> float:
    """Return a time that all hosts of one run agree on."""
    return started + 1000 * (time.time() - started)


def main(folder: str, collector: str, process: int, started: float) -> None:
    """Record until the process is killed."""
    coins, off = Numbered(), [0.0]
    client = Client.open(
        folder,
        registry=REGISTRY,
        collector=collector,
        consent=True,
        options=ClientOptions(
            queue_limits=QueueLimits(reports=100),
            max_delay=5.0,
            clock=lambda: fast_clock(started) + off[0],
            coins=coins,
        ),
    )
    i = 0
    forks_at = random.randrange(30)  # noqa: S311 - as above
    while True:
        i += 1
        if i == forks_at and os.fork() == 0:
            i += 1 << 31
        time.sleep(random.uniform(0, 0.01))  # noqa: S311 - as above
        if random.randrange(20) == 0:  # noqa: S311 - as above
            off[0] = random.choice(OFF)  # noqa: S311 - as above
        coins.number = process << 32 | i
        is_safe = client.record("one" if i % 3 else "two", VALUES[0])
        os.write(1, f"{coins.number if is_safe else -coins.number}\n".encode())
        client.record("shown" if i % 2 else "daily", VALUES[i % 5])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
