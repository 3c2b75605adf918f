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
from rappor.privacy.notice import describe_losses, describe_segments
from rappor.protocol.encodings import encoder, parse_value
from rappor.protocol.randomizer import SECRET_BYTES, Coins, system_coins
from rappor.protocol.wire import Upload
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
    """The body of the upload of one value, and sentences about what it reveals."""

    body: bytes
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Show the bytes, and then what they reveal."""
        return "\n".join([self.body.decode(), "", *self.sentences])


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
    metric = registry.metric(name)
    metric.check_active(today)
    value, own = parse_value(metric.params, text), secret or os.urandom(SECRET_BYTES)
    encoded = encode_value(own, metric, value, epoch=metric.epoch_at(today), coins=coins)
    body = Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()
    told = ["The id, the cohort and the bits are random. Each device has others."]
    if not encoder(metric.params).fits(value):
        told += [f"{metric.name} has no place for this value: the report holds noise only."]
    told += [*describe_segments(metric), *describe_losses(metric)]
    return Preview(body=body, sentences=tuple(told))


COMMAND: Final = Command(
    run=run,
    summary="Show what would leave a device for a value, and what it reveals.",
    details="Nothing is written and nothing is sent. The secret is a new one each time.",
    example="rappor-client preview metrics.toml search_engine duckduckgo.com",
    arguments=(
        REGISTRY,
        argument("metric", metavar="METRIC", help="The metric that the value belongs to."),
        argument("value", metavar="VALUE", help="A value."),
        SEGMENT,
    ),
)
