"""The command `rappor-client`.

Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C. Shells define it as 128 plus the number of the signal."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    `words` are the words after the program's name; None takes the words of the process.
    """
    # The imports stand inside the block: Ctrl-C during a slow import must not print a traceback.
    try:
        from rappor.base.streams import run_command  # noqa: PLC0415 - see above
        from rappor_client.cli.command_line import run  # noqa: PLC0415 - likewise

        return run_command("rappor-client", lambda: run(words))
    except KeyboardInterrupt:
        return INTERRUPTED
