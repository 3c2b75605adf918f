"""Privacy notice of a metric: plain sentences about the collection, its losses and its limits.

`rappor collects`, the client and the data sheet print the same sentences to people. The input is a
`Metric`. The order of the sentences is: name and description; owner and last day; values and
frequency; properties without noise; losses; promise; linking of reports; released sums.

Losses and beliefs are bounds, and are rounded towards less privacy: a sentence may promise less
than the device does, and never more. Probabilities of recognition and mean numbers are predictions,
and are rounded as usual. An infinite loss becomes a sentence that begins with WARNING.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rappor.base.sentence_numbers import (
    format_belief,
    format_chance,
    format_count,
    format_mean,
    format_times_in_100,
)
from rappor.privacy.named_items import CERTAINTY, KNOWN_ITEMS
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, epsilon_inf, posterior_bound
from rappor.protocol.params import EXCLUDED_DAYS, Params
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

_EVEN_ODDS: Final = 0.5
"""Belief of an observer before the reports, as a probability. Sentences call it "half sure". A
convention: readers understand even odds without statistics."""

_NEAR_CERTAINTY: Final = 0.99
"""Belief, as a probability, above which a sentence contains "almost certain" in place of a number.
More digits would suggest a protection that the metric does not have."""

_YEAR: Final = 366
"""Days before and after the last day of a metric that are searched for the days of its epoch. A
leap year has 366 days, and no epoch that ends is longer."""

_LINKED_REPORTS: Final = 2
"""Number of reports in each of two sets that an observer compares. Two is the smallest number at
which many devices become recognisable, under the profile "balanced" 20 % of a million devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSentences:
    """Sentences of a privacy notice, by their subject.

    Attributes
    ----------
    heading : name and description of the metric. A description may have several lines.
    owner : who collects the metric, and until when.
    frequency : how often a device records which values, and with which noise.
    late_days : devices that draw a day after the last day. Empty for most metrics.
    segments : properties that a device sends without noise. Empty without segments.
    losses : losses of one report, of all reports, and of a year.
    promise : promise of a scope, and its condition.
    linking : which properties of a report link it to other reports of the device.
    release : what the collector keeps, and the smallest sums that it releases.
    """

    heading: str
    owner: str
    frequency: str
    late_days: tuple[str, ...]
    segments: tuple[str, ...]
    losses: tuple[str, ...]
    promise: str
    linking: str
    release: str


def privacy_notice(metric: Metric, *, today: datetime.date | None = None) -> str:
    """Write the privacy notice of a metric.

    Parameters
    ----------
    metric : the metric.
    today : the present day (UTC). If it is passed, the notice states whether the metric has
        expired.

    Returns
    -------
    Plain text with one sentence or paragraph in each line.

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
    notice = write_notice(metric, today=today)
    lines = (
        notice.heading,
        notice.owner,
        notice.frequency,
        *notice.late_days,
        *notice.segments,
        *notice.losses,
        notice.promise,
        notice.linking,
        notice.release,
    )
    return "\n".join(lines)


def write_notice(metric: Metric, *, today: datetime.date | None = None) -> NoticeSentences:
    """Write the sentences of the privacy notice of a metric, by their subject.

    Parameters
    ----------
    metric, today : as for `privacy_notice`.
    """
    return NoticeSentences(
        heading=f"{metric.name}: {metric.description}",
        owner=f"Collected by {metric.owner} {_format_expiry(metric, today)}.",
        frequency=f"Recorded{_format_frequency(metric)}{_describe_sampling(metric)}: "
        f"{get_encoding(metric.params).description}.{_describe_noise(metric.params)}",
        late_days=tuple(describe_late_days(metric)),
        segments=tuple(describe_segments(metric)),
        losses=tuple(describe_losses(metric)),
        promise=describe_promise(metric),
        linking=_describe_linking(metric),
        release=f"The collector keeps sums by day and cohort, not reports. "
        f"{_describe_release(metric)}",
    )


def describe_other_params(params: Params) -> str:
    """Describe the losses of reports under parameters that are not in the metric's present entry.

    Case: a device has an older registry, and sends reports under the parameters of that registry.
    """
    return (
        f"Some of these reports have other parameters ({params.fingerprint}). "
        f"{_describe_one_report(params)} "
        f"{_describe_all_reports(epsilon_inf(params), ' under them')}"
    )


def _format_expiry(metric: Metric, today: datetime.date | None) -> str:
    """Format the last day, as the end of the sentence "Collected by <owner> ..."."""
    if today is not None and today > metric.expires:
        return f"until {metric.expires}. It has expired: nothing is collected any more"
    return f"until the end of {metric.expires}"


def _format_frequency(metric: Metric) -> str:
    """Format how often a device records a value, as the part of a sentence after "Recorded"."""
    if metric.interval == "epoch":
        frequency = f" once a {metric.epoch}, from a day on that the device draws at random"
    else:
        frequency = f" at most once a {metric.interval}"
    return f"{frequency}, and written to the disk at once" if metric.durable else frequency


def describe_late_days(metric: Metric) -> Iterator[str]:
    """Describe the devices that draw a reporting day after the metric's last day.

    With one report an epoch, each device draws the day of its report at random among the days of
    the epoch without the last eight (`EXCLUDED_DAYS`). Case: the metric expires in the middle of an
    epoch. The devices with a later day report nothing in that epoch.

    Yields nothing if the metric reports more than once an epoch, or if no device draws a day after
    the metric expires.
    """
    if metric.interval != "epoch":
        return
    expiry, epoch = metric.expires.toordinal(), metric.epoch_at(metric.expires)
    # Python's calendar begins on day 1 and ends with the year 9999.
    near = range(max(expiry - _YEAR, 1), min(expiry + _YEAR, datetime.date.max.toordinal()) + 1)
    days = [day for day in near if metric.epoch_at(datetime.date.fromordinal(day)) == epoch]
    drawn_days = days[:-EXCLUDED_DAYS]
    if late := sum(day > expiry for day in drawn_days):
        share = f"{100 * late / len(drawn_days):.3g} %"
        yield (
            f"It expires on {metric.expires}, before the {metric.epoch} ends: the {share} of the "
            f"devices that draw a later day do not answer in that {metric.epoch}."
        )


def _describe_noise(params: Params) -> str:
    """Describe the noise in one sentence; empty if one report can reveal the value."""
    # Case: the loss of one report has no limit, for example with f = 0 and p = 0. A sentence about
    # noise would be false comfort.
    if math.isinf(epsilon_1(params)):
        return ""
    return f" {params.response.description}"


def _describe_sampling(metric: Metric) -> str:
    """Describe the share of the devices that take part; empty if all devices take part."""
    if metric.sampling_rate == 1:
        return ""
    draw_frequency = "drawn once" if metric.epoch == "life" else f"drawn again each {metric.epoch}"
    return f" on {100 * metric.sampling_rate:.3g} % of the devices ({draw_frequency})"


def describe_segments(metric: Metric) -> Iterator[str]:
    """Describe the public properties that a device sends without noise, such as its version.

    Segments are the groups of devices with equal properties. Yields nothing for a metric without
    segments.
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
    """Describe the loss of one report, in one sentence."""
    epsilon = epsilon_1(params)
    if math.isinf(epsilon):
        return "WARNING: one report can reveal the value with certainty."
    return f"One report: {describe_belief(epsilon)}."


def describe_losses(metric: Metric) -> Iterator[str]:
    """Describe the privacy losses of one report, of all reports of a scope, and of a year.

    A scope is one metric in one epoch.
    """
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
    if unchanged.named_items is not None:
        yield (
            f"A set that stays the same loses as much again each {metric.epoch}. After a year "
            f"{describe_belief(unchanged.epsilon)}. "
            f"{_describe_named_items(metric, unchanged.named_items)}"
        )
        return
    text = f"A value that stays the same for a year: {describe_belief(unchanged.epsilon)}"
    if unchanged.named is not None:
        text += (
            f". Somebody who links all reports of a device can pick its value out of "
            f"{unchanged.candidates:,} equally likely ones {format_times_in_100(unchanged.named)}"
        )
    yield f"{text}."


def _describe_named_items(metric: Metric, named_items: float) -> str:
    """Describe how many items an observer names who links the reports of a year.

    Parameters
    ----------
    metric : a metric of sets.
    named_items : expected number of named items (`rappor.privacy.named_items`).
    """
    return (
        f"Nothing in the reports links the {metric.epoch}s. Somebody who links the reports of a "
        "year by other means, such as the network address, and knows how popular each of "
        f"{KNOWN_ITEMS:,} items is, names on average {format_mean(named_items)} of the "
        f"{format_count(metric.params.items, 'item')} of a set with more than "
        f"{100 * CERTAINTY:.0f} % certainty."
    )


def _describe_all_reports(epsilon: float, period: str) -> str:
    """Describe a loss of all reports of one value, in nats.

    `period` is the time of the reports, such as " in one quarter". It may be empty.
    """
    if math.isinf(epsilon):
        return "WARNING: many reports can reveal the value with certainty."
    return f"All reports of one value{period}: {describe_belief(epsilon)}."


def _format_epoch(metric: Metric) -> str:
    """Format the epoch as a part of a sentence; empty for a metric for life."""
    return "" if metric.epoch == "life" else f" in one {metric.epoch}"


def describe_belief(epsilon: float) -> str:
    """Describe the largest belief that a loss in nats allows, from a belief of 50 % before.

    Examples
    --------
    >>> describe_belief(2.0)
    'somebody who was half sure what your answer is can be at most 88.1 % sure'
    """
    return f"somebody who was half sure what your answer is can {describe_certainty(epsilon)}"


def describe_certainty(epsilon: float) -> str:
    """Return the verb of `describe_belief`: how sure somebody can become who was half sure.

    Examples
    --------
    >>> describe_certainty(2.0), describe_certainty(16.0)
    ('be at most 88.1 % sure', 'become almost certain')
    """
    _, largest = posterior_bound(epsilon, _EVEN_ODDS)
    if largest > _NEAR_CERTAINTY:
        # Rounded to a tenth, a belief above 99.95 % would be printed as 100 %.
        return "become almost certain"
    return f"be at most {format_belief(largest)} sure"


def describe_promise(metric: Metric) -> str:
    """State the promise of a scope (one metric in one epoch) and the condition of the promise.

    The loss is bounded for every two histories of values. The bound holds only if number and times
    of the reports do not depend on the values. A device that reports only on the days on which a
    value appears reveals the value by its days.
    """
    period = "its whole life" if metric.epoch == "life" else f"each {metric.epoch}"
    # "when and how often a device reports" is one subject. With properties there are two.
    condition = "as long as when and how often a device reports does not depend on its values"
    if metric.segments:
        condition = (
            "as long as when and how often a device reports, and its properties, do not depend on "
            "its values"
        )
    if most_reports(metric) == 1:
        return (
            f"Promise: in {period} a device sends one report at most. The limit on the loss of "
            f"that report holds for any two histories of values, {condition}."
        )
    return (
        f"Promise: in {period} a device repeats the value of its first report, even if its value "
        f"changes. The limit on the loss holds for any two histories of values, {condition}."
    )


def _describe_linking(metric: Metric) -> str:
    """Describe which properties of a report link it to other reports of the device."""
    links = ("its properties, " if metric.segments else "") + "its network address"
    if most_reports(metric) == 1:
        return (
            f"Linking: a device sends one report a {metric.epoch}, and draws its noise anew for "
            f"each. Only a value that stays the same, {links} or the time of sending can link "
            f"reports of several {metric.epoch}s."
        )
    recognition = describe_recognition(metric)
    if recognition is None:
        return f"In practice only {links} or the time of sending can link a device's reports."
    cohorts = metric.params.m
    linked_reports = (
        "all its reports" if metric.epoch == "life" else f"its reports of one {metric.epoch}"
    )
    properties = "its properties, " if metric.segments else ""
    cohort = f"its cohort (one of {cohorts:,}) and " if cohorts > 1 else ""
    group = " with the same properties" if metric.segments else ""
    return (
        f"Linking: {linked_reports} share {properties}{cohort}its permanent noise. With two sets "
        f"of {_LINKED_REPORTS} reports, a device is found among {recognition.devices}{group} with "
        f"{recognition.probability} probability. Beyond that, only {links} or the time of sending "
        "can link reports."
    )


class Recognition(NamedTuple):
    """Recognition of a device by its permanent noise, as texts for sentences.

    Attributes
    ----------
    devices : number of devices among which the device is found.
    probability : probability that an observer finds it with two sets of 2 reports.
    """

    devices: str
    probability: str


def describe_recognition(metric: Metric) -> Recognition | None:
    """Describe the recognition of a device by its permanent noise; None if it fails in practice.

    Several reports of one scope repeat one permanent response, which links them by its noise. The
    metric must allow several reports in a scope.
    """
    linked = linkability(metric.params, reports=(_LINKED_REPORTS,))
    probability = format_chance(linked.recognised[0].probability)
    # Case: few bits with much noise, such as a yes/no question. The permanent responses of many
    # devices are equal, so they distinguish no device in practice. `format_chance` writes all
    # probabilities below half a per cent alike, so the comparison has this limit.
    if metric.params.m == 1 and probability == format_chance(0.0):
        return None
    return Recognition(f"{linked.devices:,}", probability)


def _describe_release(metric: Metric) -> str:
    """Describe the smallest sums that the collector releases."""
    # min_reports = 0 is allowed for trials, in which a sum may contain the report of one device.
    if not metric.min_reports:
        return "It shows every sum at once, even that of a single report."
    group = " of one group" if metric.segments else ""
    # With a single cohort the sum itself is the cohort: "no device sent more than one in 10 of
    # them", of the reports.
    total = "a cohort" if metric.params.m > 1 else "them"
    return (
        "It shows a sum of whole days only if it has at least "
        f"{format_count(metric.min_reports, 'report')}{group}, and no device sent more than one in "
        f"{metric.min_cohort:,} of {total}."
    )
