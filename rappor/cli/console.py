"""What the commands share: options, progress on long work, and numbers for people."""

from __future__ import annotations

import json
import math
import sys
import time
from types import TracebackType
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rappor.errors import ParamsError
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


def _read_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic in late versions only
    """A whole number, also written as 1e9."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number; whatever is not whole is a usage error."""
        try:
            return _read_number(str(value))
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{value!r} is not a whole number", ctx, param) from None


class _Count(_Number):
    """A whole number of at least 1, small enough for closed forms in binary64."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number; one outside [1, 1e15] is a usage error."""
        number = super().convert(value, param, ctx)
        if not 1 <= number <= _MOST:
            raise click.BadParameter(f"{value} is not in [1, 1e15]", ctx, param)
        return number


NUMBER = _Number()
COUNT = _Count()
_MOST: Final = 10**15

registry_option = click.option(
    "--registry",
    "registry_path",
    required=True,
    type=click.Path(),
    help="Registry of metrics, a TOML file.",
)
metric_option = click.option("--metric", "name", required=True, help="Name of the metric.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def _check_chart(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse, before the work, a chart that could not be drawn after it."""
    if path is not None and not ctx.resilient_parsing:
        from rappor.reporting.charts import check_suffix

        try:
            check_suffix(path)
        except ParamsError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return path


chart_option = click.option(
    "--chart",
    type=click.Path(),
    callback=_check_chart,
    metavar="FILE",
    help="Also draw it: .svg, .png, or .html, one file that needs no network.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), help="Repeat a simulation; fresh without one."
)


def load_metric(registry_path: str, name: str) -> Metric:
    """Read the registry and return one metric of it."""
    return Registry.load(registry_path).metric(name)


def print_json(document: Any) -> None:
    """Print one JSON document on a line of its own; JSON has no infinity, so null stands for it."""
    click.echo(json.dumps(_finite(document), ensure_ascii=False, allow_nan=False))


def _finite(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and math.isinf(document) else document


def output() -> Console:
    """Return the console for tables; wide enough for them where nobody is looking."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)


class Slow:
    """A progress display on standard error that appears only when work takes over a second.

    Call it with a stage, how much is done and how much there is (None if nobody knows).
    """

    def __init__(self) -> None:
        """Start the clock."""
        self._begun = time.monotonic()
        self._display: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Slow:
        return self

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show how far a stage is."""
        if self._display is None:
            if time.monotonic() - self._begun < 1:
                return
            self._display = _display()
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


def _display() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
