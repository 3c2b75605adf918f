"""What a report gives away: privacy losses in nats, exact for the thresholds that are used.

A bit is a channel. `up` is the log-ratio by which a shown 1 favours a true 1 over a true 0,
`down` the one by which a shown 0 favours a true 0. An encoding only says in how many bits
two values can differ, and in which direction.
"""

from __future__ import annotations

import math

from rappor.errors import ParamsError
from rappor.params import Params


def epsilon_one(params: Params) -> float:
    """Return the loss of one report in nats ([EPK14] Theorem 2); infinite without noise."""
    return epsilon_n(params, 1)


def epsilon_n(params: Params, n: int) -> float:
    """Return the loss of n reports of one value in nats.

    [EPK14] leaves it open. The most telling outcome shows the same bit n times; with a = f/2
    and r = (p/q)^n its log-ratio is ln[((1-a) + a r) / (a + (1-a) r)]. n = 1 gives Theorem 2,
    n to infinity Theorem 1.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise ParamsError(f"n must be an integer of at least 0, got {n!r}")
    up = _repeated(params.f / 2, params.p, params.q, n)
    down = _repeated(params.f / 2, 1 - params.q, 1 - params.p, n)
    return _over_bits(params, up, down)


def epsilon_inf(params: Params) -> float:
    """Return the lifetime loss of one value in nats ([EPK14] Theorem 1); infinite for f = 0."""
    if params.f == 0:
        return math.inf
    stage = math.log((1 - params.f / 2) / (params.f / 2))
    return _over_bits(params, stage, stage)


def belief_bound(epsilon: float, prior: float) -> tuple[float, float]:
    """Return the least and the most that a suspicion can become after a loss (Bayes).

    Parameters
    ----------
    epsilon : the loss in nats, at least 0, possibly infinite.
    prior : the suspicion before, in [0, 1].

    Raises
    ------
    ParamsError: an argument is outside its range.
    """
    if not epsilon >= 0:
        raise ParamsError(f"epsilon must be at least 0, got {epsilon!r}")
    if not 0 <= prior <= 1:
        raise ParamsError(f"prior must be a number in [0, 1], got {prior!r}")
    if prior in (0, 1):
        return float(prior), float(prior)
    shrink = math.exp(-epsilon)
    low = prior * shrink / (prior * shrink + (1 - prior))
    high = prior / (prior + shrink * (1 - prior))
    return low, high


def _repeated(a: float, low: float, high: float, n: int) -> float:
    """Return the log-ratio of n equal outcomes, each with chance high or low."""
    if n == 0:
        return 0.0
    ratio = math.exp(n * math.log(low / high)) if low > 0 else 0.0
    denominator = a + (1 - a) * ratio
    if a == 0:
        return n * math.log(high / low) if low > 0 else math.inf
    return math.log(((1 - a) + a * ratio) / denominator)


def _over_bits(params: Params, up: float, down: float) -> float:
    """Return the worst case over two values, from what they can differ in."""
    if params.encoding == "boolean":
        return max(up, down)
    if params.encoding == "flags":
        return params.k * max(up, down)
    if params.encoding in ("onehot", "buckets"):
        return up + down
    # Two non-empty patterns of at most h of k bits: h (up + down) where k >= 2h, as in the
    # paper; fewer bits leave less to differ in.
    more = min(params.h, params.k - 1)
    fewer = min(params.h, params.k - more)
    return max(more * up + fewer * down, more * down + fewer * up)
