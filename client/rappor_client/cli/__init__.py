"""The `rappor-client` command: for people and developers, one file a command.

Exit codes: 0 done, 1 not done, 2 usage (a wrong argument, file or entry), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from rappor.ground.errors import RapporError
from rappor_client.cli import handles, preview, reset, send, show
from rappor_client.cli.parser import program

COMMANDS: Final = {
    "show": show.COMMAND,
    "reset": reset.COMMAND,
    "send": send.COMMAND,
    "preview": preview.COMMAND,
    "handles": handles.COMMAND,
}
DONE: Final = 0
NOT_DONE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without words, those of the process."""
    chosen = program(COMMANDS).parse_args(words)
    try:
        return DONE if chosen.run(chosen) else NOT_DONE
    except RapporError as error:
        print(f"rappor-client: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE
