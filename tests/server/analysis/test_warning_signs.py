"""Signs that something is wrong with what arrives."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from collectors import TODAY, count_group, metric_of, released, submission_of, upload_of
from rappor_server.analysis.releases import CohortReports
from rappor_server.analysis.warning_signs import (
    OverfullCohort,
    n_of_small_blocks,
    n_quarantined,
    overfull_cohorts,
)
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.validate import Suspicious
from rappor_server.storage import schema
from rappor_server.storage.database import writing
from registries import registry_of
from sqlalchemy import Engine, insert

from rappor import Params
from rappor.protocol.wire import Report


@pytest.mark.parametrize(
    ("reports", "overfull"),
    [([2500, 2450, 2550, 2500], []), ([2500, 2450, 2550, 9000], [3]), ([0, 0, 0, 0], [])],
)
def test_overfull_cohorts_show_a_flood(reports: list[int], overfull: list[int]) -> None:
    """Even cohorts are not overfull; one that gets thousands more reports is."""
    cohorts = CohortReports(fingerprint="f", reports=np.array(reports))
    expected = tuple(OverfullCohort("f", j, reports[j]) for j in overfull)
    assert overfull_cohorts([cohorts]) == expected


def test_reports_in_quarantine_are_counted_and_in_no_answer(engine: Engine) -> None:
    """A report of 128 ones is counted, beside those that are released."""
    params = Params.profile("balanced")
    accepted_params = AcceptedParams(registry_of(metric_of(params=params)))
    forged = Report(metric="page", params=params.fingerprint, cohort=0, bits=b"\xff" * 16)
    submission = submission_of(upload_of(forged), accepted_params, suspicious=Suspicious.QUARANTINE)
    count_group(engine, [submission], today=TODAY)
    assert n_quarantined(engine, "page") == 1
    assert n_quarantined(engine, "sound") == 0
    assert released(engine, "page").n_reports == 0


def test_blocks_of_an_earlier_rule_are_counted(engine: Engine) -> None:
    """They stay as they are; the metric's interval and minimum say which are too small now."""
    blocks = [(0, 0, 10, True), (1, 10, 10, True), (11, 12, 20, True), (13, 13, 3, False)]
    with writing(engine) as db:
        for first, last, reports, closed in blocks:
            days = (TODAY + datetime.timedelta(each) for each in (first, last))
            row = dict(zip(("first", "last"), days, strict=True), reports=reports, closed=closed)
            own = insert(schema.block).values(metric="page", params="p", cohort=1, ones=b"", **row)
            db.execute(own)
    for fields, found in (
        ({}, 10),
        ({"min_cohort": 11}, 40),
        ({"interval": "week"}, 10),
        ({"interval": "none"}, 0),
        ({"interval": "epoch", "epoch": "quarter"}, 0),
        ({"interval": "hour"}, 40),
    ):
        assert n_of_small_blocks(engine, metric_of(**fields)) == found
    assert n_of_small_blocks(engine, metric_of("sound")) == 0
