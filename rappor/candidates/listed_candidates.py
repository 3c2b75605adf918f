"""Candidates that a metric's entry lists, together with the strings of a file."""

from __future__ import annotations

from collections.abc import Sequence

from rappor.candidates.candidates import Candidates


def add_to_list(
    listed: Sequence[str], candidates: Candidates | None, *, normalize: str
) -> Candidates:
    """Return the candidates of a list, then those of a file that the list does not contain.

    The notes of the file, such as its number of blank lines, are kept.

    Parameters
    ----------
    listed : the strings that the metric's entry lists.
    candidates : the candidates of a file, or None without a file.
    normalize : the normalizer of the metric.
    """
    first = Candidates.from_list(listed, normalize=normalize)
    if candidates is None:
        return first
    both = Candidates.chain(first, candidates)
    if candidates.is_in_memory:
        # Both lists fit into memory, and a list in memory is decoded without a second pass.
        both = both.load_into_memory(len(first) + len(candidates)) or both
        both.copy_line_counts(candidates).n_duplicates = candidates.n_duplicates
    return both
