"""The noise of each model of trust: how large it is, and how to draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the closed forms need no array library
    import numpy as np
    from numpy.typing import NDArray


class Noise(Protocol):
    """What is added to the true count of the devices that have a property."""

    def std_error(self, n_held: int, n: int, /) -> float:
        """Return the standard deviation of an estimate, in devices."""

    def draw(
        self, n_held: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating] | Sequence[float]:
        """Return `runs` estimates of how many of n have the property: `n_held` do. Unclipped."""


@dataclass(frozen=True, slots=True)
class LocalNoise:
    """Noise of the devices: each says yes with probability q if it has the property, else p."""

    p: float
    q: float

    def std_error(self, n_held: int, n: int, /) -> float:
        """Return the standard deviation of the estimated count, in devices."""
        noise = n_held * self.q * (1 - self.q) + (n - n_held) * self.p * (1 - self.p)
        return math.sqrt(noise) / (self.q - self.p)

    def draw(
        self, n_held: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the number of yes, a sum of two exact binomials, and estimate from it."""
        yes = rng.binomial(n_held, self.q, runs) + rng.binomial(n - n_held, self.p, runs)
        return (yes - n * self.p) / (self.q - self.p)


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """A curator's noise, with the Laplace distribution of scale 1/epsilon [DMNS06]."""

    epsilon: float

    def std_error(self, _n_held: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2) / epsilon: the same for all counts."""
        return math.sqrt(2) / self.epsilon

    def draw(
        self, n_held: int, _n: int, runs: int, _rng: np.random.Generator, /
    ) -> Sequence[float]:
        """Publish the count `runs` times, by OpenDP's coins, which take no seed."""
        from rappor.trust import central  # noqa: PLC0415  # optional

        return central.laplace([n_held] * runs, self.epsilon)


@dataclass(frozen=True, slots=True)
class GeometricNoise:
    """A curator's noise, j with probability (1-x)/(1+x) x^|j|, x = e^-epsilon.

    Ghosh, Roughgarden and Sundararajan 2009.
    """

    epsilon: float

    def std_error(self, _n_held: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2x) / (1-x): the same for all counts."""
        return math.sqrt(2 * math.exp(-self.epsilon)) / -math.expm1(-self.epsilon)

    def draw(
        self, n_held: int, _n: int, runs: int, _rng: np.random.Generator, /
    ) -> Sequence[float]:
        """Publish the count `runs` times, by OpenDP's coins, which take no seed."""
        from rappor.trust import central  # noqa: PLC0415  # optional

        return central.geometric([n_held] * runs, self.epsilon)
