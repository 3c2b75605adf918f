"""Trials of the trust models: repeated estimates for the same devices, by simulation.

The question is: how many of n devices have a property, such as a certain setting? A *trust model*
(`rappor.trust.models`) names who adds the noise to the answers: each device, or a trusted party
after the answers were mixed or added. Each model has a formula for the standard error of the
estimated number of devices. A simulation of many trials checks the formula.

Only the noise is random. The devices and their true answers are the same in all trials, so the root
mean square error of the estimates should equal the standard error of the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.ranges import read_count
from rappor.trust.models import TrustModel

_MOST_RUNS: Final = 10**7
"""Largest number of trials of one call. The limit bounds memory: the estimates take 80 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Error of one model in theory and in trials.

    Attributes
    ----------
    std_error : standard error by the formula of the model, in devices.
    observed : root of the mean square error of the trials, in devices.
    """

    std_error: float
    observed: float


def try_model(
    model: TrustModel, *, n_true: int, n: int, runs: int, seed: int | None = None
) -> Trial:
    """Compare a model's standard error with the error of trials.

    Parameters
    ----------
    model : the model.
    n_true : number of devices with the property.
    n : number of all devices.
    runs : number of trials, at most 10,000,000.
    seed : the same seed gives the same trials.

    Raises
    ------
    ParamsError
        A number is outside its range.

    Examples
    --------
    >>> from rappor.trust.models import trust_models
    >>> models = {model.name: model for model in trust_models(epsilon=1.0, n=100_000)}
    >>> laplace = models["Laplace"]
    >>> trial = try_model(laplace, n_true=30_000, n=100_000, runs=10_000, seed=1)
    >>> round(trial.std_error, 2), abs(trial.observed - trial.std_error) < 0.1
    (1.41, True)
    """
    estimates = run_trials(model, n_true=n_true, n=n, runs=runs, seed=seed)
    return Trial(
        std_error=model.noise.std_error(n_true, n),
        observed=float(np.sqrt(np.mean((estimates - n_true) ** 2))),
    )


def run_trials(
    model: TrustModel, *, n_true: int, n: int, runs: int, seed: int | None = None
) -> NDArray[np.float64]:
    """Draw (runs,) float64 estimates of the number of devices with the property, unclipped.

    The parameters are those of `try_model`.

    Raises
    ------
    ParamsError
        A number is outside its range.
    """
    n = read_count("n", n)
    n_true = read_count("n_true", n_true, 0, n)
    runs = read_count("runs", runs, 1, _MOST_RUNS)
    # numpy's generator suffices: trials protect no data.
    return np.asarray(model.noise.draw(n_true, n, runs, np.random.default_rng(seed)), dtype=float)
