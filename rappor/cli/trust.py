"""`rappor trust`: what it costs that nobody needs to be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from rappor.errors import ParamsError
from rappor.trust.models import Model, trust_models
from rappor.trust.survey import CoinSurvey

if TYPE_CHECKING:
    from rappor.reporting.charts import Chart

_DRAWN_RUNS = 200
_DEVICES = [round(10 ** (step / 4)) for step in range(8, 33)]
_EPSILONS = [round(10 ** (step / 12), 4) for step in range(-12, 9)]
_NOISES = [step / 20 for step in range(1, 20)]

_Point = Callable[[float], tuple[float, int]]
"""From a place on an axis to the epsilon and the number of devices there."""


@click.command()
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Loss of one answer.")
@click.option("--devices", type=NUMBER, default=100_000, show_default=True, help="Who are asked.")
@click.option("--share", type=float, default=0.3, show_default=True, help="Who have the property.")
@click.option(
    "--delta", type=float, default=1e-9, show_default=True, help="Chance left open by shuffling."
)
@click.option(
    "--beta", type=float, default=0.25, show_default=True, help="Yes of the survey's second coin."
)
@click.option(
    "--runs", type=click.IntRange(2, 10**5), default=1000, show_default=True, help="Trials of each."
)
@seed_option
@json_option
@chart_option
def trust(
    epsilon: float,
    devices: int,
    share: float,
    delta: float,
    beta: float,
    runs: int,
    seed: int | None,
    as_json: bool,
    chart: str | None,
) -> None:
    """Compare who is trusted: how many of some devices have a property, at one epsilon.

    Local noise (a coin-flip survey, symmetric randomized response, RAPPOR), a shuffled batch
    and a curator (Laplace, two-sided geometric), by closed form and by trial. --seed repeats
    the devices' answers; the curator's noise is OpenDP's, which takes no seed.
    """
    if not 0 <= share <= 1:
        raise ParamsError(f"share must be a number in [0, 1], got {share!r}")
    asked = {"share": share, "delta": delta, "beta": beta}
    compared = trust_models(epsilon, devices, delta=delta, beta=beta)
    rows = []
    with Slow() as slow:
        for i, model in enumerate(compared):
            slow("trials", i, len(compared))
            rows.append(_row(model, devices, share, runs, None if seed is None else seed + i))
    if as_json:
        print_json({"epsilon": epsilon, "devices": devices, **asked, "runs": runs, "models": rows})
    else:
        _print(rows, epsilon, devices, share, runs)
    if chart is not None:
        from rappor.reporting.charts import save

        with Slow() as slow:
            save(_draw(epsilon, devices, slow, seed=seed, **asked), chart)


def _row(model: Model, devices: int, share: float, runs: int, seed: int | None) -> dict[str, Any]:
    """Return what the model promises and how well it answers."""
    from rappor.trust.trials import try_model

    trial = try_model(model, n_held=round(share * devices), n=devices, runs=runs, seed=seed)
    return {
        "model": model.name,
        "trusted": model.trusted,
        "epsilon": model.epsilon,
        "delta": model.delta,
        "epsilon_of_collector": model.epsilon_of_collector,
        "epsilon_10": model.epsilon_10,
        "std_error": trial.std_error,
        "observed": trial.observed,
    }


def _print(
    rows: list[dict[str, Any]], epsilon: float, devices: int, share: float, runs: int
) -> None:
    console = output()
    console.print(
        f"How many of {devices:,} devices have a property? {round(share * devices):,} do. Each "
        f"answer loses {epsilon:g} nats.\nLosses in nats, errors in devices.\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(
        ("model", "trusted", "to collector", "10 answers", "std error", f"in {runs:,} trials")
    ):
        table.add_column(name, justify="left" if i < 2 else "right")
    for row in rows:
        collector = row["epsilon_of_collector"]
        table.add_row(
            row["model"],
            row["trusted"],
            "the truth" if math.isinf(collector) else f"{collector:.2f}",
            f"{row['epsilon_10']:.2f}",
            f"{row['std_error']:,.2f}",
            f"{row['observed']:,.2f}",
        )
    console.print(table)
    delta = max(row["delta"] for row in rows)
    console.print(
        f"\nThe shuffled batch leaves a chance of {delta:g} open. Local noise grows with the root "
        "of the number of devices; a curator's does not grow, but a curator knows the truth."
    )


def _draw(epsilon: float, devices: int, slow: Slow, **asked: Any) -> Chart:
    """Draw the error against the number of devices, against epsilon, and against the noise."""
    from rappor.reporting.charts import Axis, line_chart, side_by_side

    panels: list[tuple[Axis, str, list[float], _Point]] = [
        (
            Axis(field="x", title="devices", log=True),
            f"epsilon {epsilon:g}",
            [float(n) for n in _DEVICES],
            lambda n: (epsilon, int(n)),
        ),
        (
            Axis(field="x", title="epsilon, nats", log=True),
            f"{devices:,} devices",
            _EPSILONS,
            lambda value: (value, devices),
        ),
        (
            Axis(field="x", title="noise: answers that are a coin's", domain=(0, 1), format="%"),
            f"{devices:,} devices, all at the epsilon of that noise",
            _NOISES,
            lambda noise: (CoinSurvey(1 - noise, 0.5).epsilon, devices),
        ),
    ]
    drawn = []
    for done, (axis, title, places, point) in enumerate(panels):
        slow("drawing", done, len(panels))
        lines, dots = _curves(places, point, **asked)
        drawn.append(
            line_chart(
                lines,
                points=dots,
                x=axis,
                y=Axis(field="error", title="standard error, devices", log=True),
                series="model",
                legend="lines closed form, dots trials",
                title=title,
            )
        )
    return side_by_side(*drawn)


def _curves(
    places: list[float],
    point: _Point,
    *,
    share: float,
    delta: float,
    beta: float,
    seed: int | None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the closed forms at all places, and trials at some."""
    from rappor.trust.trials import try_model

    lines, dots = [], []
    for i, x in enumerate(places):
        epsilon, n = point(x)
        held = round(share * n)
        for j, model in enumerate(trust_models(epsilon, n, delta=delta, beta=beta)):
            row = {"x": x, "model": model.name}
            lines.append(row | {"error": model.std_error(held, n)})
            if i % 6 == 0:
                own = None if seed is None else seed + j
                trial = try_model(model, n_held=held, n=n, runs=_DRAWN_RUNS, seed=own)
                dots.append(row | {"error": trial.observed})
    return lines, dots
