"""Choice of the noise: f, g, p and q for limits of epsilon_1 and epsilon_inf.

Planners call `choose_noise`. The input is a budget: the largest loss epsilon_1 of one report, and
epsilon_inf of all reports of one value, in nats. The output is the parameter set with the smallest
variance of the estimated share of a rare string.

Theory of operation
-------------------
A bit passes through two random responses. The permanent response is drawn once and repeated; the
instantaneous response is drawn for each report. Each response, and their combination, is a binary
channel (a random response whose input and output are 0 or 1):

| channel | low = P(1 given input 0) | high = P(1 given input 1) | loss |
|---|---|---|---|
| permanent response | f1 | b = 1 - f0 | epsilon_inf |
| instantaneous response | p | q | |
| both (a report) | p* | q* | epsilon_1 |

f1 and f0 are the probabilities that the permanent response changes a 0 and a 1. Parameters contain
them as f = f1 + f0 and g = f1 / f. With h hash functions, two strings differ in up to h bits in
each direction, so a channel with the loss epsilon has the odds ratio

    high (1 - low) / (low (1 - high)) = e^(epsilon / h)

The budget fixes the odds ratios of the permanent response and of the report. In each of these two
channels, `low` then follows from `high` (`compute_low_probability`), and `high` is free. With R
reports per device, and a share s of devices that set the bit, the de-biased mean of the reports of
one device has the variance

    V_R = V_1 / R + (1 - 1/R) V_inf

V_1 is V for low = p* and high = q*, and V_inf is V for low = f1 and high = b:

    V = mu (1 - mu) / (high - low)^2,    mu = low + (high - low) s

V_1 depends on q* only, and V_inf on b only. So the optimum is the same for every R: one search
finds q* at epsilon_1, and another search finds b at epsilon_inf (`find_best_high`). p and q follow
(`round_to_thresholds`). They are probabilities if epsilon_1 <= epsilon_inf. If the two losses are
equal, p = 0 and q = 1.

At s = 0 the optimum is q* = 1/2. Its variance 4 e^eps / (e^eps - 1)^2 is the smallest known
variance for large domains ([WBLJ17], optimised unary encoding). At s = 1/2 the optimum is
symmetric, as in [EPK14].

For a rare string, s is the density of a bit: the probability 1 - (1 - 1/k)^h that a random string
sets the bit. The estimate of a rare string is computed from the h bits that the string sets. Hardly
any device has the rare string itself. The devices that set these bits have other strings, which set
them by chance.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number
from rappor.protocol import loss
from rappor.protocol.params import Params
from rappor.protocol.responses.rappor_response import Noise, compute_noise
from rappor.protocol.thresholds import ONE, compute_threshold

LOSS_RANGE: Final = "[0.001, 40]"
"""Interval of the losses that can be planned, in nats.

At 0.001, a billion reports detect no share under 30 % among a thousand candidates. The upper limit
comes from the coins of a device. A coin is a uniform random 32-bit integer, so the smallest
probability above 0 is 2^-32. With h = 1, a permanent response that changes a bit with this
probability loses 2 ln(2^32 - 1) = 44 nats. A larger loss would need smaller probabilities.
"""

_PROBABILITY_TOLERANCE: Final = 1e-12
"""Largest probability that counts as 0. The smallest probability above 0 that a device can use is
2^-32 = 2.3e-10, so smaller numbers are rounding errors. A larger tolerance would replace such a
probability by 0."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of the privacy loss of one report, and of all reports of one value, in nats."""

    epsilon_1: float
    epsilon_inf: float

    def __post_init__(self) -> None:
        check_number("epsilon_1", self.epsilon_1, LOSS_RANGE)
        check_number("epsilon_inf", self.epsilon_inf, LOSS_RANGE)
        if self.epsilon_inf < self.epsilon_1:
            raise ParamsError(
                f"epsilon_inf must be at least epsilon_1, which is {self.epsilon_1:g}, "
                f"got {self.epsilon_inf:g}"
            )


def compute_optimal_variance(epsilon_1: float) -> float:
    """Compute the smallest known variance of a rare value's share, times the number of reports.

    Optimised unary encoding reaches 4 e^eps / (e^eps - 1)^2 for large domains. No known mechanism
    whose report loses epsilon_1 has a smaller variance [WBLJ17].
    """
    # 4 e^eps / (e^eps - 1)^2 = 1 / sinh(eps / 2)^2, without overflow.
    return 1 / math.sinh(epsilon_1 / 2) ** 2


def choose_noise(
    epsilon_1: float,
    epsilon_inf: float,
    *,
    k: int = 128,
    h: int = 1,
    m: int = 128,
    symmetric: bool = False,
) -> Params:
    """Return the parameters of strings with the least variance within a budget.

    The losses stay within the budget after probabilities are rounded to 32-bit thresholds.

    Parameters
    ----------
    epsilon_1 : limit of the loss of one report, in nats.
    epsilon_inf : limit of the loss of any number of reports of one value, in nats.
    k, h, m : numbers of bits, hash functions and cohorts; k is at least 2h.
    symmetric : require q = 1 - p and g = 1/2, as in [EPK14].

    Returns
    -------
    Parameters of a metric of strings (the encoding "bloom").

    Raises
    ------
    ParamsError
        A loss is not a number in [0.001, 40], or epsilon_inf is less than epsilon_1.
    """
    budget = Budget(epsilon_1, epsilon_inf)
    # `level` is the share s of the module docstring. For a rare string it is the density of a bit,
    # 1 - (1 - 1/k)^h. A level of 1/2 makes the best noise symmetric.
    level = 0.5 if symmetric else -math.expm1(h * math.log1p(-1 / k))
    high_probabilities = (
        find_best_high(epsilon_1 / h, level),
        find_best_high(epsilon_inf / h, level),
    )

    def build_params(noise: Noise) -> Params:
        return Params(k=k, h=h, m=m, **noise)

    return round_to_thresholds(build_params, budget, high_probabilities, bits=h)


def round_to_thresholds(
    build_params: Callable[[Noise], Params],
    budget: Budget,
    high_probabilities: tuple[float, float],
    *,
    bits: float,
) -> Params:
    """Return the parameters nearest to q* and b within a budget, on the grid of 32-bit thresholds.

    A threshold t stands for the probability t / 2^32. A device compares a random 32-bit integer
    with the threshold, so other probabilities do not exist. Every rounding is towards more noise:

    1. Round f1 and f0 up, and raise both until the permanent response loses at most epsilon_inf.
    2. Solve p and q for the rounded f1 and f0.
    3. Round p up and q down, and move both until a report loses at most epsilon_1.

    Parameters
    ----------
    build_params : function from f, g, p and q to parameters.
    budget : limits of the losses.
    high_probabilities : q* and b, the probabilities of a 1 at a true 1 in a report and in the
        permanent response.
    bits : number of bits, in each direction, in which two values differ.
    """
    q_star, b = high_probabilities
    p_star, f1 = (
        compute_low_probability(q_star, budget.epsilon_1 / bits),
        compute_low_probability(b, budget.epsilon_inf / bits),
    )
    # Thresholds of f1 and f0. ONE is 2^32, the threshold of the probability 1.
    t_1, t_0 = math.ceil(f1 * ONE), math.ceil((1 - b) * ONE)
    # Case: by rounding errors of float64, the thresholds lose slightly more than the budget. The
    # loss of the rounded thresholds decides, and a few steps suffice.
    while loss.epsilon_inf(build_params(compute_noise(t_1, t_0, 0, ONE))) > budget.epsilon_inf:
        t_1, t_0 = t_1 + 1, t_0 + 1
    # Solve p* = p + (q - p) f1 and q* = q - (q - p) f0 for p and q, with the rounded f1 and f0.
    # `gap` is q - p.
    gap = (q_star - p_star) * ONE / (ONE - t_1 - t_0)
    p = p_star - gap * t_1 / ONE
    t_p = 0 if p < _PROBABILITY_TOLERANCE else math.ceil(p * ONE)
    t_q = ONE if p + gap > 1 - _PROBABILITY_TOLERANCE else math.floor((p + gap) * ONE)
    while loss.epsilon_1(build_params(compute_noise(t_1, t_0, t_p, t_q))) > budget.epsilon_1:
        t_p, t_q = t_p + 1, t_q - 1
    return build_params(compute_noise(t_1, t_0, t_p, t_q))


def compute_low_probability(high: float, epsilon: float) -> float:
    """Compute `low` of a channel from `high` and the loss in nats.

    The result solves high (1 - low) / (low (1 - high)) = e^epsilon.
    """
    return high / (high + math.exp(epsilon) * (1 - high))


def find_best_high(epsilon: float, level: float) -> float:
    """Find the `high` of a channel with the smallest variance V of the module docstring.

    log V = log(mu (1 - mu)) - 2 log(high - low) falls and then rises as `high` grows from 0 to 1. A
    bisection finds the zero of its derivative. With E = e^epsilon and o = 1 + (E - 1) (1 - high),

        low                     = high / o
        d low / d high          = E / o^2
        d mu / d high           = d low / d high + (1 - d low / d high) s
        d log(high - low) / d high
                                = (1 - 2 high + (E - 1) (1 - high)^2) / (o high (1 - high))

    Parameters
    ----------
    epsilon : loss of the channel in nats, which determines low from high.
    level : share s of the devices that set the bit.
    """
    odds_less_one = math.expm1(epsilon)

    def is_falling(high: float) -> bool:
        """Return whether the variance decreases as `high` grows."""
        # `odds` is o, and `slope` is d low / d high.
        odds = 1 + odds_less_one * (1 - high)
        low, slope = high / odds, (odds_less_one + 1) / odds**2
        mean = low + (high - low) * level
        # The derivatives of log(mu (1 - mu)) and of log(high - low).
        mean_term = (slope + (1 - slope) * level) * (1 - 2 * mean) / (mean * (1 - mean))
        gap_term = (1 - 2 * high + odds_less_one * (1 - high) ** 2) / (odds * high * (1 - high))
        return mean_term < 2 * gap_term

    # The bisection ends when no float64 lies between the two ends.
    left, right = _PROBABILITY_TOLERANCE, 1 - _PROBABILITY_TOLERANCE
    while left < (middle := (left + right) / 2) < right:
        left, right = (middle, right) if is_falling(middle) else (left, middle)
    return middle


def choose_published(
    epsilon_1: float, epsilon_inf: float, *, k: int = 128, m: int = 128
) -> Params | None:
    """Return parameters by the rule of [EPK14]: p = 1/2 and h = 2, with f and q by the losses.

    A plan compares its own parameters with them.

    Returns
    -------
    Params, or None if even q = 1 loses less than epsilon_1.
    """
    # The constructor checks the two losses.
    Budget(epsilon_1, epsilon_inf)
    # Smallest threshold of f/2 that loses at most epsilon_inf: 2 h ln((1 - f/2) / (f/2)) with h = 2
    # ([EPK14] Theorem 1).
    t_f = math.ceil(ONE / (math.exp(epsilon_inf / 4) + 1))

    def params_at(t_q: int) -> Params:
        return Params(k=k, h=2, m=m, f=2 * t_f / ONE, p=0.5, q=t_q / ONE)

    if loss.epsilon_1(params_at(ONE)) < epsilon_1:
        return None
    # q must exceed p = 1/2, whose threshold is 2^31. So the smallest threshold of q is 2^31 + 1. It
    # loses about 1e-9 nats, which is within every budget.
    thresholds = range(ONE // 2 + 1, ONE)
    # The loss grows with q. The largest q within epsilon_1 is found by bisection over thresholds.
    n_within = bisect.bisect_right(
        thresholds, epsilon_1, key=lambda t_q: loss.epsilon_1(params_at(t_q))
    )
    return params_at(thresholds[n_within - 1])


def format_probability(probability: float) -> str:
    """Return a probability as the shortest decimal with the same 32-bit threshold.

    Two thresholds differ by 2^-32 = 2.3e-10 at least, so about ten decimals are enough. A
    probability halfway between two thresholds may need all 17 digits of a float64.
    """
    for digits in range(1, 18):
        text = f"{probability:.{digits}f}"
        if compute_threshold(float(text)) == compute_threshold(probability):
            return text
    return repr(probability)


def format_forced_probabilities(params: Params) -> tuple[str, str]:
    """Return f and g as the shortest decimals of equal length with the same thresholds.

    The permanent response forces a bit with probability f: it replaces the true bit by a random
    bit, which is 1 with probability g. A device compares a coin with the thresholds of f g and
    f (1 - g), so these two thresholds must not change.
    """
    for digits in range(1, 18):
        f, g = f"{params.f:.{digits}f}", f"{params.g:.{digits}f}"
        t_1 = compute_threshold(float(f) * float(g))
        t_0 = compute_threshold(float(f) * (1 - float(g)))
        if (t_1, t_0) == (params.t_1, params.t_0):
            return f, g
    return repr(params.f), repr(params.g)
