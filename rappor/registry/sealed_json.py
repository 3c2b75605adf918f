"""The registry as JSON with a seal, for devices in other languages.

All numbers except the total are integers, so that every language reads the same numbers: shares and
probabilities are thresholds of 32-bit coins. The seal is the SHA-256 of the text without the seal.
A reader that verifies the seal knows that this program wrote the file, and needs no second set of
checks. The seal is no signature: it detects changes by mistake.
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
    registry : the metrics and the total.
    notices : the privacy notice of each metric, by name.

    Returns
    -------
    JSON without a line end. The total is a text, as ECMAScript writes numbers, or "Infinity"
    because JSON has no infinite number.
    """
    document = {
        "v": 1,
        "total": "Infinity" if math.isinf(registry.total) else format_edge(registry.total),
        "metrics": [_format_metric(metric, notices[name]) for name, metric in registry.items()],
    }
    seal = hashlib.sha256(_dump(document).encode()).hexdigest()
    return _dump(document | {"seal": seal})


def _format_metric(metric: Metric, notice: str) -> _Document:
    return {
        "name": metric.name,
        "description": metric.description,
        "owner": metric.owner,
        "expires": metric.expires.isoformat(),
        "epoch": metric.epoch,
        "interval": metric.interval,
        "durable": metric.durable,
        # JavaScript compares 32-bit coins with this integer, so both devices decide alike.
        "sampling_rate": compute_threshold(metric.sampling_rate),
        "params": json.loads(metric.params.to_json()),
        "fingerprint": metric.fingerprint,
        "parts": _format_parts(metric),
        # A list of pairs: JavaScript sorts keys of an object that look like integers.
        "segments": sorted([dimension.name, dimension.values] for dimension in metric.segments),
        "notice": notice,
    }


def _format_parts(metric: Metric) -> list[_Document]:
    """Format each part with its fingerprint. The last part takes the rest and has no threshold."""
    return [
        {"name": part.name}
        | ({} if part.share is None else {"threshold": part.threshold})
        | {"fingerprint": metric.part_params(part.name).fingerprint}
        for part in metric.parts
    ]


def _dump(document: _Document) -> str:
    """Write JSON as ECMAScript's JSON.stringify does, so that a device can recompute the seal."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
