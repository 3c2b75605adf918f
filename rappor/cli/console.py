"""Output of commands: texts and tables for people, JSON for scripts, progress of long work.

Results go to standard output. Warnings and progress go to standard error, so that a script can read
the results.
"""

from __future__ import annotations

import operator
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rappor.reporting.json_values import to_json_text
from rappor.reporting.markup import replace_invisible
from rappor.reporting.tables import Table, wrap

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates

_WIDTH: Final = 100
"""Number of columns of a line if standard output is not a terminal. A convention: tables fit, and
files stay readable."""

_FEW_STEPS: Final = 1000
"""Smallest number of steps of a stage for which the display contains a rate. With fewer steps, the
remaining time is enough information."""

_DELIMITERS: Final = {"comma": ",", "semicolon": ";", "tab": "\t"}
"""Characters that separate the columns of a table, by their names in the warning about a table."""


def print_json(record: Any, **more: Any) -> None:
    """Print a record, and additional entries, as one line of JSON."""
    click.echo(to_json_text(record, **more))


def get_width() -> int:
    """Return the number of columns of the terminal, or 100 without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH


def print_parts(*parts: str | Table[Any], indent: int = 0) -> None:
    """Print texts and tables, as wide as the terminal. Each line begins with `indent` blanks.

    Strings of devices and analysts may contain control characters, or marks that change the reading
    direction. Their pictures or code points are printed instead, so a terminal does not execute
    them.
    """
    for part in parts:
        if isinstance(part, Table):
            # click removes the bold type if standard output is not a terminal.
            titles, line_break, rows = part.to_text(get_width() - indent).partition("\n")
            text = click.style(titles, bold=True) + line_break + rows
        else:
            # A line break of the text stays. `replace_invisible` would replace it by its picture.
            text = wrap("\n".join(map(replace_invisible, part.split("\n"))), get_width() - indent)
        click.echo(textwrap.indent(text, " " * indent))


def print_title(title: str) -> None:
    """Print a title."""
    click.secho(wrap(replace_invisible(title), get_width()), bold=True)


def print_section(title: str, *parts: str | Table[Any]) -> None:
    """Print an empty line, a title, and indented texts and tables."""
    click.echo()
    print_title(title)
    print_parts(*parts, indent=2)


def print_table(table: Table[Any], *notes: str) -> None:
    """Print a section that has the title of a table, the table, and notes below the table."""
    print_section(table.title, table, *notes)


def print_pairs(table: Table[Any]) -> None:
    """Print a table of properties and values without the titles of its columns."""
    click.echo(table.to_text(get_width(), include_titles=False))


def warn_about_candidates(candidates: Candidates | None) -> None:
    """Write the numbers of skipped and of suspicious candidates to standard error.

    Case: a list whose names have blanks at their ends. A name with a blank is another string than
    the name, and hardly any device reports it. Without the warning, an analyst would conclude that
    no string of the list is in use.
    """
    if candidates is None:
        return
    if candidates.n_blank or candidates.n_duplicates:
        click.echo(
            f"candidates: skipped {candidates.n_blank:,} blank lines and "
            f"{candidates.n_duplicates:,} repeated ones",
            err=True,
        )
    for number, predicate in (
        (candidates.n_spaced, "begin or end with white space"),
        (candidates.n_marked, "begin with a byte-order mark"),
    ):
        if number:
            click.echo(
                f"candidates: lines that {predicate}, which is part of their strings: {number:,}",
                err=True,
            )
    if not candidates.is_in_memory or len(candidates) < 2:
        return
    # Case: a table with a column of strings and other columns, such as `value,weight`. A candidate
    # is a whole line, and no device reports the line of a table.
    for name, delimiter in _DELIMITERS.items():
        if _have_all(candidates, operator.methodcaller("count", delimiter)):
            click.echo(
                f"candidates: every line contains a {name}, which is part of its string; of a "
                "table pass the column of the strings alone, without its title",
                err=True,
            )
    # Case: the only column of a table that R or a spreadsheet has written.
    if _have_all(candidates, lambda text: text[:1] == text[-1:] == '"'):
        click.echo(
            "candidates: every line is between quotation marks, which are part of its string; "
            "remove the marks",
            err=True,
        )


def _have_all(candidates: Candidates, predicate: Callable[[str], object]) -> bool:
    """Return whether all candidates satisfy a predicate.

    Most lists have a string that does not in the first block. The whole list as Python strings
    would take seconds and hundreds of megabytes.
    """
    return all(predicate(text) for block in candidates.read_blocks() for text in block.to_strings())


class _Rate(ProgressColumn):
    """Column of the progress display with the number of steps in a second."""

    def render(self, task: Task) -> Text:
        """Return the rate, or no text for a stage of few steps."""
        has_few_steps = task.total is not None and task.total < _FEW_STEPS
        if has_few_steps or task.speed is None:
            return Text("")
        return Text(f"{task.speed:,.0f}/s")


class ProgressDisplay:
    """Progress display that appears only on a terminal, and only after a second of work.

    A short command therefore prints only its result, and a script gets no control characters. Call
    the object with the name of a stage, the number of completed steps, and the number of all steps
    (None for an unknown number).
    """

    def __init__(self, console: Console | None = None, *, after: float = 1.0) -> None:
        """Store the time at which the display may appear.

        Parameters
        ----------
        console : where the display appears; None for standard error.
        after : number of seconds before the display appears.
        """
        self._console = console or Console(stderr=True)
        self._earliest_start = time.monotonic() + after
        self._display: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> ProgressDisplay:
        return self

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Display the progress of a stage."""
        if self._display is None:
            if not self._console.is_terminal or time.monotonic() < self._earliest_start:
                return
            # The display is created only now. Most commands end within the first second, and need
            # none.
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                _Rate(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._display = Progress(*columns, console=self._console, transient=True)
            self._task = self._display.add_task(stage, total=total)
            self._display.start()
        self._display.update(self._task, description=stage, completed=done, total=total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.stop()
