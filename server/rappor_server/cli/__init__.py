"""The `rappor-server` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its extra, say which one to install."""
    try:
        from rappor_server.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rappor"):
            raise
        from rappor.base.errors import MissingExtraError

        sys.stderr.write(f"rappor-server: {MissingExtraError('server')}\n")
        sys.exit(2)
    except KeyboardInterrupt:  # imports take a second
        sys.exit(130)
    from rappor.base.streams import run_command

    sys.exit(run_command("rappor-server", run))
