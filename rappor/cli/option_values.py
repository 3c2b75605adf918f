"""Values of options: whole numbers, names of profiles, and alphabets."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from rappor.base.errors import ParamsError
from rappor.protocol.profiles import PROFILES, get_profile

_RANGE: Final = re.compile(r"(.)-(.)", re.DOTALL)
"""Matches a range of characters, such as a-z. The groups are its ends."""


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # generic in late versions only
    """Type of a whole number from `least` to `most`, for which people may also write 1e9."""

    name = "number"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        """Store the range. None means no limit, because the library checks the number itself."""
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number. A number that is not whole or outside the range is a usage error."""
        try:
            number = _parse_whole(str(value))
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{value!r} is not a whole number", ctx, param) from None
        if self._least is not None and number < self._least:
            raise click.BadParameter(f"{value} is less than {self._least:,}", ctx, param)
        if self._most is not None and number > self._most:
            raise click.BadParameter(f"{value} is more than {self._most:,}", ctx, param)
        return number


def _parse_whole(text: str) -> int:
    """Return the number that a text such as 7, 1_000, 2.0 or 1e9 stands for."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


NUMBER: Final = WholeNumber()
"""Type of an option whose value is a whole number. The library checks the range."""

COUNT: Final = WholeNumber(1, 10**15)
"""Type of an option whose value is a count. It is at least 1, and at most 10^15, because binary64
represents integers exactly up to 9 * 10^15."""


class ProfileName(click.Choice):  # type: ignore[type-arg]  # generic in late versions only
    """Name of a profile. An unknown name is refused with the library's message."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name. An unknown name is a usage error."""
        try:
            get_profile(value)
        except ParamsError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        return value


PROFILE_NAME: Final = ProfileName(list(PROFILES))
"""Type of an option whose value is the name of a profile: named parameters such as "balanced"."""


def expand_alphabet(text: str) -> str:
    """Return the characters of an alphabet, in which a-z stands for all letters from a to z.

    A repeated character counts once. A hyphen at either end stands for itself.
    """
    return "".join(dict.fromkeys(_RANGE.sub(_expand_range, text)))


def _expand_range(ends: re.Match[str]) -> str:
    """Return all characters of a range. A range in reverse order is a usage error."""
    first, last = ends[1], ends[2]
    if first > last:
        raise click.UsageError(f"--alphabet: {first}-{last} is no range, its ends are reversed")
    return "".join(map(chr, range(ord(first), ord(last) + 1)))
