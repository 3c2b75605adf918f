"""Commands whose help shows whole sentences and ends with examples, and groups of them."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import click

from rappor.base.errors import ParamsError
from rappor.cli.options import list_typed_options, with_options


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
    """A command of `rappor`; `elsewhere` says what answers options that begin with some text."""

    def __init__(
        self, *arguments: Any, elsewhere: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> None:
        """Take the options that other commands have, beside what click takes."""
        super().__init__(*arguments, **options)
        self._elsewhere = elsewhere

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; click would suggest any option that looks alike."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for name, hint in self._elsewhere.items():
                if error.option_name.startswith(name):
                    raise click.UsageError(
                        f"no such option {error.option_name}; {hint}", ctx
                    ) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a number that the library refuses gets the name of its option."""
        try:
            return super().invoke(ctx)
        except ParamsError as error:
            name, must, rest = str(error).partition(" must be ")
            typed = list_typed_options()
            flag = typed.get(name) or typed.get(name.removeprefix("n_"))
            if flag is None:
                raise
            raise ParamsError(f"{flag}{must}{rest}") from None


def command(*examples: str, **settings: Any) -> Any:
    """Return what makes a command of a function, whose arguments declare their options."""

    def decorate(function: Callable[..., None]) -> click.Command:
        as_command = click.command(cls=Command, examples=examples, **settings)
        return cast("click.Command", as_command(with_options(function)))

    return decorate


class Group(Explained, click.Group):
    """A group of commands that suggests the command that was probably meant."""

    command_class = Command

    def __init__(
        self,
        *arguments: Any,
        steps: Mapping[str, Sequence[click.Command]] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Take commands by the title under which the help page lists them."""
        super().__init__(*arguments, subcommand_metavar="COMMAND [OPTIONS]", **options)
        self._steps = steps
        for command in (each for some in steps.values() for each in some):
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of work."""
        return list(self.commands) if self._steps else super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, those of each step under its title."""
        if not self._steps:
            super().format_commands(ctx, formatter)
            return
        widest = max(map(len, self.commands))
        for title, some in self._steps.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{each.name:<{widest}}", each.get_short_help_str()) for each in some]
                )

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


def show_refusal(error: click.ClickException, program: str) -> None:
    """Write what is wrong with a command line like every other error, below the usage."""
    context = getattr(error, "ctx", None)
    if context is not None:
        usage = f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n"
        click.echo(usage, err=True)
    click.echo(f"{program}: {error.format_message()}", err=True)


Group.group_class = Group
