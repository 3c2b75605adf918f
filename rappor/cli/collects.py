"""`rappor collects`: for the people whose devices report."""

from __future__ import annotations

import datetime

import click

from rappor.cli.console import registry_option
from rappor.collects import describe
from rappor.metric import Registry


@click.command()
@registry_option
@click.argument("names", nargs=-1, metavar="[METRIC]...")
def collects(registry_path: str, names: tuple[str, ...]) -> None:
    """Say in plain words what each metric collects, and under which guarantee."""
    registry = Registry.load(registry_path)
    today = datetime.datetime.now(datetime.UTC).date()
    chosen = [registry.metric(name) for name in names or registry]
    click.echo("\n\n".join(describe(metric, today=today) for metric in chosen))
