"""Tables of a plan: its summary, repeated reports, other designs, and parts of strings.

A plan contains the parameters of a future collection and predictions of its results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.planning.plans import ERROR_REMEDIES, Alternative, Plan
from rappor.planning.repeats import RepeatedReports
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import LETTERS, NOISE_LETTERS, Params
from rappor.protocol.profiles import PROFILES
from rappor.reporting.numbers import (
    format_even_odds,
    format_nats,
    format_percent,
    format_short_percent,
)
from rappor.reporting.tables import Column, Table, table_of_cells, table_of_pairs

if TYPE_CHECKING:
    from rappor.planning.association_power import AssociationPower
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.frequencies import Frequencies

_CORRECTIONS: Final = {
    "bh": "Benjamini-Hochberg",
    "adaptive": "adaptive Benjamini-Hochberg",
    "bonferroni": "Bonferroni",
}
"""Names of the corrections for many tests in the literature. The keys are the values of the option
--correction."""

_ERROR_PARTS: Final = {
    "noise": "privacy noise",
    "sampling": "sampling of devices",
    "unexplained": "values that no candidate explains",
    "candidates": "candidates on the same bits",
}
"""Descriptions of the parts of a standard error. The keys are the keys of `Prediction.parts`."""

_POWERS: Final = (0.5, 0.95)
"""Probabilities of detection in the table of a test of independence, in addition to the requested
probability. The two rows show which association is detected in half of the collections, and which
association is almost always detected."""

_NOISE_TOLERANCE: Final = 1e-6
"""Difference of two probabilities below which they count as equal. The output has six digits, so
smaller differences are invisible."""


def plan_table(plan: Plan) -> Table[Sequence[str]]:
    """Return the summary of a plan: its parameters, their privacy losses, and predictions."""
    return table_of_pairs(
        f"Plan for {format_count(plan.reports, 'report')}",
        (*_list_params(plan), *_list_power(plan)),
    )


def repeats_table(repeats: Sequence[RepeatedReports]) -> Table[RepeatedReports]:
    """Return the table of repeated reports of the same devices: detected share, error, and loss."""
    return Table(
        title="What repeated reports of the same devices bring",
        columns=(
            Column("reports of each", lambda row: _format_repeats(row.reports_per_device), "text"),
            Column("detects", lambda row: _format_share(row.share)),
            Column("standard error", lambda row: format_percent(row.absent_std_error, 3)),
            Column("epsilon", lambda row: f"{row.epsilon:.2f}"),
        ),
        rows=repeats,
    )


def alternatives_table(alternatives: Sequence[Alternative]) -> Table[Alternative]:
    """Return the table of other designs with the same privacy loss.

    Designs of generalized randomized response have `keep` in place of f, g, p and q. Designs of
    sets differ in the numbers of items and buckets, which are columns then.
    """

    def column_of_letter(title: str, letter: str) -> Column[Alternative]:
        def format_letter(design: Alternative) -> str:
            # Generalized randomized response has none of the probabilities f, g, p and q.
            if letter in NOISE_LETTERS and letter not in design.params.letters:
                return "-"
            return f"{getattr(design.params, letter):.4f}"

        return Column(title, format_letter)

    def column_of_dimension(letter: str) -> Column[Alternative]:
        return Column(letter, lambda design: f"{getattr(design.params, letter)}")

    noun = get_encoding(alternatives[0].params).value_noun
    present = {letter for design in alternatives for letter in design.params.letters}
    has_bits = present.issuperset(NOISE_LETTERS)
    noise = NOISE_LETTERS if has_bits else ("keep",)
    titles = {**{letter: letter for letter in noise}, "p_star": "p*", "q_star": "q*"}
    has_equal_items = len({design.params.items for design in alternatives}) == 1
    dimensions = () if has_equal_items else ("items", "k")
    equal_letters = "epsilon, k and m" if has_equal_items else "epsilon and m"
    return Table(
        title=(
            f"Other designs with the same {equal_letters} (variance of a rare {noun}'s count by "
            "its noise alone, per report, and its ratio to the optimum)"
        ),
        columns=(
            Column("design", lambda design: design.name, "text"),
            *(column_of_dimension(letter) for letter in dimensions),
            *(column_of_letter(title, letter) for letter, title in titles.items()),
            Column("variance", lambda design: f"{design.variance:.4g}"),
            Column("ratio", lambda design: f"{design.excess:.3f}"),
            Column("detects", lambda design: _format_share(design.share)),
        ),
        rows=alternatives,
    )


def discovery_table(plan: DiscoveryPlan) -> Table[Sequence[str]]:
    """Return the summary of a plan for strings without a list."""
    params, target = plan.params, plan.target
    return table_of_pairs(
        "Plan for strings without a list",
        (
            ("parameters", _format_letters(params, LETTERS)),
            ("epsilon_1", f"{format_nats(epsilon_1(params))} nats"),
            ("epsilon_inf", f"{format_nats(epsilon_inf(params))} nats"),
            ("report size", f"{format_count(params.n_bytes, 'byte')} of bits"),
            (
                "strings",
                f"of up to {plan.longest} characters, {plan.characters} in the alphabet; "
                f"{target.frequencies.n_candidates:,} are assumed",
            ),
            (
                "finds",
                f"{plan.layout.found:,.1f} strings in {format_count(plan.reports, 'report')} "
                f"(false discovery rate {format_short_percent(target.error_control.alpha)})",
            ),
        ),
    )


def association_table(test: AssociationPower) -> Table[Sequence[str]]:
    """Return the table of the strengths of an association that are detected, by probability."""
    n_rows, n_columns = test.n_values
    title = (
        f"Association of {n_rows:,} x {n_columns:,} equally frequent values at "
        f"{format_short_percent(test.level)}: a cell has {format_percent(test.cell_share, 2)} with "
        f"a standard error of {format_percent(test.cell_error, 3)}"
    )
    strengths = [(power, test.find_strength(power)) for power in sorted({*_POWERS, test.power})]
    return table_of_cells(
        title,
        ("detected with probability", "Cramer's V"),
        (
            (format_short_percent(power), "none" if strength is None else f"{strength:.3f}")
            for power, strength in strengths
        ),
    )


def layouts_table(plan: DiscoveryPlan) -> Table[Sequence[str]]:
    """Return the table of the chosen parts, and of the best parts of other numbers."""
    return table_of_cells(
        "Parts, and the best of other numbers of parts",
        ("parts", "shares", "candidates", "kept", "finds"),
        (
            (
                ", ".join(part.name for part in layout.parts),
                ", ".join(
                    format_percent(part.share) if part.share else "rest" for part in layout.parts
                ),
                ", ".join(f"{number:,}" for number in layout.candidates),
                ", ".join(f"{number:,}" for number in layout.kept),
                f"{layout.found:,.1f}",
            )
            for layout in (plan.layout, *plan.others)
        ),
        n_texts=4,
    )


def _list_params(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield pairs of a name and a value about the parameters and their privacy losses."""
    params = plan.params
    # Other encodings have no hash functions and one cohort, so h and m are left out.
    letters = tuple(params.letters)
    if not get_encoding(params).is_hashed:
        letters = tuple(letter for letter in letters if letter not in ("h", "m", "items"))
    yield "encoding", params.encoding
    yield "parameters", _format_letters(params, letters)
    for name in PROFILES:
        if _has_noise_of_profile(params, name):
            yield "noise", f"as in the profile {name}"
    yield "p*, q*", f"{params.p_star:.6f}, {params.q_star:.6f}"
    yield "epsilon_1", _format_loss(epsilon_1(params))
    yield "epsilon_inf", _format_loss(epsilon_inf(params))
    yield "report size", f"{format_count(params.n_bytes, 'byte')} of bits"
    if plan.filling.is_m_too_large:
        yield "m is too large", plan.filling.summary


def _list_power(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield pairs of a name and a value about the detected share and the parts of its error."""
    prediction = plan.prediction
    target = plan.target.with_decoder_method(plan.params, plan.reports)
    noun = get_encoding(plan.params).value_noun
    condition = (
        f"in {format_count(plan.reports, 'report')}{_format_devices(plan)}, among "
        f"{format_count(target.frequencies.n_candidates, 'candidate')} "
        f"({_CORRECTIONS[target.error_control.method]} "
        f"{format_short_percent(target.error_control.alpha)}"
        f"{', weights by rank' if target.error_control.ranked else ''})"
    )
    yield "assumed shares", _describe_population(target.frequencies, noun)
    if target.error_control.ranked:
        yield (
            "assumed order",
            "the list is sorted by the shares, with absent candidates evenly in between; an order "
            f"that is less right detects fewer {format_plural(noun)}",
        )
    if plan.share is None:
        yield "detects", f"no share {condition}"
        return
    share, power = format_percent(plan.share, 3), format_short_percent(target.power)
    yield "detects", f"a share of {share} with {power} probability {condition}"
    yield "expected", f"{prediction.expected_detections:,.1f} detected {format_plural(noun)}"
    yield (
        "interval",
        f"{format_percent(prediction.width, 3)} wide at "
        f"{format_short_percent(target.error_control.confidence)} confidence for that share, "
        f"{format_percent(prediction.adjusted_width, 3)} wide when adjusted "
        "for selection (FCR)",
    )
    if not get_encoding(plan.params).is_hashed:
        yield (
            f"largest {noun}",
            f"a share of {format_percent(prediction.largest_share, 3)} has a standard error of "
            f"{format_percent(prediction.largest_std_error, 3)}",
        )
    parts = prediction.parts.items()
    yield (
        "error comes from",
        ", ".join(f"{_ERROR_PARTS[name]} {format_percent(part)}" for name, part in parts),
    )
    yield "", f"The largest part of the error is {ERROR_REMEDIES[plan.binding]}"
    if get_encoding(plan.params).supports_items:
        mean_items = target.frequencies.total
        yield "assumed", f"sets of {mean_items:.3g} items on average, none above the largest number"
    # The buckets of a rare item of a set may be free of frequent items. Its variance is then below
    # the variance of the closed form, which is no comparison with other mechanisms.
    elif target.reports_per_device == 1:
        yield (
            "variance",
            f"{format_percent(plan.excess - 1)} above the best known mechanism at this epsilon, "
            f"for a rare {noun}{_describe_noise_excess(plan)}",
        )


def _describe_population(frequencies: Frequencies, noun: str) -> str:
    """Describe the assumed population: where its shares come from, and its largest share."""
    n_present = round(float(frequencies.candidates.sum()))
    largest = format_percent(float(frequencies.shares.max()))
    return (
        f"{frequencies.source}: devices have {n_present:,} of the "
        f"{format_count(frequencies.n_candidates, 'candidate')}, and the most frequent {noun} has "
        f"a share of {largest}"
    )


def _describe_noise_excess(plan: Plan) -> str:
    """Describe the part of the excess that the noise alone has.

    The table of other designs compares the noise alone. Without this clause the plan would state
    two numbers for the same excess.
    """
    # The first alternative is the plan itself. Categories have no collisions, so their two numbers
    # are equal.
    if not plan.alternatives or not get_encoding(plan.params).is_hashed:
        return ""
    noise_excess = format_percent(plan.alternatives[0].excess - 1)
    return f", with collisions; {noise_excess} by its noise alone"


def _format_letters(params: Params, letters: Sequence[str]) -> str:
    return ", ".join(f"{letter} = {getattr(params, letter):.6g}" for letter in letters)


def _format_repeats(reports: float | None) -> str:
    """Format the number of reports of a device.

    None stands for any number. If devices send different numbers, the text contains their mean and
    the largest number.
    """
    if reports is None:
        return "any number"
    largest = math.ceil(reports)
    return (
        f"{largest:,}" if reports == largest else f"{reports:.2f} in the mean, at most {largest:,}"
    )


def _format_share(share: float | None) -> str:
    return "nothing" if share is None else format_percent(share, 3)


def _format_devices(plan: Plan) -> str:
    """Format the number of devices; empty if each device sends one report."""
    reports_per_device = plan.target.reports_per_device
    if reports_per_device == 1:
        return ""
    return f" of {plan.reports / reports_per_device:,.0f} devices"


def _has_noise_of_profile(params: Params, name: str) -> bool:
    """Return whether a profile has the same noise, in the digits of the output."""
    encoding = get_encoding(params)
    # Sets are sent by generalized randomized response (GRR), for which some profiles have no noise.
    if encoding.supports_items and not PROFILES[name].supports_grr:
        return False
    profile = Params.profile(
        name,
        encoding=params.encoding,
        categories=params.categories,
        field_names=params.field_names,
        items=params.items,
    )
    letters = params.response.probabilities
    return letters == profile.response.probabilities and all(
        abs(getattr(params, letter) - getattr(profile, letter)) < _NOISE_TOLERANCE
        for letter in letters
    )


def _format_loss(epsilon: float) -> str:
    """Format a loss in nats, and the largest belief after the reports, from 50 % before."""
    return (
        f"{format_nats(epsilon)} nats: somebody who thought a value 50 % likely is at most "
        f"{format_even_odds(epsilon)} sure"
    )
