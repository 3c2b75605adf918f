"""`Frequencies`: the shares of strings for planning, without the strings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.arrays import Floats

MAX_CANDIDATES: Final = 10**9
"""Largest number of candidates of a plan.

No list is longer. At this number, the integral of `Frequencies.zipf` has a relative error of 2e-9.
"""

MAX_EXPONENT: Final = 10.0
"""Largest exponent of Zipf's law. At 10, the second string has a thousandth of the first share."""

_CLASS_WIDTH: Final = 0.02
"""Relative difference of shares below which strings form one class.

Half of the width changes no prediction by more than 3e-5. A billion strings by Zipf's law form
1,691 classes."""

_EXACT_RANKS: Final = 1000
"""Number of ranks that are classes of their own.

Beyond, the integral of a block has a relative error of at most 1e-7."""

_GRID_STEP: Final = 1 / 4096
"""Step of the grid of bit levels. Half of the step changes no prediction by more than 3e-6."""

_MIN_PROBABILITY: Final = 1e-13
"""Smallest probability of a level that is kept.

Rounding in the Fourier transform creates smaller ones. They change predictions by less than 1e-10.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frequencies:
    """The shares of all strings, in classes of nearly equal shares.

    Attributes
    ----------
    shares : (c,) float64. Share of devices that have one string of each class.
    candidates, non_candidates : (c,) float64. Number of strings of each class that are candidates,
        and that are not.
    absent : number of candidates that no device has.

    Examples
    --------
    >>> from rappor.planning import Frequencies
    >>> Frequencies.of_shares([5, 3, 2], 10).absent
    7
    """

    shares: Floats
    candidates: Floats
    non_candidates: Floats
    absent: int

    @property
    def n_candidates(self) -> int:
        """Number of candidates, present and absent."""
        return round(float(self.candidates.sum())) + self.absent

    @classmethod
    def zipf(cls, n_candidates: int, exponent: float = 1.0) -> Frequencies:
        """Return frequencies by Zipf's law: the share of string i is proportional to i^-exponent.

        All strings are candidates. Ranks above 1,000 are joined in blocks. The sum over a block is
        the integral between its half ranks, with a relative error of at most 1e-7.

        Parameters
        ----------
        n_candidates : number of strings, at most `MAX_CANDIDATES`.
        exponent : exponent of Zipf's law, from 0 to `MAX_EXPONENT`.
        """
        n_candidates = read_count("candidates", n_candidates, 1, MAX_CANDIDATES)
        check_number("zipf", exponent, f"[0, {MAX_EXPONENT:g}]")
        n_exact = min(n_candidates, _EXACT_RANKS)
        n_blocks = int(np.ceil(np.log(n_candidates / n_exact) / _CLASS_WIDTH))
        edges = np.rint(np.geomspace(n_exact, n_candidates, n_blocks + 1))
        sizes = np.concatenate([np.ones(n_exact), np.diff(edges)])
        masses = np.concatenate(
            [np.arange(1.0, n_exact + 1) ** -exponent, _integrate_power(edges + 0.5, exponent)]
        )
        shares = masses / masses.sum() / sizes
        return cls(shares=shares, candidates=sizes, non_candidates=np.zeros(len(sizes)), absent=0)

    @classmethod
    def of_shares(
        cls, shares: ArrayLike, n_candidates: int, *, n_present: int | None = None
    ) -> Frequencies:
        """Return the frequencies of a table of strings; the largest strings are candidates.

        Parameters
        ----------
        shares : (n,) shares or weights in any order; they are divided by their sum.
        n_candidates : number of candidates.
        n_present : number of candidates in the table, by default as many as possible. The other
            candidates are absent.

        Raises
        ------
        ParamsError
            Shares are not finite numbers of at least 0, or a number is outside its range.
        """
        n_candidates = read_count("candidates", n_candidates, 1, MAX_CANDIDATES)
        ordered = np.sort(_check_shares(shares))[::-1]
        max_present = min(n_candidates, len(ordered))
        n_present = max_present if n_present is None else n_present
        check_integer("n_present", n_present, 0, max_present)
        candidates, non_candidates = (
            _group_shares(ordered[:n_present]),
            _group_shares(ordered[n_present:]),
        )
        return cls(
            shares=np.concatenate([candidates[0], non_candidates[0]]),
            candidates=np.concatenate([candidates[1], np.zeros(len(non_candidates[0]))]),
            non_candidates=np.concatenate([np.zeros(len(candidates[0])), non_candidates[1]]),
            absent=n_candidates - n_present,
        )


@functools.lru_cache(maxsize=32)
def compute_bit_levels(frequencies: Frequencies, density: float) -> tuple[Floats, Floats]:
    """Return the distribution of the share of devices that set one bit of one cohort.

    Every string sets the bit with probability `density`, independently. So the distribution is a
    convolution, computed by its characteristic function on a grid. A share between two grid points
    is one of both at random, with the right mean.

    Returns
    -------
    levels, probabilities : (t,) float64.
    """
    size = int(2 / _GRID_STEP)
    n_strings = frequencies.candidates + frequencies.non_candidates
    steps = frequencies.shares / _GRID_STEP
    phases = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    is_large = steps >= 1
    # Shares below one grid step are Poisson: so many strings that their number is nearly certain.
    log_characteristic = density * float((n_strings * steps)[~is_large].sum()) * (phases - 1)
    for step, n in zip(steps[is_large], n_strings[is_large], strict=True):
        whole_steps = np.floor(step)
        factor = phases**whole_steps * (1 + (step - whole_steps) * (phases - 1))
        log_characteristic += n * np.log1p(density * (factor - 1))
    probabilities = np.fft.irfft(np.exp(log_characteristic), size)
    kept = np.flatnonzero(probabilities > _MIN_PROBABILITY)
    remaining: Floats = probabilities[kept]
    return np.minimum(kept * _GRID_STEP, 1.0), remaining / remaining.sum()


def _integrate_power(edges: Floats, exponent: float) -> Floats:
    """Integrate x^-exponent between neighbouring edges, (len(edges) - 1,)."""
    if exponent == 1:
        return np.diff(np.log(edges))
    return np.asarray(np.diff(edges ** (1 - exponent)) / (1 - exponent))


def _group_shares(ordered: Floats) -> tuple[Floats, Floats]:
    """Join decreasing positive shares in classes; return the mean and the size of each class."""
    if not len(ordered):
        return np.zeros(0), np.zeros(0)
    numbers = np.floor(np.log(ordered) / _CLASS_WIDTH)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
    sizes = np.diff(np.append(starts, len(ordered))).astype(float)
    return np.add.reduceat(ordered, starts) / sizes, sizes


def _check_shares(shares: ArrayLike) -> Floats:
    """Return the positive shares, divided by their sum."""
    try:
        numbers = np.array(shares, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("table must be a list of numbers") from None
    if numbers.ndim != 1 or not np.all(
        (numbers >= 0) & (numbers < np.inf)
    ):  # NaN fails both comparisons
        raise ParamsError("table must be a list of finite numbers of at least 0")
    numbers = numbers[numbers > 0]
    if not len(numbers):
        raise ParamsError("table must have at least one number above 0")
    numbers /= numbers.max()
    return np.asarray(numbers[numbers > 0] / numbers.sum())
