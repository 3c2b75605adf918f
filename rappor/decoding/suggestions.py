"""Suggest candidates: strings of a larger list that devices have beside the known candidates.

A metric has 50 known candidates, and its decode warns that many bits are unexplained. Which of a
million dictionary words would explain them? Known and listed strings are decoded together, so that
known strings explain their own bits, and only the listed strings are tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rappor.base.argument_checks import check_type, explain_error_control
from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Booleans, Integers
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import EDGES, PValues, count_p_values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSuggestions:
    """Suggested candidates, the most frequent first.

    Attributes
    ----------
    estimates : decode of known and listed strings together.
    chosen : (s,) int64. Rows of `estimates` of the suggested strings: detected, in the list, and
        not known.
    n_candidates : number of strings for which the p-values are corrected: the strings of the list,
        and known strings without a row.
    unexplained_bits : bits that no known candidate explains, as in `Estimates.diagnostics`.
    """

    estimates: Estimates
    chosen: Integers
    n_candidates: int
    unexplained_bits: list[dict[str, Any]]

    @property
    def strings(self) -> tuple[str, ...]:
        """Suggested strings."""
        return tuple(self.estimates.candidates[i] for i in self.chosen)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each string. Counts and their errors are in reports."""
        rows = (self.estimates.row(int(i)) for i in self.chosen)
        names = ("count", "std_error", "share", "p_value")
        return [{"string": row["candidate"], **{name: row[name] for name in names}} for row in rows]

    def to_json(self) -> str:
        """Write the object of `rappor discover --list --json`, without the estimates."""
        document = {
            "suggestions": self.rows(),
            "candidates": self.n_candidates,
            "level": self.estimates.error_control.alpha,
            "reports": self.estimates.reports,
            "assumptions": self.estimates.assumptions,
            "unexplained_bits": self.unexplained_bits,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False)


@explain_error_control
def suggest_candidates(
    counts: Counts | Sequence[Counts],
    known: Iterable[str],
    listed: Candidates,
    *,
    error_control: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> CandidateSuggestions:
    """Find strings of a list that devices have and that are not known candidates.

    Known and listed strings are decoded together, so that a known string explains its own bits. The
    error rate applies to the p-values of the listed strings alone, however many known strings are
    detected.

    Parameters
    ----------
    counts : as in `decode`.
    known : current candidates, at least one.
    listed : the larger list. It may contain known candidates.
    error_control : error rate of the suggestions.
    progress : as in `decode`.

    Raises
    ------
    ParamsError
        `listed` is no Candidates.
    DecodeError
        As `decode`.

    Examples
    --------
    >>> from rappor import Candidates, Params, Population, simulate_counts
    >>> population = Population(["vim", "emacs", "helix"], [5, 3, 2])
    >>> params = Params.profile("balanced")
    >>> counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    >>> listed = Candidates.product(["heli", "na"], "abcdefghijklmnopqrstuvwxyz", 1, 2)
    >>> suggest_candidates(counts, ["vim", "emacs"], listed).strings
    ('helix',)
    """
    check_type("listed", listed, Candidates, "call Candidates.from_list(strings)")
    known = tuple(dict.fromkeys(known))
    known_estimates = decode(counts, known, progress=progress)
    known_candidates = Candidates.from_list(known, normalize=listed.normalize)
    estimates = decode(
        counts,
        Candidates.chain(known_candidates, listed),
        error_control=error_control,
        progress=progress,
    )
    # Compare with the normalised known strings: decoding normalises its candidates.
    is_known = np.isin(estimates.candidates, known_estimates.candidates)
    # A string that cannot be distinguished from a known string is not evidence of another string.
    is_indistinguishable = np.isin(
        estimates.group, estimates.group[is_known & (estimates.group > 0)]
    )
    is_other = ~is_known & ~is_indistinguishable
    p_values = _select_listed_p_values(estimates, is_other)
    largest = Thresholds(estimates.error_control, p_values).largest
    return CandidateSuggestions(
        estimates=estimates,
        chosen=np.flatnonzero(is_other & (estimates.p_value <= largest)),
        n_candidates=p_values.n,
        unexplained_bits=known_estimates.diagnostics["unexplained_bits"],
    )


def _select_listed_p_values(estimates: Estimates, listed: Booleans) -> PValues:
    """Return the p-values of the listed strings.

    A group of listed strings has one p-value. A known string without a row counts as listed: one
    more p-value makes the test stricter.
    """
    rows = estimates.p_value[listed & estimates.distinct]
    # A list has an exact p-value for every candidate. A stream has a histogram for most.
    if estimates.n_candidates == len(estimates):
        return PValues(in_memory=rows)
    others = estimates.p_value_counts - count_p_values(estimates.p_value[estimates.distinct])
    possible_p_values = EDGES[:-1][others > 0]
    return PValues(
        in_memory=rows,
        other_counts=others,
        least_other=float(possible_p_values[0]) if len(possible_p_values) else 1.0,
    )
