"""Diagnostics: what the counts say about the collection itself.

Theory of operation
-------------------
Each of them is silent about honest, complete collections but for a rate that is named, from a few
reports on. Three things are not normal where reports are few, and are not taken to be:

- the square of a row's standardised residual has variance 2 + kappa, kappa being the excess
  kurtosis of its ones, (1 - 6 u) / (n u) for u = mu (1 - mu) and n reports. Its covariance with the
  residual is the skewness g = (1 - 2 mu) / sqrt(n u); the fit sets to zero what a combination of
  columns explains, so the sum over all rows has the variance sum of (2 + kappa) - t' (X' W X)^-1 t,
  t = X' (g / sd). It is compared with the gamma distribution of this mean and variance, which is
  the chi-squared one where ones are many;
- the same of the cohorts' sizes: a chi-squared statistic of N reports in m equal cells has variance
  2 (m - 1) (N - 1) / N;
- a bit with too many ones is judged by its binomial tail.

If devices report again (R reports each), the effective number of n reports is n over the
variance's factor (`rappor.estimator.proportion_tests`), and cohorts' sizes vary R times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats
from rappor.estimator.debias import Target
from rappor.estimator.fit import Fit
from rappor.estimator.p_values import least_p_value
from rappor.estimator.tail_probabilities import upper_tail
from rappor.protocol.encodings import encoding_of

FALSE_ALARM: Final = 1e-9
"""Probability that the popcounts of an honest collection are called odd, at either end."""

FIT_FALSE_ALARM: Final = 1e-6
"""P-value of the goodness of fit below which a table warns. An honest table warns once in a million
times, if the fitted strings are all that the devices hold and every report comes from another
device."""

INCOMPLETE_FALSE_ALARM: Final = 0.01
"""P-value of a sum of shares below which a complete metric warns. One honest table in 100
warns. Of 10 categories with 10,000 reports, 1e-6 warned of 8 % that fit nowhere in no collection;
this warns in six of ten."""

IMBALANCE: Final = 1e-6
"""P-value of the cohorts' sizes at which an analyst is told of it."""

_POWER: Final = 0.8
"""Probability with which `detectable_share` is detected: the usual power of a study, and the
planner's default."""

_LISTED_BITS: Final = 10
"""Unexplained bits that are listed: enough to look at, few enough to print."""

UNEXPLAINED_FALSE_ALARM: Final = 1e-3
"""Probability that any bit of an honest collection is listed whose candidates are complete."""

_LEAST_P: Final = 1e-99
"""A smaller p-value says nothing more."""

RELIABLE_FROM: Final = 100
"""Reports below which detections of strings that nobody has were seen in up to 18 % of collections
at an error rate of 5 %; from here on in at most 3 %."""

FEW_PATTERNS: Final = 1e-3
"""Least p-value above which a table warns that its cohorts are too few to tell more."""

_LEAST_VARIANCE: Final = 1e-12
"""Variance of a bit that stands for none, where p* = 0 and nobody sends it."""


def describe_cohorts(target: Target) -> dict[str, Any]:
    """Return how evenly reports fall into cohorts, and cohorts with odd numbers of ones."""
    balance = []
    popcounts = []
    for number, counts in enumerate(target.counts):
        reports = counts.cohort_reports
        p_value = 1.0
        if counts.params.m > 1:
            each = target.repetitions[number].reports_per_device
            p_value = _imbalance(reports / each)
        balance.append(
            {
                "smallest": int(reports.min()),
                "largest": int(reports.max()),
                "empty": int((reports == 0).sum()),
                "p_value": p_value,
            }
        )
        popcounts.extend(_odd_popcounts(target, number))
    return {"cohorts": balance, "odd_popcounts": popcounts}


def _imbalance(devices: Floats) -> float:
    """Return the p-value of an even spread of devices over cohorts, (m,)."""
    n, degrees = float(devices.sum()), len(devices) - 1
    if n <= 1:
        return 1.0
    mean = devices.mean()
    squares = float(((devices - mean) ** 2 / mean).sum())
    return _gamma_tail(squares, mean=degrees, variance=2 * degrees * (n - 1) / n)


def _gamma_tail(value: float, *, mean: float, variance: float) -> float:
    """Return P(X >= value) of the gamma distribution with this mean and variance.

    A value up to the mean is nothing strange, however little the moments say of the lower tail.
    """
    if value <= mean and variance > mean**2:
        return 1.0
    scale = variance / mean
    return float(special.gammaincc(mean / scale, value / scale))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrueBits:
    """The mean number of true bits in the reports of each cohort, and what honest ones can have.

    Attributes
    ----------
    mean : (m,) float64. NaN in cohorts without reports.
    std_error : (m,) float64. The most that its standard error can be.
    low, high : (m,) float64. Honest means lie between them with probability 1 - FALSE_ALARM, in all
        cohorts together at either end.
    """

    mean: Floats
    std_error: Floats
    low: Floats
    high: Floats


def true_bits(target: Target, number: int) -> TrueBits:
    """Estimate the true bits of each cohort of a collection from its number of ones."""
    counts = target.counts[number]
    params = counts.params
    possible = encoding_of(params).true_bits
    gap = params.q_star - params.p_star
    n = np.where(counts.cohort_reports > 0, counts.cohort_reports, np.nan)
    # Independent bits: the variance of a popcount is at most k/4, and all of it may repeat.
    devices = n / target.repetitions[number].reports_per_device
    error = np.sqrt(params.k / 4 / devices) / gap
    margin = -special.ndtri(FALSE_ALARM / params.m) * error
    return TrueBits(
        mean=(counts.bit_counts.sum(axis=1) / n - params.k * params.p_star) / gap,
        std_error=error,
        low=possible[0] - margin,
        high=possible[-1] + margin,
    )


def _odd_popcounts(target: Target, number: int) -> list[dict[str, Any]]:
    """Find cohorts whose mean number of ones no mixture of honest devices has."""
    bits = true_bits(target, number)
    odd = np.flatnonzero((bits.mean < bits.low) | (bits.mean > bits.high))
    return [
        {"collection": number, "cohort": cohort, "true_bits": mean, "std_error": most}
        for cohort, mean, most in zip(
            odd.tolist(), bits.mean[odd].tolist(), bits.std_error[odd].tolist(), strict=True
        )
    ]


def describe_fit(
    target: Target, fit: Fit, std_error: Floats, *, threshold: float
) -> dict[str, Any]:
    """Return how well the candidates explain the bits, and what limits detection.

    Parameters
    ----------
    std_error : (c,) float64. Standard errors of the candidates, as shares.
    threshold : the p-value at which one candidate more would be detected.
    """
    live = target.reports > 0
    squares = float((fit.residual[live] ** 2 / fit.noise[live]).sum())
    noise = float(np.mean(fit.noise[live]))
    devices = float(np.mean(target.devices_noise(fit.fitted)[live]))
    known = std_error[np.isfinite(std_error)]
    reach = float(special.ndtri(_POWER) - special.ndtri(threshold))
    return {
        "goodness_of_fit": {
            "chi2_per_degree": squares / fit.degrees_of_freedom,
            "p_value": _gamma_tail(
                squares, mean=fit.degrees_of_freedom, variance=_squares_variance(target, fit)
            ),
        },
        "collision_share": float(fit.tau2 / (fit.tau2 + noise)),
        "set_aside_rows": int((fit.robust[live] < 1).sum()),
        "unexplained_bits": _unexplained(target, fit),
        "least_p_value": least_p_value(target),
        "detectable_share": float(np.median(known)) * reach if len(known) else None,
        **_for_half(target, coins=noise - devices, devices=devices, tau2=fit.tau2),
    }


def _effective_reports(target: Target, fit: Fit, noise: Floats) -> tuple[Floats, Floats]:
    """Return the mean of each row's ones, (n,), and the reports that give them this noise, (n,)."""
    gap = target.q_star - target.p_star
    mean = np.clip(target.p_star + gap * np.clip(fit.fitted, 0.0, 1.0), 0.0, 1.0)
    one = np.maximum(mean * (1 - mean), _LEAST_VARIANCE)
    least = _LEAST_VARIANCE / np.maximum(target.reports, 1)
    return mean, one / np.maximum(noise * gap**2, least)


def _squares_variance(target: Target, fit: Fit) -> float:
    """Return the variance of the sum of squared standardised residuals."""
    live = target.reports > 0
    mean, n = _effective_reports(target, fit, fit.noise)
    one = np.maximum(mean * (1 - mean), _LEAST_VARIANCE)
    n = np.where(live, n, 1.0)
    kurtosis = np.where(live, (1 - 6 * one) / (n * one), 0.0)
    skewness = np.where(live, (1 - 2 * mean) / np.sqrt(n * one), 0.0)
    slopes = fit.basis.T @ (skewness / np.sqrt(fit.noise))
    explained = float(slopes @ fit.inverse @ slopes)
    rows = float(live.sum())
    variance = 2 * rows + max(float(kurtosis.sum()) - explained, 0.0)
    return variance * fit.degrees_of_freedom / rows


def _unexplained(target: Target, fit: Fit) -> list[dict[str, Any]]:
    """List the bits with the largest excess that no candidate explains, nor the noise."""
    mean, n = _effective_reports(target, fit, fit.noise + fit.tau2)
    gap = target.q_star - target.p_star
    rows = np.flatnonzero((target.reports > 0) & (fit.robust < 1))
    ones = (target.p_star + gap * target.proportions)[rows] * n[rows]
    p_values = upper_tail(np.clip(ones, 0.0, n[rows]), n[rows], mean[rows])
    rows = rows[p_values <= UNEXPLAINED_FALSE_ALARM / (target.reports > 0).sum()]
    excess = np.zeros(len(target))
    excess[rows] = fit.residual[rows]
    found = []
    largest = np.argsort(-excess, kind="stable")[:_LISTED_BITS]
    for row in largest[excess[largest] > 0]:
        group = int(target.group[row])
        inside = int(row - np.searchsorted(target.group, group))
        k = target.counts[group].params.k
        found.append(
            {
                "collection": group,
                "cohort": inside // k,
                "bit": inside % k,
                "share": float(excess[row]),
                "std_error": float(np.sqrt(fit.noise[row] + fit.tau2)),
            }
        )
    return found


def _for_half(target: Target, *, coins: float, devices: float, tau2: float) -> dict[str, Any]:
    """Return what would halve the smallest detectable share, each alone; None where it cannot.

    Half the share takes a quarter of the variance of a row: coins + devices + tau2. More devices
    lower coins and devices, more reports of the same devices lower coins only. More cohorts leave a
    string as many reports on more bits: they lower tau2 only, relative to the rest.
    """
    total = coins + devices + tau2
    each = max(repetition.reports_per_device for repetition in target.repetitions)
    cohorts = max(counts.params.m for counts in target.counts)

    def more(now: float, lowered: float) -> int | None:
        left = total / 4 - (total - lowered)
        return int(np.ceil(now * (lowered / left))) if left > 0 else None

    return {
        "half_detectable_with_reports": more(target.n_reports, coins + devices),
        "half_detectable_with_reports_per_device": more(each, coins),
        "half_detectable_with_cohorts": more(cohorts, tau2),
    }


@dataclass(frozen=True, slots=True)
class Caution:
    """A finding that questions the whole table: a code, which never changes, and a sentence."""

    code: str
    sentence: str


def cautions(
    diagnostics: Mapping[str, Any], n_reports: int, *, devices_known: bool = True
) -> Iterator[Caution]:
    """Yield what questions the whole table."""
    if not devices_known:
        yield Caution(
            "unknown_devices",
            "Nothing is known of how often a device reports: if devices reported several times, "
            "intervals may cover half as often as stated; give devices, reports per device or "
            "counts by day.",
        )
    fit = diagnostics.get("goodness_of_fit")
    if fit is not None and n_reports < RELIABLE_FROM:
        yield Caution(
            "few_reports",
            "Intervals and detections of strings are not reliable below "
            f"{RELIABLE_FROM} reports, got {n_reports}.",
        )
    if fit is not None and fit["p_value"] < FIT_FALSE_ALARM:
        p_value = f"= {fit['p_value']:.1e}" if fit["p_value"] >= _LEAST_P else f"< {_LEAST_P:g}"
        yield Caution(
            "bad_fit",
            f"The variance of the bits is {fit['chi2_per_degree']:.3g} times that of honest "
            f"reports of the fitted strings (p {p_value}). Devices may have strings that are no "
            "candidates, many candidates may be present but too rare to detect, devices may have "
            "reported more often than assumed, or reports may be forged. "
            "The counts cannot show which. A good fit would not exclude forgeries.",
        )
    if (least := diagnostics.get("least_p_value", 0.0)) > FEW_PATTERNS:
        yield Caution(
            "few_patterns",
            f"With so few cohorts and bits, no p-value can be below {least:.2g}, however many "
            "reports there are. Use more cohorts.",
        )
    capacity = diagnostics.get("capacity")
    if capacity is not None and capacity["overfull"]:
        yield Caution(
            "overfull",
            "Strings collide too often to be distinguished: a candidate has an effective number "
            f"of {capacity['rows_per_candidate']:,} of {capacity['rows']:,} bits. Intervals may "
            "cover less than stated, and detected strings may be absent. More cohorts would help.",
        )
    if odd := diagnostics.get("odd_popcounts"):
        who = "1 cohort has" if len(odd) == 1 else f"{len(odd):,} cohorts have"
        yield Caution(
            "odd_popcounts",
            f"{who} a number of ones that honest devices send with probability "
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
