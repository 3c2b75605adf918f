"""`rappor-client preview`: what a value would send."""

from __future__ import annotations

import datetime
from argparse import Namespace
from typing import Final

from rappor.registry.registry import Registry
from rappor_client.cli.parser import REGISTRY, SEGMENT, Command, argument
from rappor_client.developer.preview import preview


def run(chosen: Namespace) -> bool:
    """Print the bytes and what they reveal."""
    registry = Registry.load(chosen.registry).in_segment(dict(chosen.segment))
    today = datetime.datetime.now(datetime.UTC).date()
    print(preview(registry, chosen.metric, chosen.value, today=today))  # noqa: T201 - output
    return True


COMMAND: Final = Command(
    run=run,
    summary="Show what would leave a device for a value, and what it reveals.",
    details="Nothing is written and nothing is sent. The secret is a new one each time.",
    example="rappor-client preview metrics.toml search_engine duckduckgo.com",
    arguments=(
        REGISTRY,
        argument("metric", metavar="METRIC", help="The metric that the value belongs to."),
        argument("value", metavar="VALUE", help="A value. Separate flags by commas."),
        SEGMENT,
    ),
)
