"""Flags: several yes-or-no answers, a bit each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from rappor.base.errors import ReportError
from rappor.protocol.encodings.encoding import NamedEncoding, described, normalised_by

_MOST: Final = 10_000
"""Names in one value, repeated ones too: five times as many as flags can be; more has no end."""


class Flags(NamedEncoding):
    """Independent yes or no answers: one bit each, any number set."""

    name = "flags"
    exclusive = False

    def parse_value(self, text: str) -> tuple[str, ...]:
        """Split names at commas; the empty text names none."""
        return tuple(text.split(",")) if text else ()

    def bits(self, value: object, cohort: int) -> list[int]:  # noqa: ARG002  (one cohort)
        """Return the bits of the named flags, given in any order; names of none set none."""
        return self.bits_of(_names(value))

    def checked(self, value: object) -> tuple[object, ...]:
        """Return the names of an iterable, which may be readable only once."""
        names = _names(value)
        self.bits_of(names)
        return names

    def fits(self, value: object) -> bool:
        """Return whether all names are flags."""
        names = _names(value)
        return len(self.bits_of(names)) == len(names)

    @property
    def true_bits(self) -> range:
        """Any number."""
        return range(self.params.k + 1)

    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss of all bits, each in the direction that tells more."""
        return self.params.k * max(up, down)

    @property
    def described(self) -> str:
        """The flags."""
        names = ", ".join(self.params.categories)
        return f"yes or no to each of {self.params.k} flags{normalised_by(self.params)}: {names}"

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """No flag against all of them."""
        return [("", ",".join(self.params.categories))]


def _names(value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ReportError(f"a value must be an iterable of names, got {described(value)}")
    names = tuple(islice(value, _MOST + 1))
    if len(names) > _MOST:
        raise ReportError(f"a value must name at most {_MOST:,} flags, got more")
    return names
