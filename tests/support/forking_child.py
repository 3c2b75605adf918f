"""A host with two threads that fork while a third thread records. Each child records, too.

Parent and children log failures and check categories at the same time. None of these calls may hold
a lock during a fork: the child would wait for the lock without end.

Run as `python forking_child.py FOLDER ROUNDS MODULE`. Each of the two threads makes ROUNDS forks,
with the module `os` or `multiprocessing`. The program prints the number of pending reports: one of
the parent, and one of each child.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import multiprocessing
import os
import sys
import threading
import warnings

from days import FallingCoins, build_metrics
from devices import UNCAPPED, build_metric
from rappor_client import Client, ClientOptions
from rappor_client.testing import MemoryTransport, peek
from registries import build_registry

from rappor import Params

NUMBERS = itertools.count()


def check_categories() -> None:
    """Create parameters with 200 new categories, as a host does that reads its registry again."""
    names = tuple(f"category {next(NUMBERS)}" for _ in range(200))
    params = Params(k=200, encoding="onehot", categories=names, f=0.5, p=0.25, q=0.75)
    build_metric(params=dataclasses.replace(params, normalize="casefold"))


def record_durably(client: Client, name: str) -> None:
    """Record until the event is on the disk.

    An attempt fails while another process has the lock of the folder.
    """
    while not client.record(name, "x"):
        pass


def main(folder: str, rounds: int, module: str) -> None:
    """Fork and record until all rounds are over."""
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
    logging.disable()  # the program causes failures on purpose
    metrics = build_metrics(2 * rounds + 1, durable=True)
    names = itertools.count(1)
    client = Client.open(
        folder,
        registry=build_registry(*metrics),
        collector=MemoryTransport(),
        consent=True,
        options=ClientOptions(
            budget_cap=UNCAPPED,
            coins=FallingCoins(),
            max_delay=3600.0,
            raise_errors=True,
        ),
    )
    is_over = threading.Event()

    def record() -> None:
        while not is_over.is_set():
            client.record(metrics[0].name, "x")
            check_categories()
            client._failures.note(OSError())

    def in_child(name: str) -> None:
        client._failures.note(OSError())
        record_durably(client, name)
        check_categories()
        os._exit(0 if any(report.metric == name for report in peek(folder).pending_reports) else 1)

    def fork_once() -> int | None:
        name = metrics[next(names)].name
        if module == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(name,))
            child.start()
            child.join()
            return child.exitcode
        pid = os.fork()
        if pid == 0:
            try:
                in_child(name)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    failed_codes: list[int | None] = []

    def fork() -> None:
        failed_codes.extend(code for code in (fork_once() for _ in range(rounds)) if code)

    recorder = threading.Thread(target=record)
    forkers = [threading.Thread(target=fork) for _ in range(2)]
    for thread in (recorder, *forkers):
        thread.start()
    for thread in forkers:
        thread.join()
    is_over.set()
    recorder.join()
    assert not failed_codes, failed_codes
    client.close()
    sys.stdout.write(str(len(peek(folder).pending_reports)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
