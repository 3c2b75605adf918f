"""Changes of the share of each string, by a regression on the rows of a contrast.

A comparison has several samples, such as two weeks. A *contrast* is a weighted sum of the samples
whose weights sum to 0, such as the second week minus the first. `Samples.estimate_changes` calls
`estimate_string_changes`. The input is a `ContrastRows`: the contrast of the proportions of each
bit of each cohort (a row). The output is `Changes`: the change of the share of each of c
candidates.

*Example.* 3 % of the devices have the string `a` in the first week, and 5 % in the second week.
Each row that `a` sets rises by .02, and the estimated change of `a` is .02. A string `b` with 40 %
in both weeks changes no row, so the contrast does not contain `b` and its collisions.

The steps are:

1. Test whether any row changed at all. This test needs no candidates.
2. Estimate `device_share` from the rows, if rho is unknown (both are explained below).
3. Select and fit the changed strings.
4. Fit all candidates in place of the selection, if very many strings changed
   (`rappor.estimator.near_capacity`).
5. Fit changes of sets again, because a device owns a bucket of two items once
   (`rappor.estimator.set_refit`).
6. Compute p-values, standard errors and intervals.

The selection and the fit are those of `decode` (`rappor.estimator.selection`, `fit`), with two
differences:

- A share may fall as well as rise, but the selection only finds coefficients above 0. So the
  design matrix of the selection has two columns for each candidate: the rows that it sets contain 1
  in the first column, and -1 in the second. Afterwards both columns become one signed estimate
  (`_merge_signs`).
- A changed string that is no candidate may raise or lower a row. The fit gives outliers a smaller
  weight (the taper), here above and below the fitted value (`ContrastRows.compute_excess`).

The *device noise* of a sample comes from the devices that happen to be in the sample, and from the
permanent response, which a device draws once for a value. rho is the correlation of the device
noise of two samples: 1 if they have the same devices, 0 if they have none in common. The caller
passes rho or, if it is unknown, None. *device_share* is the variance of the device noise of the
contrast, divided by its largest possible value over all rho. The largest value belongs to samples
of different devices.

The variance of a change has two parts (`rappor.comparison.shared_devices`):

- *The variance if the share of this string did not change* (`null_error` squared). It is the
  variance of the fit, plus the part of the sampling variance that the fit omits (`sampling`). A
  device with one value in two samples has the same noise in both, which cancels in their
  difference. A device whose value changed draws a new permanent response, which adds noise to all
  rows. If rho is unknown, `device_share` includes this noise, because `device_share` is estimated
  from the rows. If the caller passed rho, tau^2 includes this noise: the variance that the fit adds
  to the variance of every row.
- *The variance that a change of this string adds* (`ChangeVariance`). Devices changed to or from
  the string, and the permanent response to a 1 may have a larger variance than the response to a 0.
  This part is 0 if the string did not change, so the test of no change omits it. It depends on the
  size of the change, so each end of an interval is the solution of an equation
  (`ChangeVariance.interval`).

An *entry* is a candidate, or a group of candidates with the same bits, which have one estimate
(`rappor.estimator.identifiability_groups`). Arrays of the fit have e entries, and arrays of the
result c candidates.
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
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.design_matrix import Design
from rappor.estimator.fit import LEAST_NOISE, Fit
from rappor.estimator.identifiability_groups import DistinctCandidates
from rappor.estimator.near_capacity import SATURATED_SHARE, fit_all_by_least_squares
from rappor.estimator.normal_equations import NormalEquations
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.score_tests import compute_null_tail
from rappor.estimator.screening import Screening, ScreeningTask
from rappor.estimator.selection import Selection, select_candidates
from rappor.estimator.set_refit import has_sets, refit_set_changes

Interval = Callable[[float], tuple[Floats, ...]]
"""An `Interval` maps the probability that an interval misses the true change to the lower and the
upper ends of c two-sided intervals, (c,) float64 each."""

_MIN_QUANTILE_PROBABILITY: Final = 1e-300
"""Smallest probability for which a normal quantile is computed. Smaller numbers would give
infinity."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The change of each of c candidates, as a share of all reports.

    Attributes
    ----------
    estimate, std_error : (c,) float64. The error depends on the true change, and is computed as if
        the true change were the estimate. It is infinite if the counts contain no information.
    p_value : (c,) float64, two-sided: probability that an unchanged candidate has this estimate or
        a more extreme one.
    interval : function from an error probability to the ends of two-sided intervals.
    how : the method, a value of the JSON output: "rows" for strings (this module), "answers" for
        categories, "separate" for the difference of separate decodes.
    rows_p_value : p-value of the test that no row changed, which uses no candidates. None unless
        `how` is "rows".
    is_saturated : True if the changed strings are too many for the number of rows. Some changes may
        then be missed, and the errors of other changes may be too small.
    """

    estimate: Floats
    std_error: Floats
    p_value: Floats
    interval: Interval
    how: str
    rows_p_value: float | None = None
    is_saturated: bool = False

    def scaled(self, factor: float) -> Changes:
        """Return the changes of the contrast whose weights are multiplied by a factor above 0."""

        def interval(error: float) -> tuple[Floats, ...]:
            return tuple(factor * end for end in self.interval(error))

        return replace(
            self,
            estimate=factor * self.estimate,
            std_error=factor * self.std_error,
            interval=interval,
        )


class _SignedPool:
    """A pool of e candidates that may rise, followed by the same e candidates that may fall.

    Candidate number i of the design has the numbers i (rising) and e + i (falling) in the pool. The
    methods are those of `CandidatePool`.
    """

    def __init__(self, design: Design) -> None:
        """Store the design with the e candidates."""
        self._design = design
        self.n_candidates = 2 * design.n_candidates
        self.n_terms = design.n_terms

    def screen(self, task: ScreeningTask, always: Integers, progress: Progress) -> Screening:
        """Compute a one-step estimate of every candidate, with both signs.

        `always` are the numbers of candidates that the screening may not drop. All candidates are
        in memory here, so it drops none.
        """
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
    target: ContrastRows,
    candidates: Candidates,
    sampling: Floats,
    shares: Floats | None,
    progress: Progress,
) -> Changes:
    """Estimate the change of every candidate.

    Parameters
    ----------
    target : the rows, with `device_share` 1.
    candidates : c candidates.
    sampling : (c,) float64, in squared shares. The part of the sampling variance of each string
        that the fit omits. The fit treats the h rows of a string in a cohort as independent, but
        the devices of the string are the same in all h rows. If rho is unknown, it must be the
        largest possible variance of all rho.
    shares : (c,) float64. Mean share of each candidate over the samples, 0 if no sample detects it.
        Only sets use it (`refit_set_changes`). None omits the refit of sets.
    progress : function that reports the progress.
    """
    # The test of all rows uses `device_share` = 1, the largest possible device variance. If many
    # strings changed, an estimated `device_share` would contain their changes and hide them.
    rows_p_value = compute_rows_p_value(target)
    if target.device_correlation is None:
        target = estimate_device_share(target)
    strings = DistinctCandidates(candidates, target, progress)
    # `design` has one column for each of e entries, and `entry` the entry of each candidate.
    design, entry = strings.design, strings.entry
    selection = _merge_signs(
        select_candidates(target, _SignedPool(design), progress), design, target
    )
    full_selection = fit_all_by_least_squares(target, design, selection)
    most_selected = SATURATED_SHARE * len(target)
    is_saturated = full_selection is None and len(selection.selected) > most_selected
    # `full_selection` is None unless very many strings changed.
    selection = full_selection or selection
    # A device with two items of a bucket owns the bucket once, so changes of sets do not add.
    if shares is not None and has_sets(target):
        target, selection = refit_set_changes(target, design, selection, shares[strings.first])
    p_value = _compute_p_values(target, selection)
    change_variance = _compute_change_variance(target, selection)
    # The error of the estimate of a string whose share did not change. `sampling` is computed with
    # the largest possible device variance, of which `device_share` is the estimated part. It is 1
    # if the caller passed rho. `strings.first` are the candidates that represent the entries.
    null_error = np.sqrt(selection.std_error**2 + target.device_share * sampling[strings.first])
    compute_critical_values = _build_critical_values(target, selection.fit)

    def interval(error: float) -> tuple[Floats, Floats]:
        below_distance, above_distance = (
            critical_value * null_error for critical_value in compute_critical_values(error)
        )
        low, high = change_variance.interval(
            selection.estimate, below_distance, above_distance, error
        )
        return low[entry], high[entry]

    return Changes(
        estimate=selection.estimate[entry],
        std_error=np.sqrt(null_error**2 + change_variance.variance_at(selection.estimate))[entry],
        p_value=p_value[entry],
        interval=interval,
        how="rows",
        rows_p_value=rows_p_value,
        is_saturated=is_saturated,
    )


def _compute_change_variance(target: ContrastRows, selection: Selection) -> ChangeVariance:
    """Compute the variance that a change adds to the estimate of each of e entries.

    A change delta adds |delta| `linear` - delta^2 `square`, from two effects of the devices that
    changed to or from the string (`rappor.comparison.shared_devices`):

    - Sampling: these devices are a random sample. This effect has the coefficients
      rho / `_compute_sampling_information`, times a factor above 1 for strings with collisions.
    - Permanent response: a device that changes to the string draws the response to a 1 in place of
      the response to a 0. This is the term |delta| (v_1 - v_0) / (g^2 D) and adds to `linear` only.
      It is computed relative to the variance of the fit (`_compute_permanent_ratios`).

    Returns
    -------
    `linear` and `square`, (e,) float64 each, in squared shares.
    """
    # Without changes, the device noise cancels in proportion to rho. The noise of changed devices
    # does not cancel, so both effects are proportional to rho, too. If rho is unknown,
    # 1 - `device_share` takes the place of rho: `device_share` is 1 if the samples have no devices
    # in common, and 0 if all device noise cancels.
    rho = (
        1 - target.device_share if target.device_correlation is None else target.device_correlation
    )
    has_reports = (target.reports > 0) & (target.sampling > 0)
    # If rho is 0, the samples have no common devices, and the variance of the fit is complete.
    if not has_reports.any() or not rho:
        zeros = np.zeros(len(selection.estimate))
        return ChangeVariance(zeros, zeros)
    linear_information, square_information = _compute_sampling_information(target, has_reports)
    zero_ratio, one_ratio = _compute_permanent_ratios(target, selection.fit, has_reports)
    fit_variance = np.where(np.isfinite(selection.std_error), selection.std_error, 0.0) ** 2
    # If a string collides with other fitted strings, the fit uses fewer of its rows. Then fewer
    # devices determine the estimate, and the variance grows. The variance inflation factor is the
    # variance of the coefficient times the information of its column alone, which is the sum of
    # the weights of its rows. It is 1 without collisions.
    fit, inflation = selection.fit, np.ones(len(fit_variance))
    column_information = fit.basis[:, len(target.counts) :].T @ fit.weight
    inflation[selection.selected] = np.maximum(
        fit_variance[selection.selected] * fit.kappa**2 * column_information, 1.0
    )
    return ChangeVariance(
        inflation * (rho / linear_information)
        + rho * max(one_ratio - zero_ratio, 0.0) * fit_variance,
        inflation * (rho / square_information),
    )


def _compute_sampling_information(
    target: ContrastRows, has_reports: Booleans
) -> tuple[float, float]:
    """Compute 1 / variance of a change from the sampling of the devices that changed, at rho = 1.

    `ContrastRows.sampling` and `sampling_square` are the two coefficients of each row. All h rows
    of a string in a cohort show the same devices, so a cohort counts as one row. Its information is
    the mean of 1 / coefficient over its k rows. The sum over all cohorts is the information about
    the change of a string without collisions.

    Returns
    -------
    The information that belongs to `linear`, and the information that belongs to `square`.
    """
    n_bits = np.array([counts.params.k for counts in target.counts])[target.collection_index]
    linear_information, square_information = (
        np.sum(1 / (n_bits * np.maximum(coefficient, LEAST_NOISE))[has_reports])
        for coefficient in (target.sampling, target.sampling_square)
    )
    return linear_information, square_information


def _compute_permanent_ratios(
    target: ContrastRows, fit: Fit, has_reports: Booleans
) -> tuple[float, float]:
    """Compute the variance of the permanent response relative to the noise of a row.

    If all devices of a row draw a new permanent response, the row gains the variance `sampling`
    times `permanent`. The ratio of this variance to the noise v + tau^2 that the fit assumes is
    averaged over all rows, with the weights 1 / (v + tau^2). The variance of an estimate grows by
    the same ratio as the noise of its rows.

    Returns
    -------
    The ratio for the response to a 0, and the ratio for the response to a 1.
    """
    noise = fit.coin_variance + fit.tau2
    zero_ratio, one_ratio = (
        float(
            np.average(
                (target.sampling * response_variance / noise)[has_reports],
                weights=1 / noise[has_reports],
            )
        )
        for response_variance in target.permanent
    )
    return zero_ratio, one_ratio


def _merge_signs(selection: Selection, design: Design, target: ContrastRows) -> Selection:
    """Return the same fit with columns of ones, and one signed estimate for each candidate.

    A selected column of -1 becomes a column of 1, and its coefficient changes its sign.

    Parameters
    ----------
    selection : the selection from a `_SignedPool`, with 2 e estimates: e of rising, then e of
        falling candidates.
    design : the design with e columns of ones.
    target : the rows.
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
    # The fit contains at most one sign of a candidate, and this sign has the larger score. If it
    # contains neither sign, the two estimates are opposite numbers, and both choices give the same
    # signed estimate.
    is_fall = z_fall > z_rise
    # The columns of `basis` are the backgrounds, then the selected columns. Sort the selected
    # columns by candidate, and store the sign of each column.
    order = np.argsort(selection.selected % n_candidates, kind="stable")
    chosen = selection.selected[order]
    sign = np.concatenate([np.ones(len(target.counts)), np.where(chosen < n_candidates, 1.0, -1.0)])
    indices = np.concatenate([np.arange(len(target.counts)), len(target.counts) + order])
    fit = selection.fit
    # All entries of `basis` are 1 or -1, so the absolute value reverses the falling columns. Their
    # coefficients, and the covariances with other coefficients, then change the sign.
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
    """Return the target and the fit with all changes negated.

    The functions for one-sided tests then test whether shares fell.
    """
    mirrored_fit = replace(
        fit, residual=-fit.residual, fitted=-fit.fitted, coefficients=-fit.coefficients
    )
    return target.mirror(), mirrored_fit


def _compute_p_values(target: ContrastRows, selection: Selection) -> Floats:
    """Compute two-sided p-values, (e,): twice the tail on the side of the estimate, at most 1."""
    is_finite = np.isfinite(selection.std_error)
    z = np.where(is_finite, selection.estimate / np.where(is_finite, selection.std_error, 1.0), 0.0)
    rises = compute_p_values(target, selection.fit, z, selection.selected)
    falls = compute_p_values(*_mirror(target, selection.fit), -z, selection.selected)
    # The tails are those of a candidate that draws its rows at random. The rows of a frequent
    # string that did not change have more noise than random rows. Their noise is part of z, so the
    # normal tail of z is a second lower bound.
    one_sided = np.maximum(np.where(z > 0, rises, falls), special.ndtr(-np.abs(z)))
    return np.where(is_finite, np.minimum(2 * one_sided, 1.0), 1.0)


def _build_critical_values(
    target: ContrastRows, fit: Fit
) -> Callable[[float], tuple[float, float]]:
    """Build the function from an error probability to the critical values of both ends.

    A critical value is the distance between estimate and end, in standard errors: the normal
    quantile, or the quantile of the distribution of the residuals if its tail is longer. The first
    critical value belongs to the lower end of an interval and comes from the upper tail. An
    interval misses a true change below its lower end if the estimate is far too high.
    """
    upper_tail, lower_tail = (
        compute_null_tail(target, fit),
        compute_null_tail(*_mirror(target, fit)),
    )

    def compute_critical_values(error: float) -> tuple[float, float]:
        half = max(error / 2, _MIN_QUANTILE_PROBABILITY)
        normal = float(-special.ndtri(half))
        return (
            max(normal, float(upper_tail.quantile(half))),
            max(normal, float(lower_tail.quantile(half))),
        )

    return compute_critical_values
