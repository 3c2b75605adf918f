"""`rappor-client preview`: what would leave a device, before anybody has agreed.

Nothing is written or sent.
"""

from __future__ import annotations

import datetime
import os
from argparse import Namespace
from dataclasses import dataclass
from typing import Final

from rappor.encode import encode_value
from rappor.privacy.notice import describe_together, losses, told_beside
from rappor.protocol.encodings import encoder, parse_value
from rappor.protocol.randomizer import SECRET_BYTES, Coins, system_coins
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.cli.parser import REGISTRY, SEGMENT, Command, argument


def run(chosen: Namespace) -> bool:
    """Print the bytes and what they reveal."""
    registry = Registry.load(chosen.registry).in_segment(dict(chosen.segment))
    today = datetime.datetime.now(datetime.UTC).date()
    print(preview_of(registry, chosen.metric, chosen.value, today=today))  # noqa: T201 - output
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The bodies of the uploads of one value, and what they reveal, a sentence each."""

    bodies: tuple[bytes, ...]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Show the bytes, and then what they reveal."""
        return "\n".join([*(body.decode() for body in self.bodies), "", *self.sentences])


def preview_of(
    registry: Registry,
    name: str,
    text: str,
    *,
    today: datetime.date,
    secret: bytes | None = None,
    coins: Coins = system_coins,
) -> Preview:
    """Return what a device would send for a value, under a new secret unless there is one.

    Raises MetricError for a metric that is unknown or has expired, and ReportError for a text that
    is no value of it.
    """
    registry.metric(name)
    metrics = [registry[each] for each in registry.together(name)]
    asked = metrics[0]
    asked.check_active(today)
    value, own = parse_value(asked.params, text), secret or os.urandom(SECRET_BYTES)

    def body(metric: Metric) -> bytes:
        encoded = encode_value(own, metric, value, epoch=asked.epoch_at(today), coins=coins)
        return Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()

    told = ["The id, the cohort and the bits are random. Each device has others."]
    if not encoder(asked.params).fits(value):
        told += [f"{asked.name} has no place for this value: the report holds noise only."]
    told += told_beside(asked)
    told += losses(asked) if len(metrics) == 1 else [describe_together(metrics)]
    return Preview(bodies=tuple(map(body, metrics)), sentences=tuple(told))


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
