"""`rappor-server serve`: one command from a registry to a collector that answers."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import click

from rappor_server.cli.options import read_settings
from rappor_server.settings import Settings


@click.command()
@click.argument("registry", type=click.Path())
@click.option("--database", help="sqlite:///FILE or postgresql://...; default: beside it.")
@click.option("--config", "file", type=click.Path(), help="Settings as TOML.")
@click.option("--host", help="Where to listen; default 127.0.0.1.")
@click.option("--port", type=int, help="Default 8080; 0 lets the system choose.")
@click.option("--workers", type=int, help="Processes; more than one needs PostgreSQL.")
@click.option("--older", multiple=True, type=click.Path(), help="A registry still taken.")
@click.option("--upload-key-file", type=click.Path(), help="Holds the key for sending.")
@click.option("--max-body", type=int, help="Bytes of one upload as sent.")
@click.option("--max-decompressed", type=int, help="Bytes of one upload in all.")
@click.option("--max-reports", type=int, help="Reports in one upload.")
@click.option("--body-seconds", type=float, help="How long a body may take to arrive.")
@click.option("--rate", type=int, help="Uploads a minute from one source; 0: no limit.")
@click.option("--origins", multiple=True, help="Where browsers may send from; * is everywhere.")
@click.option(
    "--suspicious",
    type=click.Choice(["refuse", "apart", "accept"]),
    help="What to do with popcounts that no honest device shows.",
)
@click.option("--decode-seconds", type=float, help="The most that an estimate may take.")
@click.option("--commit-seconds", type=float, help="How long an upload may wait for its commit.")
@click.option("--max-queue", type=int, help="Uploads that may wait for a commit.")
@click.option("--tls-certificate", type=click.Path(), help="Serve HTTPS directly.")
@click.option("--tls-key", type=click.Path(), help="The certificate's key.")
@click.option("--proxies", help="Proxies whose word about a source is taken.")
def serve(**options: Any) -> None:
    """Serve REGISTRY: an SQLite file beside it, http://127.0.0.1:8080.

    Flags come before the environment (RAPPOR_SERVER_PORT and so on), that before the file of
    --config. SIGHUP reads the registry again, SIGTERM commits what was taken and ends.
    """
    settings = read_settings(options)
    prepare(settings)
    run(settings)


def prepare(settings: Settings) -> None:
    """Refuse what cannot be served before anything listens; make the tables of a new database."""
    from rappor_server.collector import load_known
    from rappor_server.storage.database import check_schema, is_empty, migrate, open_engine

    load_known(settings)
    settings.upload_key()
    engine = open_engine(settings.database)
    try:
        if is_empty(engine):
            migrate(settings.database)
        check_schema(engine)
    finally:
        engine.dispose()


def run(settings: Settings) -> None:
    """Listen until a signal says to end; requests under way are answered first."""
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
