"""Upload of reports of many devices, for tools that act for all these devices.

A device sends one report in an upload, because an upload links its reports. A simulator has no
devices to protect, so it sends many reports in an upload.
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
"""Largest number of reports in an upload: the default limit of a collector, which refuses more."""

_ATTEMPTS: Final = 5
"""Attempts to send an upload. The pauses between them are 0.4, 0.8, 1.6 and 3.2 seconds."""

_SECONDS: Final = 60.0
"""Time limit of one attempt, in seconds."""

_OK: Final = 200
_BUSY: Final = 503


def send_reports(
    transport: Exchange,
    reports: Iterable[Report],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Counter[str]:
    """Send reports to a collector, 1,000 in an upload.

    Parameters
    ----------
    transport : sends requests to the collector.
    reports : the reports. They are read as they are sent.
    sleep : waits a number of seconds between two attempts.

    Returns
    -------
    The number of reports by status: "accepted", or the reason of a refusal.

    Raises
    ------
    CollectorError
        The collector refuses an upload, or five attempts failed. The collector has counted the
        earlier uploads.
    """
    statuses: Counter[str] = Counter()
    remaining = iter(reports)
    # Reports are read as they are sent, so that millions of them need no memory.
    while batch := tuple(itertools.islice(remaining, REPORTS_PER_UPLOAD)):
        body = Upload(id=Upload.new_id(), reports=batch).to_json()
        statuses.update(_read_statuses(_send_upload(transport, body, sleep), len(batch)))
    return statuses


def _send_upload(transport: Exchange, body: bytes, sleep: Callable[[float], None]) -> HttpResponse:
    """Send an upload until it is accepted, at most five times.

    Every attempt sends the same bytes with the same id, so the collector counts the upload once
    even if only its response was lost.
    """
    request = HttpRequest(
        method="POST",
        path="/v1/reports",
        headers={"Content-Type": "application/json"},
        body=body,
        seconds=_SECONDS,
    )
    for attempt in range(1, _ATTEMPTS + 1):
        # The collector may be down, or may have closed the connection after it counted the upload.
        try:
            response = transport(request)
        except CollectorError:
            if attempt == _ATTEMPTS:
                raise
        else:
            if response.status == _OK:
                return response
            # A refusal would be the same again. A busy collector (503) asks for another attempt.
            if response.status != _BUSY or attempt == _ATTEMPTS:
                raise read_problem(response)
        sleep(0.2 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _read_statuses(response: HttpResponse, n: int) -> list[str]:
    """Return the status of each of n reports. For a refused report it is the reason."""
    try:
        rows = json.loads(response.body)["reports"]
        statuses = [str(row.get("reason") or row["status"]) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        statuses = []
    # A response without a status for each report is from another server or another version.
    if len(statuses) != n:
        raise CollectorError("the collector's response has no status for each report")
    return statuses
