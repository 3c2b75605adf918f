"""Trials of the models of trust: what each estimates, again and again, of the same devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.ranges import check_integer, read_count
from rappor.trust.models import TrustModel

_MOST_RUNS: Final = 10**7
"""Estimates that fit in 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How well one model answers, in devices: its closed form, and the errors of trials.

    `observed` is the root of the mean square error.
    """

    std_error: float
    observed: float


def try_model(
    model: TrustModel, *, n_held: int, n: int, runs: int, seed: int | None = None
) -> Trial:
    """Compare a model's standard error with the error of trials.

    Raises ParamsError for counts outside their range.
    """
    estimates = run_trials(model, n_held=n_held, n=n, runs=runs, seed=seed)
    return Trial(
        std_error=model.noise.std_error(n_held, n),
        observed=float(np.sqrt(np.mean((estimates - n_held) ** 2))),
    )


def run_trials(
    model: TrustModel, *, n_held: int, n: int, runs: int, seed: int | None = None
) -> NDArray[np.float64]:
    """Return (runs,) float64, estimates of how many of n devices have what `n_held` of them have.

    They are unclipped, and the same for the same seed.

    Raises ParamsError for a count outside its range.
    """
    check_integer("n_held", n_held, 0, n)
    runs = read_count("runs", runs, 1, _MOST_RUNS)
    return np.asarray(model.noise.draw(n_held, n, runs, np.random.default_rng(seed)), dtype=float)
