"""Uploads of reports of many simulated devices."""

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
ACCEPTED = {"status": "accepted"}
REFUSED = {"status": "refused", "reason": "expired"}


class RecordingCollector:
    """A collector that responds to the first attempts as requested, and accepts all others."""

    def __init__(self, *moods: int | str) -> None:
        self.moods = list(moods)
        self.bodies: list[bytes] = []
        self.waits: list[float] = []

    def __call__(self, ask: HttpRequest) -> HttpResponse:
        """Store the body, and respond."""
        assert ask.body is not None
        self.bodies.append(ask.body)
        mood = self.moods.pop(0) if self.moods else 200
        if mood == "lost":
            raise CollectorError("the collector was not reached")
        rows = [ACCEPTED] * len(json.loads(ask.body)["reports"])
        if mood == "refused":
            rows[0] = REFUSED
        body = b"[]" if mood == "foreign" else json.dumps({"reports": rows}).encode()
        return HttpResponse(status=mood if isinstance(mood, int) else 200, headers={}, body=body)

    def send_all(self) -> dict[str, int]:
        """Send all reports, and return the number of reports by status."""
        return dict(send_reports(self, REPORTS, sleep=self.waits.append))


def test_reports_travel_in_full_uploads() -> None:
    """An upload has a thousand reports, the last one the rest.

    A refused report is counted by its reason.
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


@pytest.mark.parametrize("mood", ["lost", 503])
def test_an_upload_without_a_response_is_repeated_exactly(mood: int | str) -> None:
    """A collector that received the first attempt counts the upload once."""
    collector = RecordingCollector(mood, mood)
    assert collector.send_all() == {"accepted": len(REPORTS)}
    assert collector.bodies[0] == collector.bodies[1] == collector.bodies[2]
    assert collector.waits == sorted(collector.waits)


@pytest.mark.parametrize("moods", [["lost"] * 5, [503] * 5, [401], ["foreign"]], ids=str)
def test_a_failed_upload_raises(moods: list[int | str]) -> None:
    """The error comes after five attempts, or at once if another attempt is useless."""
    collector = RecordingCollector(*moods)
    with pytest.raises(CollectorError):
        collector.send_all()
    assert len(collector.bodies) == len(moods)
