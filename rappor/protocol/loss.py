"""Privacy loss, in nats, of what one device sends about one metric.

All of it follows from two numbers for a single bit: `up`, the largest log-likelihood ratio by
which ones in the reports speak for a true 1, and `down`, the one by which zeros speak for a
true 0. An encoding only says in how many bits, and in which direction, two values can differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rappor.errors import ParamsError
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.ranges import check_integer, check_number

_MOST_REPORTS: Final = 10**15
"""More than all devices will ever send; far more is no number that a loss can be computed of."""


def epsilon_1(params: Params) -> float:
    """Return the loss of one report ([EPK14] Theorem 2); infinite if a bit can be certain."""
    return epsilon_n(params, 1)


def epsilon_n(params: Params, n: int) -> float:
    """Return the loss of n reports of one value under one permanent response.

    The paper leaves it open; n = 1 gives its Theorem 2, n to infinity its Theorem 1.
    """
    return epsilon_reports({params: n})


def epsilon_reports(reports: Mapping[Params, int]) -> float:
    """Return the loss of reports of one value under one permanent response.

    `reports` counts them by their parameters, which may differ in p and q only: those who
    change them in the life of a metric keep the permanent responses. The reports are
    independent given the permanent response, so the log-likelihoods of its two states add.
    """
    if not reports:
        raise ParamsError("reports must count at least one parameter set, got none")
    for n in reports.values():
        check_integer("n", n, 1, _MOST_REPORTS)
    if len({params.permanent_fingerprint for params in reports}) > 1:
        raise ParamsError("reports must share a permanent response: only p and q may differ")
    params = next(iter(reports))
    up = sum(n * _log_ratio(each.p, each.q) for each, n in reports.items())
    down = sum(n * _log_ratio(1 - each.q, 1 - each.p) for each, n in reports.items())
    return encoding_of(params).worst_difference(
        _bit_loss(params.f / 2, up), _bit_loss(params.f / 2, down)
    )


def epsilon_inf(params: Params) -> float:
    """Return the loss of any number of reports of one value ([EPK14] Theorem 1)."""
    bit = _bit_loss(params.f / 2, -math.inf)  # the permanent response itself, without noise
    return encoding_of(params).worst_difference(bit, bit)


def belief_bound(epsilon: float, prior: float) -> tuple[float, float]:
    """Return the lowest and the highest belief that a loss of epsilon nats can make of a prior."""
    check_number("epsilon", epsilon, "[0, infinity]")
    check_number("prior", prior, "[0, 1]")
    if prior in (0, 1):
        return prior, prior
    doubt, odds = 1 - prior, math.exp(-epsilon)  # Bayes, with the likelihood ratio at its limits
    return prior * odds / (prior * odds + doubt), prior / (prior + doubt * odds)


def _log_ratio(low: float, high: float) -> float:
    """Return ln(low / high) of the probabilities of an answer.

    log1p keeps the digits where they are near; far from each other it would lose them.
    """
    if low > high / 2:
        return math.log1p((low - high) / high)
    return math.log(low / high) if low > 0 else -math.inf


def _bit_loss(a: float, log_r: float) -> float:
    """Return ln of the likelihood ratio of one bit's two truths after the most telling answers.

    a = f/2; log_r is the log-likelihood of the answers if the permanent bit is the other one,
    less that if it is the one they speak for. With r = exp(log_r) the ratio is
    (1-a + a r) / (a + (1-a) r), here written as 1 + (1-2a)(1-r) / (a + (1-a) r) so that
    nothing cancels.
    """
    if a == 0:
        return -log_r
    return math.log1p((1 - 2 * a) * -math.expm1(log_r) / (a + (1 - a) * math.exp(log_r)))
