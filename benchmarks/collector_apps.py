"""The collector's application without some of its parts, to measure the time that each part takes.

`python -m benchmarks.collector_apps NAME PORT REGISTRY DATABASE` serves one application. `nothing`
reads the body of a POST and responds, `validation` checks an upload and stores nothing, `collector`
is the complete application.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

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


def create_idle_application(_: Settings) -> Starlette:
    """Return the application `nothing`, which reads the body of a POST and responds."""

    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(_RESPONSE, media_type="application/json")

    return Starlette(routes=[Route("/v1/reports", endpoint, methods=["POST"])])


def create_validation_application(settings: Settings) -> Starlette:
    """Return the application `validation`: the collector's, except that it stores no upload."""
    return create_application(settings, open_collector=_CollectorWithoutStore)


class _CollectorWithoutStore(Collector):
    """A collector that validates each upload and responds, without storing the upload."""

    def enqueue(self, submission: Submission) -> asyncio.Future[bytes]:
        """Return the response at once."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        response.set_result(submission.response)
        return response


def main(name: str, port: str, registry: str, database: str) -> None:
    """Serve an application by its name with uvicorn, like the collector."""
    # The benchmark sends uploads of random bits. `suspicious="accept"` keeps the collector from
    # refusing reports with improbable numbers of ones.
    settings = Settings(registry=registry, database=database, suspicious="accept")
    factories: dict[str, Callable[[Settings], Starlette]] = {
        "nothing": create_idle_application,
        "validation": create_validation_application,
        "collector": create_application,
    }
    uvicorn.run(
        factories[name](settings),
        port=int(port),
        # `nothing` runs on uvicorn's own protocol, to measure uvicorn and Starlette alone. The
        # others run on the collector's protocol, which limits the time of a slow client and the
        # number of connections of a client.
        http="httptools" if name == "nothing" else BoundedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
