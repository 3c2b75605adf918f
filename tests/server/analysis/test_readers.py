"""Several readers while reports arrive: they learn no more than one reader after the other."""

from __future__ import annotations

import datetime
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

from collectors import ACCEPTED, TODAY, report_of, submission_of, upload_of
from rappor_server.analysis import releases
from rappor_server.storage.store import Store

SMALL = ACCEPTED.registry["small"]
N_REPORTS = 300
N_READERS = 4


def test_readers_at_once_see_no_step_below_the_minimum_and_no_failure(store: Store) -> None:
    """Any two of their answers for a day differ by nothing or by at least the minimum.

    Readers that look between two reports have seen different counts; a collector that does not
    let one of them win would answer both.
    """
    ended = threading.Event()

    def read() -> set[int]:
        seen = set()
        while not ended.is_set():
            seen.add(n_released(store))
        return seen

    with ThreadPoolExecutor(N_READERS) as pool:
        readers = [pool.submit(read) for _ in range(N_READERS)]
        try:
            for i in range(N_REPORTS):
                body = upload_of(report_of("small", bits=i, cohort=i % 4))
                store.commit([submission_of(body)], {}, today=TODAY)
        finally:
            ended.set()
        seen = set().union(*(reader.result(timeout=60) for reader in readers))
    seen.add(n_released(store))
    steps = {later - earlier for earlier, later in itertools.pairwise(sorted(seen | {0}))}
    assert min(steps) >= SMALL.min_reports
    assert max(seen) > N_REPORTS - SMALL.min_reports


def n_released(store: Store) -> int:
    """Return how many reports of today are released."""
    day: datetime.date = TODAY
    return releases.release(store, SMALL, day, day).n_reports
