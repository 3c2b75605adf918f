"""Distributions of the noise in each trust model: standard error, tail and random draws.

The estimated number is a count of devices: `n_true` of `n` devices have the property. All errors
are in devices. Each class has three methods (`CountNoise`), by closed forms:

    class            who adds the noise    standard error
    LocalNoise       each device           sqrt(n_true q (1 - q) + (n - n_true) p (1 - p)) / (q - p)
    LaplaceNoise     a curator, once       sqrt(2) scale
    GeometricNoise   a curator, once       sqrt(2 x) / (1 - x), x = e^(-1 / scale)
    GaussianNoise    a curator, once       sigma

[DMNS06] Dwork, McSherry, Nissim, Smith. Calibrating noise to sensitivity. TCC 2006. [BW18] Balle,
Wang. Improving the Gaussian mechanism. ICML 2018. [DR14] Dwork, Roth. The algorithmic foundations
of differential privacy. 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Protocol, Self

from rappor.base.ranges import check_number

# The closed forms need no array library, so that `rappor trust` runs without it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SIGMA_TOLERANCE: Final = 1e-12
"""Width of the interval around sigma, divided by its upper end, at which the bisection ends. The
error is far below the printed digits."""


class CountNoise(Protocol):
    """Noise in an estimated number of devices that have a property."""

    def std_error(self, n_true: int, n: int, /) -> float:
        """Return the standard deviation of an estimate, in devices."""

    def tail(self, delta: float, n_true: int, n: int, /) -> float:
        """Return an error, in devices, that an estimate exceeds with probability at most delta."""

    def draw(
        self, n_true: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw (runs,) independent estimates of the count. Estimates are not clipped."""


@dataclass(frozen=True, slots=True)
class LocalNoise:
    """Noise that each device adds to its own answer.

    Attributes
    ----------
    p : probability of "yes" from a device without the property.
    q : probability of "yes" from a device with the property.
    """

    p: float
    q: float

    def std_error(self, n_true: int, n: int, /) -> float:
        """Return the standard deviation of the estimated count, in devices.

        The number of "yes" has the variance n_true q (1 - q) + (n - n_true) p (1 - p). The estimate
        divides it by (q - p)^2.
        """
        variance = n_true * self.q * (1 - self.q) + (n - n_true) * self.p * (1 - self.p)
        return math.sqrt(variance) / (self.q - self.p)

    def tail(self, delta: float, n_true: int, n: int, /) -> float:
        """Return the error that is exceeded with probability delta, if the error is normal."""
        return self.std_error(n_true, n) * _compute_normal_quantile(delta)

    def draw(
        self, n_true: int, n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the number of "yes" as a sum of two exact binomials, and estimate the count."""
        # The sum of the answers suffices: single answers are not needed for an estimate.
        yes = rng.binomial(n_true, self.q, runs) + rng.binomial(n - n_true, self.p, runs)
        return (yes - n * self.p) / (self.q - self.p)


@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """A curator's noise with the Laplace distribution [DMNS06].

    Attributes
    ----------
    scale : scale of the distribution, in devices.
    """

    scale: float

    @classmethod
    def at(cls, epsilon: float, *, sensitivity: float = 1) -> Self:
        """Return the noise with the loss epsilon: its scale is sensitivity / epsilon.

        Parameters
        ----------
        epsilon : privacy loss in nats.
        sensitivity : largest change of the count by one person, in devices.
        """
        return cls(_check_sensitivity(sensitivity) / epsilon)

    def std_error(self, _n_true: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2) times the scale. It is equal for all counts."""
        return math.sqrt(2) * self.scale

    def tail(self, delta: float, _n_true: int, _n: int, /) -> float:
        """Return scale ln(1/delta), because Pr(|Z| >= scale ln(1/delta)) = delta."""
        return self.scale * math.log(1 / delta)

    def draw(
        self, n_true: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the published count. Digits of the floats can reveal the count: do not release."""
        return n_true + rng.laplace(scale=self.scale, size=runs)


@dataclass(frozen=True, slots=True)
class GeometricNoise:
    """A curator's noise with the two-sided geometric distribution.

    Pr(Z = j) = (1 - x) / (1 + x) x^|j| with x = e^(-1/scale) (Ghosh, Roughgarden and Sundararajan
    2009).

    Attributes
    ----------
    scale : scale of the distribution, in devices.
    """

    scale: float

    @classmethod
    def at(cls, epsilon: float, *, sensitivity: float = 1) -> Self:
        """Return the noise with the loss epsilon: its scale is sensitivity / epsilon."""
        return cls(_check_sensitivity(sensitivity) / epsilon)

    def std_error(self, _n_true: int, _n: int, /) -> float:
        """Return the standard deviation, sqrt(2 x) / (1 - x). It is equal for all counts."""
        return math.sqrt(2 * math.exp(-1 / self.scale)) / -math.expm1(-1 / self.scale)

    def tail(self, delta: float, _n_true: int, _n: int, /) -> float:
        """Return the smallest j >= 1 with Pr(|Z| >= j) = 2 x^j / (1 + x) <= delta."""
        # Solve 2 x^j / (1 + x) <= delta for j, with ln x = -1 / scale.
        half = (1 + math.exp(-1 / self.scale)) / 2
        return max(1, math.ceil(-self.scale * math.log(delta * half)))

    def draw(
        self, n_true: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the published count. The noise is the difference of two geometric numbers."""
        # P(G = j) = stop (1 - stop)^(j - 1) for j >= 1. The difference of two independent such
        # numbers has the two-sided distribution with x = 1 - stop.
        stop = -math.expm1(-1 / self.scale)
        return (n_true + rng.geometric(stop, runs) - rng.geometric(stop, runs)).astype(float)


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """A curator's noise with a normal distribution.

    Attributes
    ----------
    sigma : standard deviation, in devices.
    """

    sigma: float

    @classmethod
    def at(cls, epsilon: float, delta: float, *, sensitivity: float = 1) -> Self:
        """Return the smallest noise with (epsilon, delta)-differential privacy.

        Its sigma is exact [BW18], and therefore below sqrt(2 ln(1.25 / delta)) / epsilon, which is
        proven for epsilon below 1 only [DR14].

        Parameters
        ----------
        epsilon : privacy loss in nats.
        delta : delta of (epsilon, delta)-differential privacy, in (0, 1). The loss exceeds epsilon
            with a larger probability, 33 times delta at epsilon = 1 and delta = 1e-9.
        sensitivity : largest change of the count by one person, in devices.

        Examples
        --------
        >>> round(GaussianNoise.at(epsilon=1.0, delta=1e-9).sigma, 2)
        5.5
        """
        check_number("delta", delta, "(0, 1)")
        low, high = 0.0, 1.0
        # delta falls as sigma grows, so doubling finds an upper bound of sigma.
        while _compute_gaussian_delta(epsilon, high) > delta:
            low, high = high, 2 * high
        while high - low > _SIGMA_TOLERANCE * high:
            middle = (low + high) / 2
            if _compute_gaussian_delta(epsilon, middle) <= delta:
                high = middle
            else:
                low = middle
        return cls(_check_sensitivity(sensitivity) * high)

    def std_error(self, _n_true: int, _n: int, /) -> float:
        """Return sigma. It is equal for all counts."""
        return self.sigma

    def tail(self, delta: float, _n_true: int, _n: int, /) -> float:
        """Return the error that is exceeded with probability delta."""
        return self.sigma * _compute_normal_quantile(delta)

    def draw(
        self, n_true: int, _n: int, runs: int, rng: np.random.Generator, /
    ) -> NDArray[np.floating]:
        """Draw the published count. Digits of the floats can reveal the count: do not release."""
        return n_true + rng.normal(scale=self.sigma, size=runs)


def _compute_gaussian_delta(epsilon: float, sigma: float) -> float:
    """Compute the smallest delta at which noise of sigma loses epsilon, for sensitivity 1.

    Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma): Balle and Wang
    2018, Theorem 8.
    """

    def phi(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    half, shift = 1 / (2 * sigma), epsilon * sigma
    return phi(half - shift) - math.exp(epsilon) * phi(-half - shift)


def _compute_normal_quantile(delta: float) -> float:
    """Return z such that a standard normal error exceeds z in absolute value with chance delta."""
    return -NormalDist().inv_cdf(delta / 2)


def _check_sensitivity(sensitivity: float) -> float:
    """Return the sensitivity. Raise ParamsError unless it is positive and finite."""
    check_number("sensitivity", sensitivity, "(0, infinity)")
    return sensitivity
