"""How frequent strings are, as far as planning needs to know: shares without names."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.arrays import Floats

MOST_CANDIDATES: Final = 10**9
"""Candidates that can be planned for, more than any list has. At this number the integral of
`Frequencies.zipf` is right to 2e-9 of the sum."""

MOST_EXPONENT: Final = 10.0
"""Largest exponent of Zipf's law: there the second string has a thousandth of the first."""

_SAME: Final = 0.02
"""Relative difference of shares below which strings are counted as one class. Half of it changes
no prediction by more than 3e-5; a billion strings by Zipf's law make 1,691 classes."""

_EXACT_RANKS: Final = 1000
"""Ranks that are classes of their own: from there on the integral is right to 1e-7 of a block."""

_STEP: Final = 1 / 4096
"""Step of the grid on which the level of a bit is counted. Half of it changes no prediction by more
than 3e-6."""

_LEAST: Final = 1e-13
"""Probability below which a level is left out, as rounding of the Fourier transform may have made
it; predictions change by less than 1e-10."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frequencies:
    """The shares of all strings, in classes of nearly equal ones.

    Attributes
    ----------
    shares : (c,) float64. Share of devices that have one string of each class.
    candidates, non_candidates : (c,) float64. Number of strings of each class that are
        candidates, and that are not.
    absent : number of candidates that no device has.
    """

    shares: Floats
    candidates: Floats
    non_candidates: Floats
    absent: int

    @property
    def n_candidates(self) -> int:
        """All candidates, present and absent."""
        return round(float(self.candidates.sum())) + self.absent

    @classmethod
    def zipf(cls, n_candidates: int, exponent: float = 1.0) -> Frequencies:
        """Return as many strings as candidates, the i-th with a share in proportion to i^-s.

        Ranks above 1,000 are joined in blocks; the sum over a block is the integral between
        its half ranks, which is right to 1e-7 of it.
        """
        n_candidates = read_count("candidates", n_candidates, 1, MOST_CANDIDATES)
        check_number("zipf", exponent, f"[0, {MOST_EXPONENT:g}]")
        n_exact = min(n_candidates, _EXACT_RANKS)
        n_blocks = int(np.ceil(np.log(n_candidates / n_exact) / _SAME))
        edges = np.rint(np.geomspace(n_exact, n_candidates, n_blocks + 1))
        sizes = np.concatenate([np.ones(n_exact), np.diff(edges)])
        masses = np.concatenate(
            [np.arange(1.0, n_exact + 1) ** -exponent, _integral(edges + 0.5, exponent)]
        )
        shares = masses / masses.sum() / sizes
        return cls(shares=shares, candidates=sizes, non_candidates=np.zeros(len(sizes)), absent=0)

    @classmethod
    def of_shares(
        cls, shares: ArrayLike, n_candidates: int, *, n_present: int | None = None
    ) -> Frequencies:
        """Return the strings of a table, of which the largest are candidates.

        Parameters
        ----------
        shares : (n,) shares or weights in any order; they are divided by their sum.
        n_candidates : number of candidates.
        n_present : how many of them are in the table; as many as there are if None. The rest
            are absent.
        """
        n_candidates = read_count("candidates", n_candidates, 1, MOST_CANDIDATES)
        ordered = np.sort(_check_shares(shares))[::-1]
        most = min(n_candidates, len(ordered))
        n_present = most if n_present is None else n_present
        check_integer("n_present", n_present, 0, most)
        candidates, non_candidates = _classes(ordered[:n_present]), _classes(ordered[n_present:])
        return cls(
            shares=np.concatenate([candidates[0], non_candidates[0]]),
            candidates=np.concatenate([candidates[1], np.zeros(len(non_candidates[0]))]),
            non_candidates=np.concatenate([np.zeros(len(candidates[0])), non_candidates[1]]),
            absent=n_candidates - n_present,
        )


@functools.lru_cache(maxsize=32)
def bit_levels(frequencies: Frequencies, density: float) -> tuple[Floats, Floats]:
    """Return the distribution of the share of devices that set one bit of one cohort.

    Every string sets the bit with probability `density`, so the distribution is a convolution,
    computed by its characteristic function on a grid. A share between two points of the grid is
    one or the other at random, with the right mean.

    Returns
    -------
    levels, probabilities : (t,) float64.
    """
    size = int(2 / _STEP)
    number = frequencies.candidates + frequencies.non_candidates
    steps = frequencies.shares / _STEP
    turns = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    large = steps >= 1
    logs = density * float((number * steps)[~large].sum()) * (turns - 1)
    for step, n in zip(steps[large], number[large], strict=True):
        whole = np.floor(step)
        moved = turns**whole * (1 + (step - whole) * (turns - 1))
        logs += n * np.log1p(density * (moved - 1))
    probabilities = np.fft.irfft(np.exp(logs), size)
    kept = np.flatnonzero(probabilities > _LEAST)
    left: Floats = probabilities[kept]
    return np.minimum(kept * _STEP, 1.0), left / left.sum()


def _integral(edges: Floats, exponent: float) -> Floats:
    """Integrate x^-exponent between neighbouring edges, (len(edges) - 1,)."""
    if exponent == 1:
        return np.diff(np.log(edges))
    return np.asarray(np.diff(edges ** (1 - exponent)) / (1 - exponent))


def _classes(ordered: Floats) -> tuple[Floats, Floats]:
    """Join decreasing positive shares in classes; return their means and sizes."""
    if not len(ordered):
        return np.zeros(0), np.zeros(0)
    numbers = np.floor(np.log(ordered) / _SAME)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
    sizes = np.diff(np.append(starts, len(ordered))).astype(float)
    return np.add.reduceat(ordered, starts) / sizes, sizes


def _check_shares(shares: ArrayLike) -> Floats:
    """Return the positive shares, divided by their sum."""
    try:
        numbers = np.array(shares, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("table must be a list of numbers") from None
    if numbers.ndim != 1 or not np.all((numbers >= 0) & (numbers < np.inf)):  # a NaN fails both
        raise ParamsError("table must be a list of finite numbers of at least 0")
    numbers = numbers[numbers > 0]
    if not len(numbers):
        raise ParamsError("table must have at least one number above 0")
    numbers /= numbers.max()
    return np.asarray(numbers[numbers > 0] / numbers.sum())
