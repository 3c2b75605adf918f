"""Reports of simulated devices on their way to a collector."""

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


class Collecting:
    """A collector that answers each attempt as it is told, and afterwards accepts."""

    def __init__(self, *moods: int | str) -> None:
        self.moods = list(moods)
        self.bodies: list[bytes] = []
        self.waits: list[float] = []

    def __call__(self, ask: HttpRequest) -> HttpResponse:
        """Keep the attempt and answer it."""
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

    def take(self) -> dict[str, int]:
        """Send all reports; return how many have each status."""
        return dict(send_reports(self, REPORTS, sleep=self.waits.append))


def test_reports_travel_in_full_uploads() -> None:
    """A thousand each, and the rest; a refused one is counted by its reason."""
    collector = Collecting("refused")
    assert collector.take() == {"accepted": len(REPORTS) - 1, "expired": 1}
    uploads = [json.loads(body) for body in collector.bodies]
    assert [len(each["reports"]) for each in uploads] == [REPORTS_PER_UPLOAD, REPORTS_PER_UPLOAD, 1]
    assert len({each["id"] for each in uploads}) == 3


@pytest.mark.parametrize("mood", ["lost", 503])
def test_an_upload_without_an_answer_is_repeated_to_the_bit(mood: int | str) -> None:
    """So that a collector that had it counts it once."""
    collector = Collecting(mood, mood)
    assert collector.take() == {"accepted": len(REPORTS)}
    assert collector.bodies[0] == collector.bodies[1] == collector.bodies[2]
    assert collector.waits == sorted(collector.waits)


@pytest.mark.parametrize("moods", [["lost"] * 5, [503] * 5, [401], ["foreign"]], ids=str)
def test_what_does_not_pass_is_an_error(moods: list[int | str]) -> None:
    """After five attempts, or at once where asking again is no use."""
    collector = Collecting(*moods)
    with pytest.raises(CollectorError):
        collector.take()
    assert len(collector.bodies) == len(moods)
