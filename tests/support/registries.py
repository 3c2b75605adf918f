"""Metrics, entries and registries for tests in which expiry and budget do not matter."""

from __future__ import annotations

import datetime
import math
from typing import Any

from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


def build_registry(*metrics: Metric) -> Registry:
    """Return a registry with an infinite total."""
    return Registry(metrics, total=math.inf)


def build_metric(params: Params, name: str = "page", **fields: Any) -> Metric:
    """Return a metric with the epoch `life`, whose last day is after the day of every test."""
    defaults: dict[str, Any] = {
        "description": "a",
        "owner": "b",
        "expires": datetime.date(2999, 1, 1),
        "epoch": "life",
    }
    return Metric(name=name, params=params, **defaults | fields)


def format_registry(name: str = "page", **fields: str) -> str:
    """Return the text of a registry file with one metric and an infinite total.

    `fields` are fields of the entry, as TOML: `epoch='"quarter"'`.
    """
    return f"[budget]\ntotal = inf\n{format_entry(name, **fields)}"


def format_entry(name: str, **fields: str) -> str:
    """Return the text of an entry of a metric. With the field f, the entry has no profile."""
    entry = {
        "description": '"a"',
        "owner": '"b"',
        "expires": "2099-12-31",
        "epoch": '"life"',
        "encoding": '"bloom"',
        **({} if "f" in fields else {"profile": '"balanced"'}),
    } | fields
    return f"[metrics.{name}]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items())
