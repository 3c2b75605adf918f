"""The parser of `rappor-client`: help in whole sentences, and suggestions for typing mistakes."""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from rappor_client.version import installed_version

__all__ = ["CommandParser", "Namespace", "ProgramParser", "seconds", "suggestion"]

PROGRAM: Final = "rappor-client"


class CommandParser(argparse.ArgumentParser):
    """A parser that knows its own arguments, and suggests one for a mistyped word."""

    def __init__(self, **settings: Any) -> None:
        """Add the one option that every command has."""
        self.arguments: list[argparse.Action] = []
        super().__init__(
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        self.add_argument("-h", "--help", action="help", help="Print this help.")

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument and remember it."""
        action = super().add_argument(*names, **settings)
        self.arguments.append(action)
        return action

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

    @property
    def options(self) -> list[str]:
        """Every spelling of every option."""
        return [name for action in self.arguments for name in action.option_strings]


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

    def parse(self, words: Sequence[str]) -> Namespace:
        """Parse the words, or end the process with code 2 and what was probably meant."""
        plain = [word for word in words if not word.startswith("-")]
        if plain and plain[0] not in self.commands:
            self.error(f"unknown command {plain[0]!r}; {suggestion(plain[0], self.commands)}")
        if plain:
            command = self.commands[plain[0]]
            for word in _options_of(words):
                if word not in command.options + self.options:
                    hint = suggestion(word, command.options)
                    command.error(f"unknown option {word!r}; {hint}")
        return self.parse_args(words)


def examples(text: str) -> str:
    """Return the end of a command's help: lines that a shell runs as they stand."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in text.splitlines())


def suggestion(word: str, names: Collection[str]) -> str:
    """Return the name that comes close to a mistyped word, as a question, or all names."""
    import difflib  # noqa: PLC0415 - for mistakes only

    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"


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


def _options_of(words: Sequence[str]) -> list[str]:
    """Return the long options among the words, without their values."""
    ends = words.index("--") if "--" in words else len(words)
    return [word.partition("=")[0] for word in words[:ends] if word.startswith("--")]
