"""The result of a discovery: detected strings, and prefixes with undetected strings.

`rappor.discovery.part_by_part.discover` returns it. All shares are shares of the reports of one
part: reports of the complete string for strings, reports of the prefix for prefixes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from rappor.base.sentence_numbers import format_count
from rappor.decoding.estimates import Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPart:
    """Summary of the decode of one prefix part, such as "prefix:3".

    Attributes
    ----------
    part : name of the part.
    reports : number of reports of this part.
    candidates : number of prefixes that were candidates.
    detected : number of prefixes that the decode of this part detects. The search does not use it.
    kept : number of the best prefixes, which were extended to candidates of the next part.
    unallocated : share of the reports that no detected prefix explains: rare prefixes, and prefixes
        with a character outside the alphabet.
    unallocated_std_error : standard error of `unallocated`.
    """

    part: str
    reports: int
    candidates: int
    detected: int
    kept: int
    unallocated: float
    unallocated_std_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedPrefix:
    """A detected prefix with a larger share than the detected strings that begin with the prefix.

    The remaining strings are too rare or too long, or have a character outside the alphabet.

    Attributes
    ----------
    prefix : the prefix.
    share, std_error : share of the prefix, estimated from the devices that report this prefix.
    detected_share, detected_std_error : share of the detected strings that begin with the prefix,
        estimated from the devices that report the complete string.
    """

    prefix: str
    share: float
    std_error: float
    detected_share: float
    detected_std_error: float

    @property
    def undetected_share(self) -> float:
        """Share of the prefix that no detected string explains."""
        return self.share - self.detected_share

    @property
    def undetected_std_error(self) -> float:
        """Standard error of `undetected_share`.

        The two shares come from different devices, so their errors are independent, and their
        squares add.
        """
        return math.hypot(self.std_error, self.detected_std_error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiscoveredStrings:
    """The detected strings, most frequent first, and the course of the search.

    Attributes
    ----------
    estimates : the decode of the complete strings, with a row for each of the best candidates. Its
        detected strings are the result.
    prefixes : summaries of the prefix parts, the shortest prefix first.
    unfinished : prefixes with undetected strings, sorted by `undetected_share`, the largest first.
    alphabet : characters of the candidates.
    learned : True if the alphabet was learned from the first part.
    longest : largest number of characters of a candidate.

    Examples
    --------
    >>> from rappor import Params, Population, discover
    >>> from rappor.protocol.parts import Part
    >>> from rappor.simulation import simulate_parts
    >>> words = Population(["fish", "bird", "cat"], [3, 2, 1])
    >>> parts = [Part("prefix:2", 0.3), Part("whole")]
    >>> params = Params.profile("balanced")
    >>> counts = simulate_parts(words, params, parts, n_reports=100_000, seed=1)
    >>> discovered = discover(counts, "abcdefghijklmnopqrstuvwxyz")
    >>> [prefixes.part for prefixes in discovered.prefixes], discovered.longest
    (['prefix:2'], 4)
    """

    estimates: Estimates
    prefixes: tuple[PrefixPart, ...]
    unfinished: tuple[UnfinishedPrefix, ...]
    alphabet: str
    learned: bool
    longest: int

    def __repr__(self) -> str:
        return (
            f"DiscoveredStrings({format_count(len(self.strings), 'string')} of "
            f"{format_count(self.estimates.n_candidates, 'candidate')}, "
            f"{format_count(self.reports, 'report')})"
        )

    @property
    def strings(self) -> tuple[str, ...]:
        """Detected strings, most frequent first."""
        return tuple(self.estimates.detected_candidates)

    @property
    def reports(self) -> int:
        """Number of reports of all parts."""
        # A device reports one part, so no report counts twice.
        return self.estimates.reports + sum(part.reports for part in self.prefixes)

    def to_dict(self) -> dict[str, Any]:
        """Return the complete result as the object that `rappor discover --json` prints."""
        return self.estimates.to_dict(detected_only=True) | {
            "candidates": self.estimates.n_candidates,
            "prefixes": [asdict(part) for part in self.prefixes],
            "unfinished": [
                asdict(prefix)
                | {
                    "undetected_share": prefix.undetected_share,
                    "undetected_std_error": prefix.undetected_std_error,
                }
                for prefix in self.unfinished
            ],
            "alphabet": self.alphabet,
            "learned": self.learned,
            "longest": self.longest,
        }

    def to_json(self) -> str:
        """Write `to_dict` as one JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
