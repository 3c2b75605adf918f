"""`rappor-server serve`: one command from a registry to a collector that answers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Final

import click

from rappor_server.cli.help import Command
from rappor_server.cli.options import read_settings, setting_options, today
from rappor_server.settings import Settings

_FLAGS: Final = [field.name for field in dataclasses.fields(Settings) if field.name != "registry"]


@click.command(
    cls=Command,
    examples=(
        "rappor-server serve metrics.toml",
        "rappor-server serve metrics.toml --port 8181 --rate 60",
    ),
)
@click.argument("registry", type=click.Path())
@setting_options(*_FLAGS)
def serve(**options: Any) -> None:
    """Serve the metrics of a REGISTRY until a signal ends it.

    Without options it listens on http://127.0.0.1:8080 and keeps an SQLite file beside the
    registry. SIGHUP makes it read the registry again. SIGTERM makes it commit the uploads that
    wait, and end.
    """
    settings = read_settings(options)
    prepare(settings)
    run(settings)


def prepare(settings: Settings) -> None:
    """Check everything before the collector listens; create the tables of a new database."""
    from rappor_server.collector import load_accepted_params
    from rappor_server.storage.database import check_schema, is_empty, migrate, open_engine

    load_accepted_params(settings, today=today())
    settings.upload_key()
    engine = open_engine(settings.database)
    try:
        if is_empty(engine):
            migrate(settings.database)
        check_schema(engine)
    finally:
        engine.dispose()


def run(settings: Settings) -> None:
    """Listen until a signal says to end; requests that have begun are answered first."""
    import uvicorn

    from rappor_server import logs
    from rappor_server.http.slow_clients import ENVIRONMENT, PunctualProtocol
    from rappor_server.prometheus import shared_by_workers

    logs.configure()
    os.environ[ENVIRONMENT] = settings.to_json()
    with shared_by_workers() if settings.workers > 1 else contextlib.nullcontext():
        uvicorn.run(
            "rappor_server.http.app:from_environment",
            factory=True,
            http=PunctualProtocol,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=True,
            forwarded_allow_ips=settings.proxies,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=20,
            ssl_certfile=settings.tls_certificate or None,
            ssl_keyfile=settings.tls_key or None,
        )
