"""Trials of the models of trust: what each estimates, again and again, of the same devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.errors import ParamsError
from rappor.trust.models import Central, Local, Model


def run_trials(
    model: Model, *, n_held: int, n: int, runs: int, seed: int | None = None
) -> NDArray[np.float64]:
    """Estimate `runs` times how many of n devices have what `n_held` of them have.

    The devices' answers are drawn as exact binomials; the curator's noise is OpenDP's, which
    takes no seed.

    Returns
    -------
    (runs,) float64, estimated devices, unclipped.
    """
    if not 0 <= n_held <= n:
        raise ParamsError(f"n_held must be an integer in [0, {n}], got {n_held!r}")
    if runs < 1:
        raise ParamsError(f"runs must be an integer of at least 1, got {runs!r}")
    if isinstance(model, Central):
        return _published(model, n_held, runs)
    return _answered(model, n_held, n, np.random.default_rng(seed), runs)


def _answered(
    model: Local, n_held: int, n: int, rng: np.random.Generator, runs: int
) -> NDArray[np.float64]:
    yes = rng.binomial(n_held, model.q, runs) + rng.binomial(n - n_held, model.p, runs)
    return np.asarray((yes - n * model.p) / (model.q - model.p), dtype=np.float64)


def _published(model: Central, n_held: int, runs: int) -> NDArray[np.float64]:
    from rappor.trust import central  # noqa: PLC0415  # optional

    publish = central.laplace if model.noise == "laplace" else central.geometric
    return np.array(publish([n_held] * runs, model.epsilon), dtype=float)
