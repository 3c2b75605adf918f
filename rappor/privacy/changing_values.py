"""How visible it is that a value changed: the exact loss between two histories of one device.

Reports of one pattern of true bits share a permanent response; another pattern draws another
one, for all its bits. Bits are independent of each other, so losses add over them, and for
one bit only the number of ones among the reports of the same patterns matters.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params

_Truths = tuple[int, int, int]
"""The true bit of the constant history; of the changing one before, and after the change."""

_TRUTHS: Final = tuple(itertools.product((0, 1), repeat=3))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """How visible it is that a value changed between `reports`, in nats, for the worst values.

    `accounted` is the sum of both values' losses. `worst` is the largest log-likelihood ratio
    between a value that changed and one that stayed, which some reports reach; `mean` is its mean
    over the reports of a device whose value changed.
    """

    reports: int
    accounted: float
    worst: float
    mean: float


def change_visibility(params: Params, before: int, after: int) -> ValueChange:
    """Compare a value that stays with one that changes after `before` of the reports.

    Without epochs nothing bounds it: it grows with every report.
    """
    accounted = epsilon_n(params, before) + epsilon_n(params, after)  # refuses what is no number
    stayed, changed, mean = {}, {}, {}
    for kept, first, second in _TRUTHS:
        truths = kept, first, second
        stayed[truths], _ = _evidence(
            params, (((0, 1), before), ((0, 2), after)), ((kept, first), (kept, second))
        )
        changed[truths], mean[truths] = _evidence(
            params, (((1, 0), before), ((2, 0), after)), ((first, kept), (second, kept))
        )
    return ValueChange(
        reports=before + after,
        accounted=accounted,
        worst=max(_worst_values(params, stayed), _worst_values(params, changed)),
        mean=_worst_values(params, mean),
    )


def _evidence(
    params: Params,
    times: tuple[tuple[tuple[int, int], int], ...],
    truths: tuple[tuple[int, int], ...],
) -> tuple[float, float]:
    """Return the largest log-likelihood ratio of one bit's reports, and its mean under the first.

    `times` names for each group of reports its pattern in either history and its size,
    `truths` the bit's truth in either.
    """
    sizes = [n for _, n in times]
    first, second = (
        ([pair[side] for pair, _ in times], [pair[side] for pair in truths]) for side in (0, 1)
    )
    worst, mean = -math.inf, 0.0
    for ones in itertools.product(*(range(n + 1) for n in sizes)):
        log_p = _log_probability(params, *first, sizes, ones)
        if log_p > -math.inf:
            ratio = log_p - _log_probability(params, *second, sizes, ones)
            orders = math.prod(map(math.comb, sizes, ones))
            worst = max(worst, ratio)
            mean += math.exp(log_p + math.log(orders)) * ratio
    return worst, mean


def _log_probability(
    params: Params,
    patterns: Sequence[int],
    truths: Sequence[int],
    sizes: Sequence[int],
    ones: Sequence[int],
) -> float:
    """Return the log of the probability that one bit shows these ones: each pattern's, added up."""
    groups: dict[int, list[int]] = {}
    for pattern, truth, n, shown in zip(patterns, truths, sizes, ones, strict=True):
        group = groups.setdefault(pattern, [truth, 0, 0])
        group[1] += n
        group[2] += shown
    return sum(_log_mixture(params, *group) for group in groups.values())


@functools.lru_cache(maxsize=1 << 16)
def _log_mixture(params: Params, truth: int, n: int, ones: int) -> float:
    """Return the log probability of n reports in their order, under one permanent response."""
    permanent = 1 - params.f0 if truth else params.f1
    of_one = _log(permanent) + _log_run(params.q, n, ones)
    of_zero = _log(1 - permanent) + _log_run(params.p, n, ones)
    high, low = max(of_one, of_zero), min(of_one, of_zero)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _log_run(probability: float, n: int, ones: int) -> float:
    hits = ones * _log(probability) if ones else 0.0
    return hits + ((n - ones) * _log(1 - probability) if n > ones else 0.0)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _worst_values(params: Params, losses: Mapping[_Truths, float]) -> float:
    """Return the largest sum of the bits' losses over the values that an encoding admits."""
    encoding = encoding_of(params)
    if not encoding.exclusive:  # any bits, as long as something changes
        changed = max(loss for (_, u, v), loss in losses.items() if u != v)
        return changed + sum([max(losses.values())] * (params.k - 1))  # no 0 * infinity
    if losses[0, 0, 0] == math.inf:  # reports that show the permanent response itself
        return math.inf
    return params.k * losses[0, 0, 0] + _worst_gain(params.k, encoding.true_bits, losses)


def _worst_gain(k: int, true_bits: range, losses: Mapping[_Truths, float]) -> float:
    """Return what set bits add: as many of each of the three values as it may have."""
    most = true_bits[-1]
    best: dict[tuple[int, int, int, bool], float] = {(0, 0, 0, False): 0.0}
    newest = best
    for _ in range(min(k, 3 * most)):  # one more bit each time, after what the last one improved
        better: dict[tuple[int, int, int, bool], float] = {}
        for (a, b, c, changed), gain in newest.items():
            for kept, first, second in _TRUTHS[1:]:
                state = (a + kept, b + first, c + second, changed or first != second)
                total = gain + losses[kept, first, second] - losses[0, 0, 0]
                least = max(best.get(state, -math.inf), better.get(state, -math.inf))
                if max(state[:3]) <= most and total > least:
                    better[state] = total
        best, newest = best | better, better
    return max(gain for state, gain in best.items() if min(state[:3]) >= true_bits[0] and state[3])
