"""`rappor attack`: what many reports tell an observer, and what forged ones move."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rappor.cli.console import (
    NUMBER,
    Slow,
    chart_option,
    json_option,
    output,
    print_json,
    seed_option,
)
from rappor.cli.options import metric_options
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.auditing.forger import Moved, Poisoning
    from rappor.auditing.observer import Exposure

_WITH, _WITHOUT = "with the permanent response", "without"


@click.group()
def attack() -> None:
    """Show what an observer of many reports learns, and what a forger moves."""


@attack.command()
@metric_options
@click.option("--devices", type=NUMBER, default=1000, show_default=True, help="To be observed.")
@click.option(
    "--candidates", type=NUMBER, default=100, show_default=True, help="Values it may hold."
)
@seed_option
@json_option
@chart_option
def longitudinal(
    metric: Metric,
    devices: int,
    candidates: int,
    seed: int | None,
    as_json: bool,
    chart: str | None,
) -> None:
    """Observe 1 to 1,000 reports of each device, with and without the permanent response.

    Bits are exact chances, one half is guessing; values are named by maximum likelihood among
    the candidates. No observer can name more than "at most".
    """
    from rappor import auditing

    with Slow() as slow:
        exposure = auditing.observe(
            metric.params, devices=devices, candidates=candidates, seed=seed, progress=slow
        )
    if chart is not None:
        _draw_learned(exposure, chart)
    if as_json:
        document = dataclasses.asdict(exposure)
        rows = [*document.pop("memoised"), *document.pop("redrawn")]
        print_json({"metric": metric.name, "params": metric.fingerprint, **document, "rows": rows})
        return
    _print_learned(exposure)
    click.echo(_told(exposure, metric.params.k))


@attack.command()
@metric_options
@click.option(
    "--share",
    "shares",
    type=float,
    multiple=True,
    help="Forged reports as a share of all; may be repeated [default: .0001, .001, .01].",
)
@click.option(
    "--reports", type=NUMBER, default=1_000_000, show_default=True, help="All, forged ones too."
)
@click.option("--runs", type=NUMBER, default=3, show_default=True, help="Collections.")
@click.option(
    "--candidates", type=NUMBER, default=1000, show_default=True, help="For the detectable share."
)
@seed_option
@json_option
@chart_option
def poisoning(
    metric: Metric,
    shares: tuple[float, ...],
    reports: int,
    runs: int,
    candidates: int,
    seed: int | None,
    as_json: bool,
    chart: str | None,
) -> None:
    """Forge reports of a string that nobody has, with and without the collector's check.

    Forged reports are all ones, or show the string's bits and otherwise as many ones as honest
    ones do. The check refuses numbers of ones that no honest device sends.
    """
    from rappor import auditing

    with Slow() as slow:
        poisoned = auditing.forge(
            metric.params,
            shares=shares or auditing.SHARES,
            n_reports=reports,
            n_candidates=candidates,
            runs=runs,
            seed=seed,
            progress=slow,
        )
    if chart is not None:
        _draw_moved(poisoned.moved, chart)
    if as_json:
        print_json(
            {
                "metric": metric.name,
                "params": metric.fingerprint,
                "reports": poisoned.n_reports,
                "shift": poisoned.shift,
                "detectable_share": poisoned.detectable_share,
                "rows": [dataclasses.asdict(each) for each in poisoned.moved],
            }
        )
        return
    _print_moved(poisoned)


def _print_learned(exposure: Exposure) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("reports", justify="right")
    titles = ("permanent bits", "true bits", "values", "at most", "true bits", "values", "at most")
    for number, title in enumerate(titles):
        table.add_column(title, justify="right", style="dim" if number > 3 else "")
    for kept, redrawn in zip(exposure.memoised, exposure.redrawn, strict=True):
        cells = [kept.permanent_bits or 0.0, kept.true_bits, kept.values, kept.bound]
        cells += [redrawn.true_bits, redrawn.values, redrawn.bound]
        table.add_row(f"{kept.n:,}", *(f"{cell:.1%}" for cell in cells))
    click.echo("Left: one permanent response for ever. Right: as if there were none.\n")
    output().print(table)


def _told(exposure: Exposure, k: int) -> str:
    known = exposure.reports_to_recover
    often = "more than ten thousand reports" if known is None else f"{known:,} reports"
    return (
        f"\nAll {k} permanent bits are known with 99 % after {often}; what remains is\n"
        f"epsilon_inf. The true bits alone would name {exposure.ceiling:.1%} of the values:\n"
        "others share their bits.\n"
        f"Two reports of one device stand out by {exposure.link_score:.2f} standard deviations, "
        f"and its cohort\nlinks them by {exposure.cohort_bits:.1f} bits."
    )


def _print_moved(poisoned: Poisoning) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("forged", "reports", "check"):
        table.add_column(title)
    for title in ("counted", "formula", "bit counts", "decoded", "std error"):
        table.add_column(title, justify="right")
    for each in poisoned.moved:
        moves = (each.formula, each.bits, each.decoded)
        table.add_row(
            f"{each.share:.4%}",
            each.forgery,
            "yes" if each.checked else "no",
            f"{each.counted:.1%}",
            *(f"{move:+,.0f}" for move in moves),
            f"{each.std_error:,.0f}",
        )
    output().print(table)
    click.echo(
        f"\nOne forged report counts as {poisoned.shift:.2f}. Among {poisoned.n_candidates:,} "
        "candidates a string\nthat nobody has is detected about half the time (Bonferroni 5 %) "
        f"when {poisoned.detectable_share:.4%}\nof {poisoned.n_reports:,} reports are forged."
    )


def _draw_learned(exposure: Exposure, path: str) -> None:
    from rappor.reporting.charts import Axis, line_chart, save, side_by_side

    learned = [(_WITH, each) for each in exposure.memoised]
    learned += [(_WITHOUT, each) for each in exposure.redrawn]
    x = Axis(field="n", title="reports of one device", log=True)
    values = line_chart(
        [{"n": each.n, "share": each.bound, "world": name} for name, each in learned],
        points=[{"n": each.n, "share": each.values, "world": name} for name, each in learned],
        x=x,
        y=Axis(field="share", title="share", domain=(0, 1), format="%"),
        series="world",
        title="Values named (dots), and at most (lines)",
    )
    bits = line_chart(
        [{"n": each.n, "share": each.true_bits, "world": name} for name, each in learned],
        x=x,
        y=Axis(field="share", title="share", domain=(0.5, 1), format="%"),
        series="world",
        title="True bits recovered",
    )
    save(side_by_side(values, bits), path)


def _draw_moved(moved: Sequence[Moved], path: str) -> None:
    from rappor.reporting.charts import Axis, line_chart, save

    shares = [each.share for each in moved]
    low, high = min(shares), max(shares)
    steps = [low * (high / low) ** (step / 40) for step in range(41)]
    worth = moved[0].formula / moved[0].share
    chart = line_chart(
        [{"share": share, "reports": share * worth, "what": "formula"} for share in steps],
        points=[
            {"share": each.share, "reports": each.decoded, "what": f"{each.forgery}, decoded"}
            for each in moved
            if each.checked
        ],
        x=Axis(field="share", title="forged reports, share of all", log=True, format="~%"),
        y=Axis(field="reports", title="the estimate moves by, reports"),
        series="what",
        title="What forged reports move, behind the check",
    )
    save(chart, path)
