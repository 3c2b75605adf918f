"""The collector's application without some of its parts, to measure the cost of the stack.

`python -m benchmarks.collector_apps NAME PORT REGISTRY DATABASE` serves one application. `nothing`
reads the body of a POST and responds, `validation` checks an upload and stores nothing, `collector`
is the complete application.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.http.application import create_application
from rappor_server.http.bounded_protocol import BoundedProtocol
from rappor_server.ingest.validate import Submission
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_RESPONSE = b'{"reports":[{"status":"accepted"}]}'


def nothing(_: Settings) -> Starlette:
    """Return an application that reads the body and responds."""

    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(_RESPONSE, media_type="application/json")

    return Starlette(routes=[Route("/v1/reports", endpoint, methods=["POST"])])


def validation(settings: Settings) -> Starlette:
    """Return the collector's application, which stores no upload."""
    return create_application(settings, open_collector=_CollectorWithoutStore)


def collector(settings: Settings) -> Starlette:
    """Return the complete application."""
    return create_application(settings)


class _CollectorWithoutStore(Collector):
    """A collector that responds to each upload without storing it."""

    def enqueue(self, submission: Submission) -> asyncio.Future[bytes]:
        """Return the response at once."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        response.set_result(submission.response)
        return response


def main(name: str, port: str, registry: str, database: str) -> None:
    """Serve an application by its name, in the same way as the collector."""
    settings = Settings(registry=registry, database=database, suspicious="accept")
    kinds = {"nothing": nothing, "validation": validation, "collector": collector}
    uvicorn.run(
        kinds[name](settings),
        port=int(port),
        http="httptools" if name == "nothing" else BoundedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
