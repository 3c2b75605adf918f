"""Skeleton of a data protection impact assessment (DPIA, Article 35 GDPR): risks with likelihoods.

`rappor datasheet` writes the skeleton for a company that must assess a collection before it starts.
The program computes the likelihoods of the risks from the registry. People judge the severity of a
harm and decide: cells for people contain "[to be filled in]".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.base.sentence_numbers import format_chance, format_count, format_mean
from rappor.privacy.documents import Document, Section
from rappor.privacy.registry_datasheet import (
    LEGAL,
    format_largest_belief,
    format_loss,
    sum_reserved,
)
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import compute_unchanged_loss
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_OPEN: Final = "[to be filled in]"
"""Placeholder of a cell that people have to write."""

_Risk = tuple[str, str, str, str]
"""Row of the table of risks. The four texts are description, likelihood, measure and severity."""


def write_impact_assessment(registry: Registry) -> Document:
    """Write the skeleton of the assessment for all metrics of a registry.

    Parameters
    ----------
    registry : the metrics that a program collects.

    Returns
    -------
    The document. The section "Risks" has a table with a row for each risk.
    """
    risks = [risk for metric in registry.values() for risk in _list_metric_risks(metric)]
    return Document(
        title="Data protection impact assessment: skeleton",
        sections=(
            Section(
                title="Processing",
                texts=(
                    "Purpose, fields, recipients and retention are in the data sheet of the same "
                    "registry.",
                    f"Necessity and proportionality: {_OPEN}",
                    f"Data protection officer, consultation of persons concerned: {_OPEN}",
                ),
            ),
            Section(
                title="Risks",
                columns=("risk", "likelihood", "measure", "severity"),
                rows=(*risks, *_list_common_risks(registry)),
            ),
            Section(title="Legal terms", texts=LEGAL),
            Section(title="Decision", texts=(f"Residual risk, decision, date, names: {_OPEN}",)),
        ),
    )


def _list_metric_risks(metric: Metric) -> Iterator[_Risk]:
    """Yield the risks of one metric for a person."""
    report_epsilon, scope_epsilon = epsilon_1(metric.params), scope_loss(metric)
    name = metric.name
    noise = f"noise on the device, epsilon {format_loss(report_epsilon)} a report"
    yield f"{name}: one report reveals the value", _format_likelihood(report_epsilon), noise, _OPEN
    # With one report an epoch, all reports of the epoch are the report above, and link nothing.
    if most_reports(metric) != 1:
        yield (
            f"{name}: all reports of an epoch reveal the value",
            _format_likelihood(scope_epsilon),
            f"the permanent response is repeated, epsilon {format_loss(scope_epsilon)}",
            _OPEN,
        )
        # The observer has a set of reports of one device, and a further set of every device of a
        # group. He assigns to the first device the further set that most likely comes from it.
        # `linkability` has a default for the size of the group. Two rows: sets of 2 reports, and
        # the largest sets, which recognise a device best.
        linked = linkability(metric.params, reports=(2,), most_reports=most_reports(metric))
        for row in linked.recognised:
            n = "any number of" if row.reports is None else f"{row.reports:,}"
            yield (
                f"{name}: an observer who has {n} reports of a device recognises {n} other reports "
                f"of it among those of {linked.devices:,} devices",
                format_chance(row.probability),
                "an upload has one report; each report waits for a random time of its own; the "
                "collector stores sums instead of reports",
                _OPEN,
            )
    unchanged = compute_unchanged_loss(metric)
    # `named` is the probability that an observer names the value. It is None for encodings whose
    # values share bits, because no probability is computed for such encodings.
    if unchanged.named is not None:
        yield (
            f"{name}: linked epochs name a value that stays a year, of {unchanged.candidates:,}",
            format_chance(unchanged.named),
            _describe_measure_for_unchanged_values(metric),
            _OPEN,
        )
    if unchanged.named_items is not None:
        yield (
            f"{name}: linked epochs name items of a set that stays a year",
            f"{format_mean(unchanged.named_items)} of {format_count(metric.params.items, 'item')}, "
            "on average",
            # A set reports once an epoch, so a longer epoch means fewer reports about a set that
            # stays the same. A quarter and a year are the longest epochs that end.
            "another cohort, bucket and day each epoch, and nothing in a report links epochs; "
            'epoch = "quarter" or "year" makes fewer reports',
            _OPEN,
        )
    if metric.segments:
        yield f"{name}: properties sent without noise single out a device", _OPEN, _OPEN, _OPEN


def _describe_measure_for_unchanged_values(metric: Metric) -> str:
    """Describe how a metric protects a value that stays the same over several epochs.

    The advice names only epochs that the registry accepts for the interval of the metric.
    """
    if metric.epoch == "life":
        return "one permanent response for all years"
    redrawn = "another cohort and noise" if metric.params.m > 1 else "other noise"
    # Case: one report an epoch. Such a metric cannot have epoch = "life", because a device draws
    # the day of its report from an epoch with an end.
    longest = "year" if metric.interval == "epoch" else "life"
    return f'{redrawn} each epoch; epoch = "{longest}" for values that stay'


def _list_common_risks(registry: Registry) -> Iterator[_Risk]:
    """Yield the risks that do not depend on one metric."""
    yield (
        "all metrics together profile a person in a year",
        f"at most {format_loss(sum_reserved(registry))} nats for a device",
        "the registry's total, reserved before anything is sent",
        _OPEN,
    )
    yield (
        "a person reads the device's folder and tries all values",
        "certain for a person who has the folder",
        "only its user can read it; withdrawal of consent erases the secret before all other files",
        _OPEN,
    )
    # Case: a registry without metrics has no released sum.
    min_cohort = min((metric.min_cohort for metric in registry.values()), default=None)
    # A metric without a least number shows each sum at once, even the report of one device.
    at_once = [metric.name for metric in registry.values() if not metric.min_reports]
    if min_cohort is not None:
        yield (
            "a released sum shows one device",
            f"certain where one device has reported: {', '.join(at_once)} (min_reports = 0)"
            if at_once
            else f"in each cohort, one device has sent at most one in {min_cohort:,} of the "
            "reports",
            "sums of whole days only, with a smallest number of reports",
            _OPEN,
        )
    # `server/THEFT.md` says in detail what each stolen part reveals.
    yield (
        "somebody steals the collector's database, its disk or a backup",
        _OPEN,
        "no values and no addresses are stored; a report that is not added up yet, or that is "
        "alone in the sum of its day and cohort, keeps its noise; encrypted disk, and no copies "
        f"but backups: {_OPEN}",
        _OPEN,
    )
    yield "addresses and times are logged before the collector", _OPEN, _OPEN, _OPEN


def _format_likelihood(epsilon: float) -> str:
    """Format the largest belief after a loss in nats, of an observer with even odds before."""
    largest = format_largest_belief(epsilon)
    # Case: a large loss. "Almost certain" is no number, so "at most" would say nothing.
    at_most = " at most" if largest.endswith("%") else ""
    return f"{largest}{at_most}, from 50 %"
