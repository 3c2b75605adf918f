"""Requests generated from the OpenAPI description: responses conform to it, and none is 5xx."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from collectors import Running, build_report, build_upload, make_token, run_file_collector
from hypothesis import HealthCheck, given, settings
from rappor_server.http import device_endpoints
from rappor_server.http.application import ROUTES
from rappor_server.http.device_endpoints import UPLOAD_PATH
from rappor_server.http.openapi import DESCRIPTION
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow  # schemathesis is in the extra dev only

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
"""Checks that schemathesis makes of each response."""
OPERATIONS = [
    f"{method} {route.path}" for route in ROUTES for method in sorted(route.methods or {"POST"})
    if method != "HEAD"
]  # fmt: skip
"""Lists the method and path of each route, such as "GET /v1/metrics". Starlette adds HEAD to each
route with GET. HEAD is not in the description."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Run a collector with some reports, and yield it with a read token."""
    folder = tmp_path_factory.mktemp("fuzzed")
    with run_file_collector(folder, "--suspicious", "accept") as running:
        for i in range(20):
            running.post(build_upload(build_report(bits=i), build_report("sound", bits=i % 2)))
        yield running, make_token(running.database)


def fuzz(fuzzed: tuple[Running, str], label: str, n: int) -> None:
    """Send at most n generated requests to an operation, and check every response.

    `label` is the method and the path of the operation, as in `OPERATIONS`.
    """
    running, token = fuzzed
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    method, path = label.split()
    operation = schema[path][method]
    headers = {"Authorization": f"Bearer {token}"}

    @settings(max_examples=n, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def send(case: Case[Any]) -> None:
        case.path_parameters = dict(case.path_parameters or {})
        if "name" in case.path_parameters and len(case.path_parameters["name"]) % 2:
            case.path_parameters["name"] = "page"  # half of the requests reach an existing metric
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=60)

    send()
    assert running.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("many", "few"),
    [
        pytest.param(30, 30, marks=pytest.mark.slow),
        pytest.param(2200, 400, marks=[pytest.mark.acceptance, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("label", OPERATIONS)
def test_responses_conform_to_the_description(
    fuzzed: tuple[Running, str], label: str, many: int, few: int
) -> None:
    """Responses have the described status, content type and schema.

    An operation with the name of a metric in its path, or with uploads, gets up to `many` requests,
    because its input has many forms. Any other operation gets up to `few` requests.
    """
    has_many_inputs = "{" in label or "reports" in label
    fuzz(fuzzed, label, many if has_many_inputs else few)


def test_description_lists_every_route(fuzzed: tuple[Running, str]) -> None:
    """The description has exactly the operations of the routes."""
    running, _ = fuzzed
    paths = running.get("/openapi.json").json()["paths"]
    described = {
        f"{method.upper()} {path}" for path, methods in paths.items() for method in methods
    }
    assert described == set(OPERATIONS)


def test_the_table_of_checks_has_every_status_of_an_upload() -> None:
    """The table of `device_endpoints` names the statuses that the description of uploads names."""
    table = re.findall(r"^\|.*\| +(\d{3}) +\|", device_endpoints.__doc__ or "", re.MULTILINE)
    described = DESCRIPTION["paths"][UPLOAD_PATH]["post"]["responses"]
    assert set(table) == set(described)
