"""Compiled loop that writes the strings of a product: prefixes followed by characters.

The strings of one length are numbered from 0. Let b be the number of characters of the alphabet and
L the number of characters after the prefix. The number of a string, written in base b, has the
indices of its characters as its last L digits. The remaining leading digits are the index of the
prefix:

    number = (index of the prefix) * b^L + sum over positions t = 0 ... L-1 of digit_t * b^(L-1-t)

Example: prefixes "a", "b", alphabet "xy", L = 1. The numbers 0, 1, 2, 3 are ax, ay, bx, by. Adding
1 gives the next string, as an odometer does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.texts import Texts


def continue_prefixes(
    prefixes: Texts, characters: Texts, length: int, start: int, stop: int
) -> Texts:
    """Return the strings `start` to `stop` - 1 of all prefixes with all continuations of a length.

    The last character changes first, and the prefix changes last.

    Parameters
    ----------
    length : number of characters after the prefix.
    """
    n = stop - start
    # Lengths in bytes of UTF-8. The array `data` has room for n strings of the largest possible
    # length. The compiled loop fills the first bytes, up to the end of the last string.
    max_character_bytes = int((characters.ends - characters.starts).max(initial=0))
    max_prefix_bytes = int((prefixes.ends - prefixes.starts).max(initial=0))
    max_string_bytes = max_prefix_bytes + length * max_character_bytes
    data = np.empty(n * max_string_bytes, dtype=np.uint8)
    starts, ends = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    _write_strings(
        (prefixes.data, prefixes.starts, prefixes.ends),
        (characters.data, characters.starts, characters.ends),
        length,
        start,
        (data, starts, ends),
    )
    return Texts(data=data, starts=starts, ends=ends)


_Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]
"""Data, starts and ends of `Texts`, because the compiler supports arrays and no Python classes."""


@compile_kernel
def _write_strings(
    prefixes: _Arrays,
    characters: _Arrays,
    length: int,
    first: int,
    strings: _Arrays,
) -> None:
    """Fill `strings` with the strings from the number `first` on."""
    data, starts, ends = strings
    prefix_data, prefix_starts, prefix_ends = prefixes
    char_data, char_starts, char_ends = characters
    base = len(char_starts)
    # The digits of the number `first` are the indices of the characters of its string.
    digits = np.zeros(length, dtype=np.int64)
    quotient = first
    for position in range(length - 1, -1, -1):
        digits[position] = quotient % base
        quotient //= base
    prefix, offset = quotient, 0
    for i in range(len(starts)):
        starts[i] = offset
        for byte in range(prefix_starts[prefix], prefix_ends[prefix]):
            data[offset] = prefix_data[byte]
            offset += 1
        for position in range(length):
            for byte in range(char_starts[digits[position]], char_ends[digits[position]]):
                data[offset] = char_data[byte]
                offset += 1
        ends[i] = offset
        # Add 1 to the digits; a carry past the first digit is the next prefix.
        position = length - 1
        while position >= 0:
            digits[position] += 1
            if digits[position] < base:
                break
            digits[position] = 0
            position -= 1
        if position < 0:
            prefix += 1
