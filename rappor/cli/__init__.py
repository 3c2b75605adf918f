"""Command line `rappor`: one file for each command, in a package for each step of the work.

The commands compute nothing. They read arguments and files, call the library, and print records.
The packages `trying`, `planning`, `collecting`, `reading`, `proving` and `more` are the headings of
`rappor --help`. `app` joins the commands, `options` declares their options, `commands` writes their
help pages, and `console` prints their results.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    try:
        from rappor.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rappor"):
            raise
        # Case: click or rich is missing, because the package is installed without its extra `cli`.
        from rappor.base.errors import MissingExtraError

        sys.stderr.write(f"rappor: {MissingExtraError('cli')}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        # Case: a person presses Ctrl-C during the imports, which take a second.
        sys.exit(130)
    from rappor.base.streams import run_command

    sys.exit(run_command("rappor", run))
