"""How much the share of each string changed, from the rows of a contrast.

The selection and the fit are those of a decode (`rappor.estimator.selection`, `fit`). Two things
differ. A string may fall as well as rise: each candidate stands twice among those to select from,
once with its bits as minus ones. And a row may be lifted or lowered by a string that is no
candidate, so the taper sets aside both.

The variance of a change has two parts (`rappor.comparison.shared_devices`):

- the variance if nothing changed, in which devices in several samples cancel: that of the fit.
  Devices that changed between any values draw new permanent noise of a 0 in all rows. The rows show
  it: it is in the devices' part if the overlap is estimated, and in tau^2 if the overlap is given;
- the devices that changed to or from this string, and what the permanent noise of a 1 is more than
  that of a 0. This part is 0 if the string did not change, so it is no part of the test, and the
  interval is solved for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import sparse, special

from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.contrast_rows import ContrastRows, rows_p_value, with_estimated_part
from rappor.comparison.shared_devices import ChangeVariance
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.design_matrix import Design
from rappor.estimator.fit import LEAST_NOISE, Equations, Fit
from rappor.estimator.identifiability_groups import Strings
from rappor.estimator.near_capacity import FILLED, fit_all_by_least_squares
from rappor.estimator.presence_tests import compute_p_values
from rappor.estimator.score_tests import null_tail
from rappor.estimator.screening import Screening, Task
from rappor.estimator.selection import Selection, select

Interval = Callable[[float], tuple[Floats, ...]]
"""Returns the ends, (c,) each, of two-sided intervals that miss with a probability."""

_DEEPEST: Final = 1e-300
"""Probability below which the normal quantile is not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The change of each of c candidates, as a share of all reports.

    Attributes
    ----------
    estimate, std_error : (c,) float64; infinite errors where the counts say nothing. The error is
        that of a change as large as the estimate.
    p_value : (c,) float64. Two-sided: how often an unchanged candidate looks like this.
    interval : returns the ends of two-sided intervals.
    how : "rows", "answers" or "apart", as in `SampleContrast`.
    rows_p_value : the test that no row changed, whatever the candidates; None where there are
        no rows to compare.
    filled : whether changed strings fill the rows, so that some may be missed or blurred.
    """

    estimate: Floats
    std_error: Floats
    p_value: Floats
    interval: Interval
    how: str
    rows_p_value: float | None = None
    filled: bool = False

    def scaled(self, factor: float) -> Changes:
        """Return the changes for weights times a factor above 0."""

        def interval(error: float) -> tuple[Floats, ...]:
            return tuple(factor * end for end in self.interval(error))

        return replace(
            self,
            estimate=factor * self.estimate,
            std_error=factor * self.std_error,
            interval=interval,
        )


class _Signed:
    """A pool of candidates that may rise, and after them the same ones that may fall."""

    def __init__(self, design: Design) -> None:
        """Take the candidates of a design."""
        self._design = design
        self.n_candidates = 2 * design.n_candidates
        self.n_terms = design.n_terms

    def screen(self, task: Task, always: Integers, progress: Progress) -> Screening:
        """Estimate every candidate, with both signs."""
        found = self._design.screen(task, always, progress)
        return Screening(
            index=np.arange(self.n_candidates),
            estimate=np.concatenate([found.estimate, -found.estimate]),
            std_error=np.concatenate([found.std_error, found.std_error]),
        )

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return their columns: ones for what rises, minus ones for what falls."""
        n = self._design.n_candidates
        columns = self._design.columns(chosen % n)
        columns.data *= np.repeat(np.where(chosen < n, 1.0, -1.0), np.diff(columns.indptr))
        return columns


def find_changes(
    target: ContrastRows, candidates: Candidates, sampling: Floats, progress: Progress
) -> Changes:
    """Estimate the change of every candidate.

    Parameters
    ----------
    target : the rows; at `part` 1 they have the largest errors that are possible, at which it is
        tested whether nothing changed.
    sampling : (c,) float64. Variance that the rows of one string have in common and the rows' noise
        leaves out, as the most that the devices can bring.
    """
    nothing = rows_p_value(target)
    if target.overlap is None:
        target = with_estimated_part(target)
    strings = Strings(candidates, target, progress)
    design, entry = strings.design, strings.entry
    selection = _unsigned(select(target, _Signed(design), progress), design, target)
    every = fit_all_by_least_squares(target, design, selection)
    filled = every is None and len(selection.chosen) > FILLED * len(target)
    selection = every or selection
    p_value = _p_values(target, selection)
    changed = _changed_devices(target, selection)
    unchanged = np.sqrt(selection.std_error**2 + target.part * sampling[strings.first])
    reach = _reach(target, selection.fit)

    def interval(error: float) -> tuple[Floats, Floats]:
        below, above = (distance * unchanged for distance in reach(error))
        low, high = changed.interval(selection.estimate, below, above, error)
        return low[entry], high[entry]

    return Changes(
        estimate=selection.estimate[entry],
        std_error=np.sqrt(unchanged**2 + changed.at(selection.estimate))[entry],
        p_value=p_value[entry],
        interval=interval,
        how="rows",
        rows_p_value=nothing,
        filled=filled,
    )


def _changed_devices(target: ContrastRows, selection: Selection) -> ChangeVariance:
    """Return the variance that devices add which changed to or from each string, (e,)."""
    # Part of the devices that is the same in the samples, as far as is known.
    same = 1 - target.part if target.overlap is None else target.overlap
    live = (target.reports > 0) & (target.sampling > 0)
    if not live.any() or not same:
        nothing = np.zeros(len(selection.estimate))
        return ChangeVariance(nothing, nothing)
    # A device is in one cohort, whose k rows count it once.
    bits = np.array([counts.params.k for counts in target.counts])[target.group]
    linear, square = (
        same / np.sum(1 / (bits * np.maximum(variance, LEAST_NOISE))[live])
        for variance in (target.sampling, target.sampling_square)
    )
    # The noise of rows becomes noise of an estimate, as all noise of the fit does.
    noise = selection.fit.noise + selection.fit.tau2
    zero, one = (
        np.average((target.sampling * response / noise)[live], weights=1 / noise[live])
        for response in target.permanent
    )
    of_fit = np.where(np.isfinite(selection.std_error), selection.std_error, 0.0) ** 2
    # Collisions with other fitted strings leave some rows of a string less weight than others:
    # fewer devices decide than there are.
    fit, fewer = selection.fit, np.ones(len(of_fit))
    own_weight = fit.basis[:, len(target.counts) :].T @ fit.weight
    fewer[selection.chosen] = np.maximum(of_fit[selection.chosen] * fit.kappa**2 * own_weight, 1.0)
    return ChangeVariance(fewer * linear + same * max(one - zero, 0.0) * of_fit, fewer * square)


def _unsigned(selection: Selection, design: Design, target: ContrastRows) -> Selection:
    """Return the same fit with columns of ones, and one estimate for each candidate."""
    n = design.n_candidates
    rises, falls = selection.estimate[:n], selection.estimate[n:]
    with np.errstate(invalid="ignore"):
        z_rise, z_fall = (
            np.nan_to_num(part / error)
            for part, error in ((rises, selection.std_error[:n]), (falls, selection.std_error[n:]))
        )
    # The sign that was looked at more closely, or is in the fit, has the larger score.
    fell = z_fall > z_rise
    order = np.argsort(selection.chosen % n, kind="stable")
    chosen = selection.chosen[order]
    sign = np.concatenate([np.ones(len(target.counts)), np.where(chosen < n, 1.0, -1.0)])
    places = np.concatenate([np.arange(len(target.counts)), len(target.counts) + order])
    fit = selection.fit
    basis = abs(fit.basis.tocsc()[:, places]).tocsr()
    inverse = fit.inverse[np.ix_(places, places)] * np.outer(sign, sign)
    return Selection(
        chosen=chosen % n,
        fit=replace(
            fit,
            basis=basis,
            equations=Equations(basis, fit.weight, inverse),
            coefficients=fit.coefficients[places] * sign,
        ),
        estimate=np.where(fell, -falls, rises),
        std_error=np.where(fell, selection.std_error[n:], selection.std_error[:n]),
    )


def _turned(target: ContrastRows, fit: Fit) -> tuple[ContrastRows, Fit]:
    """Return what would have been seen if everything that rose had fallen."""
    turned = replace(
        fit, residual=-fit.residual, fitted=-fit.fitted, coefficients=-fit.coefficients
    )
    return target.mirrored(), turned


def _p_values(target: ContrastRows, selection: Selection) -> Floats:
    """Return two-sided p-values, (c,): twice the smaller one of both tails."""
    known = np.isfinite(selection.std_error)
    z = np.where(known, selection.estimate / np.where(known, selection.std_error, 1.0), 0.0)
    rises = compute_p_values(target, selection.fit, z, selection.chosen)
    falls = compute_p_values(*_turned(target, selection.fit), -z, selection.chosen)
    return np.where(known, np.minimum(2 * np.where(z > 0, rises, falls), 1.0), 1.0)


def _reach(target: ContrastRows, fit: Fit) -> Callable[[float], tuple[float, float]]:
    """Return how many standard errors an interval reaches below and above.

    It is the normal number, or that of the noise's own tails where they are longer.
    """
    up, down = null_tail(target, fit), null_tail(*_turned(target, fit))

    def reach(error: float) -> tuple[float, float]:
        half = max(error / 2, _DEEPEST)
        normal = float(-special.ndtri(half))
        return max(normal, up.quantile(half)), max(normal, down.quantile(half))

    return reach
