"""Choice of the dimensions: numbers of bits, hash functions and cohorts.

Theory of operation
-------------------
More bits and more cohorts cost no accuracy, and no privacy of a report's content. They cost bytes
(k), time of a decode (m k), and log2 m bits by which the reports of a device can be linked. So the
dimensions are the smallest powers of two beyond which the gain is negligible:

- k: until the strings of other devices, which raise the level of every bit, add less than
  `NEGLIGIBLE_VARIANCE` to the variance of a rare string, or until the report has its largest
  length.
- m: until collisions add less than `NEGLIGIBLE_VARIANCE`. Collisions with unexplained strings and
  collisions between candidates both decrease as 1 / m. A cohort has at least 100 reports, and there
  are so many cohorts that two candidates seldom have all bits in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.planning.detection_limit import compute_rare_variance
from rappor.planning.noise import Budget, choose_noise
from rappor.planning.power import DetectionTarget, error_without_collisions, predict
from rappor.protocol.params import MAX_HASHES, Params

NEGLIGIBLE_VARIANCE: Final = 0.04
"""Relative variance of a rare string that k, and again m, may add.

Each adds 2 % to the standard error, so a plan stays within 1.1 times the optimum."""

_MIN_BITS: Final = 8
"""Smallest k: one byte. Fewer bits save nothing."""

_MAX_BITS: Final = 1024
"""Largest k: 128 bytes. At epsilon_1 = 2, twice as many bits lower the variance by less than 0.2 %.
"""

_MIN_COHORTS: Final = 16
"""Smallest m.

With fewer cohorts, an absent candidate has too few possible layouts for small p-values."""

_MAX_COHORTS: Final = 4096
"""Largest m.

Each doubling doubles the time of a decode, and adds a bit by which reports are linked."""

_MIN_COHORT_REPORTS: Final = 100
"""Reports of a cohort from which the share of ones is close to normal."""

_MAX_TIED_PAIRS: Final = 0.01
"""Largest expected number of candidate pairs with the same bits in every cohort."""

_TRIED_HASHES: Final = range(1, 5)
"""Numbers of hash functions that are tried.

More hash functions have more variance at the same loss."""

_MIN_BITS_PER_HASH: Final = 4
"""Smallest number of bits for each hash function.

A string then sets a quarter of the bits. With fewer bits, the strings of other devices would fill
the report."""


def choose_params(
    budget: Budget,
    *,
    n_reports: int,
    question: DetectionTarget,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Params:
    """Return the best parameters for a number of reports, by the theory above.

    Parameters
    ----------
    budget : limits of epsilon_1 and epsilon_inf, in nats.
    n_reports : expected number of reports.
    question : the strings to detect.
    max_bytes : largest size of a report's bits, in bytes; None for no limit.
    hashes : number of hash functions h; the best number if None.
    symmetric : require q = 1 - p.

    Raises
    ------
    ParamsError
        A number is outside its range, or the report is too short for the hash functions.
    """
    max_bits = _limit_bits(max_bytes, 1 if hashes is None else hashes)

    def build_params(h: int, k: int, m: int) -> Params:
        return choose_noise(
            budget.epsilon_1, budget.epsilon_inf, k=k, h=h, m=m, symmetric=symmetric
        )

    h = hashes or min(
        _TRIED_HASHES, key=lambda h: compute_rare_variance(build_params(h, _MAX_BITS, 1))
    )
    k = _choose_bits(
        lambda k: build_params(h, k, 1), max_bits, n_reports=n_reports, question=question
    )
    m = _choose_cohorts(lambda m: build_params(h, k, m), n_reports=n_reports, question=question)
    return build_params(h, k, m)


def compute_min_cohorts(k: int, n_candidates: int) -> float:
    """Return the number of cohorts from which candidates seldom have all bits in common.

    With one hash function, a pair has all bits in common with probability k^-m; with more, less
    often.
    """
    pairs = n_candidates * (n_candidates - 1) / 2
    return max(math.log(pairs / _MAX_TIED_PAIRS) / math.log(k), 1.0) if pairs else 1.0


def _limit_bits(max_bytes: int | None, hashes: int) -> int:
    """Return the largest allowed k."""
    check_integer("h", hashes, 1, MAX_HASHES)
    if max_bytes is None:
        return _MAX_BITS
    check_integer("max_bytes", max_bytes, 1)
    limit = 8 * max_bytes
    if limit < _MIN_BITS_PER_HASH * hashes:
        raise ParamsError(
            f"max_bytes must be at least {math.ceil(hashes / 2)} for h = {hashes}, got {max_bytes}"
        )
    return min(limit, _MAX_BITS)


def _choose_bits(
    with_bits: Callable[[int], Params], max_bits: int, *, n_reports: int, question: DetectionTarget
) -> int:
    """Return the smallest k at which strings of other devices add negligible variance."""
    k = _MIN_BITS
    while True:
        params = with_bits(k)
        ideal = compute_rare_variance(params) / n_reports
        lone_error = error_without_collisions(params, n_reports, question)
        if lone_error**2 <= (1 + NEGLIGIBLE_VARIANCE) * ideal:
            return k
        if k == max_bits:
            return k
        k = min(2 * k, max_bits)


def _choose_cohorts(
    with_cohorts: Callable[[int], Params], *, n_reports: int, question: DetectionTarget
) -> int:
    """Return m, by extrapolation from the largest m.

    Variance from collisions decreases as 1 / m.
    """
    params = with_cohorts(_MAX_COHORTS)
    lone_error = error_without_collisions(params, n_reports, question)
    added_variance = (predict(params, n_reports, question).rare_error / lone_error) ** 2 - 1
    cohorts_for_collisions = added_variance * _MAX_COHORTS / NEGLIGIBLE_VARIANCE
    cohorts_for_reports = n_reports / _MIN_COHORT_REPORTS
    cohorts_for_candidates = compute_min_cohorts(params.k, question.frequencies.n_candidates)
    m = max(cohorts_for_candidates, _MIN_COHORTS, min(cohorts_for_collisions, cohorts_for_reports))
    return min(1 << math.ceil(math.log2(m)), _MAX_COHORTS)
