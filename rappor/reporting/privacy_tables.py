"""Tables and sentences of `rappor privacy`: losses, linkability, and the cost of a change.

A belief is the probability that an observer assigns to a value of a device, before reports (prior)
or after them (posterior).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rappor.base.sentence_numbers import format_chance, format_count, format_mean
from rappor.planning.changed_params import JointError
from rappor.privacy.assessment import Loss, PersonLoss, ShuffledLoss, Shuffling
from rappor.privacy.named_items import CERTAINTY, EPOCH_OF_SETS, KNOWN_ITEMS
from rappor.privacy.parameter_changes import EntryChange
from rappor.privacy.registry_datasheet import format_loss
from rappor.privacy.report_linkage import Linkability
from rappor.privacy.unchanged_values import UnchangedValueLoss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.reporting.numbers import (
    format_even_odds,
    format_largest_belief,
    format_least_belief,
    format_nats,
    format_percent,
    format_short_percent,
)
from rappor.reporting.tables import Column, Table, table_of_cells

_NOTE_ON_LINKED_EPOCHS: Final = (
    "Losses add up over epochs that somebody links, by address, account or a person's one device, "
    "and over the devices of one person."
)
"""The note below the table of unchanged values begins with this sentence."""

_EPOCH_OF_VALUES: Final = (
    'Choose the epoch by the value: one that changes often, a quarter; one that stays, "life", or '
    'one report a year (interval = "epoch", epoch = "year").'
)
"""Advice about the length of an epoch. It is printed for several reports in an epoch."""

_EPOCH_OF_ONE_REPORT: Final = (
    'Choose the epoch by the value: one that changes often, a quarter; one that stays, "year". '
    '"life" is impossible: one report an epoch (interval = "epoch") needs an epoch that ends.'
)
"""Advice about the length of an epoch of a metric with one report in each epoch. A registry refuses
"life" for such a metric."""

_NOTE_ON_NAMED_STRINGS: Final = (
    "'named' is for strings of which no two share a bit, the worst case, and for an observer who "
    "knows the permanent response of each epoch. Random strings share bits and are named less "
    "often."
)
"""Assumptions of the column 'named' for several reports of a string. The front page states smaller
numbers, of 30 reports of random strings."""

_NOTE_ON_NAMED_STRINGS_OF_ONE_REPORT: Final = (
    "'named' is for strings of which no two share a bit, the worst case. Random strings share bits "
    "and are named less often."
)
"""Assumption of the column 'named'. It is printed for one report of a string in each epoch."""

_NOTE_ON_UNCHANGED_SETS: Final = (
    "Nothing in the reports links epochs: cohort, bucket and day are drawn anew. Losses add up "
    "over epochs that somebody links by other means, such as the network address. 'named' is the "
    f"average number of items that such an observer names with more than {100 * CERTAINTY:.0f} % "
    f"certainty, if the observer knows how popular each of {KNOWN_ITEMS:,} items is. Losses add up "
    f"over the devices of one person, too. {EPOCH_OF_SETS}"
)
"""Advice about the length of an epoch. It is printed below the table of unchanged sets."""


_Rows = tuple[UnchangedValueLoss, UnchangedValueLoss]
"""Losses of an unchanged value after one year and after two years, for one length of an epoch."""


def choose_note_on_unchanged_values(rows: Sequence[UnchangedValueLoss], params: Params) -> str:
    """Return the note below the table of unchanged values.

    The note has the assumptions of the column 'named', and advice about the length of an epoch. The
    advice names only lengths that a registry accepts, which are the lengths of the rows.
    """
    if rows[0].named_items is not None:
        return _NOTE_ON_UNCHANGED_SETS
    # The list has no row for life if a device sends one report in each epoch.
    is_single = all(row.epoch != "life" for row in rows)
    sentences = [_NOTE_ON_LINKED_EPOCHS, _EPOCH_OF_ONE_REPORT if is_single else _EPOCH_OF_VALUES]
    # Categories have a bit or a bucket each, so only strings share bits.
    if get_encoding(params).is_hashed:
        sentences.append(
            _NOTE_ON_NAMED_STRINGS_OF_ONE_REPORT if is_single else _NOTE_ON_NAMED_STRINGS
        )
    return " ".join(sentences)


def format_params(params: Params) -> str:
    """Format a parameter set on two lines."""
    letters = ", ".join(f"{letter} = {value:.6g}" for letter, value in params.letters.items())
    return (
        f"{params.encoding}, {letters}\n"
        f"p* = {params.p_star:.6f}, q* = {params.q_star:.6f}, fingerprint {params.fingerprint}"
    )


def beliefs_table(losses: Sequence[Loss]) -> Table[Loss]:
    """Return the table of the beliefs of an observer after reports of one value.

    A row is a number of reports, and a column is a prior. A cell contains the smallest and the
    largest posterior probability.
    """

    def column_of_prior(i: int, prior: float) -> Column[Loss]:
        return Column(f"from {format_short_percent(prior)}", lambda loss: _format_belief(loss, i))

    priors = [belief.prior for belief in losses[0].beliefs]
    return Table(
        title="What an observer can believe after reports of one value in one epoch",
        columns=(
            Column("reports", lambda loss: _format_reports(loss.reports), "text"),
            Column("epsilon (nats)", lambda loss: format_nats(loss.epsilon)),
            *(column_of_prior(i, prior) for i, prior in enumerate(priors)),
        ),
        rows=losses,
    )


def unchanged_values_table(
    rows: Sequence[UnchangedValueLoss],
) -> Table[_Rows]:
    """Return the table of losses of an unchanged value, with a row for each length of an epoch.

    `rows` contains two entries for each length: after one year, and after two years.
    """
    title = "A value that stays"
    if rows[0].named_items is not None:
        title = "A set that stays, and how many of its items are named"
    elif rows[0].named is not None:
        title += f", and how often it is named among {rows[0].candidates:,} equally likely"
    # Case: "yes" and "no". Nothing is named, so the table has no such columns.
    has_names = (rows[0].named, rows[0].named_items) != (None, None)

    def list_columns(i: int, years: str) -> tuple[Column[_Rows], ...]:
        """Return the columns of the row with index i of each pair: the losses after some years."""
        return (
            Column(f"{years} (nats)", lambda pair: format_nats(pair[i].epsilon)),
            Column("from 50 %", lambda pair: format_largest_belief(pair[i].most, pair[i].epsilon)),
            *((Column("named", lambda pair: _format_named(pair[i])),) if has_names else ()),
        )

    return Table(
        title=title,
        columns=(
            Column("epoch", lambda pair: pair[0].epoch, "text"),
            *list_columns(0, "a year"),
            *list_columns(1, "two years"),
        ),
        rows=tuple(zip(rows[::2], rows[1::2], strict=True)),
    )


def shuffling_table(shuffling: Shuffling) -> Table[ShuffledLoss]:
    """Return the table of losses of reports inside a shuffled batch."""
    size = "" if shuffling.counted else "at least "
    return Table(
        title=(
            f"Shuffled batch of {format_count(shuffling.devices, 'device')} (smallest cohort {size}"
            f"{shuffling.smallest_cohort:,}), delta = {shuffling.delta:g}"
        ),
        columns=(
            Column("reports", lambda loss: _format_reports(loss.reports), "text"),
            Column("local epsilon", lambda loss: format_nats(loss.local)),
            Column("epsilon after shuffling", lambda loss: format_nats(loss.epsilon)),
        ),
        rows=shuffling.losses,
    )


def account_table(person: PersonLoss) -> Table[Sequence[str]]:
    """Return the table of the total loss of one person over all metrics of a registry."""
    values = "1 value (epoch)" if person.values == 1 else f"{person.values} values (epochs)"
    reports = format_count(person.reports, "report")
    group = f"{person.group:,} people as one"
    metrics = (
        (
            metric.metric,
            "for life" if metric.epoch == "life" else f"by {metric.epoch}",
            *_format_losses(metric.epsilon, metric.epsilon_inf),
        )
        for metric in person.metrics
    )
    return table_of_cells(
        f"Account of one person: {values} of each metric, {reports} of each value",
        ("metric", "promise", "epsilon (nats)", "observer at most", "all reports (nats)"),
        (
            *metrics,
            ("all metrics", "", *_format_losses(person.epsilon, person.epsilon_inf)),
            (group, "", *_format_losses(person.group_epsilon, person.group_epsilon_inf)),
        ),
        n_texts=2,
    )


def describe_reserved_loss(person: PersonLoss) -> str:
    """Describe the largest loss of a device in a calendar year, below the table of the account."""
    # Case: a reader takes the sum over one epoch of each metric for the loss of a year.
    return (
        "In a calendar year, all epochs and all reports of all metrics together cost a device at "
        f"most {format_loss(person.reserved)} nats."
    )


def list_links(linkability: Linkability, *, has_properties: bool) -> Iterator[str]:
    """Yield sentences about the linking of reports of one device.

    `has_properties` is True if devices of the metric send public properties without noise.
    """
    if linkability.recognised:
        yield from _list_links_of_an_epoch(linkability)
    else:
        # Case: one report an epoch. The cohort and the permanent response are in no second report.
        yield "A device sends one report in an epoch, so an epoch has no two reports to link."
    properties = "their properties, " if has_properties else ""
    yield (
        f"Metrics and epochs have their own cohorts and permanent responses: only {properties}"
        "network address and time link them."
    )


def _list_links_of_an_epoch(linkability: Linkability) -> Iterator[str]:
    """Yield sentences about cohort and permanent response, which the reports of an epoch share."""
    yield (
        "The cohort is the same in all reports of an epoch: it reveals "
        f"{linkability.cohort_bits:.3g} bits about the device."
    )
    probabilities = ", ".join(
        f"{format_chance(chance.probability)} ({format_count(chance.reports, 'report')} in "
        "each set)"
        for chance in linkability.recognised
        if chance.reports is not None
    )
    yield (
        f"Two sets of its reports identify a device among {linkability.devices:,}, of which "
        f"{linkability.cohort_devices:,} are in its cohort, with probability {probabilities}. The "
        f"permanent response reveals {linkability.permanent_bits:.3g} bits once it is known."
    )
    if linkability.reports_to_recover is None:
        yield "The reports of a value do not show its whole permanent response."
    else:
        reports_text = format_count(linkability.reports_to_recover, "report")
        yield f"The whole permanent response is known (99 %) after {reports_text} of a value."


def list_costs_of_change(
    change: EntryChange, error: JointError | None, devices: int
) -> Iterator[str]:
    """Yield sentences about a change of a metric's entry.

    Parameters
    ----------
    change : privacy loss and reserved budget of a device.
    error : standard errors of estimates before and after the change. None if counts before and
        after the change cannot be decoded together.
    devices : number of reports before, and again after, the change.
    """
    yield change.summary
    if error is None:
        yield "Counts before and after cannot be decoded together: their bits mean other values."
        return
    yield (
        "Give the counts before and after to one decode. The standard error of a small "
        f"share, from {format_count(devices, 'report')} each, is "
        f"{format_percent(error.before, 4)} before, "
        f"{format_percent(error.after, 4)} after and {format_percent(error.together, 4)} together."
    )
    if change.kept:
        yield (
            f"If the same devices report in both, it is {format_percent(error.same_devices, 4)}: "
            "they keep the noise of their permanent responses, which the decoder cannot know."
        )


def _format_reports(n: int | None) -> str:
    """Format a number of reports. None stands for any number."""
    return "any number" if n is None else f"{n:,}"


def _format_belief(loss: Loss, i: int) -> str:
    """Format the smallest and largest belief for the prior with index i, in per cent."""
    belief = loss.beliefs[i]
    largest = format_largest_belief(belief.most, loss.epsilon)
    return f"{format_least_belief(belief.least)} to {largest}"


def _format_named(row: UnchangedValueLoss) -> str:
    """Format the probability that an observer names the value, or the number of named items.

    The result is empty if neither is computed.
    """
    if row.named_items is not None:
        return format_mean(row.named_items)
    return "" if row.named is None else format_percent(row.named, 0)


def _format_losses(epsilon: float, epsilon_inf: float) -> tuple[str, str, str]:
    """Format a loss, the largest belief of an observer after it, and the loss of all reports.

    Losses are in nats. The belief in a value was 50 % before the reports.
    """
    return format_nats(epsilon), format_even_odds(epsilon), format_nats(epsilon_inf)
