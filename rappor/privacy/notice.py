"""Says in plain words what a metric collects and what protects the people it is about."""

from __future__ import annotations

import datetime
import math
from typing import Final

from rappor.privacy.loss import belief_bound, epsilon_1, epsilon_inf
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_SUSPICION: Final = 0.5
_NEAR_CERTAINTY: Final = 0.99


def describe(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Return lines of plain text; with `today` they tell an expired metric."""
    lines = [
        f"{metric.name}: {metric.description}",
        f"Collected by {metric.owner} {_until(metric, today)}.",
        f"What is noted: {encoding_of(metric.params).described}{_pace(metric.interval)}.",
        _one_report(metric.params),
        _all_reports(metric),
        promise(metric.epoch),
        _keeping(metric),
    ]
    return "\n".join(lines)


def _until(metric: Metric, today: datetime.date | None) -> str:
    if today is not None and today > metric.expires:
        return f"until {metric.expires}; it has expired and nothing is collected any more"
    return f"until {metric.expires}, that day included"


def _pace(interval: str | None) -> str:
    return f"; at most once in each {interval}" if interval else ""


def _one_report(params: Params) -> str:
    epsilon = epsilon_1(params)
    if math.isinf(epsilon):
        return "WARNING: one report can give the value away with certainty (epsilon infinite)."
    return f"One report (epsilon {epsilon:.2f}): {_suspicion(epsilon)}."


def _all_reports(metric: Metric) -> str:
    epsilon = epsilon_inf(metric.params)
    if math.isinf(epsilon):
        return (
            "WARNING: many reports together give the value away with certainty (epsilon infinite)."
        )
    span = f"in one {metric.epoch}" if metric.epoch else "for ever"
    return f"All reports of one value {span} (epsilon {epsilon:.2f}): {_suspicion(epsilon)}."


def _suspicion(epsilon: float) -> str:
    low, high = belief_bound(epsilon, _SUSPICION)
    if high > _NEAR_CERTAINTY:
        return f"a suspicion of {100 * _SUSPICION:.0f} % can come near certainty, either way"
    return (
        f"a suspicion of {100 * _SUSPICION:.0f} % can become at most {at_most(high)} "
        f"and at least {math.floor(1000 * low) / 10:g} %"
    )


def at_most(belief: float) -> str:
    """Write a belief in per cent, rounded up: what is promised must hold.

    To a tenth; near certainty to a thousandth, so that 99.97 does not read as 100.
    """
    steps = 10 if belief <= 0.999 else 1000
    return f"{math.ceil(100 * steps * belief) / steps:g} %"


def promise(epoch: str | None) -> str:
    """Say which of the protocol's two promises about memoisation holds."""
    if epoch is None:
        return (
            "Promise, for life: the noise of a value is drawn once and kept. The losses of "
            "distinct values add, and it is not hidden that a value changed or came back."
        )
    return (
        f"Promise, by epoch: a device reports one value in each {epoch} and draws new noise for "
        f"the next. Over time the losses of each {epoch} add, and their sum holds whatever the "
        "value does, as long as when and how often a device reports does not depend on it."
    )


def _keeping(metric: Metric) -> str:
    kept = "each noisy report" if metric.keep_reports else "sums only, no single report"
    least = f", shown from {metric.min_reports} reports on" if metric.min_reports else ""
    return f"What the collector keeps: {kept}{least}."
