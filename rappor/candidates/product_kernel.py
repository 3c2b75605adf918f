"""The compiled loop that writes prefixes and their continuations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.base.jit import compile_kernel
from rappor.candidates.texts import Texts


def continue_prefixes(
    prefixes: Texts, characters: Texts, length: int, start: int, stop: int
) -> Texts:
    """Return the strings start to stop - 1 of all prefixes with all continuations of a length.

    The last character changes first, the prefix last.
    """
    n = stop - start
    widest = int((characters.ends - characters.starts).max(initial=0))
    longest = int((prefixes.ends - prefixes.starts).max(initial=0)) + length * widest
    data = np.empty(n * longest, dtype=np.uint8)
    starts, ends = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    _write(
        (prefixes.data, prefixes.starts, prefixes.ends),
        (characters.data, characters.starts, characters.ends),
        length,
        start,
        (data, starts, ends),
    )
    return Texts(data=data, starts=starts, ends=ends)


_Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


@compile_kernel
def _write(
    prefixes: _Arrays,
    characters: _Arrays,
    length: int,
    first: int,
    strings: _Arrays,
) -> None:
    """Write one string after the other; `first` is the number of the first."""
    data, starts, ends = strings
    head_bytes, head_starts, head_ends = prefixes
    bytes_, char_starts, char_ends = characters
    base = len(char_starts)
    digits = np.zeros(length, dtype=np.int64)
    rest = first
    for place in range(length - 1, -1, -1):
        digits[place] = rest % base
        rest //= base
    head, at = rest, 0
    for i in range(len(starts)):
        starts[i] = at
        for byte in range(head_starts[head], head_ends[head]):
            data[at] = head_bytes[byte]
            at += 1
        for place in range(length):
            for byte in range(char_starts[digits[place]], char_ends[digits[place]]):
                data[at] = bytes_[byte]
                at += 1
        ends[i] = at
        place = length - 1
        while place >= 0:
            digits[place] += 1
            if digits[place] < base:
                break
            digits[place] = 0
            place -= 1
        if place < 0:
            head += 1
