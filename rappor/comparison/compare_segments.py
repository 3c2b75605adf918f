"""`compare_segments`: shares in each segment, compared with all other segments together.

A *segment* is a group of devices with the same public properties, such as version and country. A
device is in one segment, so the errors of two segments are independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rappor.base.argument_checks import check_type, explain_error_control
from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison, Sample, build_comparison
from rappor.comparison.sample_contrasts import RequestedContrast
from rappor.comparison.samples import Samples
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Segment, format_segment


@explain_error_control
def compare_segments(
    counts: Sequence[Counts],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    dimension: str | None = None,
    error_control: ErrorControl = ErrorControl(),
    complete: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate each string's share in each segment, and its difference from all other segments.

    Every segment is decoded by itself. README.md of this package describes which strings are
    detected and which coverage the intervals have.

    Parameters
    ----------
    counts : counts of segments, as `CollectorClient.counts(..., segments=True)` returns them.
        Counts of one segment and parameter set are added.
    candidates : strings to test, as for `decode`, at most 131,072. Encodings of categories take no
        candidates.
    dimension : the property by which segments are split, such as "country". Segments that differ
        in other properties only are added. By default, all properties separate segments.
    error_control : error rate of the detected strings and of the differences, and the confidence
        level. The test of presence combines several samples, so its method is "bh" even if
        "adaptive" is requested.
    complete : as for `decode`: every value is in one of the categories or buckets.
    progress : as for `decode`.

    Returns
    -------
    Comparison of the segments, the largest segment first, each against the rest. The result is
    deterministic.

    Raises
    ------
    ParamsError
        `counts` is no list of `Counts`, or an argument is outside its range.
    DecodeError
        There are no reports, no segments or no candidates, or the counts do not fit together.

    Examples
    --------
    >>> from rappor import Params, Population, compare_segments, simulate_counts
    >>> params = Params.profile("balanced")
    >>> old, new = (
    ...     simulate_counts(
    ...         Population(["cat", "dog"], weights),
    ...         params.with_segment((("version", version),)),
    ...         n_reports=1e5,
    ...         seed=1,
    ...     )
    ...     for version, weights in (("1", [3, 1]), ("2", [1, 2]))
    ... )
    >>> comparison = compare_segments([old, new], ["cat", "dog", "emu"])
    >>> [sample.name for sample in comparison.samples]
    ['version=1', 'version=2']
    >>> [comparison.candidates[i] for i in comparison.shown_rows]
    ['dog', 'cat']
    """
    remedy = "pass a list with the counts of every segment"
    check_type("counts", counts, Iterable, remedy)
    counts = list(counts)
    for collection in counts:
        check_type("each element of counts", collection, Counts, remedy)
    by_segment = _group_by_segment(
        [collection for collection in counts if collection.n_reports], dimension
    )
    collections = list(by_segment.values())
    # Devices of two segments are different, so their noise has the correlation 0.
    decoded = Samples.from_collections(
        collections,
        candidates,
        error_control,
        device_correlation=0.0,
        complete=complete,
        progress=progress,
    )
    # `decoded.added` has one entry for each segment: the sums of its counts by parameter set.
    described = [
        Sample.from_collections(format_segment(segment), added, segment=dict(segment))
        for segment, added in zip(by_segment, decoded.added, strict=True)
    ]
    return build_comparison(
        decoded,
        described,
        _request_contrasts(described),
        progress,
        metric=collections[0][0].metric,
        by="segment",
        assumptions=decoded.describe_assumptions("segment", "No device is in two segments."),
    )


def _request_contrasts(described: Sequence[Sample]) -> list[RequestedContrast]:
    """Build one contrast for each segment: the segment minus the mean of all other segments.

    The mean is weighted by reports. A single segment has nothing to be compared with.
    """
    reports = np.array([sample.reports for sample in described], dtype=float)
    requested = []
    for number, sample in enumerate(described if len(described) > 1 else ()):
        weights = -reports / (reports.sum() - reports[number])
        weights[number] = 1.0
        requested.append(
            RequestedContrast.from_weights("rest", f"{sample.name} against the rest", weights)
        )
    return requested


def _group_by_segment(
    counts: Sequence[Counts], dimension: str | None
) -> dict[Segment, list[Counts]]:
    """Group collections by segment, the segment with most reports first.

    Parameters
    ----------
    counts : collections with reports.
    dimension : the property that separates segments. None for all properties.

    Raises
    ------
    DecodeError
        There are no reports, no segments, or no segment has the property `dimension`.
    """
    if not counts:
        raise DecodeError("counts must have at least 1 report, got 0")
    names = {name for collection in counts for name, _ in collection.params.segment}
    if not names:
        raise DecodeError(
            "counts must be of segments, got none: pull them with --segments, from a metric with "
            "segments in its registry entry. `rappor compare --by` takes a property of the "
            "devices; periods are compared without it"
        )
    if dimension is not None and dimension not in names:
        raise DecodeError(f"dimension must be one of {', '.join(sorted(names))}, got {dimension}")
    by_segment: dict[Segment, list[Counts]] = {}
    for collection in counts:
        # Without its other properties, several segments become one.
        segment = tuple(
            pair for pair in collection.params.segment if dimension is None or pair[0] == dimension
        )
        by_segment.setdefault(segment, []).append(collection.without_segment)
    reports = {
        segment: sum(collection.n_reports for collection in members)
        for segment, members in by_segment.items()
    }
    ordered = sorted(by_segment, key=lambda segment: (-reports[segment], segment))
    return {segment: by_segment[segment] for segment in ordered}
