"""Tables of results as lists of candidates.

`rappor decode --csv`, `rappor discover --csv` and the collector write tables of estimates with a
row for each candidate. An analyst may use such a table as a list of candidates of another metric:
its column `candidate` contains the strings. The strings and their order come from reports, so they
must not be candidates of the same metric. Each row therefore contains the metric and the
fingerprint of its reports, which stay with the candidates (`Candidates.origins`).

All other forms of a result are refused: its JSON, its page, the text that a command prints, and a
table without these two columns. Their lines would be read as candidates that no device has. And the
decode could not check that the order of the strings comes from reports of another metric.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Final, NamedTuple

from rappor.base.atomic_files import describe_wrong_encoding
from rappor.base.errors import FileError

ORIGIN_COLUMNS: Final = ("metric", "fingerprint")
"""Columns of a table of estimates that name the reports of a row. A table of several parameter sets
has their fingerprints separated by blanks."""

_FIRST_COLUMNS: Final = ("candidate", "count", "std_error")
"""First columns of every table of estimates. No list of strings begins with such a line."""

_OTHER_FORMS: Final = (
    (
        re.compile(rb'\{"(?:estimates|format|metric|suggestions|weights)":'),
        "the JSON of a result",
    ),
    (re.compile(rb"<!doctype html", re.IGNORECASE), "a page of HTML"),
    (re.compile(rb"RAPPOR COUNTS "), "a file of counts"),
    # The titles of `Table.to_text`. At least two spaces stand between two titles.
    (
        re.compile(rb"(?:.*\r?\n){0,9} *(?:candidate|string)(?: {2,}\S+(?: \S+)*){2,}"),
        "the printed text of a result",
    ),
    (
        re.compile(rb'"?candidate"?[,;\t]"?(?:count|what)"?[,;\t]'),
        f"a table of results without the columns {' and '.join(ORIGIN_COLUMNS)} at its end, or "
        "without commas between its columns",
    ),
)
"""Patterns of the first lines of files that are no lists of strings, and their names in messages.
Every JSON document of a command begins with one of the five keys."""

_POPULATION: Final = re.compile(rb'"?value"?,"?(?:weight|count)"?\r?\n')
"""First line of a population, the input of a simulation. Its lines, such as `cat,5`, would be read
as candidates that no device has."""

_MARK: Final = "'"
"""Character that a table of estimates has in front of a text that a spreadsheet would compute as a
formula. The reader removes the character, so that the candidate is the recorded string again."""


class Origin(NamedTuple):
    """Reports from which the order of a list comes: the metric and the fingerprint."""

    metric: str
    fingerprint: str


def is_result_table(head: bytes) -> bool:
    """Return whether the first bytes of a file are the titles of a table of estimates."""
    line = head.removeprefix(b"\xef\xbb\xbf").splitlines()[:1]
    # A spreadsheet that saves the table may quote every title.
    titles = line[0].decode(errors="replace").replace('"', "").split(",") if line else []
    return (*titles[:3],) == _FIRST_COLUMNS and titles[-2:] == list(ORIGIN_COLUMNS)


def check_is_list(head: bytes, path: str) -> None:
    """Raise FileError if a file begins like a population, or like a result in another form.

    Parameters
    ----------
    head : at least the first lines of the file, if it has several.
    path : name of the file in messages.
    """
    start = head.removeprefix(b"\xef\xbb\xbf")
    if _POPULATION.match(start):
        raise FileError(
            path,
            "it must be a list of strings, got a population with weights; write its values into a "
            "file, one per line and without the header",
        )
    for pattern, form in _OTHER_FORMS:
        if pattern.match(start):
            raise FileError(
                path,
                f"it must be a list of strings, got {form}; of results, only the table that "
                "`rappor decode --csv` writes can be a list of candidates",
            )


def read_result_table(data: bytes, path: str) -> tuple[list[str], frozenset[Origin]]:
    """Read the candidates of a table of estimates, and the reports that they come from.

    Parameters
    ----------
    data : the table in UTF-8, whose first line `is_result_table` recognises.
    path : name of the file in messages.

    Raises
    ------
    FileError
        The table is not UTF-8, or a row cannot be read or has other columns than the titles.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(path, describe_wrong_encoding(data), line=line) from None
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        # `line_num` counts the lines of a cell that contains line feeds.
        (_, titles), *rows = ((reader.line_num, row) for row in reader)
    except csv.Error as error:  # for example a cell of more than 131,072 characters
        reason = f"its row cannot be read: {error}"
        raise FileError(path, reason, line=reader.line_num) from None
    strings: list[str] = []
    origins: set[Origin] = set()
    for line, row in rows:
        if len(row) != len(titles):
            reason = "its rows must have the columns of its titles"
            raise FileError(path, reason, line=line)
        *_, metric, fingerprints = row
        strings.append(row[0].removeprefix(_MARK))
        origins |= {Origin(metric, fingerprint) for fingerprint in fingerprints.split()}
    return strings, frozenset(origins)
