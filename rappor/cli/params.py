"""`rappor params`: the privacy loss of a parameter set, and what it can detect."""

from __future__ import annotations

from dataclasses import dataclass

import click
from rich.table import Table

from rappor.cli.commands import Command
from rappor.cli.console import print_json, section, show, table
from rappor.cli.numbers import COUNT, even_odds_become
from rappor.cli.options import chart_option, json_option
from rappor.cli.subject import Subject, subject_options
from rappor.planning.detection_limit import detection_limit, standard_error
from rappor.privacy.report import Loss, assess_losses
from rappor.protocol.params import Params
from rappor.reporting.numbers import nats, percent

_LETTERS = ("k", "h", "m", "f", "p", "q")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsReport:
    """What a parameter set loses and detects; `std_error` is that of a rare string's count."""

    params: Params
    losses: tuple[Loss, ...]
    reports: int
    candidates: int
    std_error: float
    detection_limit: float

    @property
    def epsilon_1(self) -> float:
        """The loss of one report, in nats."""
        return self.losses[0].epsilon

    @property
    def epsilon_inf(self) -> float:
        """The loss of any number of reports of one value, in nats."""
        return self.losses[-1].epsilon


@click.command(
    cls=Command,
    examples=(
        "rappor params --profile balanced",
        "rappor params --profile balanced --chart beliefs.svg",
        "rappor params --bits 128 --hashes 2 --cohorts 16 -f .5 -p .5 -q .75",
        "rappor params --registry metrics.toml --metric search_engine --json",
    ),
)
@subject_options
@click.option(
    "--reports",
    type=COUNT,
    default=1_000_000,
    show_default="1e6",
    metavar="N",
    help="Reports in the collection, for the detection limit.",
)
@click.option(
    "--candidates",
    type=COUNT,
    default=1000,
    show_default=True,
    metavar="N",
    help="Candidate strings, for the detection limit.",
)
@chart_option
@json_option
def params(
    *, subject: Subject, reports: int, candidates: int, chart: str | None, as_json: bool
) -> None:
    """Show the privacy loss and the detection limit of parameters.

    Name a metric of a registry (--registry, --metric), a --profile, or the parameters one by one.
    The detection limit includes only the privacy noise; `rappor plan` also includes collisions of
    strings.
    """
    found = ParamsReport(
        params=subject.params,
        losses=assess_losses(subject.params),
        reports=reports,
        candidates=candidates,
        std_error=standard_error(subject.params, reports),
        detection_limit=detection_limit(subject.params, reports, n_candidates=candidates),
    )
    if chart is not None:
        from rappor.reporting.plots import losses_plot

        losses_plot(found.losses).save(chart)
    if as_json:
        print_json(found)
    else:
        _print(found)


def describe_params(params: Params) -> str:
    """Write a parameter set on two lines."""
    letters = ", ".join(f"{letter} = {getattr(params, letter):.6g}" for letter in _LETTERS)
    return (
        f"{params.encoding}, {letters}\n"
        f"p* = {params.p_star:.6f}, q* = {params.q_star:.6f}, fingerprint {params.fingerprint}"
    )


def reports_of(n: int | None) -> str:
    """Write a number of reports, None being any number."""
    return "any number" if n is None else f"{n:,}"


def _print(found: ParamsReport) -> None:
    show(describe_params(found.params))
    section(
        "Privacy loss by the number of reports of one value",
        _losses(found.losses),
        "Somebody who thought it 50 % likely that a device has some value can be at most this sure "
        "afterwards.",
    )
    section(
        "Detection",
        f"{found.reports:,} reports detect a share of {percent(found.detection_limit, 3)} with "
        f"80 % probability, among {found.candidates:,} candidates (Bonferroni 5 %). The standard "
        f"error of a count is {found.std_error:,.0f} reports.",
    )


def _losses(losses: tuple[Loss, ...]) -> Table:
    shown = table("reports", "epsilon (nats)", "observer at most")
    for loss in losses:
        most = even_odds_become(loss.epsilon)
        shown.add_row(reports_of(loss.reports), nats(loss.epsilon), most)
    return shown
