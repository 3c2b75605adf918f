"""`rappor attack`: what many reports tell an observer, and what forged ones move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from rappor.cli.commands import Group, command
from rappor.cli.console import Slow, print_json, show, table
from rappor.cli.options import asked, chart_option, json_option, seed_option
from rappor.cli.subject import Subject, subject_options
from rappor.protocol.params import Params
from rappor.reporting.numbers import most_belief, percent

if TYPE_CHECKING:
    from rappor.auditing.forger import Poisoning
    from rappor.auditing.observer import Exposure, Learned

_FRESH = "(fresh)"
"""Marks the columns of devices without a permanent response."""

_WORLDS: Final = {True: "with the permanent response", False: "without it (fresh noise each time)"}


@command(
    "rappor attack longitudinal --profile balanced --devices 100 --seed 1",
    "rappor attack longitudinal --registry metrics.toml --metric theme \\\n"
    "  --devices 100 --chart learned.svg",
)
def longitudinal(
    *,
    subject: Subject = subject_options(),
    devices: int = asked("N", "Devices that are observed.", default=1000),
    candidates: int = asked("N", "Values that a device may have, all equally likely.", default=100),
    seed: int | None = seed_option(),
    as_json: bool = json_option(),
    chart: str | None = chart_option(),
) -> None:
    """Show what many reports of one device reveal to an observer.

    An observer sees 1 to 1,000 reports of each device, with and without the permanent response.
    Shares of bits are exact, and one half is guessing. Values are named by maximum likelihood among
    the candidates. No observer can name more than "at most".
    """
    from rappor import auditing

    with Slow() as slow:
        exposure = auditing.observe(
            subject.params, devices=devices, candidates=candidates, seed=seed, progress=slow
        )
    if chart is not None:
        _draw_exposure(exposure, chart)
    if as_json:
        print_json(exposure, metric=subject.named)
    else:
        _print_exposure(exposure, subject.params)


@command("rappor attack poisoning --profile balanced --reports 1e5")
def poisoning(
    *,
    subject: Subject = subject_options(),
    reports: int = asked("N", "Total reports, including forged ones.", default=1_000_000),
    candidates: int = asked(
        "N", "Number of candidates assumed for the detection threshold.", default=1000
    ),
    as_json: bool = json_option(),
) -> None:
    """Show how far one forged report moves an estimate.

    The forger wants a string to appear that nobody has, or to disappear. A report that looks honest
    has as many ones as honest reports have. The collector refuses numbers of ones that no honest
    device sends, and admits a little more than that.
    """
    from rappor import auditing

    forged = auditing.forge(subject.params, n_reports=reports, n_candidates=candidates)
    if as_json:
        print_json(forged, metric=subject.named)
    else:
        _print_poisoning(forged)


@click.group(
    cls=Group,
    steps={"Commands": (longitudinal, poisoning)},
    examples=(
        "rappor attack longitudinal --profile balanced --devices 100 --seed 1",
        "rappor attack poisoning --profile balanced --reports 1e5",
    ),
)
def attack() -> None:
    """Show what observers of reports learn and what forgers move."""


def _draw_exposure(exposure: Exposure, path: str) -> None:
    """Draw the values and the true bits that an observer learns, against the reports."""
    from rappor.reporting.charts import Panels
    from rappor.reporting.lines import Axis, line_chart

    rows = (*exposure.memoised, *exposure.redrawn)
    x = Axis(field="n", title="reports of one device", log=True)
    values = line_chart(
        [{"n": row.n, "share": row.bound, "world": _WORLDS[row.memoised]} for row in rows],
        points=[{"n": row.n, "share": row.values, "world": _WORLDS[row.memoised]} for row in rows],
        x=x,
        y=Axis(field="share", title="share", domain=(0, 1), percent=True),
        series="world",
        title="Values named (dots), and at most (lines)",
    )
    bits = line_chart(
        [{"n": row.n, "share": row.true_bits, "world": _WORLDS[row.memoised]} for row in rows],
        x=x,
        y=Axis(field="share", title="share", domain=(0.5, 1), percent=True),
        series="world",
        title="True bits recovered",
    )
    Panels(title="What an observer of one device learns", charts=[values, bits]).save(path)


def _print_exposure(exposure: Exposure, params: Params) -> None:
    recovered = "more than 10,000 reports"
    if exposure.reports_to_recover is not None:
        recovered = f"{exposure.reports_to_recover:,} reports"
    show(
        "Shares that an observer gets right, by the number of reports of a device. Columns marked "
        f"{_FRESH}: if every report drew fresh noise, without a permanent response.\n",
        _exposure_table(exposure),
        f"\nAll {params.k} permanent bits are known with 99 % probability after {recovered}; what "
        "stays hidden then is protected by epsilon_inf. The true bits alone would name "
        f"{_named(exposure.ceiling)}.",
    )


def _named(share: float) -> str:
    """Say which share of the values their true bits would name, and why not all."""
    if percent(share) == percent(1):
        return "all values"
    return f"{percent(share)} of the values: the others share their bits"


def _exposure_table(exposure: Exposure) -> Table:
    titles = ("true bits", "values", "at most")
    shown = table("reports", "permanent bits", *titles, *(f"{each} {_FRESH}" for each in titles))
    for kept, fresh in zip(exposure.memoised, exposure.redrawn, strict=True):
        permanent = percent(kept.permanent_bits or 0.0)
        shown.add_row(f"{kept.n:,}", permanent, *_learned(kept), *_learned(fresh))
    return shown


def _learned(row: Learned) -> tuple[str, str, str]:
    return percent(row.true_bits), percent(row.values), most_belief(row.bound, row.epsilon)


def _print_poisoning(poisoning: Poisoning) -> None:
    show(
        f"One forged report counts as {poisoning.shift:.2f} reports. Among "
        f"{poisoning.n_candidates:,} candidates a string that nobody has is detected about half "
        f"the time (Bonferroni 5 %) when {percent(poisoning.detectable_share, 4)} of "
        f"{poisoning.n_reports:,} reports are forged.",
        _many_strings(poisoning),
    )


def _many_strings(poisoning: Poisoning) -> str:
    """Say what one forged report is worth to several strings at once, and what it can take."""
    most = poisoning.most_strings
    strings = "any number of" if most is None else f"up to {most:,}"
    return (
        f"\nOne forged report that passes the collector's check can raise {strings} strings by "
        f"{poisoning.most_shift:.2f} reports each. It lowers other strings by "
        f"{poisoning.suppression:.2f} reports each, at most {poisoning.most_suppression:.2f}."
    )
