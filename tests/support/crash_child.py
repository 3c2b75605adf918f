"""A host program to be killed: records in a loop and tells on standard output what is safe.

A number below 0 is a report that waits in memory for the other host's lock: it may become safe.

Its coins write the record's number into the report's bits (a coin of 0 shows 1, the largest
shows 0, whatever the permanent response), so that each report can be told from all others.
Single coins, which decide delays, are small, and its clock runs a thousand times too fast: it
waits for milliseconds where a device waits for minutes.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence

from devices import UNCAPPED, metric_of
from rappor_client import Client, SpoolLimits
from registries import registry_of

LARGEST = 2**32 - 1


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
    coins = Numbered()
    client = Client.open(
        folder,
        registry=registry_of(metric_of("one"), metric_of("two")),
        collector=collector,
        consent=True,
        caps=UNCAPPED,
        limits=SpoolLimits(reports=100),
        max_delay=5.0,
        clock=lambda: fast_clock(started),
        coins=coins,
    )
    i = 0
    while True:
        i += 1
        time.sleep(random.uniform(0, 0.01))  # noqa: S311
        coins.number = process << 32 | i
        is_safe = client.record("one" if i % 3 else "two", f"value {i % 5}")
        os.write(1, f"{coins.number if is_safe else -coins.number}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
