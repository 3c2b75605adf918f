"""The `rappor-server` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Without the extra `server`, name the extra and exit with 2."""
    try:
        from rappor_server.cli.command_group import run
    except ModuleNotFoundError as error:
        # A missing module of our own is a damaged installation and no missing extra.
        if (error.name or "").startswith("rappor"):
            raise
        from rappor.base.errors import MissingExtraError

        sys.stderr.write(f"rappor-server: {MissingExtraError('server')}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        # The imports take a second. Ctrl-C in this second would print a traceback.
        sys.exit(130)
    from rappor.base.streams import run_command

    sys.exit(run_command("rappor-server", run))
