"""The registry as JSON with a seal, for devices in other languages.

The registry contains the metrics and the total, the privacy budget of a device for a calendar year.
All numbers except the total are integers, so that every language reads the same numbers. A
probability is therefore written as its threshold, the integer nearest to 2^32 times the
probability. A device draws a coin (a uniform 32-bit integer), and the event happens if the coin is
less than the threshold. Example: the probability 0.25 is written as 1073741824.

The seal is the SHA-256 of the text without the seal. If the seal is right, this program has checked
the metrics and written the file, so a device need not repeat the checks of the metrics. The seal is
no signature: it detects changes by mistake, but anybody can compute a new seal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.thresholds import compute_threshold
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_Document = dict[str, Any]


def format_sealed_json(registry: Registry, notices: Mapping[str, str]) -> str:
    """Format a registry as one line of sealed JSON.

    Parameters
    ----------
    registry : the metrics and the total, in nats.
    notices : the privacy notice of each metric, by name.

    Returns
    -------
    JSON without a line end. The total is a text in the form in which ECMAScript writes numbers. An
    infinite total is the text "Infinity", because JSON has no infinite number.
    """
    # `format_edge` writes the edges of buckets in the form of ECMAScript, and here the total.
    document = {
        "v": 1,
        "total": "Infinity" if math.isinf(registry.total) else format_edge(registry.total),
        "metrics": [_format_metric(metric, notices[name]) for name, metric in registry.items()],
    }
    seal = hashlib.sha256(_dump(document).encode()).hexdigest()
    return _dump(document | {"seal": seal})


def _format_metric(metric: Metric, notice: str) -> _Document:
    """Return the JSON object of a metric, with its privacy notice."""
    return {
        "name": metric.name,
        "description": metric.description,
        "owner": metric.owner,
        "expires": metric.expires.isoformat(),
        "epoch": metric.epoch,
        "interval": metric.interval,
        "durable": metric.durable,
        # The threshold of the coin by which a device decides whether it takes part in the metric.
        # Devices in Python and in JavaScript with the same secret thus decide in the same way.
        "sampling_rate": compute_threshold(metric.sampling_rate),
        "params": json.loads(metric.params.to_json()),
        "fingerprint": metric.fingerprint,
        "parts": _format_parts(metric),
        # A list of pairs: JavaScript sorts keys of an object that look like integers.
        "segments": sorted([dimension.name, dimension.values] for dimension in metric.segments),
        "notice": notice,
    }


def _format_parts(metric: Metric) -> list[_Document]:
    """Format each part with its fingerprint.

    A part is the piece of a string that a device reports, such as its first two letters. A coin of
    the device chooses the part. The last part has no threshold, because all devices that have
    chosen no earlier part report the last part.
    """
    return [
        {"name": part.name}
        | ({} if part.share is None else {"threshold": part.threshold})
        | {"fingerprint": metric.part_params(part.name).fingerprint}
        for part in metric.parts
    ]


def _dump(document: _Document) -> str:
    """Write JSON as ECMAScript's JSON.stringify does, so that a device can recompute the seal."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
