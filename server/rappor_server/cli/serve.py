"""`rappor-server serve`: start a collector from a registry.

The start has five steps. How an operator sees an error depends on the step that fails:

    1. read settings and input files   one sentence on standard error, exit code 2
    2. logs.configure                  every line of the log is JSON from here on
    3. wait for the database, and
       create or check its tables      one sentence on standard error, exit code 2
    4. bind the addresses              one sentence on standard error, exit code 2
    5. open the collector              the line `start failed` in the log, exit code 3
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Final

import click

from rappor.cli.commands import Command
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.cli.setting_options import (
    add_help_all_option,
    add_setting_options,
    read_settings,
)
from rappor_server.storage.database import utc_today

_VISIBLE_SETTINGS: Final = {
    "database",
    "host",
    "port",
    "admin",
    "pages",
    "upload_key_file",
    "origins",
}
"""Settings whose options `--help` shows. `--help-all` shows all options."""
_OPTION_NAMES: Final = [
    field.name for field in dataclasses.fields(Settings) if field.name != "registry"
]
"""All settings that are options of `serve`. The registry is its argument, and not an option."""


@click.command(
    cls=Command,
    examples=(
        "rappor-server serve metrics.toml",
        "rappor-server serve metrics.toml --admin 127.0.0.1:9090 --pages",
    ),
)
@click.argument("registry", type=click.Path(), envvar="RAPPOR_SERVER_REGISTRY", required=False)
@add_setting_options(*_OPTION_NAMES, hidden=tuple(set(_OPTION_NAMES) - _VISIBLE_SETTINGS))
@add_help_all_option
def serve(**options: Any) -> None:
    """Run the collector for the metrics of a REGISTRY.

    Without options the collector listens on http://127.0.0.1:8080 and stores counts in an SQLite
    file beside the registry. The argument REGISTRY may be left out if the settings file names the
    registry.

    On SIGHUP the collector reads these files again: the registries, the upload keys, the stops
    (metrics that all devices skip until a day) and the TLS certificate. On SIGTERM it stores the
    uploads that it has received, and ends.

    The exit code is 2 if a setting or a file is invalid, an address is in use, or the database does
    not respond within --database-seconds. The exit code is 3 if the database fails afterwards,
    while the collector starts.
    """
    from rappor_server.base import logs

    settings = read_settings(options)
    # An invalid file must fail at once, and not after a minute of waiting for the database.
    inputs = InputFiles.read(settings, today=utc_today())
    # An invalid setting or file was reported as one sentence, for the person at the terminal. From
    # here on the process writes JSON, for the program that collects the logs.
    logs.configure()
    # Devices report without candidates, so the collector starts. Analysts would get no estimates of
    # the metric and the operator would see nothing.
    for missing in inputs.find_missing_candidates(settings, today=utc_today()):
        logs.log_event("candidates missing", level=logging.WARNING, **missing._asdict())
    prepare_database(settings)
    run_server(settings, inputs)


def prepare_database(settings: Settings) -> None:
    """Wait for the database, create the tables of an empty database, and check the schema.

    Raises
    ------
    StoreError
        The database did not respond in time, or has the schema of another version. A database with
        an older schema is not migrated here, because a migration may take long and copies the
        database. An operator runs `rappor-server migrate`.
    """
    from rappor_server.app.collector import wait_for_database
    from rappor_server.base import logs
    from rappor_server.storage.database import open_database
    from rappor_server.storage.schema_versions import check_schema, is_empty, migrate

    with open_database(settings.database) as engine:
        is_new = wait_for_database(lambda: is_empty(engine), seconds=settings.database_seconds)
        if is_new:
            migrate(settings.database)  # creates the tables, and has nothing to convert
            # The operator of an existing collection sees by this line that the path is mistyped.
            # The URL of PostgreSQL may contain a password.
            if engine.dialect.name == "sqlite":
                logs.log_event("database created", file=engine.url.database)
            else:
                logs.log_event("database created")
        check_schema(engine)


def run_server(settings: Settings, inputs: InputFiles) -> None:
    """Serve requests until a signal stops the process; complete the requests in progress."""
    from rappor_server.app.serving import Server, open_sockets

    with open_sockets(settings) as sockets:
        Server(settings, inputs, sockets).run()
