"""Privacy notices: plain sentences about what a metric collects and what protects people.

`rappor collects`, the client and the data sheet print the same sentences. A sentence with a number
contains a bound, so numbers are rounded towards less privacy.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_count
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, epsilon_inf, posterior_bound
from rappor.protocol.params import Params
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

_EVEN_ODDS: Final = 0.5
"""Belief of an observer before the reports. Sentences call it "half sure"."""

_NEAR_CERTAINTY: Final = 0.99
"""Belief above which a sentence says "almost certain". More digits would suggest a protection that
the metric does not have."""

_YEAR: Final = 366
"""Days around the last day of a metric that are searched for the days of its epoch. No epoch that
ends is longer."""

_LINKED_REPORTS: Final = 2
"""Reports in each of two sets that an observer compares. Two is the smallest number at which many
devices become recognisable."""


def privacy_notice(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Write the privacy notice of a metric.

    Parameters
    ----------
    metric : the metric.
    today : the present day (UTC). If it is passed, the notice states whether the metric has
        expired.

    Returns
    -------
    Plain text, one sentence or paragraph a line.

    Examples
    --------
    >>> from rappor import Params
    >>> theme = Metric(
    ...     name="theme", params=Params.profile("strict", encoding="boolean"),
    ...     description="Dark appearance", owner="design@example.org",
    ...     expires=datetime.date(2030, 12, 31), epoch="life",
    ... )
    >>> print(privacy_notice(theme).splitlines()[1])
    Collected by design@example.org until the end of 2030-12-31.
    """
    # `registry_datasheet` relies on the order of the first three lines.
    lines = [
        f"{metric.name}: {metric.description}",
        f"Collected by {metric.owner} {_format_expiry(metric, today)}.",
        f"Recorded{_format_frequency(metric)}{_describe_sampling(metric)}: "
        f"{get_encoding(metric.params).description}.{_describe_noise(metric.params)}",
        *describe_late_days(metric),
        *describe_segments(metric),
        *describe_losses(metric),
        describe_promise(metric),
        _describe_linking(metric),
        f"The collector keeps sums by day and cohort, not reports. {_describe_release(metric)}",
    ]
    return "\n".join(lines)


def describe_other_params(params: Params) -> str:
    """Describe the losses of reports under parameters that the metric's entry does not have now.

    Devices with an older registry send such reports.
    """
    return (
        f"Some of these reports have other parameters ({params.fingerprint}). "
        f"{_describe_one_report(params)} "
        f"{_describe_all_reports(epsilon_inf(params), ' under them')}"
    )


def _format_expiry(metric: Metric, today: datetime.date | None) -> str:
    if today is not None and today > metric.expires:
        return f"until {metric.expires}. It has expired: nothing is collected any more"
    return f"until the end of {metric.expires}"


def _format_frequency(metric: Metric) -> str:
    if metric.interval == "epoch":
        frequency = f" once a {metric.epoch}, from a day on that the device draws at random"
    else:
        frequency = f" at most once a {metric.interval}"
    return f"{frequency}, and written to the disk at once" if metric.durable else frequency


def describe_late_days(metric: Metric) -> Iterator[str]:
    """Describe the devices that draw a reporting day after the metric's last day.

    Yields nothing if the metric reports more than once an epoch, or if its last epoch ends before
    the metric expires.
    """
    if metric.interval != "epoch":
        return
    expiry, epoch = metric.expires.toordinal(), metric.epoch_at(metric.expires)
    # Python's calendar begins on day 1 and ends with the year 9999.
    near = range(max(expiry - _YEAR, 1), min(expiry + _YEAR, datetime.date.max.toordinal()) + 1)
    days = [day for day in near if metric.epoch_at(datetime.date.fromordinal(day)) == epoch]
    if late := sum(day > expiry for day in days):
        yield (
            f"It expires on {metric.expires}, before the {metric.epoch} ends: the "
            f"{100 * late / len(days):.3g} % of the devices that draw a later day do not answer in "
            f"that {metric.epoch}."
        )


def _describe_noise(params: Params) -> str:
    # Without a bound for one report the sentence would be false comfort.
    if math.isinf(epsilon_1(params)):
        return ""
    return " The device flips some of its bits at random before it sends a report."


def _describe_sampling(metric: Metric) -> str:
    if metric.sampling_rate == 1:
        return ""
    drawn = "drawn once" if metric.epoch == "life" else f"drawn again each {metric.epoch}"
    return f" on {100 * metric.sampling_rate:.3g} % of the devices ({drawn})"


def describe_segments(metric: Metric) -> Iterator[str]:
    """Describe the public properties that a device sends without noise.

    Yields nothing for a metric without segments.
    """
    if not metric.segments:
        return
    properties = "; ".join(
        f"{dimension.name} ({', '.join(dimension.labels)})" for dimension in metric.segments
    )
    time = (
        "" if metric.epoch == "life" else f", as they are at the first report of a {metric.epoch}"
    )
    yield (
        f"Sent with it, without noise: {properties}{time}. Everybody who sees a report knows which "
        f"of {metric.n_segments:,} groups its device is in. The limits below are for the value. "
        "They do not cover what these properties reveal about it."
    )


def _describe_one_report(params: Params) -> str:
    epsilon = epsilon_1(params)
    if math.isinf(epsilon):
        return "WARNING: one report can reveal the value with certainty."
    return f"One report: {describe_belief(epsilon)}."


def describe_losses(metric: Metric) -> Iterator[str]:
    """Describe the privacy losses of one report, of all reports of a scope, and of a year."""
    yield _describe_one_report(metric.params)
    # With one report an epoch, all reports are the one report of the sentence above.
    if most_reports(metric) != 1:
        yield _describe_all_reports(scope_loss(metric), _format_epoch(metric))
    if metric.epoch != "life":
        yield from _describe_year(metric)


def _describe_year(metric: Metric) -> Iterator[str]:
    """Describe the privacy loss of a value that stays the same for a year."""
    unchanged = compute_unchanged_loss(metric)
    # A year without a bound needs no sentence: the warning about all reports stands above.
    if math.isinf(unchanged.epsilon):
        return
    text = f"A value that stays the same for a year: {describe_belief(unchanged.epsilon)}"
    if unchanged.named is not None:
        text += (
            f". Somebody who links all reports of a device can pick its value out of "
            f"{unchanged.candidates:,} equally likely ones {100 * unchanged.named:.0f} times in 100"
        )
    yield f"{text}."


def _describe_all_reports(epsilon: float, span: str) -> str:
    if math.isinf(epsilon):
        return "WARNING: many reports can reveal the value with certainty."
    return f"All reports of one value{span}: {describe_belief(epsilon)}."


def _format_epoch(metric: Metric) -> str:
    return "" if metric.epoch == "life" else f" in one {metric.epoch}"


def describe_belief(epsilon: float) -> str:
    """Describe the largest belief, after a loss in nats, of an observer who believed 50 % before.

    Examples
    --------
    >>> describe_belief(2.0)
    'somebody who was half sure what your answer is can be at most 88.1 % sure'
    """
    _, largest = posterior_bound(epsilon, _EVEN_ODDS)
    # Rounded to a tenth, a belief above 99.95 % would be printed as 100 %.
    belief = f"be at most {format_belief(largest)} sure"
    if largest > _NEAR_CERTAINTY:
        belief = "become almost certain"
    return f"somebody who was half sure what your answer is can {belief}"


def describe_promise(metric: Metric) -> str:
    """State the promise of a scope and its condition.

    The loss is bounded for every two histories of values. The bound holds only if number and times
    of the reports do not depend on the values: a device that reports on the days on which a value
    appears reveals the value by its days.
    """
    span = "its whole life" if metric.epoch == "life" else f"each {metric.epoch}"
    subject = ", and its properties, do" if metric.segments else " does"
    condition = f"as long as when and how often a device reports{subject} not depend on its values"
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
    """Describe which properties of a report link it to other reports of the device."""
    links = ("its properties, " if metric.segments else "") + "its network address"
    if most_reports(metric) == 1:
        return (
            f"Linking: a device sends one report a {metric.epoch}, and draws its noise anew for "
            f"each. Only {links} or the time of sending can link those of several {metric.epoch}s."
        )
    # The permanent response links the reports of one scope, besides properties and address.
    linked = linkability(metric.params, reports=(_LINKED_REPORTS,))
    probability = f"{100 * linked.recognised[0].probability:.0f} %"
    cohorts = metric.params.m
    # Few bits with much noise: the permanent response does not distinguish devices in practice.
    if cohorts == 1 and probability == "0 %":
        return f"In practice only {links} or the time of sending can link a device's reports."
    span = "all its reports" if metric.epoch == "life" else f"its reports of one {metric.epoch}"
    properties = "its properties, " if metric.segments else ""
    cohort = f"its cohort (one of {cohorts:,}) and " if cohorts > 1 else ""
    group = " with the same properties" if metric.segments else ""
    return (
        f"Linking: {span} share {properties}{cohort}its permanent noise. With two sets of "
        f"{_LINKED_REPORTS} reports, a device is found among {linked.devices:,}{group} with "
        f"{probability} probability. Beyond that, only {links} or the time of sending can link "
        "reports."
    )


def _describe_release(metric: Metric) -> str:
    """Describe the smallest sums that the collector releases."""
    # min_reports = 0 is for trials, in which one device's sum may be shown.
    if not metric.min_reports:
        return "It shows every sum at once, even that of a single report."
    group = " of one group" if metric.segments else ""
    total = "a cohort" if metric.params.m > 1 else "them"
    return (
        "It shows a sum of whole days only if it has at least "
        f"{format_count(metric.min_reports, 'report')}{group}, and no device sent more than one in "
        f"{metric.min_cohort:,} of {total}."
    )
