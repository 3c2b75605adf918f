"""`rappor-server reload`: check the input files of a running collector, then make it read them.

SIGHUP alone has no response: the collector writes `reload refused` to its log, and the operator who
sent the signal sees nothing. The command reads the files before, as the collector reads them, and
sends no signal if one of them is wrong.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import click

from rappor.cli.commands import Command
from rappor_server.app.input_files import InputFiles
from rappor_server.base.errors import ConfigError
from rappor_server.cli.setting_options import add_setting_options, read_settings
from rappor_server.storage.database import utc_today


@click.command(
    cls=Command,
    examples=("rappor-server reload 4711 --registry metrics.toml",),
)
@click.argument("process", type=click.IntRange(min=1))
@add_setting_options(
    "registry", "older", "upload_key_file", "stop_file", "tls_certificate", "tls_key"
)
def reload(process: int, **options: Any) -> None:
    """Make the collector with the ID PROCESS read its files again, if all of them are valid.

    The files are the registries, the upload keys, the stops and the TLS certificate. If a file is
    invalid, or a file of candidates of the registry is missing, the command says which one, and the
    collector goes on with the contents that it has. The command reads the settings of `serve`, from
    the same file and the same variables.

    The exit code is 2 if a file is invalid, or no such process exists.
    """
    settings = read_settings(options)
    inputs = InputFiles.read(settings, today=utc_today())
    inputs.check_candidate_files(settings, today=utc_today())
    try:
        os.kill(process, signal.SIGHUP)
    except OSError as error:
        raise ConfigError(
            f"process must be the ID of a running collector, got {process}: {error.strerror}"
        ) from None
    click.echo(f"{settings.registry}: collector {process} reads its files again")
