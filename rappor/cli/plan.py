"""`rappor plan`: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from rappor.cli.commands import Command
from rappor.cli.console import print_json, show, table
from rappor.cli.numbers import NUMBER, WholeNumber, even_odds_become
from rappor.cli.options import (
    Detection,
    chart_option,
    detection_options,
    grouped,
    json_option,
    save_chart,
)
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import MAX_HASHES, PROFILES, Params
from rappor.reporting.numbers import nats, percent, short_percent

if TYPE_CHECKING:
    from rappor.planning.plans import Alternative, Plan
    from rappor.planning.power import Question

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """What a plan may spend, or the profile whose plan is asked for."""

    epsilon_1: float | None
    epsilon_inf: float | None
    profile: str | None
    max_bytes: int | None
    hashes: int | None
    symmetric: bool

    def plan(self, question: Question, size: _Size) -> Plan:
        """Choose the parameters, or take those of the profile, and predict what they find."""
        from rappor import planning

        if self.profile is not None:
            self._check_alone()
            params = Params.profile(self.profile)
            return planning.assess(params, question, reports=size.reports, share=size.share)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError("give --epsilon-1 and --epsilon-inf, or --profile")
        return planning.plan(
            question,
            epsilon_1=self.epsilon_1,
            epsilon_inf=self.epsilon_inf,
            reports=size.reports,
            share=size.share,
            max_bytes=self.max_bytes,
            hashes=self.hashes,
            symmetric=self.symmetric,
        )

    def _check_alone(self) -> None:
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        if any(limit is not None for limit in limits) or self.symmetric:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """How many reports there will be, or which share they have to show."""

    reports: int | None
    share: float | None

    def __post_init__(self) -> None:
        """Refuse both and neither."""
        if (self.reports is None) == (self.share is None):
            raise click.UsageError("give either --reports or --share")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strings:
    """Which strings devices hold, and how many candidates there are."""

    candidates: int
    zipf: float | None
    table: str | None

    def question(self, detection: Detection, power: float) -> Question:
        """Return what the planner is asked."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import Question
        from rappor.simulation.population import Population

        if self.table is None:
            frequencies = Frequencies.zipf(self.candidates, 1.0 if self.zipf is None else self.zipf)
        elif self.zipf is None:
            frequencies = Frequencies.of_shares(
                Population.from_csv(self.table).weights, self.candidates
            )
        else:
            raise click.UsageError("give --zipf or --table, not both")
        return Question(
            frequencies=frequencies,
            correction=detection.correction,
            level=detection.level,
            power=power,
            confidence=detection.confidence,
        )


@click.command(
    cls=Command,
    examples=(
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --reports 1e6",
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --share .01 --chart found.svg",
        "rappor plan --profile balanced --reports 1e6 --table population.csv",
    ),
)
@grouped(
    "budget",
    _Budget,
    click.option(
        "--epsilon-1", type=float, metavar="NATS", help="Largest privacy loss of one report."
    ),
    click.option(
        "--epsilon-inf",
        type=float,
        metavar="NATS",
        help="Largest privacy loss of any number of reports of one value.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="Predict for these named parameters instead of choosing some.",
    ),
    click.option(
        "--max-bytes",
        type=NUMBER,
        metavar="BYTES",
        help="Largest size of the bits of a report.",
    ),
    click.option(
        "--hashes",
        type=WholeNumber(1, MAX_HASHES),
        metavar="N",
        help=f"Consider only designs with N hash functions, 1 to {MAX_HASHES}.",
    ),
    click.option("--symmetric", is_flag=True, help="Consider only designs in which q is 1 - p."),
)
@grouped(
    "size",
    _Size,
    click.option(
        "--reports",
        type=NUMBER,
        metavar="N",
        help="Reports that are expected, such as 1e6; prints the smallest share detected.",
    ),
    click.option(
        "--share",
        type=float,
        metavar="SHARE",
        help="Smallest share to detect (0.01 is 1 %); prints the reports needed.",
    ),
)
@grouped(
    "strings",
    _Strings,
    click.option(
        "--candidates",
        type=NUMBER,
        default=1000,
        show_default=True,
        metavar="N",
        help="Candidate strings that will be tested.",
    ),
    click.option(
        "--zipf",
        type=float,
        metavar="EXPONENT",
        help="Assume shares in proportion to rank^-EXPONENT.  [default: 1]",
    ),
    click.option(
        "--table",
        type=click.Path(),
        metavar="FILE",
        help="Take the shares from a CSV file with the header value,weight.",
    ),
)
@detection_options
@click.option(
    "--power",
    type=float,
    default=0.8,
    show_default=True,
    metavar="PROBABILITY",
    help="Probability with which a string of the smallest share is detected.",
)
@click.option(
    "--name",
    default="my_metric",
    show_default=True,
    metavar="NAME",
    help="Name of the metric in the printed entry of a registry.",
)
@chart_option
@json_option
def plan(
    *,
    budget: _Budget,
    size: _Size,
    strings: _Strings,
    detection: Detection,
    power: float,
    name: str,
    chart: str | None,
    as_json: bool,
) -> None:
    """Choose parameters for a privacy budget before collecting.

    Give the budget (--epsilon-1 and --epsilon-inf, or --profile), and either --reports, for the
    smallest share that is detected, or --share, for the reports that it takes. The entry for
    the registry is printed at the end.

    Only strings (encoding bloom) can be planned; the other encodings have no planner yet.
    """
    planned = budget.plan(strings.question(detection, power), size)
    # The library has no clock; a year is a term that somebody will think about again.
    today = datetime.datetime.now(datetime.UTC).date()
    entry = planned.to_toml(name, expires=today + datetime.timedelta(days=365))
    save_chart(planned, chart)
    if as_json:
        print_json(planned.to_dict(), toml=entry)
    else:
        _print(planned, entry)


def _print(planned: Plan, entry: str) -> None:
    show(
        _summary(planned),
        "\nOther designs with the same epsilon, k and m (variance of a rare string's count, per "
        "report):\n",
        _others(planned.alternatives),
    )
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _summary(planned: Plan) -> Table:
    params = planned.params
    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in "khmfpq"))
    for name in PROFILES:
        profile = Params.profile(name)
        if all(_near(getattr(params, x), getattr(profile, x)) for x in "fpq"):
            summary.add_row("noise", f"as in the profile {name}")
    summary.add_row("p*, q*", f"{params.p_star:.6f}, {params.q_star:.6f}")
    summary.add_row("epsilon_1", _loss(epsilon_1(params)))
    summary.add_row("epsilon_inf", _loss(epsilon_inf(params)))
    _add_enough(summary, params)
    summary.add_row("report size", f"{params.n_bytes} bytes of bits")
    if planned.filling.m_is_too_large:
        summary.add_row("m is too large", f"{planned.filling.told}; a collector shows no others")
    _add_prediction(summary, planned)
    return summary


def _add_enough(summary: Table, params: Params) -> None:
    """Say where a smaller epsilon_inf would detect as much."""
    from rappor.planning.noise import enough_epsilon_inf

    enough = enough_epsilon_inf(epsilon_1(params), h=params.h)
    if epsilon_inf(params) > 1.01 * enough and abs(params.q_star - 0.5) < 1e-3:
        summary.add_row(
            "",
            f"an epsilon_inf of {enough:.4f} would detect just as much and protect repeated "
            "reports better, but makes a device's reports easier to link",
        )


def _add_prediction(summary: Table, planned: Plan) -> None:
    from rappor.planning.plans import REMEDIES

    prediction, question = planned.prediction, planned.question
    condition = (
        f"in {planned.reports:,} reports, among {question.frequencies.n_candidates:,} candidates "
        f"({_CONTROL[question.correction]} {short_percent(question.level)})"
    )
    if planned.share is None:
        summary.add_row("detects", f"no share {condition}")
        return
    share, power = percent(planned.share, 3), short_percent(question.power)
    summary.add_row("detects", f"a share of {share} with {power} probability {condition}")
    summary.add_row("expected", f"{prediction.found:,.1f} detected strings")
    summary.add_row(
        "interval",
        f"{percent(prediction.width, 3)} wide at {short_percent(question.confidence)} confidence "
        f"for that share, {percent(prediction.adjusted_width, 3)} wide when adjusted for selection "
        "(FCR)",
    )
    parts = (f"{_PARTS[name]} {percent(part)}" for name, part in prediction.parts.items())
    summary.add_row("error comes from", ", ".join(parts))
    summary.add_row("", f"the largest part is {REMEDIES[planned.binding]}")
    summary.add_row(
        "variance",
        f"{percent(planned.excess - 1)} above the best known mechanism at this epsilon, for a rare "
        "string",
    )


def _near(probability: float, other: float) -> bool:
    """Tell whether two probabilities are one to the digits of a profile."""
    return abs(probability - other) < 1e-6


def _loss(epsilon: float) -> str:
    most = even_odds_become(epsilon)
    return f"{nats(epsilon)} nats: an observer who gives even odds can be at most {most} sure"


def _others(alternatives: tuple[Alternative, ...]) -> Table:
    shown = table("design", "f", "p", "q", "p*", "q*", "variance", "x optimum", "detects")
    for other in alternatives:
        params = other.params
        numbers = (params.f, params.p, params.q, params.p_star, params.q_star)
        shown.add_row(
            other.name,
            *(f"{number:.4f}" for number in numbers),
            f"{other.variance:.4g}",
            f"{other.excess:.3f}",
            "nothing" if other.share is None else percent(other.share, 3),
        )
    return shown
