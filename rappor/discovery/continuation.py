"""Candidates for the next part of a string: every kept prefix, extended by all continuations.

A *continuation* is a string over the alphabet that is appended to a prefix. The candidates are a
product (prefixes times continuations), which `decode` reads as a stream, so that 20 million of them
need no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError
from rappor.candidates.candidates import Candidates
from rappor.decoding.estimates import Estimates
from rappor.protocol.parts import extract_part

_DEFAULT_CANDIDATES: Final = 20_000_000
"""Default number of candidates of a part, from which the number of kept prefixes is computed. With
more candidates, more prefixes are kept and fewer strings are missed. But every candidate makes the
last test stricter and slower."""

_LEAST_KEPT: Final = 50
"""Smallest default number of kept prefixes. With a large alphabet, 20 million candidates would
allow fewer prefixes, and frequent strings would be missed."""


def continue_prefixes(
    prefixes: Sequence[str],
    length: int,
    longest: int,
    alphabet: str,
    known_candidates: Candidates,
    part: str,
) -> Candidates:
    """Build a stream of candidates by extending prefixes.

    Parameters
    ----------
    prefixes : the kept prefixes of the previous part.
    length : number of characters of the previous part. A shorter prefix is a complete string and is
        not extended.
    longest : largest number of characters of a candidate.
    alphabet : characters of the continuations.
    known_candidates : known strings. The stream begins with their pieces for the next part.
    part : name of the next part.

    Raises
    ------
    ParamsError
        The stream has more than 1e9 strings.
    """
    unextended = [extract_part(part, string) for string in known_candidates.strings]
    unextended += [prefix for prefix in prefixes if len(prefix) < length]
    stems = [prefix for prefix in prefixes if len(prefix) == length]
    normalize = known_candidates.normalize
    # A product with 0 added characters contains its prefixes unchanged.
    candidates = Candidates.chain(
        Candidates.product(dict.fromkeys(unextended), "", 0, 0, normalize=normalize),
        Candidates.product(stems, alphabet, 0, longest - length, normalize=normalize),
    )
    # `decode` refuses known strings that are a result of the same metric.
    candidates.origins = known_candidates.origins
    return candidates


def count_continuations(characters: int, added: int) -> int:
    """Compute the number of continuations of a prefix.

    Parameters
    ----------
    characters : number of characters of the alphabet.
    added : largest number of characters of a continuation.

    Examples
    --------
    >>> count_continuations(26, 2)
    703
    """
    number: int = sum(characters**n for n in range(added + 1))
    return number


def count_kept_prefixes(characters: int, added: int) -> int:
    """Compute the default number of kept prefixes, with the arguments of `count_continuations`."""
    return max(_DEFAULT_CANDIDATES // count_continuations(characters, added), _LEAST_KEPT)


def select_best_prefixes(estimates: Estimates, most: int) -> list[str]:
    """Select at most `most` prefixes with the largest positive z scores, the largest first.

    Raises
    ------
    DecodeError
        No prefix has a positive estimate.
    """
    z = estimates.share / estimates.std_error
    best = np.argsort(-z, kind="stable")[:most]
    best_prefixes = [estimates.candidates[i] for i in best if z[i] > 0]
    # With a wrong alphabet no prefix matches, and every extension would be searched in vain.
    if not best_prefixes:
        raise DecodeError(
            f"none of {estimates.n_candidates:,} prefixes has a positive estimate: "
            "the alphabet may lack the characters of the strings"
        )
    return best_prefixes
