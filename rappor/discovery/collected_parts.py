"""Group the collections of a metric's parts, and check that they belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rappor.base.argument_checks import check_type
from rappor.base.errors import DecodeError
from rappor.counts.counts import Counts
from rappor.protocol.parts import WHOLE, parse_prefix_length


def group_parts(counts_by_part: Iterable[Counts]) -> dict[str, list[Counts]]:
    """Group collections by part: the prefixes by length, then the complete string.

    Raises
    ------
    DecodeError
        The collections are not the parts of one metric, or a part has no reports.
    """
    # A single collection instead of a list is a common mistake.
    if isinstance(counts_by_part, Counts):
        raise DecodeError("counts_by_part must be a list of Counts, one of each part, got one")
    check_type(
        "counts_by_part", counts_by_part, Iterable, "pass a list with the counts of every part"
    )
    collections = list(counts_by_part)
    _check_kinds(collections)
    _check_one_metric(collections)
    prefixes = {counts.params.part for counts in collections} - {WHOLE}
    parts = [*sorted(prefixes, key=parse_prefix_length), WHOLE]
    by_part = {
        part: [counts for counts in collections if counts.params.part == part] for part in parts
    }
    # Discovery extends detected prefixes and then tests the complete strings. Only complete strings
    # are results, so without their collection there is no result. Without a prefix there is
    # nothing to extend.
    if not prefixes or not by_part[WHOLE]:
        present_parts = ", ".join(part for part in parts if by_part[part]) or "none"
        raise DecodeError(
            f"counts must be of one or more prefixes and of the part {WHOLE}, got parts: "
            f"{present_parts}"
        )
    for part, group in by_part.items():
        if not any(counts.n_reports for counts in group):
            raise DecodeError(f"counts of {part} must have at least 1 report, got 0")
    return by_part


def _check_kinds(collections: list[Counts]) -> None:
    """Raise DecodeError for objects that are not counts of a part."""
    for counts in collections:
        if not isinstance(counts, Counts):
            raise DecodeError(
                f"counts_by_part must be a list of Counts, got a {type(counts).__name__} in it"
            )
        if not counts.params.part:
            raise DecodeError(
                "counts must be of parts, got some of a metric without parts: "
                "decode such counts with a list of candidates"
            )


def _check_one_metric(collections: list[Counts]) -> None:
    """Raise DecodeError if the collections cannot be parts of one metric."""
    names = sorted({counts.metric for counts in collections} - {""})
    # Prefixes of another metric would be extended to strings of this metric.
    if len(names) > 1:
        raise DecodeError(f"counts must be the parts of one metric, got {', '.join(names)}")
    # The parameter sets must be equal apart from the part. `insecure` only skips the check of the
    # parameters, which would refuse a set that was collected with insecure=True.
    bases = {
        dataclasses.replace(counts.params, part="", insecure=True).permanent_fingerprint
        for counts in collections
    }
    if len(bases) > 1:
        raise DecodeError(
            "counts must be the parts of one metric, got several parameter sets: "
            "encoding, k, h, m, f and normalize of all parts must be equal"
        )
