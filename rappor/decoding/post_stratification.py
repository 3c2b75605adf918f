"""Post-stratified shares: weighted totals over segments.

A *segment* is a group of devices with the same public properties, such as a country. The reports
may contain other proportions of the segments than the population: devices of one country report
more often, or more of them take part. The analyst knows the proportions in the population, and
passes them as weights.

*Example.* 60 % of the reports, but 20 % of the population, are of segment A, where 10 % have a
string. In segment B 5 % have the string. All reports together show .6 * 10 % + .4 * 5 % = 8 %. The
weighted total is .2 * 10 % + .8 * 5 % = 6 %.

With W_g the weight of segment g (sum 1), beta_g the share of a string in the segment and se_g its
standard error, the share in the population is

    sum of W_g beta_g,    variance sum of W_g^2 se_g^2

Assumptions:

- A device is in one segment, so the errors of two segments are independent.
- In each segment, the share among the devices that report is the share among all devices.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rappor.base.atomic_files import read_text
from rappor.base.errors import DecodeError, FileError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_weights, format_value
from rappor.base.text_lines import WHITE_SPACE, read_decimal, split_filled_lines
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.contrasts import Contrast, compute_critical_value
from rappor.decoding.decoder import decode
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import Estimates
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import get_encoding
from rappor.protocol.segments import format_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedTotals:
    """Weighted totals over segments.

    Attributes
    ----------
    weights : weight of each segment. The weights sum to 1.
    contrasts : the weighted total of each category or bucket, in their order. For strings: the
        weighted total of each string that at least one segment detects, largest first. Intervals of
        strings are widened because the strings were selected.
    n_candidates : number of candidates.
    reports : number of reports in all segments.
    assumptions, warnings : assumptions and warnings of each segment, with its name.
    error_control : error control of all segments.
    """

    weights: Mapping[str, float]
    contrasts: tuple[Contrast, ...]
    n_candidates: int
    reports: int
    assumptions: tuple[str, ...]
    warnings: tuple[Caution, ...]
    error_control: ErrorControl

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `rappor decode --weights FILE --json` prints."""
        return {
            "weights": dict(self.weights),
            "contrasts": [contrast.to_dict() for contrast in self.contrasts],
            "candidates": self.n_candidates,
            "reports": self.reports,
            "assumptions": list(self.assumptions),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }

    def to_json(self) -> str:
        """Write `to_dict` as one JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def decode_weighted(
    counts: Sequence[Counts],
    candidates: Candidates | None,
    weights: Mapping[str, float],
    *,
    error_control: ErrorControl,
    complete: bool = False,
    progress: Progress = no_progress,
) -> WeightedTotals:
    """Decode each segment separately, and compute the weighted totals.

    Parameters
    ----------
    counts : counts of all segments.
    candidates : the strings to estimate, or None if the encoding has a category for every bit.
    weights : the weight of each segment by its name, in any unit.
    error_control, complete, progress : as for `decode`.

    Raises
    ------
    DecodeError
        A segment has no reports or no weight, a weight has no segment, or `decode` or `weigh`
        refuses the counts or the candidates.
    ParamsError
        `error_control` is for a ranked list.
    """
    error_control.refuse_ranked("weighted totals")
    segments = {
        name: decode(
            collections,
            candidates,
            error_control=error_control,
            complete=complete,
            progress=progress,
        )
        for name, collections in group_by_segment(counts).items()
    }
    return weigh(segments, weights)


def read_weights(path: str) -> dict[str, float]:
    """Read a file with a segment, a comma and a weight in each line, such as `country=DE,83`.

    The first line may contain titles, and is then skipped. Raises FileError for any other line, and
    for a segment that has two weights.
    """
    weights: dict[str, float] = {}
    for number, line in enumerate(split_filled_lines(read_text(path))):
        name, comma, weight = line.rpartition(",")
        name = name.strip(WHITE_SPACE)
        try:
            value = read_decimal(weight)
        except ValueError:
            # Tables from spreadsheets begin with a line of titles, such as "country,weight". A line
            # with the name of a segment is no line of titles: its weight is wrong. The name of a
            # segment contains a property and its value, such as country=DE.
            if number == 0 and "=" not in name and name != format_segment(()):
                continue
            comma = ""
        if not comma or name in weights:
            raise FileError(path, f"each line must be a segment, a comma and a weight, got {line}")
        weights[name] = value
    return weights


def group_by_segment(counts: Sequence[Counts]) -> dict[str, list[Counts]]:
    """Group counts by the name of their segment, so that each segment can be decoded alone.

    Raises
    ------
    DecodeError
        A segment has no reports, so its shares are unknown.
    """
    by_segment: dict[str, list[Counts]] = {}
    for collection in counts:
        name = format_segment(collection.params.segment)
        by_segment.setdefault(name, []).append(collection.without_segment)
    empty = [
        name
        for name, collections in by_segment.items()
        if not any(collection.n_reports for collection in collections)
    ]
    if empty:
        # A total without this segment would silently describe a smaller population.
        raise DecodeError(
            f"segments must have at least 1 report each, got 0 of {', '.join(empty[:5])}: leave "
            "their counts and weights out, and the total is of the others"
        )
    return by_segment


def weigh(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> WeightedTotals:
    """Compute the weighted total of each candidate over segments that were decoded separately.

    Parameters
    ----------
    segments : the estimates of each segment, by name.
    weights : the weight of each segment, in any unit: inhabitants, or devices sold.

    Raises
    ------
    DecodeError
        A segment has no weight, a weight has no segment, a weight is negative, the segments have
        different candidates, or a string that one segment detects has no row in another segment.
    """
    _check_weights(segments, weights)
    total_weight = math.fsum(weights.values())
    normalized_weights = {name: weights[name] / total_weight for name in segments}
    first = next(iter(segments.values()))
    # Categories are a fixed list. A string is selected if at least one segment detects it. The
    # intervals of selected strings are widened (Benjamini and Yekutieli 2005): with R of c strings
    # selected, the error probability of each interval is multiplied by R / c.
    has_categories = bool(get_encoding(first.collections[0].params).category_labels)
    detected = {name for estimates in segments.values() for name in estimates.detected_candidates}
    names = [name for name in first.candidates if has_categories or name in detected]
    # Of a very long list, only the best candidates of a segment have rows. `indices_of` raises
    # DecodeError if a string that another segment detects has no row.
    names += sorted(detected.difference(first.candidates))
    confidence = first.error_control.confidence
    selected_share = 1.0 if has_categories else max(len(names), 1) / first.n_candidates
    critical_value = compute_critical_value(1 - (1 - confidence) * selected_share)
    values, variances = np.zeros(len(names)), np.zeros(len(names))
    for name, estimates in segments.items():
        rows = estimates.indices_of(names)
        # Case: a segment has the weight 0 and no information about a string. Its infinite standard
        # error times 0 would be NaN.
        if normalized_weights[name]:
            values += normalized_weights[name] * estimates.share[rows]
            variances += normalized_weights[name] ** 2 * estimates.std_error[rows] ** 2
    order = np.arange(len(names)) if has_categories else np.argsort(-values, kind="stable")
    return WeightedTotals(
        weights=normalized_weights,
        contrasts=tuple(
            Contrast.from_variance(
                names[i], values[i], variances[i], critical_value, include_p_value=True
            )
            for i in order
        ),
        n_candidates=first.n_candidates,
        reports=sum(estimates.reports for estimates in segments.values()),
        assumptions=tuple(
            f"{name}: {estimates.assumptions}" for name, estimates in segments.items()
        ),
        warnings=tuple(
            Caution(caution.code, f"{name}: {caution.sentence}")
            for name, estimates in segments.items()
            for caution in estimates.warnings
        ),
        error_control=first.error_control,
    )


def _check_weights(segments: Mapping[str, Estimates], weights: Mapping[str, float]) -> None:
    """Check that every segment has a weight, and that all have the same candidates."""
    if missing := sorted(segments.keys() ^ weights.keys()):
        raise DecodeError(
            "segments and weights must have the same names, got a segment without a weight or a "
            f"weight without a segment: {', '.join(missing[:5])}"
        )
    check_weights("weights", weights.values(), error=DecodeError)
    if negative := [weight for weight in weights.values() if weight < 0]:
        # A negative weight has no meaning as a size of a population.
        raise DecodeError(f"weights must be numbers of at least 0, got {format_value(negative[0])}")
    # Of a stream only the best candidates have rows, and they differ between segments. So names are
    # compared only if all candidates have rows.
    candidates = {
        (estimates.n_candidates, frozenset(estimates.candidates))
        if estimates.n_candidates == len(estimates)
        else (estimates.n_candidates, frozenset())
        for estimates in segments.values()
    }
    if len(candidates) > 1:
        raise DecodeError("segments must have been decoded with the same candidates")
