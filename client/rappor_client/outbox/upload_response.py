"""Response of a collector to an upload: the status of its report, or an error with a retry.

An upload contains one report, so a complete response has one entry:

    {"reports": [{"status": "accepted"}]}
    {"reports": [{"status": "refused", "reason": "unknown metric"}]}

The key `stop` may stand beside `reports` (`outbox/stops.py`). What a response means for the upload:

    HTTP status                 body                   result
    200 to 299                  as above               `accepted` or `refused: REASON`, for good
    200 to 299                  any other              UploadError, retryable: the upload may have
                                                       been accepted, and is sent again
    400, 409, 413, 415, 422     not read               UploadError, not retryable
    any other                   not read               UploadError, retryable
"""

from __future__ import annotations

import json
import re
from typing import Final

from rappor_client.folder import spool
from rappor_client.network.transport import TransportResponse, UploadError

_PERMANENT_STATUSES: Final = (400, 409, 413, 415, 422)
"""Statuses of HTTP that a collector sends for the contents of an upload: the same bytes would get
the same status again."""
_PLAIN_REASON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
"""Form of a collector's reason that may be shown to people: no control characters, no markup."""


def read_status(response: TransportResponse) -> str:
    """Return the status of the report in a collector's response; raises as `parse_response`."""
    status, _ = parse_response(response)
    return status


def parse_response(response: TransportResponse) -> tuple[str, object]:
    """Return the status of the report and the value of `stop` in a collector's response.

    The status is `accepted` or `refused: REASON`. The value of `stop` may be any JSON value, None
    without the key. Raises UploadError for the other responses in the table above.
    """
    if not 200 <= response.status < 300:
        raise UploadError(
            f"the collector answered with status {response.status}",
            status=response.status,
            retryable=response.status not in _PERMANENT_STATUSES,
            retry_after=response.retry_after,
        )
    try:
        document = json.loads(response.body)
        (entry,) = document["reports"]
        return _parse_entry(entry), document.get("stop")
    except (ValueError, TypeError, KeyError, RecursionError):
        # The upload may have been accepted. It is sent again under the same id, and the collector
        # repeats its response.
        raise UploadError("the collector's answer was not whole", status=response.status) from None


def _parse_entry(entry: dict[str, object]) -> str:
    """Return the status of a report: `accepted`, or `refused: REASON`.

    An unknown status counts as a refusal.
    """
    if entry["status"] == spool.ACCEPTED:
        return spool.ACCEPTED
    reason = entry.get("reason")
    is_plain = isinstance(reason, str) and _PLAIN_REASON.fullmatch(reason)
    return f"refused: {reason if is_plain else 'no reason given'}"
