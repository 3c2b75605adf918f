"""`rappor discover`: finds frequent strings without a list of candidates.

Each device reports one part of its string: a prefix of some length, or the whole string. The
command tests short prefixes, continues the best of them, and finally tests whole strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, get_width, print_parts, print_table
from rappor.cli.option_values import WholeNumber, expand_alphabet
from rappor.cli.options import (
    detection_options,
    json_option,
    option_field,
    option_group,
    refuse_options,
)
from rappor.cli.reading.count_inputs import PartInputs
from rappor.estimator.error_control import ErrorControl
from rappor.reporting.markup import replace_invisible
from rappor.reporting.numbers import (
    format_p_value,
    format_percent,
    format_share,
    format_short_percent,
)
from rappor.reporting.tables import Column, Table, table_of_cells

if TYPE_CHECKING:
    from rappor.decoding.estimates import Estimates
    from rappor.decoding.suggestions import CandidateSuggestions
    from rappor.discovery.discoveries import DiscoveredStrings, PrefixPart

_ROWS: Final = 10
"""Largest number of unfinished prefixes (prefixes with a larger share than their strings) that are
printed. The JSON contains all of them."""


@command(
    "rappor discover pet-prefix-2.counts pet-whole.counts --alphabet a-z",
    "rappor discover pet-prefix-2.counts pet-whole.counts --alphabet a-z0-9._- \\\n"
    "  --longest 3 --known words.txt --json",
    "rappor discover week.counts --known engines.txt --list words.txt",
)
def discover(
    *,
    inputs: PartInputs = option_group(PartInputs),
    alphabet: str | None = option_field(
        "CHARACTERS",
        "Characters of the strings. a-z stands for all letters from a to z. A hyphen that is the "
        "first or last character stands for itself. Default: the characters that the reports of "
        "the first part show.",
    ),
    longest: int | None = option_field(
        WholeNumber(1),
        "Length of the longest string to find, in characters. Default: the length of the longest "
        "prefix, plus the number of characters by which it is longer than the next shorter one. "
        "With prefixes of 2 and 4 characters it is 6.",
    ),
    keep: int | None = option_field(
        WholeNumber(1),
        "Number of the most frequent prefixes of each part that the search continues. More "
        "prefixes find rarer strings, and take longer. Default: as many as make 20 million "
        "candidates, and at least 50.",
    ),
    list_path: str | None = option_field(
        "FILE",
        "Instead of parts, search this long list of strings, one per line, plain or gzip, for "
        "strings that the known strings do not explain.",
    ),
    detection: ErrorControl = detection_options(),
    csv_path: str | None = option_field("FILE", "Also write the strings to a CSV file."),
    as_json: bool = json_option(),
) -> None:
    """Find strings without a list of candidates, part by part.

    COUNTS are files of every part of one metric in one epoch: one file for each part, or the JSON
    that a collector returns. With --registry the command checks that the days of the JSON are in
    one epoch.

    The best prefixes of each part are continued by all combinations of characters. Only the last
    test, on the devices that report the whole string, detects strings. Its error rate holds over
    all strings that were tested. The command also shows the limits of the search: the share of
    reports that no prefix explains, and prefixes with a larger share than their strings.

    With --list, COUNTS are files as for `rappor decode`. Known and listed strings are decoded
    together. The p-values of the listed strings are corrected for the length of the list. The
    command also shows bits that no known string explains.

    Candidates that the metric's entry lists come first, detected or not.
    """
    from rappor.discovery import part_by_part

    if list_path is not None:
        refuse_options("--list", "alphabet", "longest", "keep", "csv_path")
        _search_list(inputs, list_path, detection, as_json=as_json)
        return
    letters = None if alphabet is None else expand_alphabet(alphabet)
    counts = inputs.read_counts()
    if not all(collection.params.part for collection in counts):
        raise click.UsageError(
            "COUNTS must be of parts, got counts of a metric without parts: use rappor decode with "
            "a list of candidates"
        )
    with ProgressDisplay() as progress:
        result = part_by_part.discover(
            counts,
            letters,
            known=inputs.read_known(counts),
            listed=inputs.find_listed_strings(counts),
            longest=longest,
            keep=keep,
            error_control=detection,
            progress=progress,
        )
    if csv_path is not None:
        result.estimates.to_csv(csv_path, detected_only=True)
    if as_json:
        click.echo(result.to_json())
    else:
        _print_strings(result)


def _search_list(
    inputs: PartInputs, list_path: str, detection: ErrorControl, *, as_json: bool
) -> None:
    """Search a list for strings that explain reports that the known strings do not explain."""
    from rappor.candidates.candidates import Candidates
    from rappor.decoding.suggestions import suggest_candidates

    counts = inputs.read_counts()
    known_candidates = inputs.read_candidates(counts)
    if known_candidates is None:
        raise click.UsageError(
            "COUNTS must be of strings: other metrics have a fixed list of categories"
        )
    if not known_candidates.is_in_memory:
        # Case: a file of known strings above 64 MB. The known strings are decoded together with
        # the list, so all of them must be in memory.
        raise click.UsageError("known strings must be fewer: give the long list as --list")
    listed = Candidates.from_file(
        list_path, normalize=known_candidates.normalize, field_names=known_candidates.field_names
    )
    with ProgressDisplay() as progress:
        suggestions = suggest_candidates(
            inputs.add_counts_of_epoch(counts),
            known_candidates.strings,
            listed,
            error_control=detection,
            progress=progress,
        )
    if as_json:
        click.echo(suggestions.to_json())
    else:
        _print_suggestions(suggestions)


def _print_suggestions(suggestions: CandidateSuggestions) -> None:
    """Print the suggested strings, and the bits that no known string explains."""
    from rappor.reporting.estimates_tables import unexplained_bits_table

    alpha = suggestions.estimates.error_control.alpha
    print_parts(
        f"{len(suggestions.strings):,} of {suggestions.n_candidates:,} listed strings explain what "
        f"the known candidates do not, at a false discovery rate of {format_short_percent(alpha)}."
    )
    if suggestions.strings:
        print_table(_make_suggestions_table(suggestions))
    if suggestions.unexplained_bits:
        title = "Bits that no known candidate explains"
        print_table(unexplained_bits_table(title, suggestions.unexplained_bits))


def _make_suggestions_table(suggestions: CandidateSuggestions) -> Table[Any]:
    """Return the table of the suggested strings."""
    reports = suggestions.estimates.reports
    return Table(
        title="Suggested",
        columns=(
            Column("string", lambda row: row["string"], "name"),
            Column("reports", lambda row: f"{row['count']:z,.0f}"),
            Column("std error", lambda row: f"{row['std_error']:,.0f}"),
            Column("share", lambda row: format_share(row["share"], row["std_error"] / reports)),
            Column("p-value", lambda row: format_p_value(row["p_value"])),
        ),
        rows=list(suggestions.rows()),
    )


def _print_strings(result: DiscoveredStrings) -> None:
    """Print the detected strings, a table of the parts, and the unfinished prefixes.

    An unfinished prefix has a larger share than the detected strings that begin with it.
    """
    from rappor.reporting.text import estimates_text

    click.echo(estimates_text(result.estimates, detected_only=True, width=get_width()))
    print_table(_make_parts_table(result))
    origin = "learned from the first part" if result.learned else "from --alphabet"
    # The alphabet may contain a blank, which `print_parts` would drop at the end of a line.
    click.echo(
        f"\nStrings of up to {result.longest} characters, alphabet ({origin}): "
        f"{replace_invisible(result.alphabet)}"
    )
    if result.unfinished:
        n_more = len(result.unfinished) - _ROWS
        print_table(
            _make_unfinished_table(result), *([f"and {n_more:,} more"] if n_more > 0 else [])
        )


def _make_parts_table(result: DiscoveredStrings) -> Table[Sequence[str]]:
    """Return a table with a row for each part.

    The columns are the numbers of reports and of tested, detected and kept prefixes, and the share
    of the reports that no detected prefix explains, with its standard error.
    """

    def format_row(name: str, part: PrefixPart | Estimates, *numbers: int) -> tuple[str, ...]:
        # Whole strings are not continued, so their row has no number in the column "kept".
        empty_cells = ("",) * (4 - len(numbers))
        errors = (part.unallocated, part.unallocated_std_error)
        return (name, *(f"{n:,}" for n in numbers), *empty_cells, *map(format_percent, errors))

    last = result.estimates
    return table_of_cells(
        "Parts",
        ("part", "reports", "tested", "detected", "kept", "unallocated", "std error"),
        (
            *(
                format_row(part.part, part, part.reports, part.candidates, part.detected, part.kept)
                for part in result.prefixes
            ),
            format_row("whole", last, last.reports, last.n_candidates, len(result.strings)),
        ),
    )


def _make_unfinished_table(result: DiscoveredStrings) -> Table[Any]:
    """Return the table of prefixes with a larger share than their strings."""
    return Table(
        title="Prefixes with a larger share than their strings",
        columns=(
            Column("prefix", lambda row: row.prefix, "name"),
            Column("share", lambda row: format_percent(row.share, 3)),
            Column("of detected strings", lambda row: format_percent(row.detected_share, 3)),
            Column("undetected", lambda row: format_percent(row.undetected_share, 3)),
            Column("std error", lambda row: format_percent(row.undetected_std_error, 3)),
        ),
        rows=result.unfinished[:_ROWS],
    )
