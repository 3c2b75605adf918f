"""The probability that an observer recognises a device among others by two sets of n reports.

Theory of operation
-------------------
The observer has a set of n reports of one device, and a set of n reports of every device. One of
the second sets is of the same device. All reports of a device come from one permanent response. The
observer scores each pair of sets by the log-likelihood ratio

    L = log P(both sets | one device) - log P(both sets | two devices)

and chooses the pair with the largest score. Equal scores are drawn by lot.

The bits are taken as independent, so L is a sum over the bits. Of a bit, only the numbers x and y
of ones in the two sets matter. Let a be the share of permanent bits that are 1, and let r and s be
the posterior probabilities that the permanent bit is 1, given x and given y. Then

    P(x, y | one device) / P(x, y | two devices) = (1 - r)(1 - s) / (1 - a) + r s / a

The values of the devices matter, too:

- Strings: all devices are assumed to have different strings that the observer does not know. This
  assumption links most, because only reports of one device share a string.
- Every other encoding has few values. All devices are assumed to have the same value, which sets no
  bit, so only the permanent noise links reports.

Two methods compute the probability. With few bits and reports, all pairs of sets are enumerated.
With more, L of one device is approximated by a normal distribution, given the number of bits of the
first set that indicate a permanent 1. Mean and variance of L are exact. The distribution of L for
two devices follows from P(L > t | two devices) = E[e^-L; L > t | one device].

An observer of the permanent responses recognises at least as well as any other observer. The
probability of that observer therefore bounds all results. For at least 8 bits and 50 devices,
simulations agree with the results within 0.03.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_MOST_PAIRS: Final = 50_000
"""Largest number of pairs of sets, up to the order of bits, that are enumerated. The time of the
enumeration grows with this number. With a smaller number, more metrics would be approximated."""

_NEGLIGIBLE: Final = 1e-12
"""Probability that is left out of a sum. A larger number makes results less exact."""

_SCORE_DIGITS: Final = 9
"""Decimals in which two equal scores agree. Sums of the same terms in another order differ in the
last bits of a float, and equal scores share the probability of being first."""

_NODES: Final = tuple(step / 20 for step in range(-160, 161))
"""Points, in standard deviations, at which an integral over a normal distribution is summed."""

_Scores = dict[float, tuple[float, float]]
"""Probability of each score if both sets are of one device, and if they are of two devices."""


@dataclass(frozen=True, slots=True)
class _OnesOfBit:
    """Distribution of the number x of ones that n reports have at one bit, x = 0 ... n.

    Attributes
    ----------
    if_zero, if_one : probability of x if the true bit is 0, and if the true bit is 1.
    marginal : probability of x over all devices.
    posterior : probability that the permanent bit is 1, given x.
    share : share of the permanent bits that are 1.
    """

    if_zero: Sequence[float]
    if_one: Sequence[float]
    marginal: Sequence[float]
    posterior: Sequence[float]
    share: float

    def likelihood_ratio(self, x: int, y: int) -> float:
        """Compute P(x, y | one device) / P(x, y | two devices)."""
        r, s = self.posterior[x], self.posterior[y]
        # Permanent bits that are equal on all devices link nothing, and would divide by zero.
        if self.share in (0, 1):
            return 1.0
        return (1 - r) * (1 - s) / (1 - self.share) + r * s / self.share


def recognition_probability(params: Params, n: int, devices: int) -> float:
    """Compute the probability that two sets of n reports of a device are recognised.

    Parameters
    ----------
    params : the parameters of all reports.
    n : number of reports in each set.
    devices : number of devices of the cohort, the device included.
    """
    n_true = count_true_bits(params)
    ones = _compute_ones(params, n, n_true / params.k)
    # C(k + (n+1)^2 - 1, k) multisets: each of the k bits has one of (n+1)^2 pairs of counts.
    is_small = math.comb(params.k + (n + 1) ** 2 - 1, params.k) <= _MOST_PAIRS
    method = _recognise_by_enumeration if is_small else _recognise_by_normal
    probability = method(ones, params.k, n_true, devices)
    # The normal approximation can exceed the bound when few reports leave scores far from normal.
    return min(probability, recognition_limit(params, devices))


def recognition_limit(params: Params, devices: int) -> float:
    """Compute the probability for any number of reports: the permanent responses are known.

    The device is recognised if no other device has the same permanent response. Of equal permanent
    responses one is drawn by lot.
    """
    n_true = count_true_bits(params)
    n_ones = _sum_of_binomials(params.k - n_true, params.f1, n_true, 1 - params.f0)
    return sum(
        weight * _probability_of_first(0.0, _same_response(params, n_true, c), devices)
        for c, weight in enumerate(n_ones)
        if weight > _NEGLIGIBLE
    )


def binomial_probability(n: int, x: int, probability: float) -> float:
    """Compute the probability of x successes in n trials."""
    # log(0) is no number.
    if probability in (0, 1):
        return float(x == n * probability)
    log_ways = math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1)
    return math.exp(log_ways + x * math.log(probability) + (n - x) * math.log1p(-probability))


def count_true_bits(params: Params) -> int:
    """Return the number of true bits that the assumed value of a device sets."""
    return round(params.k * params.density) if get_encoding(params).is_hashed else 0


def _compute_ones(params: Params, n: int, density: float) -> _OnesOfBit:
    """Compute the distribution of the ones at a bit. `density` is the share of true bits."""
    # A permanent bit is 1 if it is forced to 1, or if it is not forced and the true bit is 1.
    share = params.f1 + density * (1 - params.f)
    low = [binomial_probability(n, x, params.p) for x in range(n + 1)]
    high = [binomial_probability(n, x, params.q) for x in range(n + 1)]
    marginal = _mix(low, high, share)
    joint = [share * probability for probability in high]
    return _OnesOfBit(
        if_zero=_mix(low, high, params.f1),
        if_one=_mix(low, high, 1 - params.f0),
        marginal=marginal,
        # Bayes' rule. A number of ones that cannot occur has no posterior; 0 has no influence.
        posterior=[one / any_ if any_ else 0.0 for one, any_ in zip(joint, marginal, strict=True)],
        share=share,
    )


def _mix(low: Sequence[float], high: Sequence[float], share: float) -> list[float]:
    """Return the mixture of two distributions in which `high` has this share."""
    return [(1 - share) * x + share * y for x, y in zip(low, high, strict=True)]


def _recognise_by_enumeration(ones: _OnesOfBit, k: int, n_true: int, devices: int) -> float:
    """Enumerate the first set up to the order of bits, and the second set given the first."""
    xs = range(len(ones.marginal))
    scores_of_bits = [_add_up_scores(ones, x, k) for x in xs]
    total = 0.0
    for n_bits, weight in _enumerate_first_sets(ones, k, n_true).items():
        # The scores of the bits with x ones in the first set are independent of the other bits.
        scores: _Scores = {0.0: (1.0, 1.0)}
        for x in xs:
            scores = _convolve(scores, scores_of_bits[x][n_bits[x]])
        total += weight * _probability_of_best(scores, devices)
    return total


def _enumerate_first_sets(ones: _OnesOfBit, k: int, n_true: int) -> Mapping[tuple[int, ...], float]:
    """Compute the probability of every first set, up to the order of bits.

    A key contains, for x = 0 ... n, the number of bits with x ones.
    """
    sets = {(0,) * len(ones.marginal): 1.0}
    for bit in range(k):
        extended: dict[tuple[int, ...], float] = defaultdict(float)
        distribution = ones.if_one if bit < n_true else ones.if_zero
        for (before, weight), (x, probability) in itertools.product(
            sets.items(), enumerate(distribution)
        ):
            if weight * probability > _NEGLIGIBLE:
                after = (*before[:x], before[x] + 1, *before[x + 1 :])
                extended[after] += weight * probability
        sets = extended
    return sets


def _add_up_scores(ones: _OnesOfBit, x: int, k: int) -> list[_Scores]:
    """Return the score distributions of 0 to k bits that have x ones in the first set."""
    one_bit: _Scores = {}
    for y, probability in enumerate(ones.marginal):
        ratio = ones.likelihood_ratio(x, y)
        # One device cannot have both counts if f = 0 and the counts are certain.
        score = round(math.log(ratio), _SCORE_DIGITS) if ratio else -math.inf
        same, other = one_bit.get(score, (0.0, 0.0))
        one_bit[score] = (same + probability * ratio, other + probability)
    sums: list[_Scores] = [{0.0: (1.0, 1.0)}]
    for _ in range(k):
        sums.append(_convolve(sums[-1], one_bit))
    return sums


def _convolve(left: _Scores, right: _Scores) -> _Scores:
    """Return the distribution of the sum of two independent scores."""
    both: _Scores = {}
    for (x, (x_same, x_other)), (y, (y_same, y_other)) in itertools.product(
        left.items(), right.items()
    ):
        score = round(x + y, _SCORE_DIGITS)
        same, other = both.get(score, (0.0, 0.0))
        both[score] = (same + x_same * y_same, other + x_other * y_other)
    return both


def _probability_of_best(scores: _Scores, devices: int) -> float:
    """Compute the probability that the device itself has the best score of all devices."""
    above = total = 0.0
    # From the best score down: `above` is the probability that another device scores higher.
    for score in sorted(scores, reverse=True):
        same, other = scores[score]
        total += same * _probability_of_first(above, other, devices)
        above += other
    return total


def _recognise_by_normal(ones: _OnesOfBit, k: int, n_true: int, devices: int) -> float:
    """Approximate the score by a normal distribution.

    The distribution is conditional on the number of bits of the first set that indicate a
    permanent 1. These bits have other scores than the remaining bits.
    """
    # r > 0.5: this number of ones is likelier from a permanent 1 than from a permanent 0.
    indicating = [x for x, r in enumerate(ones.posterior) if r > 0.5]
    # Rare ones and strong noise: no number of ones makes a permanent 1 likelier than a 0. The
    # largest number is the best indication then.
    indicating = indicating or [len(ones.posterior) - 1]
    remaining = [x for x in range(len(ones.posterior)) if x not in indicating]
    mean_1, variance_1 = _score_moments(ones, indicating)
    mean_0, variance_0 = _score_moments(ones, remaining)
    # Probability that a bit indicates a permanent 1, at a true 0 and at a true 1.
    at_zero, at_one = (sum(row[x] for x in indicating) for row in (ones.if_zero, ones.if_one))
    total = 0.0
    for c, weight in enumerate(_sum_of_binomials(k - n_true, at_zero, n_true, at_one)):
        if weight > _NEGLIGIBLE:
            mean = c * mean_1 + (k - c) * mean_0
            variance = c * variance_1 + (k - c) * variance_0
            total += weight * _probability_of_best_normal(mean, variance, devices)
    return total


def _score_moments(ones: _OnesOfBit, first: Sequence[int]) -> tuple[float, float]:
    """Compute mean and variance of one device's score of a bit, given the ones in the first set.

    `first` lists the possible numbers of ones.
    """
    weight = mean = square = 0.0
    for x, (y, probability) in itertools.product(first, enumerate(ones.marginal)):
        ratio = ones.likelihood_ratio(x, y)
        if same := ones.marginal[x] * probability * ratio:
            score = math.log(ratio)
            weight, mean, square = weight + same, mean + same * score, square + same * score**2
    if not weight:
        return 0.0, 0.0
    # Rounding can make the variance of a constant score negative.
    return mean / weight, max(0.0, square / weight - (mean / weight) ** 2)


def _probability_of_best_normal(mean: float, variance: float, devices: int) -> float:
    """Compute the probability that the device has the best score, for a normal score.

    At the score t = mean + z deviation, another device exceeds t with the probability
    E[e^-L; L > t] = e^(variance/2 - mean) P(Z > z + deviation), Z standard normal.
    """
    deviation = math.sqrt(variance)
    total = weights = 0.0
    for z in _NODES:
        weight = math.exp(-(z**2) / 2)
        # The approximation can exceed 1 for small scores.
        above = math.exp(min(0.0, variance / 2 - mean + _log_upper_tail(z + deviation)))
        weights += weight
        total += weight * _probability_of_first(above, 0.0, devices)
    return total / weights


def _log_upper_tail(z: float) -> float:
    """Compute log P(Z > z) of the standard normal distribution."""
    # Beyond z = 38 erfc is 0 in floating point. The first term of the asymptotic series has a
    # relative error of 1 / z^2.
    if z > 30:
        return -(z**2) / 2 - math.log(z * math.sqrt(2 * math.pi))
    return math.log(math.erfc(z / math.sqrt(2)) / 2)


def _probability_of_first(above: float, equal: float, devices: int) -> float:
    """Compute the probability that a device ranks first of all, or is drawn among the first.

    Every other device scores above the device with probability a = `above`, and equally with
    probability b = `equal`, independently. With n devices in all and c = 1 - a:

        sum over i of C(n-1, i) b^i (c - b)^(n-1-i) / (i + 1) = (c^n - (c - b)^n) / (n b)
    """
    below = 1 - above
    if devices == 1:
        return 1.0
    # All other devices score above the device.
    if below <= 0:
        return 0.0
    # The difference of the powers would cancel: ties are too rare to matter.
    if devices * equal < _NEGLIGIBLE * below:
        return math.exp((devices - 1) * math.log1p(-above))
    ties = -math.expm1(devices * math.log1p(-equal / below)) if equal < below else 1.0
    return math.exp(devices * math.log(below)) * ties / (devices * equal)


def _same_response(params: Params, n_true: int, c: int) -> float:
    """Compute the probability of one certain permanent response with c ones.

    The true bits are anywhere. The sum is over the number i of true bits that the permanent
    response shows as 1. The other c - i ones come from true zeros.
    """
    k, f1, f0 = params.k, params.f1, params.f0
    total = 0.0
    for i in range(max(0, n_true - k + c), min(c, n_true) + 1):
        positions = math.comb(c, i) * math.comb(k - c, n_true - i) / math.comb(k, n_true)
        of_ones = (1 - f0) ** i * f0 ** (n_true - i)
        total += positions * of_ones * f1 ** (c - i) * (1 - f1) ** (k - c - n_true + i)
    return total


def _sum_of_binomials(n: int, p: float, m: int, q: float) -> list[float]:
    """Return the distribution of Binomial(n, p) + Binomial(m, q)."""
    total = [0.0] * (n + m + 1)
    for x, y in itertools.product(range(n + 1), range(m + 1)):
        total[x + y] += binomial_probability(n, x, p) * binomial_probability(m, y, q)
    return total
