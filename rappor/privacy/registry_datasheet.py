"""Data sheet of a registry: collected data, privacy losses, retention and known limits.

A company files the data sheet with its privacy documents; `rappor datasheet` writes it. The input
is the registry, the list of all metrics of a program. The output is a `Document`.

Everything about metrics comes from the registry. The three constants below repeat numbers of the
client and of the collector, because this package must not import them. A test compares the
constants with the originals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_count, format_mean
from rappor.privacy.documents import Document, Section
from rappor.privacy.named_items import CERTAINTY, EPOCH_OF_SETS, KNOWN_ITEMS
from rappor.privacy.notice import describe_promise, describe_segments, privacy_notice
from rappor.privacy.report_linkage import linkability
from rappor.privacy.unchanged_values import UnchangedValueLoss, list_unchanged_losses
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, posterior_bound
from rappor.registry.budget import most_reports, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

RETRY_DAYS: Final = 7
"""Days after the first attempt to send an upload until the device gives up. Repeats the client's
constant."""

UPLOAD_KEY_DAYS: Final = 14
"""Days for which a collector stores the key of an upload, by which it recognises a repeated upload.
Repeats the collector's constant. It exceeds `RETRY_DAYS`, so every retry is recognised."""

LOGGED_UPLOADS: Final = 1000
"""Largest number of uploads in a device's log of sent uploads. Repeats the client's constant."""

_NEAR_CERTAINTY: Final = 0.999
"""Belief, as a probability, above which the data sheet contains "almost certain" in place of a
number. More digits would suggest a protection that the metric does not have."""

LIMITS: Final = (
    "The system does not hide from the receiver of reports that a device takes part, when it "
    "reports, or its network address.",
    "Losses add up over metrics, over epochs that an observer links, and over the devices of one "
    "person.",
    "The promise holds as long as the number and the times of a device's reports do not depend on "
    "its values. `rappor audit --client` tests that.",
    "A folder that is restored as a whole, as from a disk image, does not contain later answers: "
    "each restore can cost another epsilon.",
    "The total is for a calendar year: a year that begins in the middle of a calendar year can "
    "cost twice the total.",
    "A collector that is restored from a backup may count a retried upload twice. No device loses "
    "more by that.",
    "A person who has the device's folder can try all possible values.",
    "Forged reports move the estimates. They do not reveal anybody's value.",
    "Rare values stay below the noise and are not estimated.",
)
"""Sentences of the section "Known limits". Each sentence states a fact that the system does not
hide or prevent."""

LEGAL: Final = (
    "Reports of one epoch can be linked to one device by its permanent noise. Until they are added "
    "up they are pseudonymous data in the sense of Article 4(5) GDPR, and personal data (EDPB "
    "Guidelines 01/2025). Released sums contain no single report.",
    "The client stores a secret and its state on the person's device. Article 5(3) of the ePrivacy "
    "Directive asks for consent to that unless it is strictly necessary. The client does nothing "
    "without consent.",
    "The receiver of uploads learns network addresses. The collector does not log them. A proxy in "
    "front of the collector may log them.",
    "This is not legal advice. Legal basis, controller and processor: [to be filled in].",
)
"""Sentences of the section "Legal terms". The data sheet and the impact assessment contain it."""


def write_datasheet(registry: Registry) -> Document:
    """Write the data sheet of all metrics of a registry.

    Parameters
    ----------
    registry : the metrics that a program collects.

    Returns
    -------
    The document. The same registry gives the same document.
    """
    metrics = tuple(registry.values())
    return Document(
        title="Data sheet of what is collected",
        sections=(
            _write_purpose(metrics),
            _write_privacy_unit(registry),
            _write_wire_fields(metrics),
            _write_retention(metrics),
            _write_recipients(metrics),
            _write_losses(metrics),
            _write_unchanged_losses(metrics),
            Section(title="What links reports", texts=tuple(map(_describe_linking, metrics))),
            _write_withdrawal(),
            Section(title="Known limits", texts=LIMITS),
            Section(title="Legal terms", texts=LEGAL),
            *map(_write_metric, metrics),
        ),
    )


def sum_reserved(registry: Registry) -> float:
    """Add up the nats that all metrics reserve of a calendar year."""
    return math.fsum(reservation.total for reservation in registry.reserved)


def format_loss(epsilon: float) -> str:
    """Format a privacy loss in nats, rounded up to a thousandth, as costs are."""
    if math.isinf(epsilon):
        return "no limit"
    # A sum of floats may be 16.000000000000004. Without the inner rounding it would become 16.001.
    return f"{math.ceil(round(1000 * epsilon, 6)) / 1000:g}"


def format_largest_belief(epsilon: float) -> str:
    """Format the largest belief after a loss in nats, from a belief of 50 % before."""
    largest = posterior_bound(epsilon, 0.5)[1]
    return format_belief(largest) if largest <= _NEAR_CERTAINTY else "almost certain"


def _write_purpose(metrics: Iterable[Metric]) -> Section:
    """Write the table of purposes and owners, with a row for each metric."""
    return Section(
        title="Purpose and owner",
        columns=("metric", "purpose", "owner", "until", "reports", "share of devices"),
        rows=tuple(
            (
                metric.name,
                metric.description,
                metric.owner,
                str(metric.expires),
                f"at most one a {metric.pace}",
                f"{100 * metric.sampling_rate:.3g} %",
            )
            for metric in metrics
        ),
    )


def _write_privacy_unit(registry: Registry) -> Section:
    """Write the unit of privacy, the adversary, and the budget of a device, as SP 800-226 asks."""
    total = format_loss(sum_reserved(registry))
    return Section(
        title="Unit of privacy",
        texts=(
            "The unit is one metric on one device in one epoch (NIST SP 800-226). The device adds "
            "the noise. No other party has to be trusted with values, and there is no delta.",
            "The adversary sees every report of the device and may be the collector.",
            f"All metrics together cost a device at most {total} nats in a calendar year. The "
            "devices of one person add up.",
        ),
    )


def _write_wire_fields(metrics: Iterable[Metric]) -> Section:
    """Write the table of the fields that an upload contains, with a row for each metric."""
    return Section(
        title="Data fields on the wire",
        texts=(
            "An upload is a JSON document: the version of the protocol, 16 random bytes as its id, "
            "and one report. There is no account, no identifier of the device, and no time.",
        ),
        columns=("metric", "parameters", "cohort, one of", "noisy bits", "sent without noise"),
        rows=tuple(
            (
                metric.name,
                ", ".join(metric.accepted),
                f"{metric.params.m:,}",
                f"{metric.params.k:,}",
                _list_segments(metric) or "nothing",
            )
            for metric in metrics
        ),
    )


def _list_segments(metric: Metric) -> str:
    """List the public properties of a metric with their values."""
    return "; ".join(
        f"{dimension.name} ({', '.join(dimension.labels)})" for dimension in metric.segments
    )


def _write_retention(metrics: Iterable[Metric]) -> Section:
    """Write how long a device and the collector keep what they have."""
    retention_periods = [
        f"{metric.name}: {metric.retention}" for metric in metrics if metric.retention
    ]
    # The sums of the other metrics stay: they contain no report.
    of_sums = "; ".join([*retention_periods, "no end: they contain no report"])
    return Section(
        title="Retention",
        columns=("where", "what", "how long"),
        rows=(
            ("device", "secret and state", "until consent is withdrawn"),
            ("device", "reports in the queue", f"{RETRY_DAYS} days after the first attempt"),
            ("device", "a log of sent uploads", f"the last {LOGGED_UPLOADS:,} uploads"),
            ("collector", "a key of each upload, not its id", f"{UPLOAD_KEY_DAYS} days"),
            ("collector", "sums by metric, day and cohort", of_sums),
            ("collector", "single noisy reports", "not stored"),
        ),
    )


def _write_recipients(metrics: Iterable[Metric]) -> Section:
    """Write the recipients, and the smallest sums that a person with a read token sees."""
    return Section(
        title="Recipients",
        texts=(
            "The operator of the collector receives each noisy report, with its address and time. "
            "A person with a read token sees released sums:",
        ),
        columns=("metric", "least reports", "one device is at most"),
        rows=tuple(
            (
                metric.name,
                f"{metric.min_reports:,}" if metric.min_reports else "none",
                f"one in {metric.min_cohort:,} of a cohort's reports",
            )
            for metric in metrics
        ),
    )


def _write_losses(metrics: Iterable[Metric]) -> Section:
    """Write the table of losses of one report and of all reports of an epoch."""
    rows = []
    for metric in metrics:
        report_epsilon, scope_epsilon = epsilon_1(metric.params), scope_loss(metric)
        rows.append(
            (
                metric.name,
                format_loss(report_epsilon),
                format_largest_belief(report_epsilon),
                metric.epoch,
                format_loss(scope_epsilon),
                format_largest_belief(scope_epsilon),
            )
        )
    return Section(
        title="Privacy losses",
        texts=(
            "Losses are in nats. Column 'belief': the largest belief, after the reports, of an "
            "observer who believed 50 % before.",
        ),
        columns=("metric", "a report", "belief", "epoch", "all reports of an epoch", "belief"),
        rows=tuple(rows),
    )


def _write_unchanged_losses(metrics: Collection[Metric]) -> Section:
    """Write the losses of a value that stays the same for one year and for two years."""
    return Section(
        title="A value that stays",
        texts=(
            "If an observer links the epochs, by address, account or because the person has one "
            "device, their losses add up. 'Named' is the share of equally likely values that the "
            "observer names.",
            *_describe_named_items(metrics),
        ),
        columns=("metric", "it stays for", "nats", "belief", "named"),
        rows=tuple(
            _format_unchanged_loss(metric, loss)
            for metric in metrics
            # The list contains every length of an epoch. The data sheet shows the metric's length.
            for loss in list_unchanged_losses(metric.params, metric)
            if loss.epoch == metric.epoch
        ),
    )


def _describe_named_items(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the meaning of the column 'named' for sets; nothing if no metric has sets."""
    if any(get_encoding(metric.params).supports_items for metric in metrics):
        yield (
            "A set that stays loses as much again in each epoch. Nothing in the reports links the "
            "epochs: cohort, bucket and day are drawn anew. For sets, 'named' is the average "
            "number of items that an observer of linked epochs names with more than "
            f"{100 * CERTAINTY:.0f} % certainty, if the observer knows how popular each of "
            f"{KNOWN_ITEMS:,} items is (Zipf's law). {EPOCH_OF_SETS}"
        )


def _format_unchanged_loss(metric: Metric, loss: UnchangedValueLoss) -> tuple[str, ...]:
    """Format the five columns of a row. "named" is empty if the observer names nothing."""
    named = ""
    if loss.named is not None:
        named = f"{100 * loss.named:.0f} % of {loss.candidates:,}"
    if loss.named_items is not None:
        items = format_count(metric.params.items, "item")
        named = f"{format_mean(loss.named_items)} of {items}"
    years = "a year" if loss.years == 1 else f"{loss.years} years"
    largest = format_largest_belief(loss.epsilon)
    return metric.name, years, format_loss(loss.epsilon), largest, named


def _describe_linking(metric: Metric) -> str:
    """Write which properties of a report link it to other reports of the device."""
    # Case: one report an epoch. The reports of two epochs have independent permanent responses.
    if most_reports(metric) == 1:
        return f"{metric.name}: one report an epoch. Only address and time link two reports."
    linked = linkability(metric.params, reports=(2,))
    probability = f"{100 * linked.recognised[0].probability:.0f} %"
    cohort = "the cohort and " if metric.params.m > 1 else ""
    epoch = "life" if metric.epoch == "life" else metric.epoch
    return (
        f"{metric.name}: {cohort}the permanent noise, within one {epoch}. Two sets of 2 reports "
        f"identify a device among {linked.devices:,} with {probability} probability. Address and "
        "time link reports, too."
    )


def _write_withdrawal() -> Section:
    return Section(
        title="Withdrawal",
        texts=(
            "Withdrawal erases on the device: the secret first, then queued reports, state and "
            "log. The device sends nothing afterwards. One line stays: the nats that were reserved "
            "of the year's total, so that a new consent does not renew the total.",
            "Withdrawal cannot erase sent reports. A report that was added to a sum cannot be "
            "found in the sum again, since nothing in the sum names the device.",
        ),
    )


def _write_metric(metric: Metric) -> Section:
    """Write the section of one metric: its privacy notice without the lines of the tables.

    The promise and the sentence about properties without noise come first.
    """
    first = [describe_promise(metric), *describe_segments(metric)]
    # The first line of the notice is the name and the description.
    remaining = [line for line in privacy_notice(metric).splitlines()[1:] if line not in first]
    described = get_encoding(metric.params).description
    # The next two lines are the owner and the frequency. The table of purposes contains both.
    return Section(
        title=f"Metric {metric.name}",
        texts=(f"Answer: {described}.", *first, *remaining[2:]),
    )
