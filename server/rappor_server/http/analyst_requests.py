"""Parsers of requests of analysts: bodies, query parameters, accepted media types.

The URL contains a query about counts. A JSON body contains a query for estimates. If the body is a
list of candidates, the URL contains this query:

    GET  /v1/metrics/search_engine/counts?from=2026-11-01&to=2026-11-30&by=week
    POST /v1/metrics/search_engine/estimates            {"from": "2026-11-01", "all": true}
    POST /v1/metrics/search_engine/estimates?all=true   (one candidate per line)

The response to a wrong request is a problem whose sentence contains the remedy.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Final, Literal, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from rappor_server.base.problems import Problem
from rappor_server.base.query_parameters import check_names
from rappor_server.base.request_limits import BodyAllocation, read_body
from rappor_server.queries.counts import ARROW, CSV, JSON, TEXT
from rappor_server.queries.estimates import EstimateBody

_MAX_BODY: Final = 64_000_000
"""Largest body of a request for estimates, in bytes. The limit has room for a million candidates of
64 bytes each. A larger value lets one query use more of the memory for bodies."""
_BODY_SECONDS: Final = 60.0
"""Longest time in seconds in which a body must arrive: a body of 64 MB at 1 MB/s. A larger value
serves slower networks, and lets a slow client keep its memory for longer."""

_Record = TypeVar("_Record", bound=msgspec.Struct)


class CountsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of GET /v1/metrics/NAME/counts.

    Attributes
    ----------
    first, last : first and last day (UTC) such as 2026-11-30, both included. The query parameters
        have the names `from` and `to`. None leaves the range open.
    by : length of the periods, or None for one sum
    params : fingerprint of the only parameter set to return, or None for all sets
    segments : whether to return the counts of each segment. A URL has only texts, so the value is
        "true" or "false".
    """

    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    by: Literal["day", "week", "month"] | None = None
    params: str | None = None
    segments: Literal["true", "false"] = "false"


async def read_estimate_body(
    request: Request, allocation: BodyAllocation
) -> tuple[bytes, EstimateBody | None]:
    """Read the body of a request for estimates, and the query of a plain-text body.

    The body is a JSON object with the whole query, or a list of candidates as plain text with the
    query in the URL. The function does not parse the body: a worker process does, because a list
    of a million candidates would block the event loop.

    Returns
    -------
    body : bytes of the body
    query : the query of a plain-text body, or None for a JSON body, which contains the query

    Raises
    ------
    Problem
        415 for another media type, 422 for a wrong query, and the problems of `read_body`
    """
    body = await read_body(
        request.scope, request.receive, allocation, max_body=_MAX_BODY, seconds=_BODY_SECONDS
    )
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type == JSON:
        if request.query_params:
            # A JSON body is the whole query. A parameter in the URL would be ignored without a
            # message, and the analyst would get the result of another query.
            raise make_unprocessable(
                "the query must be empty with a JSON body: write from and to in the body"
            )
        return body, None
    if media_type != TEXT:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {JSON} or {TEXT}")
    return body, _parse_query(request.query_params, EstimateBody, exclude={"candidates"})


def parse_counts_query(request: Request) -> CountsQuery:
    """Return the query parameters of a request for counts; raise Problem 422."""
    return _parse_query(request.query_params, CountsQuery)


def choose_media_type(request: Request) -> str:
    """Return the media type of the response: the first one of the Accept header that is supported.

    Supported are JSON (the default), CSV and Arrow. Quality values (`;q=0.5`) are ignored.

    Raises
    ------
    Problem
        406 if the header lists no supported media type.
    """
    accepted = [
        item.partition(";")[0].strip().lower()
        for item in request.headers.get("accept", "*/*").split(",")
    ]
    for media_type in accepted:
        if media_type in (JSON, CSV, ARROW):
            return media_type
        if media_type in ("*/*", "application/*"):
            return JSON
    raise Problem(HTTPStatus.NOT_ACCEPTABLE, f"Accept must be {JSON}, {CSV} or {ARROW}")


def make_unprocessable(detail: str) -> Problem:
    """Return the problem 422 with a sentence for the client."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _parse_query(
    query: QueryParams, record_type: type[_Record], *, exclude: Collection[str] = ()
) -> _Record:
    """Convert query parameters to a record.

    Parameters
    ----------
    query : the parameters, as pairs of name and value
    record_type : type of the record, whose fields name the parameters
    exclude : names of fields that are no query parameters

    Raises
    ------
    Problem
        422 for an unknown parameter, a repeated parameter or a malformed value
    """
    allowed = [
        field.encode_name
        for field in msgspec.structs.fields(record_type)
        if field.encode_name not in exclude
    ]
    check_names(query, allowed)
    try:
        return msgspec.convert(dict(query), record_type, strict=False)
    except msgspec.ValidationError as error:
        raise make_unprocessable(
            f"malformed query parameter: {error}; allowed: {', '.join(allowed)}"
        ) from None
