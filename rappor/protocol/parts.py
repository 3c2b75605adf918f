"""Parts: prefixes of strings, which find strings that no candidate list contains.

A metric of strings may ask each device for one part of its string: the first N characters, or the
whole string. A coin of the device's secret chooses the part once for each epoch, and the device
spends its whole privacy budget on that part. The analyst first detects short prefixes and then
extends them to longer strings (`rappor.discovery`; the idea is that of [FPE16]).

Each part has its own parameter set and fingerprint, so counts of different parts never mix.

Parts own consecutive ranges of the coin, a uniform integer u of 32 bits, in the order of the
registry. Example: with the parts prefix:2 (share 0.25), prefix:4 (share 0.25) and whole, a device
reports

- its first two characters if u < 2^30,
- its first four characters if 2^30 <= u < 2^31,
- the whole string otherwise. The last part has no share: it owns the remaining range.

[FPE16] Fanti, Pihur, Erlingsson. Building a RAPPOR with the Unknown. PoPETs 2016(3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number, format_value
from rappor.protocol.thresholds import ONE, compute_threshold

WHOLE: Final = "whole"
"""Name of the part that is the whole string."""

_PREFIX: Final = re.compile(r"prefix:([1-9][0-9]{0,2})")

_MAX_PREFIX_LENGTH: Final = 255
"""Longest prefix, in characters. The wire format of other clients reads three digits; a larger
limit would need a new version of the protocol."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a string that some of the devices report.

    Attributes
    ----------
    name : "prefix:N" for the first N characters, or "whole".
    share : probability that a device reports this part, in (0, 1). None for "whole", to which all
        remaining devices belong.

    Raises
    ------
    ParamsError
        The name is not that of a part, the share is outside (0, 1), a prefix has no share, or
        "whole" has a share.

    Examples
    --------
    >>> choose_part([Part("prefix:2", 0.25), Part("whole")], u=2**30)
    'whole'
    """

    name: str
    share: float | None = None

    def __post_init__(self) -> None:
        if self.name != WHOLE:
            parse_prefix_length(self.name)
        if (self.share is None) != (self.name == WHOLE):
            raise ParamsError(f"a share must be given for every prefix and not for {WHOLE}")
        if self.share is not None:
            check_number("share", self.share, "(0, 1)")

    @property
    def threshold(self) -> int:
        """Width of the part's range of coins: floor(share 2^32 + 0.5). 0 for "whole"."""
        return 0 if self.share is None else compute_threshold(self.share)


def check_parts(parts: Sequence[Part]) -> None:
    """Raise ParamsError unless the parts are prefixes of increasing length followed by "whole"."""
    if [part.name for part in parts][-1:] != [WHOLE] or len(parts) < 2:
        raise ParamsError(f"parts must be one prefix or more, and then {WHOLE}")
    lengths = [parse_prefix_length(part.name) for part in parts[:-1]]
    if lengths != sorted(set(lengths)):
        raise ParamsError("parts must be prefixes of increasing length")
    widths = [part.threshold for part in parts[:-1]]
    # A part without coins would never be reported, and so would "whole" without a remaining range.
    if min(widths) == 0 or sum(widths) >= ONE:
        raise ParamsError("shares must be at least 2^-32 each and less than 1 in sum")


def check_part_name(name: object) -> None:
    """Raise ParamsError unless a name is that of a part, or empty for metrics without parts."""
    if name not in ("", WHOLE):
        parse_prefix_length(name)


def choose_part(parts: Sequence[Part], u: int) -> str:
    """Return the name of the part whose range contains the coin `u`."""
    for part in parts[:-1]:
        if u < part.threshold:
            return part.name
        u -= part.threshold  # the position in the ranges that follow
    return parts[-1].name


def extract_part(part: str, text: str) -> str:
    """Return a part of a normalized string: the first N characters, or the whole string.

    Characters are Unicode scalar values. A string with fewer than N characters is its own prefix.

    Examples
    --------
    >>> extract_part("prefix:4", "duckduckgo"), extract_part("whole", "duckduckgo")
    ('duck', 'duckduckgo')
    """
    return text[: parse_prefix_length(part)] if part not in ("", WHOLE) else text


def parse_prefix_length(name: object) -> int:
    """Return the number of characters of a prefix from its name "prefix:N".

    Raises
    ------
    ParamsError
        The name is not that of a prefix, or N is outside [1, 255].
    """
    match = _PREFIX.fullmatch(name) if isinstance(name, str) else None
    if match is None or int(match[1]) > _MAX_PREFIX_LENGTH:
        raise ParamsError(
            f"a part must be prefix:N with N in [1, {_MAX_PREFIX_LENGTH}] or {WHOLE}, "
            f"got {format_value(name)}"
        )
    return int(match[1])
