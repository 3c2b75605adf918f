"""What a metric collects and under which guarantee, in plain words."""

from __future__ import annotations

import datetime
import math
import textwrap

from rappor.metric import Metric
from rappor.params import Params
from rappor.privacy import belief_bound, epsilon_inf, epsilon_one


def describe(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Describe a metric for the people whose devices report it.

    Parameters
    ----------
    today : tells whether the metric has expired; None leaves that out.
    """
    expired = today is not None and today > metric.expires
    lines = [
        metric.name,
        f"  what:       {metric.description}",
        f"  for whom:   {metric.owner}",
        f"  until:      {metric.expires.isoformat()}"
        + (" (expired: nothing is collected)" if expired else ""),
        *_paragraph("sent", _sent(metric.params)),
        *_paragraph("one report", _guarantee(epsilon_one(metric.params))),
        *_paragraph("for ever", _guarantee(epsilon_inf(metric.params))),
        *_paragraph("over time", _promise(metric)),
    ]
    if metric.min_reports:
        lines.append(f"  released:   only over at least {metric.min_reports:,} reports")
    if metric.keep_reports:
        lines.append("  kept:       single reports, noise included, beside their sums")
    return "\n".join(lines)


def _paragraph(label: str, text: str) -> list[str]:
    first = f"  {label + ':':<12}"
    return textwrap.wrap(text, 96, initial_indent=first, subsequent_indent=" " * len(first))


def _sent(params: Params) -> str:
    names = ", ".join(params.categories)
    kind = {
        "bloom": f"{params.k} noisy bits, of which the text sets at most {params.h}; "
        "the text itself is never sent",
        "onehot": f"{params.k} noisy bits, one for each of: {names}",
        "flags": f"{params.k} noisy yes/no bits: {names}",
        "boolean": "one noisy yes/no bit",
        "buckets": f"{params.k} noisy bits, one for each range between: {names}",
    }[params.encoding]
    if params.m > 1:
        kind += f", and one of {params.m} groups that the device is in by chance"
    if params.normalize != "none":
        kind += f"; before that the text is normalised ({params.normalize})"
    return kind


def _guarantee(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "NO GUARANTEE: the value can be learned with certainty"
    least, most = belief_bound(epsilon, 0.5)
    return (
        f"epsilon {epsilon:.4g}: whoever thinks a value as likely as not ends between "
        f"{least:.1%} and {most:.1%} sure"
    )


def _promise(metric: Metric) -> str:
    """Say which of the two promises of memoisation a metric has."""
    if math.isinf(epsilon_inf(metric.params)):
        return "every further report adds its loss; nothing bounds their sum"
    if metric.epoch is None:
        return (
            "each value of the device has one lasting noisy answer, so repeating it costs no "
            "more than the figure above; a second value costs as much again, and that the "
            "value changed, or came back, is not hidden"
        )
    return (
        f"in each {metric.epoch} the device answers for the first value it reports and keeps "
        f"to it, so the figure above holds for each {metric.epoch}, whether or not the value "
        "changed; the figures of several add up"
    )
