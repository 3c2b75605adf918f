"""`rappor trust`: the errors of local noise, a shuffler and a curator at the same privacy loss.

The three trust models differ in the party that adds the noise: the device (local noise), the device
and a shuffler that mixes the reports, or a curator who receives the true values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rappor.base.ranges import check_number
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json, print_parts
from rappor.cli.option_values import COUNT, WholeNumber
from rappor.cli.options import chart_option, json_option, option_field, option_group, seed_option
from rappor.reporting.tables import Column, Table
from rappor.trust.coin_survey import CoinSurvey
from rappor.trust.models import trust_models

if TYPE_CHECKING:
    from rappor.reporting.charts import ChartGrid

_DRAWN_RUNS: Final = 200
"""Number of simulated trials for each dot of the chart. More trials bring the dots closer to the
lines and take more time."""

_TRIAL_STEP: Final = 6
"""Number of points of a curve for each dot with trials. Trials take most of the time, so most
points have none."""

_TAIL_PROBABILITY: Final = 0.05
"""Largest probability that the error of the result is at least the number in the column "1 in 20".
One in twenty is the usual convention of statistics."""

_MODEL_ATTRIBUTES: Final = ("trusted", "epsilon", "delta", "epsilon_of_collector", "epsilon_10")
"""Attributes of a trust model that the output contains: the trusted party, and the losses."""

_DEVICES: Final = [round(10 ** (step / 4)) for step in range(8, 33)]
"""Numbers of devices at which the curves are computed: 100 to 10^8, four in each decade."""

_EPSILONS: Final = [round(10 ** (step / 12), 4) for step in range(-12, 9)]
"""Privacy losses at which the curves are computed, in nats: 0.1 to 4.6, twelve in each decade."""

_NOISES: Final = [step / 20 for step in range(1, 20)]
"""Shares of random answers in a survey at which the curves are computed: 5 % to 95 %."""


class _Point(NamedTuple):
    """Point on a horizontal axis.

    Attributes
    ----------
    x : number on the axis: devices, nats, or share of random answers.
    epsilon : privacy loss of one answer at the point, in nats.
    n : number of devices at the point.
    """

    x: float
    epsilon: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survey:
    """Options for the yes-or-no question that all trust models answer."""

    epsilon: float = option_field("NATS", "Privacy loss of one answer.", default=1.0)
    devices: int = option_field(COUNT, "Devices that answer.", default=100_000)
    share: float = option_field(
        "SHARE", "Share of the devices that have the property.", default=0.3
    )
    delta: float = option_field(
        "PROBABILITY",
        "Probability with which the bounds of shuffling and of Gaussian noise may fail.",
        default=1e-9,
    )
    beta: float = option_field(
        "PROBABILITY",
        "Coin-flip survey: a first coin decides whether a person answers truthfully. Otherwise a "
        "second coin answers, with yes at this probability.",
        default=0.25,
    )


@command(
    "rappor trust --epsilon 1 --devices 1e5 --share .3",
    "rappor trust --epsilon 2 --runs 100 --seed 1 --json",
)
def trust(
    *,
    survey: _Survey = option_group(_Survey),
    runs: int = option_field(
        WholeNumber(2, 10**5),
        "Simulated trials of each model, from 2 to 100,000.",
        default=1000,
    ),
    seed: int | None = seed_option(),
    as_json: bool = json_option(),
    chart: str | None = chart_option(),
) -> None:
    """Compare local noise, a shuffler and a trusted curator.

    All models answer one question, how many devices have a property, at the same privacy loss
    epsilon. They differ in the party that adds the noise: the device (coin-flip survey, symmetric
    randomized response, RAPPOR), the device before a shuffler mixes the reports, or a curator who
    receives the true answers (Laplace, two-sided geometric and Gaussian noise).

    The command shows the standard error of the number by formula and by simulation, and an error
    that at most one of 20 such surveys reaches.
    """
    check_number("share", survey.share, "[0, 1]")
    table = _make_models_table(_try_models(survey, runs, seed))
    if chart is not None:
        with ProgressDisplay() as progress:
            _draw(survey, progress, seed=seed).save(chart)
    if as_json:
        print_json(survey, runs=runs, models=table.to_json())
    else:
        _print_models(table, survey, runs)


def _try_models(survey: _Survey, runs: int, seed: int | None) -> list[dict[str, Any]]:
    """Return a mapping for each model: its name, the trusted party, privacy losses and errors.

    The losses of a device are in nats: `epsilon` to readers of the result, `epsilon_of_collector`
    to the receiver of its answer, and `epsilon_10` if the device answers ten times. The errors of
    the estimated number are in devices: `std_error` by formula, `tail` (reached by at most one of
    20 surveys), and `observed` in simulated trials.
    """
    from rappor.trust.trials import try_model

    models = trust_models(survey.epsilon, survey.devices, delta=survey.delta, beta=survey.beta)
    # n_true of the n devices have the property.
    n_true, n = round(survey.share * survey.devices), survey.devices
    rows = []
    with ProgressDisplay() as progress:
        for i, model in enumerate(models):
            progress("trials", i, len(models))
            seed_of_model = None if seed is None else seed + i
            trial = try_model(model, n_true=n_true, n=n, runs=runs, seed=seed_of_model)
            attributes = {key: getattr(model, key) for key in _MODEL_ATTRIBUTES}
            tail = model.noise.tail(_TAIL_PROBABILITY, n_true, n)
            errors = {"std_error": trial.std_error, "tail": tail, "observed": trial.observed}
            rows.append({"model": model.name, **attributes, **errors})
    return rows


def _make_models_table(rows: Sequence[dict[str, Any]]) -> Table[dict[str, Any]]:
    """Return the table of the models, with losses in nats and errors in devices."""

    def make_number_column(title: str, key: str) -> Column[dict[str, Any]]:
        return Column(title, lambda row: f"{row[key]:,.2f}")

    return Table(
        title="Models",
        columns=(
            Column("model", lambda row: row["model"], "text"),
            Column("trusted", lambda row: row["trusted"], "text"),
            Column("to collector", lambda row: _format_loss(row["epsilon_of_collector"])),
            make_number_column("10 answers", "epsilon_10"),
            make_number_column("std error", "std_error"),
            make_number_column("1 in 20", "tail"),
            make_number_column("trials", "observed"),
        ),
        rows=rows,
    )


def _format_loss(epsilon: float) -> str:
    """Format a loss against the collector. It is infinite if the collector gets true answers."""
    return "the truth" if math.isinf(epsilon) else f"{epsilon:.2f}"


def _print_models(table: Table[dict[str, Any]], survey: _Survey, runs: int) -> None:
    """Print the question, the table of the models, and the conclusions."""
    print_parts(
        f"How many of {survey.devices:,} devices have a property? The truth is "
        f"{round(survey.share * survey.devices):,}. Each answer has epsilon = "
        f"{survey.epsilon:g}.\n"
        "'to collector' and '10 answers' are losses in nats; errors are in devices.\n"
        "At most one of 20 such surveys has an error of '1 in 20' or more. 'trials' is the error "
        f"in\n{runs:,} simulated surveys.\n",
        table,
        "\nThe bounds of the shuffled batch and of Gaussian noise hold with probability "
        f"1 - {survey.delta:g}. Local noise grows with the square root of the number of devices. "
        "A curator's noise does not grow, but a curator knows the truth.",
    )


def _draw(survey: _Survey, progress: ProgressDisplay, *, seed: int | None) -> ChartGrid:
    """Draw three charts of the standard errors of all models.

    The horizontal axes are the number of devices, epsilon, and the share of random answers in a
    survey of this epsilon, which is epsilon in a form that needs no knowledge of privacy.
    """
    from rappor.reporting.charts import ChartGrid
    from rappor.reporting.lines import Axis, draw_lines, merge_labels

    epsilon, n = survey.epsilon, survey.devices
    noise = "random answers in a symmetric survey of that epsilon"
    # Each chart: its horizontal axis, its title, and the points of its curves.
    charts: list[tuple[Axis, str, list[_Point]]] = [
        (
            Axis(field="x", title="devices", log=True),
            f"epsilon {epsilon:g}",
            [_Point(x, epsilon, x) for x in _DEVICES],
        ),
        (
            Axis(field="x", title="epsilon, nats", log=True),
            f"{n:,} devices",
            [_Point(x, x, n) for x in _EPSILONS],
        ),
        (
            Axis(field="x", title=noise, domain=(0, 1), percent=True),
            f"{n:,} devices, by the share of random answers",
            # In a survey with the share x of random answers, a person says the truth with
            # probability 1 - x, and otherwise yes or no with probability 1/2.
            [_Point(x, CoinSurvey(1 - x, 0.5).epsilon, n) for x in _NOISES],
        ),
    ]
    curves = []
    for n_drawn, (*_, points) in enumerate(charts):
        progress("drawing", n_drawn, len(charts))
        curves.append(_compute_curves(points, survey, seed))
    rows = [row for lines, _ in curves for row in lines]
    # Models with equal errors have one line with a common label.
    labels = merge_labels(rows, value="error", series="model")

    def add_labels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"model": labels[row["model"]]} for row in rows]

    return ChartGrid(
        title="Errors of the three trust models",
        charts=[
            draw_lines(
                add_labels(lines),
                points=add_labels(dots),
                x=axis,
                y=Axis(field="error", title="standard error, devices", log=True),
                series="model",
                legend="lines: closed form; dots: trials",
                title=title,
            )
            for (axis, title, _), (lines, dots) in zip(charts, curves, strict=True)
        ],
    )


def _compute_curves(
    points: list[_Point], survey: _Survey, seed: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the errors by formula at all points, and the errors of trials at some points."""
    from rappor.trust.trials import try_model

    lines, dots = [], []
    for i, (x, epsilon, n) in enumerate(points):
        n_true = round(survey.share * n)
        models = trust_models(epsilon, n, delta=survey.delta, beta=survey.beta)
        for j, model in enumerate(models):
            row = {"x": x, "model": model.name}
            lines.append(row | {"error": model.noise.std_error(n_true, n)})
            if i % _TRIAL_STEP == 0:
                seed_of_model = None if seed is None else seed + j
                trial = try_model(model, n_true=n_true, n=n, runs=_DRAWN_RUNS, seed=seed_of_model)
                dots.append(row | {"error": trial.observed})
    return lines, dots
