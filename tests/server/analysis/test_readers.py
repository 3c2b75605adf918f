"""Several close and read blocks while reports arrive, and learn no more than one would."""

from __future__ import annotations

import dataclasses
import datetime
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from collectors import ACCEPTED, count_group, day, report_of, submission_of, upload_of
from rappor_server.analysis import closing, releases
from sqlalchemy import Engine

METRIC = dataclasses.replace(ACCEPTED.registry["small"], min_reports=1)
N_REPORTS = 300
N_DAYS = 10
N_READERS = 4


@pytest.mark.slow
def test_readers_at_once_close_each_block_once(engine: Engine) -> None:
    """Whatever they read of a day, at any time and from any thread, is nothing or its one answer.

    Their clocks are days ahead of the collector's, so each of its days has ended for them while it
    still writes.
    """
    ended = threading.Event()

    def look() -> set[tuple[datetime.date, int, tuple[int, ...]]]:
        seen = set()
        while not ended.is_set():
            seen |= {answer for i in range(N_DAYS) for answer in answers_of(engine, i)}
        return seen

    with ThreadPoolExecutor(N_READERS) as pool:
        readers = [pool.submit(look) for _ in range(N_READERS)]
        try:
            for i in range(N_REPORTS):
                body = upload_of(report_of("small", bits=i, cohort=i % 4))
                count_group(engine, [submission_of(body)], today=day(i * N_DAYS // N_REPORTS))
        finally:
            ended.set()
        seen = set().union(*(reader.result(timeout=60) for reader in readers))
    final = {answer for i in range(3 * N_DAYS) for answer in answers_of(engine, i, later=N_DAYS)}
    assert seen <= final
    assert len({shown for shown, *_ in final}) == len(final)
    last = day(3 * N_DAYS)
    closing.close_days(engine, METRIC, last)
    everything = releases.release(engine, METRIC, day(0), last)
    assert 0 <= N_REPORTS - everything.n_reports < 4 * METRIC.min_cohort


def answers_of(
    engine: Engine, i: int, *, later: int = 0
) -> list[tuple[datetime.date, int, tuple[int, ...]]]:
    """Return the day, reports and sums of what is shown of one day."""
    closing.close_days(engine, METRIC, day(2 * N_DAYS + later))
    shown = releases.release(engine, METRIC, day(i), day(i))
    return [
        (day(i), each.n_reports, tuple(each.ones.ravel().tolist())) for each in shown.collections
    ]
