"""Options that several commands have, each with one name and one help text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from rappor.cli.numbers import WholeNumber
from rappor.decoding.detection import CORRECTIONS, Detection
from rappor.ground.display import Displayed
from rappor.ground.errors import ParamsError
from rappor.protocol.profiles import PROFILES, profile_named

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ProfileName(click.Choice):  # type: ignore[type-arg]  # generic in late versions only
    """The name of a profile; any other is refused with the sentence of the library."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        try:
            profile_named(value)
        except ParamsError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        return value


PROFILE_NAME: Final = ProfileName(list(PROFILES))


def grouped(name: str, record: type[Any], *options: Callable[[_Command], _Command]) -> Any:
    """Add options to a command and hand it their values as one frozen record.

    The record is a dataclass whose fields are the options' names, or have a value without one;
    the command is given it as its argument `name`.
    """
    fields = [field.name for field in dataclasses.fields(record)]

    def decorate(command: Callable[..., None]) -> Any:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            values = record(**{field: given.pop(field) for field in fields if field in given})
            command(**{name: values}, **given)

        decorated: Any = wrapped
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _check_chart(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse, before the work, a chart that could not be drawn or saved after it."""
    if path is not None and not ctx.resilient_parsing:
        from rappor.reporting.charts import check_suffix

        try:
            check_suffix(path)
        except ParamsError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return _check_folder(ctx, param, path)


def _check_folder(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Refuse, before the work, a file that could not be written after it."""
    if path is not None and not ctx.resilient_parsing and not Path(path).parent.is_dir():
        raise click.BadParameter(f"there is no folder {Path(path).parent}", ctx, param)
    return path


def registry_option(*, required: bool = True) -> Callable[[_Command], _Command]:
    """Return the option --registry."""
    return click.option(
        "--registry",
        "registry_path",
        required=required,
        type=click.Path(),
        metavar="FILE",
        help="Registry of metrics, a TOML file.",
    )


def metric_option(*, required: bool = False) -> Callable[[_Command], _Command]:
    """Return the option --metric."""
    return click.option(
        "--metric",
        "metric_name",
        required=required,
        metavar="NAME",
        help="Name of a metric in the registry.",
    )


def source_options(strings: str) -> tuple[Callable[[_Command], _Command], ...]:
    """Return the options of counts and `strings`, as its help calls the candidates."""
    return (
        click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="COUNTS"),
        registry_option(required=False),
        metric_option(),
        click.option(
            "--candidates",
            "candidates_path",
            type=click.Path(allow_dash=True),
            metavar="FILE",
            help=f"{strings}, one per line, plain or gzip; - is standard input. Default: those of "
            "the metric.",
        ),
    )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
chart_option = click.option(
    "--chart",
    type=click.Path(),
    callback=_check_chart,
    metavar="FILE",
    help="Also draw a chart into a file that ends in .svg, .png or .html.",
)
csv_option = click.option(
    "--csv",
    "csv_path",
    type=click.Path(),
    metavar="FILE",
    help="Also write the rows to a CSV file.",
)
html_option = click.option(
    "--html",
    "html_path",
    type=click.Path(),
    callback=_check_folder,
    metavar="FILE",
    help="Also write a report as one HTML file: charts, tables, diagnostics, hashes.",
)


def refuse_beside(option: str, *others: str | type[Any]) -> None:
    """Refuse arguments, or the fields of a record, that an option would ignore."""
    context = click.get_current_context()
    names = [
        name
        for each in others
        for name in (
            [each] if isinstance(each, str) else map(_field_name, dataclasses.fields(each))
        )
    ]
    given = [
        param.opts[0]
        for param in context.command.params
        if param.name in names
        and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} must be omitted with {option}")


def _field_name(field: dataclasses.Field[Any]) -> str:
    return field.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a panel goes, beside the terminal."""

    csv_path: str | None
    html_path: str | None
    chart: str | None
    as_json: bool


output_options = grouped("output", Output, csv_option, html_option, chart_option, json_option)


def save_chart(record: Displayed, path: str | None) -> None:
    """Draw a record's chart into a file, if one was asked for."""
    if path is not None:
        record.plot().save(path)


seed_option = click.option(
    "--seed",
    type=WholeNumber(0),
    metavar="N",
    help="Random seed for a repeatable run. Default: a new one for each run.",
)


detection_options = grouped(
    "detection",
    Detection,
    click.option(
        "--level",
        type=float,
        default=0.05,
        show_default=True,
        metavar="SHARE",
        help="Error rate of detection.",
    ),
    click.option(
        "--correction",
        type=click.Choice(CORRECTIONS),
        default="bh",
        show_default=True,
        help="What the level limits: the expected share of false detections (bh; adaptive finds "
        "more if many candidates are present), or the probability of any false detection "
        "(bonferroni).",
    ),
    click.option(
        "--confidence",
        type=float,
        default=0.95,
        show_default=True,
        metavar="SHARE",
        help="Confidence level of the intervals.",
    ),
)
