"""The group of all commands of `rappor-server`, and their exit codes.

A command prints results on standard output. An error is one sentence on standard error, never a
traceback, because operators run the commands from timers and read the sentence in the journal:

    rappor-server: metrics.toml: it does not exist
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class

from rappor.base.errors import RapporError
from rappor.cli.commands import Group, show_refusal
from rappor_server.cli.check import check
from rappor_server.cli.database_commands import backup, export, forget, migrate, prune, restore
from rappor_server.cli.demo import demo
from rappor_server.cli.healthy import healthy
from rappor_server.cli.publish import publish
from rappor_server.cli.reload import reload
from rappor_server.cli.serve import serve
from rappor_server.cli.token_commands import token

_NAME: Final = "rappor-server"
"""Name of the program in messages and help pages."""
_FAILED: Final = 2
"""Exit code that means wrong use, wrong input, or a database that fails."""
_INTERRUPTED: Final = 130
"""Exit code that means Ctrl-C: 128 plus the number of SIGINT, the convention of shells."""


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
@click.version_option(package_name="rappor", prog_name=_NAME, message="%(prog)s %(version)s")
def server() -> None:
    """Receive noisy reports, add them to counts, and serve analysts.

    Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
    """
    # The answer is no: `healthy` gets no response, `check` refuses a registry, or `token revoke`
    # finds no token. `serve` has the further exit code 3 (`cli/serve.py`).


@server.command(
    examples=(
        'eval "$(rappor-server completion bash)"',
        "rappor-server completion fish > rappor-server.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL."""
    script_class = get_completion_class(shell)
    assert script_class is not None  # click supports these three shells by itself
    click.echo(script_class(server, {}, _NAME, "_RAPPOR_SERVER_COMPLETE").source())


for command in (
    demo,
    serve,
    reload,
    healthy,
    check,
    token,
    migrate,
    prune,
    backup,
    restore,
    forget,
    export,
    publish,
):
    server.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; print an error as one sentence.

    `arguments` are the words after the name of the program; None takes them from `sys.argv`.
    """
    try:
        # In its standalone mode, click would print errors in its own form and exit with its own
        # codes.
        result = server.main(arguments, prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Abort:
        return _INTERRUPTED
    except click.ClickException as error:
        show_refusal(error, _NAME)
        return _FAILED
    except RapporError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The program that read standard output has ended, such as `head`. `run_command`, which
        # calls this function, ends the command without a message. BrokenPipeError is an OSError, so
        # the next branch would print a message.
        raise
    except OSError as error:
        # A file cannot be read or written: it does not exist, is not allowed, or the disk is full.
        path = f"{error.filename}: " if error.filename else ""
        return _fail(f"{path}{error.strerror or error}")
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    """Print a sentence on standard error, and return the exit code of a failure."""
    click.echo(f"{_NAME}: {sentence}", err=True)
    return _FAILED
