"""The noise of each model of trust: how large it is, and how to draw it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Protocol, Self

from rappor.base.ranges import check_number

if TYPE_CHECKING:  # the closed forms need no array library
    import numpy as np
    from numpy.typing import NDArray

_TIGHT: Final = 1e-12
"""Relative distance at which the search for sigma ends."""


class CountNoise(Protocol):
    """What is added to the true count of the devices that have a property."""

    def std_error(self, n_held: int, n: int, /) -> float:
        """Return the standard deviation of an estimate, in devices."""

    def tail(self, delta: float, n_held: int, n: int, /) -> float:
        """Return an error that an estimate reaches with probability delta at most, in devices."""

    def draw(
        self, n_held: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
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

    def tail(self, delta: float, n_held: int, n: int, /) -> float:
        """Return the error that a normal error of the same variance exceeds that rarely."""
        return self.std_error(n_held, n) * _normal_tail(delta)

    def draw(
        self, n_held: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the number of yes, a sum of two exact binomials, and estimate from it."""
        yes = rng.binomial(n_held, self.q, runs) + rng.binomial(n - n_held, self.p, runs)
        return (yes - n * self.p) / (self.q - self.p)


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """A curator's noise, with the Laplace distribution of a scale in devices [DMNS06]."""

    scale: float

    @classmethod
    def at(cls, epsilon: float, *, sensitivity: float = 1) -> Self:
        """Return the noise that loses epsilon, of scale sensitivity / epsilon.

        `sensitivity` is the most by which one person changes the count.
        """
        return cls(_checked(sensitivity) / epsilon)

    def std_error(self, _n_held: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2) times the scale: the same for all counts."""
        return math.sqrt(2) * self.scale

    def tail(self, delta: float, _n_held: int, _n: int, /) -> float:
        """Return the scale times ln(1/delta): Pr(|Z| >= scale ln(1/delta)) = delta."""
        return self.scale * math.log(1 / delta)

    def draw(
        self, n_held: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Publish the count `runs` times; the floats are for comparison, not for release."""
        return n_held + rng.laplace(scale=self.scale, size=runs)


@dataclass(frozen=True, slots=True)
class GeometricNoise:
    """A curator's noise, j with probability (1-x)/(1+x) x^|j|, x = e^(-1/scale).

    Ghosh, Roughgarden and Sundararajan 2009.
    """

    scale: float

    @classmethod
    def at(cls, epsilon: float, *, sensitivity: float = 1) -> Self:
        """Return the noise that loses epsilon, of scale sensitivity / epsilon."""
        return cls(_checked(sensitivity) / epsilon)

    def std_error(self, _n_held: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2x) / (1-x): the same for all counts."""
        return math.sqrt(2 * math.exp(-1 / self.scale)) / -math.expm1(-1 / self.scale)

    def tail(self, delta: float, _n_held: int, _n: int, /) -> float:
        """Return the least j of at least 1 with Pr(|Z| >= j) = 2 x^j / (1+x) <= delta."""
        half = (1 + math.exp(-1 / self.scale)) / 2
        return max(1, math.ceil(-self.scale * math.log(delta * half)))

    def draw(
        self, n_held: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Publish the count `runs` times: the difference of two geometric numbers is the noise."""
        stop = -math.expm1(-1 / self.scale)
        return (n_held + rng.geometric(stop, runs) - rng.geometric(stop, runs)).astype(float)


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """A curator's noise, with the normal distribution of a standard deviation in devices."""

    sigma: float

    @classmethod
    def at(cls, epsilon: float, delta: float, *, sensitivity: float = 1) -> Self:
        """Return the least noise that loses epsilon with probability 1 - delta.

        Its sigma is exact [BW18], and so below sqrt(2 ln(1.25 / delta)) / epsilon, which is
        proven for epsilon below 1 only [DR14].
        """
        check_number("delta", delta, "(0, 1)")
        low, high = 0.0, 1.0
        while _gaussian_delta(epsilon, high) > delta:
            low, high = high, 2 * high
        while high - low > _TIGHT * high:
            middle = (low + high) / 2
            low, high = (
                (low, middle) if _gaussian_delta(epsilon, middle) <= delta else (middle, high)
            )
        return cls(_checked(sensitivity) * high)

    def std_error(self, _n_held: int, _n: int, /) -> float:
        """Return sigma: the same for all counts."""
        return self.sigma

    def tail(self, delta: float, _n_held: int, _n: int, /) -> float:
        """Return the error that is exceeded with probability delta."""
        return self.sigma * _normal_tail(delta)

    def draw(
        self, n_held: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Publish the count `runs` times; the floats are for comparison, not for release."""
        return n_held + rng.normal(scale=self.sigma, size=runs)


def _gaussian_delta(epsilon: float, sigma: float) -> float:
    """Return the least delta at which noise of sigma loses epsilon at sensitivity 1.

    Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma): Balle and Wang
    2018, Theorem 8.
    """

    def below(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    half, shift = 1 / (2 * sigma), epsilon * sigma
    return below(half - shift) - math.exp(epsilon) * below(-half - shift)


def _normal_tail(delta: float) -> float:
    """Return how many standard deviations a normal error exceeds with probability delta."""
    return -NormalDist().inv_cdf(delta / 2)


def _checked(sensitivity: float) -> float:
    check_number("sensitivity", sensitivity, "(0, infinity)")
    return sensitivity
