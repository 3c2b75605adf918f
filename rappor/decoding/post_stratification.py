"""Post-stratified shares: weighted totals of segments.

The segments' parts of the reports may be others than their parts of all whom an answer is meant
for: one country's devices report more often, or more of them do. With a weight for each segment,
W_g in sum one, the share of a string in all of them is sum W_g beta_g, and its variance sum W_g^2
se_g^2: a device is in one segment.
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
from rappor.base.ranges import check_weights, shown
from rappor.counts.counts import Counts
from rappor.decoding.contrasts import Contrast, normal_reach
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import encoding_of
from rappor.protocol.segments import segment_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """Weighted totals of segments.

    Attributes
    ----------
    weights : of each segment, in sum one.
    contrasts : categories and buckets all, in their order; strings that a segment
        detects, largest first, with intervals that are widened for having been chosen.
    reports : behind all segments.
    assumed, warnings : of each segment, with its name.
    """

    weights: Mapping[str, float]
    contrasts: tuple[Contrast, ...]
    n_candidates: int
    reports: int
    assumed: tuple[str, ...]
    warnings: tuple[Caution, ...]
    detection: ErrorControl

    def to_dict(self) -> dict[str, Any]:
        """Return everything as the object that `rappor decode --weights FILE --json` prints."""
        return {
            "weights": dict(self.weights),
            "contrasts": [each.to_dict() for each in self.contrasts],
            "candidates": self.n_candidates,
            "reports": self.reports,
            "assumptions": list(self.assumed),
            "warnings": [dataclasses.asdict(each) for each in self.warnings],
        }

    def to_json(self) -> str:
        """Write `to_dict` as JSON, one object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def segments_of(counts: Sequence[Counts]) -> dict[str, list[Counts]]:
    """Return the counts of each segment by its name, to be decoded alone.

    Raises DecodeError for a segment without reports: nothing is known of its shares.
    """
    found: dict[str, list[Counts]] = {}
    for each in counts:
        found.setdefault(segment_name(each.params.segment), []).append(each.unsegmented)
    if empty := [name for name, some in found.items() if not any(each.n_reports for each in some)]:
        raise DecodeError(
            f"segments must have at least 1 report each, got 0 of {', '.join(empty[:5])}: leave "
            "their counts and weights out, and the total is of the others"
        )
    return found


def weigh(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> Weighted:
    """Return the weighted total of each candidate over segments that were decoded alone.

    Weights are in any unit: inhabitants, devices sold. Raises DecodeError where a segment has no
    weight or a weight no segment, or the candidates or detections of the segments differ.
    """
    _check(segments, weights)
    whole = math.fsum(weights.values())
    part = {name: weights[name] / whole for name in segments}
    first = next(iter(segments.values()))
    every = bool(encoding_of(first.collections[0].params).answers)
    detected = {name for each in segments.values() for name in each.detected_candidates}
    found = [name for name in first.candidates if every or name in detected]
    confidence = first.error_control.confidence
    chosen = 1.0 if every else max(len(found), 1) / first.n_candidates
    reach = normal_reach(1 - (1 - confidence) * chosen)
    values, variances = np.zeros(len(found)), np.zeros(len(found))
    for name, estimates in segments.items():
        rows = estimates.places(found)
        values += part[name] * estimates.share[rows]
        variances += part[name] ** 2 * estimates.std_error[rows] ** 2
    order = np.arange(len(found)) if every else np.argsort(-values, kind="stable")
    return Weighted(
        weights=part,
        contrasts=tuple(
            Contrast.around(found[i], values[i], variances[i], reach, tested=True) for i in order
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


def _check(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> None:
    if missing := sorted(segments.keys() ^ weights.keys()):
        raise DecodeError(
            "segments and weights must have the same names, got only one of both for "
            f"{', '.join(missing[:5])}"
        )
    check_weights("weights", weights.values(), error=DecodeError)
    if negative := [weight for weight in weights.values() if weight < 0]:
        raise DecodeError(f"weights must be numbers of at least 0, got {shown(negative[0])}")
    if len({each.n_candidates for each in segments.values()}) > 1:
        raise DecodeError("segments must have been asked for the same candidates")
