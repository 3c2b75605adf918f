"""Output of commands: text and tables for people, progress of long work, JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from types import TracebackType
from typing import Any, Final

import click
from rich import markup
from rich.console import Console, RenderableType
from rich.padding import Padding
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
from rich.table import Table
from rich.text import Text

from rappor.protocol.params import LETTERS, Params
from rappor.registry.metric import Metric
from rappor.reporting.markup import visible

_WIDTH: Final = 100
"""Number of columns if standard output is not a terminal."""

_FEW_STEPS: Final = 1000
"""Smallest number of steps of a stage for which a rate is displayed."""

_GLUE: Final = "\ue000"
"""Replaces a blank at which a line must not be broken. rich breaks at every Unicode blank."""

_LETTERS: Final = ("encoding", *LETTERS, "p_star", "q_star", "fingerprint")


def print_json(record: Any, **beside: Any) -> None:
    """Print a record, and additional entries, as one line of JSON.

    A record becomes an object of its fields and properties, parameters become their letters, and a
    metric becomes its name and fingerprint. JSON has no infinity: null replaces it.
    """
    document = _plain(record)
    for name, value in beside.items():
        document |= _entry(name, value)
    click.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """Convert records to JSON values."""
    if dataclasses.is_dataclass(value):
        entries: dict[str, Any] = {}
        names = [field.name for field in dataclasses.fields(value)]
        members = vars(type(value)).items()
        names += [name for name, member in members if isinstance(member, property)]
        for name in names:
            entries |= _entry(name, getattr(value, name))
        return entries
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _entry(name: str, value: Any) -> dict[str, Any]:
    """Return the entries that a field adds to the object of its record."""
    if isinstance(value, Params):
        return {letter: getattr(value, letter) for letter in _LETTERS}
    if isinstance(value, Metric):
        return {"metric": value.name, "params": value.fingerprint}
    return {name: _plain(value)}


def width() -> int:
    """Return the number of columns of the terminal, or 100 without a terminal."""
    return Console().width if sys.stdout.isatty() else _WIDTH


def escape(text: str) -> str:
    """Return text without markup and without control characters that a terminal would execute.

    A list of candidates may contain control characters, or marks that change the reading direction.
    """
    return markup.escape(visible(text))


def print_parts(*parts: RenderableType) -> None:
    """Print texts and tables, as wide as the terminal and without trailing blanks."""
    console = Console(highlight=False, emoji=False, width=width())
    with console.capture() as captured:
        for part in parts:
            console.print(_glued(part))
    lines = captured.get().replace(_GLUE, " ").removesuffix("\n").split("\n")
    click.echo("\n".join(line.rstrip() for line in lines))


def section(title: str, *parts: RenderableType) -> None:
    """Print an empty line, a title, and indented parts."""
    print_parts(
        f"\n[bold]{title}[/bold]",
        *(Padding(_glued(part), (0, 0, 0, 2), expand=False) for part in parts),
    )


def _glued(part: RenderableType) -> RenderableType:
    """Return text in which no line ends between a number and its unit."""
    return part.replace(" %", f"{_GLUE}%") if isinstance(part, str) else part


def table(*columns: str, left: int = 1) -> Table:
    """Return an empty table. The first `left` columns contain words, the others numbers."""
    new = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(columns):
        new.add_column(title, justify="left" if number < left else "right")
    return new


class _Rate(ProgressColumn):
    """Column with the number of steps a second."""

    def render(self, task: Task) -> Text:
        """Return the rate, or no text for a stage of few steps."""
        few = task.total is not None and task.total < _FEW_STEPS
        return Text("" if few or task.speed is None else f"{task.speed:,.0f}/s")


class Slow:
    """Progress display that appears only on a terminal, and only after a second of work.

    Call it with a stage, the completed steps, and all steps (None if unknown).
    """

    def __init__(self, console: Console | None = None, *, after: float = 1.0) -> None:
        """Start the clock.

        The display appears after `after` seconds, by default on standard error.
        """
        self._console = console or Console(stderr=True)
        self._starts = time.monotonic() + after
        self._display: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Slow:
        return self

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Display the progress of a stage."""
        if self._display is None:
            if not self._console.is_terminal or time.monotonic() < self._starts:
                return
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
