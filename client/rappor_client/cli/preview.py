"""`rappor-client preview`: print the upload of a value, and what the upload reveals.

The command writes and sends nothing, so it may run before a person has agreed.
"""

from __future__ import annotations

import datetime
import os
from argparse import Namespace
from dataclasses import dataclass
from typing import Final

from rappor.encode import describe_unrepresentable_value, encode_value
from rappor.privacy.notice import describe_losses, describe_segments
from rappor.protocol.encodings import get_encoder
from rappor.protocol.randomizer import SECRET_BYTES, draw_system_coins
from rappor.protocol.responses.response import Coins
from rappor.protocol.wire import Upload
from rappor.registry.registry import Registry
from rappor_client.cli.parser import REGISTRY, SEGMENT, Command, declare_argument


def run(args: Namespace) -> bool:
    """Print the bytes of an upload, and sentences about what they reveal."""
    registry = Registry.load(args.registry).in_segment(dict(args.segment))
    today = datetime.datetime.now(datetime.UTC).date()
    value = get_encoder(registry.metric(args.metric).params).parse_arguments(args.values)
    print(make_preview(registry, args.metric, value, today=today))  # noqa: T201 - output
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The body of the upload of one value, and sentences about what it reveals."""

    body: bytes
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Return the bytes, then the sentences."""
        return "\n".join([self.body.decode(), "", *self.sentences])


def make_preview(
    registry: Registry,
    name: str,
    value: object,
    *,
    today: datetime.date,
    secret: bytes | None = None,
    coins: Coins = draw_system_coins,
) -> Preview:
    """Return the upload that a device would send for a value.

    Parameters
    ----------
    registry
        Registry of the program.
    name
        Name of the metric.
    value
        The value, as a program records it.
    today
        Day of the report, which determines the epoch.
    secret
        Secret of the device; None draws a new one.
    coins
        Source of the instantaneous response's random integers.

    Raises
    ------
    MetricError
        The metric is unknown or has expired.
    ReportError
        The value is of the wrong kind.
    """
    metric = registry.metric(name)
    metric.check_active(today)
    secret = secret or os.urandom(SECRET_BYTES)
    encoded = encode_value(secret, metric, value, epoch=metric.epoch_at(today), coins=coins)
    body = Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()
    sentences = [
        "The id is random and new for each upload, so that a repeated upload is counted once.",
        "Each device draws its own cohort and bits at random.",
    ]
    if not get_encoder(metric.params).is_representable(value):
        sentences += [f"Warning: {describe_unrepresentable_value(metric)}."]
    sentences += [*describe_segments(metric), *describe_losses(metric)]
    return Preview(body=body, sentences=tuple(sentences))


COMMAND: Final = Command(
    run=run,
    summary="Show what would leave a device for a value, and what it reveals.",
    details="Nothing is written and nothing is sent. The secret is a new one each time.",
    example="rappor-client preview metrics.toml search_engine duckduckgo.com",
    arguments=(
        REGISTRY,
        declare_argument("metric", metavar="METRIC", help="The metric that the value belongs to."),
        declare_argument(
            "values",
            metavar="VALUE",
            nargs="+",
            help="A value. Of a tuple, FIELD=VALUE for each field; of a set, its items, or '' for "
            "the empty set.",
        ),
        SEGMENT,
    ),
)
