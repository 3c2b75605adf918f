"""The parser of `rappor-client`: help in whole sentences."""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rappor_client.version import installed_version

__all__ = ["CommandParser", "Namespace", "ProgramParser", "seconds"]

PROGRAM: Final = "rappor-client"


class CommandParser(argparse.ArgumentParser):
    """A parser with the arguments that several commands have."""

    def __init__(self, **settings: Any) -> None:
        """Add the one option that every command has."""
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self.add_argument("-h", "--help", action="help", help="Print this help.")

    def add_folder(self) -> None:
        """Add the folder that a command is about."""
        self.add_argument(
            "folder",
            type=Path,
            metavar="FOLDER",
            help="The folder in which the program keeps its telemetry.",
        )

    def add_registry(self) -> None:
        """Add the registry that a command reads."""
        self.add_argument(
            "registry", type=Path, metavar="REGISTRY", help="The registry, a TOML file."
        )

    def add_segment(self) -> None:
        """Add the public properties of the device that a command tries."""
        self.add_argument(
            "--segment",
            action="append",
            default=[],
            type=_property,
            metavar="NAME=VALUE",
            help="A public property of the devices, for a metric with segments. May be repeated.",
        )


class ProgramParser(CommandParser):
    """The parser of the whole command line."""

    def __init__(self) -> None:
        """Start without commands."""
        super().__init__(
            prog=PROGRAM,
            description="See what a device has sent and spent, erase it, or build one in.",
            epilog=examples(f"{PROGRAM} show ~/.local/share/myapp/telemetry"),
        )
        version = f"{PROGRAM} {installed_version()}".rstrip()
        self.add_argument("--version", action="version", version=version, help="Print the version.")
        self.commands: dict[str, CommandParser] = {}
        self._list = self.add_subparsers(
            title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
        )

    def add_command(
        self,
        name: str,
        run: Callable[[Namespace], bool],
        *,
        summary: str,
        details: str,
        example: str,
    ) -> CommandParser:
        """Add a command; `run` returns whether it did what was asked."""
        command = self._list.add_parser(
            name, help=summary, description=f"{summary}\n\n{details}", epilog=examples(example)
        )
        command.set_defaults(run=run)
        self.commands[name] = command
        return command


def examples(text: str) -> str:
    """Return the end of a command's help: lines that a shell runs as they stand."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in text.splitlines())


def seconds(text: str) -> float:
    """Read a number of seconds, for `type=`."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a number of seconds above 0, got {text!r}")
    return value


def _property(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"it must be NAME=VALUE, got {text!r}")
    return name, value
