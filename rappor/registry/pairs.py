"""Pairs of metrics that a device answers together: categories, and what is in their `other`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rappor.ground.errors import MetricError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor.registry.other import OTHER_NAME

_SAME: Final = ("owner", "expires", "epoch", "interval", "patterns", "sample", "segments")
"""What both metrics have in common, so that devices answer both at the same times, or neither."""


def pair_up(metrics: Mapping[str, Metric]) -> dict[str, tuple[str, ...]]:
    """Return both names of each pair, by either name: what devices answer together.

    Raises MetricError where two metrics are named as a pair is and do not go together.
    """
    pairs: dict[str, tuple[str, ...]] = {}
    for name, second in metrics.items():
        first = metrics.get(name.removesuffix(OTHER_NAME))
        if first is None or first is second or not (first.params.other and second.params.other):
            continue
        _check_pair(first, second)
        pairs[first.name] = pairs[name] = (first.name, name)
    return pairs


def possible_pairs(name: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs that a name can be of, as the first metric and as the second."""
    yield name, f"{name}{OTHER_NAME}"
    if name.endswith(OTHER_NAME):
        yield name.removesuffix(OTHER_NAME), name


def _check_pair(first: Metric, second: Metric) -> None:
    if not encoding_of(second.params).names_other_of(first.params):
        raise MetricError(
            f"metric {second.name!r} must have the categories and the normalizer of "
            f"{first.name!r}, whose other it names"
        )
    for key in _SAME:
        if getattr(first, key) != getattr(second, key):
            raise MetricError(
                f"metric {second.name!r}: {key} must be that of {first.name!r}, "
                "whose other it names"
            )
    if first.patterns != 1:
        raise MetricError(f"metric {first.name!r}: patterns must be 1 beside {second.name!r}")
