"""Privacy amplification by shuffling: the loss of one report among many reports in random order.

The input is the local loss of a report, the number n of reports in a batch, and delta. The output
is an upper bound on the loss inside the batch. No part of this project shuffles reports: the bound
is for a company that places a shuffler between devices and collector.

Theory of operation
-------------------
A shuffler passes on the reports of n devices without names and in random order. The report of one
device then hides among the other reports. Against an observer of the batch, the report has
(epsilon, delta)-differential privacy, with an epsilon below the loss of the report alone:

    P(batch in S | first value) <= e^epsilon P(batch in S | second value) + delta

for every set S of batches and every two values of the device. delta is not the probability that
the loss exceeds epsilon. That probability can be larger. Example: 30 reports with a local loss of
2 nats have epsilon = 1.95 at delta = .001, and the loss exceeds 1.95 with probability .022.

Two limits apply:

- A report names its cohort, so it hides among the reports of its cohort only: n is the size of the
  smallest cohort, not the number of all devices.
- For several reports of a device under one permanent response, whole histories are shuffled. The
  loss of one history then takes the place of the loss of one report.

The letters:

    n              number of reports in the batch, one of each device
    e0             local loss: the loss of each report alone, in nats; `local` in the code
    epsilon        loss inside the batch, in nats
    delta          term of the inequality above
    a(r), b(r)     probability of the report r, for the first and for the second of two values

Every other device sends r with probability at least max(a, b) / e^e0, whatever its value is,
because e0 bounds its loss, too. This common part of all distributions is the privacy blanket
(Balle, Bell, Gascon and Nissim 2019). Suppose that the observer even learns which other devices did
not draw their report from the blanket. The remaining reports are independent draws, so

    delta(epsilon) <= E[max(0, g_1 + ... + g_n)] / n

Here g_i is (a - e^epsilon b) e^e0 / max(a, b) if report i is from the blanket, and 0 otherwise.
Each g_i lies between 1 - e^(epsilon + e0) and e^e0 - e^epsilon, and has the mean 1 - e^epsilon. The
right side is convex in the distribution of g_i, so it is largest if all probability lies at the two
ends and at 0. Each end has probability 1 / (e^e0 + 1), the most that the means of a and b admit.
This is the clone decomposition of Feldman, McMillan and Talwar (2023):

- Each of the n - 1 other reports is a clone with probability 2 / (e^e0 + 1).
- Half of the clones look like a report of each of the two values.
- The device's report looks like its own value with probability e^e0 / (e^e0 + 1).

Let T - 1 be the number of clones, and X ~ Bin(T, 1/2) the number of reports, among the clones and
the device's report, that look like a report of the first value. The right side is

    delta(epsilon) = 2 tanh(e0 / 2) (1 + e^epsilon) E[max(0, u - X / T)]
    u = (1 - tanh(epsilon / 2) / tanh(e0 / 2)) / 2

The module sums these binomials numerically. Every approximation is on the side of more loss:

- The bound falls as T grows, since an observer can add clones. The values of T are therefore
  divided into classes of neighbouring integers, and each class counts as its smallest integer. The
  probabilities of the classes are upper bounds, assigned from the smallest class upwards until they
  add up to 1.
- The sum over X is divided into ranges of neighbouring integers. The terms of a range are at most a
  geometric series with the ratio of its first two terms.

Example: a report with a local loss of 2 nats, among 10,000 reports, loses less than 0.16 nats at
delta = 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from rappor.base.ranges import check_integer, check_number

_LEAST_LOCAL: Final = 1e-9
"""Local loss, in nats, below which the module returns the local loss. Such a loss reveals nothing,
and the differences in the formulas would cancel."""

_MOST_LOCAL: Final = 100.0
"""Local loss, in nats, above which the module returns the local loss. A report is a clone with
probability 2 e^-100 there, so no batch contains a clone."""

_LEAST_DELTA: Final = 1e-290
"""Delta below which the module returns the local loss. binary64 rounds probabilities below 1e-308
to 0, and a bound would be too small."""

_MOST_REPORTS: Final = 2**53
"""Number of reports as which a larger batch counts. binary64 represents integers exactly up to
2^53. The reduction is on the safe side, because fewer reports hide less."""

_LOST: Final = 1e-3
"""Share of delta for small numbers of clones that are left out of the sum. A convention: a larger
share makes the sum shorter and the bound weaker, by 0.1 % of delta at most."""

_CLASSES: Final = 128
"""Number of classes into which the numbers of clones are divided. More classes take more time and
give a smaller bound."""

_STEPS: Final = 4
"""Number of ranges of X in one standard deviation. More ranges take more time and give a smaller
bound."""

_ROUNDING: Final = 1 + 1e-6
"""Factor on a sum of binomial probabilities. The factor exceeds the rounding errors of the sum for
up to 2^53 trials, so the computed bound is never below the exact bound."""

_TIGHT: Final = 1e-12
"""Relative distance between the two ends of an interval at which a search stops. binary64 has about
16 digits, so a much smaller distance cannot be reached."""


def compute_shuffled_epsilon(local: float, n: int, *, delta: float) -> float:
    """Bound the loss of one of n shuffled reports.

    Parameters
    ----------
    local : loss of each report alone, in nats, in [0, infinity].
    n : number of shuffled reports, the device's own report included.
    delta : delta of (epsilon, delta)-differential privacy, in (0, 1).

    Returns
    -------
    The epsilon in nats. It is at most `local`, and never below the smallest epsilon at delta.

    Raises
    ------
    ParamsError
        local is not in [0, infinity], n is not a positive integer, or delta is not in (0, 1).

    Examples
    --------
    >>> round(compute_shuffled_epsilon(2.0, 10_000, delta=1e-9), 3)
    0.16
    """
    check_number("local", local, "[0, infinity]")
    _check_batch(n, delta)
    if not _LEAST_LOCAL <= local <= _MOST_LOCAL or delta < _LEAST_DELTA:
        return local
    clones = Clones.among(local, n, lost=delta * _LOST)

    def excess(epsilon: float) -> float:
        """Return the logarithm of the delta that the batch needs for epsilon, over `delta`.

        A positive excess means that the batch does not reach epsilon at `delta`.
        """
        return math.log(clones.delta(epsilon) / delta)

    return 0.0 if excess(0.0) <= 0 else _search_boundary(excess, good=local, bad=0.0)


def find_local_epsilon(epsilon: float, n: int, *, delta: float) -> float:
    """Find the largest local loss that a shuffled batch of n reports reduces to `epsilon` or less.

    Parameters
    ----------
    epsilon : required loss in the batch, in nats, in [0, infinity).
    n : number of shuffled reports.
    delta : delta of (epsilon, delta)-differential privacy, in (0, 1).

    Returns
    -------
    The local loss in nats. It is `epsilon` itself if the batch is too small to hide a report.

    Raises
    ------
    ParamsError
        epsilon is not in [0, infinity), n is not a positive integer, or delta is not in (0, 1).

    Examples
    --------
    >>> round(find_local_epsilon(1.0, 100_000, delta=1e-9), 2)
    7.24
    """
    check_number("epsilon", epsilon, "[0, infinity)")
    _check_batch(n, delta)
    if epsilon > _MOST_LOCAL or delta < _LEAST_DELTA:
        return epsilon
    # The target is slightly below epsilon, so that `compute_shuffled_epsilon` of the result is at
    # most epsilon in spite of the tolerance of its search.
    target = epsilon * (1 - 10 * _TIGHT)

    def excess(local: float) -> float:
        """Return the logarithm of the delta that the batch needs for the target, over `delta`."""
        return math.log(Clones.among(local, n, lost=delta * _LOST).delta(target) / delta)

    # `good` is a local loss that the batch reduces enough, and `bad` is a loss that is too large.
    # The local loss is doubled until it is bad. The boundary lies between the last two losses.
    good = max(epsilon, _LEAST_LOCAL)
    # Case: a batch so small that it hides no loss above epsilon.
    if excess(good) > 0:
        return epsilon
    bad = 2 * good
    while excess(bad) <= 0:
        good, bad = bad, 2 * bad
        if bad > _MOST_LOCAL:
            return good
    return _search_boundary(excess, good=good, bad=bad)


def compute_smallest_cohort(n: int, m: int, *, delta: float) -> int:
    """Compute a size that every cohort reaches with probability at least 1 - `delta`.

    Each of n devices draws one of m cohorts uniformly, so a cohort has Binomial(n, 1/m) devices.
    Let s = n / m be the mean. By Chernoff's bound, a cohort has fewer than s - t devices with
    probability at most exp(-t^2 / 2s). The union over m cohorts gives t = sqrt(2 s ln(m / delta)).
    """
    _check_batch(n, delta)
    mean = n / m
    # ln(m / delta) as a difference, because the quotient may exceed the largest float.
    nats = math.log(m) - math.log(delta)
    return n if m == 1 else max(0, math.floor(mean - math.sqrt(2 * mean * nats)))


def _check_batch(n: int, delta: float) -> None:
    check_integer("n", n, 1)
    check_number("delta", delta, "(0, 1)")


@dataclass(frozen=True, slots=True)
class Clones:
    """Distribution of the number of clones that hide the report of one device.

    A clone is a report of another device that comes from the privacy blanket, so it looks like a
    report of the device's first or second value.

    Attributes
    ----------
    local : local loss e0, in nats.
    lost : upper bound on the probability that the number of clones is below all classes.
    classes : pairs (T, probability) with growing T. T - 1 is the smallest number of clones of the
        class. The probabilities add up to 1.
    """

    local: float
    lost: float
    classes: tuple[tuple[int, float], ...]

    @classmethod
    def among(cls, local: float, n: int, *, lost: float) -> Self:
        """Compute the distribution for n reports: the device's report and n - 1 other reports."""
        n_others = min(n, _MOST_REPORTS) - 1
        # A report of another device is a clone with probability 2 / (e^e0 + 1), and no clone with
        # probability tanh(e0 / 2). The number of clones is binomial.
        share, other_share = 2 * math.exp(-local) / (1 + math.exp(-local)), math.tanh(local / 2)
        mean, variance = n_others * share, n_others * share * other_share
        # Fewer clones than `low` have probability `lost` at most (Bernstein). They are left out.
        low = max(0, math.floor(mean - _compute_bernstein_distance(variance, lost)))
        # More clones than four standard deviations above the mean are rare, and count as `high`.
        high = min(n_others, math.ceil(mean + 4 * math.sqrt(variance)))
        width = max(1, (high - low) // _CLASSES)
        mode = math.floor((n_others + 1) * share)
        classes, below = [], 0.0
        for first in range(low, high + 1, width):
            last = min(first + width - 1, high)
            # A class counts as its smallest number of clones, because fewer clones hide less. The
            # number of the class that is nearest to the mode is the likeliest of the class.
            likeliest = min(max(mode, first), last)
            largest = (last - first + 1) * _compute_binomial_bound(
                likeliest, n_others, share, other_share
            )
            # The last class takes all remaining probability, also that of more clones than `high`.
            until = 1.0 if last == high else min(1.0, below + largest)
            classes.append((first + 1, until - below))
            below = until
        return cls(local, lost, tuple(classes))

    def delta(self, epsilon: float) -> float:
        """Bound delta(epsilon) of the batch. `epsilon` is in nats, in [0, local]."""
        half = epsilon / 2
        # u of the module's formulas, without the difference that would cancel near epsilon = local.
        u = math.sinh(self.local / 2 - half) / (2 * math.cosh(half) * math.sinh(self.local / 2))
        reach = math.sqrt(-2 * math.log(self.lost)) + 1
        mean = sum(
            share * _compute_shortfall_bound(t, u, reach) for t, share in self.classes if share
        )
        scale = 2 * math.tanh(self.local / 2) * (1 + math.exp(epsilon))
        return self.lost + scale * mean * _ROUNDING


def _compute_bernstein_distance(variance: float, probability: float) -> float:
    """Compute a distance that a binomial falls below its mean with at most this probability.

    Bernstein's inequality: P(X < mean - t) <= exp(-t^2 / (2 variance + 2 t / 3)).
    """
    nats = -math.log(probability)
    return nats / 3 + math.hypot(nats / 3, math.sqrt(2 * variance * nats))


def _compute_shortfall_bound(t: int, u: float, reach: float) -> float:
    """Bound E[max(0, u - X / t)] from above, for X ~ Bin(t, 1/2) and u in [0, 1/2].

    t is the number of clones and the device (T of the module's formulas), u the threshold of the
    formulas, and `reach` a number of standard deviations.

    The sum runs over x from u t downwards. The ratio P(X = x - 1) / P(X = x) only falls on the way
    down. The terms of a range of x are therefore at most a geometric series with the first ratio of
    the range. The same bound covers the whole tail from `reach` standard deviations below the mean.
    """
    # The standard deviation of X is sqrt(t) / 2.
    width = max(1, math.isqrt(t) // (2 * _STEPS))
    stop = (t - reach * math.sqrt(t)) / 2
    x, total = math.ceil(u * t) - 1, 0.0
    while x >= 0:
        # Ranges begin at multiples of the width, so their ends do not depend on u.
        first = x - x % width
        top, ratio = _compute_binomial_bound(x, t, 0.5, 0.5), x / (t - x + 1)
        # Case: the range reaches into the far tail. One infinite series bounds all remaining terms.
        if first <= stop:
            return total + top * _sum_series(u - x / t, 1 / t, ratio)
        total += top * _compute_range_bound(u - x / t, 1 / t, ratio, x - first + 1)
        x = first - 1
    return total


def _sum_series(start: float, step: float, ratio: float) -> float:
    """Return the sum of ratio^i (start + i step) over all i from 0."""
    return (start + step * ratio / (1 - ratio)) / (1 - ratio)


def _compute_range_bound(start: float, step: float, ratio: float, n: int) -> float:
    """Bound the sum of ratio^i (start + i step) over i from 0 to n - 1 from above."""
    # Case: a ratio near 1. The difference of the two infinite series would cancel. The sum with
    # ratio 1 is an upper bound, and almost equal.
    if n * (1 - ratio) < 1e-4:
        return n * (start + step * (n - 1) / 2)
    remainder = ratio**n * _sum_series(start + n * step, step, ratio)
    return _sum_series(start, step, ratio) - remainder


def _compute_binomial_bound(x: int, n: int, p: float, q: float) -> float:
    """Bound the probability of x successes in n trials from above.

    p is the probability of a success, and q = 1 - p is passed with all its digits. The bound is
    Stirling's series with a bounded error. log1p keeps the digits of the deviance near the mean.
    """
    # Stirling's series has no value at 0. The probability is exact there.
    if x in (0, n):
        return math.exp(n * math.log(p if x else q)) if n else 1.0
    away = x - n * p
    deviance = x * math.log1p(away / (n * p)) + (n - x) * math.log1p(-away / (n * q))
    stirling = 1 / (12 * n) - _compute_stirling_bound(x) - _compute_stirling_bound(n - x)
    return math.sqrt(n / (x * (n - x)) / (2 * math.pi)) * math.exp(stirling - deviance)


def _compute_stirling_bound(x: int) -> float:
    """Bound ln x! - ln(sqrt(2 pi x) (x/e)^x) from below. 1 / 12x bounds it from above."""
    return 1 / (12 * x) - 1 / (360 * x**3)


def _search_boundary(excess: Callable[[float], float], *, good: float, bad: float) -> float:
    """Return a point with excess <= 0 next to a point with a positive excess.

    `good` is a point with excess <= 0, and `bad` is a point with a positive excess. The method is
    false position with the Illinois modification: if the same end moves twice in a row, the excess
    at the other end is halved, so that both ends move.
    """
    at_good, at_bad = excess(good), excess(bad)
    # The end that moved last: 1 for `good`, -1 for `bad`, 0 at the start or after a halving.
    side = 0
    while abs(good - bad) > _TIGHT * max(good, bad):
        x = good + (bad - good) * at_good / (at_good - at_bad)
        # Rounding can put the point on an end, and the search would not move.
        if not min(good, bad) < x < max(good, bad):
            x = (good + bad) / 2
        y = excess(x)
        # Only a point with excess <= 0 becomes `good`, so the returned point satisfies the bound.
        if y <= 0:
            good, at_good = x, y
            at_bad, side = (at_bad / 2, 0) if side > 0 else (at_bad, 1)
        else:
            bad, at_bad = x, y
            at_good, side = (at_good / 2, 0) if side < 0 else (at_good, -1)
    return good
