"""Candidates for the next part of a string: every kept prefix, extended by all continuations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.candidates.candidates import Candidates
from rappor.decoding.estimates import Estimates
from rappor.protocol.parts import extract_part

_CANDIDATES: Final = 20_000_000
"""Default number of candidates of a part, which determines the number of kept prefixes. More
prefixes miss fewer strings, but every candidate makes the last test stricter and slower."""

_LEAST_KEPT: Final = 50
"""Smallest default number of kept prefixes."""


def continue_prefixes(
    kept: Sequence[str], length: int, longest: int, alphabet: str, known: Candidates, part: str
) -> Candidates:
    """Build a stream of candidates by extending prefixes of `length` characters.

    A candidate has at most `longest` characters. A shorter prefix is a complete string and is not
    extended. The part of each known string comes first.

    Raises
    ------
    ParamsError
        The stream has more than 1e9 strings.
    """
    unextended = [extract_part(part, string) for string in known.strings]
    unextended += [prefix for prefix in kept if len(prefix) < length]
    stems = [prefix for prefix in kept if len(prefix) == length]
    normalize = known.normalize
    # A product with 0 added characters contains its prefixes unchanged.
    return Candidates.chain(
        Candidates.product(dict.fromkeys(unextended), "", 0, 0, normalize=normalize),
        Candidates.product(stems, alphabet, 0, longest - length, normalize=normalize),
    )


def count_continuations(characters: int, added: int) -> int:
    """Compute the number of continuations of a prefix by at most `added` characters.

    `characters` is the size of the alphabet.
    """
    number: int = sum(characters**n for n in range(added + 1))
    return number


def count_kept_prefixes(characters: int, added: int) -> int:
    """Compute the default number of kept prefixes, each extended by at most `added` characters."""
    return max(_CANDIDATES // count_continuations(characters, added), _LEAST_KEPT)


def select_best_prefixes(estimates: Estimates, most: int) -> list[str]:
    """Select the prefixes with the largest positive z scores.

    Raises
    ------
    DecodeError
        No prefix has a positive estimate.
    """
    z = estimates.share / estimates.std_error
    best = np.argsort(-z, kind="stable")[:most]
    kept = [estimates.candidates[i] for i in best if z[i] > 0]
    # With a wrong alphabet no prefix matches, and every extension would be searched in vain.
    if not kept:
        raise DecodeError(
            f"none of {estimates.n_candidates:,} prefixes has a positive estimate: "
            "the alphabet may lack the characters of the strings"
        )
    return kept
