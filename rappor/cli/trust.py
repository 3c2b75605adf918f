"""`rappor trust`: what it costs that nobody needs to be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rappor.base.ranges import check_number
from rappor.cli.commands import command
from rappor.cli.console import Slow, print_json, print_parts, table
from rappor.cli.numbers import COUNT, WholeNumber
from rappor.cli.options import chart_option, json_option, option_field, option_group, seed_option
from rappor.trust.coin_survey import CoinSurvey
from rappor.trust.models import trust_models

if TYPE_CHECKING:
    from rappor.reporting.charts import Panels

_DRAWN_RUNS = 200
_ONCE_IN_20 = 0.05
_PROMISED = ("trusted", "epsilon", "delta", "epsilon_of_collector", "epsilon_10")
_DEVICES = [round(10 ** (step / 4)) for step in range(8, 33)]
_EPSILONS = [round(10 ** (step / 12), 4) for step in range(-12, 9)]
_NOISES = [step / 20 for step in range(1, 20)]

_Place = tuple[float, float, int]
"""A place on an axis, and the epsilon and the number of devices there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Survey:
    """The question that all models answer."""

    epsilon: float = option_field("NATS", "Privacy loss of one answer.", default=1.0)
    devices: int = option_field(COUNT, "Devices that answer.", default=100_000)
    share: float = option_field(
        "SHARE", "Share of the devices that have the property.", default=0.3
    )
    delta: float = option_field(
        "PROBABILITY",
        "Probability that the bounds of shuffling and of Gaussian noise fail.",
        default=1e-9,
    )
    beta: float = option_field(
        "PROBABILITY", "Probability that the survey's second coin says yes.", default=0.25
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

    The question is how many devices have a property, at the same epsilon for all models. The models
    are local noise (a coin-flip survey, symmetric randomized response, RAPPOR), a shuffled batch,
    and a curator (Laplace, two-sided geometric and Gaussian noise). The command shows errors by
    formula and by simulation, beside the error that is reached once in 20 trials.
    """
    check_number("share", survey.share, "[0, 1]")
    found = _compare(survey, runs, seed)
    if chart is not None:
        with Slow() as slow:
            _draw(survey, slow, seed=seed).save(chart)
    if as_json:
        print_json(survey, runs=runs, models=found)
    else:
        _print(found, survey, runs)


def _compare(survey: _Survey, runs: int, seed: int | None) -> list[dict[str, Any]]:
    """Return what each model promises, and how well it answers.

    Losses are in nats: `epsilon` to who reads the result, `epsilon_of_collector` to who receives
    the answers, `epsilon_10` by ten answers. Errors are in devices: `std_error` of the closed
    form, `tail` reached once in 20 at most, and `observed` in trials.
    """
    from rappor.trust.trials import try_model

    models = trust_models(survey.epsilon, survey.devices, delta=survey.delta, beta=survey.beta)
    n_true, n, results = round(survey.share * survey.devices), survey.devices, []
    with Slow() as slow:
        for i, model in enumerate(models):
            slow("trials", i, len(models))
            own = None if seed is None else seed + i
            trial = try_model(model, n_true=n_true, n=n, runs=runs, seed=own)
            promised = {"model": model.name} | {key: getattr(model, key) for key in _PROMISED}
            errors = {
                "std_error": trial.std_error,
                "tail": model.noise.tail(_ONCE_IN_20, n_true, n),
            }
            results.append(promised | errors | {"observed": trial.observed})
    return results


def _print(found: list[dict[str, Any]], survey: _Survey, runs: int) -> None:
    words, losses = ("model", "trusted"), ("to collector", "10 answers")
    shown = table(*words, *losses, "std error", "1 in 20", "trials", left=2)
    for each in found:
        to_collector = each["epsilon_of_collector"]
        numbers = (each["std_error"], each["tail"], each["observed"])
        shown.add_row(
            each["model"],
            each["trusted"],
            "the truth" if math.isinf(to_collector) else f"{to_collector:.2f}",
            f"{each['epsilon_10']:.2f}",
            *(f"{number:,.2f}" for number in numbers),
        )
    print_parts(
        f"How many of {survey.devices:,} devices have a property? The truth is "
        f"{round(survey.share * survey.devices):,}. Each answer has epsilon = "
        f"{survey.epsilon:g}.\n"
        "'to collector' and '10 answers' are losses in nats; errors are in devices.\n"
        "'1 in 20' is an error that is reached once in 20 answers at most, 'trials' the error seen "
        f"in\n{runs:,} trials.\n",
        shown,
        "\nThe bounds of the shuffled batch and of Gaussian noise hold with probability "
        f"1 - {survey.delta:g}. Local noise grows with the square root of the number of devices. "
        "A curator's noise does not grow, but a curator knows the truth.",
    )


def _draw(survey: _Survey, slow: Slow, *, seed: int | None) -> Panels:
    """Draw the error against the number of devices, against epsilon, and against the noise."""
    from rappor.reporting.charts import Panels
    from rappor.reporting.lines import Axis, line_chart, shared_labels

    epsilon, n = survey.epsilon, survey.devices
    noise = "random answers in a symmetric survey of that epsilon"
    panels: list[tuple[Axis, str, list[_Place]]] = [
        (
            Axis(field="x", title="devices", log=True),
            f"epsilon {epsilon:g}",
            [(x, epsilon, x) for x in _DEVICES],
        ),
        (
            Axis(field="x", title="epsilon, nats", log=True),
            f"{n:,} devices",
            [(x, x, n) for x in _EPSILONS],
        ),
        (
            Axis(field="x", title=noise, domain=(0, 1), percent=True),
            f"{n:,} devices, epsilon shown as noise",
            [(x, CoinSurvey(1 - x, 0.5).epsilon, n) for x in _NOISES],
        ),
    ]
    curves = []
    for done, (*_, places) in enumerate(panels):
        slow("drawing", done, len(panels))
        curves.append(_curves(places, survey, seed))
    labels = shared_labels(
        [row for lines, _ in curves for row in lines], value="error", series="model"
    )

    def labelled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"model": labels[row["model"]]} for row in rows]

    return Panels(
        title="What it costs that nobody needs to be trusted",
        charts=[
            line_chart(
                labelled(lines),
                points=labelled(dots),
                x=axis,
                y=Axis(field="error", title="standard error, devices", log=True),
                series="model",
                legend="lines: closed form; dots: trials",
                title=title,
            )
            for (axis, title, _), (lines, dots) in zip(panels, curves, strict=True)
        ],
    )


def _curves(
    places: list[_Place], survey: _Survey, seed: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the closed forms at all places, and trials at some."""
    from rappor.trust.trials import try_model

    lines, dots = [], []
    for i, (x, epsilon, n) in enumerate(places):
        n_true = round(survey.share * n)
        models = trust_models(epsilon, n, delta=survey.delta, beta=survey.beta)
        for j, model in enumerate(models):
            row = {"x": x, "model": model.name}
            lines.append(row | {"error": model.noise.std_error(n_true, n)})
            if i % 6 == 0:
                own = None if seed is None else seed + j
                trial = try_model(model, n_true=n_true, n=n, runs=_DRAWN_RUNS, seed=own)
                dots.append(row | {"error": trial.observed})
    return lines, dots
