"""Discovery: strings that no list of candidates names, found part by part."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rappor.base.errors import DecodeError, ParamsError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_integer, shown
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.discovery.collected_parts import in_order
from rappor.discovery.continuation import best_prefixes, continue_prefixes, n_kept
from rappor.discovery.discoveries import DiscoveredStrings, Prefixes, Unfinished
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.parts import WHOLE, cut, prefix_length

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
_CODES: Final = 0x110000
_SEARCHED_NOWHERE: Final = ("Cc", "Cn", "Co", "Cs")
"""Categories of Unicode: controls, unassigned, for private use, surrogates."""

_BEYOND: Final = 4.0
"""Standard errors by which a prefix holds more than its strings: of prefixes whose strings were all
found, one in 30,000 is that far off."""


def discover(  # noqa: PLR0913 - what may be searched for
    counts_by_part: Iterable[Counts],
    alphabet: str | None = None,
    *,
    known: Iterable[str] = (),
    listed: Iterable[str] = (),
    longest: int | None = None,
    keep: int | None = None,
    error_control: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> DiscoveredStrings:
    """Find strings that devices hold, without a list of candidates.

    The best prefixes of a part, continued in all ways over an alphabet, are the candidates of the
    next one. Prefixes are ranked, not tested. Only the last test, by the devices that answer for
    the whole string, announces anything. These devices took no part in choosing the candidates, so
    the error rate over all that were asked about is what it says. README.md in this folder has
    the choices.

    `counts_by_part` are of one metric in one epoch, at least one of each part; several of one part
    are days, as in `decode`. Without an `alphabet`, the characters of the strings, the first part
    is searched for printable ASCII, or for all of Unicode if it is `prefix:1`, and the alphabet has
    the characters of the prefixes that are detected there and of the known strings. Candidates that
    are `known` are tested as well. So are those in `listed`, the strings that the metric's entry
    lists, which come first in the result.
    `longest` is in characters; by default the last prefix is continued by as many as it has more
    than the prefix before it. `keep` prefixes of a part are continued; by default as many as make
    20 million candidates, and 50 at least.

    Raises DecodeError if the collections are not the parts of one metric, a part has no reports or
    no prefix with a positive estimate, and what `decode` raises; ParamsError if a part has more
    than 1e9 candidates (the message has their number), or an argument is impossible.

    Examples
    --------
    >>> from rappor import Params, Population, discover
    >>> from rappor.protocol.parts import Part
    >>> from rappor.simulation import simulate_parts
    >>> words = Population(["fish", "bird", "cat"], [3, 2, 1])
    >>> parts = [Part("prefix:2", 0.3), Part("whole")]
    >>> params = Params.profile("balanced")
    >>> counts = simulate_parts(words, params, parts, n_reports=100_000, seed=1)
    >>> discover(counts, "abcdefghijklmnopqrstuvwxyz").strings
    ('fish', 'bird', 'cat')
    """
    parts = in_order(counts_by_part)
    prefix_parts = [part for part in parts if part != WHOLE]
    lengths = _lengths(prefix_parts, longest)
    if alphabet is not None:
        _check_alphabet(alphabet)
    if keep is not None:
        check_integer("keep", keep, 1)
    entry_list = tuple(listed)
    beside = Candidates.from_list([*entry_list, *known], normalize=parts[WHOLE][0].params.normalize)

    def ask(part: str, kept: Sequence[str], length: int, longest: int) -> Estimates:
        return decode(
            parts[part],
            continue_prefixes(kept, length, longest, letters, beside, part),
            listed=entry_list if part == WHOLE else (),
            error_control=error_control,
            progress=lambda stage, done, total: progress(f"{part}: {stage}", done, total),
        )

    letters = _searched_characters(lengths[1]) if alphabet is None else alphabet
    kept: Sequence[str] = [""]
    told: list[Prefixes] = []
    for part, before, length, after in zip(
        prefix_parts, lengths, lengths[1:], lengths[2:], strict=False
    ):
        found = ask(part, kept, before, length)
        if not told and alphabet is None:
            letters = _learn_alphabet(found.detected_candidates, beside.strings)
        kept = best_prefixes(found, keep or n_kept(len(letters), after - length))
        told.append(_tell(part, found, len(kept)))
    estimates = ask(WHOLE, kept, *lengths[-2:])
    return DiscoveredStrings(
        estimates=estimates,
        prefixes=tuple(told),
        unfinished=_find_unfinished(prefix_parts[-1], found, estimates),
        alphabet=letters,
        learned=alphabet is None,
        longest=lengths[-1],
    )


def _lengths(prefix_parts: Sequence[str], longest: int | None) -> list[int]:
    """Return 0, the lengths of the prefixes, and that of the longest string to look for."""
    lengths = [0, *map(prefix_length, prefix_parts)]
    if longest is None:
        return [*lengths, 2 * lengths[-1] - lengths[-2]]
    check_integer("longest", longest, lengths[-1])
    return [*lengths, longest]


def _tell(part: str, found: Estimates, n_kept: int) -> Prefixes:
    return Prefixes(
        part=part,
        reports=found.reports,
        candidates=found.n_candidates,
        detected=int(found.detected.sum()),
        kept=n_kept,
        unallocated=found.unallocated,
        unallocated_std_error=found.unallocated_std_error,
    )


def _find_unfinished(part: str, prefixes: Estimates, found: Estimates) -> tuple[Unfinished, ...]:
    """Compare detected prefixes of a part with the detected strings, the largest rest first."""
    shares: dict[str, tuple[float, float]] = {}
    for i in np.flatnonzero(found.detected):
        prefix = cut(part, found.candidates[i])
        share, variance = shares.get(prefix, (0.0, 0.0))
        shares[prefix] = (share + found.share[i], variance + found.std_error[i] ** 2)
    compared = [
        _compare(prefixes, int(i), *shares.get(prefixes.candidates[i], (0.0, 0.0)))
        for i in np.flatnonzero(prefixes.detected)
    ]
    unfinished = [each for each in compared if each.rest > _BEYOND * each.rest_std_error]
    return tuple(sorted(unfinished, key=lambda each: each.rest, reverse=True))


def _compare(prefixes: Estimates, i: int, share: float, variance: float) -> Unfinished:
    return Unfinished(
        prefix=prefixes.candidates[i],
        proportion=float(prefixes.share[i]),
        std_error=float(prefixes.std_error[i]),
        found=float(share),
        found_std_error=float(variance**0.5),
    )


def _check_alphabet(alphabet: object) -> None:
    """Raise ParamsError unless this is a text of distinct characters."""
    if not isinstance(alphabet, str):
        raise ParamsError(f"alphabet must be one text of characters, got {shown(alphabet)}")
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ParamsError("alphabet must have at least 1 character, and each once")
    if any(unicodedata.category(each) == "Cs" for each in alphabet):
        raise ParamsError("alphabet must be valid Unicode, got a lone surrogate")


def _searched_characters(length: int) -> str:
    """Return the characters of which prefixes of a length are searched to learn an alphabet.

    Longer ones than one character have too many candidates for more than printable ASCII.
    """
    if length > 1:
        return _PRINTABLE
    every = map(chr, range(_CODES))
    return "".join(each for each in every if unicodedata.category(each) not in _SEARCHED_NOWHERE)


def _learn_alphabet(detected: Iterable[str], known: Iterable[str]) -> str:
    """Return the characters of detected prefixes and known strings, sorted.

    Raises DecodeError if there are none.
    """
    characters = set().union(*detected, *known)
    if not characters:
        raise DecodeError(
            "no prefix is detected, so no alphabet can be learned: give one, or collect more"
        )
    return "".join(sorted(characters))
