"""Shares of each string in each segment, compared with all other segments together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison, Sample, panel
from rappor.comparison.sample_contrasts import Asked
from rappor.comparison.samples import Samples
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Segment, segment_name


def compare_segments(
    counts: Sequence[Counts],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    dimension: str | None = None,
    error_control: ErrorControl = ErrorControl(),
    complete: bool = False,
    progress: Progress = no_progress,
) -> Comparison:
    """Estimate the share of each string in each segment, and its difference from all others.

    Every segment is decoded on its own. README.md in this folder says which strings are found and
    what the intervals hold for.

    Parameters
    ----------
    counts : counts of segments, as `CollectorClient.counts(..., segments=True)` has them. Those of
    one segment and parameter set are added.
    candidates : the strings to look for, as for `decode`, at most 131,072; other encodings take
        none.
    dimension : the one property that segments are split by; others are added up. All of them
        if omitted.
    error_control : how sure to be; its level is that of the strings that are found, and of the
        differences that are called changes. For the strings "adaptive" is applied as "bh".
    complete : as for `decode`: every value is in one of the categories or buckets.

    Returns
    -------
    Panel: segments, the largest first, each against the rest. Deterministic.

    Raises
    ------
    DecodeError
        There are no reports, no segments or no candidates, or the counts do not go together.

    Examples
    --------
    >>> from rappor import Params, Population, compare_segments, simulate_counts
    >>> params = Params.profile("balanced")
    >>> old, new = (
    ...     simulate_counts(
    ...         Population(["cat", "dog"], weights),
    ...         params.in_segment((("version", version),)),
    ...         n_reports=1e5,
    ...         seed=1,
    ...     )
    ...     for version, weights in (("1", [3, 1]), ("2", [1, 2]))
    ... )
    >>> found = compare_segments([old, new], ["cat", "dog", "emu"])
    >>> [sample.name for sample in found.samples], [found.candidates[i] for i in found.shown]
    (['version=1', 'version=2'], ['dog', 'cat'])
    """
    grouped = _grouped([each for each in counts if each.n_reports], dimension)
    collections = list(grouped.values())
    decoded = Samples.decoded(
        collections, candidates, error_control, overlap=0.0, complete=complete, progress=progress
    )
    described = [
        Sample.of(segment_name(segment), merged, segment=dict(segment))
        for segment, merged in zip(grouped, decoded.merged, strict=True)
    ]
    return panel(
        decoded,
        described,
        _against_the_rest(described),
        progress,
        metric=collections[0][0].metric,
        by="segment",
        assumptions=decoded.assumed("segment", "No device is in two segments."),
    )


def _against_the_rest(described: Sequence[Sample]) -> list[Asked]:
    """Ask for each segment against all others, which weigh as their reports."""
    reports = np.array([each.reports for each in described], dtype=float)
    asked = []
    for number, each in enumerate(described if len(described) > 1 else ()):
        weights = -reports / (reports.sum() - reports[number])
        weights[number] = 1.0
        asked.append(Asked.of("rest", f"{each.name} against the rest", weights))
    return asked


def _grouped(counts: Sequence[Counts], dimension: str | None) -> dict[Segment, list[Counts]]:
    """Return the counts of each segment without its name, the segment with most reports first."""
    if not counts:
        raise DecodeError("counts must have at least 1 report, got 0")
    names = {name for each in counts for name, _ in each.params.segment}
    if not names:
        raise DecodeError(
            "counts must be of segments, got none: pull them with --segments, of a metric whose "
            "entry has some"
        )
    if dimension is not None and dimension not in names:
        raise DecodeError(f"dimension must be one of {', '.join(sorted(names))}, got {dimension}")
    found: dict[Segment, list[Counts]] = {}
    for each in counts:
        segment = tuple(
            pair for pair in each.params.segment if dimension is None or pair[0] == dimension
        )
        found.setdefault(segment, []).append(each.unsegmented)
    reports = {segment: sum(each.n_reports for each in some) for segment, some in found.items()}
    ordered = sorted(found, key=lambda segment: (-reports[segment], segment))
    return {segment: found[segment] for segment in ordered}
