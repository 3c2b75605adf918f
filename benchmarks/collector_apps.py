"""The collector's application with less behind it: what the stack itself costs.

`python -m benchmarks.collector_apps NAME PORT` serves one: `nothing` answers a POST without looking
at it, `validation` reads and judges an upload and stores nothing, `collector` is the real one.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvicorn
from rappor_server.collector import Collector
from rappor_server.http import app
from rappor_server.http.slow_clients import ENVIRONMENT, PunctualProtocol
from rappor_server.ingest.validate import Submission
from rappor_server.settings import Settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ANSWER = b'{"reports":[{"status":"accepted"}]}'


def nothing() -> Starlette:
    """Read the body and answer."""

    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(_ANSWER, media_type="application/json")

    return Starlette(routes=[Route("/v1/reports", endpoint, methods=["POST"])])


def validation() -> Starlette:
    """Do all that an upload needs but storing it."""
    return _real(_Forgetful)


def collector() -> Starlette:
    """Be the real one."""
    return _real()


class _Forgetful(Collector):
    """Stores nothing."""

    def enqueue(self, submission: Submission) -> asyncio.Future[bytes]:
        """Return the answer at once."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answer.set_result(submission.answer)
        return answer


def _real(kind: type[Collector] = Collector) -> Starlette:
    return app.create(Settings.from_json(os.environ[ENVIRONMENT]), open_collector=kind)


def main(name: str, port: str) -> None:
    """Serve an application by its name: those of the collector as it is served."""
    application = {"nothing": nothing, "validation": validation, "collector": collector}[name]()
    uvicorn.run(
        application,
        port=int(port),
        http="httptools" if name == "nothing" else PunctualProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
