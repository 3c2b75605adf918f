"""Reports that ways to find unknown strings need for equal recall, each without collisions.

Every way is given its best case: each string, prefix or pair of pieces has a bit of its own, with
the noise of least variance at the budget, so that only the coins limit it. What is compared is how
devices are divided and how candidates are found.

Pieces are those of [FPE16]: each device reports its string and two of its three pieces of two
letters, each with a third of the budget. Two pieces belong together if the reports of devices that
sent both say so; strings of which all three pairs are among the best are tested by the reports of
strings. The more pairs are kept, the more of the work is left to that test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.discovery import LENGTH, LETTERS, N_STRINGS, detect, random_strings
from benchmarks.tables import Table
from rappor.protocol.parts import cut

EPSILON: Final = 2.0
RECALLS: Final = (25, 85)
"""True strings in the mean: what `discover` finds in 1e6 and in 1e7 reports."""

_KEPT: Final = 1000
_DICTIONARY: Final = 10_000
_PIECES: Final = len(LETTERS) ** 2
_DIGITS: Final = 0.005
"""The search ends at this distance in powers of ten: about 1 %."""

Oracle = Callable[[int, float], int]
"""A seed and a number of reports -> the true strings that are found."""


def needed(*, quick: bool) -> list[Table]:
    """Search for the reports that each way needs."""
    seeds = 2 if quick else 20
    table = Table(
        title=f"needed: reports for equal recall, epsilon_1 = {EPSILON:g}, mean of {seeds} seeds",
        columns=("way", *(f"{recall} strings" for recall in RECALLS), "times", "times"),
        note="Zipf 1 over 1,000 random strings of six letters. Every way without collisions. "
        "Times: beside the first row.",
    )
    least: list[float] = []
    for name, oracle in WAYS.items():
        reports = [_search(oracle, recall, seeds) for recall in RECALLS]
        least = least or reports
        ratios = (n / first for n, first in zip(reports, least, strict=True))
        table.rows.append([name, *(f"{n:.2g}" for n in reports), *ratios])
    return [table]


def _search(oracle: Oracle, recall: int, seeds: int) -> float:
    """Return the reports at which the mean recall is reached, by halving powers of ten."""
    low, high = 4.0, 12.0
    while high - low > _DIGITS:
        middle = (low + high) / 2
        found = np.mean([oracle(seed, 10**middle) for seed in range(seeds)])
        low, high = (low, middle) if found >= recall else (middle, high)
    return float(10**high)


def by_prefixes(parts: Mapping[int, float]) -> Oracle:
    """Return the way by prefixes: their lengths, each with its share of the devices."""

    def oracle(seed: int, n_reports: float) -> int:
        rng, strings, shares = _population(seed)
        kept, n_kept, before = {""}, 1, 0
        for length, part in parts.items():
            pieces: dict[str, float] = {}
            for text, share in zip(strings, shares, strict=True):
                if text[:before] in kept:
                    piece = cut(f"prefix:{length}", text)
                    pieces[piece] = pieces.get(piece, 0.0) + share
            n_absent = n_kept * len(LETTERS) ** (length - before) - len(pieces)
            z = _scores(np.array(list(pieces.values())), EPSILON, part * n_reports, rng)
            if length == LENGTH:
                return detect(z, n_absent, rng)[0]
            threshold = _threshold(z, n_absent, _KEPT, rng)
            kept = {piece for piece, score in zip(pieces, z, strict=True) if score >= threshold}
            n_kept, before = min(_KEPT, n_absent + len(pieces)), length
        raise AssertionError("the last length is that of the strings")

    return oracle


def by_pieces(n_kept: int) -> Oracle:
    """Return the way by pieces: strings of which all pairs are among the best are tested."""

    def oracle(seed: int, n_reports: float) -> int:
        rng, strings, shares = _population(seed)
        third = EPSILON / 3
        is_kept = np.ones(len(strings), dtype=bool)
        for first, second in ((0, 2), (2, 4), (0, 4)):
            names = [text[first : first + 2] + text[second : second + 2] for text in strings]
            pairs: dict[str, float] = {}
            for name, share in zip(names, shares, strict=True):
                pairs[name] = pairs.get(name, 0.0) + share
            # Of two bits at once: a third of the devices sent both, and the variances multiply.
            error = _absent_variance(third) / math.sqrt(n_reports / 3)
            z = np.array(list(pairs.values())) / error + rng.standard_normal(len(pairs))
            threshold = _threshold(z, _PIECES**2 - len(pairs), n_kept, rng)
            best = {name for name, score in zip(pairs, z, strict=True) if score >= threshold}
            is_kept &= np.array([name in best for name in names])
        z = _scores(shares[is_kept], third, n_reports, rng)
        # Absent strings of which all three pairs are kept, if pairs were kept at random.
        return detect(z, math.ceil(n_kept**3 / _PIECES**3), rng)[0]

    return oracle


def by_dictionary(seed: int, n_reports: float) -> int:
    """Test a list of 10,000 strings that has all of them: no part is spent on finding them."""
    rng, _, shares = _population(seed)
    z = _scores(shares, EPSILON, n_reports, rng)
    return detect(z, _DICTIONARY - len(shares), rng)[0]


WAYS: Final[Mapping[str, Oracle]] = {
    "3 and 6 letters": by_prefixes({3: 0.2, LENGTH: 0.8}),
    "a letter a part": by_prefixes(dict.fromkeys(range(1, LENGTH + 1), 1 / LENGTH)),
    "pieces, 3,000 pairs kept": by_pieces(3000),
    "pieces, 30,000 pairs kept": by_pieces(30_000),
    "a dictionary of 10,000": by_dictionary,
}


def _population(seed: int) -> tuple[np.random.Generator, list[str], NDArray[np.float64]]:
    shares = 1 / np.arange(1.0, N_STRINGS + 1)
    return np.random.default_rng([seed, 9]), random_strings(seed), shares / shares.sum()


def _absent_variance(epsilon: float) -> float:
    """Return the variance of one report's estimate of a string that nobody has.

    The best p and q of a bit: q = 1/2, p = 1 / (1 + e^epsilon).
    """
    return 4 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def _scores(
    shares: NDArray[np.float64], epsilon: float, n: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw z scores of strings with these shares of n devices, each with a bit of its own."""
    absent = _absent_variance(epsilon)
    own = (1 - shares) * absent + shares * (absent + 1)  # q (1 - q) / (q - p)^2 = absent + 1
    return np.asarray(
        shares * math.sqrt(n / absent) + np.sqrt(own / absent) * rng.standard_normal(len(shares))
    )


def _threshold(
    z: NDArray[np.float64], n_absent: int, n_kept: int, rng: np.random.Generator
) -> float:
    """Return the score of the last one of the best, absent ones among them."""
    if n_absent + len(z) <= n_kept:
        return -math.inf
    level = min(2 * n_kept / n_absent, 1.0)
    n_tail = rng.binomial(n_absent, level)
    absent = stats.norm.isf(level * rng.random(n_tail))
    return float(np.sort(np.concatenate([z, absent]))[::-1][:n_kept][-1])
