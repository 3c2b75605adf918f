"""Output of `rappor compare` and `rappor trend`: files, JSON, and tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rappor.cli.console import get_width, print_parts, print_title
from rappor.cli.options import Output, save_chart

if TYPE_CHECKING:
    from rappor.comparison.comparison import Comparison

_MAX_STEPS: Final = 20
"""Largest number of significant steps that are printed. A step is a change between two neighbouring
periods. The last steps are printed. A longer list would push the table of changes above it off the
screen."""


def write_outputs(
    comparison: Comparison, output: Output, *, include_all: bool, days: str = ""
) -> None:
    """Write the requested files, and print the comparison.

    Parameters
    ----------
    comparison : the comparison.
    output : the requested files and the format.
    include_all : True for all candidates. False for candidates that changed or are detected.
    days : days of the reports, for samples that are no periods.
    """
    from rappor.reporting.comparison_tables import (
        changes_of_contrast,
        explain_changes,
        list_significant_steps,
    )
    from rappor.reporting.footnotes import list_comparison_footnotes
    from rappor.reporting.installations import describe_installations

    if output.csv_path is not None:
        comparison.to_csv(output.csv_path, include_all=include_all)
    if output.html_path is not None:
        comparison.to_html(output.html_path)
    save_chart(comparison, output.chart, days=days)
    if output.as_json:
        click.echo(comparison.to_json(include_all=include_all))
        return
    if comparison.installations is not None:
        print_parts(*describe_installations(comparison.installations), "")
    candidates = comparison.shown_rows.tolist()
    if include_all:
        candidates = list(range(len(comparison.candidates)))
    # Without rows, no table is printed. The footnotes at the end still say how many shares changed.
    contrasts = comparison.primary if candidates else ()
    for contrast in contrasts:
        print_title(contrast.name)
        print_parts(changes_of_contrast(comparison, contrast, candidates, get_width()), "")
    if contrasts and (notes := list(explain_changes(comparison))):
        print_parts(*notes, "")
    steps = list(list_significant_steps(comparison))
    if steps:
        more = f", the last {_MAX_STEPS}" if len(steps) > _MAX_STEPS else ""
        print_title(f"significant steps{more}")
        print_parts(*steps[-_MAX_STEPS:], "")
    print_parts(*list_comparison_footnotes(comparison))
