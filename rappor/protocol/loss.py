"""Privacy loss, in nats, of what one device sends about one metric.

All of it follows from two numbers for a single bit: `up`, the largest log-likelihood ratio by
which ones in the reports speak for a true 1, and `down`, the one by which zeros speak for a
true 0. An encoding only says in how many bits, and in which direction, two values can differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer, check_number
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

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
    return _worst_difference(params, up, down)


def epsilon_inf(params: Params) -> float:
    """Return the loss of any number of reports of one value ([EPK14] Theorem 1)."""
    return _worst_difference(params, -math.inf, -math.inf)  # the permanent response itself


def _worst_difference(params: Params, up: float, down: float) -> float:
    """Return the loss by the answers that tell most of a permanent 1, and of a permanent 0."""
    f1, f0 = params.f1, params.f0
    return encoding_of(params).worst_difference(_bit_loss(f1, f0, up), _bit_loss(f0, f1, down))


def posterior_bound(epsilon: float, prior: float) -> tuple[float, float]:
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


def _bit_loss(into: float, out_of: float, log_r: float) -> float:
    """Return ln of the likelihood ratio of one bit's two truths after the most telling answers.

    The answers speak for one state of the permanent bit. `into` is the probability that a bit of
    the other truth is forced into that state, `out_of` that one of this truth is forced out of it.
    log_r is the log-likelihood of the answers in the other state, less that in this one. With
    r = exp(log_r) the ratio is (1 - out_of + out_of r) / (into + (1 - into) r), here written as
    1 + (1 - into - out_of)(1 - r) / (into + (1 - into) r) so that nothing cancels.
    """
    if into == 0:
        return -log_r + math.log1p(out_of * math.expm1(log_r))
    kept = 1 - into - out_of
    return math.log1p(kept * -math.expm1(log_r) / (into + (1 - into) * math.exp(log_r)))
