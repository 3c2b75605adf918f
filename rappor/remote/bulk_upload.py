"""Reports of many devices to a collector, as a tool may send them that speaks for all of these.

A device sends one report an upload, since reports in one upload are linked. Simulated devices have
nothing to hide.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from rappor.base.errors import CollectorError
from rappor.protocol.wire import Report, Upload
from rappor.remote.http_exchange import Exchange, HttpRequest, HttpResponse, read_problem

REPORTS_PER_UPLOAD: Final = 1000
"""Reports in an upload: a collector's own limit, unless it is set otherwise."""

_ATTEMPTS: Final = 5
_SECONDS: Final = 60.0
_OK: Final = 200
_BUSY: Final = 503


def send_reports(
    transport: Exchange,
    reports: Iterable[Report],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Counter[str]:
    """Send reports and return how many of them have each status, "accepted" or a reason.

    A collector that is busy, or not reached, is asked again with the same bytes, so that it counts
    them once. Raises CollectorError if it refuses an upload, or five attempts failed; earlier
    uploads are counted.
    """
    statuses: Counter[str] = Counter()
    left = iter(reports)
    while batch := tuple(itertools.islice(left, REPORTS_PER_UPLOAD)):
        body = Upload(id=Upload.new_id(), reports=batch).to_json()
        statuses.update(_statuses(_send(transport, body, sleep), len(batch)))
    return statuses


def _send(transport: Exchange, body: bytes, sleep: Callable[[float], None]) -> HttpResponse:
    """Return the answer to an upload."""
    ask = HttpRequest(
        method="POST",
        path="/v1/reports",
        headers={"Content-Type": "application/json"},
        body=body,
        seconds=_SECONDS,
    )
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            answer = transport(ask)
        except CollectorError:
            if attempt == _ATTEMPTS:
                raise
        else:
            if answer.status == _OK:
                return answer
            if answer.status != _BUSY or attempt == _ATTEMPTS:
                raise read_problem(answer)
        sleep(0.2 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _statuses(answer: HttpResponse, n: int) -> list[str]:
    """Return the status of each of n reports, the reason where it is refused."""
    try:
        rows = json.loads(answer.body)["reports"]
        found = [str(row.get("reason") or row["status"]) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = []
    if len(found) != n:
        raise CollectorError("the collector's answer does not name its reports")
    return found
