"""The command group, its commands and its exit codes.

Exit codes: 0 done, 1 the question has no answer, 2 usage (a wrong argument, file or entry),
130 interrupted.
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from rappor.cli.aggregate import aggregate
from rappor.cli.collects import collects
from rappor.cli.decode import decode
from rappor.cli.demo import demo
from rappor.cli.encode import encode
from rappor.cli.params import params
from rappor.cli.simulate import simulate
from rappor.errors import DecodeError, RapporError

NO_ANSWER, USAGE, INTERRUPTED = 1, 2, 130


@click.group()
@click.version_option(package_name="rappor", prog_name="rappor")
def cli() -> None:
    """Learn which strings are common among many devices without learning anyone's.

    Start with `rappor demo`.
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL, to be sourced by it."""
    kind = get_completion_class(shell)
    assert kind is not None  # click ships these three
    click.echo(kind(cli, {}, "rappor", "_RAPPOR_COMPLETE").source())


for command in (demo, encode, simulate, aggregate, decode, params, collects):
    cli.add_command(command)


def run() -> None:
    """Run the command line and turn every error raised on purpose into one sentence."""
    try:
        cli.main(prog_name="rappor", standalone_mode=False)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.Abort:
        click.echo("rappor: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except RapporError as error:
        click.echo(f"rappor: {error}", err=True)
        sys.exit(NO_ANSWER if isinstance(error, DecodeError) else USAGE)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        click.echo(f"rappor: {name}{error.strerror or error}", err=True)
        sys.exit(USAGE)
