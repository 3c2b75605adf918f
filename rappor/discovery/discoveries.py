"""What a discovery finds, and what it cannot find."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from rappor.base.plurals import counted
from rappor.decoding.estimates import Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """What the devices that answer for one prefix, such as "prefix:3", told.

    Of `candidates` prefixes `detected` ones are detected, each part on its own, which decides
    nothing, and the `kept` best ones were continued. `unallocated` is the share of reports that no
    detected prefix explains: rare ones, and those with a character that the alphabet lacks.
    """

    part: str
    reports: int
    candidates: int
    detected: int
    kept: int
    unallocated: float
    unallocated_std_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A detected prefix of the last part of prefixes that holds more than its strings do.

    The rest are strings that are too rare, too long, or have a character that the alphabet lacks.
    `proportion` is told by the devices that answer for the prefix; `found`, the share of the
    detected strings that begin with it, by those that answer for the whole string.
    """

    prefix: str
    proportion: float
    std_error: float
    found: float
    found_std_error: float

    @property
    def rest(self) -> float:
        """The share that no detected string explains."""
        return self.proportion - self.found

    @property
    def rest_std_error(self) -> float:
        """Its standard error: the two shares are told by different devices."""
        return math.hypot(self.std_error, self.found_std_error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiscoveredStrings:
    """The strings that were found, most frequent first, and how they were.

    `estimates` are the last test, with a row for each of the best candidates, of which the detected
    ones are announced. `prefixes` begin with the shortest, `unfinished` with the largest rest.
    `learned` says whether the alphabet was learned from the first part; `longest` are the
    characters of the longest string that was looked for.
    """

    estimates: Estimates
    prefixes: tuple[Prefixes, ...]
    unfinished: tuple[Unfinished, ...]
    alphabet: str
    learned: bool
    longest: int

    def __repr__(self) -> str:
        return (
            f"Discoveries({counted(len(self.strings), 'string')} of "
            f"{counted(self.estimates.n_candidates, 'candidate')}, "
            f"{counted(self.reports, 'report')})"
        )

    @property
    def strings(self) -> tuple[str, ...]:
        """The strings that are announced."""
        return tuple(self.estimates.detected_candidates)

    @property
    def reports(self) -> int:
        """Reports of all parts."""
        return self.estimates.reports + sum(each.reports for each in self.prefixes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as the object that `rappor discover --json` prints."""
        return self.estimates.to_dict(detected_only=True) | {
            "candidates": self.estimates.n_candidates,
            "prefixes": [asdict(each) for each in self.prefixes],
            "unfinished": [
                asdict(each) | {"rest": each.rest, "rest_std_error": each.rest_std_error}
                for each in self.unfinished
            ],
            "alphabet": self.alphabet,
            "learned": self.learned,
            "longest": self.longest,
        }

    def to_json(self) -> str:
        """Write `to_dict` as JSON, one object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
