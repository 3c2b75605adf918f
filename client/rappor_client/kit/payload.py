"""The exact bytes that a device would send, and a sentence about what they reveal."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence

from rappor.base.errors import MetricError
from rappor.encode import encode_value
from rappor.privacy.notice import describe_belief
from rappor.protocol.encodings import get_encoding, parse_value
from rappor.protocol.loss import epsilon_1
from rappor.protocol.normalizers import FIELD_SEPARATOR
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.protocol.wire import Upload, parse_upload_entries
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.kit.host import METRIC


def describe_payload(
    registry: Registry, bodies: Sequence[bytes], collector: object, *, today: datetime.date
) -> Iterator[str]:
    """Yield lines with the uploads that may leave a device, and examples of all other metrics.

    Each metric of the registry has an upload, an example, or a sentence why it has none. A person
    agrees to all metrics together, so a preview of one metric would hide the others.

    Parameters
    ----------
    registry
        Registry of the program.
    bodies
        Bodies of the queued and pending uploads.
    collector
        Address of the collector, or a transport.
    today
        Present day (UTC).
    """
    find_metric(registry)  # raises for a registry without the metric of the uses
    destination = collector if isinstance(collector, str) else "the collector"
    if bodies:
        yield f"This goes to {destination}, each line as an upload of its own:"
        yield from (body.decode() for body in bodies)
    uploaded = {entry["metric"] for body in bodies for entry in parse_upload_entries(body)[1]}
    # The kit passes no properties of a device, so its devices are in the segments "other".
    entries = registry.in_segment({}).items()
    others = [metric for name, metric in entries if name not in uploaded]
    if others:
        waiting = "Nothing else waits." if bodies else "Nothing waits."
        examples = "An example" if len(others) == 1 else "For each question, an example"
        yield f"{waiting} {examples} of what a device would send to {destination}, made up now:"
    for metric in others:
        yield from _describe_example(metric, today)
    # Without this sentence, a person takes the id for a number that identifies the device.
    yield (
        "The id is random and new for each upload, so that a repeated upload is counted once. It "
        "links no two uploads."
    )
    yield describe_disclosure(registry)


def _describe_example(metric: Metric, today: datetime.date) -> Iterator[str]:
    """Yield a sentence about a metric with the recorded value, and an example of its upload."""
    heading = f"{metric.name}: {metric.description.rstrip('.')}."
    if today > metric.expires:
        yield f"{heading} Nothing is sent: the collection ended on {metric.expires}."
    elif (value := _choose_value(metric)) is None:
        yield f"{heading} No example is shown, because the registry lists no value of it."
    else:
        shown = value.replace(FIELD_SEPARATOR, " | ")
        yield f'{heading} If "{shown}" is recorded:'
        yield make_example(metric, value).decode()


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


def _choose_value(metric: Metric) -> str | None:
    """Return a value of a metric as text, for an example; None if the registry lists no value."""
    # The names are the categories of the one-hot encoding, the edges of buckets, or the candidates
    # of hashed strings and items.
    if names := metric.params.categories or metric.listed:
        return names[0]
    # Case: a boolean. It has no categories, and its values are "false" and "true".
    pairs = get_encoding(metric.params).most_different_pairs
    return pairs[0][-1] if pairs else None


def make_example(metric: Metric, text: str) -> bytes:
    """Return the upload of an invented device, which has recorded a value, passed as text."""
    value = parse_value(metric.params, text)
    # Any epoch will do, because the secret is new: the report is as random as in any epoch of a
    # real device.
    epoch = metric.epoch_at(datetime.date.min)
    encoded = encode_value(os.urandom(SECRET_BYTES), metric, value, epoch=epoch)
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
