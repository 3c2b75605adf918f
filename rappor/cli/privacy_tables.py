"""What `rappor privacy` prints for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from rappor.base.sentence_numbers import format_count
from rappor.cli.console import escape, print_parts, section, table
from rappor.cli.numbers import even_odds_become, least_belief
from rappor.planning.changed_params import JointError
from rappor.privacy.assessment import (
    Loss,
    PersonLoss,
    PrivacyReport,
    Shuffling,
)
from rappor.privacy.parameter_changes import EntryChange
from rappor.privacy.report_linkage import Linkability
from rappor.privacy.unchanged_values import UnchangedValueLoss
from rappor.protocol.params import LETTERS, Params
from rappor.reporting.numbers import (
    format_largest_belief,
    format_nats,
    format_percent,
    format_short_percent,
)

_ALIKE: Final = "Below, only devices with the same properties are counted"

_CHOICE: Final = (
    "Losses add up over epochs that somebody links, by address, account or a person's one device. "
    'Choose the epoch by the value: one that changes often, a quarter; one that stays, "life", or '
    'one report a year (interval = "epoch", epoch = "year"). Losses add up over the devices of one '
    "person, too."
)

_SHUFFLER: Final = (
    "This holds if a shuffler that neither you nor the collector runs removes addresses, times and "
    "order. Nothing in this project shuffles: today the collector sees every report alone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detectable:
    """What one report of each device can detect; `std_error` is that of a rare string's count."""

    devices: int
    candidates: int
    std_error: float
    detection_limit: float


def print_report(report: PrivacyReport, error: JointError | None, limit: Detectable) -> None:
    """Print one section after the other; `error` is that of estimates around a change."""
    print_parts(_describe(report.params))
    section(
        "What an observer can believe after reports of one value",
        _beliefs(report.losses),
        "Each cell has the least and the most that the belief above it can become.",
    )
    section(*staying_section(report.staying))
    if report.promise is not None:
        section("What is promised", report.promise)
    if report.without_noise is not None:
        section("What is sent without noise", escape(report.without_noise), f"{_ALIKE}.")
    section(
        "Detection",
        f"A report from each of {format_count(limit.devices, 'device')} detects a share of "
        f"{format_percent(limit.detection_limit, 3)} with 80 % probability, among "
        f"{format_count(limit.candidates, 'candidate')} (Bonferroni 5 %). The standard "
        f"error of a count "
        f"is {limit.std_error:,.0f} reports. This counts the noise alone; "
        "`rappor plan` also counts collisions of strings.",
    )
    if report.shuffling is not None:
        section(_batch(report.shuffling), _shuffled(report.shuffling), _SHUFFLER)
    own = "" if report.without_noise is None else "their properties, "
    section("What links the reports of one device", *_links(report.linkability, own))
    if report.account is not None:
        section(_person(report.account), _account(report.account))
    if report.change is not None:
        section("If the entry changes", *_change(report.change, error, limit.devices))


def staying_section(rows: tuple[UnchangedValueLoss, ...]) -> tuple[str, Table, str]:
    """Return the title, the table and what to choose."""
    shown = table("epoch", "a year (nats)", "from 50 %", "named", "two years (nats)", "named")
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        cells = (
            format_nats(one.epsilon),
            format_largest_belief(one.most, one.epsilon),
            _share_named(one),
        )
        shown.add_row(one.epoch, *cells, format_nats(two.epsilon), _share_named(two))
    among = f"among {rows[0].candidates:,} equally likely"
    return f"A value that stays, and how often it is named {among}", shown, _CHOICE


def _share_named(row: UnchangedValueLoss) -> str:
    return "" if row.named is None else format_percent(row.named, 0)


def _describe(params: Params) -> str:
    """Write a parameter set on two lines."""
    letters = ", ".join(f"{letter} = {getattr(params, letter):.6g}" for letter in LETTERS)
    return (
        f"{params.encoding}, {letters}\n"
        f"p* = {params.p_star:.6f}, q* = {params.q_star:.6f}, fingerprint {params.fingerprint}"
    )


def _reports_or_all(n: int | None) -> str:
    """Write a number of reports, None being any number."""
    return "any number" if n is None else f"{n:,}"


def _beliefs(losses: tuple[Loss, ...]) -> Table:
    priors = (format_short_percent(belief.prior) for belief in losses[0].beliefs)
    shown = table("reports", "epsilon (nats)", *(f"from {prior}" for prior in priors))
    for loss in losses:
        cells = (
            f"{least_belief(belief.least)} to {format_largest_belief(belief.most, loss.epsilon)}"
            for belief in loss.beliefs
        )
        shown.add_row(_reports_or_all(loss.reports), format_nats(loss.epsilon), *cells)
    return shown


def _batch(shuffling: Shuffling) -> str:
    size = "" if shuffling.counted else "at least "
    return (
        f"Shuffled batch of {format_count(shuffling.devices, 'device')} (smallest cohort {size}"
        f"{shuffling.smallest_cohort:,}), delta = {shuffling.delta:g}"
    )


def _shuffled(shuffling: Shuffling) -> Table | str:
    if not shuffling.losses:
        return "A cohort may have one device only: shuffling promises nothing."
    shown = table("reports", "local epsilon", "epsilon after shuffling")
    for loss in shuffling.losses:
        shown.add_row(
            _reports_or_all(loss.reports), format_nats(loss.local), format_nats(loss.epsilon)
        )
    return shown


def _links(linkability: Linkability, own: str) -> Iterator[str]:
    yield (
        "The cohort is the same in all reports of an epoch: it reveals "
        f"{linkability.cohort_bits:.3g} bits about the device."
    )
    found = ", ".join(
        f"{format_percent(each.probability, 0)} ({format_count(each.reports, 'report')} "
        f"in each set)"
        for each in linkability.recognised
        if each.reports is not None
    )
    yield (
        f"Two sets of its reports identify a device among {linkability.devices:,}, of which "
        f"{linkability.cohort_devices:,} are in its cohort, with probability {found}. The "
        f"permanent response reveals {linkability.permanent_bits:.3g} bits once it is known."
    )
    if linkability.reports_to_recover is None:
        yield "10,000 reports of a value do not show the whole permanent response."
    else:
        shown = format_count(linkability.reports_to_recover, "report")
        yield f"The whole permanent response is known (99 %) after {shown} of a value."
    yield (
        f"Metrics and epochs have their own cohorts and permanent responses: only {own}network "
        "address and time link them."
    )


def _person(person: PersonLoss) -> str:
    values = "1 value (epoch)" if person.values == 1 else f"{person.values} values (epochs)"
    reports = format_count(person.reports, "report")
    return f"Account of one person: {values} of each metric, {reports} of each value"


def _account(person: PersonLoss) -> Table:
    titles = ("metric", "promise", "epsilon (nats)", "all reports", "observer at most")
    shown = table(*titles, left=2)
    for each in person.metrics:
        kind = "for life" if each.epoch == "life" else f"by {each.epoch}"
        shown.add_row(each.metric, kind, *_losses(each.epsilon, each.epsilon_inf))
    shown.add_row("all metrics", "", *_losses(person.epsilon, person.epsilon_inf))
    group = f"{person.group:,} people as one"
    shown.add_row(group, "", *_losses(person.group_epsilon, person.group_epsilon_inf))
    return shown


def _losses(epsilon: float, epsilon_inf: float) -> tuple[str, str, str]:
    return format_nats(epsilon), format_nats(epsilon_inf), even_odds_become(epsilon)


def _change(change: EntryChange, error: JointError | None, devices: int) -> Iterator[str]:
    yield change.summary
    if error is None:
        yield "Counts before and after cannot be decoded together: their bits mean other values."
        return
    yield (
        "Give the counts before and after to one decode. The standard error of a rare string's "
        f"share, from {format_count(devices, 'report')} each, is "
        f"{format_percent(error.before, 4)} before, "
        f"{format_percent(error.after, 4)} after and {format_percent(error.together, 4)} together."
    )
    if change.kept:
        yield (
            f"If the same devices report in both, it is {format_percent(error.same_devices, 4)}: "
            "they keep the noise of their permanent responses, which the decoder cannot know."
        )
