"""The parser of the command line `rappor-client`, built from one `Command` for each command.

A command is declared in its own module, without a parser, because the parser of all commands is
built later, from a table of all commands (`build_parser`).
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from rappor_client.version import installed_version

PROGRAM: Final = "rappor-client"
"""Name of the command. Every message of the parser begins with it."""

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Names and settings that `ArgumentParser.add_argument` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Attributes
    ----------
    run
        Runs the command and returns True if it did its work. It returns False if the result is
        negative, for example if the person did not confirm. The exit code is then 1.
    summary
        One sentence for the list of commands.
    details
        Text below the summary in the help of the command.
    example
        Command lines that a shell runs as they stand.
    arguments
        Arguments and options.
    """

    run: Callable[[Namespace], bool]
    summary: str
    details: str
    example: str
    arguments: tuple[Argument, ...]


class _Parser(argparse.ArgumentParser):
    """A parser that accepts -h and --help and no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self.add_argument("-h", "--help", action="help", help="Print this help.")

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with code 2.

        Every error of the program begins with the name of the program, as scripts expect.
        """
        self.print_usage(sys.stderr)
        self.exit(2, f"{PROGRAM}: {message}\n")


def declare_argument(*names: str, **settings: Any) -> Argument:
    """Return an argument of a command. `build_parser` adds it to the parser of the command."""
    return names, settings


def build_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the command line, with a subparser for each command."""
    parser = _Parser(
        prog=PROGRAM,
        description="Show what a device has sent and spent, erase it, preview or send reports.\n\n"
        "Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.",
        epilog=_format_examples(f"{PROGRAM} show ~/.local/share/myapp/telemetry"),
    )
    version = f"{PROGRAM} {installed_version()}".rstrip()
    parser.add_argument("--version", action="version", version=version, help="Print the version.")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name, command in commands.items():
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary}\n\n{command.details}",
            epilog=_format_examples(command.example),
        )
        subparser.set_defaults(run=command.run)
        for names, settings in command.arguments:
            subparser.add_argument(*names, **settings)
    return parser


def parse_seconds(text: str) -> float:
    """Return a number of seconds above 0, for `type=` of an argument."""
    # For a ValueError, argparse would print the name of this function.
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= threading.TIMEOUT_MAX:  # also false for NaN
        raise argparse.ArgumentTypeError(f"it must be a number of seconds above 0, got {text!r}")
    return value


def _format_examples(text: str) -> str:
    """Return the section Examples of a help: command lines that a shell runs as they stand."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in text.splitlines())


def _parse_property(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE, for `type=` of an argument."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, got {text!r}")
    return name, value


# Arguments that several commands share.
FOLDER: Final = declare_argument(
    "folder",
    type=Path,
    metavar="FOLDER",
    help="The folder in which the program keeps its telemetry.",
)
REGISTRY: Final = declare_argument(
    "registry", type=Path, metavar="REGISTRY", help="The registry, a TOML file."
)
SEGMENT: Final = declare_argument(
    "--segment",
    action="append",
    default=[],
    type=_parse_property,
    metavar="NAME=VALUE",
    help="A property of the devices that the collector may know, such as country=DE, for a "
    "metric with segments. May be repeated.",
)
