"""Contrasts of samples: requested weights, estimated changes, and which changes are significant.

A contrast goes through three records: `RequestedContrast` (weights and name), `Changes` (the
estimate of each candidate, `change_regression`), and `SampleContrast` (with decisions, for tables).
`decide_contrasts` controls the error rate over all candidates and all contrasts of one kind
together: three differences of 100 candidates are 300 tests.
"""

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
"""What a contrast compares: "difference" one sample with another, "slope" the line through all
samples, "thirds" the last third of the samples with the first, "step" one period with the period
before, "rest" a segment with all other segments, "own" samples by weights of the analyst."""

UNTESTED_KIND: Final = "thirds"
"""The kind whose changes are never significant, because the slope tests the same change. A second
test would double the false alarms."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestedContrast:
    """A requested contrast of T samples: weights, and the shares that are displayed beside it.

    Attributes
    ----------
    kind, name : as in `SampleContrast`.
    weights : (T,) float64. They sum to 0.
    before, after : (T,) float64. Two sets of weights, each with the sum 1. Tables display the means
        of the shares with these weights as the shares before and after the change.
    """

    kind: Kind
    name: str
    weights: Floats
    before: Floats
    after: Floats

    @classmethod
    def from_weights(cls, kind: Kind, name: str, weights: Floats) -> RequestedContrast:
        """Request a contrast from its weights.

        Samples of negative weight are displayed as `before`, samples of positive weight as `after`.
        """
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
    """A weighted sum of T samples for c candidates, in the order of `Comparison.candidates`.

    Attributes
    ----------
    kind : a `Kind`.
    name : the compared samples, such as "from May to June".
    weights : (T,) float64, one weight for each sample. The weights sum to 0.
    how : "rows" if rows were subtracted, so that unchanged strings cancel; "answers" if the bits
        are categories; "separate" if the samples have no shape in common and their estimates were
        subtracted.
    before, after : (c,) float64. Mean shares of the compared samples, from the separate decodes.
    estimate, std_error : (c,) float64. If `how` is "rows", the estimate comes from weighted sums of
        the bits. It is more precise than `after` minus `before`, and may differ from it. A slope of
        three or more periods is a weighted sum of all of them, so it differs in any case. All other
        estimates equal `after` minus `before`.
    ci_low, ci_high : (c,) float64. Intervals of each candidate by itself.
    p_value : (c,) float64, two-sided.
    changed : (c,) bool. True if the change is significant at the error rate over all candidates and
        all contrasts of one kind.
    ci_low_adjusted, ci_high_adjusted : (c,) float64. Intervals of changed candidates, widened so
        that the expected share of these intervals that miss the truth is at most 1 - confidence
        [BB14]. NaN for unchanged candidates.
    direction : c texts: "newcomer", "leaver", "rise" or "fall", of segments "more" or "less"; empty
        if the change is not significant.
    unchanged_p_value : p-value of the test that nothing changed at all.
    rows_p_value : p-value of the part of that test that uses all bits and no candidates. None
        unless `how` is "rows".
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
        """Number of changed candidates."""
        return int(self.changed.sum())

    def ordered(self, order: Integers) -> SampleContrast:
        """Return the contrast with its candidates in another order, (c,) indices."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray) and name != "weights":
                columns[name] = column[order]
        return SampleContrast(**columns)

    def row(self, i: int) -> dict[str, Any]:
        """Return the numbers of candidate i as a dictionary. A number that is NaN becomes None."""
        names = ["before", "after", "estimate", "std_error", "ci_low", "ci_high"]
        names += ["ci_low_adjusted", "ci_high_adjusted"] if self.changed[i] else []
        return {
            **{name: number_or_none(getattr(self, name)[i]) for name in names},
            "p_value": float(self.p_value[i]),
            "changed": bool(self.changed[i]),
            "direction": str(self.direction[i]),
        }


def decide_contrasts(
    pairs: Sequence[tuple[RequestedContrast, Changes]],
    shares: Floats,
    detected: Booleans,
    error_control: ErrorControl,
) -> Iterator[SampleContrast]:
    """Decide which candidates changed, over all contrasts of one kind together.

    Parameters
    ----------
    pairs : requested contrasts of one kind, and their estimated changes.
    shares : (T, c) float64. Separate estimates of each sample. NaN without reports.
    detected : (T, c) bool. True if the sample detects the candidate.
    error_control : the error rate of `changed`, and the confidence level of the intervals.
    """
    p_values = np.concatenate([changes.p_value for _, changes in pairs])
    threshold = Thresholds(error_control, PValues(in_memory=p_values)).largest
    if pairs[0][0].kind == UNTESTED_KIND:
        # No p-value is at most -1, so no change is significant.
        threshold = -1.0
    error = 1 - error_control.confidence
    # False coverage rate [BB14]: the R changed of n candidates get intervals at 1 - R alpha / n.
    adjusted_error = error * max(int((p_values <= threshold).sum()), 1) / len(p_values)
    for requested, changes in pairs:
        (low, high), (low_adjusted, high_adjusted) = map(changes.interval, (error, adjusted_error))
        changed = changes.p_value <= threshold
        before, after = (
            weights[weights > 0] @ shares[weights > 0]
            for weights in (requested.before, requested.after)
        )
        # Whether a sample before the change detects the candidate, and a sample after the change.
        is_detected = [
            np.asarray(detected[sign * requested.weights > 0].any(axis=0)) for sign in (-1, 1)
        ]
        # Two tests of the hypothesis that nothing changed: the smallest p-value of a candidate,
        # corrected by Bonferroni over the candidates, and the test of all rows, if there is one.
        smallest = min(float(changes.p_value.min()) * len(changed), 1.0)
        test_p_values = (
            [smallest] if changes.rows_p_value is None else [smallest, changes.rows_p_value]
        )
        yield SampleContrast(
            kind=requested.kind,
            name=requested.name,
            weights=requested.weights,
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
            direction=np.where(
                changed, _name_directions(requested.kind, changes.estimate > 0, *is_detected), ""
            ),
            # Bonferroni over the tests.
            unchanged_p_value=min(len(test_p_values) * min(test_p_values), 1.0),
            rows_p_value=changes.rows_p_value,
        )


def _name_directions(
    kind: str, rises: Booleans, before: Booleans, after: Booleans
) -> NDArray[np.str_]:
    """Name each change, (c,).

    A newcomer is detected in a sample after the change, and in no sample before. A leaver is
    detected before, and in no sample after.

    Parameters
    ----------
    kind : a `Kind`.
    rises : (c,) bool. True for changes above 0.
    before, after : (c,) bool. True if a sample before, or after, detects the candidate.
    """
    if kind == "rest":
        return np.where(rises, "more", "less")
    up = np.where(after & ~before, "newcomer", "rise")
    return np.where(rises, up, np.where(before & ~after, "leaver", "fall"))
