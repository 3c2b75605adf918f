"""The `rappor-client` command.

Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; without words, those of the process."""
    try:
        from rappor.base.streams import run_command  # noqa: PLC0415 - imports take a while
        from rappor_client.cli.app import run  # noqa: PLC0415 - likewise

        return run_command("rappor-client", lambda: run(words))
    except KeyboardInterrupt:
        return INTERRUPTED
