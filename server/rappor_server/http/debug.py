"""The debug door: it shows what programs in debug mode send, and counts nothing of it.

Such a program sends example values under a secret that is thrown away. What comes is judged like
any upload, shown to who has a debug key, and forgotten: the newest lines are in memory only.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rappor_server.collector import Collector
from rappor_server.ingest.validate import Submission
from rappor_server.problems import Problem
from rappor_server.request_limits import read_body

DEBUG: Final = "/v1/debug"
MOST_LINES: Final = 200
_MOST_BYTES: Final = 10_000
_MOST_REPORTS: Final = 10
_REFRESH: Final = {"Refresh": "2"}
_HEAD: Final = "Example reports of programs in debug mode, the newest first. None is counted.\n\n"


class DebugDoor:
    """What has come lately, a line for each report."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)

    @property
    def routes(self) -> list[Route]:
        """Where it is reached."""
        return [
            Route(DEBUG, self.receive, methods=["POST"]),
            Route(DEBUG, self.show, methods=["GET"]),
        ]

    async def receive(self, request: Request) -> Response:
        """POST /v1/debug: judge an upload, and show what became of it."""
        collector: Collector = request.app.state.collector
        name = _name_of(request, collector)
        seconds = collector.settings.body_seconds
        with collector.bodies.share() as share:
            body = await read_body(
                request.scope, request.receive, share, max_body=_MOST_BYTES, seconds=seconds
            )
            submission = collector.read(body, max_reports=_MOST_REPORTS)
        now = f"{datetime.datetime.now(datetime.UTC):%H:%M:%S}"
        self._lines.extendleft(f"{now}  {name}  {line}" for line in _lines(submission))
        return Response(submission.answer, media_type="application/json")

    async def show(self, request: Request) -> Response:
        """GET /v1/debug: the newest lines, as plain text that a browser loads again and again."""
        _name_of(request, request.app.state.collector)
        return PlainTextResponse(
            _HEAD + "".join(f"{each}\n" for each in self._lines), 200, _REFRESH
        )


def _name_of(request: Request, collector: Collector) -> str:
    """Return the name of the debug key of a request, or raise the problem 401.

    A program sends the key as Bearer, a browser as the password of any user.
    """
    given = request.headers.get("authorization", "")
    scheme, _, word = given.partition(" ")
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(word, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            password = ""
        given = f"Bearer {password}"
    assert collector.debug_keys is not None  # or there are no routes
    name = collector.debug_keys.find(given, today=collector.today())
    if name is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "the debug door needs one of its keys",
            headers={"WWW-Authenticate": 'Basic realm="debug key"'},
        )
    return name


def _lines(submission: Submission) -> Iterator[str]:
    """Say what became of each report of an upload."""
    for each in submission.accepted:
        n_ones, params = int.from_bytes(each.bits, "little").bit_count(), each.params
        yield (
            f"{each.metric}  accepted: cohort {each.cohort} of {params.m}, "
            f"{n_ones} of {params.k} bits are 1, parameters {each.fingerprint}"
        )
    for (metric, reason), n in submission.refusals.items():
        yield f"{metric or 'a report'}  refused: {reason}" + (f", {n} times" if n > 1 else "")
