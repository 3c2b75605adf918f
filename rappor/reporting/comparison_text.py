"""Text of a comparison, for a terminal and for `print`.

A comparison shows which shares differ between samples, for example between May and June. The text
has, in this order: active installations if the counts have them, a titled table of changes for each
contrast, an explanation of its columns, significant steps, and footnotes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rappor.comparison.comparison import Comparison
from rappor.reporting.comparison_tables import (
    changes_of_contrast,
    explain_changes,
    list_significant_steps,
)
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.installations import describe_installations
from rappor.reporting.markup import replace_invisible
from rappor.reporting.tables import Table, wrap

_MAX_STEPS: Final = 20
"""Largest number of significant steps that are printed. A step is a change between two neighbouring
periods. The last steps are printed. A longer list would push the table of changes above it off the
screen."""


class Title(str):
    """Title of a table or of a list. A terminal shows it in bold type."""

    __slots__ = ()


def comparison_text(comparison: Comparison, *, width: int = 100) -> str:
    """Format a comparison as text, with the strings of `Comparison.shown_rows`.

    Parameters
    ----------
    comparison : the comparison.
    width : number of columns of the terminal.
    """
    parts = list_comparison_parts(comparison, include_all=False, width=width)
    return "\n".join(
        part.to_text(width)
        if isinstance(part, Table)
        # A line break of the text stays. `replace_invisible` would replace it by its picture.
        else wrap("\n".join(map(replace_invisible, part.split("\n"))), width)
        for part in parts
    )


def list_comparison_parts(
    comparison: Comparison, *, include_all: bool, width: int
) -> Iterator[Title | str | Table[Any]]:
    """Yield the titles, tables and sentences of a comparison. An empty text is an empty line.

    Parameters
    ----------
    comparison : the comparison.
    include_all : True for all candidates. False for candidates that changed or are detected.
    width : number of columns of the terminal.
    """
    if comparison.installations is not None:
        yield from describe_installations(comparison.installations)
        yield ""
    candidates = comparison.shown_rows.tolist()
    if include_all:
        candidates = list(range(len(comparison.candidates)))
    # Without rows, no table is shown. The footnotes at the end still say how many shares changed.
    contrasts = comparison.primary if candidates else ()
    for contrast in contrasts:
        yield Title(contrast.name)
        yield changes_of_contrast(comparison, contrast, candidates, width)
        yield ""
    if contrasts and (notes := list(explain_changes(comparison))):
        yield from notes
        yield ""
    if steps := list(list_significant_steps(comparison)):
        more = f", the last {_MAX_STEPS}" if len(steps) > _MAX_STEPS else ""
        yield Title(f"significant steps{more}")
        yield from steps[-_MAX_STEPS:]
        yield ""
    yield from list_comparison_footnotes(comparison)
