"""`by_segment`: the share of each string in each segment, and how segments differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.comparison.compare import compare
from rappor.decoding.comparison.comparison import Comparison
from rappor.decoding.detection import Detection
from rappor.decoding.estimates import Estimates
from rappor.decoding.segments.segments import Segments, SegmentSample
from rappor.decoding.side_by_side import (
    Chosen,
    assumption_within,
    decode_apart,
    levels_of,
    listed_candidates,
    told_once,
)
from rappor.ground.errors import DecodeError
from rappor.ground.progress import Progress, no_progress
from rappor.protocol.segments import Segment, segment_name

_UNTOLD = "not told"
"""The segment of devices that tell none, because their program does not know of segments yet."""


def by_segment(
    counts: Sequence[Counts],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    dimension: str | None = None,
    detection: Detection = Detection(),
    progress: Progress = no_progress,
) -> Segments:
    """Estimate the share of each string in each segment, and its difference from the largest one.

    Every segment is decoded on its own. README.md in this folder says which strings are shown and
    what the intervals hold for.

    Parameters
    ----------
    counts : counts of segments, as `Collector.counts(..., segments=True)` has them. Those of one
        segment and parameter set are added.
    candidates : the strings to look for, as for `decode`, but no stream; other encodings take none.
    dimension : the one property that segments are split by; others are added up. All of them
        if omitted.
    detection : how sure to be; its level is that of the strings that are shown, and of the
        differences that are called changes. "adaptive" is applied as "bh".

    Returns
    -------
    Segments, the largest first. Deterministic.

    Raises
    ------
    DecodeError
        There are no reports, no segments or no candidates, or the counts do not go together.

    Examples
    --------
    >>> from rappor import Params, Population, by_segment, simulate_counts
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
    >>> found = by_segment([old, new], ["cat", "dog", "emu"])
    >>> [segment.name for segment in found.segments], found.candidates
    (['version=1', 'version=2'], ('cat', 'dog'))
    """
    detection = detection.for_several_tests()
    grouped = _grouped([each for each in counts if each.n_reports], dimension)
    together = [each for some in grouped.values() for each in some]
    listed = listed_candidates(candidates, together)
    apart = decode_apart(together, list(grouped.values()), listed, detection, progress)
    known = [each for each in apart.alone if each is not None]
    segments = tuple(
        SegmentSample(
            name=_name(segment),
            values=dict(segment),
            reports=estimates.reports,
            devices=_devices(estimates),
        )
        for segment, estimates in zip(grouped, known, strict=True)
    )
    names = [each.name for each in segments]
    return Segments(
        metric=together[0].metric,
        segments=segments,
        candidates=apart.chosen.names,
        levels=levels_of(apart.alone, apart.chosen, detection, [1] * len(segments)),
        differences=_differences(names, list(grouped.values()), apart.chosen, listed, detection),
        n_candidates=apart.chosen.n_candidates,
        assumed=f"{assumption_within('segment', known)} Those of two segments are other devices.",
        warnings=tuple(told_once(names, [each.warnings for each in known])),
        detection=detection,
    )


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
    ordered = sorted(found, key=lambda segment: (-_n_reports(found[segment]), segment))
    return {segment: found[segment] for segment in ordered}


def _n_reports(counts: Sequence[Counts]) -> int:
    return sum(each.n_reports for each in counts)


def _name(segment: Segment) -> str:
    return segment_name(segment) or _UNTOLD


def _devices(estimates: Estimates) -> float:
    return sum(each.n_reports / each.repetition.reports_per_device for each in estimates.collected)


def _differences(
    names: Sequence[str],
    samples: Sequence[Sequence[Counts]],
    chosen: Chosen,
    listed: Candidates | None,
    detection: Detection,
) -> Comparison | None:
    """Compare every segment with the largest one, by the chosen strings."""
    if len(names) < 2 or not chosen.names:
        return None
    shown = None
    if listed is not None:
        shown = Candidates.from_list(chosen.names, normalize=listed.normalize)
    return compare(
        dict(zip(names, samples, strict=True)),
        shown,
        detection=chosen.detection(detection),
        overlap=0.0,
    )
