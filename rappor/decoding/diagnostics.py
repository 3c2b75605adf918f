"""Diagnostics of a collection: fit, cohorts, popcounts, and the smallest detectable share.

`rappor.decoding.decoder` calls `describe_cohorts` and `describe_fit`, and collects the findings in
`Estimates.diagnostics`, a dictionary that is ready for JSON. `list_cautions` turns findings that
put the whole table in question into warnings.

Theory of operation
-------------------
An honest, complete collection causes a warning only with a small probability, which a constant of
this module states, even with few reports. Three statistics are not normal if reports are few. Each
of them is compared with a distribution of its own.

*Squared residuals* test the goodness of the fit. e is the residual of a row (one bit of one
cohort), divided by its standard deviation sd.

| symbol | meaning |
|---|---|
| mu | probability of a 1 in the row, at the fitted proportion |
| n | effective number of reports of the row |
| u | mu (1 - mu), the variance of one report |
| K | (1 - 6 u) / (n u), excess kurtosis of the number of ones |
| G | (1 - 2 mu) / sqrt(n u), skewness of the number of ones |
| X, W | basis of the fit, (n rows, p coefficients), and diagonal matrix of its weights |

e has the mean 0, the variance 1, the third moment G and the fourth moment 3 + K. So e^2 has the
variance (3 + K) - 1 = 2 + K, and e^2 and e have the covariance G. The fit sets p combinations of
the residuals to zero: X' (e / sd), with the covariance X' W X. Their covariance with the sum of e^2
is t. As in a regression, knowing these combinations reduces the variance of the sum by
t' (X' W X)^-1 t, so the sum of e^2 over all rows has the variance

    sum of (2 + K) - t' (X' W X)^-1 t,    t = X' (G / sd)

The mean of the sum is the number of degrees of freedom. The variance above is for as many squares
as rows, so it is multiplied by the degrees of freedom divided by the number of rows. The sum is
compared with the gamma distribution of this mean and variance. With many ones, K and G are near 0,
and it is the chi-squared distribution. A row with one expected 1 (n = 1,000, mu = .001) has K = 1,
so e^2 has the variance 3 and not 2. The chi-squared distribution would call such counts a bad fit
too often.

*Sizes of cohorts* test if devices drew their cohorts evenly. A chi-squared statistic of N reports
in m equal cells has the mean m - 1 and the variance 2 (m - 1) (N - 1) / N. It is compared with the
gamma distribution of this mean and variance.

*Bits with too many ones* show strings that are no candidates. The p-value of a bit is the upper
tail of a binomial count with the mean mu.

*Popcounts*, the numbers of ones in reports, show forged reports. A report of a value with t true
bits has t q* + (k - t) p* ones on average. So the mean popcount of a cohort, less k p* and divided
by q* - p*, estimates t. The encoding bounds the mean of t for honest devices: with h = 2 it is
between 1 and 2, because two hash functions may choose one bit.

If a device sends R reports, its reports are not independent. The number of ones in n reports then
has phi times the variance of n independent reports (`rappor.estimator.proportion_tests`), so the
effective number of reports is n / phi. The sizes of cohorts have R times the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.counts.arrays import Booleans, Floats
from rappor.estimator.debias import Target
from rappor.estimator.fit import Fit
from rappor.estimator.p_values import compute_least_p_value
from rappor.estimator.tail_probabilities import upper_tail
from rappor.protocol.encodings import get_encoding

FALSE_ALARM: Final = 1e-9
"""Largest probability of a warning about popcounts (numbers of ones in a report) of an honest
collection, for too many ones and for too few ones. Such a warning accuses senders of forgery, so
the probability is small."""

FIT_FALSE_ALARM: Final = 1e-6
"""P-value of the goodness of fit below which a table warns. An honest table warns once in a million
times, if the candidates are complete and at most 4,000, and every report comes from a different
device. Of more candidates, the selected ones must be complete."""

INCOMPLETE_FALSE_ALARM: Final = 0.01
"""P-value of a sum of shares below which a complete metric warns. One honest table in 100 warns.
With 10 categories, 10,000 reports and 8 % of values outside all categories, a limit of 1e-6 never
warned. This limit warns in six of ten collections."""

IMBALANCE: Final = 1e-6
"""P-value of the cohorts' sizes below which a report calls the cohorts uneven. This happens to one
honest collection in a million."""

_POWER: Final = 0.8
"""Probability with which `detectable_share` is detected: the usual power of a study, and the
planner's default."""

_LISTED_BITS: Final = 10
"""Largest number of unexplained bits that the diagnostics contain. A person would not read more."""

UNEXPLAINED_FALSE_ALARM: Final = 1e-3
"""Largest probability that an honest collection with complete candidates has any unexplained bit.
The bits are a hint that candidates are missing. They accuse nobody, so the probability is larger
than the probabilities of warnings."""

_LEAST_P: Final = 1e-99
"""Smallest p-value that is printed. Smaller p-values are printed as an upper bound."""

RELIABLE_FROM: Final = 100
"""Number of reports below which a table of strings warns. With fewer reports up to 18 % of
collections detected an absent string at an error rate of 5 %. From this number on, at most 3 % did.
"""

FILLED_FROM: Final = 2.0
"""Expected number of reports of the bucket of an absent item, in all cohorts together, below which
a table of sets warns. Such a number is not normal, as standard errors and sums assume. Tests and
lower interval ends are exact (`rappor.estimator.bucket_tests`), and do not need the warning."""

EVEN_FROM: Final = 200
"""Effective number of devices below which a table warns if devices may have reported unevenly. With
100 devices, of which two sent 40 % of the reports, an absent category has a p-value up to 1 % in
1.7 % of collections, and up to .1 % in .6 %. From this number on it is 1.4 % and .15 % at most."""

FEW_PATTERNS: Final = 1e-3
"""Smallest possible p-value (`compute_least_p_value`) above which a table warns of too few cohorts.
The Bonferroni threshold of 50 candidates at 5 % is equal to this number, so with a larger smallest
p-value the table could detect nothing."""

FAR_ABOVE_ZERO: Final = 8.0
"""Number of standard errors above which an estimate is far above 0. A candidate with such an
estimate is detected, unless the bits are so few that absent strings often share them."""

SHIFT_FROM: Final = 0.4
"""Number of standard errors by which correlated items may shift an estimate without a warning. Such
a shift lowers the coverage of a 95 % interval to .93. With a larger number the coverage without a
warning can be lower."""

_LEAST_VARIANCE: Final = 1e-12
"""Variance that replaces a variance of 0, where p* = 0 and no device sends the bit."""


def describe_cohorts(target: Target) -> dict[str, Any]:
    """Describe the sizes of the cohorts, and the cohorts with odd numbers of ones.

    Returns
    -------
    "cohorts": a dictionary for each parameter set. "odd_popcounts": a dictionary for each cohort.
    """
    balance = []
    popcounts = []
    for number, counts in enumerate(target.counts):
        reports = counts.cohort_reports
        p_value = 1.0
        # With one cohort there is nothing to compare.
        if counts.params.m > 1:
            per_device = target.repetitions[number].reports_per_device
            p_value = _test_balance(reports / per_device)
        balance.append(
            {
                "smallest": int(reports.min()),
                "largest": int(reports.max()),
                "empty": int((reports == 0).sum()),
                "p_value": p_value,
            }
        )
        popcounts.extend(_find_odd_popcounts(target, number))
    return {"cohorts": balance, "odd_popcounts": popcounts}


def _test_balance(devices: Floats) -> float:
    """Compute the p-value of the hypothesis that devices drew their cohorts evenly.

    Parameters
    ----------
    devices : (m,) float64. Effective number of devices of each cohort.
    """
    n, degrees = float(devices.sum()), len(devices) - 1
    # One device is always in one cohort.
    if n <= 1:
        return 1.0
    mean = devices.mean()
    squares = float(((devices - mean) ** 2 / mean).sum())
    return _compute_gamma_tail(squares, mean=degrees, variance=2 * degrees * (n - 1) / n)


def _compute_gamma_tail(value: float, *, mean: float, variance: float) -> float:
    """Compute P(X >= value) of the gamma distribution with this mean and variance.

    The distribution has the scale variance / mean and the shape mean^2 / variance. If the variance
    exceeds mean^2, a value up to the mean gets the p-value 1.
    """
    # With very few reports the variance exceeds mean^2, and the gamma distribution has its mode at
    # 0. Its lower tail is no approximation of the statistic.
    if value <= mean and variance > mean**2:
        return 1.0
    scale = variance / mean
    return float(special.gammaincc(mean / scale, value / scale))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrueBits:
    """Mean number of true bits in the reports of each cohort, and limits for honest reports.

    Attributes
    ----------
    mean : (m,) float64, in bits per report. NaN in cohorts without reports.
    std_error : (m,) float64. Upper bound on the standard error of the mean.
    low, high : (m,) float64. Limits of the mean. With probability 1 - FALSE_ALARM at each end, the
        means of all cohorts of honest devices lie between them.
    """

    mean: Floats
    std_error: Floats
    low: Floats
    high: Floats


def estimate_true_bits(target: Target, number: int) -> TrueBits:
    """Estimate the mean number of true bits of each cohort from its number of ones.

    With o ones in n reports of k bits, the estimate is (o / n - k p*) / (q* - p*).

    Parameters
    ----------
    target : the rows of all collections.
    number : index of the collection.
    """
    counts = target.counts[number]
    params = counts.params
    # Numbers of true bits that a value may have, increasing: with h = 2, 1 and 2.
    possible = get_encoding(params).true_bit_counts
    gap = params.q_star - params.p_star
    n = np.where(counts.cohort_reports > 0, counts.cohort_reports, np.nan)
    # The variance of a popcount of k independent bits is at most k/4. In the worst case a device
    # repeats the same popcount in all its reports.
    devices = n / target.repetitions[number].reports_per_device
    error = np.sqrt(params.k / 4 / devices) / gap
    margin = -special.ndtri(FALSE_ALARM / params.m) * error
    return TrueBits(
        mean=(counts.bit_counts.sum(axis=1) / n - params.k * params.p_star) / gap,
        std_error=error,
        low=possible[0] - margin,
        high=possible[-1] + margin,
    )


def _find_odd_popcounts(target: Target, number: int) -> list[dict[str, Any]]:
    """Find the cohorts of one collection whose mean number of true bits is outside its limits.

    Honest devices exceed the limits with probability `FALSE_ALARM` at most.
    """
    bits = estimate_true_bits(target, number)
    odd = np.flatnonzero((bits.mean < bits.low) | (bits.mean > bits.high))
    return [
        {"collection": number, "cohort": cohort, "true_bits": mean, "std_error": error}
        for cohort, mean, error in zip(
            odd.tolist(), bits.mean[odd].tolist(), bits.std_error[odd].tolist(), strict=True
        )
    ]


def describe_fit(
    target: Target, fit: Fit, std_error: Floats, *, threshold: float
) -> dict[str, Any]:
    """Describe how well the candidates explain the bits, and what limits detection.

    Parameters
    ----------
    target : n rows.
    fit : the fit of the selected candidates.
    std_error : (c,) float64. Standard errors of the candidates, as shares.
    threshold : p-value at which one more candidate would be detected.
    """
    has_reports = target.reports > 0
    noise = float(np.mean(fit.coin_variance[has_reports]))
    devices = float(np.mean(target.compute_device_variance(fit.fitted)[has_reports]))
    finite_errors = std_error[np.isfinite(std_error)]
    # A candidate is detected if its z score exceeds the normal quantile of the threshold. Noise
    # lowers the z score by less than the `_POWER` quantile with probability `_POWER`. For example,
    # the threshold 1e-4 needs a true share of 3.72 + .84 = 4.56 standard errors.
    detectable_z = float(special.ndtri(_POWER) - special.ndtri(threshold))
    detectable_share = None
    if len(finite_errors):
        detectable_share = float(np.median(finite_errors)) * detectable_z
    return {
        "goodness_of_fit": {
            "chi2_per_degree": _sum_squares(target, fit) / fit.degrees_of_freedom,
            "p_value": compute_fit_p_value(target, fit),
            "all_candidates_p_value": None,
        },
        "collision_share": float(fit.tau2 / (fit.tau2 + noise)),
        # The number includes rows whose weight the taper reduces without setting them aside.
        "set_aside_rows": int((fit.taper_weight[has_reports] < 1).sum()),
        "unexplained_bits": _list_unexplained_bits(target, fit),
        "least_p_value": compute_least_p_value(target),
        "detectable_share": detectable_share,
        **_describe_halving(target, coins=noise - devices, devices=devices, tau2=fit.tau2),
    }


def compute_fit_p_value(target: Target, fit: Fit) -> float:
    """Compute the p-value of the goodness of a fit: of the sum of its squared residuals."""
    return _compute_gamma_tail(
        _sum_squares(target, fit),
        mean=fit.degrees_of_freedom,
        variance=_compute_squares_variance(target, fit),
    )


def _sum_squares(target: Target, fit: Fit) -> float:
    """Sum the squares of the residuals, each divided by the coin variance of its row.

    Collisions are not part of the denominator, so they make the sum larger than expected.
    """
    has_reports = target.reports > 0
    return float((fit.residual[has_reports] ** 2 / fit.coin_variance[has_reports]).sum())


def get_decisive_fit_p_value(goodness_of_fit: Mapping[str, Any]) -> float:
    """Return the p-value that decides whether candidates explain the counts.

    It is the larger of two p-values: of the fit of the selected candidates, and of the fit of all
    candidates, which is only computed if the first fit is bad. If the second fit is good, the list
    is complete, and many of its strings are too rare to be selected.

    Parameters
    ----------
    goodness_of_fit : the entry of this name in the diagnostics.
    """
    p_value: float = goodness_of_fit["p_value"]
    all_candidates_p_value: float | None = goodness_of_fit.get("all_candidates_p_value")
    return max(p_value, all_candidates_p_value or 0.0)


def count_undetected_intervals(estimate: Floats, std_error: Floats, detected: Booleans) -> int:
    """Count the candidates with an interval far above 0 that are not detected.

    The interval bounds the share if the candidate is present. The test asks if the candidate is
    present. If bits are few, both can differ. For example, with two bits and 16 cohorts, a present
    string of 60 % is estimated as 60 +- 1 %. But one of 40 absent strings shares so many bits with
    present strings that it would have the same estimate, so the test cannot detect the string.
    """
    has_error = np.isfinite(std_error) & (std_error > 0)
    z = np.where(has_error, estimate / np.where(has_error, std_error, 1.0), 0.0)
    return int((~detected & (z > FAR_ABOVE_ZERO)).sum())


def _compute_effective_reports(target: Target, fit: Fit, noise: Floats) -> tuple[Floats, Floats]:
    """Compute the probability of a 1 in each row, and the effective number of reports.

    The effective number is the number of independent reports that would have the variance of the
    row: mu (1 - mu) / (variance (q* - p*)^2).

    Parameters
    ----------
    target : n rows.
    fit : the fit, whose fitted proportions are used.
    noise : (n,) float64. Variance of each row.

    Returns
    -------
    mean, n_reports : (n,) float64 each.
    """
    gap = target.q_star - target.p_star
    # Case: p* = 0, and no device sends the bit, so that mu is 0. The lower bounds keep the ratio
    # positive and finite.
    mean = np.clip(target.compute_ones_probability(fit.fitted), 0.0, 1.0)
    variance = np.maximum(mean * (1 - mean), _LEAST_VARIANCE)
    smallest = _LEAST_VARIANCE / np.maximum(target.reports, 1)
    return mean, variance / np.maximum(noise * gap**2, smallest)


def _compute_squares_variance(target: Target, fit: Fit) -> float:
    """Compute the variance of the sum of squared standardised residuals (theory of operation).

    The variance is scaled from the number of rows to the degrees of freedom.
    """
    has_reports = target.reports > 0
    mean, n = _compute_effective_reports(target, fit, fit.coin_variance)
    bernoulli_variance = np.maximum(mean * (1 - mean), _LEAST_VARIANCE)
    n = np.where(has_reports, n, 1.0)
    kurtosis = np.where(has_reports, (1 - 6 * bernoulli_variance) / (n * bernoulli_variance), 0.0)
    skewness = np.where(has_reports, (1 - 2 * mean) / np.sqrt(n * bernoulli_variance), 0.0)
    skewness_of_columns = fit.basis.T @ (skewness / np.sqrt(fit.coin_variance))  # t
    explained = float(skewness_of_columns @ fit.inverse @ skewness_of_columns)
    n_rows = float(has_reports.sum())
    # K is negative near mu = 1/2. The variance is at least that of normal residuals, 2 for each
    # row, so a negative K never makes the test stricter.
    variance = 2 * n_rows + max(float(kurtosis.sum()) - explained, 0.0)
    return variance * fit.degrees_of_freedom / n_rows


def _list_unexplained_bits(target: Target, fit: Fit) -> list[dict[str, Any]]:
    """List the bits with the largest excess over candidates and noise, the largest first.

    A bit is listed if the binomial tail of its ones is at most `UNEXPLAINED_FALSE_ALARM` divided by
    the number of rows (Bonferroni).
    """
    mean, n = _compute_effective_reports(target, fit, fit.coin_variance + fit.tau2)
    gap = target.q_star - target.p_star
    # The taper has reduced the weight of every row with an excess beyond noise, so no other row
    # needs to be tested.
    rows = np.flatnonzero((target.reports > 0) & (fit.taper_weight < 1))
    # The observed share of ones, among the effective number of reports.
    ones = (target.p_star + gap * target.proportions)[rows] * n[rows]
    p_values = upper_tail(np.clip(ones, 0.0, n[rows]), n[rows], mean[rows])
    rows = rows[p_values <= UNEXPLAINED_FALSE_ALARM / (target.reports > 0).sum()]
    excess = np.zeros(len(target))
    excess[rows] = fit.residual[rows]
    bits = []
    largest = np.argsort(-excess, kind="stable")[:_LISTED_BITS]
    for row in largest[excess[largest] > 0]:
        collection = int(target.collection_index[row])
        # Row number within its collection: cohort * k + bit.
        row_in_collection = int(row - np.searchsorted(target.collection_index, collection))
        k = target.counts[collection].params.k
        bits.append(
            {
                "collection": collection,
                "cohort": row_in_collection // k,
                "bit": row_in_collection % k,
                "share": float(excess[row]),
                "std_error": float(np.sqrt(fit.coin_variance[row] + fit.tau2)),
            }
        )
    return bits


def _describe_halving(
    target: Target, *, coins: float, devices: float, tau2: float
) -> dict[str, Any]:
    """Compute the changes that would halve the smallest detectable share, each alone.

    The variance of a row is coins + devices + tau2. Half the share needs a quarter of the variance:

    - More devices reduce coins and devices.
    - More reports of the same devices reduce coins only.
    - With more cohorts a string has the same number of reports on more bits, which reduces tau2
      only.

    A change that cannot halve the share is None.

    *Example.* With coins 6, devices 1 and tau2 1, the variance must fall from 8 to 2. More reports
    leave tau2 = 1, so coins and devices must fall from 7 to 1: seven times as many reports are
    needed. More reports of the same devices leave 2, and cannot halve the share.

    Parameters
    ----------
    target : the rows.
    coins : mean variance of the instantaneous responses.
    devices : mean variance of the sampling and the permanent responses.
    tau2 : variance of collisions.
    """
    total = coins + devices + tau2
    per_device = max(repetition.reports_per_device for repetition in target.repetitions)
    cohorts = max(counts.params.m for counts in target.counts)

    def scale(current: float, reducible: float) -> int | None:
        """Compute the number in place of `current` that halves the share.

        `reducible` is the part of the variance that falls in proportion to 1 / number. It must fall
        to a quarter of the total, less the other parts.
        """
        remaining = total / 4 - (total - reducible)
        # If the other parts exceed a quarter of the variance, no change of this part halves the
        # share.
        return int(np.ceil(current * (reducible / remaining))) if remaining > 0 else None

    return {
        "half_detectable_with_reports": scale(target.n_reports, coins + devices),
        "half_detectable_with_reports_per_device": scale(per_device, coins),
        "half_detectable_with_cohorts": scale(cohorts, tau2),
    }


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning about the complete table: a code that never changes, and a sentence."""

    code: str
    sentence: str


def _list_cautions_of_few_reports(
    n_reports: int, bucket_reports: float, values: str, *, has_fit: bool, has_contrasts: bool
) -> Iterator[Caution]:
    """Yield a warning if there are few reports, or few for each bucket of sets.

    The arguments are as in `list_cautions`. `values` is the plural of its `value_noun`. `has_fit`
    is False for a closed form.
    """
    # The tests and intervals of the rows of a closed form are exact with few reports, but contrasts
    # of several rows are normal. Case: three reports that all name the first of two equally
    # frequent categories, as in one of eight such collections. The difference of the two categories
    # then has a p-value of 4e-8.
    if not has_fit:
        if has_contrasts and n_reports < RELIABLE_FROM:
            yield Caution(
                "few_reports",
                f"Sums, differences and quantiles are not reliable below {RELIABLE_FROM} reports, "
                f"got {n_reports}. Tests and intervals of single rows are reliable.",
            )
    elif math.isfinite(bucket_reports):
        if bucket_reports < FILLED_FROM:
            yield Caution(
                "few_reports",
                f"A bucket has {bucket_reports:.2g} reports on average. Below {FILLED_FROM:g}, "
                "standard errors and sums are not reliable. P-values and lower interval ends are.",
            )
    elif n_reports < RELIABLE_FROM:
        yield Caution(
            "few_reports",
            f"Intervals and detections of {values} are not reliable below "
            f"{RELIABLE_FROM} reports, got {n_reports}.",
        )


def _list_cautions_of_correlation(correlation: Mapping[str, float] | None) -> Iterator[Caution]:
    """Yield the warning about correlated items. `correlation` is None if values are not sets."""
    if (
        correlation is not None
        and correlation["p_value"] < FALSE_ALARM
        and correlation["shift_errors"] > SHIFT_FROM
    ):
        yield Caution(
            "correlated_items",
            "Some items occur together, or exclude each other, more often than by chance. "
            "Estimates assume independent items, and may be shifted by up to "
            f"{correlation['shift_errors']:.2g} standard errors. Intervals of frequent items may "
            "cover less than stated.",
        )


def list_cautions(  # noqa: PLR0913 - findings, and facts about the table that they lack
    diagnostics: Mapping[str, Any],
    n_reports: int,
    *,
    devices_known: bool = True,
    uneven_devices: float = math.inf,
    bucket_reports: float = math.inf,
    has_contrasts: bool = False,
    value_noun: str = "string",
) -> Iterator[Caution]:
    """Yield the warnings about the complete table.

    Parameters
    ----------
    diagnostics : the findings, as in `Estimates.diagnostics`. Missing keys cause no warning.
    n_reports : number of reports.
    devices_known : False if the number of reports per device is not known.
    uneven_devices : effective number of devices if the counts contain repeated reports of which
        only the sum of squares is known, otherwise infinite.
    bucket_reports : of sets, the expected number of reports of the bucket of an absent item.
        Infinite if the reports are of other values.
    has_contrasts : whether the result displays sums, differences or quantiles of its rows.
    value_noun : noun for a candidate, such as "string" or "item".
    """
    values = format_plural(value_noun)
    if not devices_known:
        yield Caution(
            "unknown_devices",
            "Nothing is known of how often a device reports: if devices reported several times, "
            "intervals may cover half as often as stated; give devices, reports per device or "
            "counts by day.",
        )
    if uneven_devices < EVEN_FROM:
        yield Caution(
            "few_devices",
            f"The reports count as {uneven_devices:,.0f} devices. If a few devices sent most "
            f"reports, p-values up to 1 % are twice too small below {EVEN_FROM} such devices, and "
            "smaller p-values more so. Use more devices.",
        )
    fit = diagnostics.get("goodness_of_fit")
    yield from _list_cautions_of_few_reports(
        n_reports, bucket_reports, values, has_fit=fit is not None, has_contrasts=has_contrasts
    )
    if fit is not None and get_decisive_fit_p_value(fit) < FIT_FALSE_ALARM:
        # Only sets have buckets. A cut set lowers the shares of its items.
        cut = ""
        if math.isfinite(bucket_reports):
            cut = "sets may have been cut to the largest number of items, "
        p_value = f"= {fit['p_value']:.1e}" if fit["p_value"] >= _LEAST_P else f"< {_LEAST_P:g}"
        yield Caution(
            "bad_fit",
            f"The variance of the bits is {fit['chi2_per_degree']:.3g} times that of honest "
            f"reports of the fitted {values} (p {p_value}). Devices may have {values} that are no "
            f"candidates, many candidates may be present but too rare to detect, {cut}"
            "devices may have reported more often than assumed, or reports may be forged. "
            "The counts cannot show which. A good fit would not exclude forgeries.",
        )
    yield from _list_cautions_of_correlation(diagnostics.get("correlation"))
    if (least := diagnostics.get("least_p_value", 0.0)) > FEW_PATTERNS:
        yield Caution(
            "few_patterns",
            f"With so few cohorts and bits, no p-value can be below {least:.2g}, however many "
            "reports there are. Use more cohorts.",
        )
    elif undetected := diagnostics.get("undetected_intervals", 0):
        yield Caution(
            "few_patterns",
            f"{format_count(undetected, 'candidate')} with an interval far above 0 "
            f"{'is' if undetected == 1 else 'are'} not detected: with so few cohorts and bits, "
            f"absent {values} often have the bits of present {values}. Use more cohorts.",
        )
    capacity = diagnostics.get("capacity")
    if capacity is not None and capacity["overfull"]:
        yield Caution(
            "overfull",
            f"{values.capitalize()} collide too often to be distinguished: a candidate has an "
            f"effective number of {capacity['rows_per_candidate']:,} of {capacity['rows']:,} bits. "
            f"Intervals may cover less than stated, and detected {values} may be absent. More "
            "cohorts would help.",
        )
    if odd := diagnostics.get("odd_popcounts"):
        odd_cohorts = "1 cohort has" if len(odd) == 1 else f"{len(odd):,} cohorts have"
        yield Caution(
            "odd_popcounts",
            f"{odd_cohorts} a number of ones that honest devices send with probability "
            f"{FALSE_ALARM:.0e} at most. Reports may be forged.",
        )
    complete = diagnostics.get("complete")
    if complete is not None and complete["p_value"] < INCOMPLETE_FALSE_ALARM:
        yield Caution(
            "incomplete",
            f"The shares add up to {100 * complete['sum']:.3g} % (standard error "
            f"{100 * complete['std_error']:.2g} %) by themselves, and were made to add up to "
            "100 %. The metric may not be complete: values fit nowhere, or reports are forged. One "
            "complete metric in 100 has this warning.",
        )
