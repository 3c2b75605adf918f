"""Conclusions: intervals, detection and the finished table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.decoding.collection_summary import describe_collected
from rappor.decoding.contrasts import Covariance, DetectedRows, Related
from rappor.decoding.estimates import Estimates, Rest
from rappor.estimator.debias import Target
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.device_assumptions import describe_assumption
from rappor.estimator.score_tests import NullTail
from rappor.protocol.encodings import encoding_of

Interval = Callable[[float], tuple[Floats, Floats]]

_TOPS: Final = (10, 20, 50, 100, 1000)
"""Rows that a picture or a page may stop after: what the detected ones after them hold together has
an error of its own."""

_UNKNOWN: Final = Rest(after=0, rows=0, share=math.nan, std_error=math.nan)
"""Of answers that do not exclude each other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raw:
    """De-biased results before intervals, one entry for each distinguishable candidate.

    Attributes
    ----------
    names : all candidates that are held.
    entry, group : int64, of each of them: its entry, and as in `Estimates`.
    estimate, std_error : (c,) float64, as shares of all reports.
    thresholds : of the p-values of the entries, and of candidates that have none.
    interval : returns the ends of the two-sided intervals that miss with a probability.
    covariance : returns that of the estimates of r entries that are fitted together, (r, r).
    shares : (2, c) float64, the distribution answer and its errors, or None.
    residual : (n,) float64, of each row in standard deviations; None where nothing was fitted.
    breakdown : (2, c) float64. How many forged reports make and hide what is detected.
    """

    names: tuple[str, ...]
    entry: Integers
    group: Integers
    estimate: Floats
    std_error: Floats
    thresholds: Thresholds
    interval: Interval
    covariance: Covariance
    shares: Floats | None
    residual: Floats | None = None
    breakdown: Floats


def conclude(raw: Raw, target: Target, diagnostics: dict[str, Any]) -> Estimates:
    """Compute the intervals and give every candidate its row: strings by their estimates."""
    encoding = encoding_of(target.counts[0].params)
    detection, p_values = raw.thresholds.detection, raw.thresholds.p_values
    detected = raw.thresholds.detected
    low, high = raw.interval(1 - detection.confidence)
    # False coverage rate (Benjamini and Yekutieli 2005, definition 1): the R detected of c
    # get intervals at 1 - R alpha / c.
    chosen_share = max(int(detected.sum()), 1) / p_values.n
    low_adjusted, high_adjusted = raw.interval((1 - detection.confidence) * chosen_share)
    sizes = -raw.estimate[raw.entry] if encoding.hashed else np.zeros(len(raw.entry))
    order = np.argsort(sizes, kind="stable")
    entry = raw.entry[order]
    explained, sums = None, [_UNKNOWN]
    if encoding.exclusive:
        explained = _detected_rows(raw)
        sums = list(_rests(explained, entry[detected[entry]]))
    whole, *rests = sums
    return Estimates(
        candidates=tuple(raw.names[i] for i in order),
        share=raw.estimate[entry],
        std_error=raw.std_error[entry],
        ci_low=low[entry],
        ci_high=high[entry],
        p_value=p_values.rows[entry],
        detected=detected[entry],
        ci_low_adjusted=np.where(detected, low_adjusted, np.nan)[entry],
        ci_high_adjusted=np.where(detected, high_adjusted, np.nan)[entry],
        forged_to_make=raw.breakdown[0, entry],
        forged_to_hide=raw.breakdown[1, entry],
        posterior_share=None if raw.shares is None else raw.shares[0, entry],
        posterior_share_std_error=None if raw.shares is None else raw.shares[1, entry],
        group=raw.group[order],
        n_candidates=len(raw.names) + p_values.n - len(p_values.rows),
        p_value_counts=p_values.counts,
        reports=target.n_reports,
        unallocated=1 - whole.share,
        unallocated_std_error=whole.std_error,
        remaining=tuple(rests),
        assumptions=describe_assumption(target.counts, target.repetitions),
        diagnostics=diagnostics,
        collections=describe_collected(target, raw.residual),
        error_control=detection,
        covariance=Related(
            entry=entry,
            estimate=raw.estimate,
            std_error=raw.std_error,
            covariance=raw.covariance,
            detected=explained,
        ),
    )


def _detected_rows(raw: Raw) -> DetectedRows:
    """Return the posterior of the entries that are detected."""
    entries = np.flatnonzero(raw.thresholds.detected)
    p_values = raw.thresholds.p_values
    return DetectedRows.of(entries, raw.estimate, raw.std_error, p_values, raw.covariance)


def _rests(explained: DetectedRows, rows: Integers) -> tuple[Rest, ...]:
    """Return what is explained in all, and what is detected after the first 10, 20, ... rows.

    Rows of one group share an entry, which counts once, with the first of them.
    """
    tops = [top for top in _TOPS if top < len(rows)]
    left = [np.setdiff1d(explained.entries, rows[:top]) for top in tops]
    return tuple(
        Rest(after=top, rows=len(rows) - top, share=proportion, std_error=std_error)
        for top, entries in zip([0, *tops], [explained.entries, *left], strict=True)
        for proportion, std_error in [explained.sum_of(entries)]
    )


_FARTHEST: Final = 1e6
"""Standard errors beyond which a null tail has no end: all candidates set all bits, so that nothing
tells a string that is no candidate from theirs."""


def normal_interval(
    estimate: Floats, apart: Floats, upper: NullTail, *, devices: float
) -> Interval:
    """Return intervals of estimates, of which `apart` is the variance but for their own sampling.

    They are normal. Where the noise has a longer upper tail, the lower end follows it: heavy
    strings that are no candidates lift estimates more often than they lower them. What a share
    costs by the sampling of the devices is taken at the end and not at the estimate, as Wilson's
    interval of a proportion does: of few devices, none may hold a string that one in ten holds.
    """

    def end(reach: float) -> Floats:
        """Solve (end - estimate)^2 = reach^2 (apart + end (1 - end) / devices)."""
        far = estimate + reach * np.sqrt(apart)
        bent = reach**2 / devices
        middle = (estimate + bent / 2) / (1 + bent)
        rest = (estimate**2 - reach**2 * apart) / (1 + bent)
        root = middle + np.sign(reach) * np.sqrt(np.maximum(middle**2 - rest, 0.0))
        # Outside [0, 1] there is nothing to sample.
        return np.where((far >= 0) & (far <= 1), root, far)

    def interval(error: float) -> tuple[Floats, Floats]:
        reach = float(-special.ndtri(error / 2))
        lower_reach = max(reach, upper.quantile(error / 2))
        if lower_reach > _FARTHEST:  # the square of a longer one would overflow
            return np.minimum(estimate, 0.0) - 1.0, end(reach)
        return end(-lower_reach), end(reach)

    return interval
