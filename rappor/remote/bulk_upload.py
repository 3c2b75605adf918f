"""Bulk upload: sends the reports of many simulated devices to a collector.

An upload is one request with an id and one or more reports. A device sends one report in an upload,
because the collector sees that the reports of an upload belong together. A simulation has no people
to protect, so it sends many reports in an upload, which is faster.
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
"""Largest number of reports in an upload. It is the default limit of a collector, which refuses
longer uploads."""

_ATTEMPTS: Final = 5
"""Largest number of attempts to send an upload. The pauses between the attempts are 0.4, 0.8, 1.6
and 3.2 seconds, enough for the restart of a collector."""

_SECONDS: Final = 60.0
"""Time limit of one attempt, in seconds. An upload of 1,000 reports is small, so a longer attempt
has failed."""

# Status codes of HTTP. A collector responds 503 if it has more requests than it can handle.
_OK: Final = 200
_BUSY: Final = 503


def send_reports(
    transport: Exchange,
    reports: Iterable[Report],
    *,
    key: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Counter[str]:
    """Send reports to a collector, 1,000 in an upload.

    Parameters
    ----------
    transport : function that sends a request to the collector.
    reports : the reports. They are read one upload at a time.
    key : the upload key, if the collector requires one.
    sleep : function that waits a number of seconds between two attempts.

    Returns
    -------
    Number of reports by status. A status is "accepted", or the reason of a refusal.

    Raises
    ------
    CollectorError
        The collector refused an upload, or five attempts failed. The collector has counted the
        uploads before.
    """
    statuses: Counter[str] = Counter()
    remaining = iter(reports)
    # One upload at a time is in memory, so millions of reports need little memory.
    while batch := tuple(itertools.islice(remaining, REPORTS_PER_UPLOAD)):
        body = Upload(id=Upload.new_id(), reports=batch).to_json()
        statuses.update(_read_statuses(_send_upload(transport, body, key, sleep), len(batch)))
    return statuses


def _send_upload(
    transport: Exchange, body: bytes, key: str | None, sleep: Callable[[float], None]
) -> HttpResponse:
    """Send an upload until it is accepted, at most five times.

    Every attempt sends the same bytes with the same id, so the collector counts the upload once
    even if only its response was lost.
    """
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = HttpRequest(
        method="POST",
        path="/v1/reports",
        headers=headers,
        body=body,
        seconds=_SECONDS,
    )
    for attempt in range(1, _ATTEMPTS + 1):
        # Two cases of CollectorError: the collector does not run, or it has counted the upload and
        # the connection ended before its response arrived.
        try:
            response = transport(request)
        except CollectorError:
            if attempt == _ATTEMPTS:
                raise
        else:
            if response.status == _OK:
                return response
            # Any other status is a refusal, which a second attempt would not change.
            if response.status != _BUSY or attempt == _ATTEMPTS:
                raise read_problem(response)
        sleep(0.2 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _read_statuses(response: HttpResponse, n: int) -> list[str]:
    """Return the status of each of n reports: "accepted", or the reason of a refusal."""
    try:
        rows = json.loads(response.body)["reports"]
        statuses = [str(row.get("reason") or row["status"]) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        statuses = []
    # Case: another server, or a collector of another version. Its response has no status for each
    # report.
    if len(statuses) != n:
        raise CollectorError("the collector's response has no status for each report")
    return statuses
