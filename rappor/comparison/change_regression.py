"""Changes of the share of each string, by a regression on the rows of a contrast.

The input is a `ContrastRows`: for each bit, a weighted sum of the samples, such as the second minus
the first. The output is `Changes`: the change of each of c candidates, in shares.

The selection and the fit are those of `decode` (`rappor.estimator.selection`, `fit`), with two
differences:

- A share may fall as well as rise, but the selection is non-negative. So the selection has every
  candidate twice: once with a column of 1, and once with a column of -1. Afterwards both columns
  become one signed estimate (`_merge_signs`).
- A string that is no candidate may raise or lower a row, so the taper excludes outliers on both
  sides (`ContrastRows.compute_excess`).

The variance of a change has two parts (`rappor.comparison.shared_devices`):

- The variance if nothing changed. Devices in several samples cancel. This part is the variance of
  the fit. Devices that changed between any two values draw new permanent noise for a 0 in all rows.
  The rows include that noise. If rho, the correlation of the device noise of two samples, is
  unknown, the noise is part of `ContrastRows.device_share`, which is estimated from the rows. If
  rho is passed, the noise is part of tau^2, the common variance of the rows.
- The variance of devices that changed to or from this string, and the excess of the permanent noise
  of a 1 over that of a 0. This part is 0 if the string did not change. So it is not a part of the
  test, and the interval is solved with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import sparse, special

from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.contrast_rows import (
    ContrastRows,
    compute_rows_p_value,
    estimate_device_share,
)
from rappor.comparison.shared_devices import ChangeVariance
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.design_matrix import Design
from rappor.estimator.fit import LEAST_NOISE, Fit
from rappor.estimator.identifiability_groups import DistinctCandidates
from rappor.estimator.near_capacity import SATURATED, fit_all_by_least_squares
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.score_tests import compute_null_tail
from rappor.estimator.screening import Screening, ScreeningTask
from rappor.estimator.selection import Selection, select_candidates

Interval = Callable[[float], tuple[Floats, ...]]
"""Function from the probability that an interval misses the true change to the lower and the upper
ends of two-sided intervals, (c,) float64 each."""

_MIN_QUANTILE_PROBABILITY: Final = 1e-300
"""Smallest probability for which a normal quantile is computed. Smaller numbers would give
infinity. """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The change of each of c candidates, as a share of all reports.

    Attributes
    ----------
    estimate, std_error : (c,) float64. Infinite errors if the counts contain no information. The
        error is that of a true change as large as the estimate.
    p_value : (c,) float64, two-sided: probability that an unchanged candidate has this estimate or
        a more extreme one.
    interval : function from an error probability to the ends of two-sided intervals.
    how : the method: "rows" for strings, "answers" for categories, "separate" for the difference of
        separate decodes (`SampleContrast`).
    rows_p_value : p-value of the test that no row changed, which uses no candidates; None without
        rows.
    is_saturated : True if changed strings fill too many rows, so that some may be missed or
        blurred.
    """

    estimate: Floats
    std_error: Floats
    p_value: Floats
    interval: Interval
    how: str
    rows_p_value: float | None = None
    is_saturated: bool = False

    def scaled(self, factor: float) -> Changes:
        """Return the changes for all weights of the contrast times a factor above 0."""

        def interval(error: float) -> tuple[Floats, ...]:
            return tuple(factor * end for end in self.interval(error))

        return replace(
            self,
            estimate=factor * self.estimate,
            std_error=factor * self.std_error,
            interval=interval,
        )


class _SignedPool:
    """A pool of n candidates that may rise, followed by the same n candidates that may fall."""

    def __init__(self, design: Design) -> None:
        """Store the design with the candidates."""
        self._design = design
        self.n_candidates = 2 * design.n_candidates
        self.n_terms = design.n_terms

    def screen(self, task: ScreeningTask, always: Integers, progress: Progress) -> Screening:
        """Screen every candidate, with both signs."""
        unsigned = self._design.screen(task, always, progress)
        return Screening(
            index=np.arange(self.n_candidates),
            estimate=np.concatenate([unsigned.estimate, -unsigned.estimate]),
            std_error=np.concatenate([unsigned.std_error, unsigned.std_error]),
        )

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return columns of ones for rising candidates, of minus ones for falling candidates."""
        n_candidates = self._design.n_candidates
        columns = self._design.columns(chosen % n_candidates)
        columns.data *= np.repeat(
            np.where(chosen < n_candidates, 1.0, -1.0), np.diff(columns.indptr)
        )
        return columns


def estimate_string_changes(
    target: ContrastRows, candidates: Candidates, sampling: Floats, progress: Progress
) -> Changes:
    """Estimate the change of every candidate.

    Parameters
    ----------
    target : the rows with `device_share` 1, the largest errors. The test that nothing changed uses
        these errors.
    candidates : c candidates.
    sampling : (c,) float64. Variance that the rows of one string have in common and that the noise
        of the rows omits, with the largest device variance.
    progress : function that reports the progress.
    """
    # Tested before `device_share` is estimated: if many strings changed, the estimate would contain
    # their changes.
    rows_p_value = compute_rows_p_value(target)
    if target.device_correlation is None:
        target = estimate_device_share(target)
    strings = DistinctCandidates(candidates, target, progress)
    design, entry = strings.design, strings.entry
    selection = _merge_signs(
        select_candidates(target, _SignedPool(design), progress), design, target
    )
    full_selection = fit_all_by_least_squares(target, design, selection)
    is_saturated = full_selection is None and len(selection.selected) > SATURATED * len(target)
    selection = full_selection or selection
    p_value = _compute_p_values(target, selection)
    changed = _compute_changed_variance(target, selection)
    unchanged = np.sqrt(selection.std_error**2 + target.device_share * sampling[strings.first])
    compute_critical_values = _build_critical_values(target, selection.fit)

    def interval(error: float) -> tuple[Floats, Floats]:
        below_distance, above_distance = (
            critical_value * unchanged for critical_value in compute_critical_values(error)
        )
        low, high = changed.interval(selection.estimate, below_distance, above_distance, error)
        return low[entry], high[entry]

    return Changes(
        estimate=selection.estimate[entry],
        std_error=np.sqrt(unchanged**2 + changed.variance_at(selection.estimate))[entry],
        p_value=p_value[entry],
        interval=interval,
        how="rows",
        rows_p_value=rows_p_value,
        is_saturated=is_saturated,
    )


def _compute_changed_variance(target: ContrastRows, selection: Selection) -> ChangeVariance:
    """Compute the variance from devices that changed to or from each of e entries.

    Returns
    -------
    Coefficients, (e,) float64 each, of |delta| and of -delta^2.
    """
    # Correlation of the device noise: given, or the complement of the estimated share.
    shared = (
        1 - target.device_share if target.device_correlation is None else target.device_correlation
    )
    has_reports = (target.reports > 0) & (target.sampling > 0)
    if not has_reports.any() or not shared:
        zeros = np.zeros(len(selection.estimate))
        return ChangeVariance(zeros, zeros)
    # A device is in one cohort, whose k rows count it once.
    bits = np.array([counts.params.k for counts in target.counts])[target.collection_index]
    linear, square = (
        shared / np.sum(1 / (bits * np.maximum(variance, LEAST_NOISE))[has_reports])
        for variance in (target.sampling, target.sampling_square)
    )
    # The noise of rows becomes noise of an estimate, as all noise of the fit does.
    noise = selection.fit.coin_variance + selection.fit.tau2
    zero_variance, one_variance = (
        np.average(
            (target.sampling * response / noise)[has_reports], weights=1 / noise[has_reports]
        )
        for response in target.permanent
    )
    fit_variance = np.where(np.isfinite(selection.std_error), selection.std_error, 0.0) ** 2
    # If a string collides with other fitted strings, some of its rows have less weight. Then
    # fewer devices determine the estimate, and the variance grows.
    fit, inflation = selection.fit, np.ones(len(fit_variance))
    column_weight = fit.basis[:, len(target.counts) :].T @ fit.weight
    inflation[selection.selected] = np.maximum(
        fit_variance[selection.selected] * fit.kappa**2 * column_weight, 1.0
    )
    return ChangeVariance(
        inflation * linear + shared * max(one_variance - zero_variance, 0.0) * fit_variance,
        inflation * square,
    )


def _merge_signs(selection: Selection, design: Design, target: ContrastRows) -> Selection:
    """Return the same fit with columns of ones, and one signed estimate for each candidate.

    A selected column of -1 becomes a column of 1, and its coefficient changes its sign.
    """
    n_candidates = design.n_candidates
    rises, falls = selection.estimate[:n_candidates], selection.estimate[n_candidates:]
    with np.errstate(invalid="ignore"):
        z_rise, z_fall = (
            np.nan_to_num(estimate / error)
            for estimate, error in (
                (rises, selection.std_error[:n_candidates]),
                (falls, selection.std_error[n_candidates:]),
            )
        )
    # The fit contains at most one sign of a candidate. That sign has the larger score.
    is_fall = z_fall > z_rise
    order = np.argsort(selection.selected % n_candidates, kind="stable")
    chosen = selection.selected[order]
    sign = np.concatenate([np.ones(len(target.counts)), np.where(chosen < n_candidates, 1.0, -1.0)])
    indices = np.concatenate([np.arange(len(target.counts)), len(target.counts) + order])
    fit = selection.fit
    basis = abs(fit.basis.tocsc()[:, indices]).tocsr()
    inverse = fit.inverse[np.ix_(indices, indices)] * np.outer(sign, sign)
    return Selection(
        selected=chosen % n_candidates,
        fit=replace(
            fit,
            basis=basis,
            equations=NormalEquations(basis, fit.weight, inverse),
            coefficients=fit.coefficients[indices] * sign,
        ),
        estimate=np.where(is_fall, -falls, rises),
        std_error=np.where(
            is_fall, selection.std_error[n_candidates:], selection.std_error[:n_candidates]
        ),
    )


def _mirror(target: ContrastRows, fit: Fit) -> tuple[ContrastRows, Fit]:
    """Return the target and the fit with all changes negated."""
    mirrored_fit = replace(
        fit, residual=-fit.residual, fitted=-fit.fitted, coefficients=-fit.coefficients
    )
    return target.mirrored(), mirrored_fit


def _compute_p_values(target: ContrastRows, selection: Selection) -> Floats:
    """Compute two-sided p-values, (e,): twice the tail on the side of the estimate, at most 1."""
    is_finite = np.isfinite(selection.std_error)
    z = np.where(is_finite, selection.estimate / np.where(is_finite, selection.std_error, 1.0), 0.0)
    rises = compute_p_values(target, selection.fit, z, selection.selected)
    falls = compute_p_values(*_mirror(target, selection.fit), -z, selection.selected)
    return np.where(is_finite, np.minimum(2 * np.where(z > 0, rises, falls), 1.0), 1.0)


def _build_critical_values(
    target: ContrastRows, fit: Fit
) -> Callable[[float], tuple[float, float]]:
    """Build the function from an error probability to the critical values of both ends.

    A critical value is the distance between estimate and end, in standard errors: the normal
    quantile, or the quantile of the tail of the residuals if that tail is longer. The first
    critical value belongs to the lower end.
    """
    upper_tail, lower_tail = (
        compute_null_tail(target, fit),
        compute_null_tail(*_mirror(target, fit)),
    )

    def compute_critical_values(error: float) -> tuple[float, float]:
        half = max(error / 2, _MIN_QUANTILE_PROBABILITY)
        normal = float(-special.ndtri(half))
        return max(normal, upper_tail.quantile(half)), max(normal, lower_tail.quantile(half))

    return compute_critical_values
