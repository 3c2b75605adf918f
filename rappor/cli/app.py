"""Command group `rappor`: its commands, the translation of errors into sentences, and exit codes.

The exit codes:

    code   meaning               example
    0      done
    1      the answer is no      no reports, or an audit that found a fault
    2      wrong use or input    a misspelt option, or a missing file
    130    interrupted           Ctrl-C
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class

from rappor.base.errors import CollectorError, DecodeError, MissingExtraError, RapporError
from rappor.cli.collecting.aggregate import aggregate
from rappor.cli.collecting.pull import pull
from rappor.cli.commands import Group, command, show_refusal
from rappor.cli.more.convert import convert
from rappor.cli.more.sql import sql
from rappor.cli.more.trust import trust
from rappor.cli.options import argument_field
from rappor.cli.planning.collects import collects
from rappor.cli.planning.datasheet import datasheet
from rappor.cli.planning.plan import plan
from rappor.cli.planning.privacy import privacy
from rappor.cli.proving.audit import FaultFoundError, audit
from rappor.cli.reading.associate import associate
from rappor.cli.reading.compare import compare
from rappor.cli.reading.decode import decode
from rappor.cli.reading.discover import discover
from rappor.cli.reading.publish import publish
from rappor.cli.reading.trend import trend
from rappor.cli.trying.demo import demo
from rappor.cli.trying.encode import encode
from rappor.cli.trying.simulate import simulate

NO_ANSWER, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes other than 0. Scripts depend on the numbers. 130 is the convention of shells: 128 and
the number of SIGINT."""

_NO_ANSWER_ERRORS: Final = (CollectorError, DecodeError, FaultFoundError)
"""Errors after which the exit code is 1. The command line is right, but the question has no answer,
or the answer is no."""


@command("rappor completion bash > rappor.bash")
def completion(*, shell: str = argument_field(type=click.Choice(["bash", "zsh", "fish"]))) -> None:
    """Print the completion script of bash, zsh or fish.

    Source it in the start file of the shell, such as ~/.bashrc.
    """
    script_class = get_completion_class(shell)
    # click supports exactly the three shells that the argument allows.
    assert script_class is not None
    click.echo(script_class(cli, {}, "rappor", "_RAPPOR_COMPLETE").source())


STEPS: Final = {
    "Try": (demo, simulate, encode),
    "Plan": (plan, privacy, collects, datasheet),
    "Collect": (aggregate, pull),
    "Read": (decode, discover, associate, compare, trend, publish),
    "Prove": (audit,),
    "More": (trust, sql, convert, completion),
}
"""Commands by their heading on the help page. Headings and commands stand in the order of work."""


@click.group(
    cls=Group,
    steps=STEPS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=("rappor demo --seed 1", "rappor privacy --profile balanced"),
)
@click.version_option(package_name="rappor", prog_name="rappor", message="%(prog)s %(version)s")
def cli() -> None:
    """Learn which strings are common among many devices without learning anyone's.

    Start with `rappor demo`. Every command explains itself with --help.

    Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. An error becomes one sentence.

    Parameters
    ----------
    arguments : the words after `rappor`, or None for the words of the process.
    """
    try:
        typed = tuple(sys.argv[1:] if arguments is None else arguments)
        # `obj` is the object that commands find in click's context: the words of the command line.
        # `rappor decode --html` prints them in its report.
        cli.main(args=typed, prog_name="rappor", standalone_mode=False, obj=typed)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        show_refusal(error, "rappor")
        return USAGE
    except RapporError as error:
        return _fail(str(error), NO_ANSWER if isinstance(error, _NO_ANSWER_ERRORS) else USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rappor"):
            raise
        # Case: numpy or scipy is missing. A command imports the packages of the extra `analysis`
        # only when it runs, so that the help works without them.
        return _fail(str(MissingExtraError("analysis")), USAGE)
    except BrokenPipeError:
        # Case: the reader of standard output has ended, as in `rappor decode ... | head`.
        # `run_command` ends the process without a message.
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}", USAGE)
    return 0


def _fail(sentence: str, code: int) -> int:
    """Write a sentence to standard error, and return an exit code."""
    click.echo(f"rappor: {sentence}", err=True)
    return code
