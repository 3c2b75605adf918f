"""Choose the noise: f, g, p and q for a loss by one report and by any number of them.

Theory of operation
-------------------
A bit of a report is a channel: it shows 1 with p* for a true 0 and with q* for a true 1. So is the
permanent response behind it, with f1 and b = 1 - f0. epsilon_1 fixes the odds ratio
q*(1-p*) / (p*(1-q*)) of the first, epsilon_inf that of the second, and each has one number left to
choose. With R reports a device, where a share s of the devices sets the bit, the variance of its
de-biased mean is

    V_R = V_1 / R + (1 - 1/R) V_inf,   V = mu (1-mu) / (high - low)^2, mu = low + (high - low) s

in which V_1 has (p*, q*) for low and high, and V_inf has (f1, b). So one search finds both optima,
for every R at once: q* at epsilon_1 and b at epsilon_inf; p and q follow. Both are probabilities
for epsilon_1 <= epsilon_inf, and p = 0 and q = 1 where the two are equal.

At s = 0 the optimum is 1/2, which is the least known variance for large domains,
4 e^eps / (e^eps - 1)^2 ([WBLJ17], optimised unary encoding). At s = 1/2 it is symmetric, as [EPK14]
has it. A rare string is counted on bits that other devices' strings set: s is the density of a bit.
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
from rappor.protocol.params import ONE, Noise, Params, noise_of, threshold

LOSSES: Final = "[0.001, 40]"
"""Nats that can be planned. Below, a billion reports detect no share under 30 % among a thousand
candidates. Above, the coins end: with h = 1 a permanent response of probability 2^-32, the smallest
there is, loses 2 ln(2^32 - 1) = 44."""

_FINEST: Final = 1e-12
"""What counts as no probability: far less than the 2^-32 of a coin."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a report, and any number of reports of one value, may lose, in nats."""

    epsilon_1: float
    epsilon_inf: float

    def __post_init__(self) -> None:
        check_number("epsilon_1", self.epsilon_1, LOSSES)
        check_number("epsilon_inf", self.epsilon_inf, LOSSES)
        if self.epsilon_inf < self.epsilon_1:
            raise ParamsError(
                f"epsilon_inf must be at least epsilon_1, which is {self.epsilon_1:g}, "
                f"got {self.epsilon_inf:g}"
            )


def optimum(epsilon_1: float) -> float:
    """Return 4 e^eps / (e^eps - 1)^2: the least known variance of a count, over the reports.

    It holds for rare values of large domains, for any mechanism whose report loses epsilon_1
    [WBLJ17].
    """
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
    """Return the parameters of strings of least variance that lose at most a budget.

    One report loses `epsilon_1`, any number of reports of one value `epsilon_inf`, in nats.
    Neither is exceeded after the probabilities are rounded to 32-bit thresholds. k is at least
    2h; `symmetric` asks for q = 1 - p and g = 1/2, as in [EPK14].

    Raises ParamsError if a loss is not a number in [0.001, 40], or epsilon_inf is less than
    epsilon_1.
    """
    budget = Budget(epsilon_1, epsilon_inf)
    level = 0.5 if symmetric else -math.expm1(h * math.log1p(-1 / k))
    highs = best_high(epsilon_1 / h, level), best_high(epsilon_inf / h, level)

    def shaped(noise: Noise) -> Params:
        return Params(k=k, h=h, m=m, **noise)

    return settle(shaped, budget, highs, bits=h)


def settle(
    shaped: Callable[[Noise], Params],
    budget: Budget,
    highs: tuple[float, float],
    *,
    bits: float,
) -> Params:
    """Return the parameters nearest to these q* and b that lose no more than a budget.

    `shaped` makes them of f, g, p and q. `bits` is in how many bits, each way, two values differ.
    """
    q_star, b = highs
    p_star, f1 = low_of(q_star, budget.epsilon_1 / bits), low_of(b, budget.epsilon_inf / bits)
    t_1, t_0 = math.ceil(f1 * ONE), math.ceil((1 - b) * ONE)
    # Rounding of binary64 on the way is worth a few thresholds at most.
    while loss.epsilon_inf(shaped(noise_of(t_1, t_0, 0, ONE))) > budget.epsilon_inf:
        t_1, t_0 = t_1 + 1, t_0 + 1
    shown = (q_star - p_star) * ONE / (ONE - t_1 - t_0)  # q - p
    p = p_star - shown * t_1 / ONE
    t_p = 0 if p < _FINEST else math.ceil(p * ONE)
    t_q = ONE if p + shown > 1 - _FINEST else math.floor((p + shown) * ONE)
    while loss.epsilon_1(shaped(noise_of(t_1, t_0, t_p, t_q))) > budget.epsilon_1:
        t_p, t_q = t_p + 1, t_q - 1
    return shaped(noise_of(t_1, t_0, t_p, t_q))


def low_of(high: float, epsilon: float) -> float:
    """Return the probability of a one at a true 0, from that at a true 1 and the odds ratio."""
    return high / (high + math.exp(epsilon) * (1 - high))


def best_high(epsilon: float, level: float) -> float:
    """Return the probability of a one at a true 1 that has the least variance at a bit's level.

    It is where the derivative of the variance's logarithm is 0, between the ends 0 and 1.
    """
    more = math.expm1(epsilon)

    def falls(high: float) -> bool:
        odds = 1 + more * (1 - high)
        low, slope = high / odds, (more + 1) / odds**2  # and d low / d high
        mean = low + (high - low) * level
        of_mean = (slope + (1 - slope) * level) * (1 - 2 * mean) / (mean * (1 - mean))
        of_gap = (1 - 2 * high + more * (1 - high) ** 2) / (odds * high * (1 - high))
        return of_mean < 2 * of_gap

    left, right = _FINEST, 1 - _FINEST
    while left < (middle := (left + right) / 2) < right:
        left, right = (middle, right) if falls(middle) else (left, middle)
    return middle


def choose_published(
    epsilon_1: float, epsilon_inf: float, *, k: int = 128, m: int = 128
) -> Params | None:
    """Return parameters as [EPK14] chose theirs: p = 1/2 and h = 2, q by the loss.

    None where even q = 1 loses less than epsilon_1.
    """
    Budget(epsilon_1, epsilon_inf)
    # The least threshold of f/2 that loses at most epsilon_inf ([EPK14] Theorem 1).
    t_f = min(math.ceil(ONE / (math.exp(epsilon_inf / 4) + 1)), ONE // 2 - 1)

    def at(t_q: int) -> Params:
        return Params(k=k, h=2, m=m, f=2 * t_f / ONE, p=0.5, q=t_q / ONE)

    if loss.epsilon_1(at(ONE)) < epsilon_1:
        return None
    above = range(ONE // 2 + 2, ONE)
    n_higher = bisect.bisect_right(above, epsilon_1, key=lambda t_q: loss.epsilon_1(at(t_q)))
    return at(above[0] - 1 + n_higher)


def shortest(probability: float) -> str:
    """Write a probability as the shortest decimal that gives the same 32-bit threshold."""
    for digits in range(1, 18):
        text = f"{probability:.{digits}f}"
        if threshold(float(text)) == threshold(probability):
            return text
    return repr(probability)


def shortest_forced(params: Params) -> tuple[str, str]:
    """Write f and g as the shortest decimals that give the same thresholds, of equal length."""
    for digits in range(1, 18):
        f, g = f"{params.f:.{digits}f}", f"{params.g:.{digits}f}"
        forced = threshold(float(f) * float(g)), threshold(float(f) * (1 - float(g)))
        if forced == (params.t_1, params.t_0):
            return f, g
    return repr(params.f), repr(params.g)
