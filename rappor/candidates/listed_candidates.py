"""Candidates that a metric's entry in the registry lists, joined with the strings of a file.

A listed candidate stands in the metric's entry. Results show listed candidates first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rappor.candidates.candidates import Candidates
from rappor.protocol.params import Params


def add_to_list(listed: Sequence[str], candidates: Candidates | None, params: Params) -> Candidates:
    """Return the listed candidates, followed by the candidates of a file, without repetitions.

    The result has the line counts of the file, such as the number of blank lines.

    Parameters
    ----------
    listed : the strings that the metric's entry lists.
    candidates : the candidates of a file, or None without a file.
    params : the parameters of the metric, with its normalizer and its fields.
    """
    first = Candidates.from_list(listed, normalize=params.normalize, field_names=params.field_names)
    if candidates is None:
        return first
    both = Candidates.chain(first, candidates)
    if candidates.is_in_memory:
        # Both are in memory, so the joined candidates also fit into memory. A decode then needs no
        # second pass. Streamed candidates stay streamed, and may repeat a listed candidate.
        loaded = both.load_into_memory(len(first) + len(candidates))
        # Empty candidates are false in a condition, so None is compared.
        both = both if loaded is None else loaded
        both.copy_line_counts(candidates).n_duplicates = candidates.n_duplicates
    return both
