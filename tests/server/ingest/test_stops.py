"""Stops of metrics: the file of stops, and the responses to devices.

A stop tells all devices to send no report of a metric until a day. An operator writes it into the
file of stops, and the collector adds it to each response to an upload. A stop ends at most 30 days
ahead.
"""

from __future__ import annotations

import datetime
import json

import pytest
from collectors import REGISTRY, TODAY, build_report, build_upload, parse_submission
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.stops import Stops

from rappor import Registry
from rappor.base.errors import FileError

LAST = TODAY + datetime.timedelta(days=30)
"""The last day on which a stop may end."""
AFTER = LAST + datetime.timedelta(days=1)
"""The day after the last day on which a stop may end."""
RESPONSE = b'{"reports":[{"status":"accepted"}]}'
"""A response into which stops are inserted."""


def parse_stops(text: str) -> Stops:
    """Parse a file of stops for two metrics."""
    return Stops.loads(text, path="stops.toml", metrics=("page", "sound"), today=TODAY)


def test_response_lists_stops_until_their_last_day() -> None:
    """All responses contain the same stops. A stop that has ended is left out."""
    stopped = parse_stops(f"page = {LAST}\nsound = 2020-01-01\n")
    response = json.loads(stopped.attach(RESPONSE, today=LAST))
    assert response == json.loads(RESPONSE) | {"stop": {"page": LAST.isoformat()}}
    assert stopped.attach(RESPONSE, today=AFTER) == RESPONSE
    assert Stops().attach(RESPONSE, today=TODAY) == RESPONSE


@pytest.mark.parametrize("text", [f"page = {AFTER}", "page = 1", "page = 2026-11-22T00:00:00", "["])
def test_invalid_files_are_refused(text: str) -> None:
    """A stop beyond 30 days, a value that is no day, and a text that is no TOML are refused."""
    with pytest.raises(FileError):
        parse_stops(text)


def test_stops_of_lost_metrics_are_ignored_and_named() -> None:
    """Stops of metrics that the registry lacks are ignored, and `ignored` has their names.

    Refusing the file would keep a collector from starting after a metric has left the registry.
    """
    stopped = parse_stops(f"page = {LAST}\nother = {LAST}\nlost = {LAST}\n")
    assert stopped.ignored == ("lost", "other")
    response = json.loads(stopped.attach(RESPONSE, today=LAST))
    assert response["stop"] == {"page": LAST.isoformat()}


def test_reports_of_a_stopped_metric_are_refused() -> None:
    """Reports of a stopped metric are refused, and accepted again after the stop has ended.

    Reports of other metrics are accepted all the time.
    """
    stopped = Stops({"page": TODAY})
    accepted_params = AcceptedParams(Registry.loads(REGISTRY), stops=stopped)
    body = build_upload(build_report("page"), build_report("small"))
    for today, statuses in (
        (TODAY, [{"status": "refused", "reason": "stopped"}, {"status": "accepted"}]),
        (TODAY + datetime.timedelta(days=1), [{"status": "accepted"}] * 2),
    ):
        read = parse_submission(body, accepted_params, today=today)
        assert json.loads(read.response)["reports"] == statuses
