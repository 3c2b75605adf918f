"""`rappor-client handles`: code that records the metrics of a registry by attributes with types."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from rappor.ground.errors import FileError, ParamsError
from rappor.ground.files import saved
from rappor.registry.registry import Registry
from rappor_client.cli.parser import REGISTRY, Command, argument
from rappor_client.developer.handle_files import ENDINGS, handles_of


def run(chosen: Namespace) -> bool:
    """Write the file."""
    if chosen.out.suffix not in ENDINGS:
        raise ParamsError(f"--out must end in {' or '.join(ENDINGS)}, got {chosen.out.name!r}")
    registry = Registry.load(chosen.registry)
    text = handles_of(registry, chosen.registry.name, chosen.out.suffix)
    try:
        saved(text, chosen.out)
    except OSError as error:
        raise FileError(chosen.out, error.strerror or "it cannot be written") from None
    return True


COMMAND: Final = Command(
    run=run,
    summary="Write code that records the metrics of a registry.",
    details=(
        "A misspelt metric or category in your program is then an error in your type\n"
        "checker. Run the command again when the registry changes."
    ),
    example=(
        "rappor-client handles metrics.toml --out metrics.py\n"
        "rappor-client handles metrics.toml --out metrics.ts"
    ),
    arguments=(
        REGISTRY,
        argument(
            "--out",
            required=True,
            type=Path,
            metavar="FILE",
            help="The file to write: Python if it ends in .py, TypeScript if in .ts.",
        ),
    ),
)
