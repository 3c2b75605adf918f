"""Sums of a group of uploads: the same numbers as Counts, in rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from collectors import BOOLEAN, PARAMS
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.ingest.validate import AcceptedReport
from rappor_server.storage.tallies import Tally, sum_reports

from rappor import Counts, Params
from rappor.protocol.wire import Report

KINDS = (("page", PARAMS), ("sound", BOOLEAN), ("other", PARAMS))


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 65535), st.integers(0, 3), st.booleans())
    )
)
def test_rows_are_those_of_counts(drawn: list[tuple[tuple[str, Params], int, int, bool]]) -> None:
    """Bits, cohorts, metrics and quarantine: each row is the row that Counts has."""
    accepted = []
    for (metric, _), bits, cohort, quarantine in drawn:
        params = dict(KINDS)[metric]
        accepted.append(
            AcceptedReport(
                metric=metric,
                params=params,
                fingerprint=params.fingerprint,
                cohort=cohort % params.m,
                bits=(bits % (1 << params.k)).to_bytes(params.n_bytes, "little"),
                keep=False,
                quarantine=quarantine,
            )
        )
    groups = defaultdict(list)
    for each in accepted:
        report = Report(
            metric=each.metric, params=each.fingerprint, cohort=each.cohort, bits=each.bits
        )
        groups[each.metric, each.quarantine].append(report)
    tallies = sum_reports(accepted)
    assert sum(tally.reports for tally in tallies.values()) == len(accepted)
    for (metric, quarantine), reports in groups.items():
        counts = Counts.from_reports(reports, dict(KINDS)[metric], metric)
        for cell, tally in tallies.items():
            if (cell.metric, cell.quarantine) == (metric, quarantine):
                assert tally.reports == counts.reports[cell.cohort]
                assert tally.ones.tolist() == counts.ones[cell.cohort].tolist()


def test_tally_survives_the_database() -> None:
    """A row that is written and read back is the same, also beyond 32 bits."""
    tally = Tally(1 << 40, np.array([0, 1, 1 << 40], dtype=np.int64))
    again = Tally.from_bytes(tally.reports, tally.to_bytes())
    assert (again.reports, again.ones.tolist()) == (tally.reports, tally.ones.tolist())
