"""What lets an observer tell that two reports are of one device, although neither names it.

The permanent response is the same in all reports of one value, so they agree more often than
those of two devices; and a device stays in its cohort. Other metrics have other cohorts and
permanent responses: nothing links across them but the upload that carries both.
"""

from __future__ import annotations

import math
from typing import Final

from rappor.protocol.params import Params
from rappor.ranges import check_integer, check_number

_CERTAIN: Final = 0.99
_MOST_REPORTS: Final = 10_000


def cohort_bits(params: Params) -> float:
    """Return how much a cohort tells about whose report it is, in bits: log2 m."""
    return math.log2(params.m)


def link_score(params: Params, n: int = 1) -> float:
    """Return the z score by which two sets of n reports of one device agree more than of two.

    The score of a pair is the sum over the k bits of (S - p*)(S' - p*), S and S' being the
    shares of reports that show a bit. Of two devices it has mean 0; of one device each bit
    (a true 0, as almost all are) adds the variance of the permanent response: a (1-a) (q-p)^2
    with a = f/2. This is the second mean in units of the first's standard deviation.
    """
    check_integer("n", n, 1)
    a, p, q = params.f / 2, params.p, params.q
    shared = a * (1 - a) * (q - p) ** 2
    fresh = a * q * (1 - q) + (1 - a) * p * (1 - p)
    if shared == 0:  # no permanent noise: reports of a true 0 have nothing in common but the 0
        return 0.0
    return math.sqrt(params.k) * shared / (shared + fresh / n)


def reports_to_recover(params: Params, probability: float = _CERTAIN) -> int | None:
    """Return the number of reports that show all k bits of a permanent response.

    The smallest number from which the likelier state of every bit is the right one with this
    probability, bits being 0 or 1 alike; None beyond ten thousand. What remains hidden then is
    the value behind the permanent response, by epsilon_inf.
    """
    check_number("probability", probability, "(0, 1)")

    def enough(n: int) -> bool:
        return params.k * math.log1p(-_error(params.p, params.q, n)) >= math.log(probability)

    if not enough(_MOST_REPORTS):
        return None
    low, high = 0, _MOST_REPORTS
    while high - low > 1:  # more reports never make the likelier state a worse guess
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _error(p: float, q: float, n: int) -> float:
    """Return the probability that n reports of a bit mislead: half the overlap of both states."""
    return sum(min(_binomial(n, x, p), _binomial(n, x, q)) for x in range(n + 1)) / 2


def _binomial(n: int, x: int, probability: float) -> float:
    """Return the probability of x hits in n."""
    if probability in (0, 1):
        return float(x == n * probability)
    ways = math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1)
    return math.exp(ways + x * math.log(probability) + (n - x) * math.log1p(-probability))
