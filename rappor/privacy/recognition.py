"""The probability that an observer recognises a device among others by two sets of n reports.

The observer has one set of reports of a device, and another set of every device, that one among
them. All reports of a device come from one permanent response. The observer scores each pair of
sets by its log-likelihood ratio, one device against two, which is a sum over the bits. The best
score wins, and equal ones share.

Of each bit only its number of ones in a set matters. Let a be the share of permanent bits that
are 1, and let r and s be the probabilities that the permanent bit is 1 given the numbers x and y
of two sets. Then x and y are (1 - r)(1 - s) / (1 - a) + r s / a times likelier of one device than
of two.

What devices hold matters too. Strings of two devices are taken to differ, unknown to the observer:
that links most, since a value is shared by the reports of one device only. Every other encoding
has few answers. There all devices are taken to give the same one, which sets no bit, so that only
the permanent noise links. Bits are taken as independent.

Few pairs of sets are enumerated. With more, the score L of one device is taken as normal, given
how many bits of the first set speak for a permanent 1. Its mean and variance are exact, and
P(L > t) = E[e^-L; L > t] gives the score of two devices. No observer does better than one who
knows the permanent responses, so that probability bounds all others. For at least 8 bits and 50
devices simulation agrees within 0.03.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_MOST_PAIRS: Final = 50_000
"""Most pairs of sets, up to the order of bits, that are enumerated."""

_NEGLIGIBLE: Final = 1e-12
"""Probability that is left out of a sum."""

_DIGITS: Final = 9
"""Decimals in which two scores are the same score."""

_NODES: Final = tuple(step / 20 for step in range(-160, 161))
"""Where a normal distribution is summed, in standard deviations."""

_Scores = dict[float, tuple[float, float]]
"""Probability of each score if both sets are of one device, and if they are of two."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """The number x of ones that n reports show of one bit.

    `if_zero` and `if_one` are its probabilities at a true 0 and a true 1, `of_any` those over all
    devices, `posterior` that the permanent bit is 1, and `share` how many permanent bits are.
    """

    if_zero: Sequence[float]
    if_one: Sequence[float]
    of_any: Sequence[float]
    posterior: Sequence[float]
    share: float

    def ratio(self, x: int, y: int) -> float:
        """Return how much likelier two counts are of one device than of two."""
        r, s = self.posterior[x], self.posterior[y]
        if self.share in (0, 1):
            return 1.0
        return (1 - r) * (1 - s) / (1 - self.share) + r * s / self.share


def recognition_probability(params: Params, n: int, devices: int) -> float:
    """Return the probability that two sets of n reports of a device are found to be its own."""
    ones = count_true_bits(params)
    counts = _counts(params, n, ones / params.k)
    few = math.comb(params.k + (n + 1) ** 2 - 1, params.k) <= _MOST_PAIRS
    found = (_by_enumeration if few else _by_normal)(counts, params.k, ones, devices)
    return min(found, recognition_limit(params, devices))


def recognition_limit(params: Params, devices: int) -> float:
    """Return the probability by any number of reports: by the permanent responses themselves."""
    ones = count_true_bits(params)
    shown = _sum_of_hits(params.k - ones, params.f1, ones, 1 - params.f0)
    return sum(
        weight * _first(0.0, _same_response(params, ones, c), devices)
        for c, weight in enumerate(shown)
        if weight > _NEGLIGIBLE
    )


def binomial_probability(n: int, x: int, probability: float) -> float:
    """Return the probability of x hits in n."""
    if probability in (0, 1):
        return float(x == n * probability)
    ways = math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1)
    return math.exp(ways + x * math.log(probability) + (n - x) * math.log1p(-probability))


def count_true_bits(params: Params) -> int:
    """Return how many bits a device's value sets."""
    return round(params.k * params.density) if encoding_of(params).hashed else 0


def _counts(params: Params, n: int, density: float) -> _Counts:
    share = params.f1 + density * (1 - params.f)
    low = [binomial_probability(n, x, params.p) for x in range(n + 1)]
    high = [binomial_probability(n, x, params.q) for x in range(n + 1)]
    of_any = _mix(low, high, share)
    ones = [share * each for each in high]
    return _Counts(
        if_zero=_mix(low, high, params.f1),
        if_one=_mix(low, high, 1 - params.f0),
        of_any=of_any,
        posterior=[one / each if each else 0.0 for one, each in zip(ones, of_any, strict=True)],
        share=share,
    )


def _mix(low: Sequence[float], high: Sequence[float], share: float) -> list[float]:
    return [(1 - share) * x + share * y for x, y in zip(low, high, strict=True)]


def _by_enumeration(counts: _Counts, k: int, ones: int, devices: int) -> float:
    """Enumerate the first set by how many bits have each count, and the second one given it."""
    values = range(len(counts.of_any))
    sums = [_sums_of_scores(counts, x, k) for x in values]
    total = 0.0
    for numbers, weight in _numbers_of_bits(counts, k, ones).items():
        scores: _Scores = {0.0: (1.0, 1.0)}
        for x in values:
            scores = _add(scores, sums[x][numbers[x]])
        total += weight * _best(scores, devices)
    return total


def _numbers_of_bits(counts: _Counts, k: int, ones: int) -> Mapping[tuple[int, ...], float]:
    """Return the probabilities of how many of k bits have each count."""
    numbers = {(0,) * len(counts.of_any): 1.0}
    for bit in range(k):
        grown: dict[tuple[int, ...], float] = defaultdict(float)
        row = counts.if_one if bit < ones else counts.if_zero
        for (before, weight), (x, probability) in itertools.product(
            numbers.items(), enumerate(row)
        ):
            if weight * probability > _NEGLIGIBLE:
                after = (*before[:x], before[x] + 1, *before[x + 1 :])
                grown[after] += weight * probability
        numbers = grown
    return numbers


def _sums_of_scores(counts: _Counts, x: int, k: int) -> list[_Scores]:
    """Return the scores of 0 to k bits whose count in the first set is x."""
    one_bit: _Scores = {}
    for y, probability in enumerate(counts.of_any):
        ratio = counts.ratio(x, y)
        score = round(math.log(ratio), _DIGITS) if ratio else -math.inf
        same, other = one_bit.get(score, (0.0, 0.0))
        one_bit[score] = (same + probability * ratio, other + probability)
    sums: list[_Scores] = [{0.0: (1.0, 1.0)}]
    for _ in range(k):
        sums.append(_add(sums[-1], one_bit))
    return sums


def _add(left: _Scores, right: _Scores) -> _Scores:
    """Return the scores of both parts together."""
    both: _Scores = {}
    for (x, (x_same, x_other)), (y, (y_same, y_other)) in itertools.product(
        left.items(), right.items()
    ):
        score = round(x + y, _DIGITS)
        same, other = both.get(score, (0.0, 0.0))
        both[score] = (same + x_same * y_same, other + x_other * y_other)
    return both


def _best(scores: _Scores, devices: int) -> float:
    """Return the probability that a device's own score is the best of all devices'."""
    above = total = 0.0
    for score in sorted(scores, reverse=True):
        same, other = scores[score]
        total += same * _first(above, other, devices)
        above += other
    return total


def _by_normal(counts: _Counts, k: int, ones: int, devices: int) -> float:
    """Take the score as normal, given the number of bits that speak for a permanent 1."""
    speaking = [x for x, r in enumerate(counts.posterior) if r > 0.5] or [len(counts.posterior) - 1]
    silent = [x for x in range(len(counts.posterior)) if x not in speaking]
    mean_1, variance_1 = _moments(counts, speaking)
    mean_0, variance_0 = _moments(counts, silent)
    at_zero, at_one = (sum(row[x] for x in speaking) for row in (counts.if_zero, counts.if_one))
    total = 0.0
    for c, weight in enumerate(_sum_of_hits(k - ones, at_zero, ones, at_one)):
        if weight > _NEGLIGIBLE:
            mean = c * mean_1 + (k - c) * mean_0
            variance = c * variance_1 + (k - c) * variance_0
            total += weight * _best_of_normal(mean, variance, devices)
    return total


def _moments(counts: _Counts, first: Sequence[int]) -> tuple[float, float]:
    """Return mean and variance of one device's score of a bit with one of these first counts."""
    weight = mean = square = 0.0
    for x, (y, probability) in itertools.product(first, enumerate(counts.of_any)):
        ratio = counts.ratio(x, y)
        if same := counts.of_any[x] * probability * ratio:
            score = math.log(ratio)
            weight, mean, square = weight + same, mean + same * score, square + same * score**2
    if not weight:
        return 0.0, 0.0
    return mean / weight, max(0.0, square / weight - (mean / weight) ** 2)


def _best_of_normal(mean: float, variance: float, devices: int) -> float:
    deviation = math.sqrt(variance)
    total = weights = 0.0
    for z in _NODES:
        weight = math.exp(-(z**2) / 2)
        above = math.exp(min(0.0, variance / 2 - mean + _log_upper_tail(z + deviation)))
        weights += weight
        total += weight * _first(above, 0.0, devices)
    return total / weights


def _log_upper_tail(z: float) -> float:
    """Return the log of a normal distribution's probability above z; asymptotic far out."""
    if z > 30:
        return -(z**2) / 2 - math.log(z * math.sqrt(2 * math.pi))
    return math.log(math.erfc(z / math.sqrt(2)) / 2)


def _first(above: float, equal: float, devices: int) -> float:
    """Return the probability that one of the devices is best, or drawn among the best.

    Each other device scores above it, or as high, with these probabilities.
    """
    below = 1 - above
    if devices == 1:
        return 1.0
    if below <= 0:
        return 0.0
    if devices * equal < _NEGLIGIBLE * below:
        return math.exp((devices - 1) * math.log1p(-above))
    among = -math.expm1(devices * math.log1p(-equal / below)) if equal < below else 1.0
    return math.exp(devices * math.log(below)) * among / (devices * equal)


def _same_response(params: Params, ones: int, c: int) -> float:
    """Return the probability of one permanent response with c ones, for a value anywhere.

    Of the value's ones i are shown and the others hidden; c - i zeros are shown as ones.
    """
    k, f1, f0 = params.k, params.f1, params.f0
    total = 0.0
    for i in range(max(0, ones - k + c), min(c, ones) + 1):
        true = math.comb(c, i) * math.comb(k - c, ones - i) / math.comb(k, ones)
        of_ones = (1 - f0) ** i * f0 ** (ones - i)
        total += true * of_ones * f1 ** (c - i) * (1 - f1) ** (k - c - ones + i)
    return total


def _sum_of_hits(n: int, p: float, more: int, q: float) -> list[float]:
    """Return the probabilities of hits in n trials of probability p and more of probability q."""
    total = [0.0] * (n + more + 1)
    for x, y in itertools.product(range(n + 1), range(more + 1)):
        total[x + y] += binomial_probability(n, x, p) * binomial_probability(more, y, q)
    return total
