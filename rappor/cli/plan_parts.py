"""`rappor plan --discover`: parts for strings that nobody knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rappor.cli.alphabet import characters
from rappor.cli.console import show, table
from rappor.cli.numbers import WholeNumber
from rappor.cli.options import asked, asked_flag
from rappor.ground.plurals import counted
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import LETTERS
from rappor.reporting.numbers import nats, percent, short_percent

if TYPE_CHECKING:
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.power import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What strings are looked for without a list, if any are."""

    discover: bool = asked_flag(
        "Plan parts that find strings without a list of candidates. --candidates is then the "
        "number of strings."
    )
    longest: int | None = asked(
        WholeNumber(2), "Length of the longest string to find, in characters, with --discover."
    )
    alphabet: str | None = asked(
        "CHARACTERS", "Characters of the strings, with --discover.  [default: a-z]"
    )

    def __post_init__(self) -> None:
        """Refuse a length or an alphabet of nothing, and a search without a length."""
        if not self.discover and (self.longest is not None or self.alphabet is not None):
            raise click.UsageError("--longest and --alphabet go with --discover")
        if self.discover and self.longest is None:
            raise click.UsageError("--discover needs --longest, the characters of a string")

    def plan(
        self, question: Question, *, budget: tuple[float, float], reports: int
    ) -> DiscoveryPlan:
        """Choose the parts."""
        from rappor.planning.discovery_plan import plan_discovery

        assert self.longest is not None
        return plan_discovery(
            question,
            epsilon_1=budget[0],
            epsilon_inf=budget[1],
            reports=reports,
            longest=self.longest,
            characters=len(characters(self.alphabet or "a-z")),
        )


def print_parts_plan(planned: DiscoveryPlan, entry: str) -> None:
    """Show the parts, what they find, and the entry for the registry."""
    show(_summary(planned))
    show("\nParts, and the best of other numbers of parts:\n", _layouts(planned))
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _summary(planned: DiscoveryPlan) -> Table:
    params, question = planned.params, planned.question
    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in LETTERS))
    summary.add_row("epsilon_1", f"{nats(epsilon_1(params))} nats")
    summary.add_row("epsilon_inf", f"{nats(epsilon_inf(params))} nats")
    summary.add_row("report size", f"{counted(params.n_bytes, 'byte')} of bits")
    summary.add_row(
        "strings",
        f"of up to {planned.longest} characters, {planned.characters} in the alphabet; "
        f"{question.frequencies.n_candidates:,} are assumed",
    )
    summary.add_row(
        "finds",
        f"{planned.layout.found:,.1f} strings in {counted(planned.reports, 'report')} "
        f"(false discovery rate {short_percent(question.detection.level)})",
    )
    return summary


def _layouts(planned: DiscoveryPlan) -> Table:
    shown = table("parts", "shares", "candidates", "kept", "finds", left=2)
    for layout in (planned.layout, *planned.others):
        shares = [percent(part.share) if part.share else "rest" for part in layout.parts]
        shown.add_row(
            ", ".join(part.name for part in layout.parts),
            ", ".join(shares),
            ", ".join(f"{n:,}" for n in layout.candidates),
            ", ".join(f"{n:,}" for n in layout.kept),
            f"{layout.found:,.1f}",
        )
    return shown
