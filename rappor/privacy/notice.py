"""Privacy notices: plain sentences about what a metric collects and what protects people."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_count
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf, posterior_bound
from rappor.protocol.params import Params
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

_EVEN_ODDS: Final = 0.5
_NEAR_CERTAINTY: Final = 0.99
_YEAR: Final = 366
_LINKED_REPORTS: Final = 2
"""Reports in each of two sets that an observer compares. Two is the smallest number at which many
devices become recognisable."""


def privacy_notice(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Return the privacy notice of a metric, in lines of plain text.

    Parameters
    ----------
    metric : the metric.
    today : if given, the notice states whether the metric has expired.
    """
    lines = [
        f"{metric.name}: {metric.description}",
        f"Collected by {metric.owner} {_format_expiry(metric, today)}.",
        f"Recorded{_format_interval(metric)}{_describe_sampling(metric)}: "
        f"{encoding_of(metric.params).described}.{_describe_noise(metric.params)}",
        *describe_late_days(metric),
        *describe_segments(metric),
        *describe_losses(metric),
        describe_promise(metric),
        _describe_linking(metric),
        f"The collector keeps sums by day and cohort, not reports. {_describe_release(metric)}",
    ]
    return "\n".join(lines)


def describe_other_params(params: Params) -> str:
    """Return a sentence about reports made under other parameters than the metric's own."""
    return (
        f"Some of these reports have other parameters ({params.fingerprint}). "
        f"{_describe_one_report(params)} "
        f"{_describe_all_reports(epsilon_inf(params), ' under them')}"
    )


def _format_expiry(metric: Metric, today: datetime.date | None) -> str:
    if today is not None and today > metric.expires:
        return f"until {metric.expires}. It has expired: nothing is collected any more"
    return f"until the end of {metric.expires}"


def _format_interval(metric: Metric) -> str:
    if metric.interval == "epoch":
        pace = f" once a {metric.epoch}, from a day on that the device draws at random"
    else:
        pace = (
            f" at most once a {metric.interval}" if metric.interval != "none" else " at every event"
        )
    return f"{pace}, and written to the disk at once" if metric.durable else pace


def describe_late_days(metric: Metric) -> Iterator[str]:
    """Yield a sentence about devices whose drawn day is later than the metric's last day."""
    if metric.interval != "epoch":
        return
    expiry, epoch = metric.expires.toordinal(), metric.epoch_at(metric.expires)
    near = range(max(expiry - _YEAR, 1), min(expiry + _YEAR, datetime.date.max.toordinal()) + 1)
    days = [n for n in near if metric.epoch_at(datetime.date.fromordinal(n)) == epoch]
    if late := sum(n > expiry for n in days):
        yield (
            f"It expires on {metric.expires}, before the {metric.epoch} ends: the "
            f"{100 * late / len(days):.3g} % of the devices that draw a later day do not answer in "
            f"that {metric.epoch}."
        )


def _describe_noise(params: Params) -> str:
    """Return a sentence about flipped bits, for metrics whose single report has a bound."""
    if math.isinf(epsilon_1(params)):
        return ""
    return " The device flips some of its bits at random before it sends a report."


def _describe_sampling(metric: Metric) -> str:
    if metric.sampling_rate == 1:
        return ""
    drawn = "drawn once" if metric.epoch == "life" else f"drawn again each {metric.epoch}"
    return f" on {100 * metric.sampling_rate:.3g} % of the devices ({drawn})"


def describe_segments(metric: Metric) -> Iterator[str]:
    """Yield sentences about properties that a device sends without noise."""
    if not metric.segments:
        return
    told = "; ".join(f"{each.name} ({', '.join(each.labels)})" for each in metric.segments)
    span = (
        "" if metric.epoch == "life" else f", as they are at the first report of a {metric.epoch}"
    )
    yield (
        f"Sent with it, without noise: {told}{span}. Everybody who sees a report knows which of "
        f"{metric.n_segments:,} groups its device is in. The limits below are for the value. They "
        "do not cover what these properties reveal about it."
    )


def _describe_one_report(params: Params) -> str:
    epsilon = epsilon_1(params)
    if math.isinf(epsilon):
        return "WARNING: one report can reveal the value with certainty."
    return f"One report: {describe_belief(epsilon)}."


def describe_losses(metric: Metric) -> Iterator[str]:
    """Yield sentences about the privacy loss of one report, and of all reports of a scope."""
    yield _describe_one_report(metric.params)
    if most_reports(metric) != 1:
        yield _describe_all_reports(scope_loss(metric), _format_epoch(metric))
    if metric.epoch != "life":
        yield from _describe_year(metric)


def _describe_year(metric: Metric) -> Iterator[str]:
    """Yield sentences about the privacy loss of a value that stays the same for a year."""
    stays = compute_unchanged_loss(metric)
    if math.isinf(stays.epsilon):
        return
    text = f"A value that stays the same for a year: {describe_belief(stays.epsilon)}"
    if stays.named is not None:
        text += (
            f". Somebody who links all reports of a device can pick its value out of "
            f"{stays.candidates:,} equally likely ones {100 * stays.named:.0f} times in 100"
        )
    yield f"{text}."


def _describe_all_reports(epsilon: float, span: str) -> str:
    if math.isinf(epsilon):
        return "WARNING: many reports can reveal the value with certainty."
    return f"All reports of one value{span}: {describe_belief(epsilon)}."


def _format_epoch(metric: Metric) -> str:
    return "" if metric.epoch == "life" else f" in one {metric.epoch}"


def describe_belief(epsilon: float) -> str:
    """Return a sentence about the largest belief of an observer who believed 50 % before."""
    _, high = posterior_bound(epsilon, _EVEN_ODDS)
    sure = (
        "become almost certain"
        if high > _NEAR_CERTAINTY
        else f"be at most {format_belief(high)} sure"
    )
    return f"somebody who was half sure what your answer is can {sure}"


def describe_promise(metric: Metric) -> str:
    """Return a sentence about what the loss of a scope limits, and what it does not hide."""
    span = "its whole life" if metric.epoch == "life" else f"each {metric.epoch}"
    what = ", and its properties, do" if metric.segments else " does"
    condition = f"as long as when and how often a device reports{what} not depend on its values"
    if most_reports(metric) == 1:
        return (
            f"Promise: in {span} a device sends one report at most. The limit on the loss of that "
            f"report holds for any two histories of values, {condition}."
        )
    return (
        f"Promise: in {span} a device repeats the value of its first report, even if its value "
        f"changes. The limit on the loss holds for any two histories of values, {condition}."
    )


def _describe_linking(metric: Metric) -> str:
    """Return sentences with the numbers that link the reports of one device."""
    others = ("its properties, " if metric.segments else "") + "its network address"
    if most_reports(metric) == 1:
        return (
            f"Linking: a device sends one report a {metric.epoch}, and draws its noise anew for "
            f"each. Only {others} or the time of sending can link those of several {metric.epoch}s."
        )
    linked = linkability(metric.params, reports=(_LINKED_REPORTS,))
    found = f"{100 * linked.recognised[0].probability:.0f} %"
    cohorts = metric.params.m
    own, alike = ("its properties, ", " with the same properties") if metric.segments else ("", "")
    if cohorts == 1 and found == "0 %":
        return f"In practice only {others} or the time of sending can link a device's reports."
    span = "all its reports" if metric.epoch == "life" else f"its reports of one {metric.epoch}"
    cohort = f"its cohort (one of {cohorts:,}) and " if cohorts > 1 else ""
    return (
        f"Linking: {span} share {own}{cohort}its permanent noise. With two sets of "
        f"{_LINKED_REPORTS} reports, a device is found among {linked.devices:,}{alike} with "
        f"{found} probability. Beyond that, only {others} or the time of sending can link reports."
    )


def _describe_release(metric: Metric) -> str:
    """Return a sentence about the sums that are released."""
    if not metric.min_reports:
        return "It shows every sum at once, even that of a single report."
    group = " of one group" if metric.segments else ""
    several, least, few = metric.params.m > 1, metric.min_reports, f"{metric.min_cohort:,}"
    limit = f", and no device sent more than one in {few} of {'a cohort' if several else 'them'}"
    if metric.pace == "none":
        limit = f", and at least {few} of each of its cohorts" if several else ""
        least = least if several else max(least, metric.min_cohort)
    return (
        "It shows a sum of whole days only if it has at least "
        f"{format_count(least, 'report')}{group}{limit}."
    )
