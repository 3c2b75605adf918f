"""The commands of `rappor-client`, one module each, and the exit code of a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rappor.base.errors import RapporError
from rappor_client.cli import preview, reset, send, show
from rappor_client.cli.parser import build_parser

COMMANDS: Final = {
    "show": show.COMMAND,
    "reset": reset.COMMAND,
    "send": send.COMMAND,
    "preview": preview.COMMAND,
}
"""Commands by name. The help shows the commands in this order."""
DONE: Final = 0
"""Exit code: the command did its work, and its answer is yes."""
NOT_DONE: Final = 1
"""Exit code: the answer is no, such as an unconfirmed erasure or a refused report."""
USAGE: Final = 2
"""The program exits with this code if arguments or input are wrong, as argparse does."""


def run(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    `words` are the words after the program's name; None takes the words of the process.
    """
    args = build_parser(COMMANDS).parse_args(words)
    try:
        return DONE if args.run(args) else NOT_DONE
    except RapporError as error:
        print(f"rappor-client: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return USAGE
