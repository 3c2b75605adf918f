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

from rappor.base.argument_checks import check_type, explain_error_control, refuse_text
from rappor.base.errors import DecodeError
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
    n_candidates : number of tests for which the error rate is corrected. Every listed string has a
        test, with two exceptions: listed strings with the same bits in every cohort share one test,
        and a string that is known or has the bits of a known string has no test. If the list is so
        long that it was decoded as a stream, only the best candidates have rows. The number then
        includes every string without a row, known strings as well.
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
        """Return a dictionary for each string. `count` and `std_error` are numbers of reports."""
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
        `listed` is no Candidates, `known` is one text, or `error_control.ranked` is True (tests
        with weights by the order of the candidates). The tests of suggestions have equal weights.
    DecodeError
        As `decode`, or no string of `listed` can be distinguished from the known strings.

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
    error_control.refuse_ranked("suggestions")
    check_type("listed", listed, Candidates, "call Candidates.from_list(strings)")
    refuse_text("known", known)
    known = tuple(dict.fromkeys(known))
    known_estimates = decode(counts, known, progress=progress)
    known_candidates = Candidates.from_list(
        known, normalize=listed.normalize, field_names=listed.field_names
    )
    estimates = decode(
        counts,
        Candidates.chain(known_candidates, listed),
        error_control=error_control,
        progress=progress,
    )
    # Compare with the normalised known strings: decoding normalises its candidates.
    is_known = np.isin(estimates.candidates, known_estimates.candidates)
    # A listed string may have the same bits as a known string in every cohort. Its p-value is then
    # the p-value of the known string, which is no evidence that devices have the listed string. A
    # group number above 0 marks strings with the same bits.
    is_indistinguishable = np.isin(
        estimates.group, estimates.group[is_known & (estimates.group > 0)]
    )
    is_other = ~is_known & ~is_indistinguishable
    p_values = _select_listed_p_values(estimates, is_other)
    # Case: the list contains known strings only. The correction would divide the level by 0 tests.
    if p_values.n == 0:
        raise DecodeError("listed must have at least 1 string that is not known, got 0")
    # The largest p-value at which the correction for this number of tests detects a string.
    largest_detected = Thresholds(estimates.error_control, p_values).largest
    return CandidateSuggestions(
        estimates=estimates,
        chosen=np.flatnonzero(is_other & (estimates.p_value <= largest_detected)),
        n_candidates=p_values.n,
        unexplained_bits=known_estimates.diagnostics["unexplained_bits"],
    )


def _select_listed_p_values(estimates: Estimates, listed: Booleans) -> PValues:
    """Return the p-values of the listed strings.

    An identifiability group of listed strings has one p-value.

    Parameters
    ----------
    estimates : decode of known and listed strings together.
    listed : (c,) bool. True for the rows of listed strings that are not known.
    """
    # `distinct` is True for a candidate outside any group, and for the first row of each group.
    row_p_values = estimates.p_value[listed & estimates.distinct]
    # Case: the candidates were decoded as a list, so every candidate has a row.
    if estimates.n_candidates == len(estimates):
        return PValues(in_memory=row_p_values)
    # Case: the candidates were decoded as a stream. The candidates without a row are only in a
    # histogram, which does not show whether a candidate is known or listed. All of them count as
    # listed, because more p-values make the test stricter.
    other_counts = estimates.p_value_counts - count_p_values(estimates.p_value[estimates.distinct])
    lower_edges = EDGES[:-1][other_counts > 0]
    return PValues(
        in_memory=row_p_values,
        other_counts=other_counts,
        least_other=float(lower_edges[0]) if len(lower_edges) else 1.0,
    )
