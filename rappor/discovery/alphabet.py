"""The characters that strings are made of: given, or learned from the first part."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from rappor.ground.errors import DecodeError, ParamsError
from rappor.ground.ranges import shown

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
_CODES: Final = 0x110000
_SEARCHED_NOWHERE: Final = ("Cc", "Cn", "Co", "Cs")
"""Categories of Unicode: controls, unassigned, for private use, surrogates."""


def check_alphabet(alphabet: object) -> None:
    """Raise ParamsError unless this is a text of distinct characters."""
    if not isinstance(alphabet, str):
        raise ParamsError(f"alphabet must be one text of characters, got {shown(alphabet)}")
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ParamsError("alphabet must have at least 1 character, and each once")
    if any(unicodedata.category(each) == "Cs" for each in alphabet):
        raise ParamsError("alphabet must be valid Unicode, got a lone surrogate")


def searched_characters(length: int) -> str:
    """Return the characters of which prefixes of a length are searched to learn an alphabet.

    Longer ones than one character have too many candidates for more than printable ASCII.
    """
    if length > 1:
        return _PRINTABLE
    every = map(chr, range(_CODES))
    return "".join(each for each in every if unicodedata.category(each) not in _SEARCHED_NOWHERE)


def learn_alphabet(detected: Iterable[str], known: Iterable[str]) -> str:
    """Return the characters of detected prefixes and known strings, sorted.

    Raises DecodeError if there are none.
    """
    characters = set().union(*detected, *known)
    if not characters:
        raise DecodeError(
            "no prefix is detected, so no alphabet can be learned: give one, or collect more"
        )
    return "".join(sorted(characters))
