"""Who holds what, as far as planning needs to know: shares without names."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rappor.errors import ParamsError

MOST_CANDIDATES: Final = 10**9

_FINE: Final = 0.02
"""Strings whose shares differ by less than this part of them are counted as one class."""

_EXACT_RANKS: Final = 1000
_STEP: Final = 1 / 4096
"""Of the grid on which the level of a bit is counted."""

_LEAST: Final = 1e-13
"""Chance of a level that is left out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crowd:
    """The shares of all strings, in classes of nearly equal ones.

    Attributes
    ----------
    shares : (c,) float64. Share of devices of one string of each class.
    asked, unasked : (c,) float64. Number of its strings that are candidates, and are not.
    absent : number of candidates that nobody holds.
    """

    shares: NDArray[np.float64]
    asked: NDArray[np.float64]
    unasked: NDArray[np.float64]
    absent: int

    @property
    def n_candidates(self) -> int:
        """Candidates, held and absent."""
        return round(float(self.asked.sum())) + self.absent

    @classmethod
    def zipf(cls, n_candidates: int, exponent: float = 1.0) -> Crowd:
        """Return as many strings as candidates, the i-th with a share in proportion to i^-s.

        Ranks above 1,000 are joined in blocks; the sum over a block is the integral between
        its half ranks, which is right to 1e-7 of it.
        """
        _check_candidates(n_candidates)
        if not isinstance(exponent, int | float) or not 0 <= exponent <= 10:
            raise ParamsError(f"zipf must be a number in [0, 10], got {exponent!r}")
        n_exact = min(n_candidates, _EXACT_RANKS)
        n_blocks = int(np.ceil(np.log(n_candidates / n_exact) / _FINE))
        edges = np.rint(np.geomspace(n_exact, n_candidates, n_blocks + 1))
        sizes = np.concatenate([np.ones(n_exact), np.diff(edges)])
        masses = np.concatenate(
            [np.arange(1.0, n_exact + 1) ** -exponent, _integral(edges + 0.5, exponent)]
        )
        shares = masses / masses.sum() / sizes
        return cls(shares=shares, asked=sizes, unasked=np.zeros(len(sizes)), absent=0)

    @classmethod
    def of_shares(cls, shares: ArrayLike, n_candidates: int, *, n_held: int | None = None) -> Crowd:
        """Return a table's strings, of which the largest are candidates.

        Parameters
        ----------
        shares : (n,) shares or weights in any order; they are divided by their sum.
        n_candidates : candidates asked about.
        n_held : how many of them are in the table; as many as there are if None. The others
            are absent.
        """
        _check_candidates(n_candidates)
        ordered = np.sort(_check_shares(shares))[::-1]
        n_asked = min(n_candidates, len(ordered)) if n_held is None else n_held
        if n_asked not in range(min(n_candidates, len(ordered)) + 1):
            raise ParamsError(
                f"n_held must be an integer in [0, {min(n_candidates, len(ordered))}], "
                f"got {n_held!r}"
            )
        asked, unasked = _classes(ordered[:n_asked]), _classes(ordered[n_asked:])
        return cls(
            shares=np.concatenate([asked[0], unasked[0]]),
            asked=np.concatenate([asked[1], np.zeros(len(unasked[0]))]),
            unasked=np.concatenate([np.zeros(len(asked[0])), unasked[1]]),
            absent=n_candidates - n_asked,
        )


@functools.lru_cache(maxsize=32)
def bit_levels(crowd: Crowd, density: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the law of the share of devices that set one bit of one cohort.

    Every string sets the bit with chance `density`, so the law is a convolution, taken by
    its characteristic function on a grid; a share between two points of it is one of them
    by chance, with the right mean.

    Returns
    -------
    levels, chances : (t,) float64.
    """
    size = int(2 / _STEP)
    number = crowd.asked + crowd.unasked
    steps = crowd.shares / _STEP
    turns = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    large = steps >= 1
    logs = density * float((number * steps)[~large].sum()) * (turns - 1)
    for step, n in zip(steps[large], number[large], strict=True):
        whole = np.floor(step)
        moved = turns**whole * (1 + (step - whole) * (turns - 1))
        logs += n * np.log1p(density * (moved - 1))
    chances = np.fft.irfft(np.exp(logs), size)
    kept = np.flatnonzero(chances > _LEAST)
    left: NDArray[np.float64] = chances[kept]
    return np.minimum(kept * _STEP, 1.0), left / left.sum()


def _integral(edges: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Integrate x^-exponent between neighbouring edges, (len(edges) - 1,)."""
    if exponent == 1:
        return np.diff(np.log(edges))
    return np.asarray(np.diff(edges ** (1 - exponent)) / (1 - exponent))


def _classes(ordered: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Join decreasing positive shares in classes; return their means and sizes."""
    if not len(ordered):
        return np.zeros(0), np.zeros(0)
    numbers = np.floor(np.log(ordered) / _FINE)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
    sizes = np.diff(np.append(starts, len(ordered))).astype(float)
    return np.add.reduceat(ordered, starts) / sizes, sizes


def _check_candidates(n_candidates: int) -> None:
    whole = isinstance(n_candidates, int) and not isinstance(n_candidates, bool)
    if not whole or not 1 <= n_candidates <= MOST_CANDIDATES:
        raise ParamsError(f"candidates must be an integer in [1, 1e9], got {n_candidates!r}")


def _check_shares(shares: ArrayLike) -> NDArray[np.float64]:
    """Return the positive shares, divided by the sum."""
    try:
        numbers = np.array(shares, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("table must be a list of numbers") from None
    if numbers.ndim != 1 or not np.all((numbers >= 0) & (numbers < np.inf)):  # a NaN fails both
        raise ParamsError("table must be a list of finite numbers of at least 0")
    numbers = numbers[numbers > 0]
    if not len(numbers):
        raise ParamsError("table must hold at least one number above 0")
    numbers /= numbers.max()
    return np.asarray(numbers[numbers > 0] / numbers.sum())
