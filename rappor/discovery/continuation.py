"""Candidates of one part: the prefixes that were kept, continued in all ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.candidates.candidates import Candidates
from rappor.decoding.estimates import Estimates
from rappor.protocol.parts import cut

_CANDIDATES: Final = 20_000_000
"""Candidates for which prefixes are kept, where nobody says how many. More prefixes lose fewer
strings, but every candidate makes the last test stricter, and slower."""

_LEAST_KEPT: Final = 50
"""Prefixes that are kept at least, where nobody says how many."""


def continue_prefixes(
    kept: Sequence[str], length: int, longest: int, alphabet: str, known: Candidates, part: str
) -> Candidates:
    """Stream prefixes of `length` characters, each with up to `longest` in all.

    A shorter prefix is a whole string and stays as it is. The part of each known string comes
    first.

    Raises ParamsError for more than 1e9 strings.
    """
    beside = [cut(part, string) for string in known.strings]
    beside += [prefix for prefix in kept if len(prefix) < length]
    stems = [prefix for prefix in kept if len(prefix) == length]
    normalize = known.normalize
    # Without a character to add, a product is its prefixes as they are.
    return Candidates.chain(
        Candidates.product(dict.fromkeys(beside), "", 0, 0, normalize=normalize),
        Candidates.product(stems, alphabet, 0, longest - length, normalize=normalize),
    )


def n_continuations(characters: int, added: int) -> int:
    """Return in how many ways a prefix is continued by up to `added` characters of an alphabet."""
    number: int = sum(characters**n for n in range(added + 1))
    return number


def n_kept(characters: int, added: int) -> int:
    """Return how many prefixes are kept to be continued by up to `added` characters each."""
    return max(_CANDIDATES // n_continuations(characters, added), _LEAST_KEPT)


def best_prefixes(estimates: Estimates, most: int) -> list[str]:
    """Return the prefixes with the largest z scores that are positive.

    Raises DecodeError if there are none.
    """
    z = estimates.share / estimates.std_error
    best = np.argsort(-z, kind="stable")[:most]
    kept = [estimates.candidates[i] for i in best if z[i] > 0]
    if not kept:
        raise DecodeError(
            f"none of {estimates.n_candidates:,} prefixes has a positive estimate: "
            "the alphabet may lack the characters of the strings"
        )
    return kept
