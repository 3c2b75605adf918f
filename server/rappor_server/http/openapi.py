"""The description of the interface (OpenAPI 3.1): its records are those that are read and answered.

What is written by hand here is what no record says: paths, statuses, uploads as their senders
write them, and estimates, whose JSON is made by `rappor.decoding`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor_server.base.problems import MEDIA_TYPE, ProblemDocument
from rappor_server.http.bodies import CountsQuery
from rappor_server.http.operations import RootAnswer
from rappor_server.ingest.validate import UploadResponse
from rappor_server.queries.counts import ARROW, CSV, JSON, TEXT, MetricsAnswer
from rappor_server.queries.estimates import EstimateBody
from rappor_server.releases.release_json import CountsAnswer

_Schema = dict[str, Any]

_STATUSES: Final = {
    200: "The answer.",
    304: "It is the one that If-None-Match names.",
    400: "The request is malformed.",
    401: "A key or token is missing or not valid.",
    403: "The token does not allow this metric.",
    404: "There is no such metric or parameter set.",
    406: "The media type is unknown, or needs an extra that is not installed.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    415: "The body is of another media type or encoding.",
    422: "The request does not fit the metric, or has no answer.",
    429: "This source sends too many uploads, or this token has a query in progress; Retry-After "
    "says when to retry.",
    503: "The database does not answer; Retry-After says when to retry.",
}
_RECORDS: Final = (
    ProblemDocument,
    UploadResponse,
    MetricsAnswer,
    CountsAnswer,
    CountsQuery,
    EstimateBody,
    RootAnswer,
)
_, _SCHEMAS = msgspec.json.schema_components(_RECORDS, ref_template="#/components/schemas/{name}")

_STRING: Final[_Schema] = {"type": "string"}
_NUMBER: Final[_Schema] = {"type": ["number", "null"]}
_COUNT: Final[_Schema] = {"type": "integer", "minimum": 0}


def _object(properties: _Schema, *, is_closed: bool = True) -> _Schema:
    """Describe an object that has all of these properties."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": not is_closed,
    }


_SCHEMAS |= {
    "Report": _object(
        {
            "metric": _STRING,
            "params": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
            "cohort": {"type": "integer", "minimum": 0, "maximum": 65535},
            "bits": {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"},
        }
    ),
    "Upload": _object(
        {
            "v": {"const": 1},
            "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"},
            "reports": {
                "type": "array",
                "minItems": 1,
                "items": {},
                "description": "Each is a Report; what is none is refused alone.",
            },
        }
    ),
    "Estimates": _object(
        {
            "estimates": {
                "type": "array",
                "items": _object(
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
                "items": _object({"code": _STRING, "sentence": _STRING}),
            },
            "diagnostics": {"type": "object"},
        }
    ),
}


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: _Schema, *media_types: str) -> _Schema:
    return {media_type: {"schema": schema} for media_type in media_types or (JSON,)}


_TABLES: Final = _content(_STRING, CSV) | _content({"type": "string", "format": "binary"}, ARROW)


def _path(name: str, pattern: str) -> _Schema:
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "schema": schema}


_NAME: Final = _path("name", "^[a-z][a-z0-9_.-]{0,63}$")
_QUERY: Final = [
    {"name": name, "in": "query", "schema": schema}
    for name, schema in _SCHEMAS.pop(CountsQuery.__name__)["properties"].items()
]


def _operation(
    place: str,
    name: str,
    summary: str,
    answers: dict[int, _Schema | None],
    *problems: int,
    security: tuple[str, ...] = (),
    **more: Any,
) -> None:
    """Describe what is at a place: what it answers by status, and the problems that it may answer.

    `security` names what a request must carry; an empty name is nothing.
    """
    responses: _Schema = {}
    for status, content in answers.items():
        responses[str(status)] = {"description": _STATUSES[status]}
        if content is not None:
            responses[str(status)]["content"] = content
    for status in problems:
        content = _content(_ref(ProblemDocument.__name__), MEDIA_TYPE)
        responses[str(status)] = {"description": _STATUSES[status], "content": content}
    needs: list[_Schema] = [{each: []} if each else {} for each in security]
    kept = {"security": needs} if needs else {}
    operation = {"operationId": name, "summary": summary, "responses": responses, **kept, **more}
    method, path = place.split()
    _PATHS.setdefault(path, {})[method.lower()] = operation


_PATHS: Final[_Schema] = {}
_READ: Final = {"security": ("token",)}
_ESTIMATES: Final = _content(_ref("Estimates")) | _TABLES
_PLAIN: Final = _content(_STRING, TEXT)

_operation(
    "POST /v1/reports",
    "upload",
    "Send reports; they are on the disk when the answer comes.",
    {200: _content(_ref(UploadResponse.__name__))},
    *(400, 401, 408, 413, 415, 429, 503),
    security=("", "key"),
    requestBody={"required": True, "content": _content(_ref("Upload"))},
)
_operation(
    "GET /v1/registry",
    "registry",
    "Read what is collected, as TOML; ETag names it.",
    {200: _content(_STRING, "application/toml"), 304: None},
)
_operation(
    "GET /v1/metrics",
    "metrics",
    "List the metrics that the token may read, their reports by day, and refusals.",
    {200: _content(_ref(MetricsAnswer.__name__))},
    *(401, 503),
    **_READ,
)
_operation(
    "GET /v1/metrics/{name}/counts",
    "counts",
    "Read the released sums of a range of days (UTC, both included).",
    {200: _content(_ref(CountsAnswer.__name__)) | _TABLES},
    *(401, 403, 404, 406, 422, 503),
    **_READ,
    parameters=[_NAME, *_QUERY],
)
_operation(
    "POST /v1/metrics/{name}/estimates",
    "estimates",
    "Estimate how many devices have each candidate.",
    {200: _ESTIMATES},
    *(400, 401, 403, 404, 406, 408, 413, 415, 422, 429, 503),
    **_READ,
    parameters=[_NAME],
    requestBody={"required": True, "content": _content(_ref(EstimateBody.__name__)) | _PLAIN},
)
_operation(
    "GET /",
    "root",
    "Read what this service is, and where it is described.",
    {200: _content(_ref(RootAnswer.__name__))},
)
_operation("GET /healthz", "alive", "Check that the process answers.", {200: _PLAIN})
_operation("GET /readyz", "ready", "Check that uploads are stored.", {200: _PLAIN}, 503)
_operation("GET /metrics", "prometheus", "Read the collector's counters.", {200: _PLAIN})
_operation(
    "GET /openapi.json",
    "description",
    "Read this description.",
    {200: _content({"type": "object"})},
)

DESCRIPTION: Final[_Schema] = {
    "openapi": "3.1.0",
    "info": {
        "title": "RAPPOR collector",
        "version": "1",
        "description": "Receives noisy reports, keeps counts, answers analysts.",
    },
    "paths": _PATHS,
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {
            name: {"type": "http", "scheme": "bearer"} for name in ("token", "key")
        },
    },
}


async def openapi(_: Request) -> Response:
    """GET /openapi.json: the description of the interface."""
    return Response(msgspec.json.encode(DESCRIPTION), media_type=JSON)
