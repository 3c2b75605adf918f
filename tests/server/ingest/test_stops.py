"""Metrics that are stopped: what the file may say, and what devices are told."""

from __future__ import annotations

import datetime
import json

import pytest
from collectors import REGISTRY, TODAY, report_of, submission_of, upload_of
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.stops import Stops

from rappor import Registry
from rappor.base.errors import FileError

LAST = TODAY + datetime.timedelta(days=30)
AFTER = LAST + datetime.timedelta(days=1)
ANSWER = b'{"reports":[{"status":"accepted"}]}'


def stops(text: str) -> Stops:
    """Read a file of stops for two metrics."""
    return Stops.loads(text, path="stops.toml", metrics=("page", "sound"), today=TODAY)


def test_every_device_is_told_the_same_until_the_last_day() -> None:
    """The answer carries the day on which the stop ends, and nothing afterwards."""
    stopped = stops(f"page = {LAST}\nsound = 2020-01-01\n")
    told = json.loads(stopped.attach(ANSWER, today=LAST))
    assert told == json.loads(ANSWER) | {"stop": {"page": LAST.isoformat()}}
    assert stopped.attach(ANSWER, today=AFTER) == ANSWER
    assert Stops().attach(ANSWER, today=TODAY) == ANSWER


@pytest.mark.parametrize(
    "text", [f"page = {AFTER}", "other = 2026-12-01", "page = 1", "page = 2026-11-22T00:00:00", "["]
)
def test_other_files_are_refused(text: str) -> None:
    """A stop beyond 30 days, of no metric, or of no day is refused."""
    with pytest.raises(FileError):
        stops(text)


def test_reports_of_a_stopped_metric_are_refused() -> None:
    """Those of other metrics in the upload are accepted, and all are on the day after."""
    stopped = Stops({"page": TODAY})
    known = AcceptedParams(Registry.loads(REGISTRY), stops=stopped)
    body = upload_of(report_of("page"), report_of("small"))
    for today, statuses in (
        (TODAY, [{"status": "refused", "reason": "stopped"}, {"status": "accepted"}]),
        (TODAY + datetime.timedelta(days=1), [{"status": "accepted"}] * 2),
    ):
        read = submission_of(body, known, today=today)
        assert json.loads(read.response)["reports"] == statuses
