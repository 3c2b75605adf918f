"""Tallies: sums of reports in rows, equal to those of `Counts`."""

from __future__ import annotations

import numpy as np
from collectors import BOOLEAN, PARAMS
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.storage.tallies import Tally, sum_by_cohort

from rappor import Counts, Params
from rappor.protocol.wire import Report


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


def test_encoded_tally_round_trip() -> None:
    """A decoded row equals the encoded row, also beyond 32 bits."""
    tally = Tally(1 << 40, np.array([0, 1, 1 << 40], dtype=np.int64))
    again = Tally.from_bytes(tally.reports, tally.to_bytes())
    assert (again.reports, again.ones.tolist()) == (tally.reports, tally.ones.tolist())
