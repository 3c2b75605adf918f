"""`rappor discover`: strings that no list of candidates names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from rappor.cli.alphabet import characters
from rappor.cli.commands import command
from rappor.cli.console import Slow, escape, print_parts, section, table, width
from rappor.cli.input_paths import PartSource
from rappor.cli.numbers import WholeNumber
from rappor.cli.options import (
    detection_options,
    json_option,
    option_field,
    option_group,
    refuse_options,
)
from rappor.estimator.error_control import ErrorControl
from rappor.reporting.markup import visible
from rappor.reporting.numbers import (
    format_p_value,
    format_percent,
    format_share,
    format_short_percent,
)

if TYPE_CHECKING:
    from rappor.decoding.estimates import Estimates
    from rappor.decoding.suggestions import CandidateSuggestions
    from rappor.discovery.discoveries import DiscoveredStrings, Prefixes

_ROWS: Final = 10
"""Unfinished prefixes that are shown; --json has all."""


@command(
    "rappor discover pet-prefix-2.counts pet-whole.counts --alphabet a-z",
    "rappor discover pet-prefix-2.counts pet-whole.counts --alphabet a-z0-9._- \\\n"
    "  --longest 3 --known words.txt --json",
    "rappor discover week.counts --known engines.txt --list words.txt",
)
def discover(
    *,
    source: PartSource = option_group(PartSource),
    alphabet: str | None = option_field(
        "CHARACTERS",
        "Characters of the strings; a-z means all from a to z, a hyphen at either end means "
        "itself. Default: learned from the first part.",
    ),
    longest: int | None = option_field(
        WholeNumber(1),
        "Length of the longest string to look for, in characters. By default, the last "
        "prefix is continued by as many characters as it is longer than the prefix before it.",
    ),
    keep: int | None = option_field(
        WholeNumber(1),
        "Prefixes of a part that are continued. Default: as many as make 20 million "
        "candidates, and at least 50.",
    ),
    list_path: str | None = option_field(
        "FILE", "Search this list instead, one string per line, plain or gzip."
    ),
    detection: ErrorControl = detection_options(),
    csv_path: str | None = option_field("FILE", "Also write the strings to a CSV file."),
    as_json: bool = json_option(),
) -> None:
    """Find strings without a list of candidates, part by part.

    COUNTS are files of every part of one metric in one epoch: one file for each part, or the JSON
    that a collector returns. With --registry the command checks that the days of such an answer
    are in one epoch.

    The best prefixes of each part are continued in all ways. Only the last test, on the devices
    that report the whole string, announces strings, and its error rate is over all strings that
    were tested. The command also shows what cannot be found: the share of reports that no prefix
    explains, and prefixes with a larger share than their strings.

    With --list, COUNTS are files as for `rappor decode`. Known and listed strings are decoded
    together. The p-values of the listed strings are corrected for the length of the list only. The
    command also shows bits that no known string explains.

    If the metric's entry lists its candidates, these come first, detected or not.
    """
    from rappor.discovery import part_by_part

    if list_path is not None:
        refuse_options("--list", "alphabet", "longest", "keep", "csv_path")
        _search_list(source, list_path, detection, as_json=as_json)
        return
    letters = None if alphabet is None else characters(alphabet)
    counts = source.read()
    if not all(each.params.part for each in counts):
        raise click.UsageError(
            "COUNTS must be of parts, got some of a metric without parts: it has no prefixes, so "
            "use rappor decode with a list of candidates"
        )
    with Slow() as slow:
        found = part_by_part.discover(
            counts,
            letters,
            known=source.known(counts),
            listed=source.listed(counts),
            longest=longest,
            keep=keep,
            error_control=detection,
            progress=slow,
        )
    if csv_path is not None:
        found.estimates.to_csv(csv_path, detected_only=True)
    if as_json:
        click.echo(found.to_json())
    else:
        _print(found)


def _search_list(
    source: PartSource, list_path: str, detection: ErrorControl, *, as_json: bool
) -> None:
    """Find strings of a list that explain what the known ones do not."""
    from rappor.candidates.candidates import Candidates
    from rappor.decoding.suggestions import suggest_candidates

    counts = source.read()
    known = source.candidates(counts)
    if known is None:
        raise click.UsageError("COUNTS must be of strings: every answer of another metric is known")
    if not known.is_held:
        raise click.UsageError("known strings must be fewer: give the long list as --list")
    listed = Candidates.from_file(list_path, normalize=known.normalize)
    with Slow() as slow:
        found = suggest_candidates(
            source.by_epoch(counts), known.strings, listed, error_control=detection, progress=slow
        )
    if as_json:
        click.echo(found.to_json())
    else:
        _print_suggestions(found)


def _print_suggestions(found: CandidateSuggestions) -> None:
    """Print the strings, and the bits that no known candidate explains."""
    print_parts(
        f"{len(found.strings):,} of {found.n_candidates:,} listed strings explain what the known "
        "candidates do not, at a false discovery rate of "
        f"{format_short_percent(found.estimates.error_control.alpha)}."
    )
    if found.strings:
        section("Suggested", _strings(found))
    if found.unexplained_bits:
        section("Bits that no known candidate explains", _unexplained_bits(found))


def _strings(found: CandidateSuggestions) -> Table:
    shown = table("string", "reports", "std error", "share", "p-value")
    for row in found.rows():
        shown.add_row(
            escape(row["string"]),
            f"{row['count']:,.0f}",
            f"{row['std_error']:,.0f}",
            format_share(row["share"], row["std_error"] / found.estimates.reports),
            format_p_value(row["p_value"]),
        )
    return shown


def _unexplained_bits(found: CandidateSuggestions) -> Table:
    shown = table("parameter set", "cohort", "bit", "share", "its error")
    for bit in found.unexplained_bits:
        shown.add_row(
            str(bit["collection"]),
            str(bit["cohort"]),
            str(bit["bit"]),
            format_share(bit["share"], bit["std_error"]),
            format_share(bit["std_error"], bit["std_error"]),
        )
    return shown


def _print(found: DiscoveredStrings) -> None:
    from rappor.reporting.text import estimates_text

    click.echo(estimates_text(found.estimates, detected_only=True, width=width()))
    _print_search(found)


def _print_search(found: DiscoveredStrings) -> None:
    section("Parts", _parts(found))
    learned = "learned from the first part" if found.learned else "as given"
    click.echo(
        f"\nStrings of up to {found.longest} characters, alphabet ({learned}): "
        f"{visible(found.alphabet)}"
    )
    if found.unfinished:
        section("Prefixes with a larger share than their strings", _unfinished(found))


def _parts(found: DiscoveredStrings) -> Table:
    shown = table("part", "reports", "tested", "detected", "kept", "unallocated", "its error")
    for each in found.prefixes:
        numbers = (each.reports, each.candidates, each.detected, each.kept)
        shown.add_row(each.part, *(f"{n:,}" for n in numbers), *_unallocated(each))
    last = found.estimates
    tested = (last.reports, last.n_candidates, len(found.strings))
    shown.add_row("whole", *(f"{n:,}" for n in tested), "", *_unallocated(last))
    return shown


def _unallocated(each: Prefixes | Estimates) -> tuple[str, str]:
    return format_percent(each.unallocated), format_percent(each.unallocated_std_error)


def _unfinished(found: DiscoveredStrings) -> Table:
    shown = table("prefix", "share", "its strings", "rest", "its error")
    for each in found.unfinished[:_ROWS]:
        numbers = (each.proportion, each.found, each.rest, each.rest_std_error)
        shown.add_row(escape(each.prefix), *(format_percent(number, 3) for number in numbers))
    if len(found.unfinished) > _ROWS:
        shown.add_row(f"and {len(found.unfinished) - _ROWS:,} more")
    return shown
