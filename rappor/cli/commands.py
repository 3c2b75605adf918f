"""Commands and groups of click whose help pages have complete sentences and examples.

click cuts the summary of a command at 45 characters, has no place for examples, and names similar
options for every misspelt option, also if none of them is meant. The classes of this module change
these three behaviours. The programs `rappor` and `rappor-server` share the classes.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import click

from rappor.base.errors import ParamsError
from rappor.cli.options import list_typed_options, with_options


class DocumentedCommand(click.Command):
    """Base class of commands and groups whose help page has examples, and whose summary is not cut.

    The summary of a command is the first paragraph of the docstring of its function. The list of
    all commands shows it.

    Parameters
    ----------
    arguments, options : arguments of click.
    examples : command lines for a shell. A backslash breaks a long line.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        """Store the examples, and pass the other arguments to click."""
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002  # click would cut there
        """Return the complete summary."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples at the end of the help page."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(textwrap.indent(example, "  ") + "\n")


class Command(DocumentedCommand):
    """Command whose errors name options.

    Parameters
    ----------
    arguments, options : arguments of click.
    hints : sentences for unknown options, by the beginning of the option's name. A hint names the
        command that has the option.
    """

    def __init__(
        self, *arguments: Any, hints: Mapping[str, str] = MappingProxyType({}), **options: Any
    ) -> None:
        """Store the hints, and pass the other arguments to click."""
        super().__init__(*arguments, **options)
        self._hints = hints

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. The error of an unknown option contains its hint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for name, hint in self._hints.items():
                if error.option_name.startswith(name):
                    message = f"no such option {error.option_name}; {hint}"
                    raise click.UsageError(message, ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and replace the name of a parameter in an error by the option.

        Case: the library raises "epsilon_1 must be ...". The person has typed --epsilon-1 and knows
        no epsilon_1, so the message becomes "--epsilon-1 must be ...".
        """
        try:
            return super().invoke(ctx)
        except ParamsError as error:
            name, must, constraint = str(error).partition(" must be ")
            # The parameter may have the prefix "n_", which the option lacks, as in n_reports.
            typed = list_typed_options()
            flag = typed.get(name) or typed.get(name.removeprefix("n_"))
            if flag is None:
                raise
            raise ParamsError(f"{flag}{must}{constraint}") from None


def command(*examples: str, **settings: Any) -> Any:
    """Return a decorator that turns a function into a command.

    The default values of the function's arguments declare the options (`rappor.cli.options`).

    Parameters
    ----------
    examples : command lines for the help page.
    settings : further arguments of `Command`.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        as_command = click.command(cls=Command, examples=examples, **settings)
        return cast("click.Command", as_command(with_options(function)))

    return decorate


class Group(DocumentedCommand, click.Group):
    """Group of commands. The error of an unknown command names a similar command."""

    command_class = Command

    def __init__(
        self,
        *arguments: Any,
        steps: Mapping[str, Sequence[click.Command]] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Add the commands of `steps`, which the help page lists under headings."""
        super().__init__(*arguments, subcommand_metavar="COMMAND [OPTIONS]", **options)
        self._steps = steps
        for command in (command for commands in steps.values() for command in commands):
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the steps or of the alphabet."""
        if not self._steps:
            return super().list_commands(ctx)  # click sorts the names
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the commands under the headings of the steps."""
        if not self._steps:
            super().format_commands(ctx, formatter)
            return
        widest = max(map(len, self.commands))
        for title, commands in self._steps.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{item.name:<{widest}}", item.get_short_help_str()) for item in commands]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or raise a usage error that names a similar command."""
        name = args[0]
        is_known = self.get_command(ctx, name) is not None
        if not (is_known or name.startswith("-") or ctx.resilient_parsing):
            similar = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else "see --help for all commands"
            ctx.fail(f"unknown command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


def show_refusal(error: click.ClickException, program: str) -> None:
    """Write a usage error to standard error: the usage, then the sentence with the program."""
    context = getattr(error, "ctx", None)
    if context is not None:
        usage = f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n"
        click.echo(usage, err=True)
    # The message of NoArgsIsHelpError is the help page, which is no error sentence.
    if not isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(f"{program}: {error.format_message()}", err=True)
