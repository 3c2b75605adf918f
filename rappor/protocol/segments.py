"""Segments: what a device tells of itself in the clear beside its report, such as its version.

A registry names the dimensions and all values that each may have, so nobody is told by a value
that few have. A device tells one value of each dimension, `other` where its own is not listed. The
segment is in the parameters, so it is in their fingerprint, which every report carries: counts of
segments never mix. It is not in the permanent fingerprint: noise and cohort of a device are the
same in every segment, so another segment costs no privacy of the value.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value

OTHER: Final = "other"
MOST: Final = 256
"""Segments of a metric: each of them fills cohorts of its own."""

Segment = tuple[tuple[str, str], ...]
"""A value of each dimension, by the dimensions' names in order; empty where nothing is told."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Dimension:
    """One public property of devices, and its values; `other` stands for all that are not listed.

    Raises ParamsError for another name, no values, or values that are not distinct visible texts.
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not isinstance(self.values, tuple) or not self.values:
            raise ParamsError(f"the dimension {self.name} must list its values")
        for value in self.values:
            _check_value(value)
        if len(set(self.values)) < len(self.values) or OTHER in self.values:
            raise ParamsError(
                f"the values of {self.name} must be distinct, and {OTHER} must not be listed: it "
                "stands for all others"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """What devices tell: a listed value, or other."""
        return (*self.values, OTHER)


def check_dimensions(dimensions: Sequence[Dimension]) -> None:
    """Raise ParamsError unless the names are distinct and the segments not too many."""
    names = [each.name for each in dimensions]
    if len(set(names)) < len(names):
        raise ParamsError("the dimensions of segments must have distinct names")
    n = 1
    for each in dimensions:
        n *= len(each.labels)
    if n > MOST:
        raise ParamsError(f"segments must number at most {MOST}, {OTHER} included, got {n}")


def check_segment(segment: Any) -> None:
    """Raise ParamsError unless this is a segment: pairs of name and value, names increasing."""
    if not isinstance(segment, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in segment
    ):
        raise ParamsError(
            f"segment must be pairs of a name and a value, got {format_value(segment)}"
        )
    for name, value in segment:
        _check_name(name)
        _check_value(value)
    names = [name for name, _ in segment]
    if names != sorted(set(names)):
        raise ParamsError("the names of a segment must be distinct and in order")


def segments_of(dimensions: Sequence[Dimension]) -> Iterator[Segment]:
    """Yield every segment that devices may tell; none without dimensions."""
    if dimensions:
        ordered = sorted(dimensions, key=lambda each: each.name)
        for values in itertools.product(*(each.labels for each in ordered)):
            yield tuple(zip((each.name for each in ordered), values, strict=True))


def choose_segment(dimensions: Sequence[Dimension], own: Mapping[str, str]) -> Segment:
    """Return the segment of a device with these properties."""
    ordered = sorted(dimensions, key=lambda each: each.name)
    return tuple(
        (each.name, own.get(each.name, OTHER) if own.get(each.name) in each.values else OTHER)
        for each in ordered
    )


def is_listed(segment: Segment, dimensions: Sequence[Dimension]) -> bool:
    """Return whether devices may tell this segment under these dimensions; none may always be."""
    return not segment or segment == choose_segment(dimensions, dict(segment))


def segment_name(segment: Segment) -> str:
    """Write a segment for people: `country=de, version=2`; two segments have two names.

    That of devices whose program does not know of segments yet is "not told".
    """
    return ", ".join(f"{name}={_quoted(value)}" for name, value in segment) or "not told"


def _quoted(value: str) -> str:
    """Return a value, in quotes if it could be taken for the beginning of another one."""
    return json.dumps(value, ensure_ascii=False) if set(value) & set(',="') else value


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParamsError(
            f"a dimension's name must match {_NAME.pattern}, got {format_value(name)}"
        )


def _check_value(value: object) -> None:
    is_text = isinstance(value, str) and value.isprintable() and value == value.strip()
    if not is_text or not 1 <= len(str(value)) <= _LONGEST:
        raise ParamsError(
            f"a dimension's value must be 1 to {_LONGEST} visible characters, without spaces at "
            f"its ends, got {format_value(value)}"
        )
