"""Privacy notice of a metric: plain sentences about the collection, its losses and its limits.

`rappor collects`, the client and the data sheet print the same sentences to people. The input is a
`Metric`. The sentences say in this order:

1. the name and the description of the metric
2. who collects it, and until which day
3. how often a device records a value, and with which noise
4. which properties of the device, such as its version, every report shows without noise
5. how much an observer of the reports can learn about a value (the privacy loss)
6. for which time and under which condition this limit holds (the promise)
7. by which of their properties an observer recognises reports of one device (linking)
8. how many reports a sum needs before the collector releases it

Losses and beliefs are bounds, and are rounded towards less privacy. So a sentence may promise less
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
from rappor.protocol.parts import parse_prefix_length
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric

_EVEN_ODDS: Final = 0.5
"""Belief of an observer before the reports, as a probability. Sentences call it "half sure". A
convention: readers understand even odds without statistics."""

_NEAR_CERTAINTY: Final = 0.99
"""Belief, as a probability, above which a sentence contains "almost certain" in place of a number.
More digits would suggest a protection that the metric does not have."""

_LONGEST_EPOCH_DAYS: Final = 366
"""Number of days of the longest epoch: a leap year. Every day of the epoch in which a metric
expires is at most this far from the last day of the metric. Metrics for life are not searched."""

_LINKED_REPORTS: Final = 2
"""Number of reports in each of two sets that an observer of few reports compares. Two is the
smallest number at which such an observer recognises many devices. Under the profile "balanced", an
observer recognises 1 % of a million devices with one report in each set, and 20 % with two.

The notice also has the probability for the largest sets, half of the reports of an epoch. Bad case
without it: 24 categories under the profile "strict". Two reports recognise 0.2 % of the devices,
and 46 reports, half of the days of a quarter, recognise 13 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSentences:
    """Sentences of a privacy notice, by their subject.

    Attributes
    ----------
    heading : name and description of the metric. A description may have several lines.
    owner : who collects the metric, and until when.
    frequency : how often a device records which values, and with which noise.
    late_days : share of the devices that never report in the last epoch, because they draw a
        reporting day after the metric expires. Empty for most metrics (`describe_late_days`).
    segments : properties that a device sends without noise. Empty without segments.
    losses : losses of one report, of all reports, and of a year.
    promise : bound on the loss of one scope (one metric in one epoch), and the condition under
        which the bound holds.
    linking : properties of a report by which an observer links it to other reports of the device.
    release : data that the collector keeps, and the smallest sums that it releases.
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
        f"{describe_answer(metric)}{_describe_noise(metric.params)}",
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
    # Days are ordinals: numbers of days of Python's calendar, from 1 to the end of the year 9999.
    expiry = metric.expires.toordinal()
    first_searched = max(expiry - _LONGEST_EPOCH_DAYS, 1)
    last_searched = min(expiry + _LONGEST_EPOCH_DAYS, datetime.date.max.toordinal())
    epoch_of_expiry = metric.epoch_at(metric.expires)
    days_of_epoch = [
        day
        for day in range(first_searched, last_searched + 1)
        if metric.epoch_at(datetime.date.fromordinal(day)) == epoch_of_expiry
    ]
    drawn_days = days_of_epoch[:-EXCLUDED_DAYS]
    n_late_days = sum(day > expiry for day in drawn_days)
    if n_late_days:
        share = f"{100 * n_late_days / len(drawn_days):.3g} %"
        yield (
            f"It expires on {metric.expires}, before the {metric.epoch} ends: the {share} of the "
            f"devices that draw a later day do not answer in that {metric.epoch}."
        )


def describe_answer(metric: Metric) -> str:
    """Describe which values a device reports, and which part of a string, in full sentences.

    Examples
    --------
    >>> import datetime
    >>> from rappor.protocol.parts import Part
    >>> metric = Metric(
    ...     name="page", params=Params.profile("balanced"), description="d", owner="o",
    ...     expires=datetime.date(2030, 1, 1), epoch="year",
    ...     parts=(Part("prefix:3", 0.2), Part("whole")),
    ... )
    >>> describe_answer(metric).partition(". ")[2][:39]
    'A device reports its first 3 characters'
    """
    answer = f"{get_encoding(metric.params).description}."
    if not metric.parts:
        return answer
    # Prefixes find strings that no list contains. A person must know that unlisted values are
    # searched, and that his device may report the beginning of his value.
    *prefixes, _ = metric.parts
    shares = [part.share or 0.0 for part in prefixes]
    parts = [
        f"its first {format_count(parse_prefix_length(part.name), 'character')} ({100 * share:.3g} "
        "% of the devices)"
        for part, share in zip(prefixes, shares, strict=True)
    ]
    whole = f"all of it ({100 * (1 - math.fsum(shares)):.3g} % of the devices)"
    return f"{answer} A device reports {', '.join(parts)} or {whole}, {_describe_draw(metric)}."


def _describe_draw(metric: Metric) -> str:
    """Describe how often a device draws whether it takes part, and which part it reports."""
    return "drawn once" if metric.epoch == "life" else f"drawn again each {metric.epoch}"


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
    return f" on {100 * metric.sampling_rate:.3g} % of the devices ({_describe_draw(metric)})"


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
        f"Every report shows these properties of the device, without noise: {properties}{time}. "
        f"Everybody who sees a report knows which of {metric.n_segments:,} groups its device is "
        "in. The limits below are for the value. They do not cover what these properties reveal "
        "about it."
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
            f"If a set stays the same, the losses of all its {metric.epoch}s add up. After a year "
            f"{describe_belief(unchanged.epsilon)}. "
            f"{_describe_named_items(metric, unchanged.named_items)}"
        )
        return
    text = f"A value that stays the same for a year: {describe_belief(unchanged.epsilon)}"
    naming_probability = unchanged.named
    if naming_probability is not None:
        text += (
            f". Somebody who links all reports of a device can pick its value out of "
            f"{unchanged.candidates:,} equally likely ones "
            f"{format_times_in_100(naming_probability)}"
        )
    yield f"{text}."


def _describe_named_items(metric: Metric, named_items: float) -> str:
    """Describe how many items of a set an observer recognises from the reports of a year.

    The observer links the reports, and names the items that are in the set with more than 90 %
    certainty.

    Parameters
    ----------
    metric : a metric of sets.
    named_items : expected number of named items (`rappor.privacy.named_items`).
    """
    n_items = format_count(metric.params.items, "item")
    return (
        f"Nothing in the reports links the {metric.epoch}s. Somebody can still link the reports of "
        "a year by other means, such as the network address, and may know how popular each of "
        f"{KNOWN_ITEMS:,} items is. Of a set of {n_items}, this observer can on average name "
        f"{format_mean(named_items)} with more than {100 * CERTAINTY:.0f} % certainty."
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
    """Describe the largest belief that a loss in nats allows somebody who believed 50 % before.

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
        # Case: a large loss. The bound would be printed as "at most 99.97 %". A reader would take
        # so many digits for a protection, and there is almost none.
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
    condition = (
        "The condition is that the values do not affect when and how often the device reports."
    )
    if metric.segments:
        condition = (
            "The condition is that the values affect neither its properties nor when and how often "
            "the device reports."
        )
    if most_reports(metric) == 1:
        return (
            f"Promise: in {period} a device sends one report at most. The limit on the loss of "
            f"that report holds whatever values the device has over time. {condition}"
        )
    return (
        f"Promise: in {period} a device repeats the value of its first report, even if its value "
        f"changes. The limit on the loss holds whatever values the device has over time. "
        f"{condition}"
    )


def _describe_linking(metric: Metric) -> str:
    """Describe which properties of a report link it to other reports of the device."""
    properties = "its properties, " if metric.segments else ""
    links = f"{properties}its network address"
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
        "all reports of a device"
        if metric.epoch == "life"
        else f"the reports of a device in one {metric.epoch}"
    )
    cohort = f"its cohort (one of {cohorts:,}) and " if cohorts > 1 else ""
    shared_links = "cohort and noise" if cohorts > 1 else "noise"
    return (
        f"Linking: {linked_reports} share {properties}{cohort}its permanent noise. "
        f"{format_recognition(metric, recognition)} Apart from {shared_links}, only {links} or the "
        "time of sending can link reports."
    )


def format_recognition(metric: Metric, recognition: Recognition) -> str:
    """Format the probabilities of recognition as two sentences, for few and for many reports."""
    group = " with the same properties" if metric.segments else ""
    return (
        f"Somebody who has {_LINKED_REPORTS} reports of a device, and {_LINKED_REPORTS} further "
        f"reports of each of {recognition.devices} devices{group}, finds those of the same device "
        f"with {recognition.probability} probability. With {recognition.largest_set} in place of "
        f"{_LINKED_REPORTS}, the probability is {recognition.largest_probability}."
    )


class Recognition(NamedTuple):
    """Recognition of a device by its permanent noise, as texts for sentences.

    Attributes
    ----------
    devices : number of devices among which an observer looks for the device.
    probability : probability that the observer finds the device by comparing two sets of 2 reports.
    largest_set : number of reports in each of the largest two sets, half of the reports of an
        epoch, or "any number".
    largest_probability : probability that the observer finds the device by comparing the largest
        sets.
    """

    devices: str
    probability: str
    largest_set: str
    largest_probability: str


def describe_recognition(metric: Metric) -> Recognition | None:
    """Describe the recognition of a device by its permanent noise; None if it fails in practice.

    Several reports of one scope repeat one permanent response, which links them by its noise. The
    metric must allow several reports in a scope. The recognition fails in practice if all devices
    are in one cohort and the probability is below half a per cent, even for the largest sets.
    """
    linked = linkability(
        metric.params, reports=(_LINKED_REPORTS,), most_reports=most_reports(metric)
    )
    few, largest = linked.recognised
    largest_probability = format_chance(largest.probability)
    # Case: few bits with much noise, such as a yes/no question. The permanent responses of many
    # devices are equal, so they distinguish no device in practice. `format_chance` writes every
    # probability below half a per cent as it writes 0.
    is_negligible = largest_probability == format_chance(0.0)
    # With several cohorts, a report shows the cohort of its device. The cohort links reports, so
    # the notice must say so even if the noise links none.
    has_one_cohort = metric.params.m == 1
    if has_one_cohort and is_negligible:
        return None
    return Recognition(
        devices=f"{linked.devices:,}",
        probability=format_chance(few.probability),
        largest_set="any number" if largest.reports is None else f"{largest.reports:,}",
        largest_probability=largest_probability,
    )


def _describe_release(metric: Metric) -> str:
    """Describe the smallest sums that the collector releases."""
    # min_reports = 0 is allowed for trials, in which a sum may contain the report of one device.
    if not metric.min_reports:
        return "It shows every sum at once, even the sum of a single report."
    group = " of one group" if metric.segments else ""
    # The collector limits the share of one device in the reports of each cohort. With a single
    # cohort, these are all reports of the sum, and the sentence needs no cohorts.
    reports_with_limit = "the reports of a cohort" if metric.params.m > 1 else "these reports"
    return (
        "It shows a sum of whole days only if the sum contains at least "
        f"{format_count(metric.min_reports, 'report')}{group}, and if no device sent more than one "
        f"in {metric.min_cohort:,} of {reports_with_limit}."
    )
