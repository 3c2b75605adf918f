"""Suggestions: strings of a larger list that would explain what the known candidates do not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """What is suggested, the most frequent string first.

    Attributes
    ----------
    estimates : the decode of known and listed strings together.
    chosen : (s,) int64. Its rows of those of the list that are detected and not known.
    n_candidates : how many strings the p-values are corrected for: those of the list, and known
        ones without a row.
    unexplained_bits : the bits that no known candidate explains, as `Estimates.diagnostics` has
        them.
    """

    estimates: Estimates
    chosen: Integers
    n_candidates: int
    unexplained_bits: list[dict[str, Any]]

    @property
    def strings(self) -> tuple[str, ...]:
        """What is suggested."""
        return tuple(self.estimates.candidates[i] for i in self.chosen)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each string; counts and their errors are in reports."""
        rows = (self.estimates.row(int(i)) for i in self.chosen)
        names = ("count", "std_error", "share", "p_value")
        return [{"string": row["candidate"], **{name: row[name] for name in names}} for row in rows]

    def to_json(self) -> str:
        """Write all but the estimates as JSON, the object of `rappor discover --list --json`."""
        document = {
            "suggestions": self.rows(),
            "candidates": self.n_candidates,
            "level": self.estimates.error_control.alpha,
            "reports": self.estimates.reports,
            "assumptions": self.estimates.assumptions,
            "unexplained_bits": self.unexplained_bits,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False)


def suggest_candidates(
    counts: Counts | Sequence[Counts],
    known: Iterable[str],
    listed: Candidates,
    *,
    error_control: ErrorControl = ErrorControl(),
    progress: Progress = no_progress,
) -> CandidateSuggestions:
    """Find strings of a list that devices hold beside the known candidates.

    Known and listed strings are decoded together, so that a known one explains its own bits. The
    p-values of the listed ones alone are then held to the level, whatever is detected among the
    known ones.

    Parameters
    ----------
    known : the candidates that are asked about already, at least one.
    listed : the larger list, some of which may be known.

    Raises
    ------
    DecodeError
        As `decode` does.

    Examples
    --------
    >>> from rappor import Candidates, Params, Population, simulate_counts
    >>> population = Population(["vim", "emacs", "helix"], [5, 3, 2])
    >>> params = Params.profile("balanced")
    >>> counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    >>> listed = Candidates.product(["heli", "na"], "abcdefghijklmnopqrstuvwxyz", 1, 2)
    >>> suggest(counts, ["vim", "emacs"], listed).strings
    ('helix',)
    """
    known = tuple(dict.fromkeys(known))
    before = decode(counts, known, progress=progress)
    first = Candidates.from_list(known, normalize=listed.normalize)
    found = decode(
        counts, Candidates.chain(first, listed), error_control=error_control, progress=progress
    )
    # As the devices write them: decoding has normalised the known ones.
    is_known = np.isin(found.candidates, before.candidates)
    # A string that cannot be told from a known one is no other string.
    alike = np.isin(found.group, found.group[is_known & (found.group > 0)])
    others = ~is_known & ~alike
    p_values = _listed_p_values(found, others)
    largest = Thresholds(found.error_control, p_values).largest
    return CandidateSuggestions(
        estimates=found,
        chosen=np.flatnonzero(others & (found.p_value <= largest)),
        n_candidates=p_values.n,
        unexplained_bits=before.diagnostics["unexplained_bits"],
    )


def _listed_p_values(found: Estimates, listed: Booleans) -> PValues:
    """Return the p-values of the listed strings.

    A group of them has one. A known string without a row is counted with the others: a p-value
    too many makes the test stricter.
    """
    rows = found.p_value[listed & found.distinct]
    if found.n_candidates == len(found):
        return PValues(rows=rows)
    others = found.p_value_counts - count_p_values(found.p_value[found.distinct])
    least = EDGES[:-1][others > 0]
    return PValues(rows=rows, others=others, least=float(least[0]) if len(least) else 1.0)
