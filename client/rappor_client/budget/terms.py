"""What the registry says of a metric on the day of an event; a scope that begins keeps to it."""

from __future__ import annotations

import datetime
import functools
import json
import math
from typing import NamedTuple, Self

from rappor.protocol.loss import epsilon_inf
from rappor.protocol.segments import Dimension
from rappor.registry.budget import most_reports, scope_cost
from rappor.registry.metric import Metric
from rappor_client.periods import epoch_days


class MetricRules(NamedTuple):
    """The terms of one metric on one day.

    Days are in ISO form. `parts` are the names of the metric's parts, an empty one if it has none.
    `price` is the most that a scope can cost, in nats; `is_counted` says that it depends on the
    number of reports. `segments` are the properties that may be told.
    """

    day: str
    first_day: str
    last_day: str
    parts: tuple[str, ...]
    price: float
    is_counted: bool
    segments: tuple[Dimension, ...]

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(metric: Metric, day: datetime.date) -> MetricRules:
        """Return what the registry says now."""
        first_day, last_day = days_of(metric, day)
        price = scope_cost(metric)
        return MetricRules(
            day=day.isoformat(),
            first_day=first_day,
            last_day=last_day,
            parts=tuple(part.name for part in metric.parts) or ("",),
            price=price,
            is_counted=most_reports(metric) is not None
            and (metric.interval == "epoch" or price < unbounded_price(epsilon_inf(metric.params))),
            segments=metric.segments,
        )

    def to_json(self) -> str:
        """Write it, to wait for the end of an interval."""
        told = [(dimension.name, dimension.values) for dimension in self.segments]
        return json.dumps((*self[:-1], told))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; whatever else it is raises what its parts raise."""
        given = dict(zip(cls._fields, json.loads(text), strict=True))
        told = tuple(Dimension(name, tuple(values)) for name, values in given.pop("segments"))
        return cls(**given | {"parts": tuple(given["parts"])}, segments=told)


def unbounded_price(loss: float) -> float:
    """Return the price of a scope whose reports are not counted, from its epsilon_inf."""
    return math.ceil(1000 * loss) / 1000 if loss < math.inf else math.inf


def days_of(metric: Metric, day: datetime.date) -> tuple[str, str]:
    """Return the first and the last day of the metric's epoch that holds a day, in ISO form."""
    if metric.epoch == "life":
        return datetime.date.min.isoformat(), datetime.date.max.isoformat()
    first, last = epoch_days(metric.epoch, day)
    return first.isoformat(), last.isoformat()
