"""The group of all commands, and its exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class

from rappor.base.errors import RapporError
from rappor.cli.commands import Group, show_refusal
from rappor_server.cli.check import check
from rappor_server.cli.database import backup, export, migrate, prune, restore
from rappor_server.cli.demo import demo
from rappor_server.cli.publish import publish
from rappor_server.cli.serve import serve
from rappor_server.cli.tokens import token

_NAME: Final = "rappor-server"
_FAILED: Final = 2
_INTERRUPTED: Final = 130


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        "rappor-server demo",
        "rappor-server check metrics.toml",
        "rappor-server serve metrics.toml",
        "rappor-server token create --registry metrics.toml",
    ),
)
@click.version_option(package_name="rappor", prog_name=_NAME)
def server() -> None:
    """Collect noisy reports, keep their sums, and answer analysts.

    Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
    """


@server.command(
    examples=(
        'eval "$(rappor-server completion bash)"',
        "rappor-server completion fish > rappor-server.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a SHELL complete the commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None  # click ships these three
    click.echo(kind(server, {}, _NAME, "_RAPPOR_SERVER_COMPLETE").source())


for command in (demo, serve, check, token, migrate, prune, backup, restore, export, publish):
    server.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors become one sentence."""
    try:
        result = server.main(arguments, prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Abort:
        return _INTERRUPTED
    except click.ClickException as error:
        show_refusal(error, _NAME)
        return _FAILED
    except RapporError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of standard output has gone: see `run_command`
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}")
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    click.echo(f"{_NAME}: {sentence}", err=True)
    return _FAILED
