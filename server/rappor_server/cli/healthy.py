"""`rappor-server healthy`: health check of a container, which requests /healthz of its collector.

A container engine runs the command regularly, and marks the container as unhealthy if the exit code
is 1. Some engines, such as Docker Swarm, then restart the collector. The command reads the settings
of `serve`. The settings `host`, `port` and `admin` contain the address of the collector, and
`tls_certificate` says whether it serves HTTPS.
"""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.cli.commands import Command
from rappor_server.cli.setting_options import add_setting_options, read_settings

if TYPE_CHECKING:
    from rappor_server.app.settings import Settings

_SECONDS: Final = 5.0
"""Longest time in seconds for connecting, and for each wait for data of the response. A larger
value finds a collector that hangs later. A smaller value restarts a collector that is only slow,
because the machine is busy."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to listen on
"""Address to connect to, by the address that a collector listens on. 0.0.0.0 and :: stand for all
addresses of the machine. Not every system can connect to them, but every system can connect to the
loopback address, which is one of them."""


@click.command(
    cls=Command,
    examples=("rappor-server healthy --registry metrics.toml",),
)
@add_setting_options("registry", "host", "port", "admin", "tls_certificate", "tls_key")
def healthy(**options: Any) -> int:
    """Request /healthz of the collector on this machine, for the health check of a container.

    The exit code is 0 if the collector responds within 5 seconds, and 1 otherwise. The command
    reads the settings of `serve`, from the same file and the same variables.
    """
    reason = _find_fault(read_settings(options))
    if reason:
        click.echo(reason, err=True)
    return int(bool(reason))


def _find_fault(settings: Settings) -> str:
    """Return the reason why the collector does not respond, or an empty text if it responds."""
    # The admin address never has TLS. It responds even if devices use all connections of the public
    # address.
    host, port = settings.admin_address if settings.admin else (settings.host, settings.port)
    host = _LOOPBACK.get(host, host)
    if settings.tls_certificate and not settings.admin:
        # The certificate is for the public name of the collector, so verification would fail for
        # this address. The connection stays inside the machine, and the request has no secret.
        context = ssl._create_unverified_context()  # noqa: S323 - this machine
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} does not respond: {type(error).__name__}"
    finally:
        connection.close()
    return "" if status == http.client.OK else f"{host}:{port} responds with {status}"
