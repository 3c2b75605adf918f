"""The command group, its commands and its exit codes.

Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted; README.md says more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class

from rappor.base.errors import CollectorError, DecodeError, MissingExtraError, RapporError
from rappor.cli.aggregate import aggregate
from rappor.cli.audit import FaultFoundError, audit
from rappor.cli.collects import collects
from rappor.cli.commands import Group, command, show_refusal
from rappor.cli.compare import compare
from rappor.cli.convert import convert
from rappor.cli.datasheet import datasheet
from rappor.cli.decode import decode
from rappor.cli.demo import demo
from rappor.cli.discover import discover
from rappor.cli.encode import encode
from rappor.cli.options import argument_field
from rappor.cli.plan import plan
from rappor.cli.privacy import privacy
from rappor.cli.publish import publish
from rappor.cli.pull import pull
from rappor.cli.simulate import simulate
from rappor.cli.sql import sql
from rappor.cli.trend import trend
from rappor.cli.trust import trust

NO_ANSWER, USAGE, INTERRUPTED = 1, 2, 130
_ANSWERS = (CollectorError, DecodeError, FaultFoundError)


@command("rappor completion bash > rappor.bash")
def completion(*, shell: str = argument_field(type=click.Choice(["bash", "zsh", "fish"]))) -> None:
    """Print the completion script of bash, zsh or fish.

    Source it in the start file of the shell, such as ~/.bashrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click ships these three
    click.echo(kind(cli, {}, "rappor", "_RAPPOR_COMPLETE").source())


STEPS: Final = {
    "Try": (demo, simulate, encode),
    "Plan": (plan, privacy, collects, datasheet),
    "Collect": (aggregate, pull),
    "Read": (decode, discover, compare, trend, publish),
    "Prove": (audit,),
    "More": (trust, sql, convert, completion),
}
"""The commands in the order of work."""


@click.group(
    cls=Group,
    steps=STEPS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=("rappor demo --seed 1", "rappor privacy --profile balanced"),
)
@click.version_option(package_name="rappor", prog_name="rappor")
def cli() -> None:
    """Learn which strings are common among many devices without learning anyone's.

    Start with `rappor demo`. Every command explains itself with --help.

    Exit codes: 0 done, 1 the answer is no, 2 wrong use or input, 130 interrupted.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors become one sentence.

    Without arguments it takes those of the process.
    """
    try:
        typed = tuple(sys.argv[1:] if arguments is None else arguments)
        cli.main(args=typed, prog_name="rappor", standalone_mode=False, obj=typed)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        show_refusal(error, "rappor")
        return USAGE
    except RapporError as error:
        return _fail(str(error), NO_ANSWER if isinstance(error, _ANSWERS) else USAGE)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rappor"):
            raise
        # Commands import the analyst's packages when they run.
        return _fail(str(MissingExtraError("analysis")), USAGE)
    except BrokenPipeError:  # the reader of standard output has gone: see `run_command`
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}", USAGE)
    return 0


def _fail(sentence: str, code: int) -> int:
    click.echo(f"rappor: {sentence}", err=True)
    return code
