"""Decodes of categories, booleans and buckets, whose estimates have closed forms.

With f = .5, p = .25 and q = .75 a report has a given bit with probability p* = .375 if the device
does not have the category, and q* = .625 if the device has it. A share is therefore estimated by
(ones / reports - .375) / .25, which the tests compute by hand. Reports of one bucket (profile once)
have a closed form too, with correlated estimates.
"""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import numpy as np
import pytest
from enumeration import enumerate_buckets
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats
from rappor.counts.counts import Counts
from rappor.decoding.closed_form import project_on_simplex
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_counts

YES_OR_NO = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
"""A boolean has one bit, which is 1 for a yes."""


def make_params(
    names: tuple[str, ...], encoding: str = "onehot", bits: int | None = None
) -> Params:
    """Return parameters with a bit for each category. Buckets have one bit more than edges."""
    k = bits or len(names)
    return Params(k=k, encoding=encoding, categories=names, f=0.5, p=0.25, q=0.75)


def compute_std_error(mean: float, n: int) -> float:
    """Return the standard error of a share, from the probability `mean` of a one in n reports."""
    return math.sqrt(mean * (1 - mean) / n) / 0.25


def test_one_hot_estimates_equal_the_closed_form() -> None:
    """Shares, standard errors and p-values of categories equal those computed by hand.

    The p-value of a category is the probability that a binomial number with p* = .375 has at least
    as many ones. The interval of the share .5 is the exact (Clopper-Pearson) interval of its ones,
    de-biased.
    """
    counts = Counts(make_params(("a", "b", "c")), [[4000, 5000, 3700]], [10_000])
    estimates = decode(counts, distribution=True)
    assert estimates.candidates == ("a", "b", "c")
    assert estimates.share.tolist() == pytest.approx([0.1, 0.5, -0.02])
    errors = [compute_std_error(mean, 10_000) for mean in (0.4, 0.5, 0.375)]
    assert estimates.std_error.tolist() == pytest.approx(errors)
    expected = [stats.binom.sf(n_ones - 1, 10_000, 0.375) for n_ones in (4000, 5000, 3700)]
    assert estimates.p_value.tolist() == pytest.approx(expected)
    assert estimates.detected.tolist() == [True, True, False]
    assert estimates.unallocated == pytest.approx(0.4, abs=0.1 * estimates.unallocated_std_error)
    exact = stats.binomtest(5000, 10_000).proportion_ci(0.95, method="exact")
    assert estimates.ci_low[1] == pytest.approx((exact.low - 0.375) / 0.25)
    assert estimates.ci_high[1] == pytest.approx((exact.high - 0.375) / 0.25)
    # Devices with a value outside the categories set no bit. The shares may therefore sum to less
    # than 1, and the posterior shares of a and b stay. The negative share of c becomes 0.
    assert estimates.posterior_share is not None
    assert estimates.posterior_share.tolist() == pytest.approx([0.1, 0.5, 0.0])


def test_posterior_shares_are_the_projection_onto_the_simplex() -> None:
    """Estimates that sum to more than 1 are replaced by the nearest shares that sum to 1.

    "Nearest" means least squares with weights 1 / variance, with no share below 0. The conditions
    of optimality (Karush, Kuhn, Tucker) are: each positive share has moved by the same multiple of
    its variance (`multiplier`), and the multiple of a share at 0 is at most as large.
    """
    counts = Counts(make_params(("a", "b", "c")), [[5000, 5750, 3700]], [10_000])
    estimates = decode(counts, distribution=True)
    assert estimates.posterior_share is not None
    assert (estimates.posterior_share[:2] > 0).all()
    check_projection(estimates.share, estimates.std_error**2, estimates.posterior_share)


@given(st.lists(st.tuples(st.integers(-50, 100), st.integers(1, 20)), min_size=1, max_size=8))
def test_any_number_of_shares_of_a_projection_is_positive(rows: list[tuple[int, int]]) -> None:
    """The projection of 1 to 8 estimates meets the conditions of the test above.

    The estimates lie between -.5 and 1, and the variances between .01 and .2.
    """
    estimate, variance = np.array(rows).T / 100
    check_projection(estimate, variance, project_on_simplex(estimate, variance))


def check_projection(estimate: Floats, variance: Floats, share: Floats) -> None:
    """Assert the conditions of optimality for the shares that are nearest to the estimates."""
    assert share.sum() == pytest.approx(1)
    assert (share >= 0).all()
    multiplier = (estimate - share) / variance
    largest = multiplier[np.argmax(share)]
    is_positive = share > 1e-12
    expected = [largest] * int(is_positive.sum())
    assert multiplier[is_positive].tolist() == pytest.approx(expected, abs=1e-9)
    assert (multiplier[~is_positive] <= largest + 1e-9).all()


def test_complete_shares_are_a_fit_that_sums_to_one() -> None:
    """With `complete=True`, shares are the generalized least squares fit with the sum 1.

    A complete metric has a category for every value. The test solves the normal equations under the
    constraint. The sum of all shares then has the standard error 0. P-values do not depend on
    the constraint.
    """
    counts = Counts(make_params(("a", "b", "c")), [[4400, 5000, 3700]], [10_000])
    free_estimates, complete = decode(counts), decode(counts, complete=True, distribution=True)
    covariance = free_estimates.covariance.covariance(np.arange(3))
    precision = np.linalg.inv(covariance)
    # All shares that sum to 1 are (0, 0, 1) plus a combination of the two columns of `free`.
    free = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    information = free.T @ precision @ free
    last = np.array([0.0, 0.0, 1.0])
    solved = np.linalg.solve(information, free.T @ precision @ (free_estimates.share - last))
    assert complete.share.tolist() == pytest.approx((last + free @ solved).tolist())
    spread = free @ np.linalg.inv(information) @ free.T
    assert complete.std_error.tolist() == pytest.approx(np.sqrt(spread.diagonal()).tolist())
    assert complete.total(["a", "b", "c"]).std_error == pytest.approx(0, abs=1e-9)
    assert complete.p_value.tolist() == free_estimates.p_value.tolist()
    assert complete.posterior_share is not None
    assert complete.posterior_share.sum() == pytest.approx(1)
    width = (free_estimates.ci_high - free_estimates.ci_low) / free_estimates.std_error
    assert ((complete.ci_high - complete.ci_low) / complete.std_error).tolist() == pytest.approx(
        width
    )


def test_an_incomplete_metric_decoded_as_complete_causes_a_warning() -> None:
    """If a tenth of the devices is outside all categories, `complete=True` warns (`incomplete`).

    The shares are then forced to a sum of 1, and all of them are too large. Without such devices
    there is no warning. A boolean has no second category whose share could be missing, so
    `complete` is refused.
    """
    names = ("a", "b")
    # Shares of .45 and .45 of 1e7 reports, and of .5 and .5.
    incomplete, complete = ([[4_900_000, 4_900_000]], [[5_000_000, 5_000_000]])
    for bit_counts, codes in ((incomplete, ["incomplete"]), (complete, [])):
        counts = Counts(make_params(names), bit_counts, [10_000_000])
        estimates = decode(counts, reports_per_device=1, complete=True)
        assert [warning.code for warning in estimates.warnings] == codes
    with pytest.raises(DecodeError, match="complete must be false"):
        decode(Counts(YES_OR_NO, [[5_000_000]], [10_000_000]), complete=True)


def test_a_boolean_is_one_proportion() -> None:
    """A boolean has one share and no unallocated share, because every other report is a no."""
    estimates = decode(Counts(YES_OR_NO, [[4500]], [10_000]))
    assert estimates.candidates == ("true",)
    assert estimates.share[0] == pytest.approx(0.3)
    assert estimates.std_error[0] == pytest.approx(compute_std_error(0.45, 10_000))
    assert math.isnan(estimates.unallocated)
    assert estimates.to_dict()["unallocated"] is None


def test_devices_that_report_again_share_their_permanent_noise() -> None:
    """With 10 reports of each device, the variance between devices counts 10 times.

    The permanent response is the same in all reports of a device, so its variance does not average
    out. The variance within a device, from the instantaneous response, counts once.
    """
    estimates = decode(Counts(YES_OR_NO, [[4500]], [10_000]), reports_per_device=10)
    # The permanent bit is 1 with probability f / 2 + (1 - f) * .3 for a share of .3. It changes the
    # probability of a reported 1 from p to q, hence by .5.
    permanent_mean = 0.25 + 0.5 * 0.3
    between_devices = 0.5**2 * permanent_mean * (1 - permanent_mean)
    within_devices = 0.45 * 0.55 - between_devices
    variance = within_devices + 10 * between_devices
    assert estimates.share[0] == pytest.approx(0.3)
    assert estimates.std_error[0] == pytest.approx(math.sqrt(variance / 10_000) / 0.25)


@pytest.mark.parametrize(
    ("n_ones", "share", "clipped"), [(6500, 1.1, 1), (5750, 0.8, 0.8), (3500, -0.1, 0)]
)
def test_distribution_of_a_boolean_is_clipped(n_ones: int, share: float, clipped: float) -> None:
    """The posterior share of a boolean is its estimate, cut to [0, 1]."""
    estimates = decode(Counts(YES_OR_NO, [[n_ones]], [10_000]), distribution=True)
    assert estimates.posterior_share is not None
    assert estimates.share.tolist() == pytest.approx([share])
    assert estimates.posterior_share.tolist() == pytest.approx([clipped])


@pytest.mark.slow
def test_buckets_are_named_by_their_intervals() -> None:
    """Buckets are named by their edges, in the order of the numbers, with two open ends."""
    counts = Counts(make_params(("0", "10"), "buckets", 3), [[4000, 5000, 3750]], [10_000])
    estimates = decode(counts)
    names = ["(-inf, 0)", "[0, 10)", "[10, inf)"]
    assert list(estimates.candidates) == names
    assert estimates.share.tolist() == pytest.approx([0.1, 0.5, 0.0])
    assert [row["candidate"] for row in estimates.to_dict()["estimates"]] == names
    assert estimates.to_pandas()["candidate"].tolist() == names


def test_closed_forms_pool_by_inverse_variance() -> None:
    """The pooled estimate of two collections is their mean, weighted by inverse variances."""
    quiet = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    noisy = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    counts = [Counts(quiet, [[4000]], [10_000]), Counts(noisy, [[4500]], [10_000])]
    estimates = decode(counts)
    # Both collections have the share .3: (.4 - .25) / .5 and (.45 - .375) / .25.
    pooled = float(estimates.share[0])
    assert pooled == pytest.approx(0.3)
    variances = [0.4 * 0.6 / 10_000 / 0.25, compute_std_error(0.45, 10_000) ** 2]
    expected = 1 / math.sqrt(sum(1 / variance for variance in variances))
    assert estimates.std_error[0] == pytest.approx(expected, rel=1e-6)


def make_bucket_counts(shares: list[float], n: int, seed: int = 1) -> Counts:
    """Simulate one report of each device under the profile once, with categories a, b, ..."""
    names = tuple("abcdefgh"[: len(shares)])
    params = Params.profile("once", encoding="onehot", categories=names)
    population = Population([*names, "unlisted"], [*shares, 1 - sum(shares)])
    return simulate_counts(population, params, n_reports=n, seed=seed)


def test_estimates_of_grr_have_the_multinomial_covariance() -> None:
    """Under the profile `once`, estimates are correlated, because each report names one bucket.

    The numbers of reports by bucket are multinomial: a report for a is none for b. The covariance
    of two estimates is -mu_a mu_b / (n gap^2), with mu the proportions of the buckets and
    gap = q* - p*. The bucket of other values is no category, and its share is 1 minus the sum of
    the categories.
    """
    counts = make_bucket_counts([0.5, 0.2, 0.02], 10_000)
    params = counts.params
    estimates = decode(counts)
    assert estimates.candidates == ("a", "b", "c")
    gap = params.q_star - params.p_star
    proportions = counts.bit_counts[0] / 10_000
    assert estimates.share == pytest.approx((proportions[:3] - params.p_star) / gap)
    mean = params.p_star + gap * np.clip(estimates.share, 0, 1)
    assert estimates.std_error == pytest.approx(np.sqrt(mean * (1 - mean) / 10_000) / gap)
    weights = np.array([[1, 1, 1], [1, -1, 0]])
    sums, covariance = estimates.covariance.compute_contrasts(np.arange(3), weights)
    expected = (np.diag(mean) - np.outer(mean, mean)) / (10_000 * gap**2)
    assert covariance == pytest.approx(weights @ expected @ weights.T)
    # Computed from its own bucket, the share of other values has the same estimate and error as 1
    # less the sum of the categories.
    remainder = (proportions[3] - params.p_star) / gap
    assert 1 - sums[0] == pytest.approx(remainder)
    variance = proportions[3] * (1 - proportions[3]) / (10_000 * gap**2)
    assert covariance[0, 0] == pytest.approx(variance)


@pytest.mark.parametrize("share", [Fraction(1, 50), Fraction(1, 2)])
@pytest.mark.parametrize("encoding", ["onehot", "buckets"])
def test_the_variance_of_grr_is_that_of_its_formula(encoding: str, share: Fraction) -> None:
    """Under the profile `once`, estimates of 2 to 24 answers have the variance of GRR with 4 nats.

    The formula is mu (1 - mu) / (q - p)^2 for one device, with p = 1 / (e^4 + k - 1), q = e^4 p and
    mu = p + (q - p) share. k is the number of answers and one more bucket. The variance of the
    device and the decoder is exact: the probabilities of a report come from an enumeration of the
    coins, and the decoded share is linear in the number of ones. The estimate is also unbiased.
    """
    # Every number up to 24 takes as long as five of these.
    for n_answers in (2, 3, 7, 8, 24):
        # Numbers between two edges belong to a bucket, so there is one edge fewer than answers.
        names = tuple(str(i) for i in range(n_answers - (encoding == "buckets")))
        params = Params.profile("once", encoding=encoding, categories=names)
        assert params.k == n_answers + 1
        # Probability that a report names the first answer, of a device with this answer, and of a
        # device with the second one.
        first_bit, second_bit = ((1 << i).to_bytes(params.n_bytes, "little") for i in (0, 1))
        named_by_owner, named_by_other = (
            enumerate_buckets(bits, params)[first_bit] for bits in (first_bit, second_bit)
        )
        mean = float(share * named_by_owner + (1 - share) * named_by_other)
        # The estimates from no ones and from ones only give the line on which all estimates lie.
        without_ones, half, ones_only = (
            float(decode(Counts(params, [[n, 1000 - n, *[0] * (n_answers - 1)]], [1000])).share[0])
            for n in (0, 500, 1000)
        )
        assert half == pytest.approx((without_ones + ones_only) / 2, abs=1e-12)
        slope = ones_only - without_ones
        assert without_ones + slope * mean == pytest.approx(float(share), abs=1e-6)
        low = 1 / (math.exp(4) + params.k - 1)
        gap = (math.exp(4) - 1) * low
        formula_mean = low + gap * float(share)
        formula = formula_mean * (1 - formula_mean) / gap**2
        assert formula * (1 - 1e-6) < slope**2 * mean * (1 - mean) < 1.02 * formula


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.2, 0.05, 0.0])
def test_intervals_of_one_bucket_are_exact(share: float) -> None:
    """95 % intervals under the profile `once` are above and below the true share with .025 each.

    The number of reports that name a bucket is binomial, and the interval of its share depends on
    this number alone. The test finds the numbers whose interval contains the share. Smaller numbers
    have a probability of at most .025, and so have larger numbers, so the coverage is at least .95.
    The intervals are the shortest ones with this coverage (Clopper-Pearson): one number more on a
    side would exceed .025. Intervals for an error probability that is 7 % too large, or too small,
    fail for a share of .5. The covariance of two buckets has a test of its own above.
    """
    n = 400
    params = make_bucket_counts([0.5, 0.2, 0.05, 0.0], n).params

    def compute_interval(n_named: int) -> tuple[float, float]:
        """Return the interval of the first category, if `n_named` reports name its bucket."""
        counts = Counts(params, [[n_named, n - n_named, 0, 0, 0]], [n])
        estimates = decode(counts)
        return float(estimates.ci_low[0]), float(estimates.ci_high[0])

    # Both ends rise with the number: numbers from `first` on, and before `end`, cover the share.
    first = bisect.bisect_left(range(n), True, key=lambda i: compute_interval(i)[1] >= share)
    end = bisect.bisect_left(range(n), True, key=lambda i: compute_interval(i)[0] > share)
    named = stats.binom(n, params.p_star + (params.q_star - params.p_star) * share)
    assert named.cdf(first - 1) <= 0.025 < named.cdf(first)
    assert named.sf(end - 1) <= 0.025 < named.sf(end - 2)


@pytest.mark.acceptance
def test_intervals_of_one_bucket_cover_shares_sums_and_differences() -> None:
    """95 % intervals under the profile `once` contain true shares, sums and differences.

    A coverage of 94.5 % in 300 collections falls below the bound with probability 1e-9.
    """
    n = 300
    shares = [0.5, 0.2, 0.05, 0.0]
    weights = np.array([[1, 1, 0, 0], [1, -1, 0, 0], [1, 1, 1, 1]])
    n_covered = np.zeros(len(shares) + len(weights))
    for seed in range(n):
        estimates = decode(make_bucket_counts(shares, 400, seed))
        n_covered[:4] += (estimates.ci_low <= shares) & (shares <= estimates.ci_high)
        sums, covariance = estimates.covariance.compute_contrasts(np.arange(4), weights)
        errors = np.abs(sums - weights @ shares) / np.sqrt(covariance.diagonal())
        n_covered[4:] += errors < 1.96
    # The bound is 255 of 300. Standard errors that are 40 % too small would cover 228.
    assert (n_covered >= stats.binom.ppf(1e-9, n, 0.945)).all()


def test_collections_of_bits_and_of_buckets_are_pooled() -> None:
    """Reports of bits and reports of one bucket are pooled, and the pooled errors are smaller.

    A metric that changed its profile has both kinds of reports of the same categories.
    """
    names = ("a", "b", "c")
    buckets = make_bucket_counts([0.5, 0.3, 0.1], 20_000)
    bits = Params.profile("balanced", encoding="onehot", categories=names)
    population = Population([*names, "unlisted"], [0.5, 0.3, 0.1, 0.1])
    daily = simulate_counts(population, bits, n_reports=20_000, seed=2)
    pooled, buckets_only = decode([buckets, daily]), decode(buckets)
    assert (pooled.std_error < buckets_only.std_error).all()
    assert np.abs(pooled.share - np.array([0.5, 0.3, 0.1])).max() < 6 * pooled.std_error.max()


def test_a_complete_metric_of_buckets_sums_to_one() -> None:
    """With `complete=True`, shares under the profile `once` sum to 1, with smaller errors."""
    counts = make_bucket_counts([0.6, 0.3, 0.1], 5_000)
    free, complete = decode(counts), decode(counts, complete=True)
    assert complete.share.sum() == pytest.approx(1)
    assert (complete.std_error < free.std_error).all()
