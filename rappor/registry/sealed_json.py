"""The registry as JSON, for devices in other languages.

All numbers but the total are integers, so that every language reads the same: shares and
probabilities are thresholds. A seal, the SHA-256 of all before it, tells a file that was changed:
whoever reads it needs no second set of checks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.params import threshold
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_Document = dict[str, Any]


def format_sealed_json(registry: Registry, notices: Mapping[str, str]) -> str:
    """Return one line of JSON; `notices` say by name what each metric collects, for people.

    The total is a text, as ECMAScript writes numbers, and `Infinity` where nothing bounds it.
    """
    document = {
        "v": 1,
        "total": "Infinity" if math.isinf(registry.total) else edge_text(registry.total),
        "metrics": [_metric(metric, notices[name]) for name, metric in registry.items()],
    }
    seal = hashlib.sha256(_written(document).encode()).hexdigest()
    return _written(document | {"seal": seal})


def _metric(metric: Metric, notice: str) -> _Document:
    return {
        "name": metric.name,
        "description": metric.description,
        "owner": metric.owner,
        "expires": metric.expires.isoformat(),
        "epoch": metric.epoch,
        "interval": metric.interval,
        "durable": metric.durable,
        "sampling_rate": threshold(metric.sampling_rate),
        "params": json.loads(metric.params.to_json()),
        "fingerprint": metric.fingerprint,
        "parts": _parts(metric),
        "segments": sorted([each.name, each.values] for each in metric.segments),
        "notice": notice,
    }


def _parts(metric: Metric) -> list[_Document]:
    """Return each part with its fingerprint; the last one, which takes the rest, has no width."""
    return [
        {"name": part.name}
        | ({} if part.share is None else {"threshold": part.threshold})
        | {"fingerprint": metric.part_params(part.name).fingerprint}
        for part in metric.parts
    ]


def _written(document: _Document) -> str:
    """Write JSON as ECMAScript's JSON.stringify does."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
