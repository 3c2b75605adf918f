"""`rappor suggest`: strings of a larger list that explain what the candidates do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from rappor.cli.commands import Command
from rappor.cli.console import Slow, escape, section, show, table
from rappor.cli.options import (
    grouped,
    json_option,
    source_options,
)
from rappor.cli.sources import Source
from rappor.decoding.detection import Detection
from rappor.reporting.numbers import p_value, percent, short_percent

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.decoding.suggestions import Suggestions


def _load(source: Source) -> tuple[list[Counts], Candidates]:
    """Read the counts and the known candidates."""
    from rappor.candidates.candidates import Candidates

    counts = source.read()
    known = source.candidates(counts)
    if known is None:
        raise click.UsageError("COUNTS must be of strings: every answer of another metric is known")
    if not isinstance(known, Candidates):
        raise click.UsageError("known candidates must be fewer: give the long list as --list")
    return counts, known


@click.command(
    cls=Command,
    examples=(
        "rappor suggest week.counts --candidates engines.txt --list words.txt",
        "rappor suggest week.counts --registry metrics.toml --metric search_engine \\\n"
        "  --candidates engines.txt --list words.txt --json",
    ),
)
@grouped(
    "source",
    Source,
    *source_options("Known strings"),
)
@click.option(
    "--list",
    "list_path",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="The larger list, one string per line, plain or gzip. It is read several times and not "
    "kept in memory.",
)
@click.option(
    "--level",
    type=float,
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="False discovery rate among the suggested strings.",
)
@json_option
def suggest(*, source: Source, list_path: str, level: float, as_json: bool) -> None:
    """Find strings of a list that explain what candidates do not.

    COUNTS are files as for `rappor decode`. Known and listed strings are decoded together. The
    p-values of the listed strings are corrected for the length of the list only. The command also
    shows bits that no known candidate explains.
    """
    from rappor.candidates.stream import CandidateStream
    from rappor.decoding.suggestions import suggest as find

    counts, candidates = _load(source)
    listed = CandidateStream.from_file(list_path, normalize=candidates.normalize)
    with Slow() as slow:
        found = find(
            counts, candidates.strings, listed, detection=Detection(level=level), progress=slow
        )
    if as_json:
        click.echo(found.to_json())
    else:
        _print(found)


def _print(found: Suggestions) -> None:
    show(
        f"{len(found.strings):,} of {found.n_candidates:,} listed strings explain what the known "
        "candidates do not, at a false discovery rate of "
        f"{short_percent(found.estimates.detection.level)}."
    )
    if found.strings:
        section("Suggested", _strings(found))
    if found.unexplained_bits:
        section("Bits that no known candidate explains", _unexplained(found))


def _strings(found: Suggestions) -> Table:
    shown = table("string", "reports", "std error", "share", "p-value")
    for row in found.rows():
        shown.add_row(
            escape(row["string"]),
            f"{row['count']:,.0f}",
            f"{row['std_error']:,.0f}",
            percent(row["proportion"], 3),
            p_value(row["p_value"]),
        )
    return shown


def _unexplained(found: Suggestions) -> Table:
    shown = table("parameter set", "cohort", "bit", "share", "its error")
    for bit in found.unexplained_bits:
        shown.add_row(
            str(bit["collection"]),
            str(bit["cohort"]),
            str(bit["bit"]),
            percent(bit["share"], 3),
            percent(bit["std_error"], 3),
        )
    return shown
