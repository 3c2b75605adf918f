"""OpenAPI 3.1 description of the HTTP interface: the response of GET /openapi.json.

The schemas of most requests and responses are derived from the msgspec records that parse and
encode them, so description and behaviour cannot differ. Three parts are written by hand, and tests
compare them with real responses:

- the paths with their status codes
- uploads, because the collector parses their reports one by one and not as a record
- estimates, because `rappor.decoding` writes their JSON

The module builds the description once, at its import, in this order: schemas (`_SCHEMAS`, by name
of component), then operations (`_PATHS`, by path and method), then `DESCRIPTION`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor_server.base.problems import MEDIA_TYPE, ProblemDocument
from rappor_server.http.analyst_requests import CountsQuery
from rappor_server.http.operator_endpoints import RootResponse
from rappor_server.ingest.validate import UploadResponse
from rappor_server.queries.counts import ARROW, CSV, JSON, TEXT, MetricsResponse
from rappor_server.queries.estimates import EstimateBody
from rappor_server.releases.release_json import CountsResponse

_Schema = dict[str, Any]
"""A JSON object that OpenAPI defines: a JSON schema, or a part of a description."""

_STATUSES: Final = {
    200: "The request succeeded.",
    304: "The registry has the digest in If-None-Match.",
    400: "The request is malformed.",
    401: "The key or token is missing or invalid.",
    403: "The token does not allow this metric.",
    404: "The metric or parameter set does not exist.",
    406: "The media type is unknown, or needs an extra that is not installed.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body has an unsupported media type or encoding.",
    422: "A query parameter is unknown, repeated or malformed, or the request does not fit the "
    "metric, or has no result.",
    429: "This source sends too many uploads, or this token has a query in progress. Retry-After "
    "contains the seconds to wait.",
    503: "The collector is overloaded, or the database fails. Retry-After contains the seconds to "
    "wait.",
}
"""Sentence that describes each status code, by the code. It is the same for all operations."""
_RECORDS: Final = (
    ProblemDocument,
    UploadResponse,
    MetricsResponse,
    CountsResponse,
    CountsQuery,
    EstimateBody,
    RootResponse,
)
"""Records whose schemas are derived from their types."""
_, _SCHEMAS = msgspec.json.schema_components(_RECORDS, ref_template="#/components/schemas/{name}")

_STRING: Final[_Schema] = {"type": "string"}
"""Schema that allows any text."""
_NUMBER: Final[_Schema] = {"type": ["number", "null"]}
"""Schema of an estimated number. It is null if the data determine no number."""
_COUNT: Final[_Schema] = {"type": "integer", "minimum": 0}
"""Schema that allows a number of reports."""


def _make_object(properties: _Schema, *, is_closed: bool = True) -> _Schema:
    """Return the schema of an object with required properties.

    Parameters
    ----------
    properties : schema of each property, by name
    is_closed : whether a further property is an error
    """
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": not is_closed,
    }


_SCHEMAS |= {
    "Report": _make_object(
        {
            "metric": _STRING,
            "params": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
            "cohort": {"type": "integer", "minimum": 0, "maximum": 65535},
            "bits": {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"},
        }
    ),
    "Upload": _make_object(
        {
            "v": {"const": 1},
            # 16 bytes in base64url: the last of 22 characters has 2 bits of data and 4 zero bits.
            "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"},
            "reports": {
                "type": "array",
                "minItems": 1,
                "items": {},
                "description": "Reports. An item that is no Report is refused by itself.",
            },
        }
    ),
    "Estimates": _make_object(
        {
            "estimates": {
                "type": "array",
                "items": _make_object(
                    {
                        "candidate": _STRING,
                        "count": _NUMBER,
                        "std_error": _NUMBER,
                        "share": _NUMBER,
                        "p_value": {"type": "number"},
                        "detected": {"type": "boolean"},
                    },
                    is_closed=False,
                ),
            },
            "reports": _COUNT,
            "unallocated": _NUMBER,
            "unallocated_std_error": _NUMBER,
            "assumptions": _STRING,
            "warnings": {
                "type": "array",
                "items": _make_object({"code": _STRING, "sentence": _STRING}),
            },
            "diagnostics": {"type": "object"},
        }
    ),
}


def _make_reference(name: str) -> _Schema:
    """Return a reference to the schema of a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _make_content(schema: _Schema, *media_types: str) -> _Schema:
    """Return the description of a body with one schema in some media types; JSON by default."""
    return {media_type: {"schema": schema} for media_type in media_types or (JSON,)}


_TABLES: Final = _make_content(_STRING, CSV) | _make_content(
    {"type": "string", "format": "binary"}, ARROW
)
"""Content of a response that is a table, as CSV or Arrow."""

_NAME_PARAMETER: Final = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z][a-z0-9_.-]{0,63}$"},
}
"""Path parameter that contains the name of a metric."""
_COUNTS_PARAMETERS: Final = [
    {"name": name, "in": "query", "schema": schema}
    for name, schema in _SCHEMAS.pop(CountsQuery.__name__)["properties"].items()
]
"""Query parameters of counts. `CountsQuery` is no body, so it leaves the schemas of components."""


def _add_operation(
    route: str,
    operation_id: str,
    summary: str,
    results: dict[int, _Schema | None],
    *problems: int,
    security: tuple[str, ...] = (),
    **fields: Any,
) -> None:
    """Add an operation to `_PATHS`.

    Parameters
    ----------
    route : method and path, separated by a space
    operation_id : identifier of the operation, from which generated clients name a function
    summary : one sentence
    results : content of the body, by status code of a success. None means that there is no body.
    problems : status codes of problem documents
    security : names of alternative credentials. An empty name means that no credential is needed.
    fields : further fields of the operation
    """
    responses: _Schema = {}
    for status, content in results.items():
        responses[str(status)] = {"description": _STATUSES[status]}
        if content is not None:
            responses[str(status)]["content"] = content
    for status in problems:
        content = _make_content(_make_reference(ProblemDocument.__name__), MEDIA_TYPE)
        responses[str(status)] = {"description": _STATUSES[status], "content": content}
    if security:
        fields["security"] = [{scheme: []} if scheme else {} for scheme in security]
    operation = {"operationId": operation_id, "summary": summary, "responses": responses, **fields}
    method, path = route.split()
    _PATHS.setdefault(path, {})[method.lower()] = operation


_PATHS: Final[_Schema] = {}
"""Maps path and method (in lower case) to the operation."""
_WITH_TOKEN: Final = {"security": ("token",)}
"""Argument of an operation that needs a read token."""
_ESTIMATES: Final = _make_content(_make_reference("Estimates")) | _TABLES
"""Describes a response with estimates, as JSON or as a table."""
_PLAIN: Final = _make_content(_STRING, TEXT)
"""Describes a body of plain text."""

_add_operation(
    "POST /v1/reports",
    "upload",
    "Send reports. They are on the disk before the response is sent.",
    {200: _make_content(_make_reference(UploadResponse.__name__))},
    *(400, 401, 408, 413, 415, 422, 429, 503),
    security=("", "key"),
    requestBody={"required": True, "content": _make_content(_make_reference("Upload"))},
)
_add_operation(
    "GET /v1/registry",
    "registry",
    "Read the registry, as TOML. ETag is its digest.",
    {200: _make_content(_STRING, "application/toml"), 304: None},
    422,
)
_add_operation(
    "GET /v1/metrics",
    "metrics",
    "List the metrics that the token may read, and refusals. The lists of days have the last 31 "
    "days, and the totals beside them all days.",
    {200: _make_content(_make_reference(MetricsResponse.__name__))},
    *(401, 422, 503),
    **_WITH_TOKEN,
)
_add_operation(
    "GET /v1/metrics/{name}/counts",
    "counts",
    "Read the released counts of a range of days (UTC, both included).",
    {200: _make_content(_make_reference(CountsResponse.__name__)) | _TABLES},
    *(401, 403, 404, 406, 422, 503),
    **_WITH_TOKEN,
    parameters=[_NAME_PARAMETER, *_COUNTS_PARAMETERS],
)
_add_operation(
    "POST /v1/metrics/{name}/estimates",
    "estimates",
    "Estimate the share of each candidate.",
    {200: _ESTIMATES},
    *(400, 401, 403, 404, 406, 408, 413, 415, 422, 429, 503),
    **_WITH_TOKEN,
    parameters=[_NAME_PARAMETER],
    requestBody={
        "required": True,
        "description": "The query as JSON, or candidates as plain text, one a line. With plain "
        "text, the other fields of EstimateBody are query parameters.",
        "content": _make_content(_make_reference(EstimateBody.__name__)) | _PLAIN,
    },
)
_add_operation(
    "GET /",
    "root",
    "Read the name of the service and the path of its description.",
    {200: _make_content(_make_reference(RootResponse.__name__))},
    422,
)
_add_operation("GET /healthz", "alive", "Check that the process responds.", {200: _PLAIN}, 422)
_add_operation(
    "GET /readyz", "ready", "Check that uploads are stored and counted.", {200: _PLAIN}, 422, 503
)
_add_operation("GET /metrics", "prometheus", "Read the collector's counters.", {200: _PLAIN}, 422)
_add_operation(
    "GET /openapi.json",
    "description",
    "Read this description.",
    {200: _make_content({"type": "object"})},
    422,
)

# `DESCRIPTION` follows the operations, because it contains them.
DESCRIPTION: Final[_Schema] = {
    "openapi": "3.1.0",
    "info": {
        "title": "RAPPOR collector",
        "version": "1",
        "description": "Receives noisy reports, adds them to counts, computes estimates.",
    },
    "paths": _PATHS,
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {
            name: {"type": "http", "scheme": "bearer"} for name in ("token", "key")
        },
    },
}


async def get_openapi(_: Request) -> Response:
    """GET /openapi.json: return this description."""
    return Response(msgspec.json.encode(DESCRIPTION), media_type=JSON)
