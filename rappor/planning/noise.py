"""Choose the noise: f, p and q for a loss by one report and by any number of them.

Theory of operation
-------------------
A bit of a report is a channel (p*, q*). epsilon_1 fixes its odds ratio
E = q*(1-p*) / (p*(1-q*)), so one number is left to choose: q*. The variance of a rare string,
p*(1-p*) / (q*-p*)^2, is smallest at q* = 1/2 and grows with the distance from it. The permanent
response bounds both likelihood ratios, q*/p* and (1-p*)/(1-q*), by L = exp(epsilon_inf / 2h);
the first one reaches L where q* = (E-L)/(E-1), and p is 0 there. The best q* is therefore the
larger of the two. At h = 1 and q* = 1/2 it is the optimum known for large domains,
4 e^eps / (e^eps - 1)^2 ([WBLJ17], optimised unary encoding), through a permanent response that
costs nothing while epsilon_inf >= 2 ln((e^epsilon_1 + 1)/2).

Where a report is so short that the strings of other devices fill a good part of it, the variance
is that of the bit's mean level mu = p* + (q*-p*) density, and q* is found by a search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from rappor.errors import ParamsError
from rappor.protocol import loss
from rappor.protocol.params import ONE, Params, threshold
from rappor.ranges import check_number

Design = Literal["free", "symmetric", "filled"]

LOSSES: Final = "[0.001, 40]"
"""Nats that can be planned. Below, a billion reports detect no share under 30 % among a thousand
candidates. Above, the coins end: with h = 1 a permanent response of probability 2^-32, the smallest
there is, loses 2 ln(2^32 - 1) = 44."""

_FINEST: Final = 1e-12
"""Difference of probabilities below which a search ends: far less than the 2^-32 of a coin."""

_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a report, and any number of reports of one value, may lose, in nats."""

    epsilon_1: float
    epsilon_inf: float

    def __post_init__(self) -> None:
        """Raise ParamsError unless both losses can be planned and are in order."""
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


def enough_epsilon_inf(epsilon_1: float, *, h: int = 1) -> float:
    """Return the epsilon_inf above which the best noise detects no more.

    2 h ln((e^(epsilon_1/h) + 1)/2): the permanent response then leaves q* at 1/2. A larger
    epsilon_inf only makes the reports of a device harder to link, and lets several of them
    tell more about the value.
    """
    return 2 * h * math.log((math.exp(epsilon_1 / h) + 1) / 2)


def choose_noise(
    epsilon_1: float,
    epsilon_inf: float,
    *,
    k: int = 128,
    h: int = 1,
    m: int = 128,
    design: Design = "free",
) -> Params:
    """Return the parameters of least variance that lose at most a budget.

    Parameters
    ----------
    epsilon_1, epsilon_inf : loss of one report and of any number of reports of one value, in
        nats. Neither is exceeded after the probabilities are rounded to 32-bit thresholds.
    k, h, m : bits, hash functions and cohorts of the parameters; k is at least 2h.
    design : "free"; "symmetric" with q = 1 - p; or "filled", whose variance is that in a report of
        k bits which the strings of other devices fill, instead of its limit for long reports.

    Raises
    ------
    ParamsError
        A loss is not a number in [0.001, 40], or epsilon_inf is less than epsilon_1.
    """
    Budget(epsilon_1, epsilon_inf)
    t_f = _forced(epsilon_inf, h)
    most = math.log((ONE - t_f) / t_f)  # what a bit of the rounded permanent response loses
    each = min(epsilon_1 / h, 2 * most)
    if design == "symmetric":
        q_star = 1 / (1 + math.exp(-each / 2))
    elif design == "filled":
        density = -math.expm1(h * math.log1p(-1 / k))
        q_star = _search(each, most, density)
    else:
        q_star = max(0.5, _least_q_star(each, most))
    return _round(_p_star(q_star, each), q_star, t_f=t_f, shape=(k, h, m), epsilon_1=epsilon_1)


def choose_published(
    epsilon_1: float, epsilon_inf: float, *, k: int = 128, h: int = 2, m: int = 128
) -> Params | None:
    """Return parameters as [EPK14] chose theirs: p = 1/2 and h = 2, q by the loss.

    None where even q = 1 loses less than epsilon_1.
    """
    Budget(epsilon_1, epsilon_inf)
    t_f = _forced(epsilon_inf, h)

    def at(t_q: int) -> Params:
        return Params(k=k, h=h, m=m, f=2 * t_f / ONE, p=0.5, q=t_q / ONE)

    low, high = ONE // 2 + 1, ONE
    if loss.epsilon_1(at(high)) < epsilon_1:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if loss.epsilon_1(at(middle)) <= epsilon_1 else (low, middle)
    return at(low)


def _forced(epsilon_inf: float, h: int) -> int:
    """Return the least threshold of f/2 that loses at most epsilon_inf ([EPK14] Theorem 1)."""
    return min(math.ceil(ONE / (math.exp(epsilon_inf / (2 * h)) + 1)), ONE // 2 - 1)


def _p_star(q_star: float, each: float) -> float:
    """Return p* at the odds ratio e^each."""
    return q_star / (q_star + math.exp(each) * (1 - q_star))


def _least_q_star(each: float, most: float) -> float:
    """Return the q* at which q*/p* is as large as the permanent response allows."""
    return -math.expm1(most - each) / -math.expm1(-each)


def _search(each: float, most: float, density: float) -> float:
    """Return the q* of least variance at the bit's mean level, by golden section.

    Between the ends where q*/p* and where (1-p*)/(1-q*) is largest it has one minimum.
    """

    def variance(q_star: float) -> float:
        p_star = _p_star(q_star, each)
        mean = p_star + (q_star - p_star) * density
        return mean * (1 - mean) / (q_star - p_star) ** 2

    low = max(_least_q_star(each, most), _FINEST)
    high = min(_most_q_star(each, most), 1 - _FINEST)
    while high - low > _FINEST:
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, second) if variance(first) < variance(second) else (first, high)
    return (low + high) / 2


def _most_q_star(each: float, most: float) -> float:
    """Return the q* at which (1-p*)/(1-q*) is as large as the permanent response allows."""
    # The mirror image: a report with ones and zeros exchanged has 1 - p* for q*.
    return 1 - _p_star(max(_least_q_star(each, most), _FINEST), each)


def _round(
    p_star: float, q_star: float, *, t_f: int, shape: tuple[int, int, int], epsilon_1: float
) -> Params:
    """Take the permanent response out of (p*, q*), and round p up and q down, to more noise."""
    k, h, m = shape
    a = t_f / ONE
    p = ((1 - a) * p_star - a * q_star) / (1 - 2 * a)
    q = ((1 - a) * q_star - a * p_star) / (1 - 2 * a)
    t_p = 0 if p < _FINEST else math.ceil(p * ONE)
    t_q = ONE if q > 1 - _FINEST else math.floor(q * ONE)
    params = Params(k=k, h=h, m=m, f=2 * a, p=t_p / ONE, q=t_q / ONE)
    # Rounding of binary64 on the way is worth a threshold or two at most.
    while loss.epsilon_1(params) > epsilon_1:
        t_p, t_q = t_p + 1, t_q - 1
        params = Params(k=k, h=h, m=m, f=2 * a, p=t_p / ONE, q=t_q / ONE)
    return params


def shortest(probability: float, *, halved: bool = False) -> str:
    """Write a probability as the shortest decimal that gives the same 32-bit threshold.

    `halved` is for f, whose threshold is that of f/2.
    """
    part = 2 if halved else 1
    for digits in range(1, 18):
        text = f"{probability:.{digits}f}"
        if threshold(float(text) / part) == threshold(probability / part):
            return text
    return repr(probability)
