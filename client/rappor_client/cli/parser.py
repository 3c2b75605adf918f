"""The parser of `rappor-client`: commands as records, help in whole sentences."""

from __future__ import annotations

import argparse
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from rappor_client.version import installed_version

PROGRAM: Final = "rappor-client"

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""What `ArgumentParser.add_argument` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command; `run` returns whether it did what was asked."""

    run: Callable[[Namespace], bool]
    summary: str
    details: str
    example: str
    arguments: tuple[Argument, ...]


class _Parser(argparse.ArgumentParser):
    """A parser with the one option that every command has."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self.add_argument("-h", "--help", action="help", help="Print this help.")

    def error(self, message: str) -> NoReturn:
        """End with the usage and the sentence, which begins like every other error."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{PROGRAM}: {message}\n")


def argument(*names: str, **settings: Any) -> Argument:
    """Note an argument of a command."""
    return names, settings


def program(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog=PROGRAM,
        description="See what a device has sent and spent, erase it, or build one in.\n\n"
        "Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.",
        epilog=_examples(f"{PROGRAM} show ~/.local/share/myapp/telemetry"),
    )
    version = f"{PROGRAM} {installed_version()}".rstrip()
    parser.add_argument("--version", action="version", version=version, help="Print the version.")
    added = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name, command in commands.items():
        own = added.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary}\n\n{command.details}",
            epilog=_examples(command.example),
        )
        own.set_defaults(run=command.run)
        for names, settings in command.arguments:
            own.add_argument(*names, **settings)
    return parser


def seconds(text: str) -> float:
    """Read a number of seconds, for `type=`."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a number of seconds above 0, got {text!r}")
    return value


def _examples(text: str) -> str:
    """Return the end of a command's help: lines that a shell runs as they stand."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in text.splitlines())


def _property(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, got {text!r}")
    return name, value


FOLDER: Final = argument(
    "folder",
    type=Path,
    metavar="FOLDER",
    help="The folder in which the program keeps its telemetry.",
)
REGISTRY: Final = argument(
    "registry", type=Path, metavar="REGISTRY", help="The registry, a TOML file."
)
SEGMENT: Final = argument(
    "--segment",
    action="append",
    default=[],
    type=_property,
    metavar="NAME=VALUE",
    help="A public property of the devices, for a metric with segments. May be repeated.",
)
