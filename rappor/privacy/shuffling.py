"""Privacy by shuffling: what one report loses if it arrives among many, in no order.

A shuffler passes on the reports of n devices with nothing that says whose each is. Then one
device's report hides among the others', and its loss against who sees the batch is smaller
than the loss of the report alone, with probability 1 - delta. A report that names its cohort
is shuffled among those of its cohort only: n is the smallest actual cohort, not all devices.
For several reports of a device under one permanent response, whole histories are shuffled,
and the loss of one history takes the place of that of one report.

The loss is computed numerically, by summing binomials.
Each report alone loses at most `local` nats, written e0 here. Take two values of one device, and
let a and b be the probabilities of a report under them. Every other device sends this report with
probability at least max(a, b) / e^e0, whatever it holds, since e0 bounds its loss too. This common
part is the privacy blanket (Balle, Bell, Gascon and Nissim 2019). Suppose that an observer is even
told which of the others did not draw from it. The rest are independent draws, so

    delta(epsilon) <= E[max(0, g_1 + ... + g_n)] / n,

where each g is (a - e^epsilon b) e^e0 / max(a, b) of a report from the blanket, and 0 where there
is none. Each g lies between 1 - e^(epsilon + e0) and e^e0 - e^epsilon, and has mean
1 - e^epsilon. The right side is convex, so it is largest where all probability lies at these two
ends and at 0: each end has 1 / (e^e0 + 1), which is the most that the means of a and b admit.
This is the clone decomposition of Feldman, McMillan and Talwar (2023). Of the n - 1 others each is
a clone with probability 2 / (e^e0 + 1), half of the clones look like each of the two values, and
the device looks like its own value with probability e^e0 / (e^e0 + 1).

With T - 1 clones and X ~ Bin(T, 1/2) the right side is

    delta(epsilon) = 2 tanh(e0 / 2) (1 + e^epsilon) E[max(0, u - X / T)],
    u = (1 - tanh(epsilon / 2) / tanh(e0 / 2)) / 2.

It falls as T grows, since an observer can add clones. So T is counted in classes, each as its
smallest member. Upper bounds of the classes' probabilities are used up from below. The sum over X
goes in stretches, each bounded by the geometric series of its first ratio. So all errors are on
the side of more loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from rappor.base.ranges import check_integer, check_number

_LEAST_LOCAL: Final = 1e-9
_MOST_LOCAL: Final = 100.0
"""A smaller local loss is nothing to reduce, and no batch hides a larger one."""

_LEAST_DELTA: Final = 1e-290
"""Below it, probabilities would vanish in floating point."""

_MOST_REPORTS: Final = 2**53
"""Larger batches are counted as this many reports, which hide less."""

_LOST: Final = 1e-3
"""Share of delta that is given away for numbers of clones that are not looked at."""

_CLASSES: Final = 128
"""Classes of the number of clones."""

_STEPS: Final = 4
"""Stretches of X in one standard deviation."""

_ROUNDING: Final = 1 + 1e-6
"""Factor that covers the rounding of sums and of binomial probabilities up to 2^53 trials."""

_TIGHT: Final = 1e-12
"""Relative distance at which a search ends."""


def bound_shuffled_epsilon(local: float, n: int, *, delta: float) -> float:
    """Return the loss of one of n shuffled reports that each lose at most `local` nats.

    It is never above `local`, and never below the true loss at delta.

    Raises ParamsError if local is no number in [0, infinity], n no positive integer, or delta not
    in (0, 1).
    """
    check_number("local", local, "[0, infinity]")
    _check_batch(n, delta)
    if not _LEAST_LOCAL <= local <= _MOST_LOCAL or delta < _LEAST_DELTA:
        return local
    clones = Clones.among(local, n, lost=delta * _LOST)

    def excess(epsilon: float) -> float:
        return math.log(clones.delta(epsilon) / delta)

    return 0.0 if excess(0.0) <= 0 else _search(excess, good=local, bad=0.0)


def find_local_epsilon(epsilon: float, n: int, *, delta: float) -> float:
    """Return the largest local loss that a shuffled batch of n turns into at most `epsilon`.

    It is `epsilon` itself where the batch is too small to hide anything.
    """
    check_number("epsilon", epsilon, "[0, infinity)")
    _check_batch(n, delta)
    if epsilon > _MOST_LOCAL or delta < _LEAST_DELTA:
        return epsilon
    target = epsilon * (1 - 10 * _TIGHT)  # so that the way back ends below epsilon

    def excess(local: float) -> float:
        return math.log(Clones.among(local, n, lost=delta * _LOST).delta(target) / delta)

    good = max(epsilon, _LEAST_LOCAL)
    if excess(good) > 0:
        return epsilon
    bad = 2 * good
    while excess(bad) <= 0:
        good, bad = bad, 2 * bad
        if bad > _MOST_LOCAL:
            return good
    return _search(excess, good=good, bad=bad)


def bound_smallest_cohort(n: int, m: int, *, delta: float) -> int:
    """Return a size that every cohort reaches with probability at least 1 - `delta`.

    n devices fall into m cohorts uniformly. Chernoff: a cohort of mean s = n / m has fewer
    than s - t with probability at most exp(-t^2 / 2s), and there are m of them.
    """
    _check_batch(n, delta)
    mean = n / m
    nats = math.log(m) - math.log(delta)  # m / delta may be beyond a float
    return n if m == 1 else max(0, math.floor(mean - math.sqrt(2 * mean * nats)))


def _check_batch(n: int, delta: float) -> None:
    check_integer("n", n, 1)
    check_number("delta", delta, "(0, 1)")


@dataclass(frozen=True, slots=True)
class Clones:
    """How many of a batch's reports hide the device's own one.

    `classes` holds pairs of T, the clones and the device itself, and its probability; `lost` is
    what smaller numbers have at most.
    """

    local: float
    lost: float
    classes: tuple[tuple[int, float], ...]

    @classmethod
    def among(cls, local: float, n: int, *, lost: float) -> Self:
        """Count the clones among n reports, n - 1 of them of other devices."""
        others = min(n, _MOST_REPORTS) - 1
        share, rest = 2 * math.exp(-local) / (1 + math.exp(-local)), math.tanh(local / 2)
        mean, variance = others * share, others * share * rest
        low = max(0, math.floor(mean - _bernstein(variance, lost)))
        high = min(others, math.ceil(mean + 4 * math.sqrt(variance)))
        width = max(1, (high - low) // _CLASSES)
        mode = math.floor((others + 1) * share)
        classes, below = [], 0.0
        for first in range(low, high + 1, width):
            last = min(first + width - 1, high)
            likeliest = min(max(mode, first), last)
            largest = (last - first + 1) * _binomial(likeliest, others, share, rest)
            until = 1.0 if last == high else min(1.0, below + largest)
            classes.append((first + 1, until - below))
            below = until
        return cls(local, lost, tuple(classes))

    def delta(self, epsilon: float) -> float:
        """Bound the delta at which the batch keeps `epsilon` nats, in [0, local]."""
        half = epsilon / 2
        u = math.sinh(self.local / 2 - half) / (2 * math.cosh(half) * math.sinh(self.local / 2))
        reach = math.sqrt(-2 * math.log(self.lost)) + 1
        mean = sum(share * _shortfall(t, u, reach) for t, share in self.classes if share)
        scale = 2 * math.tanh(self.local / 2) * (1 + math.exp(epsilon))
        return self.lost + scale * mean * _ROUNDING


def _bernstein(variance: float, probability: float) -> float:
    """Return how far below its mean a binomial falls with no more than this probability."""
    nats = -math.log(probability)
    return nats / 3 + math.hypot(nats / 3, math.sqrt(2 * variance * nats))


def _shortfall(t: int, u: float, reach: float) -> float:
    """Bound E[max(0, u - X / t)] for X ~ Bin(t, 1/2) and u in [0, 1/2].

    Ratios of neighbours only fall on the way down, so a stretch of X is at most the geometric
    series of its first ratio, and so is all that is `reach` standard deviations below the mean.
    """
    width = max(1, math.isqrt(t) // (2 * _STEPS))
    stop = (t - reach * math.sqrt(t)) / 2
    x, total = math.ceil(u * t) - 1, 0.0
    while x >= 0:
        first = x - x % width
        top, ratio = _binomial(x, t, 0.5, 0.5), x / (t - x + 1)
        if first <= stop:
            return total + top * _series(u - x / t, 1 / t, ratio)
        total += top * _stretch(u - x / t, 1 / t, ratio, x - first + 1)
        x = first - 1
    return total


def _series(start: float, step: float, ratio: float) -> float:
    """Return the sum of ratio^i (start + i step) over all i from 0."""
    return (start + step * ratio / (1 - ratio)) / (1 - ratio)


def _stretch(start: float, step: float, ratio: float, n: int) -> float:
    """Bound the sum of ratio^i (start + i step) over i from 0 to n - 1."""
    if n * (1 - ratio) < 1e-4:  # it would cancel; the ratio is nearly 1
        return n * (start + step * (n - 1) / 2)
    rest = ratio**n * _series(start + n * step, step, ratio)
    return _series(start, step, ratio) - rest


def _binomial(x: int, n: int, p: float, q: float) -> float:
    """Bound the probability of x hits in n from above; p + q = 1.

    Stirling's series with bounded error, and the deviance written so that nothing cancels.
    """
    if x in (0, n):
        return math.exp(n * math.log(p if x else q)) if n else 1.0
    away = x - n * p
    deviance = x * math.log1p(away / (n * p)) + (n - x) * math.log1p(-away / (n * q))
    stirling = 1 / (12 * n) - _stirling(x) - _stirling(n - x)
    return math.sqrt(n / (x * (n - x)) / (2 * math.pi)) * math.exp(stirling - deviance)


def _stirling(x: int) -> float:
    """Bound ln x! - ln(sqrt(2 pi x) (x/e)^x) from below; 1 / 12x bounds it from above."""
    return 1 / (12 * x) - 1 / (360 * x**3)


def _search(excess: Callable[[float], float], *, good: float, bad: float) -> float:
    """Return a point of no excess next to one of excess (false position, Illinois)."""
    at_good, at_bad = excess(good), excess(bad)
    side = 0
    while abs(good - bad) > _TIGHT * max(good, bad):
        x = good + (bad - good) * at_good / (at_good - at_bad)
        if not min(good, bad) < x < max(good, bad):
            x = (good + bad) / 2
        y = excess(x)
        if y <= 0:
            good, at_good = x, y
            at_bad, side = (at_bad / 2, 0) if side > 0 else (at_bad, 1)
        else:
            bad, at_bad = x, y
            at_good, side = (at_good / 2, 0) if side < 0 else (at_good, -1)
    return good
