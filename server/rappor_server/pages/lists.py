"""Lists of candidates: uploaded or pasted, kept under a name, read again, deleted."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rappor.ground.errors import ParamsError
from rappor_server.analysis import candidate_lists
from rappor_server.pages.forms import Form
from rappor_server.pages.signing import Reader, to_see
from rappor_server.problems import Problem

MOST_BYTES: Final = 2 * candidate_lists.MOST_BYTES
"""Of the whole form: of a list of the longest kind, and what surrounds it."""


async def keep(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/lists: keep a file, or a text that was pasted."""
    metric, collector = reader.metric(request), reader.collector
    text = form.files.get("file") or form.fields.get("text", "").encode()
    if len(text) > candidate_lists.MOST_BYTES:
        raise ParamsError(f"a list must have at most {candidate_lists.MOST_BYTES:,} bytes")
    await collector.look_up(
        candidate_lists.keep,
        metric.name,
        form.text("name"),
        text,
        most=collector.settings.max_candidates,
        today=collector.today(),
    )
    return to_see(_lists_of(metric.name))


async def text(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/lists?list=: a list, to be kept."""
    metric, collector = reader.metric(request), reader.collector
    name = request.query_params.get("list", "")
    found = await collector.look_up(candidate_lists.find, metric.name, name)
    if found is None:
        raise _no_list()
    headers = {"Content-Disposition": f'attachment; filename="{metric.name}-candidates.txt"'}
    return Response(found, media_type="text/plain", headers=headers)


async def delete(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/lists/delete: forget a list."""
    metric, collector = reader.metric(request), reader.collector
    name = form.text("list")
    if not await collector.look_up(candidate_lists.delete, metric.name, name):
        raise _no_list()
    return to_see(_lists_of(metric.name))


def _lists_of(metric: str) -> str:
    return f"/pages/metrics/{metric}/ask#lists"


def _no_list() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "the metric has no list of this name")
