"""Tallies: sums of reports in rows, equal to those of `Counts`."""

from __future__ import annotations

import numpy as np
import pytest
from collectors import BOOLEAN, PARAMS
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.base.errors import StoreError
from rappor_server.storage.tallies import Tally, sum_by_cohort

from rappor import Counts, Params
from rappor.protocol.wire import Report


@pytest.mark.slow
@given(
    st.sampled_from([PARAMS, BOOLEAN, Params(k=13, m=4, f=0.5, p=0.25, q=0.75)]),
    st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 3)), min_size=1),
)
def test_rows_equal_counts(params: Params, drawn: list[tuple[int, int]]) -> None:
    """Each row equals the row of `Counts` for the same cohort."""
    reports = [
        Report(
            metric="page",
            params=params.fingerprint,
            cohort=cohort % params.m,
            bits=(bits % (1 << params.k)).to_bytes(params.n_bytes, "little"),
        )
        for bits, cohort in drawn
    ]
    packed = np.frombuffer(b"".join(report.bits for report in reports), np.uint8)
    cohorts = np.array([report.cohort for report in reports], np.uint32)
    tallies = sum_by_cohort(params.k, cohorts, packed.reshape(len(reports), params.n_bytes))
    counts = Counts.from_reports(reports, params, "page")
    assert sorted(tallies) == np.flatnonzero(counts.cohort_reports).tolist()
    for cohort, tally in tallies.items():
        assert tally.reports == counts.cohort_reports[cohort]
        assert tally.ones.tolist() == counts.bit_counts[cohort].tolist()


@pytest.mark.parametrize(
    ("reports", "width"),
    [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), ((1 << 32) - 1, 4), (1 << 32, 8)],
)
def test_sums_are_stored_in_the_narrowest_width(reports: int, width: int) -> None:
    """Sums are stored in the fewest bytes (1, 2, 4 or 8) that can store the number of reports.

    A sum of bits is at most the number of reports.
    """
    tally = Tally(reports, np.array([0, reports // 2, reports], dtype=np.int64))
    data = tally.to_bytes()
    assert len(data) == 3 * width
    loaded = Tally.from_bytes(reports, data, k=3)
    assert (loaded.reports, loaded.ones.tolist()) == (reports, tally.ones.tolist())


def test_damaged_sums_are_refused() -> None:
    """Stored sums of a wrong length are an error, and so is adding sums of different lengths.

    Each sum of 300 reports has two bytes. So three bytes are no whole number of sums, which is an
    error even if the number k of sums is unknown (None).
    """
    data = Tally(300, np.array([1, 2])).to_bytes()
    for k, damaged in ((2, data[:2]), (2, data[:3]), (None, data[:3]), (3, data)):
        with pytest.raises(StoreError, match="sums in it are damaged"):
            Tally.from_bytes(300, damaged, k=k)
    with pytest.raises(StoreError, match="sums in it are damaged"):
        Tally(1, np.array([1])) + Tally(1, np.array([1, 0]))
