"""Says in plain words what a metric collects and what protects the people it is about."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from typing import Final

from rappor.privacy.linkability import link
from rappor.privacy.small_cohorts import fill_cohorts
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import belief_bound, epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_EVEN_ODDS: Final = 0.5
_NEAR_CERTAINTY: Final = 0.99
_LINKED_REPORTS: Final = 2
"""Reports in each set that an observer compares: the fewest that many devices stand out by."""


def describe(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Return lines of plain text; with `today` they tell an expired metric."""
    lines = [
        f"{metric.name}: {metric.description}",
        f"Collected by {metric.owner} {_until(metric, today)}.",
        f"What is noted: {encoding_of(metric.params).described}{_pace(metric.interval)}"
        f"{_sample(metric)}.",
        *told_beside(metric),
        _one_report(metric.params),
        _all_reports(metric.params, "" if metric.epoch == "life" else f" in one {metric.epoch}"),
        promise(metric),
        _linking(metric),
        _keeping(metric),
    ]
    return "\n".join(lines)


def describe_other(params: Params) -> str:
    """Say what protects reports that were made under other parameters than a metric's own."""
    return (
        f"Some of these reports were made under other parameters ({params.fingerprint}). "
        f"{_one_report(params)} {_all_reports(params, ' under them')}"
    )


def describe_together(metrics: Sequence[Metric]) -> str:
    """Say what the answers to several metrics tell together, of one value."""
    one = math.fsum(epsilon_1(metric.params) for metric in metrics)
    every = math.fsum(epsilon_inf(metric.params) for metric in metrics)
    names = " and ".join(metric.name for metric in metrics)
    return (
        f"{names}: a device answers both or neither, each in a report of its own, whatever the "
        f"value is. Both reports of one value together: {observer_belief(one)}. All reports of one "
        f"value: {observer_belief(every)}."
    )


def _until(metric: Metric, today: datetime.date | None) -> str:
    if today is not None and today > metric.expires:
        return f"until {metric.expires}; it has expired and nothing is collected any more"
    return f"until {metric.expires}, that day included"


def _pace(interval: str) -> str:
    return f"; at most once in each {interval}" if interval != "none" else "; at every event"


def _sample(metric: Metric) -> str:
    if metric.sample == 1:
        return ""
    anew = "once for good" if metric.epoch == "life" else f"anew in each {metric.epoch}"
    return f"; by {100 * metric.sample:.3g} % of the devices, which each device decides {anew}"


def told_beside(metric: Metric) -> Iterator[str]:
    """Say what is told in the clear beside the value, and what that costs."""
    if not metric.segments:
        return
    told = "; ".join(f"{each.name} ({', '.join(each.told)})" for each in metric.segments)
    span = (
        "" if metric.epoch == "life" else f", as they are at its first report of a {metric.epoch}"
    )
    yield (
        f"Told beside it without any noise: {told}{span}. What follows protects the value alone, "
        "as far as what is told says nothing of it. Whoever sees a report knows in which of "
        f"{metric.n_segments:,} groups its device is, and looks for it there only."
    )


def _one_report(params: Params) -> str:
    epsilon = epsilon_1(params)
    if math.isinf(epsilon):
        return "WARNING: one report can reveal the value with certainty."
    return f"One report: {observer_belief(epsilon)}."


def _all_reports(params: Params, span: str) -> str:
    epsilon = epsilon_inf(params)
    if math.isinf(epsilon):
        return "WARNING: many reports can reveal the value with certainty."
    return f"All reports of one value{span}: {observer_belief(epsilon)}."


def observer_belief(epsilon: float) -> str:
    """Say how sure a loss of epsilon nats can make an observer who gives even odds."""
    low, high = belief_bound(epsilon, _EVEN_ODDS)
    if high > _NEAR_CERTAINTY:
        return "an observer who gives even odds to a value can come near certainty, either way"
    return (
        "an observer who gives even odds to a value ends between "
        f"{math.floor(1000 * low) / 10:g} % and {at_most(high)} sure of it"
    )


def at_most(belief: float) -> str:
    """Write a belief in per cent, rounded up: what is promised must hold.

    To a tenth; near certainty to a thousandth, so that 99.97 does not read as 100.
    """
    steps = 10 if belief <= 0.999 else 1000
    return f"{math.ceil(100 * steps * belief) / steps:g} %"


def promise(metric: Metric) -> str:
    """Say what the loss of a scope bounds, and what it does not hide."""
    span = "its whole life" if metric.epoch == "life" else f"each {metric.epoch}"
    what = ", and what it tells beside it, do" if metric.segments else " does"
    condition = f"as long as when and how often a device reports{what} not depend on its values"
    if metric.patterns == 1:
        return (
            f"Promise: in {span} a device repeats the value of its first report, whatever happens "
            f"later. The loss holds for any two histories of values, {condition}."
        )
    return (
        f"Promise: in {span} a device answers for up to {metric.patterns} values; at the next one "
        "it begins to repeat its last answer. Their losses add and hold for histories whose "
        f"bits repeat in the same way, {condition}. That a value changed or came back is not "
        "hidden until then."
    )


def _linking(metric: Metric) -> str:
    """Say in numbers what links the reports of one device."""
    linked = link(metric.params, reports=(_LINKED_REPORTS,))
    found = f"{100 * linked.recognised[0].probability:.0f} %"
    cohorts = metric.params.m
    told, alike = ("what it tells, ", " that tell the same") if metric.segments else ("", "")
    if cohorts == 1 and found == "0 %":
        return f"Little but {told}address and time links the reports of a device."
    span = "all its reports" if metric.epoch == "life" else f"its reports of one {metric.epoch}"
    cohort = f"its cohort (one of {cohorts:,}) and " if cohorts > 1 else ""
    return (
        f"What links {span}: {told}{cohort}its kept noise. By two sets of {_LINKED_REPORTS} "
        f"reports a device is found among {linked.devices:,}{alike} with {found} probability. "
        f"Beyond that, only {told}address and time link reports."
    )


def _keeping(metric: Metric) -> str:
    kept = "each noisy report" if metric.keep_reports else "sums by day and cohort"
    return f"What the collector keeps: {kept}. {_showing(metric)}"


def _showing(metric: Metric) -> str:
    """Say which sums are shown, and how many wait where m is large for the reports."""
    if not metric.min_reports:
        return "It shows every sum as it comes, even that of one report."
    whose = " of a cohort" if metric.params.m > 1 else ""
    group = " of a group" if metric.segments else ""
    text = (
        f"It shows sums of whole days and at least {metric.min_cohort:,} reports{whose}, from "
        f"{metric.min_reports:,} reports{group} on."
    )
    filling = fill_cohorts(metric)
    return f"{text} {filling.told}; the others wait." if filling.m_is_too_large else text
