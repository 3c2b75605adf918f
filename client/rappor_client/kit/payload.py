"""The exact bytes that a device would send, and a sentence about what they reveal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rappor.encode import encode_value
from rappor.privacy.notice import describe_belief
from rappor.protocol.encodings import parse_value
from rappor.protocol.loss import epsilon_1
from rappor.protocol.wire import Upload
from rappor.registry.registry import Registry
from rappor_client.kit.host import METRIC


def describe_payload(
    registry: Registry, bodies: Sequence[bytes], collector: object
) -> Iterator[str]:
    """Yield lines with the uploads that may leave a device, or with an example upload.

    Parameters
    ----------
    registry
        Registry of the program.
    bodies
        Bodies of the queued uploads. Without any, the lines show an example.
    collector
        Address of the collector, or a transport.
    """
    destination = collector if isinstance(collector, str) else "the collector"
    if bodies:
        yield f"This goes to {destination}, each line as an upload of its own:"
        yield from (body.decode() for body in bodies)
    else:
        yield (
            f"Nothing waits. An example of what a device would send to {destination}, made up now:"
        )
        yield make_example(registry).decode()
    yield describe_disclosure(registry)


def make_example(registry: Registry) -> bytes:
    """Return the upload of a device with a new secret that has used the first listed name."""
    metric = registry[METRIC]
    value = parse_value(metric.params, (*metric.params.categories, *metric.listed)[0])
    encoded = encode_value(os.urandom(32), metric, value, epoch="0000-01")
    return Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()


def describe_disclosure(registry: Registry) -> str:
    """Return a sentence about what an observer can learn of one use from an upload."""
    loss = epsilon_1(registry[METRIC].params)
    return (
        f"What anybody could learn from it, the collector included: {describe_belief(loss)}. While "
        "it is received, the collector also sees the network address."
    )
