"""Help pages: summaries that are never cut, examples at the end, and hints for typos."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import click


def _show_all(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        for each in context.command.params:
            if isinstance(each, click.Option):
                each.hidden = False
        click.echo(context.get_help())
        context.exit()


help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)


class Command(click.Command):
    """A command with examples, one command line each; a line that begins with # explains."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        """Keep the examples beside what click keeps."""
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 - the caller wraps it
        """Return the first paragraph of the help, whole."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are, unwrapped."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(Command, click.Group):
    """A group of commands that hints at the one that was meant."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; a usage error with a hint if none."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)
