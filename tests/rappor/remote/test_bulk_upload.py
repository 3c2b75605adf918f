"""Uploads of the reports of many simulated devices: division, repetition and failure."""

from __future__ import annotations

import json

import pytest

from rappor.base.errors import CollectorError
from rappor.protocol.wire import Report
from rappor.remote.bulk_upload import REPORTS_PER_UPLOAD, send_reports
from rappor.remote.http_exchange import HttpRequest, HttpResponse

REPORTS = [Report(metric="a", params="0" * 16, cohort=0, bits=b"\x00")] * (
    2 * REPORTS_PER_UPLOAD + 1
)
"""Reports of two full uploads and one more."""
ACCEPTED = {"status": "accepted"}
REFUSED = {"status": "refused", "reason": "expired"}


class RecordingCollector:
    """Stands in for a collector: responds to the first attempts as requested, and accepts the rest.

    Attributes
    ----------
    responses : responses to the next attempts. A number is a status. "lost" is a connection without
        a response, "refused" a response that refuses the first report, "foreign" a response that is
        not from a collector
    bodies : bodies of all attempts
    keys : `Authorization` headers of all attempts; None for an attempt without one
    waits : waits between attempts, in seconds
    """

    def __init__(self, *responses: int | str) -> None:
        self.responses = list(responses)
        self.bodies: list[bytes] = []
        self.keys: list[str | None] = []
        self.waits: list[float] = []

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Store the body, and respond."""
        assert request.body is not None
        self.bodies.append(request.body)
        self.keys.append(request.headers.get("Authorization"))
        response = self.responses.pop(0) if self.responses else 200
        if response == "lost":
            raise CollectorError("the collector was not reached")
        rows = [ACCEPTED] * len(json.loads(request.body)["reports"])
        if response == "refused":
            rows[0] = REFUSED
        body = b"[]" if response == "foreign" else json.dumps({"reports": rows}).encode()
        status = response if isinstance(response, int) else 200
        return HttpResponse(status=status, headers={}, body=body)

    def send_all(self) -> dict[str, int]:
        """Send all reports, and return the number of reports by status."""
        return dict(send_reports(self, REPORTS, sleep=self.waits.append))


def test_reports_are_divided_into_full_uploads() -> None:
    """Each upload has as many reports as a collector accepts, and the last upload has the rest.

    Each upload has an id of its own, else the second would be dropped as a retry of the first. The
    result counts a refused report by its reason.
    """
    collector = RecordingCollector("refused")
    assert collector.send_all() == {"accepted": len(REPORTS) - 1, "expired": 1}
    uploads = [json.loads(body) for body in collector.bodies]
    assert [len(upload["reports"]) for upload in uploads] == [
        REPORTS_PER_UPLOAD,
        REPORTS_PER_UPLOAD,
        1,
    ]
    assert len({upload["id"] for upload in uploads}) == 3


def test_every_attempt_has_the_upload_key() -> None:
    """A collector that requires a key gets it with each attempt, and no header without a key."""
    collector = RecordingCollector(503)
    send_reports(collector, REPORTS[:1], key="open-sesame-open", sleep=collector.waits.append)
    send_reports(collector, REPORTS[:1], sleep=collector.waits.append)
    assert collector.keys == ["Bearer open-sesame-open"] * 2 + [None]


@pytest.mark.parametrize("response", ["lost", 503])
def test_an_upload_without_a_response_is_repeated_exactly(response: int | str) -> None:
    """An upload that may have arrived is repeated with the same bytes, after growing waits.

    The collector recognises an upload by its bytes. It may have received the first attempt, and
    then counts the upload once.
    """
    collector = RecordingCollector(response, response)
    assert collector.send_all() == {"accepted": len(REPORTS)}
    assert collector.bodies[0] == collector.bodies[1] == collector.bodies[2]
    assert collector.waits == sorted(collector.waits)


@pytest.mark.parametrize("responses", [["lost"] * 5, [503] * 5, [401], ["foreign"]], ids=str)
def test_a_failed_upload_raises(responses: list[int | str]) -> None:
    """The upload fails after five attempts, or at once if another attempt is useless.

    A wrong upload key (401) stays wrong, and another server stays another server.
    """
    collector = RecordingCollector(*responses)
    with pytest.raises(CollectorError):
        collector.send_all()
    assert len(collector.bodies) == len(responses)
