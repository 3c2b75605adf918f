"""The description of the interface (OpenAPI 3.1), written by hand and tested against it."""

from __future__ import annotations

from typing import Any, Final

_JSON: Final = "application/json"
_CSV: Final = "text/csv"
_ARROW: Final = "application/vnd.apache.arrow.stream"


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: dict[str, Any], media_type: str = _JSON) -> dict[str, Any]:
    return {media_type: {"schema": schema}}


def _object(required: list[str], properties: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": not closed,
    }


def _problems(*statuses: int) -> dict[str, Any]:
    """Describe the errors of these statuses, and of 503, which every endpoint may answer."""
    return {
        str(status): {
            "description": _PROBLEMS[status],
            "content": _content(_ref("Problem"), "application/problem+json"),
        }
        for status in (*statuses, 503)
    }


def _answer(description: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": content}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


_PROBLEMS: Final = {
    400: "The request is malformed.",
    401: "A key or token is missing or not valid.",
    403: "The token does not allow this metric.",
    404: "There is no such metric or parameter set.",
    406: "The media type is unknown, or needs an extra that is not installed.",
    408: "The body took too long to arrive.",
    409: "The id was used for an upload with another body.",
    413: "The body is too large.",
    415: "The body is of another media type or encoding.",
    422: "The request does not fit the metric, or has no answer.",
    429: "This source sends too many uploads, or this token has an analysis under way; Retry-After "
    "says when to retry.",
    503: "The database does not answer; Retry-After says when to retry.",
}
_DAY: Final = {"type": "string", "format": "date"}
_NUMBER: Final = {"type": ["number", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_FINGERPRINT: Final = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_DAYS: Final = {
    "type": "array",
    "description": "Released reports by the last day (UTC) of their blocks.",
    "items": _object(["day", "reports"], {"day": _DAY, "reports": _COUNT}, closed=True),
}
_WITHHELD: Final = {
    "type": "array",
    "description": "Days (UTC) with reports that wait: for the day's end, or for others.",
    "items": _DAY,
}
_NAME: Final = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z][a-z0-9_.-]{0,63}$"},
}
_JOB: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}
_PREFER: Final = {
    "name": "Prefer",
    "in": "header",
    "description": "wait=SECONDS: how long to wait for the answer before it becomes a job.",
    "schema": {"type": "string", "examples": ["wait=60"]},
}
_SEGMENTS: Final = {
    "enum": ["true", "false"],
    "description": "Counts of their own for each segment, whose params name it; a sum if false.",
}
_STRETCH: Final = {
    "enum": ["day", "week", "month"],
    "description": "Sums of their own for each of these, in JSON only.",
}
_RANGE: Final = [_query("from", _DAY), _query("to", _DAY)]
_TABLES: Final = {
    _CSV: {"schema": {"type": "string"}},
    _ARROW: {"schema": {"type": "string", "format": "binary"}},
}
_TOKEN: Final[list[dict[str, list[str]]]] = [{"token": []}]

_SCHEMAS: Final[dict[str, Any]] = {
    "Problem": _object(
        ["type", "title", "status", "detail"],
        {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT},
        closed=True,
    ),
    "Report": _object(
        ["metric", "params", "cohort", "bits"],
        {
            "metric": {"type": "string"},
            "params": _FINGERPRINT,
            "cohort": {"type": "integer", "minimum": 0, "maximum": 65535},
            "bits": {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"},
        },
        closed=True,
    ),
    "Upload": _object(
        ["v", "id", "reports"],
        {
            "v": {"const": 1},
            "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{21}[AQgw]$"},
            "reports": {"type": "array", "minItems": 1, "items": {}},
        },
        closed=True,
    ),
    "UploadAnswer": _object(
        ["reports"],
        {
            "reports": {
                "type": "array",
                "items": _object(
                    ["status"],
                    {"status": {"enum": ["accepted", "refused"]}, "reason": _TEXT},
                    closed=True,
                ),
            },
            "stop": {
                "type": "object",
                "description": "Metrics that devices stop reporting, up to and with a day (UTC).",
                "additionalProperties": _DAY,
            },
        },
        closed=True,
    ),
    "Metric": _object(
        [
            "name",
            "description",
            "owner",
            "expires",
            "fingerprints",
            "min_reports",
            "min_cohort",
            "days",
            "withheld",
            "quarantine",
            "overfull_cohorts",
        ],
        {
            "name": _TEXT,
            "description": _TEXT,
            "owner": _TEXT,
            "expires": _DAY,
            "fingerprints": {
                "type": "array",
                "description": "The parameters of the registry: one set, or one for each part.",
                "items": _FINGERPRINT,
            },
            "min_reports": _COUNT,
            "min_cohort": _COUNT,
            "days": _DAYS,
            "withheld": _WITHHELD,
            "quarantine": {**_COUNT, "description": "Suspicious reports that no answer includes."},
            "overfull_cohorts": {
                "type": "array",
                "description": "Cohorts with more reports than honest devices send them.",
                "items": _object(
                    ["fingerprint", "cohort", "reports"],
                    {"fingerprint": _FINGERPRINT, "cohort": _COUNT, "reports": _COUNT},
                    closed=True,
                ),
            },
        },
        closed=True,
    ),
    "Metrics": _object(
        ["metrics", "refusals"],
        {
            "metrics": {"type": "array", "items": _ref("Metric")},
            "refusals": {
                "type": "array",
                "items": _object(
                    ["day", "metric", "reason", "number"],
                    {"day": _DAY, "metric": _TEXT, "reason": _TEXT, "number": _COUNT},
                    closed=True,
                ),
            },
        },
        closed=True,
    ),
    "Counts": _object(
        ["metric", "from", "to", "reports", "collections", "days", "withheld"],
        {
            "metric": _TEXT,
            "from": _DAY,
            "to": _DAY,
            "reports": _COUNT,
            "collections": {
                "type": "array",
                "items": _object(
                    ["fingerprint", "params", "reports", "ones", "devices", "from", "to"],
                    {
                        "from": _DAY,
                        "to": _DAY,
                        "fingerprint": _FINGERPRINT,
                        "params": {"type": "object"},
                        "reports": {"type": "array", "items": _COUNT},
                        "ones": {"type": "array", "items": {"type": "array", "items": _COUNT}},
                        "devices": {
                            "description": "The most that the devices' squared reports sum to, by "
                            "the metric's interval; null where it is none.",
                            "anyOf": [
                                _object(["squares"], {"squares": _COUNT}, closed=True),
                                {"type": "null"},
                            ],
                        },
                    },
                    closed=True,
                ),
            },
            "days": _DAYS,
            "withheld": _WITHHELD,
        },
        closed=True,
    ),
    "EstimateRequest": _object(
        [],
        {
            "candidates": {"type": ["array", "null"], "items": _TEXT},
            "from": {"type": ["string", "null"], "format": "date"},
            "to": {"type": ["string", "null"], "format": "date"},
            "level": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "correction": {"enum": ["bh", "adaptive", "bonferroni"]},
            "confidence": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "distribution": {"type": "boolean"},
            "all": {"type": "boolean"},
        },
        closed=True,
    ),
    "Estimates": _object(
        ["estimates", "reports", "unallocated", "unallocated_std_error", "assumed", "diagnostics"],
        {
            "estimates": {
                "type": "array",
                "items": _object(
                    ["candidate", "count", "std_error", "proportion", "p_value", "detected"],
                    {
                        "candidate": _TEXT,
                        "count": _NUMBER,
                        "std_error": _NUMBER,
                        "proportion": _NUMBER,
                        "p_value": {"type": "number"},
                        "detected": {"type": "boolean"},
                    },
                    closed=False,
                ),
            },
            "reports": _COUNT,
            "unallocated": _NUMBER,
            "unallocated_std_error": _NUMBER,
            "assumed": _TEXT,
            "diagnostics": {"type": "object"},
        },
        closed=True,
    ),
    "Analysis": _object(
        ["id", "metric", "state", "step", "seconds", "result", "detail"],
        {
            "id": _TEXT,
            "metric": _TEXT,
            "state": {"enum": ["waiting", "running", "done", "failed"]},
            "step": {**_TEXT, "description": "What is being done, while it runs."},
            "seconds": {"type": "number", "minimum": 0},
            "result": {**_TEXT, "description": "The path of the result."},
            "detail": {**_TEXT, "description": "Why it has failed."},
        },
        closed=True,
    ),
    "Root": _object(
        ["service", "description", "registry"],
        {"service": _TEXT, "description": _TEXT, "registry": _TEXT},
        closed=True,
    ),
}

_PATHS: Final[dict[str, Any]] = {
    "/v1/reports": {
        "post": {
            "operationId": "upload",
            "summary": "Send reports; they are on the disk when the answer comes.",
            "security": [{}, {"key": []}],
            "requestBody": {"required": True, "content": _content(_ref("Upload"))},
            "responses": {
                "200": _answer(
                    "A status for each report, in order.", _content(_ref("UploadAnswer"))
                ),
                **_problems(400, 401, 408, 409, 413, 415, 429),
            },
        }
    },
    "/v1/registry": {
        "get": {
            "operationId": "registry",
            "summary": "Read what is collected, as TOML.",
            "responses": {
                "200": _answer("The registry; ETag names it.", _content(_TEXT, "application/toml")),
                "304": {"description": "It is the one that If-None-Match names."},
            },
        }
    },
    "/v1/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "List metrics, their reports by day, and refusals by reason.",
            "security": _TOKEN,
            "responses": {
                "200": _answer("What the token may read.", _content(_ref("Metrics"))),
                **_problems(401),
            },
        }
    },
    "/v1/metrics/{name}/counts": {
        "get": {
            "operationId": "counts",
            "summary": "Read the released sums of a range of days (UTC, both included).",
            "security": _TOKEN,
            "parameters": [
                _NAME,
                *_RANGE,
                _query("params", _TEXT),
                _query("by", _STRETCH),
                _query("segments", _SEGMENTS),
            ],
            "responses": {
                "200": _answer("The sums.", _content(_ref("Counts")) | _TABLES),
                **_problems(401, 403, 404, 406, 422),
            },
        }
    },
    "/v1/metrics/{name}/estimates": {
        "post": {
            "operationId": "estimates",
            "summary": "Estimate how many devices hold each candidate.",
            "security": _TOKEN,
            "parameters": [_NAME, _PREFER],
            "requestBody": {
                "required": True,
                "content": _content(_ref("EstimateRequest")) | _content(_TEXT, "text/plain"),
            },
            "responses": {
                "200": _answer("The estimates.", _content(_ref("Estimates")) | _TABLES),
                "202": _answer("A job; Location is its address.", _content(_ref("Analysis"))),
                **_problems(400, 401, 403, 404, 406, 408, 413, 415, 422, 429),
            },
        }
    },
    "/v1/analyses/{id}": {
        "get": {
            "operationId": "analysis",
            "summary": "Read how far a job is.",
            "security": _TOKEN,
            "parameters": [_JOB],
            "responses": {
                "200": _answer("How far it is.", _content(_ref("Analysis"))),
                **_problems(401, 404),
            },
        },
        "delete": {
            "operationId": "cancel",
            "summary": "End a job, and forget its result.",
            "security": _TOKEN,
            "parameters": [_JOB],
            "responses": {"204": {"description": "It is gone."}, **_problems(401, 404)},
        },
    },
    "/v1/analyses/{id}/result": {
        "get": {
            "operationId": "result",
            "summary": "Read the estimates of a job, in the form that was asked for.",
            "security": _TOKEN,
            "parameters": [_JOB],
            "responses": {
                "200": _answer("The estimates.", _content(_ref("Estimates")) | _TABLES),
                "202": _answer("It still runs.", _content(_ref("Analysis"))),
                **_problems(401, 404, 422),
            },
        }
    },
    "/": {
        "get": {
            "operationId": "root",
            "summary": "Read what this service is, and where it is described.",
            "responses": {"200": _answer("Paths to start from.", _content(_ref("Root")))},
        }
    },
    "/healthz": {
        "get": {
            "operationId": "alive",
            "summary": "Check that the process answers.",
            "responses": {"200": _answer("It does.", _content(_TEXT, "text/plain"))},
        }
    },
    "/readyz": {
        "get": {
            "operationId": "ready",
            "summary": "Check that the database answers.",
            "responses": {
                "200": _answer("It does.", _content(_TEXT, "text/plain")),
                **_problems(),
            },
        }
    },
    "/metrics": {
        "get": {
            "operationId": "prometheus",
            "summary": "Read the counters of this collector, for Prometheus.",
            "responses": {"200": _answer("The counters.", _content(_TEXT, "text/plain"))},
        }
    },
    "/openapi.json": {
        "get": {
            "operationId": "description",
            "summary": "Read this description.",
            "responses": {"200": _answer("This document.", _content({"type": "object"}))},
        }
    },
}

DESCRIPTION: Final[dict[str, Any]] = {
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
            "token": {"type": "http", "scheme": "bearer"},
            "key": {"type": "http", "scheme": "bearer"},
        },
    },
}
