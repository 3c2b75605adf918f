"""Entry point of the `rappor-server` command.

The entry point imports as little as possible, so that a missing extra is named in one sentence. The
commands themselves import their modules inside of their functions: `rappor-server --help` and shell
completion would otherwise wait a second for SQLAlchemy and numpy.

- command_group: the group of all commands, and their exit codes
- setting_options: options for the settings of a collector
- serve, reload, healthy, check, publish, token_commands, database_commands, demo: the commands
- demo_devices, demo_metrics: devices and metrics of the demo
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line, and exit.

    Without the extra `server`, the command names the extra and exits with 2.
    """
    # SIGHUP asks a running collector to read its files again. A process without a handler for
    # SIGHUP is killed by it, and `serve` installs its handler only seconds later, when the
    # collector is open (`app/serving.py`). A reload during these seconds killed the collector.
    # Ignoring the signal loses nothing, because `serve` is just reading its files. Windows has no
    # SIGHUP.
    if sys.argv[1:2] == ["serve"] and hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from rappor_server.cli.command_group import run
    except ModuleNotFoundError as error:
        # A missing module of this project is a damaged installation, and not a missing extra. Its
        # traceback names the module.
        if (error.name or "").startswith("rappor"):
            raise
        from rappor.base.errors import MissingExtraError

        sys.stderr.write(f"rappor-server: {MissingExtraError('server')}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        # The imports take a second. Ctrl-C in this second would print a traceback. 130 is the
        # convention of shells for a command that Ctrl-C ended.
        sys.exit(130)
    from rappor.base.streams import run_command

    sys.exit(run_command("rappor-server", run))
