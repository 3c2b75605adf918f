"""Choice of the dimensions: k bits, h hash functions and m cohorts.

`rappor.planning.planner.plan` calls `choose_params`. The input is a privacy budget, an expected
number of reports and the strings to detect. The output is a complete parameter set.
`rappor.planning.noise` chooses the noise for given dimensions.

Theory of operation
-------------------
With more bits and more cohorts, estimates are at least as accurate, and a report costs as much
privacy as before. But a report takes more bytes (k / 8), a decode takes more time (m k), and the
cohort contains more information that links the reports of a device (log2 m bits). The dimensions
are therefore the smallest powers of two beyond which the gain in accuracy is negligible. Only k may
be another number, the largest number of bits in the allowed bytes.

- h: the number from 1 to 4 with the least variance of a rare string at the budget. It is 1 for all
  budgets that were measured.
- k: grows until the strings of other devices, which raise the proportion of ones at every bit, add
  less than `NEGLIGIBLE_VARIANCE` to the variance of a rare string. The largest allowed length of a
  report limits k.
- m: grows until collisions add less than `NEGLIGIBLE_VARIANCE`. Collisions with unexplained strings
  and collisions between candidates both decrease as 1 / m. Three more rules apply, the later ones
  before the earlier ones. With few reports m is smaller, so that a cohort has at least 100 reports.
  But m is at least 16, so with less than 1,600 reports a cohort has fewer than 100. With few
  devices m is smaller again, so that a collector can release most cohorts in each interval
  (`rappor.privacy.small_cohorts`). And m is never so small that two candidates often have all bits
  in common.
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
from rappor.planning.set_design import design_sets
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.params import MAX_HASHES, Params
from rappor.registry.metric import MIN_COHORT

NEGLIGIBLE_VARIANCE: Final = 0.04
"""Largest relative increase of a rare string's variance that a finite k, and again a finite m, may
cause. A convention: each increase adds 2 % to the standard error, so both together add 4 %. A
larger number gives shorter reports and fewer cohorts."""

_MIN_BITS: Final = 8
"""Smallest k, in bits. A report consists of whole bytes, so fewer bits save nothing."""

_MAX_BITS: Final = 1024
"""Largest k, in bits: a report of 128 bytes. At epsilon_1 = 2, twice as many bits lower the
variance by less than 0.2 %."""

_MIN_COHORTS: Final = 16
"""Smallest number of cohorts, if the devices suffice for it. With fewer cohorts, an absent
candidate has fewer possible sets of bits, and a collision in one cohort weighs more."""

_MAX_COHORTS: Final = 4096
"""Largest number of cohorts. Each doubling doubles the time of a decode, and adds a bit of
information that links the reports of a device."""

_MIN_COHORT_REPORTS: Final = 100
"""Smallest expected number of reports of a cohort. A convention: from 100 reports on, the
proportion of ones is close to normal, as the estimator assumes."""

_MAX_TIED_PAIRS: Final = 0.01
"""Largest expected number of candidate pairs with the same bits in every cohort. Counts cannot
distinguish such a pair. A smaller number needs more cohorts."""

_TRIED_HASHES: Final = range(1, 5)
"""Numbers of hash functions that are tried. At k = 1,024 and budgets from 0.001 to 40 nats, one
hash function had the least variance in every measurement, so more than 4 are not tried."""

_MIN_BITS_PER_HASH: Final = 4
"""Smallest number of bits of a report for each hash function. A string then sets a quarter of the
bits. With fewer bits, the strings of other devices would set almost every bit."""


def choose_params(
    budget: Budget,
    *,
    n_reports: int,
    target: DetectionTarget,
    max_bytes: int | None = None,
    hashes: int | None = None,
    symmetric: bool = False,
) -> Params:
    """Choose the best parameters of strings for a number of reports.

    Parameters
    ----------
    budget : limits of epsilon_1 and epsilon_inf, in nats.
    n_reports : expected number of reports.
    target : the strings to detect.
    max_bytes : largest size of a report's bits, in bytes; None for no limit.
    hashes : number of hash functions h; None for the best number.
    symmetric : require q = 1 - p.

    Raises
    ------
    ParamsError
        A number is outside its range, or the report is too short for the hash functions.
    """
    max_bits = _limit_bits(max_bytes, 1 if hashes is None else hashes)

    def build_params(h: int, k: int, m: int) -> Params:
        """Build the parameters with these dimensions and the best noise within the budget."""
        return choose_noise(
            budget.epsilon_1, budget.epsilon_inf, k=k, h=h, m=m, symmetric=symmetric
        )

    h = hashes or min(
        _TRIED_HASHES, key=lambda h: compute_rare_variance(build_params(h, _MAX_BITS, 1))
    )
    # The number of cohorts changes neither the noise nor the variance without collisions, so k is
    # chosen with one cohort.
    k = _choose_bits(lambda k: build_params(h, k, 1), max_bits, n_reports=n_reports, target=target)
    m = _choose_cohorts(lambda m: build_params(h, k, m), n_reports=n_reports, target=target)
    return build_params(h, k, m)


def choose_set_params(
    items: int, epsilon: float, *, n_reports: int, target: DetectionTarget
) -> Params:
    """Choose the best parameters of sets for a number of reports.

    The number of buckets is the number with the smallest variance of a rare item. `keep`, the
    probability that a device names a bucket of its own set, is as large as the loss allows
    (`rappor.protocol.profiles`). The number of cohorts follows the rule of strings.

    Parameters
    ----------
    items : largest number of items of a set.
    epsilon : limit of the privacy loss of a report, in nats.
    n_reports : expected number of reports.
    target : the items to detect.

    Raises
    ------
    ParamsError
        A number is outside its range.
    """

    def build_params(m: int) -> Params:
        return design_sets(items, epsilon, m=m)

    m = _choose_cohorts(build_params, n_reports=n_reports, target=target)
    return build_params(m)


def compute_min_cohorts(k: int, n_candidates: int) -> float:
    """Compute the number of cohorts from which candidates seldom have all bits in common.

    With one hash function, a pair has all bits in common with probability k^-m, and with more hash
    functions less often. The result solves pairs * k^-m = `_MAX_TIED_PAIRS`, and is at least 1.
    """
    pairs = n_candidates * (n_candidates - 1) / 2
    return max(math.log(pairs / _MAX_TIED_PAIRS) / math.log(k), 1.0) if pairs else 1.0


def _limit_bits(max_bytes: int | None, hashes: int) -> int:
    """Return the largest allowed k, in bits."""
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
    build_with_bits: Callable[[int], Params],
    max_bits: int,
    *,
    n_reports: int,
    target: DetectionTarget,
) -> int:
    """Return the smallest k at which strings of other devices add negligible variance.

    Parameters
    ----------
    build_with_bits : function that builds the parameters for a number of bits.
    max_bits : largest k, which is returned if no smaller k is large enough.
    n_reports : expected number of reports.
    target : the strings to detect.
    """
    k = _MIN_BITS
    while True:
        params = build_with_bits(k)
        # The variance of a rare string, if the bits of all devices without the string are 0 before
        # noise, and if they are not. Both are without collisions.
        variance_of_empty_bits = compute_rare_variance(params) / n_reports
        error = error_without_collisions(params, n_reports, target)
        if error**2 <= (1 + NEGLIGIBLE_VARIANCE) * variance_of_empty_bits:
            return k
        if k == max_bits:
            return k
        k = min(2 * k, max_bits)


def _choose_cohorts(
    build_with_cohorts: Callable[[int], Params], *, n_reports: int, target: DetectionTarget
) -> int:
    """Return the smallest m at which collisions add negligible variance.

    The variance of collisions decreases as 1 / m, so one prediction at the largest m suffices:

        added variance at m = (added variance at the largest m) * (largest m) / m

    Parameters
    ----------
    build_with_cohorts : function that builds the parameters for a number of cohorts.
    n_reports : expected number of reports.
    target : the strings to detect.
    """
    params = build_with_cohorts(_MAX_COHORTS)
    error = error_without_collisions(params, n_reports, target)
    # Collisions add this variance, as a multiple of the variance without collisions.
    added_variance = (predict(params, n_reports, target).absent_std_error / error) ** 2 - 1
    cohorts_for_collisions = added_variance * _MAX_COHORTS / NEGLIGIBLE_VARIANCE
    cohorts_for_reports = n_reports / _MIN_COHORT_REPORTS
    cohorts_for_candidates = compute_min_cohorts(params.k, target.frequencies.n_candidates)
    # Few reports limit m.
    m = _round_up(max(_MIN_COHORTS, min(cohorts_for_collisions, cohorts_for_reports)))
    # Few devices limit m too: each reports once in an interval.
    devices = n_reports / target.reports_per_device
    largest_m = choose_list_cohorts(devices, min_cohort=MIN_COHORT, largest_m=_MAX_COHORTS)
    # Candidates must stay distinguishable.
    return min(max(min(m, largest_m), _round_up(cohorts_for_candidates)), _MAX_COHORTS)


def _round_up(number: float) -> int:
    """Return the smallest power of two that is at least a number of 1 or more."""
    return 1 << math.ceil(math.log2(number))
