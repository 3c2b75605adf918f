"""Contrasts of samples: which are asked for, and which of them are significant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rappor.comparison.change_regression import Changes
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.decoding.estimates import number_or_none
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues

Kind: TypeAlias = Literal["difference", "slope", "thirds", "step", "rest", "own"]
"""What contrasts are: one sample against another, a line through all, the last third of them
against the first, one period against the one before, a segment against all others, or weights of
the analyst's own."""

DESCRIBING: Final = "thirds"
"""The kind that is shown and not tested: the line decides."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A contrast that is asked for: t weights, and what is shown as the share before and after.

    `before` and `after` are weights of samples that sum to 1.
    """

    kind: Kind
    name: str
    weights: Floats
    before: Floats
    after: Floats

    @classmethod
    def of(cls, kind: Kind, name: str, weights: Floats) -> Asked:
        """Ask for weights; samples of negative weight are before those of positive weight."""
        before, after = (np.maximum(sign * weights, 0.0) for sign in (-1, 1))
        return cls(
            kind=kind,
            name=name,
            weights=weights,
            before=before / before.sum(),
            after=after / after.sum(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleContrast:
    """A weighted sum of samples, c rows in the order of `Comparison.candidates`.

    Attributes
    ----------
    kind : a `Kind`.
    name : what is compared, such as "from May to June".
    weights : (t,) float64, one for each sample. They sum to 0.
    how : "rows" where unchanged strings cancel, "answers" where bits are answers, "apart" where
        the samples have no shape in common and are decoded apart.
    before, after : (c,) float64. Means of the shares of the samples that are compared, as each
        decodes alone.
    estimate, std_error : (c,) float64. Estimated from the weighted sums of the bits, so it is more
        precise than the difference of `before` and `after`.
    ci_low, ci_high : (c,) float64, of each candidate on its own.
    p_value : (c,) float64, two-sided.
    changed : (c,) bool, at the level over all candidates and all contrasts of this kind.
    ci_low_adjusted, ci_high_adjusted : (c,) float64, which hold for the changed ones together; NaN
        for the others.
    direction : c of "newcomer", "leaver", "rise" and "fall", of segments "more" and "less"; empty
        if it is not significant.
    unchanged_p_value : of the test that nothing changed at all.
    rows_p_value : its part that asks all bits, candidates or not; None without rows.
    """

    kind: Kind
    name: str
    weights: Floats
    how: str
    before: Floats
    after: Floats
    estimate: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    p_value: Floats
    changed: Booleans
    ci_low_adjusted: Floats
    ci_high_adjusted: Floats
    direction: NDArray[np.str_]
    unchanged_p_value: float
    rows_p_value: float | None

    @property
    def n_changed(self) -> int:
        """Rows that changed."""
        return int(self.changed.sum())

    def ordered(self, order: Integers) -> SampleContrast:
        """Return the rows in another order."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray) and name != "weights":
                columns[name] = column[order]
        return SampleContrast(**columns)

    def row(self, i: int) -> dict[str, Any]:
        """Return the numbers of a row; those that do not exist are None or missing."""
        names = ["before", "after", "estimate", "std_error", "ci_low", "ci_high"]
        names += ["ci_low_adjusted", "ci_high_adjusted"] if self.changed[i] else []
        return {
            **{name: number_or_none(getattr(self, name)[i]) for name in names},
            "p_value": float(self.p_value[i]),
            "changed": bool(self.changed[i]),
            "direction": str(self.direction[i]),
        }


def conclude(
    pairs: Sequence[tuple[Asked, Changes]],
    shares: Floats,
    detected: Booleans,
    detection: ErrorControl,
) -> Iterator[SampleContrast]:
    """Decide over all candidates and all contrasts of one kind together what changed.

    Parameters
    ----------
    pairs : what was asked, and what was found.
    shares, detected : (t, c). What each sample alone says; NaN without reports.
    """
    every = np.concatenate([changes.p_value for _, changes in pairs])
    threshold = Thresholds(detection, PValues(rows=every)).largest
    if pairs[0][0].kind == DESCRIBING:
        threshold = -1.0
    error = 1 - detection.confidence
    # False coverage rate, as in `inference`: the R changed of n get intervals at 1 - R alpha / n.
    adjusted = error * max(int((every <= threshold).sum()), 1) / len(every)
    for each, changes in pairs:
        (low, high), (low_adjusted, high_adjusted) = map(changes.interval, (error, adjusted))
        changed = changes.p_value <= threshold
        before, after = (
            weights[weights > 0] @ shares[weights > 0] for weights in (each.before, each.after)
        )
        there = [np.asarray(detected[sign * each.weights > 0].any(axis=0)) for sign in (-1, 1)]
        strings = min(float(changes.p_value.min()) * len(changed), 1.0)
        parts = [strings] if changes.rows_p_value is None else [strings, changes.rows_p_value]
        yield SampleContrast(
            kind=each.kind,
            name=each.name,
            weights=each.weights,
            how=changes.how,
            before=before,
            after=after,
            estimate=changes.estimate,
            std_error=changes.std_error,
            ci_low=low,
            ci_high=high,
            p_value=changes.p_value,
            changed=changed,
            ci_low_adjusted=np.where(changed, low_adjusted, np.nan),
            ci_high_adjusted=np.where(changed, high_adjusted, np.nan),
            direction=np.where(changed, _directions(each.kind, changes.estimate > 0, *there), ""),
            unchanged_p_value=min(len(parts) * min(parts), 1.0),
            rows_p_value=changes.rows_p_value,
        )


def _directions(kind: str, rises: Booleans, before: Booleans, after: Booleans) -> NDArray[np.str_]:
    """Name changes: a newcomer is detected in the samples after and in none before."""
    if kind == "rest":
        return np.where(rises, "more", "less")
    up = np.where(after & ~before, "newcomer", "rise")
    return np.where(rises, up, np.where(before & ~after, "leaver", "fall"))
