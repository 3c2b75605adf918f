"""Numbers of reports that several ways to find unknown strings need for equal recall.

Question: with how many reports does each way find 25, or 85, of 1,000 strings of six letters, if
the collector does not know the strings? The ways differ in the parts of a string that devices
report. The example is the string "neovim":

- *Prefixes* (`discover`): some devices report the prefix "neo", and the other devices report the
  whole string. The search keeps the best prefixes, extends each kept prefix by all letters, and
  tests the extensions.
- *Pieces* ([FPE16]): the string has the pieces "ne", "ov" and "im". Each device reports the whole
  string and two of the three pieces, each of these three reports with a third of the budget. The
  search estimates the share of every pair of pieces, such as "ne" with "im", and keeps the best
  pairs. "neovim" becomes a candidate if all three of its pairs are kept. The reports of whole
  strings then test the candidate. With more kept pairs, there are more candidates.
- *A dictionary*: the analyst has a list that contains all true strings. All devices report the
  whole string, and no report is spent on finding candidates.

Each way is simulated in its best case. Such a simulation is called an *oracle*. Every string,
prefix or pair of pieces has a bit of its own, so there are no collisions, and the noise has the
least variance that the budget allows. The results are therefore lower limits: a real search of the
same way needs more reports.

An oracle takes these steps:

1. Draw 1,000 strings, with shares by Zipf's law.
2. Draw the z score of each string, prefix or pair, without simulating any report. A z score is the
   estimated share, divided by the standard error of the estimate of an absent string. *Example.*
   With epsilon_1 = 2 and 1,000,000 reports, that standard error is .00085. A string of the share
   .005 has a z score near 5.9, with a standard deviation near 1.
3. Keep or detect the largest scores, among the scores of many absent strings.
4. Return the number of true strings among the detected strings.

`_search_reports` repeats the oracle with more and with fewer reports, until it finds as many
strings as required.

[FPE16] Fanti, Pihur, Erlingsson. Building a RAPPOR with the unknown. PoPETs 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.discovery import LENGTH, LETTERS, N_STRINGS, detect, draw_strings
from benchmarks.tables import Table
from rappor.protocol.parts import extract_part

EPSILON: Final = 2.0
"""Privacy loss of one report, in nats. All ways have the same budget."""
RECALLS: Final = (25, 85)
"""Required mean numbers of true strings: as many as `discover` finds in 1e6 and in 1e7 reports."""

_MAX_PREFIXES: Final = 1000
"""Number of prefixes that a search keeps after each step. More prefixes find more strings and take
longer."""
_DICTIONARY: Final = 10_000
"""Number of strings in a list that contains all true strings."""
_PIECES: Final = len(LETTERS) ** 2
"""Number of possible pieces. A piece consists of two letters."""
_EXPONENT_TOLERANCE: Final = 0.005
"""Largest error of the exponent x of the result 10^x reports. The result is then exact to about
1 %."""

Oracle = Callable[[int, float], int]
"""Function from a seed and a number of reports to the number of true strings that are found."""


def compare_needed_reports(*, quick: bool) -> list[Table]:
    """Search for the number of reports that each way needs."""
    seeds = 2 if quick else 20
    table = Table(
        title=f"needed: reports for equal recall, epsilon_1 = {EPSILON:g}, mean of {seeds} seeds",
        columns=("way", *(f"{recall} strings" for recall in RECALLS), "times", "times"),
        note="Zipf 1 over 1,000 random strings of six letters. Every way without collisions. "
        "Times: number of reports, divided by the number in the first row.",
    )
    first_row: list[float] = []
    for name, oracle in WAYS.items():
        reports = [_search_reports(oracle, recall, seeds) for recall in RECALLS]
        first_row = first_row or reports
        ratios = (n / first for n, first in zip(reports, first_row, strict=True))
        table.rows.append([name, *(f"{n:.2g}" for n in reports), *ratios])
    return [table]


def _search_reports(oracle: Oracle, recall: int, seeds: int) -> float:
    """Return the number of reports with which the oracle finds `recall` strings on average.

    More reports find more strings, so a bisection finds the number. It bisects the exponent x of
    10^x reports, from 10^4 to 10^12.
    """
    low, high = 4.0, 12.0
    while high - low > _EXPONENT_TOLERANCE:
        middle = (low + high) / 2
        mean_detections = np.mean([oracle(seed, 10**middle) for seed in range(seeds)])
        low, high = (low, middle) if mean_detections >= recall else (middle, high)
    return float(10**high)


def search_by_prefixes(parts: Mapping[int, float]) -> Oracle:
    """Return the oracle of prefixes.

    `parts` maps the length of a prefix to the share of the devices that report it. The last length
    is the length of the strings.
    """

    def oracle(seed: int, n_reports: float) -> int:
        """Return the number of true strings that a search by prefixes finds."""
        rng, strings, shares = _make_population(seed)
        # The true prefixes that the search keeps, the number of all kept prefixes (prefixes of
        # absent strings included), and their length.
        true_prefixes, n_prefixes, prefix_length = {""}, 1, 0
        for length, part in parts.items():
            pieces: dict[str, float] = {}
            for text, share in zip(strings, shares, strict=True):
                if text[:prefix_length] in true_prefixes:
                    piece = extract_part(f"prefix:{length}", text)
                    pieces[piece] = pieces.get(piece, 0.0) + share
            # Each kept prefix is extended by all combinations of letters. Extensions that are not
            # the beginning of a true string are absent.
            n_absent = n_prefixes * len(LETTERS) ** (length - prefix_length) - len(pieces)
            z = _draw_scores(np.array(list(pieces.values())), EPSILON, part * n_reports, rng)
            if length == LENGTH:
                return detect(z, n_absent, rng)[0]
            threshold = _find_threshold(z, n_absent, _MAX_PREFIXES, rng)
            true_prefixes = {
                piece for piece, score in zip(pieces, z, strict=True) if score >= threshold
            }
            n_prefixes, prefix_length = min(_MAX_PREFIXES, n_absent + len(pieces)), length
        raise AssertionError("the last length is that of the strings")

    return oracle


def search_by_pieces(n_kept: int) -> Oracle:
    """Return the oracle of pieces.

    It keeps the `n_kept` best pairs of first and second pieces, of second and third pieces, and of
    first and third pieces.
    """

    def oracle(seed: int, n_reports: float) -> int:
        """Return the number of true strings that a search by pieces finds."""
        rng, strings, shares = _make_population(seed)
        third = EPSILON / 3
        is_kept = np.ones(len(strings), dtype=bool)
        for first, second in ((0, 2), (2, 4), (0, 4)):
            names = [text[first : first + 2] + text[second : second + 2] for text in strings]
            pairs: dict[str, float] = {}
            for name, share in zip(names, shares, strict=True):
                pairs[name] = pairs.get(name, 0.0) + share
            # A third of the devices sent both pieces. A pair is estimated by the product of the
            # de-biased bits of its two pieces. For an absent pair, both factors are independent and
            # have the mean 0 and the variance V. So their product has the variance V^2, and the
            # standard deviation V. The product of a present pair varies more. The oracle is the
            # best case, so it uses V for all pairs.
            error = _compute_absent_variance(third) / math.sqrt(n_reports / 3)
            z = np.array(list(pairs.values())) / error + rng.standard_normal(len(pairs))
            threshold = _find_threshold(z, _PIECES**2 - len(pairs), n_kept, rng)
            best = {name for name, score in zip(pairs, z, strict=True) if score >= threshold}
            is_kept &= np.array([name in best for name in names])
        z = _draw_scores(shares[is_kept], third, n_reports, rng)
        # Expected number of absent strings whose three pairs are all kept, if pairs are kept at
        # random: there are _PIECES^3 strings, and each of the three pairs is kept with probability
        # n_kept / _PIECES^2. So the number is n_kept^3 / _PIECES^3.
        return detect(z, math.ceil(n_kept**3 / _PIECES**3), rng)[0]

    return oracle


def decode_dictionary(seed: int, n_reports: float) -> int:
    """Return the number of true strings that are found in a list of 10,000 strings.

    The list contains all true strings.
    """
    rng, _, shares = _make_population(seed)
    z = _draw_scores(shares, EPSILON, n_reports, rng)
    return detect(z, _DICTIONARY - len(shares), rng)[0]


WAYS: Final[Mapping[str, Oracle]] = {
    "3 and 6 letters": search_by_prefixes({3: 0.2, LENGTH: 0.8}),
    "a letter a part": search_by_prefixes(dict.fromkeys(range(1, LENGTH + 1), 1 / LENGTH)),
    "pieces, 3,000 pairs kept": search_by_pieces(3000),
    "pieces, 30,000 pairs kept": search_by_pieces(30_000),
    "a dictionary of 10,000": decode_dictionary,
}
"""Ways that are compared, by the name of the row."""


def _make_population(seed: int) -> tuple[np.random.Generator, list[str], NDArray[np.float64]]:
    """Return a random generator, the strings, and their shares by Zipf's law."""
    shares = 1 / np.arange(1.0, N_STRINGS + 1)
    return np.random.default_rng([seed, 9]), draw_strings(seed), shares / shares.sum()


def _compute_absent_variance(epsilon: float) -> float:
    """Return the variance of one report's estimate of the share of an absent string.

    A bit is reported as 1 with probability q if the device has the string, and with probability p
    otherwise. The variance for an absent string is least at q = 1/2 and p = 1 / (1 + e^epsilon)
    (optimized unary encoding, Wang et al., USENIX Security 2017). The estimate of one report is
    (bit - p) / (q - p), so its variance is

        p (1 - p) / (q - p)^2 = 4 e^epsilon / (e^epsilon - 1)^2

    because p (1 - p) = e^epsilon / (1 + e^epsilon)^2 and q - p = (e^epsilon - 1) / (2 (1 +
    e^epsilon)).
    """
    return 4 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def _draw_scores(
    shares: NDArray[np.float64], epsilon: float, n: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the z scores of strings with these shares of n devices. Each string has its own bit.

    The z score is the estimated share, divided by the standard error of the estimate of an absent
    string. The estimate of a device without the string has the variance p (1 - p) / (q - p)^2
    (`_compute_absent_variance`). The estimate of a device with the string has the variance
    q (1 - q) / (q - p)^2. At q = 1/2 the second variance is larger by exactly 1.
    """
    absent_variance = _compute_absent_variance(epsilon)
    variance = (1 - shares) * absent_variance + shares * (absent_variance + 1)
    return np.asarray(
        shares * math.sqrt(n / absent_variance)
        + np.sqrt(variance / absent_variance) * rng.standard_normal(len(shares))
    )


def _find_threshold(
    z: NDArray[np.float64], n_absent: int, n_kept: int, rng: np.random.Generator
) -> float:
    """Return the smallest score of the `n_kept` largest scores of all strings.

    Parameters
    ----------
    z : scores of the present strings
    n_absent : number of absent strings, whose scores are standard normal
    n_kept : number of strings to keep
    rng : generator of random numbers
    """
    if n_absent + len(z) <= n_kept:
        # All strings are kept.
        return -math.inf
    # There may be millions of absent strings. Draw only their largest scores, about twice as many
    # as are kept. A score is in the upper tail of probability `level` if its tail probability is
    # below `level`. The number of such scores is binomial, and their tail probabilities are uniform
    # between 0 and `level`. `isf` converts a tail probability to its score.
    level = min(2 * n_kept / n_absent, 1.0)
    n_tail = rng.binomial(n_absent, level)
    tail_probabilities = level * rng.random(n_tail)
    absent = stats.norm.isf(tail_probabilities)
    return float(np.sort(np.concatenate([z, absent]))[::-1][:n_kept][-1])
