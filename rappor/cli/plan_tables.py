"""What `rappor plan` prints for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from rappor.base.sentence_numbers import format_count
from rappor.cli.console import print_parts, table
from rappor.cli.numbers import even_odds_become
from rappor.cli.privacy_tables import staying_section
from rappor.privacy.unchanged_values import list_unchanged_losses
from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import LETTERS, NOISE, Params
from rappor.protocol.profiles import PROFILES
from rappor.reporting.numbers import format_nats, format_percent, format_short_percent

if TYPE_CHECKING:
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.plans import Alternative, Plan
    from rappor.planning.repeats import RepeatedReports

_CONTROL: Final = {
    "bh": "Benjamini-Hochberg",
    "adaptive": "adaptive Benjamini-Hochberg",
    "bonferroni": "Bonferroni",
}
_PARTS: Final = {
    "coins": "privacy noise",
    "sampling": "sampling of devices",
    "unexplained": "strings that no candidate explains",
    "candidates": "candidates on the same bits",
}


def print_plan(
    planned: Plan, compared: tuple[RepeatedReports, ...], entry: str, remark: str | None
) -> None:
    """Print the summary, a remark, the repeats, other designs, and the entry for the registry."""
    print_parts(_summary(planned))
    if remark is not None:
        print_parts(f"\n{remark}")
    if compared:
        print_parts("\nWhat repeated reports of the same devices bring:\n", _repeated(compared))
    title, stays, choice = staying_section(list_unchanged_losses(planned.params))
    print_parts(f"\n{title}:\n", stays, choice)
    print_parts(
        "\nOther designs with the same epsilon, k and m (variance of a rare string's count, per "
        "report):\n",
        _others(planned.alternatives),
    )
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _repeated(compared: tuple[RepeatedReports, ...]) -> Table:
    shown = table("reports of each", "detects", "standard error", "epsilon")
    for each in compared:
        number = each.reports_per_device
        shown.add_row(
            "any number" if number is None else _number(number),
            "nothing" if each.share is None else format_percent(each.share, 3),
            format_percent(each.rare_error, 3),
            f"{each.epsilon:.2f}",
        )
    return shown


def _number(reports: float) -> str:
    """Write a number of reports; where it is a mean, also the most of a device."""
    most = math.ceil(reports)
    return f"{most:,}" if reports == most else f"{reports:.2f} in the mean, at most {most:,}"


def _summary(planned: Plan) -> Table:
    params = planned.params
    summary = Table(show_header=False, box=None, pad_edge=False)
    letters = LETTERS if encoding_of(params).hashed else ("k", *NOISE)
    summary.add_row("encoding", params.encoding)
    summary.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in letters))
    for name in PROFILES:
        if _near(params, name):
            summary.add_row("noise", f"as in the profile {name}")
    summary.add_row("p*, q*", f"{params.p_star:.6f}, {params.q_star:.6f}")
    summary.add_row("epsilon_1", _loss(epsilon_1(params)))
    summary.add_row("epsilon_inf", _loss(epsilon_inf(params)))
    summary.add_row("report size", f"{format_count(params.n_bytes, 'byte')} of bits")
    if planned.filling.is_m_too_large:
        summary.add_row("m is too large", planned.filling.summary)
    _add_prediction(summary, planned)
    return summary


def _add_prediction(summary: Table, planned: Plan) -> None:
    from rappor.planning.plans import ERROR_REMEDIES

    prediction = planned.prediction
    question = planned.question.applied(planned.params, planned.reports)
    condition = (
        f"in {format_count(planned.reports, 'report')}{_devices(planned)}, among "
        f"{format_count(question.frequencies.n_candidates, 'candidate')} "
        f"({_CONTROL[question.error_control.method]} "
        f"{format_short_percent(question.error_control.alpha)})"
    )
    if planned.share is None:
        summary.add_row("detects", f"no share {condition}")
        return
    share, power = format_percent(planned.share, 3), format_short_percent(question.power)
    summary.add_row("detects", f"a share of {share} with {power} probability {condition}")
    summary.add_row("expected", f"{prediction.found:,.1f} detected strings")
    summary.add_row(
        "interval",
        f"{format_percent(prediction.width, 3)} wide at "
        f"{format_short_percent(question.error_control.confidence)} confidence for that share, "
        f"{format_percent(prediction.adjusted_width, 3)} wide when adjusted "
        "for selection (FCR)",
    )
    if not encoding_of(planned.params).hashed:
        summary.add_row(
            "largest answer",
            f"a share of {format_percent(prediction.largest, 3)} has a standard error of "
            f"{format_percent(prediction.largest_error, 3)}",
        )
    parts = (f"{_PARTS[name]} {format_percent(part)}" for name, part in prediction.parts.items())
    summary.add_row("error comes from", ", ".join(parts))
    summary.add_row("", f"The largest part of the error is {ERROR_REMEDIES[planned.binding]}")
    if question.reports_per_device == 1:
        summary.add_row(
            "variance",
            f"{format_percent(planned.excess - 1)} above the best known mechanism at this epsilon, "
            "for a rare string",
        )


def _devices(planned: Plan) -> str:
    """Say how many devices the reports come from, where they report again."""
    each = planned.question.reports_per_device
    return "" if each == 1 else f" of {planned.reports / each:,.0f} devices"


def _near(params: Params, name: str) -> bool:
    """Return whether the noise is a profile's, to the digits that are shown."""
    profile = Params.profile(name, encoding=params.encoding, categories=params.categories)
    return all(abs(getattr(params, x) - getattr(profile, x)) < 1e-6 for x in NOISE)


def _loss(epsilon: float) -> str:
    most = even_odds_become(epsilon)
    loss = format_nats(epsilon)
    return f"{loss} nats: somebody who thought a value 50 % likely is at most {most} sure"


def _others(alternatives: tuple[Alternative, ...]) -> Table:
    shown = table("design", "f", "g", "p", "q", "p*", "q*", "variance", "x optimum", "detects")
    for other in alternatives:
        params = other.params
        numbers = (params.f, params.g, params.p, params.q, params.p_star, params.q_star)
        shown.add_row(
            other.name,
            *(f"{number:.4f}" for number in numbers),
            f"{other.variance:.4g}",
            f"{other.excess:.3f}",
            "nothing" if other.share is None else format_percent(other.share, 3),
        )
    return shown


def print_parts_plan(planned: DiscoveryPlan, entry: str) -> None:
    """Show the parts, what they find, and the entry for the registry."""
    print_parts(_summary_of_parts(planned))
    print_parts("\nParts, and the best of other numbers of parts:\n", _layouts(planned))
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _summary_of_parts(planned: DiscoveryPlan) -> Table:
    params, question = planned.params, planned.question
    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in LETTERS))
    summary.add_row("epsilon_1", f"{format_nats(epsilon_1(params))} nats")
    summary.add_row("epsilon_inf", f"{format_nats(epsilon_inf(params))} nats")
    summary.add_row("report size", f"{format_count(params.n_bytes, 'byte')} of bits")
    summary.add_row(
        "strings",
        f"of up to {planned.longest} characters, {planned.characters} in the alphabet; "
        f"{question.frequencies.n_candidates:,} are assumed",
    )
    summary.add_row(
        "finds",
        f"{planned.layout.found:,.1f} strings in {format_count(planned.reports, 'report')} "
        f"(false discovery rate {format_short_percent(question.error_control.alpha)})",
    )
    return summary


def _layouts(planned: DiscoveryPlan) -> Table:
    shown = table("parts", "shares", "candidates", "kept", "finds", left=2)
    for layout in (planned.layout, *planned.others):
        shares = [format_percent(part.share) if part.share else "rest" for part in layout.parts]
        shown.add_row(
            ", ".join(part.name for part in layout.parts),
            ", ".join(shares),
            ", ".join(f"{n:,}" for n in layout.candidates),
            ", ".join(f"{n:,}" for n in layout.kept),
            f"{layout.found:,.1f}",
        )
    return shown
