"""Frequency distribution of strings for planning: their shares, without the strings themselves.

The share of a string is the proportion of the devices that have the string. Before a collection the
strings are unknown. Their shares are assumed by Zipf's law, or come from a table of an earlier
study. Strings of nearly equal shares form a class, so a billion strings need less than two thousand
numbers.

If the value of a device is a set, such as all installed plugins, the strings are the items of the
sets. The share of an item is the proportion of the devices whose set contains the item
(`Frequencies.as_sets`).

`compute_bit_levels` computes the distribution of the level of a bit: the proportion of the devices
of a cohort whose strings set the bit. The level varies from bit to bit, because each string sets
random bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number, read_count
from rappor.counts.arrays import Floats

MAX_CANDIDATES: Final = 10**9
"""Largest number of candidates of a plan. No list of candidates is longer. A larger number would
add classes of strings to `Frequencies.zipf`."""

MAX_EXPONENT: Final = 10.0
"""Largest exponent of Zipf's law. At 10, the second string has a thousandth of the first share, and
larger exponents give almost the same predictions."""

MEAN_FILLING: Final = 0.75
"""Assumed mean number of items of a set, divided by the largest number of items that a report can
represent (`items`). It is the mean if the numbers of items are uniform between half of the largest
number and the largest number. With a larger value, a plan assumes larger shares of the same items,
and predicts more detections."""

_CLASS_WIDTH: Final = 0.02
"""Width of a class of strings, as a relative difference of shares. A billion strings by Zipf's law
form 1,691 classes. Half of the width doubles the number and changes no prediction by more than a
relative 3e-5."""

_EXACT_RANKS: Final = 1000
"""Number of the most frequent strings that are classes of their own under Zipf's law. The sum of
the shares of any later class is an integral. Its relative error falls with the square of the rank:
at rank 1,000 it is 1e-7 for the exponent 1, and 5e-6 for the exponent 10."""

_GRID_STEP: Final = 1 / 4096
"""Distance of neighbouring bit levels on the grid, as a proportion of devices. Half of the distance
doubles the time and changes no prediction by more than a relative 3e-6."""

_MIN_PROBABILITY: Final = 1e-13
"""Smallest probability of a level that is used. The Fourier transform creates smaller probabilities
by rounding. Without them, predictions change by less than a relative 1e-10."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frequencies:
    """Shares of all strings, or of all items of sets, in classes of nearly equal shares.

    Attributes
    ----------
    shares : (classes,) float64. Share of a single string of each class, as a proportion of devices.
    candidates : (classes,) float64. Number of strings of each class that are candidates.
    non_candidates : (classes,) float64. Number of strings of each class that are no candidates. The
        decoder cannot explain their reports.
    absent : number of candidates that no device has.
    source : clause that says where the shares come from, such as "Zipf's law with exponent 1".

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
    source: str = "given shares"

    @property
    def total(self) -> float:
        """Sum of the shares of all strings: 1, or the mean number of items of a set."""
        return float((self.candidates + self.non_candidates) @ self.shares)

    @property
    def n_candidates(self) -> int:
        """Number of candidates, present and absent."""
        return round(float(self.candidates.sum())) + self.absent

    def as_items(self, mean_items: float) -> Frequencies:
        """Return the frequencies of items of sets, from popularities of the items.

        The shares of this object are the popularities w, with the sum 1. A set is drawn item by
        item without repetition, with probabilities in proportion to w (successive sampling). In a
        large population, the share of the sets that contain an item is then close to

            1 - exp(-x w)

        (Rosen, Annals of Mathematical Statistics 1972). The number x is determined by the sum of
        these shares over all items, which is the mean number of items of a set, `mean_items`.

        Parameters
        ----------
        mean_items : mean number of items of a set, less than the number of strings.

        Raises
        ------
        ParamsError
            There are too few strings.

        Examples
        --------
        >>> from rappor.planning import Frequencies
        >>> Frequencies.zipf(100).as_items(6).shares[:2].round(2).tolist()
        [0.75, 0.5]
        """
        n_strings = self.candidates + self.non_candidates
        if n_strings.sum() <= mean_items:
            raise ParamsError(
                f"candidates must number more than {mean_items:g}, the mean number of items of a "
                f"set, got {n_strings.sum():g}"
            )

        def compute_excess(log_x: float) -> float:
            return float(n_strings @ -np.expm1(-np.exp(log_x) * self.shares)) - mean_items

        # The sum is at most x, because the popularities have the sum 1, and it increases with x.
        low, high = math.log(mean_items), math.log(mean_items) + 1
        while compute_excess(high) < 0:
            high += 1
        x = math.exp(optimize.brentq(compute_excess, low, high))
        return dataclasses.replace(self, shares=-np.expm1(-x * self.shares))

    def as_sets(self, items: int) -> Frequencies:
        """Return the frequencies of items of sets that are three quarters full on average.

        A full set has `items` items, or all strings if there are fewer.

        Examples
        --------
        >>> [round(Frequencies.zipf(n).as_sets(8).total, 9) for n in (100, 2)]
        [6.0, 1.5]
        """
        n_strings = float((self.candidates + self.non_candidates).sum())
        return self.as_items(MEAN_FILLING * min(items, n_strings))

    @classmethod
    def zipf(cls, n_candidates: int, exponent: float = 1.0) -> Frequencies:
        """Return frequencies by Zipf's law: the share of string i is proportional to i^-exponent.

        All strings are candidates. Ranks above 1,000 form classes of consecutive ranks. The sum
        over the ranks a to b of a class is the integral of x^-exponent from a - 1/2 to b + 1/2. Its
        relative error is at most exponent (exponent + 1) / (24 a^2), which is 1e-7 for the exponent
        1 and 5e-6 for the exponent 10 (midpoint rule).

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
        return cls(
            shares=shares,
            candidates=sizes,
            non_candidates=np.zeros(len(sizes)),
            absent=0,
            source=f"Zipf's law with exponent {exponent:g}",
        )

    @classmethod
    def of_shares(
        cls, shares: ArrayLike, n_candidates: int, *, n_present: int | None = None
    ) -> Frequencies:
        """Return the frequencies of a table of strings. The most frequent strings are candidates.

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
        candidate_shares, candidate_sizes = _group_shares(ordered[:n_present])
        other_shares, other_sizes = _group_shares(ordered[n_present:])
        return cls(
            shares=np.concatenate([candidate_shares, other_shares]),
            candidates=np.concatenate([candidate_sizes, np.zeros(len(other_sizes))]),
            non_candidates=np.concatenate([np.zeros(len(candidate_sizes)), other_sizes]),
            absent=n_candidates - n_present,
        )


@functools.lru_cache(maxsize=32)
def compute_bit_levels(frequencies: Frequencies, density: float) -> tuple[Floats, Floats]:
    """Compute the distribution of the level of a bit: the share of devices that set the bit.

    Every string independently sets the bit with probability `density`, and then adds its share to
    the level. The level is therefore a sum of independent random numbers. The distribution of the
    sum is a convolution. It is computed by its characteristic function, on a grid of levels. A
    share between two points of the grid is replaced by one of the two points at random, with the
    right mean.

    Returns
    -------
    levels : (t,) float64
        Levels with a probability of at least 1e-13, in increasing order.
    probabilities : (t,) float64
        Probability of each level. The sum is 1.
    """
    # The Fourier transform computes a cyclic convolution on the grid from 0 to 2. A level of 2 or
    # more would be counted as the level minus 2. The shares of strings have the sum 1, so no level
    # is that large. The shares of the items of sets have a larger sum. But a level of 2 needs many
    # frequent items on one bit, which is improbable. With sets of 64 items, the error of the
    # predictions is a relative 1e-4.
    size = int(2 / _GRID_STEP)
    n_strings = frequencies.candidates + frequencies.non_candidates
    steps = frequencies.shares / _GRID_STEP
    # The roots of unity. A power of a root is another one: root[i]^n = root[i n modulo size].
    roots = np.exp(-2j * np.pi * np.arange(size) / size)
    indices = np.arange(size // 2 + 1)
    phases = roots[: size // 2 + 1]
    is_large = steps >= 1
    # The sum of the shares below one step of the grid is approximated by a Poisson distribution
    # with the right mean. These shares are so small and so many that their sum hardly varies.
    characteristic = np.exp(density * float((n_strings * steps)[~is_large].sum()) * (phases - 1))
    for step, n in zip(steps[is_large], n_strings[is_large], strict=True):
        whole_steps = int(step)
        powers = roots[indices * whole_steps % size]
        factor = powers * (1 + (step - whole_steps) * (phases - 1))
        of_string = 1 + density * (factor - 1)
        # Most of these classes have one string. A complex power takes ten times as long.
        characteristic *= of_string if n == 1 else of_string**n
    probabilities = np.fft.irfft(characteristic, size)
    level_indices = np.flatnonzero(probabilities > _MIN_PROBABILITY)
    remaining: Floats = probabilities[level_indices]
    return np.minimum(level_indices * _GRID_STEP, 1.0), remaining / remaining.sum()


def _integrate_power(edges: Floats, exponent: float) -> Floats:
    """Integrate x^-exponent between neighbouring edges, (len(edges) - 1,) float64."""
    if exponent == 1:
        return np.diff(np.log(edges))
    return np.asarray(np.diff(edges ** (1 - exponent)) / (1 - exponent))


def _group_shares(ordered: Floats) -> tuple[Floats, Floats]:
    """Group decreasing positive shares into classes of nearly equal shares.

    Returns
    -------
    Mean share of each class, and number of strings of each class, both (classes,) float64.
    """
    if not len(ordered):
        return np.zeros(0), np.zeros(0)
    class_numbers = np.floor(np.log(ordered) / _CLASS_WIDTH)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(class_numbers)) + 1])
    sizes = np.diff(np.append(starts, len(ordered))).astype(float)
    return np.add.reduceat(ordered, starts) / sizes, sizes


def _check_shares(shares: ArrayLike) -> Floats:
    """Return the positive shares, divided by their sum."""
    try:
        numbers = np.array(shares, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError("table must be a list of numbers") from None
    # NaN fails both comparisons.
    if numbers.ndim != 1 or not np.all((numbers >= 0) & (numbers < np.inf)):
        raise ParamsError("table must be a list of finite numbers of at least 0")
    numbers = numbers[numbers > 0]
    if not len(numbers):
        raise ParamsError("table must have at least one number above 0")
    # The first division is by the largest number, because the sum of large numbers could overflow.
    # Each division may underflow: a number becomes 0 if it is 1e-324 of the largest number or less.
    # These numbers are dropped, because `_group_shares` computes the logarithm of each share.
    numbers /= numbers.max()
    numbers /= numbers.sum()
    return np.asarray(numbers[numbers > 0])
