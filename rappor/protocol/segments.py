"""Segments: public properties of a device, such as its version, sent without noise beside a report.

A registry names dimensions and lists all values of each dimension. Example: the dimensions
"country" with the values de and fr, and "version" with the values 1 and 2, have (2 + 1) (2 + 1) = 9
segments, because each dimension also has the value "other". A device of version 3 in Germany sends

    (("country", "de"), ("version", "other"))

Only listed values leave a device, so a rare value, such as a test version with one user, cannot
identify the device.

The segment is part of the parameter set and therefore of the fingerprint that every report carries:
counts of different segments never mix, and the wire format has no field for segments. The permanent
fingerprint leaves the segment out. Cohort, permanent response, part and sampling of a device are
therefore the same in every segment, and a device that changes its segment loses no privacy of its
value.
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
"""Value of a dimension that stands for every value that the registry does not list."""

MAX_SEGMENTS: Final = 256
"""Largest number of segments of a metric. Each segment has counts of its own, so more segments need
more devices and more memory of the collector."""

Segment = tuple[tuple[str, str], ...]
"""Pairs of a dimension's name and a value, sorted by name. The empty segment stands for devices
that send no properties."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_VALUE_LENGTH: Final = 64
"""Longest value of a dimension, in characters. It bounds the size of fingerprinted JSON."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A public property of devices and its listed values.

    Attributes
    ----------
    name : lower-case letters, digits and underscores; at most 32 characters.
    values : listed values: distinct texts of 1 to 64 printable characters without surrounding
        spaces. "other" must not be listed, because it stands for all other values.

    Raises
    ------
    ParamsError
        The name or a value is invalid, or there are no values.

    Examples
    --------
    >>> version = Dimension("version", ("1", "2"))
    >>> choose_segment([version], {"version": "3"})
    (('version', 'other'),)
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
        """Values that a device can send: the listed values and "other"."""
        return (*self.values, OTHER)


def check_dimensions(dimensions: Sequence[Dimension]) -> None:
    """Raise ParamsError unless names are distinct and there are at most `MAX_SEGMENTS` segments."""
    names = [dimension.name for dimension in dimensions]
    if len(set(names)) < len(names):
        raise ParamsError("the dimensions of segments must have distinct names")
    n_segments = 1
    for dimension in dimensions:
        n_segments *= len(dimension.labels)
    if n_segments > MAX_SEGMENTS:
        raise ParamsError(
            f"segments must number at most {MAX_SEGMENTS}, {OTHER} included, got {n_segments}"
        )


def check_segment(segment: Any) -> None:
    """Raise ParamsError unless a segment is a tuple of valid pairs, sorted by distinct names."""
    if not isinstance(segment, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in segment
    ):
        raise ParamsError(
            f"segment must be pairs of a name and a value, got {format_value(segment)}"
        )
    for name, value in segment:
        _check_name(name)
        _check_value(value)
    # One order of names gives one canonical JSON, and hence one fingerprint.
    names = [name for name, _ in segment]
    if names != sorted(set(names)):
        raise ParamsError("the names of a segment must be distinct and in order")


def list_segments(dimensions: Sequence[Dimension]) -> Iterator[Segment]:
    """Yield every segment that devices can send. Without dimensions there are no segments."""
    # The product of no dimensions would be one empty segment.
    if dimensions:
        ordered = sorted(dimensions, key=lambda dimension: dimension.name)
        for values in itertools.product(*(dimension.labels for dimension in ordered)):
            yield tuple(zip((dimension.name for dimension in ordered), values, strict=True))


def choose_segment(dimensions: Sequence[Dimension], properties: Mapping[str, str]) -> Segment:
    """Return the segment of a device from its properties by name.

    A property that is missing or not listed becomes "other". Properties that are not dimensions are
    ignored.
    """
    ordered = sorted(dimensions, key=lambda dimension: dimension.name)
    segment = []
    for dimension in ordered:
        value = properties.get(dimension.name, OTHER)
        segment.append((dimension.name, value if value in dimension.values else OTHER))
    return tuple(segment)


def is_listed(segment: Segment, dimensions: Sequence[Dimension]) -> bool:
    """Return whether devices may send a segment under the dimensions of a registry.

    The empty segment is always allowed: a device with an older registry sends no properties.
    """
    return not segment or segment == choose_segment(dimensions, dict(segment))


def format_segment(segment: Segment) -> str:
    """Write a segment for people: "country=de, version=2". Distinct segments have distinct texts.

    The empty segment is "not sent".

    Examples
    --------
    >>> format_segment((("country", "de"), ("version", "2"))), format_segment(())
    ('country=de, version=2', 'not sent')
    """
    return ", ".join(f"{name}={_quote_value(value)}" for name, value in segment) or "not sent"


def _quote_value(value: str) -> str:
    """Return a value, in quotes if it contains a separator of `format_segment`.

    The value "1, b=2" of the dimension a would otherwise read like two dimensions, and a comparison
    took two such segments for one sample.
    """
    return json.dumps(value, ensure_ascii=False) if set(value) & set(',="') else value


def _check_name(name: object) -> None:
    """Raise ParamsError unless a name is a valid name of a dimension."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParamsError(
            f"a dimension's name must match {_NAME.pattern}, got {format_value(name)}"
        )


def _check_value(value: object) -> None:
    """Raise ParamsError unless a value is a valid value of a dimension."""
    is_text = isinstance(value, str) and value.isprintable() and value == value.strip()
    if not is_text or not 1 <= len(str(value)) <= _MAX_VALUE_LENGTH:
        raise ParamsError(
            f"a dimension's value must be 1 to {_MAX_VALUE_LENGTH} visible characters, without "
            f"spaces at its ends, got {format_value(value)}"
        )
