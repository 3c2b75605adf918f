"""Metrics and settings that the tests of the device share."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

from rappor_client import Caps, Client

from rappor import Metric, Params

UNCAPPED = Caps(patterns=float("inf"), epsilon=float("inf"), lifetime=float("inf"))
BALANCED = dataclasses.replace(Params.profile("balanced"), m=1)
"""In one cohort the same values share their bits in every run; in many, now and then others."""
BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)

Opener = Callable[..., Client]
"""(*metrics, folder=..., **settings of Client.open) -> a client on one folder of a test."""


def metric_of(name: str = "page", params: Params = BALANCED, **fields: Any) -> Metric:
    """Make a metric that lasts until 2030."""
    given: dict[str, Any] = {
        "expires": datetime.date(2030, 12, 31),
        "description": "a",
        "owner": "b",
    } | fields
    return Metric(name=name, params=params, **given)
