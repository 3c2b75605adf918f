"""The commands for people and developers, one file each, and what their end means."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rappor.base.errors import RapporError
from rappor_client.cli import preview, reset, send, show
from rappor_client.cli.parser import program

COMMANDS: Final = {
    "show": show.COMMAND,
    "reset": reset.COMMAND,
    "send": send.COMMAND,
    "preview": preview.COMMAND,
}
DONE: Final = 0
NOT_DONE: Final = 1
USAGE: Final = 2


def run(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without words, those of the process."""
    chosen = program(COMMANDS).parse_args(words)
    try:
        return DONE if chosen.run(chosen) else NOT_DONE
    except RapporError as error:
        print(f"rappor-client: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return USAGE
