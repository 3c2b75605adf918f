"""Exact tests and lower interval ends of items of sets, if there are few reports.

An item belongs to one bucket of each cohort. The buckets of an absent item are drawn at random, so
the number of reports that name them is a sum of random draws from the counts of the cohorts.
"""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decodings import FALSE_ALARM, compute_text_cells
from numpy.typing import NDArray
from scipy import sparse, stats

from rappor import Counts, Params, Population, decode, simulate_counts
from rappor.estimator.bucket_tests import BucketCounts, count_bucket_reports
from rappor.estimator.debias import Target, debias
from rappor.estimator.device_assumptions import Repetition

PARAMS = Params(k=4, items=2, keep=0.5, encoding="set", m=3)
COUNTS = np.array([[3, 0, 1, 1], [0, 2, 2, 0], [0, 1, 0, 0]])
"""Reports of three cohorts by bucket. An absent item has 10 / 4 reports on average, so few."""

ITEMS = {"everywhere": 0.9, "frequent": 0.6, "usual": 0.3, "rare": 0.05}
"""Probability that a device has each item."""


def make_target(
    bit_counts: NDArray[np.int64], params: Params = PARAMS, *, repeated: float = 1.0
) -> Target:
    """Return the rows of a collection whose devices send `repeated` reports each."""
    counts = Counts(params, bit_counts, bit_counts.sum(axis=1))
    return debias([counts], [Repetition(reports_per_device=repeated, source="counts")])


def make_design(buckets: list[tuple[int, ...]], params: Params = PARAMS) -> Any:
    """Return the design matrix of candidates with these buckets in the cohorts."""
    rows = np.array(buckets) + params.k * np.arange(params.m)
    columns = sparse.csc_array(
        (np.ones(rows.size), (rows.ravel(), np.repeat(np.arange(len(rows)), params.m))),
        shape=(params.k * params.m, len(rows)),
    )
    return SimpleNamespace(n_candidates=len(rows), columns=lambda chosen: columns[:, chosen])


def count_every_candidate(*, repeated: float = 1.0) -> BucketCounts:
    """Return the reports of all 64 candidates with different buckets in three cohorts."""
    buckets = list(itertools.product(range(PARAMS.k), repeat=PARAMS.m))
    counted = count_bucket_reports(make_target(COUNTS, repeated=repeated), make_design(buckets))
    assert counted is not None
    return counted


def test_a_p_value_is_the_share_of_buckets_with_as_many_reports() -> None:
    """A p-value is the share of all buckets, by enumeration, that have at least as many reports."""
    counted = count_every_candidate()
    expected = [(counted.reports >= n).mean() for n in counted.reports]
    assert counted.reports.max() == 3 + 2 + 1
    assert counted.p_values() == pytest.approx(expected)


@pytest.mark.parametrize("repeated", [1.0, 2.0])
def test_a_lower_end_is_the_share_that_reaches_the_reports(repeated: float) -> None:
    """At the lower end, as many reports have half of the error of the interval as probability.

    The reports of a share e are those of an absent item, and a Poisson number of the devices with
    the item. With repeated reports each of these devices adds two. An item whose reports an absent
    item reaches with a larger probability has the lower end 0. Lower ends below 0 stay.
    """
    counted, error = count_every_candidate(repeated=repeated), 0.2
    low = np.full(len(counted.reports), 10.0)
    low[0] = -0.3
    ends = counted.lower_ends(low, error)
    assert ends[0] == -0.3
    gap = (PARAMS.k - PARAMS.items) / PARAMS.k * (PARAMS.q_star - PARAMS.p_star)
    for reports, end in zip(counted.reports[1:], ends[1:], strict=True):
        devices_mean = COUNTS.sum() * gap * end / repeated
        further = np.ceil((reports - counted.reports) / repeated)
        reached = stats.poisson.sf(further - 1, devices_mean).mean()
        if end == pytest.approx(0, abs=1e-12):
            assert (counted.reports >= reports).mean() > error / 2
        else:
            assert reached == pytest.approx(error / 2)
    assert ends.max() > 0
    # An end that is already below the exact end stays.
    assert counted.lower_ends(np.full(len(low), 1e-6), error).max() == pytest.approx(1e-6)


def test_errors_of_single_candidates_give_different_ends() -> None:
    """A smaller error gives a smaller lower end of a candidate with equally many reports."""
    counted = count_every_candidate()
    most = np.flatnonzero(counted.reports == counted.reports.max())
    error = np.full(len(counted.reports), 0.2)
    error[most[0]] = 0.1
    ends = counted.lower_ends(np.full(len(error), 10.0), error)
    alone = [counted.lower_ends(np.full(len(error), 10.0), rate)[most[0]] for rate in (0.1, 0.2)]
    assert ends[most[0]] == alone[0] < alone[1]


def test_the_threshold_is_the_smallest_number_that_is_detected() -> None:
    """The ratio is the excess of the fewest detected reports, divided by the excess of the item."""
    counted = count_every_candidate()
    (best,) = np.flatnonzero(counted.reports == 6)[:1]
    mean = COUNTS.sum() / PARAMS.k
    for largest in (0.04, 0.1, 0.3):
        fewest = min(n for n in range(7) if (counted.reports >= n).mean() <= largest)
        ratio = counted.compute_threshold_ratio(np.array([largest]), np.array([best]))
        assert ratio == pytest.approx((fewest - mean) / (6 - mean))


def test_a_candidate_without_excess_is_hidden_by_one_report_less() -> None:
    """The ratio is 1 if a large error rate detects an item with at most the mean of absent items.

    Bad case: the excess of such an item is not positive, and the quotient was far below -1e300, as
    if no number of forged reports hid the item.
    """
    counted = count_every_candidate()
    (few,) = np.flatnonzero(counted.reports == 1)[:1]
    assert counted.reports[few] < COUNTS.sum() / PARAMS.k
    assert counted.compute_threshold_ratio(np.array([0.99]), np.array([few])) == pytest.approx(1)


def test_many_reports_and_other_values_need_no_exact_test() -> None:
    """From five reports of an absent item on, the regression tests the items of sets.

    Twenty reports are five for each of four buckets. If every device sends two, they count as ten.
    Strings of one value have no such test.
    """
    design = make_design([(0, 0, 0)])
    many = np.array([[7, 0, 0, 0], [0, 7, 0, 0], [6, 0, 0, 0]])
    assert count_bucket_reports(make_target(many), design) is None
    assert count_bucket_reports(make_target(many, repeated=2.0), design) is not None
    many[0, 0] -= 1
    assert count_bucket_reports(make_target(many), design) is not None
    strings = Params(k=4, m=3, f=0.5, p=0.25, q=0.75)
    assert count_bucket_reports(make_target(COUNTS, strings), design) is None


def decode_few(seed: int, n: int, params: Params) -> Any:
    """Decode n reports of the items of `ITEMS` and of 200 absent items, all with other names."""
    population = Population.of_independent_items(
        {f"{seed}/{name}": share for name, share in ITEMS.items()}, n_sets=5000, seed=seed
    )
    counts = simulate_counts(population, params, n_reports=n, seed=seed)
    names = [*(f"{seed}/{name}" for name in ITEMS), *(f"{seed}/absent {i}" for i in range(200))]
    return counts, decode(counts, names)


def test_the_table_has_the_exact_p_values() -> None:
    """With 200 reports, the p-values of the table are those of the counts, and rows have numbers.

    The number of forged reports that hide a detected item follows from the exact test, too.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set"), m=8)
    counts, estimates = decode_few(1, 200, params)
    cells = compute_text_cells(list(estimates.candidates), params)
    reports = counts.bit_counts.ravel()[cells].sum(axis=1)
    tail = np.array([1.0])
    for cohort in counts.bit_counts:
        tail = np.convolve(tail, np.bincount(cohort) / params.k)
    expected = [tail[n:].sum() for n in reports]
    assert estimates.p_value == pytest.approx(expected, rel=1e-9)
    assert estimates.detected.any()
    assert (estimates.forged_to_hide[estimates.detected] >= 1).all()
    assert np.isfinite(estimates.forged_to_hide[estimates.detected]).all()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("m", "n", "n_collections"),
    [
        (128, 200, 5),
        (8, 400, 10),
        *(
            pytest.param(*numbers, 20, marks=pytest.mark.acceptance)
            for numbers in ((128, 200), (8, 400))
        ),
    ],
)
def test_few_reports_detect_frequent_items_and_no_absent_ones(
    m: int, n: int, n_collections: int
) -> None:
    """With few reports, p-values of absent items hold, and an item of 90 % is detected.

    Of the 200 absent items of each collection, p-values up to .01 are at most as frequent as a
    binomial number with the rate .01 is with probability 1e-9. Five collections detect a rate of
    .055 with probability .99, ten .037, and twenty .026. The item of 90 % has 10 reports or more,
    where an absent item has .4 to .9, and is detected in nearly all collections. In an earlier
    version, residuals of the fit gave p-values, and most collections with 200 reports detected
    nothing.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set"), m=m)
    n_small, n_found, n_low = 0, 0, 0
    for seed in range(n_collections):
        _, estimates = decode_few(seed, n, params)
        is_absent = np.array(["absent" in name for name in estimates.candidates])
        n_small += int((estimates.p_value[is_absent] <= 0.01).sum())
        n_found += f"{seed}/everywhere" in estimates.detected_candidates
        n_low += int((estimates.ci_low[is_absent] > 0).sum())
    n_absent = 200 * n_collections
    assert n_small <= stats.binom.isf(FALSE_ALARM, n_absent, 0.01)
    # Half of the error of a 95 % interval is .025.
    assert n_low <= stats.binom.isf(FALSE_ALARM, n_absent, 0.025)
    assert n_found >= 0.75 * n_collections
