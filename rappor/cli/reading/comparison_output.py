"""Output of `rappor compare` and `rappor trend`: files, JSON, and tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rappor.cli.console import get_width, print_parts, print_title
from rappor.cli.options import Output, save_chart

if TYPE_CHECKING:
    from rappor.comparison.comparison import Comparison


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
    from rappor.reporting.comparison_text import Title, list_comparison_parts

    if output.csv_path is not None:
        comparison.to_csv(output.csv_path, include_all=include_all)
    if output.html_path is not None:
        comparison.to_html(output.html_path)
    save_chart(comparison, output.chart, days=days)
    if output.as_json:
        click.echo(comparison.to_json(include_all=include_all))
        return
    for part in list_comparison_parts(comparison, include_all=include_all, width=get_width()):
        if isinstance(part, Title):
            print_title(part)
        else:
            print_parts(part)
