"""Metrics, entries and registries whose end and budget are not what a test is about."""

from __future__ import annotations

import datetime
import math
from typing import Any

from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


def registry_of(*metrics: Metric) -> Registry:
    """Return a registry whose total covers whatever its metrics cost."""
    return Registry(metrics, total=math.inf)


def metric_of(params: Params, name: str = "page", **fields: Any) -> Metric:
    """Return a metric for life that no test sees expire."""
    given: dict[str, Any] = {
        "description": "a",
        "owner": "b",
        "expires": datetime.date(2999, 1, 1),
        "epoch": "life",
    }
    return Metric(name=name, params=params, **given | fields)


def toml_of(name: str = "page", **fields: str) -> str:
    """Return a registry of one metric as a file has it; fields are as TOML has them."""
    return f"[budget]\ntotal = inf\n{entry_of(name, **fields)}"


def entry_of(name: str, **fields: str) -> str:
    """Return the entry of a metric, which can follow a registry; letters replace the profile."""
    given = {
        "description": '"a"',
        "owner": '"b"',
        "expires": "2099-12-31",
        "epoch": '"life"',
        "encoding": '"bloom"',
        **({} if "f" in fields else {"profile": '"balanced"'}),
    } | fields
    return f"[metrics.{name}]\n" + "".join(f"{key} = {each}\n" for key, each in given.items())
