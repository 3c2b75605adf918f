"""The collections of a metric's parts, checked and in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rappor.base.errors import DecodeError
from rappor.counts.counts import Counts
from rappor.protocol.parts import WHOLE, prefix_length


def in_order(counts_by_part: Iterable[Counts]) -> dict[str, list[Counts]]:
    """Return the collections of each part, the prefixes by length and then the whole.

    Raises DecodeError unless they are the parts of one metric, each with reports.
    """
    if isinstance(counts_by_part, Counts):
        raise DecodeError("counts_by_part must be a list of Counts, one of each part, got one")
    collections = list(counts_by_part)
    _check_kinds(collections)
    _check_one_metric(collections)
    prefixes = {counts.params.part for counts in collections} - {WHOLE}
    parts = [*sorted(prefixes, key=prefix_length), WHOLE]
    found = {part: [each for each in collections if each.params.part == part] for part in parts}
    if not prefixes or not found[WHOLE]:
        got = ", ".join(part for part in parts if found[part]) or "none"
        raise DecodeError(
            f"counts must be of a prefix, or several, and of the {WHOLE}, got parts: {got}"
        )
    for part, each in found.items():
        if not any(counts.n_reports for counts in each):
            raise DecodeError(f"counts of {part} must have at least 1 report, got 0")
    return found


def _check_kinds(collections: list[Counts]) -> None:
    """Refuse what is no collection, and collections of whole metrics."""
    for counts in collections:
        if not isinstance(counts, Counts):
            raise DecodeError(
                f"counts_by_part must be a list of Counts, got a {type(counts).__name__} in it"
            )
        if not counts.params.part:
            raise DecodeError(
                "counts must be of parts, got some of a metric without parts: "
                "it has no prefixes, decode it with a list of candidates"
            )


def _check_one_metric(collections: list[Counts]) -> None:
    """Refuse collections that cannot be parts of one metric."""
    names = sorted({counts.metric for counts in collections} - {""})
    if len(names) > 1:
        raise DecodeError(f"counts must be the parts of one metric, got {', '.join(names)}")
    bases = {
        dataclasses.replace(counts.params, part="", insecure=True).permanent_fingerprint
        for counts in collections
    }
    if len(bases) > 1:
        raise DecodeError(
            "counts must be the parts of one metric, got several parameter sets: "
            "encoding, k, h, m, f and normalize of all parts must be equal"
        )
