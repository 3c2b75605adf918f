"""`rappor plan`: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rappor.cli.console import NUMBER, json_option, output, print_json
from rappor.privacy.notice import at_most
from rappor.protocol.loss import belief_bound, epsilon_1, epsilon_inf
from rappor.protocol.params import MAX_HASHES, PROFILES, Params

if TYPE_CHECKING:
    from rappor.planning.plans import Alternative, Plan
    from rappor.planning.power import Question


@click.command()
@click.option("--epsilon", type=float, help="Loss of one report, in nats.")
@click.option("--lifetime", type=float, help="Loss of all reports of one value, in nats.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Look at a named set instead.")
@click.option("--reports", type=NUMBER, help="Reports that will come, as 1e6; or else --share.")
@click.option("--share", type=float, help="Share of devices that shall be found, as .01.")
@click.option("--candidates", type=NUMBER, default=1000, show_default=True, help="Strings asked.")
@click.option("--zipf", type=float, help="Shares fall as rank^-ZIPF.  [default: 1]")
@click.option("--table", type=click.Path(), help="Or shares from a CSV: value,weight.")
@click.option(
    "--correction",
    type=click.Choice(["bh", "bonferroni"]),
    default="bh",
    show_default=True,
    help="Error control of detection.",
)
@click.option("--level", type=float, default=0.05, show_default=True, help="Its error rate.")
@click.option("--power", type=float, default=0.8, show_default=True, help="Chance of detection.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the intervals.")
@click.option("--max-bytes", type=NUMBER, help="Most bytes for the bits of a report.")
@click.option("--h", "hashes", type=click.IntRange(1, MAX_HASHES), help="Only this h.")
@click.option("--symmetric", is_flag=True, help="Only designs with q = 1 - p.")
@click.option("--name", default="my_metric", show_default=True, help="Name of the metric.")
@json_option
def plan(
    epsilon: float | None,
    lifetime: float | None,
    profile: str | None,
    reports: int | None,
    share: float | None,
    candidates: int,
    zipf: float | None,
    table: str | None,
    correction: str,
    level: float,
    power: float,
    confidence: float,
    max_bytes: int | None,
    hashes: int | None,
    symmetric: bool,
    name: str,
    as_json: bool,
) -> None:
    """Choose parameters before collecting, and say what they will find.

    Give the privacy budget (--epsilon and --lifetime, or --profile), and either --reports, for
    the smallest share that is detected, or --share, for the reports that it takes.
    """
    from rappor import planning

    if (reports is None) == (share is None):
        raise click.UsageError("give either --reports or --share")
    question = _question(
        candidates, zipf, table, correction=correction, level=level, power=power, sure=confidence
    )
    if profile is not None:
        if any(given is not None for given in (epsilon, lifetime, max_bytes, hashes)) or symmetric:
            raise click.UsageError("a --profile is as it is: give no budget and no limits with it")
        chosen = Params.profile(profile)
        made = planning.assess(chosen, question, reports=reports, share=share)
    else:
        if epsilon is None or lifetime is None:
            raise click.UsageError("give --epsilon and --lifetime, or --profile")
        made = planning.plan(
            question,
            epsilon_1=epsilon,
            epsilon_inf=lifetime,
            reports=reports,
            share=share,
            max_bytes=max_bytes,
            hashes=hashes,
            symmetric=symmetric,
        )
    # The library has no clock; a year is a term that somebody will think about again.
    today = datetime.datetime.now(datetime.UTC).date()
    block = made.to_toml(name, expires=today + datetime.timedelta(days=365))
    if as_json:
        print_json({**made.to_dict(), "metric": block})
    else:
        _print(made, block)


def _question(
    candidates: int,
    zipf: float | None,
    table: str | None,
    *,
    correction: str,
    level: float,
    power: float,
    sure: float,
) -> Question:
    from rappor.planning.frequencies import Frequencies
    from rappor.planning.power import Question
    from rappor.simulation.population import Population

    if table is None:
        frequencies = Frequencies.zipf(candidates, 1.0 if zipf is None else zipf)
    elif zipf is None:
        frequencies = Frequencies.of_shares(Population.from_csv(table).weights, candidates)
    else:
        raise click.UsageError("give --zipf or --table, not both")
    return Question(
        frequencies=frequencies,
        correction=correction,
        level=level,
        power=power,
        confidence=sure,
    )


def _print(made: Plan, block: str) -> None:
    console = output()
    console.print(_facts(made))
    console.print(
        "\nThe same privacy otherwise, in the same k and m; variance of a rare string, a report:\n"
    )
    console.print(_others(made.alternatives))
    console.print("\nFor metrics.toml:\n")
    console.print(block, markup=False, end="")


def _facts(made: Plan) -> Table:
    from rappor.planning.noise import enough_epsilon_inf
    from rappor.planning.plans import REMEDIES

    params, prediction, question = made.params, made.prediction, made.question
    facts = Table(show_header=False, box=None)
    facts.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in "khmfpq"))
    for name in PROFILES:
        profile = Params.profile(name)
        if all(_near(getattr(params, x), getattr(profile, x)) for x in "fpq"):
            facts.add_row("noise", f"that of the profile {name}")
    facts.add_row("p*, q*", f"{params.p_star:.6f}, {params.q_star:.6f}")
    facts.add_row("loss, 1 report", _loss(epsilon_1(params)))
    facts.add_row("loss, for ever", _loss(epsilon_inf(params)))
    enough = enough_epsilon_inf(epsilon_1(params), h=params.h)
    if epsilon_inf(params) > 1.01 * enough and abs(params.q_star - 0.5) < 1e-3:
        facts.add_row(
            "enough for ever",
            f"{enough:.4f} nats find as much, and several reports lose less; but reports of one "
            "device are easier to link",
        )
    facts.add_row("a report", f"{params.n_bytes} bytes of bits")
    control = {"bh": "Benjamini-Hochberg", "bonferroni": "Bonferroni"}[question.correction]
    asked = (
        f"in {made.reports:,} reports, among {question.frequencies.n_candidates:,} candidates "
        f"({control} {question.level:.3g})"
    )
    if made.share is None:
        facts.add_row("detects", f"no share {asked}")
        return facts
    detected = f"a share of {made.share:.3%} with {question.power:.0%} chance"
    facts.add_row("detects", f"{detected} {asked}")
    facts.add_row("finds", f"{prediction.found:,.1f} strings, as expected from their shares")
    facts.add_row(
        "its interval",
        f"{prediction.width:.3%} wide at {question.confidence:.4g} confidence; "
        f"{prediction.adjusted_width:.3%} where the list of the detected shall hold as a whole",
    )
    percent = ", ".join(f"{name} {part:.1%}" for name, part in prediction.parts.items())
    facts.add_row("error", f"{percent}; largest is {REMEDIES[made.binding]}")
    facts.add_row(
        "a rare string", f"has {made.excess:.3f} times the least variance known for this loss"
    )
    return facts


def _near(chance: float, other: float) -> bool:
    """Tell whether two probabilities are one to the digits of a profile."""
    return abs(chance - other) < 1e-6


def _loss(epsilon: float) -> str:
    most = at_most(belief_bound(epsilon, 0.5)[1])
    return f"{epsilon:.4f} nats: a suspicion of 50 % becomes at most {most}"


def _others(alternatives: tuple[Alternative, ...]) -> Table:
    shown = Table(box=None, header_style="bold")
    shown.add_column("design", no_wrap=True)
    for name in ("f", "p", "q", "p*", "q*", "variance", "x best", "detects"):
        shown.add_column(name, justify="right", no_wrap=True)
    for other in alternatives:
        params = other.params
        chances = (params.f, params.p, params.q, params.p_star, params.q_star)
        shown.add_row(
            other.name,
            *(f"{chance:.4f}" for chance in chances),
            f"{other.variance:.4g}",
            f"{other.excess:.3f}",
            "nothing" if other.share is None else f"{other.share:.3%}",
        )
    return shown
