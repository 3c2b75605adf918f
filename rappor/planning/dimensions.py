"""Choose the dimensions: how many bits, hash functions and cohorts.

Theory of operation
-------------------
More bits and more cohorts cost no accuracy and no privacy of a report's content; they cost
bytes (k), time to decode (m k) and log2 m bits by which a device's reports are linked. So the
smallest powers of two are taken beyond which little is gained:

- k, until the level that the strings of other devices add to every bit makes the variance of a
  rare string less than `NEGLIGIBLE` larger, or the report is as long as it may be;
- m, until collisions make it less than `NEGLIGIBLE` larger: those with strings that the selection
  does not explain and those of candidates among themselves both fall as 1 / m. Cohorts are not so
  many that one has fewer than 100 reports, and not so few that two candidates may have all their
  bits in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.planning.detection_limit import rare_variance
from rappor.planning.noise import Budget, choose_noise
from rappor.planning.power import DetectionTarget, error_without_collisions, predict
from rappor.protocol.params import MAX_HASHES, Params

NEGLIGIBLE: Final = 0.04
"""Part of a rare string's variance that k, and again m, may add: 2 % of its standard error each,
so that a plan stays within 1.1 times the optimum."""

_LEAST_BITS: Final = 8
"""One byte, below which nothing is saved."""

_MOST_BITS: Final = 1024
"""128 bytes: at epsilon_1 = 2 twice as many make the variance less than 0.2 % smaller."""

_LEAST_COHORTS: Final = 16
"""With fewer, an absent candidate has too few ways to set its bits for p-values to be small."""

_MOST_COHORTS: Final = 4096
"""Each doubling doubles the time of a decode and adds a bit by which reports are linked."""

_REPORTS_A_COHORT: Final = 100
"""Reports from which on the share of a cohort's ones is close to normal."""

_TIED: Final = 0.01
"""Expected pairs of candidates with the same bits in every cohort."""

_HASHES: Final = range(1, 5)
"""Numbers of hash functions that are tried; more have more variance at equal losses."""

_BITS_A_HASH: Final = 4
"""Bits that a report needs for each hash function: a string then sets a quarter of them, and with
fewer bits the strings of other devices would fill the report."""


def choose_params(
    budget: Budget,
    *,
    n_reports: int,
    question: DetectionTarget,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Params:
    """Return the best parameters for `n_reports` reports; see the theory above.

    The bits of a report take `max_bytes` at most; `hashes` is the h to use, the best if None;
    `symmetric` asks for q = 1 - p.

    Raises ParamsError if a number is outside its range, or the report is too short for the hash
    functions.
    """
    most_bits = _most_bits(max_bytes, 1 if hashes is None else hashes)

    def shaped(h: int, k: int, m: int) -> Params:
        return choose_noise(
            budget.epsilon_1, budget.epsilon_inf, k=k, h=h, m=m, symmetric=symmetric
        )

    h = hashes or min(_HASHES, key=lambda h: rare_variance(shaped(h, _MOST_BITS, 1)))
    k = _choose_bits(lambda k: shaped(h, k, 1), most_bits, n_reports=n_reports, question=question)
    m = _choose_cohorts(lambda m: shaped(h, k, m), n_reports=n_reports, question=question)
    return shaped(h, k, m)


def least_cohorts(k: int, n_candidates: int) -> float:
    """Return the cohorts at which candidates with all bits in common are unlikely.

    With one hash a pair is indistinguishable with probability k^-m; with more hashes, less often.
    """
    pairs = n_candidates * (n_candidates - 1) / 2
    return max(math.log(pairs / _TIED) / math.log(k), 1.0) if pairs else 1.0


def _most_bits(max_bytes: int | None, hashes: int) -> int:
    """Return the largest k that is allowed."""
    check_integer("h", hashes, 1, MAX_HASHES)
    if max_bytes is None:
        return _MOST_BITS
    check_integer("max_bytes", max_bytes, 1)
    most = 8 * max_bytes
    if most < _BITS_A_HASH * hashes:
        raise ParamsError(
            f"max_bytes must be at least {math.ceil(hashes / 2)} for h = {hashes}, got {max_bytes}"
        )
    return min(most, _MOST_BITS)


def _choose_bits(
    with_bits: Callable[[int], Params], most: int, *, n_reports: int, question: DetectionTarget
) -> int:
    """Return the least k at which the strings of other devices fill little of the report."""
    k = _LEAST_BITS
    while True:
        params = with_bits(k)
        ideal = rare_variance(params) / n_reports
        lone = error_without_collisions(params, n_reports, question)
        if lone**2 <= (1 + NEGLIGIBLE) * ideal:
            return k
        if k == most:
            return k
        k = min(2 * k, most)


def _choose_cohorts(
    with_cohorts: Callable[[int], Params], *, n_reports: int, question: DetectionTarget
) -> int:
    """Return m: what collisions add at the most cohorts tells what they add at fewer."""
    params = with_cohorts(_MOST_COHORTS)
    lone = error_without_collisions(params, n_reports, question)
    added = (predict(params, n_reports, question).rare_error / lone) ** 2 - 1
    wanted = added * _MOST_COHORTS / NEGLIGIBLE
    enough = n_reports / _REPORTS_A_COHORT
    least = least_cohorts(params.k, question.frequencies.n_candidates)
    m = max(least, _LEAST_COHORTS, min(wanted, enough))
    return min(1 << math.ceil(math.log2(m)), _MOST_COHORTS)
