"""The literal bytes that a device would send, and one sentence of what they reveal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rappor.encode import encode_value
from rappor.privacy.notice import describe_belief
from rappor.protocol.loss import epsilon_1
from rappor.protocol.wire import Upload
from rappor.registry.registry import Registry
from rappor_client.kit.host import METRIC


def lines(registry: Registry, bodies: Sequence[bytes], collector: object) -> Iterator[str]:
    """Yield what waits as it would be sent; where nothing does, an example of a device made up."""
    where = collector if isinstance(collector, str) else "the collector"
    if bodies:
        yield f"This goes to {where}, each line as an upload of its own:"
        yield from (body.decode() for body in bodies)
    else:
        yield f"Nothing waits. An example of what a device would send to {where}, made up now:"
        yield example(registry).decode()
    yield what_it_reveals(registry)


def example(registry: Registry) -> bytes:
    """Return what a device with a new secret would send after the first name was used."""
    metric = registry[METRIC]
    value = (*metric.params.categories, *metric.listed)[0]
    encoded = encode_value(os.urandom(32), metric, value, epoch="0000-01")
    return Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()


def what_it_reveals(registry: Registry) -> str:
    """Say in one sentence what anybody could learn of one use from these bytes."""
    loss = epsilon_1(registry[METRIC].params)
    return (
        f"What anybody could learn from it, the collector included: {describe_belief(loss)}. While "
        "it is received, the collector also sees the network address."
    )
