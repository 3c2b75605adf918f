"""Data sheet of a registry: collected data, privacy losses, retention and known limits.

A company files the data sheet with its privacy documents. `rappor datasheet` writes it. The input
is the registry, the list of all metrics of a program. The output is a `Document`.

Everything about metrics comes from the registry. `RETRY_DAYS`, `UPLOAD_KEY_DAYS` and
`LOGGED_UPLOADS` repeat numbers of the client and of the collector, because this package must not
import them. A test compares the three constants with the originals.

A scope is one metric of one device in one epoch. Losses are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_chance, format_count, format_mean
from rappor.privacy.documents import Document, Section
from rappor.privacy.named_items import CERTAINTY, EPOCH_OF_SETS, KNOWN_ITEMS
from rappor.privacy.notice import (
    describe_answer,
    describe_recognition,
    format_recognition,
    write_notice,
)
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

_OPEN: Final = "[to be filled in]"
"""Placeholder of a cell that people have to write."""

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
    "Guidelines 01/2025). A released sum adds up at least `min_reports` reports of its metric. If "
    "`min_reports` is 0, a released sum may be a single report.",
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
    """Return the bound on the loss of a device in a calendar year by all metrics, in nats.

    Each metric reserves the cost of all its epochs that touch the year.
    """
    return math.fsum(reservation.total for reservation in registry.reserved)


def format_loss(epsilon: float) -> str:
    """Format a privacy loss in nats, rounded up to a thousandth; "no limit" if it is infinite.

    The costs of the budget are rounded up, too (`rappor.registry.budget.scope_cost`).
    """
    if math.isinf(epsilon):
        return "no limit"
    # A sum of floats may be 16.000000000000004. Without the inner rounding it would become 16.001.
    thousandths = math.ceil(round(1000 * epsilon, 6))
    # The format "g" would round 1234.562 to six digits, and therefore down.
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".")


def format_largest_belief(epsilon: float) -> str:
    """Format how certain an observer can become of a statement about the value.

    The observer believed the statement with 50 % before the reports, and the reports have the loss
    `epsilon` in nats.
    """
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
    """Write the unit of privacy, the adversary, and the largest loss of a device in a year.

    NIST SP 800-226 asks for these statements about a use of differential privacy.
    """
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
    """List the properties that a device sends without noise (segments), with their values."""
    return "; ".join(
        f"{dimension.name} ({', '.join(dimension.labels)})" for dimension in metric.segments
    )


def _write_retention(metrics: Collection[Metric]) -> Section:
    """Write how long a device and the collector keep what they have."""
    # A metric without `retention` keeps its sums as long as it exists.
    of_sums = "; ".join(f"{metric.name}: {metric.retention or 'no end'}" for metric in metrics)
    return Section(
        title="Retention",
        texts=(
            "A sum names no device. As long as a cohort has only one report of a day, the sum of "
            "this day and cohort is that report.",
        ),
        columns=("where", "what", "how long"),
        rows=(
            ("device", "secret and state", "until consent is withdrawn"),
            ("device", "reports in the queue", f"{RETRY_DAYS} days after the first attempt"),
            ("device", "a log of sent uploads", f"at most the last {LOGGED_UPLOADS:,} uploads"),
            ("collector", "a key of each upload, not its id", f"{UPLOAD_KEY_DAYS} days"),
            ("collector", "sums by metric, day and cohort", of_sums),
            (
                "collector",
                "single noisy reports",
                "until they are added up, as a rule within a minute",
            ),
            # Two choices of the operator, which no registry states.
            ("backups", "sums and keys of uploads, as on the day of the backup", _OPEN),
            ("log of the collector", "number of uploads in each minute", _OPEN),
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
                # A released sum of a cohort has at least `min_cohort` reports. If `min_reports`
                # is 0, that does not apply: every sum is released at once, even one report.
                f"one in {metric.min_cohort:,} of a cohort's reports"
                if metric.min_reports
                else "not limited",
            )
            for metric in metrics
        ),
    )


def _write_losses(metrics: Iterable[Metric]) -> Section:
    """Write the table of losses of one report and of all reports of an epoch.

    `scope_loss` is the loss of all reports that the metric's epoch and interval allow.
    """
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
            for loss in list_unchanged_losses(metric.params, metric.interval)
            if loss.epoch == metric.epoch
        ),
    )


def _describe_named_items(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the meaning of the column 'named' for sets; nothing if no metric has sets.

    A value of a metric of sets is a set of items, such as the plugins of an editor.
    """
    if any(get_encoding(metric.params).supports_items for metric in metrics):
        yield (
            "If a set stays the same, the losses of all epochs add up. Nothing in the reports "
            "links the epochs, because cohort, bucket and day are drawn anew. For sets, 'named' is "
            "the average number of items that an observer of linked epochs names with more than "
            f"{100 * CERTAINTY:.0f} % certainty, if the observer knows how popular each of "
            f"{KNOWN_ITEMS:,} items is (Zipf's law). {EPOCH_OF_SETS}"
        )


def _format_unchanged_loss(metric: Metric, loss: UnchangedValueLoss) -> tuple[str, ...]:
    """Format the five columns of a row: metric, years, loss, belief and 'named'.

    'named' is a share of the candidates or, for sets, a number of items. It is empty if the loss
    has neither.
    """
    named = ""
    if loss.named is not None:
        named = f"{format_chance(loss.named)} of {loss.candidates:,}"
    if loss.named_items is not None:
        items = format_count(metric.params.items, "item")
        named = f"{format_mean(loss.named_items)} of {items}"
    years = "a year" if loss.years == 1 else f"{loss.years} years"
    largest = format_largest_belief(loss.epsilon)
    return metric.name, years, format_loss(loss.epsilon), largest, named


def _describe_linking(metric: Metric) -> str:
    """Write which properties of a report link it to other reports of the device."""
    # Case: one report an epoch. Two reports then belong to two epochs. A device draws its permanent
    # noise anew for each epoch, so the noise does not link the two reports.
    properties = "the properties of the device, " if metric.segments else ""
    if most_reports(metric) == 1:
        return (
            f"{metric.name}: one report an epoch. Only {properties}a value that stays the same, "
            "address and time link two reports."
        )
    recognition = describe_recognition(metric)
    # Case: a yes-or-no metric, whose permanent response is one bit. Many devices have the same bit.
    if recognition is None:
        return f"{metric.name}: in practice only {properties}address and time link two reports."
    cohort = "the cohort and " if metric.params.m > 1 else ""
    period = "in all reports" if metric.epoch == "life" else f"within one {metric.epoch}"
    return (
        f"{metric.name}: {properties}{cohort}the permanent noise, {period}. "
        f"{format_recognition(metric, recognition)} Address and time link reports, too."
    )


def _write_withdrawal() -> Section:
    """Write the section about withdrawal of consent."""
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
    """Write the section of one metric, from its privacy notice.

    Name, description, owner and frequency are left out, because the table of purposes contains
    them.
    """
    notice = write_notice(metric)
    return Section(
        title=f"Metric {metric.name}",
        texts=(
            f"Answer: {describe_answer(metric)}",
            notice.promise,
            *notice.segments,
            *notice.late_days,
            *notice.losses,
            notice.linking,
            notice.release,
        ),
    )
