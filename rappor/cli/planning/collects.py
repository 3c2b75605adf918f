"""`rappor collects`: privacy notices of metrics, for the people whose devices report.

With --json the command prints the sealed registry: the whole registry as JSON with its computed
fingerprints and notices. The client in JavaScript loads it, because it cannot read TOML.
"""

from __future__ import annotations

import datetime
import math
import textwrap
from typing import Final

import click

from rappor.cli.commands import command
from rappor.cli.options import argument_field, json_option, registry_option
from rappor.privacy.notice import privacy_notice
from rappor.registry.registry import Registry
from rappor.registry.sealed_json import format_sealed_json

_WIDTH: Final = 92
"""Largest number of columns of a printed line. Longer lines of text are hard to read."""


@command(
    "rappor collects --registry metrics.toml",
    "rappor collects theme --registry metrics.toml",
    "rappor collects --registry metrics.toml --json > registry.json",
)
def collects(
    *,
    registry_path: str = registry_option(),
    as_json: bool = json_option(),
    names: tuple[str, ...] = argument_field(nargs=-1, metavar="[METRICS]"),
) -> None:
    """Say in plain words what each metric collects.

    The text is for the people whose devices report. It states the purpose, the owner and the last
    day of the collection, and the protection of the values. Without METRICS the command describes
    all metrics of the registry and adds up their privacy losses for a device.

    With --json the command prints the whole registry for devices that run JavaScript.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    registry = Registry.load(registry_path, today=today)
    if as_json:
        if names:
            raise click.UsageError("METRICS must be omitted with --json, which prints all metrics")
        notices = {name: privacy_notice(metric) for name, metric in registry.items()}
        click.echo(format_sealed_json(registry, notices))
        return
    requested = dict.fromkeys(registry.metric(name).name for name in names or registry)
    texts = [privacy_notice(registry[name], today=today) for name in requested]
    if not names:
        texts.append(_describe_total_loss(registry))
    click.echo("\n\n".join(map(_wrap, texts)))


def _describe_total_loss(registry: Registry) -> str:
    """Return a sentence about the loss of all metrics of a registry in a calendar year."""
    reserved = math.fsum(reservation.total for reservation in registry.reserved)
    if math.isinf(reserved):
        return "WARNING: the privacy loss of all metrics together in a calendar year has no limit."
    return (
        f"All metrics together: at most {reserved:g} nats of privacy loss in a calendar year, for "
        "each device. If you have several devices, their losses add up."
    )


def _wrap(text: str) -> str:
    """Break long lines, and indent their continuations."""
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in text.splitlines()
    )
