"""Parts: a metric may ask each device for one part of its string, by coins from the secret.

A device answers for its part with its whole budget. Each part has a fingerprint of its own, so
counts of parts never mix. Parts own consecutive ranges of a 32-bit coin in the order of the
registry, each t(share) wide; the last one, which has no share, takes the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number, format_value

WHOLE: Final = "whole"
_PREFIX: Final = re.compile(r"prefix:([1-9][0-9]{0,2})")
_LONGEST: Final = 255
"""Characters of the longest prefix."""

_ONE: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Part:
    """One part: "prefix:N" with the share of devices that answer for it, or "whole" without.

    Raises ParamsError for another name, or a share outside (0, 1).
    """

    name: str
    share: float | None = None

    def __post_init__(self) -> None:
        if self.name != WHOLE:
            prefix_length(self.name)
        if (self.share is None) != (self.name == WHOLE):
            raise ParamsError(f"a share must be given for every prefix and not for {WHOLE}")
        if self.share is not None:
            check_number("share", self.share, "(0, 1)")

    @property
    def threshold(self) -> int:
        """The width of its range of a coin: floor(share * 2^32 + 0.5)."""
        return 0 if self.share is None else int(self.share * _ONE + 0.5)


def check_parts(parts: Sequence[Part]) -> None:
    """Raise ParamsError unless these are prefixes of increasing length and then the whole."""
    if [part.name for part in parts][-1:] != [WHOLE] or len(parts) < 2:
        raise ParamsError(f"parts must be one prefix or more, and then {WHOLE}")
    lengths = [prefix_length(part.name) for part in parts[:-1]]
    if lengths != sorted(set(lengths)):
        raise ParamsError("parts must be prefixes of increasing length")
    widths = [part.threshold for part in parts[:-1]]
    if min(widths) == 0 or sum(widths) >= _ONE:
        raise ParamsError("shares must be at least 2^-32 each and less than 1 in sum")


def check_part(name: object) -> None:
    """Raise ParamsError unless this is a part's name, or empty."""
    if name not in ("", WHOLE):
        prefix_length(name)


def choose_part(parts: Sequence[Part], u: int) -> str:
    """Return the name of the part whose range holds a coin."""
    for part in parts[:-1]:
        if u < part.threshold:
            return part.name
        u -= part.threshold
    return parts[-1].name


def cut(part: str, text: str) -> str:
    """Return what a part tells of a normalised string: its first N characters, or all of it."""
    return text[: prefix_length(part)] if part not in ("", WHOLE) else text


def prefix_length(name: object) -> int:
    """Return the characters of a prefix by its name; raise ParamsError for another name."""
    found = _PREFIX.fullmatch(name) if isinstance(name, str) else None
    if found is None or int(found[1]) > _LONGEST:
        raise ParamsError(
            f"a part must be prefix:N with N in [1, {_LONGEST}] or {WHOLE}, got "
            f"{format_value(name)}"
        )
    return int(found[1])
