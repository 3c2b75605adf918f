"""Discover frequent strings without a list of candidates, part by part.

A metric with parts asks each device for one piece of its string: some devices report the first
three letters (part "prefix:3"), all other devices the complete string (part "whole"). A device
reports one part, with its whole privacy budget.

How to think about it: the search is a beam search over prefixes.

1. The candidates of the first part are all strings over an alphabet of at most its length. `decode`
   estimates their shares.
2. The best prefixes are kept. Every kept prefix, continued by all strings over the alphabet, makes
   the candidates of the next part.
3. The last part is "whole". Its decode tests the candidates, and its detected strings are the
   result.

*Example.* Parts "prefix:2" and "whole", alphabet a to z. The first decode has 1 + 26 + 26^2 = 703
candidates: the empty string, letters and pairs. If "ki" and "li" are kept, the second decode has
2 (1 + 26 + 26^2) candidates: "ki", "kia", ..., "kiwi", ..., "lizz".

Error control: prefixes are ranked and not tested, and only the last test announces strings. Its
devices took no part in choosing its candidates, so its error rate is valid.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rappor.base.argument_checks import explain_error_control
from rappor.base.errors import DecodeError, ParamsError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import check_integer, format_value
from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.discovery.collected_parts import group_parts
from rappor.discovery.continuation import (
    continue_prefixes,
    count_kept_prefixes,
    select_best_prefixes,
)
from rappor.discovery.discoveries import DiscoveredStrings, PrefixPart, UnfinishedPrefix
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.parts import WHOLE, extract_part, parse_prefix_length

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
"""The printable characters of ASCII extend from space to tilde."""
_CODE_POINTS: Final = 0x110000
"""Number of code points of Unicode. The largest code point is 0x10FFFF."""
_UNSEARCHED_CATEGORIES: Final = ("Cc", "Cn", "Co", "Cs")
"""General categories of Unicode whose characters are not searched: controls, unassigned, private
use, and surrogates. Texts of people do not contain them."""

_LEAST_EXCESS: Final = 4.0
"""Excess of the share of a prefix over the share of its detected strings, in standard errors, above
which the prefix counts as unfinished. If all strings of the prefixes were detected, noise alone
would exceed the limit for one prefix in 30,000."""


@explain_error_control
def discover(  # noqa: PLR0913 - the options of a search
    counts_by_part: Iterable[Counts],
    alphabet: str | None = None,
    *,
    known: Iterable[str] | Candidates = (),
    listed: Iterable[str] = (),
    longest: int | None = None,
    keep: int | None = None,
    error_control: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> DiscoveredStrings:
    """Find frequent strings on devices without a list of candidates.

    The best prefixes of a part are extended by all characters of an alphabet. The extended prefixes
    are the candidates of the next part. Prefixes are ranked and not tested. Only the last test,
    with the reports of the complete string, decides which strings are detected. The devices of the
    last test took no part in the choice of its candidates, so its error rate holds over all
    candidates. README.md in this folder explains the choices.

    Parameters
    ----------
    counts_by_part : collections of one metric in one epoch, at least one for each part. Several
        collections of one part are days, as in `decode`.
    alphabet : characters of the strings. Without it, the first part is searched for printable
        ASCII, or for all of Unicode if it is `prefix:1`. The alphabet then contains the characters
        of the detected prefixes and of the known strings.
    known : further candidates of the last test, as texts before the normalizer of the metric. Their
        prefixes are candidates of the earlier parts.
    listed : strings that the metric's entry in the registry lists. They are candidates, and their
        rows come first in the result, detected or not.
    longest : largest number of characters of a string. By default, the last prefix is extended by
        as many characters as it is longer than the prefix before it.
    keep : number of prefixes of a part that are extended. By default, the number that makes 20
        million candidates, at least 50.
    error_control : error rate of the last test.
    progress : as in `decode`.

    Returns
    -------
    DiscoveredStrings: the detected strings with their estimates, most frequent first, and a summary
    of each part.

    Raises
    ------
    DecodeError
        The collections are not the parts of one metric, a part has no reports or no prefix with a
        positive estimate; and as `decode`.
    ParamsError
        A part has more than 1e9 candidates, an argument is out of its range, or `error_control` is
        for a ranked list.

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
    # The candidates of the last part come from the reports of the earlier parts, and so does their
    # order. It is no prior knowledge.
    error_control.refuse_ranked("discoveries")
    parts = group_parts(counts_by_part)
    prefix_parts = [part for part in parts if part != WHOLE]
    lengths = _compute_lengths(prefix_parts, longest)
    if alphabet is not None:
        _check_alphabet(alphabet)
    if keep is not None:
        check_integer("keep", keep, 1)
    entry_list = tuple(listed)
    further = known.strings if isinstance(known, Candidates) else known
    known_strings = Candidates.from_list(
        [*entry_list, *further], normalize=parts[WHOLE][0].params.normalize
    )
    if isinstance(known, Candidates):
        known_strings.origins = known.origins

    def decode_part(part: str, prefixes: Sequence[str], length: int, longest: int) -> Estimates:
        """Decode a part whose candidates continue `prefixes` of `length` characters."""
        return decode(
            parts[part],
            continue_prefixes(prefixes, length, longest, letters, known_strings, part),
            listed=entry_list if part == WHOLE else (),
            error_control=error_control,
            progress=lambda stage, done, total: progress(f"{part}: {stage}", done, total),
        )

    letters = _select_searched_characters(lengths[1]) if alphabet is None else alphabet
    # The first part continues the empty prefix.
    prefixes: Sequence[str] = [""]
    summaries: list[PrefixPart] = []
    for part, before, length, after in zip(
        prefix_parts, lengths, lengths[1:], lengths[2:], strict=False
    ):
        estimated_prefixes = decode_part(part, prefixes, before, length)
        # Only the first part is searched with all characters. Later parts would have too many
        # candidates.
        if not summaries and alphabet is None:
            letters = _learn_alphabet(estimated_prefixes.detected_candidates, known_strings.strings)
        prefixes = select_best_prefixes(
            estimated_prefixes, keep or count_kept_prefixes(len(letters), after - length)
        )
        summaries.append(_summarise_prefixes(part, estimated_prefixes, len(prefixes)))
    estimates = decode_part(WHOLE, prefixes, *lengths[-2:])
    return DiscoveredStrings(
        estimates=estimates,
        prefixes=tuple(summaries),
        unfinished=_find_unfinished(prefix_parts[-1], estimated_prefixes, estimates),
        alphabet=letters,
        learned=alphabet is None,
        longest=lengths[-1],
    )


def _compute_lengths(prefix_parts: Sequence[str], longest: int | None) -> list[int]:
    """Return 0, the lengths of the prefixes, and the length of the longest string, in characters.

    Two parts "prefix:3" and "prefix:6" give [0, 3, 6, 9] by default.
    """
    lengths = [0, *map(parse_prefix_length, prefix_parts)]
    # By default the strings are one step longer than the last prefix.
    if longest is None:
        return [*lengths, 2 * lengths[-1] - lengths[-2]]
    check_integer("longest", longest, lengths[-1])
    return [*lengths, longest]


def _summarise_prefixes(part: str, estimates: Estimates, n_kept: int) -> PrefixPart:
    """Summarise the decode of a prefix part."""
    return PrefixPart(
        part=part,
        reports=estimates.reports,
        candidates=estimates.n_candidates,
        detected=int(estimates.detected.sum()),
        kept=n_kept,
        unallocated=estimates.unallocated,
        unallocated_std_error=estimates.unallocated_std_error,
    )


def _find_unfinished(
    part: str, prefixes: Estimates, strings: Estimates
) -> tuple[UnfinishedPrefix, ...]:
    """Find the detected prefixes whose share exceeds the share of their detected strings.

    Parameters
    ----------
    part : the last prefix part, such as "prefix:3".
    prefixes : the decode of this part.
    strings : the decode of the complete strings.

    Returns
    -------
    The unfinished prefixes, the largest remainder first.
    """
    # Sum the detected strings of each prefix. Variances are added as for independent estimates.
    shares: dict[str, tuple[float, float]] = {}
    for i in np.flatnonzero(strings.detected):
        prefix = extract_part(part, strings.candidates[i])
        share, variance = shares.get(prefix, (0.0, 0.0))
        shares[prefix] = (share + strings.share[i], variance + strings.std_error[i] ** 2)
    compared = [
        _compare_prefix(prefixes, int(i), *shares.get(prefixes.candidates[i], (0.0, 0.0)))
        for i in np.flatnonzero(prefixes.detected)
    ]
    unfinished = [
        prefix
        for prefix in compared
        if prefix.undetected_share > _LEAST_EXCESS * prefix.undetected_std_error
    ]
    return tuple(sorted(unfinished, key=lambda prefix: prefix.undetected_share, reverse=True))


def _compare_prefix(prefixes: Estimates, i: int, share: float, variance: float) -> UnfinishedPrefix:
    """Compare prefix i with the detected strings that begin with the prefix.

    `share` is the sum of the shares of these strings, and `variance` is its variance.
    """
    return UnfinishedPrefix(
        prefix=prefixes.candidates[i],
        share=float(prefixes.share[i]),
        std_error=float(prefixes.std_error[i]),
        detected_share=float(share),
        detected_std_error=float(variance**0.5),
    )


def _check_alphabet(alphabet: object) -> None:
    """Raise ParamsError if the alphabet is not a text of distinct characters."""
    if not isinstance(alphabet, str):
        raise ParamsError(f"alphabet must be one text of characters, got {format_value(alphabet)}")
    # A repeated character would repeat candidates, and every copy would count in the error rate.
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ParamsError("alphabet must have at least 1 character, and each once")
    if any(unicodedata.category(character) == "Cs" for character in alphabet):
        raise ParamsError("alphabet must be valid Unicode, got a lone surrogate")


def _select_searched_characters(length: int) -> str:
    """Return the characters of the prefixes from which an alphabet is learned.

    Prefixes of two or more characters would have too many candidates with more than printable
    ASCII.
    """
    # All of Unicode squared would be more than 1e10 candidates.
    if length > 1:
        return _PRINTABLE
    characters = map(chr, range(_CODE_POINTS))
    return "".join(
        character
        for character in characters
        if unicodedata.category(character) not in _UNSEARCHED_CATEGORIES
    )


def _learn_alphabet(detected_prefixes: Iterable[str], known_strings: Iterable[str]) -> str:
    """Return the sorted characters of detected prefixes and known strings.

    Raises
    ------
    DecodeError
        There are no characters.
    """
    characters = set().union(*detected_prefixes, *known_strings)
    # With few reports no prefix is detected. An empty alphabet would search nothing without an
    # error.
    if not characters:
        raise DecodeError(
            "no prefix is detected, so no alphabet can be learned: give one, or collect more"
        )
    return "".join(sorted(characters))
