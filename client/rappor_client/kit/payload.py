"""The exact bytes that a device would send, and a sentence about what they reveal."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence

from rappor.base.errors import MetricError
from rappor.encode import encode_value
from rappor.privacy.notice import describe_belief
from rappor.protocol.encodings import parse_value
from rappor.protocol.loss import epsilon_1
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
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


def find_metric(registry: Registry) -> Metric:
    """Return the metric under which the kit records every use (`rappor_client.kit.host.METRIC`).

    Raises
    ------
    MetricError
        The registry lacks the metric, or the metric lists no name. `telemetry init` always writes
        the metric with names, so a person has edited or made this registry.
    """
    metric = registry.get(METRIC)
    if metric is None:
        raise MetricError(
            f"the registry must have a metric named {METRIC!r}, got {', '.join(registry)}; "
            "`telemetry init` writes a registry with it if no file of the registry exists"
        )
    if not (metric.params.categories or metric.listed):
        raise MetricError(f"the metric {METRIC!r} must list names, as `telemetry init` writes them")
    return metric


def make_example(registry: Registry) -> bytes:
    """Return the upload of an invented device, which has recorded the first name of its metric.

    Raises
    ------
    MetricError
        See `find_metric`.
    """
    metric = find_metric(registry)
    # The names are the categories of the one-hot encoding, or the candidates of the list encoding.
    names = metric.params.categories or metric.listed
    value = parse_value(metric.params, names[0])
    # Any epoch will do, because the secret is new: the report is as random as in any epoch of a
    # real device.
    epoch = metric.epoch_at(datetime.date.min)
    encoded = encode_value(os.urandom(32), metric, value, epoch=epoch)
    return Upload(id=Upload.new_id(), reports=(encoded.report,)).to_json()


def describe_disclosure(registry: Registry) -> str:
    """Return a sentence about the information in one upload, of the metric that reveals most."""
    find_metric(registry)  # raises for a registry without the metric of the uses
    loss = max(epsilon_1(metric.params) for metric in registry.values())
    return (
        "What anybody could learn from one upload, the collector included: "
        f"{describe_belief(loss)}. While an upload is received, the collector also sees the "
        "network address."
    )
