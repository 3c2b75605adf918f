"""Lists of candidates: uploaded or pasted, and read again."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rappor.base.errors import ParamsError
from rappor_server.base.problems import Problem
from rappor_server.pages.forms import Form
from rappor_server.pages.signing import Reader, to_see
from rappor_server.queries import candidate_lists

MOST_BYTES: Final = 2 * candidate_lists.MOST_BYTES
"""Largest size of the form: of the longest list, and what surrounds it."""


async def keep(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/lists: keep a file, or a text that was pasted."""
    metric, collector = reader.metric(request), reader.collector
    text = form.files.get("file") or form.fields.get("text", "").encode()
    if len(text) > candidate_lists.MOST_BYTES:
        raise ParamsError(f"a list must have at most {candidate_lists.MOST_BYTES:,} bytes")
    most = collector.settings.max_candidates
    await asyncio.to_thread(collector.lists.save, metric.name, text, most=most)
    return to_see(f"/pages/metrics/{metric.name}/ask#lists")


async def text(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/lists?list=: download a list."""
    metric, collector = reader.metric(request), reader.collector
    digest = request.query_params.get("list", "")
    content = await asyncio.to_thread(collector.lists.read, metric.name, digest)
    if content is None:
        raise Problem(HTTPStatus.NOT_FOUND, "the metric has no list of this digest")
    headers = {"Content-Disposition": f'attachment; filename="{metric.name}-candidates.txt"'}
    return Response(content, media_type="text/plain", headers=headers)
