"""Rules of a metric on one day: its epoch, its parts, its cost and its segments.

A device reads the rules from the registry when an event happens. A report may wait for days until
its interval ends, and the program may have another registry by then. So the rules are stored beside
the pending report. If the report begins a scope, the scope keeps the stored rules and ignores the
new registry. (A scope is one metric in one epoch under one permanent fingerprint, on one device.
The permanent fingerprint is a hash of the parameters that determine the permanent response.)

Example: a metric with `profile = "balanced"`, `epoch = "quarter"` and `interval = "day"`, on
2026-11-18:

    day                2026-11-18
    first_day          2026-10-01
    last_day           2026-12-31
    parts              ("",)         the metric reports whole strings
    cost               4.0           nats
    has_report_limit   False         92 reports, one for each day of the quarter, cost 4.0 nats. Any
                                     larger number also costs 4.0 nats, so no limit is necessary
    segments           ()
"""

from __future__ import annotations

import datetime
import functools
import json
import math
from typing import NamedTuple, Self

from rappor.protocol.loss import epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.segments import Dimension
from rappor.registry.budget import most_reports, scope_cost
from rappor.registry.metric import Metric
from rappor_client.periods import find_epoch_days


class MetricRules(NamedTuple):
    """Rules of one metric on one day.

    Attributes
    ----------
    day
        The day of the event, in ISO form (UTC).
    first_day, last_day
        First and last day of the epoch that contains the day, in ISO form. For a metric for life,
        the first and the last day of the calendar.
    parts
        Names of the metric's parts. A part is the piece of a string that a device reports, such as
        "prefix:3", its first three letters. A metric without parts has one empty name.
    cost
        Upper bound on the privacy loss of a scope that begins under these rules, in nats.
    has_report_limit
        Whether the cost holds only for one report in each interval. If False, the cost bounds any
        number of reports.
    segments
        Public properties of the device that reports of the metric contain, such as the version of
        the program, each with its listed values (`Dimension`). The values of all properties of a
        device are its segment. A report contains no property that is not listed here.
    """

    day: str
    first_day: str
    last_day: str
    parts: tuple[str, ...]
    cost: float
    has_report_limit: bool
    segments: tuple[Dimension, ...]

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def for_day(metric: Metric, day: datetime.date) -> MetricRules:
        """Return the rules of a registry's metric on a day."""
        first_day, last_day = _format_epoch_days(metric, day)
        cost = scope_cost(metric)
        # The number of reports is limited in two cases:
        # 1. More reports would cost more than the cost of the scope.
        # 2. The metric has `interval = "epoch"`, which promises one report in an epoch. The cost
        #    alone cannot decide this case. Under the profile `once`, many reports cost as much as
        #    one report (epsilon_1 = epsilon_inf), and a second report would break the promise.
        is_one_report_an_epoch = metric.interval == "epoch"
        is_cost_below_limit = cost < _compute_unlimited_cost(metric.params)
        return MetricRules(
            day=day.isoformat(),
            first_day=first_day,
            last_day=last_day,
            parts=tuple(part.name for part in metric.parts) or ("",),
            cost=cost,
            # A metric for life has no largest number of reports (None).
            has_report_limit=most_reports(metric) is not None
            and (is_one_report_an_epoch or is_cost_below_limit),
            segments=metric.segments,
        )

    def to_json(self) -> str:
        """Return the rules as a JSON list, with which a pending report is stored."""
        dimensions = [(dimension.name, dimension.values) for dimension in self.segments]
        return json.dumps((*self[:-1], dimensions))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read rules that `to_json` has written.

        Raises ValueError, TypeError or LookupError for any other text. Only a damaged database of
        the device contains such a text.
        """
        fields = dict(zip(cls._fields, json.loads(text), strict=True))
        dimensions = fields.pop("segments")
        segments = tuple(Dimension(name, tuple(values)) for name, values in dimensions)
        parts = tuple(fields.pop("parts"))  # JSON has lists only
        return cls(**fields, parts=parts, segments=segments)


def _compute_unlimited_cost(params: Params) -> float:
    """Compute the cost of a scope with any number of reports, in nats.

    The loss is rounded up to a thousandth, because `scope_cost` rounds in this way, too. Without
    the rounding the comparison of the two costs would find a difference where there is none.
    """
    loss = epsilon_inf(params)
    return math.ceil(1000 * loss) / 1000 if loss < math.inf else math.inf


def _format_epoch_days(metric: Metric, day: datetime.date) -> tuple[str, str]:
    """Return the first and the last day of a metric's epoch that contains a day, in ISO form."""
    if metric.epoch == "life":
        return datetime.date.min.isoformat(), datetime.date.max.isoformat()
    first, last = find_epoch_days(metric.epoch, day)
    return first.isoformat(), last.isoformat()
