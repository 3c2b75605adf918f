"""`rappor-server healthy`: whether the collector of this machine responds, for a container.

A container engine restarts a collector that hangs. The command reads the settings of `serve`, so
that it asks the right address with the right scheme, whatever `port`, `admin` and `tls_certificate`
are.
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
"""Time in seconds after which a collector that does not respond counts as hanging. With more, an
engine notices a hang later. With less, a collector on a busy machine is restarted for nothing."""
_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to listen on
"""Address of this machine under which a collector responds that listens on all addresses."""


@click.command(
    cls=Command,
    examples=("rappor-server healthy --registry metrics.toml",),
)
@add_setting_options("registry", "host", "port", "admin", "tls_certificate", "tls_key")
def healthy(**options: Any) -> int:
    """Ask the collector on this machine for /healthz, for the health check of a container.

    The exit code is 0 if it responds within 5 seconds, and 1 otherwise. The settings are those of
    `serve`, from the same file and variables.
    """
    reason = _find_fault(read_settings(options))
    if reason:
        click.echo(reason, err=True)
    return int(bool(reason))


def _find_fault(settings: Settings) -> str:
    """Return why the collector does not respond, or an empty text if it responds."""
    # The admin address is never TLS. It responds also if all connections of devices are in use.
    host, port = settings.admin_address if settings.admin else (settings.host, settings.port)
    host = _LOCAL.get(host, host)
    if settings.tls_certificate and not settings.admin:
        # The certificate is of the public name, not of this address.
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
