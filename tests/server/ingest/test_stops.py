"""Stops of metrics: the file of stops, and the responses to devices."""

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
"""The last day on which a stop may end."""
AFTER = LAST + datetime.timedelta(days=1)
"""The first day on which a stop may not end."""
ANSWER = b'{"reports":[{"status":"accepted"}]}'
"""A response into which stops are inserted."""


def parse_stops(text: str) -> Stops:
    """Parse a file of stops for two metrics."""
    return Stops.loads(text, path="stops.toml", metrics=("page", "sound"), today=TODAY)


def test_response_lists_stops_until_their_last_day() -> None:
    """All responses contain the same stops. A stop that has ended is left out."""
    stopped = parse_stops(f"page = {LAST}\nsound = 2020-01-01\n")
    told = json.loads(stopped.attach(ANSWER, today=LAST))
    assert told == json.loads(ANSWER) | {"stop": {"page": LAST.isoformat()}}
    assert stopped.attach(ANSWER, today=AFTER) == ANSWER
    assert Stops().attach(ANSWER, today=TODAY) == ANSWER


@pytest.mark.parametrize("text", [f"page = {AFTER}", "page = 1", "page = 2026-11-22T00:00:00", "["])
def test_invalid_files_are_refused(text: str) -> None:
    """The cases are a stop beyond 30 days, and a value that is no day."""
    with pytest.raises(FileError):
        parse_stops(text)


def test_stops_of_lost_metrics_are_ignored_and_named() -> None:
    """A metric that left the registry does not end the start of a collector."""
    stopped = parse_stops(f"page = {LAST}\nother = {LAST}\nlost = {LAST}\n")
    assert stopped.ignored == ("lost", "other")
    told = json.loads(stopped.attach(ANSWER, today=LAST))
    assert told["stop"] == {"page": LAST.isoformat()}


def test_reports_of_a_stopped_metric_are_refused() -> None:
    """Reports of other metrics are accepted, and reports of the metric after its stop has ended."""
    stopped = Stops({"page": TODAY})
    known = AcceptedParams(Registry.loads(REGISTRY), stops=stopped)
    body = upload_of(report_of("page"), report_of("small"))
    for today, statuses in (
        (TODAY, [{"status": "refused", "reason": "stopped"}, {"status": "accepted"}]),
        (TODAY + datetime.timedelta(days=1), [{"status": "accepted"}] * 2),
    ):
        read = submission_of(body, known, today=today)
        assert json.loads(read.response)["reports"] == statuses
