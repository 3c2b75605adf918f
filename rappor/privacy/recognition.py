"""Linking attack: the probability that an observer recognises a device by two sets of n reports.

`rappor.privacy.report_linkage` is the public interface. The input is a parameter set, the number n
of reports in a set, and the number of devices in the device's cohort. The output is a probability.

Theory of operation
-------------------
The observer has a first set: n reports of one device. The observer also has second sets: n further
reports of every device of the cohort. Exactly one second set comes from the device of the first
set. All reports of a device come from one permanent response: noisy bits that the device draws once
and repeats. The observer scores the first set with each second set by the log-likelihood ratio

    L = log P(both sets | one device) - log P(both sets | two devices)

and chooses the second set with the largest score. "One device" is the hypothesis that both sets
come from the same device, "two devices" that they come from different devices. If several second
sets have the largest score, one of them is chosen at random. The device is recognised if the
chosen set is its own.

The bits are assumed to be independent, so L is a sum over the k bits of a report. At one bit, only
the numbers of ones in the two sets matter:

    x, y   number of ones at the bit in the first and in the second set, 0 to n
    a      probability that a permanent bit is 1, over all devices
    r, s   posterior probability that the permanent bit is 1, given x, and given y

    P(x, y | one device) / P(x, y | two devices) = (1 - r)(1 - s) / (1 - a) + r s / a

The values of the devices matter, too:

- Strings: all devices are assumed to have different strings that the observer does not know. This
  assumption links most, because only reports of one device share a string.
- Every other encoding has few values. All devices are assumed to have the same value, which sets no
  bit, so only the permanent noise links reports.

Two methods compute the probability:

- With few bits and reports, all pairs of sets are enumerated. The order of the bits is irrelevant,
  so a set is represented by the number of bits with x ones, for each x.
- With more bits or reports, L of one device is approximated by a normal distribution, given the
  number of bits of the first set that indicate a permanent 1. Mean and variance of L are exact. The
  distribution of L for two devices follows from a change of measure:
  P(L > t | two devices) = E[e^-L; L > t | one device], where E[e^-L; L > t] is the expectation of
  e^-L over the cases with L > t.

The permanent responses contain all information about the device that its reports contain. An
observer of the permanent responses therefore recognises the device at least as often as an observer
of reports, and that probability is an upper bound of all results. In simulations with at least
8 bits and 50 devices, the recognised share of devices differed from the computed probability by at
most 0.03.
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
"""Largest number of pairs of sets, up to the order of bits, that are enumerated. The number limits
the time of the enumeration: 64 bits and n = 1 take 0.1 seconds. A smaller number would
approximate more metrics."""

_NEGLIGIBLE: Final = 1e-12
"""Probability below which a case is left out of a sum. Results are printed in percent, so the
omitted cases change no printed digit. A larger number makes results less exact."""

_SCORE_DIGITS: Final = 9
"""Number of decimals to which scores are rounded. Sums of the same terms in another order differ in
the last bits of a float. Without rounding, equal scores would count as different, and the random
choice between them would be computed wrongly."""

_NODES: Final = tuple(step / 20 for step in range(-160, 161))
"""Points z, in standard deviations, at which an integral over a normal distribution is summed. The
points go from -8 to 8 in steps of 0.05. The density outside is below 1e-13 of its maximum."""

_Scores = dict[float, tuple[float, float]]
"""The distribution of a score L maps each score to two probabilities: P(score | one device) and
P(score | two devices)."""


@dataclass(frozen=True, slots=True)
class _OnesOfBit:
    """Distribution of the number x of ones that n reports have at one bit.

    Every sequence has n + 1 entries. Entry x belongs to the number x of ones.

    Attributes
    ----------
    if_zero, if_one : probability of x if the true bit is 0, and if the true bit is 1.
    marginal : probability of x over all devices, whatever the true bit is.
    posterior : probability that the permanent bit is 1, given x; r and s of the module's formulas.
    share : probability that a permanent bit is 1, over all devices; a of the module's formulas.
    """

    if_zero: Sequence[float]
    if_one: Sequence[float]
    marginal: Sequence[float]
    posterior: Sequence[float]
    share: float

    def likelihood_ratio(self, x: int, y: int) -> float:
        """Compute P(x, y | one device) / P(x, y | two devices) for x and y ones at a bit."""
        r, s = self.posterior[x], self.posterior[y]
        # Case: all devices have the same permanent bit. The bit links nothing, so the ratio is 1.
        # The formula would divide by zero.
        if self.share in (0, 1):
            return 1.0
        return (1 - r) * (1 - s) / (1 - self.share) + r * s / self.share


def recognition_probability(params: Params, n: int, devices: int) -> float:
    """Compute the probability that two sets of n reports of a device are recognised.

    Parameters
    ----------
    params : the parameters of all reports.
    n : number of reports in each set.
    devices : number of devices of the cohort, the recognised device included.

    Returns
    -------
    The probability that the observer chooses the right device.
    """
    if params.response.is_exclusive:
        # Case: a report names one bucket, the same in all reports of a device. Two sets of reports
        # then reveal as much as the permanent responses.
        return recognition_limit(params, devices)
    n_true = count_true_bits(params)
    ones = _compute_ones(params, n, n_true / params.k)
    # Number of pairs of sets up to the order of bits. Each of the k bits has one of (n+1)^2 pairs
    # (x, y), and there are C(k + (n+1)^2 - 1, k) multisets of k such pairs.
    is_small = math.comb(params.k + (n + 1) ** 2 - 1, params.k) <= _MOST_PAIRS
    method = _recognise_by_enumeration if is_small else _recognise_by_normal
    probability = method(ones, params.k, n_true, devices)
    # Case: few reports, whose scores are far from normal. The normal approximation can then exceed
    # the upper bound, which is exact.
    return min(probability, recognition_limit(params, devices))


def recognition_limit(params: Params, devices: int) -> float:
    """Compute the probability of recognition by the permanent responses of all devices.

    Any number of reports reveals no more. The device is recognised if no other device of the cohort
    has the same permanent response. If several devices have it, one of them is chosen at random.
    """
    if params.response.is_exclusive:
        # The response is one of k buckets. A device of bucket b with probability P_b is recognised
        # with probability (1 - (1 - P_b)^D) / (D P_b), so the average is the sum over the buckets
        # of (1 - (1 - P_b)^D) / D. The summand is concave in P_b. Equally likely buckets, P_b =
        # 1/k, therefore give the largest probability, an upper bound for all values of devices.
        return _compute_probability_of_first(0.0, 1 / params.k, devices)
    n_true = count_true_bits(params)
    # f1 is the probability that a true 0 becomes a permanent 1, and f0 that a true 1 becomes a
    # permanent 0. The distribution is over the number of ones of a permanent response, 0 to k.
    ones_distribution = _sum_of_binomials(params.k - n_true, params.f1, n_true, 1 - params.f0)
    return sum(
        weight
        * _compute_probability_of_first(
            0.0, _compute_same_response_probability(params, n_true, n_ones), devices
        )
        for n_ones, weight in enumerate(ones_distribution)
        if weight > _NEGLIGIBLE
    )


def binomial_probability(n: int, x: int, probability: float) -> float:
    """Compute the probability of x successes in n trials."""
    # Case: the outcome is certain. The formula below would compute log(0).
    if probability in (0, 1):
        return float(x == n * probability)
    log_ways = math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1)
    return math.exp(log_ways + x * math.log(probability) + (n - x) * math.log1p(-probability))


def count_true_bits(params: Params) -> int:
    """Return the number of true bits that the assumed value of a device sets.

    True bits are the bits of a value before any noise. A string sets the expected number of bits of
    its Bloom filter. The common value of the other encodings is assumed to set no bit.
    """
    return round(params.k * params.density) if get_encoding(params).is_hashed else 0


def _compute_ones(params: Params, n: int, density: float) -> _OnesOfBit:
    """Compute the distribution of the ones of n reports at a bit.

    `density` is the probability that the true bit is 1, over all bits and devices.
    """
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
        # Bayes' rule. A number of ones with probability 0 has no posterior. Its entry 0 has no
        # effect, because every sum multiplies it by the probability.
        posterior=[
            both / total if total else 0.0 for both, total in zip(joint, marginal, strict=True)
        ],
        share=share,
    )


def _mix(low: Sequence[float], high: Sequence[float], share: float) -> list[float]:
    """Return the mixture of two distributions in which `high` has this share."""
    return [
        (1 - share) * at_low + share * at_high for at_low, at_high in zip(low, high, strict=True)
    ]


def _recognise_by_enumeration(ones: _OnesOfBit, k: int, n_true: int, devices: int) -> float:
    """Compute the probability of recognition by enumerating all pairs of sets.

    The first sets are enumerated up to the order of bits. For each first set, the distribution of
    the score over the second sets is a convolution over the bits.
    """
    xs = range(len(ones.marginal))
    # scores_of_bits[x][i]: distribution of the summed score of i bits with x ones in the first set.
    scores_of_bits = [_add_up_scores(ones, x, k) for x in xs]
    total = 0.0
    # n_bits[x] is the number of bits that have x ones in the first set.
    for n_bits, weight in _enumerate_first_sets(ones, k, n_true).items():
        # Bits are independent, so the scores of the bits with x ones are convolved over all x.
        scores: _Scores = {0.0: (1.0, 1.0)}
        for x in xs:
            scores = _convolve(scores, scores_of_bits[x][n_bits[x]])
        total += weight * _compute_probability_of_best(scores, devices)
    return total


def _enumerate_first_sets(ones: _OnesOfBit, k: int, n_true: int) -> Mapping[tuple[int, ...], float]:
    """Compute the probability of every first set, up to the order of bits.

    Returns
    -------
    Maps (number of bits with 0 ones, number of bits with 1 one, ..., with n ones) to a probability.
    """
    # The bits are added one after another, first those whose true bit is 1. Without a bit there is
    # one set, with probability 1.
    sets = {(0,) * len(ones.marginal): 1.0}
    for bit in range(k):
        extended: dict[tuple[int, ...], float] = defaultdict(float)
        distribution = ones.if_one if bit < n_true else ones.if_zero
        for (before, weight), (x, probability) in itertools.product(
            sets.items(), enumerate(distribution)
        ):
            # One more bit has x ones.
            if weight * probability > _NEGLIGIBLE:
                after = (*before[:x], before[x] + 1, *before[x + 1 :])
                extended[after] += weight * probability
        sets = extended
    return sets


def _add_up_scores(ones: _OnesOfBit, x: int, k: int) -> list[_Scores]:
    """Compute the distributions of the summed score of 0, 1, ..., k bits.

    Each of the bits has x ones in the first set.
    """
    one_bit: _Scores = {}
    for y, probability in enumerate(ones.marginal):
        ratio = ones.likelihood_ratio(x, y)
        # Ratio 0: one device cannot have x ones in one set and y ones in the other. Case: the
        # instantaneous response has no noise (p = 0 and q = 1).
        score = round(math.log(ratio), _SCORE_DIGITS) if ratio else -math.inf
        # `probability` is P(y) of another device. P(y | x) of the same device is ratio times P(y).
        same, other = one_bit.get(score, (0.0, 0.0))
        one_bit[score] = (same + probability * ratio, other + probability)
    sums: list[_Scores] = [{0.0: (1.0, 1.0)}]
    for _ in range(k):
        sums.append(_convolve(sums[-1], one_bit))
    return sums


def _convolve(left: _Scores, right: _Scores) -> _Scores:
    """Return the distribution of the sum of two independent scores, `left` and `right`."""
    sums: _Scores = {}
    for (l_score, (l_same, l_other)), (r_score, (r_same, r_other)) in itertools.product(
        left.items(), right.items()
    ):
        score = round(l_score + r_score, _SCORE_DIGITS)
        same, other = sums.get(score, (0.0, 0.0))
        sums[score] = (same + l_same * r_same, other + l_other * r_other)
    return sums


def _compute_probability_of_best(scores: _Scores, devices: int) -> float:
    """Compute the probability that the device itself has the best score of all devices."""
    above = total = 0.0
    # From the best score down: `above` is the probability that another device scores higher.
    for score in sorted(scores, reverse=True):
        same, other = scores[score]
        total += same * _compute_probability_of_first(above, other, devices)
        above += other
    return total


def _recognise_by_normal(ones: _OnesOfBit, k: int, n_true: int, devices: int) -> float:
    """Compute the probability of recognition with normally distributed scores.

    A bit of the first set indicates a permanent 1 if its number of ones makes a permanent 1
    likelier than a permanent 0. Indicating bits have other scores than the remaining bits, so the
    normal distribution is computed for each number of indicating bits, 0 to k. Names that end in 1
    belong to one indicating bit, and names that end in 0 to one remaining bit.
    """
    indicating = [x for x, posterior in enumerate(ones.posterior) if posterior > 0.5]
    # Case: permanent ones are rare and the noise is strong. No number of ones makes a permanent 1
    # likelier than a permanent 0. The largest number of ones is the best indication then.
    indicating = indicating or [len(ones.posterior) - 1]
    remaining = [x for x in range(len(ones.posterior)) if x not in indicating]
    mean_1, variance_1 = _compute_score_moments(ones, indicating)
    mean_0, variance_0 = _compute_score_moments(ones, remaining)
    # Probability that a bit indicates a permanent 1, at a true 0 and at a true 1.
    at_zero, at_one = (
        sum(distribution[x] for x in indicating) for distribution in (ones.if_zero, ones.if_one)
    )
    total = 0.0
    n_distribution = _sum_of_binomials(k - n_true, at_zero, n_true, at_one)
    for n_indicating, weight in enumerate(n_distribution):
        if weight > _NEGLIGIBLE:
            mean = n_indicating * mean_1 + (k - n_indicating) * mean_0
            variance = n_indicating * variance_1 + (k - n_indicating) * variance_0
            total += weight * _compute_probability_of_best_normal(mean, variance, devices)
    return total


def _compute_score_moments(ones: _OnesOfBit, first: Sequence[int]) -> tuple[float, float]:
    """Compute mean and variance of the score of one bit if both sets come from one device.

    The moments are conditional on the number of ones in the first set: `first` lists the possible
    numbers.
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


def _compute_probability_of_best_normal(mean: float, variance: float, devices: int) -> float:
    """Compute the probability that the device has the best score, for a normal score.

    `mean` and `variance` belong to the score L of the device itself. If this score is
    t = mean + z deviation, where deviation is the standard deviation of L, the score of another
    device exceeds t with the probability

        E[e^-L; L > t] = e^(variance/2 - mean) P(Z > z + deviation), Z standard normal.

    The result is the average over z, weighted by the normal density.
    """
    deviation = math.sqrt(variance)
    total = weights = 0.0
    for z in _NODES:
        weight = math.exp(-(z**2) / 2)
        # Case: the normal approximation is poor, for instance at small scores. The approximated
        # probability can then exceed 1, so its logarithm is limited to 0.
        above = math.exp(min(0.0, variance / 2 - mean + _log_upper_tail(z + deviation)))
        weights += weight
        total += weight * _compute_probability_of_first(above, 0.0, devices)
    return total / weights


def _log_upper_tail(z: float) -> float:
    """Compute log P(Z > z) of the standard normal distribution."""
    # Case: z is large. From z = 38 on, erfc is 0 in floating point. Above 30 the first term of the
    # asymptotic series is used, whose relative error, 1 / z^2, is at most about 0.1 %.
    if z > 30:
        return -(z**2) / 2 - math.log(z * math.sqrt(2 * math.pi))
    return math.log(math.erfc(z / math.sqrt(2)) / 2)


def _compute_probability_of_first(above: float, equal: float, devices: int) -> float:
    """Compute the probability that a device is chosen: by the best score, or among equal scores.

    Every other device independently has a higher score with probability `above`, and an equal score
    with probability b = `equal`. Let D be the number of devices and c = 1 - `above`. If i other
    devices have an equal score and no device has a higher score, the device is chosen with
    probability 1 / (i + 1). The sum over i = 0, ..., D - 1 is

        sum of C(D-1, i) b^i (c - b)^(D-1-i) / (i + 1) = (c^D - (c - b)^D) / (D b)
    """
    not_above = 1 - above
    if devices == 1:
        return 1.0
    # Case: every other device scores higher.
    if not_above <= 0:
        return 0.0
    # Case: equal scores are too rare to matter. The formula would divide by a number near 0.
    if devices * equal < _NEGLIGIBLE * not_above:
        return math.exp((devices - 1) * math.log1p(-above))
    # Both powers divided by c^D: 1 - (1 - b/c)^D, computed without cancellation for small b.
    ties = -math.expm1(devices * math.log1p(-equal / not_above)) if equal < not_above else 1.0
    return math.exp(devices * math.log(not_above)) * ties / (devices * equal)


def _compute_same_response_probability(params: Params, n_true: int, n_ones: int) -> float:
    """Compute the probability that a device draws one given permanent response with `n_ones` ones.

    The true bits of the device are at unknown positions. The sum is over the number of true bits
    that the permanent response keeps as 1. The other ones of the response come from true zeros.
    """
    k, f1, f0 = params.k, params.f1, params.f0
    total = 0.0
    for n_kept in range(max(0, n_true - k + n_ones), min(n_ones, n_true) + 1):
        # Hypergeometric: n_kept of the true bits are at ones of the response, the others at zeros.
        positions = (
            math.comb(n_ones, n_kept)
            * math.comb(k - n_ones, n_true - n_kept)
            / math.comb(k, n_true)
        )
        from_ones = (1 - f0) ** n_kept * f0 ** (n_true - n_kept)
        n_false_ones = n_ones - n_kept
        total += positions * from_ones * f1**n_false_ones * (1 - f1) ** (k - n_true - n_false_ones)
    return total


def _sum_of_binomials(n_1: int, chance_1: float, n_2: int, chance_2: float) -> list[float]:
    """Return the distribution of the number of successes in two series of trials.

    The series have `n_1` and `n_2` trials, which succeed with probabilities `chance_1` and
    `chance_2`. Entry i of the result is the probability of i successes, for i = 0 to n_1 + n_2.
    """
    total = [0.0] * (n_1 + n_2 + 1)
    for x, y in itertools.product(range(n_1 + 1), range(n_2 + 1)):
        total[x + y] += binomial_probability(n_1, x, chance_1) * binomial_probability(
            n_2, y, chance_2
        )
    return total
