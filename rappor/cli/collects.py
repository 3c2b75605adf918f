"""`rappor collects`: for the people whose devices report."""

from __future__ import annotations

import datetime
import textwrap

import click

from rappor.cli.commands import Command
from rappor.cli.options import registry_option
from rappor.privacy.notice import describe
from rappor.registry.registry import Registry

_WIDTH = 92


@click.command(
    cls=Command,
    examples=(
        "rappor collects --registry metrics.toml",
        "rappor collects theme --registry metrics.toml",
    ),
)
@registry_option()
@click.argument("names", nargs=-1, metavar="[METRICS]")
def collects(*, registry_path: str, names: tuple[str, ...]) -> None:
    """Say in plain words what each metric collects.

    The text is for the people whose devices report: what is collected, by whom, until when,
    and under which guarantee. Without METRICS all metrics of the registry are described.
    """
    registry = Registry.load(registry_path)
    today = datetime.datetime.now(datetime.UTC).date()
    chosen = [registry.metric(name) for name in names or registry]
    click.echo("\n\n".join(_wrap(describe(metric, today=today)) for metric in chosen))


def _wrap(text: str) -> str:
    """Break lines that are too long to read, and indent what follows."""
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in text.splitlines()
    )
