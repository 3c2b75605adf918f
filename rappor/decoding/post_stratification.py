"""Post-stratified shares: weighted totals over segments.

The reports of a sample may contain other proportions of the segments than the population: devices
of one country report more often, or more of them take part. With a weight W_g for each segment and
sum W_g = 1, the share of a string in the population is sum W_g beta_g. Its variance is sum W_g^2
se_g^2, because a device is in one segment.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.ranges import check_weights, format_value
from rappor.counts.counts import Counts
from rappor.decoding.contrasts import Contrast, normal_reach
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import encoding_of
from rappor.protocol.segments import segment_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """Weighted totals over segments.

    Attributes
    ----------
    weights : weight of each segment. The weights sum to 1.
    contrasts : all categories and buckets, in their order; or the strings that a segment
        detects, largest first. Intervals of strings are widened because the strings were selected.
    n_candidates : number of candidates.
    reports : number of reports in all segments.
    assumed, warnings : of each segment, with its name.
    detection : error control of all segments.
    """

    weights: Mapping[str, float]
    contrasts: tuple[Contrast, ...]
    n_candidates: int
    reports: int
    assumed: tuple[str, ...]
    warnings: tuple[Caution, ...]
    detection: ErrorControl

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `rappor decode --weights FILE --json` prints."""
        return {
            "weights": dict(self.weights),
            "contrasts": [contrast.to_dict() for contrast in self.contrasts],
            "candidates": self.n_candidates,
            "reports": self.reports,
            "assumptions": list(self.assumed),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }

    def to_json(self) -> str:
        """Write `to_dict` as one JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def segments_of(counts: Sequence[Counts]) -> dict[str, list[Counts]]:
    """Group counts by the name of their segment, so that each segment can be decoded alone.

    Raises
    ------
    DecodeError
        A segment has no reports, so its shares are unknown.
    """
    found: dict[str, list[Counts]] = {}
    for each in counts:
        found.setdefault(segment_name(each.params.segment), []).append(each.unsegmented)
    if empty := [name for name, some in found.items() if not any(each.n_reports for each in some)]:
        # A total without this segment would silently describe a smaller population.
        raise DecodeError(
            f"segments must have at least 1 report each, got 0 of {', '.join(empty[:5])}: leave "
            "their counts and weights out, and the total is of the others"
        )
    return found


def weigh(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> Weighted:
    """Compute the weighted total of each candidate over segments that were decoded separately.

    Parameters
    ----------
    segments : the estimates of each segment, by name.
    weights : the weight of each segment, in any unit: inhabitants, or devices sold.

    Raises
    ------
    DecodeError
        A segment has no weight, a weight has no segment, a weight is negative, or the segments have
            different
        candidates.
    """
    _check_weights(segments, weights)
    total_weight = math.fsum(weights.values())
    part = {name: weights[name] / total_weight for name in segments}
    first = next(iter(segments.values()))
    # Categories are a fixed list. Strings are selected because a segment detects them, so their
    # intervals are widened (Benjamini and Yekutieli 2005).
    has_categories = bool(encoding_of(first.collections[0].params).answers)
    detected = {name for each in segments.values() for name in each.detected_candidates}
    names = [name for name in first.candidates if has_categories or name in detected]
    confidence = first.error_control.confidence
    selected_share = 1.0 if has_categories else max(len(names), 1) / first.n_candidates
    reach = normal_reach(1 - (1 - confidence) * selected_share)
    values, variances = np.zeros(len(names)), np.zeros(len(names))
    for name, estimates in segments.items():
        rows = estimates.places(names)
        values += part[name] * estimates.share[rows]
        variances += part[name] ** 2 * estimates.std_error[rows] ** 2
    order = np.arange(len(names)) if has_categories else np.argsort(-values, kind="stable")
    return Weighted(
        weights=part,
        contrasts=tuple(
            Contrast.around(names[i], values[i], variances[i], reach, tested=True) for i in order
        ),
        n_candidates=first.n_candidates,
        reports=sum(each.reports for each in segments.values()),
        assumed=tuple(f"{name}: {each.assumptions}" for name, each in segments.items()),
        warnings=tuple(
            Caution(caution.code, f"{name}: {caution.sentence}")
            for name, each in segments.items()
            for caution in each.warnings
        ),
        detection=first.error_control,
    )


def _check_weights(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> None:
    """Check that every segment has a weight, and that all have the same candidates."""
    if missing := sorted(segments.keys() ^ weights.keys()):
        raise DecodeError(
            "segments and weights must have the same names, got only one of both for "
            f"{', '.join(missing[:5])}"
        )
    check_weights("weights", weights.values(), error=DecodeError)
    if negative := [weight for weight in weights.values() if weight < 0]:
        # A negative weight has no meaning as a size of a population.
        raise DecodeError(f"weights must be numbers of at least 0, got {format_value(negative[0])}")
    if len({each.n_candidates for each in segments.values()}) > 1:
        raise DecodeError("segments must have been asked for the same candidates")
