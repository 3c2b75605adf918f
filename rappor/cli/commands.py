"""Commands whose help shows whole sentences and ends with examples, and groups of them."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Sequence
from typing import Any

import click


class Explained(click.Command):
    """What commands and groups have in common: a summary that is never cut, and examples.

    The first paragraph of the docstring is the summary. `examples` are command lines as a shell
    reads them, broken by a backslash where they are long.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        """Take the examples beside what click takes."""
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002  # click would cut it there
        """Return the summary whole."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples where click writes an epilog."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(textwrap.indent(example, "  ") + "\n")


class Command(Explained):
    """A command of `rappor`."""


class Group(Explained, click.Group):
    """A group of commands that suggests the command that was probably meant."""

    command_class = Command

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Name what follows the group in its usage line."""
        super().__init__(*arguments, subcommand_metavar="COMMAND [OPTIONS]", **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which ones come close."""
        name = args[0]
        known = self.get_command(ctx, name) is not None
        if not (known or name.startswith("-") or ctx.resilient_parsing):
            close = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see --help for all commands"
            ctx.fail(f"unknown command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


Group.group_class = Group
