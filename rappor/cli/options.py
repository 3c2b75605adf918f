"""Options: how a command declares its own, and those that several commands have."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from rappor.cli.numbers import NUMBER, WholeNumber
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
Value: TypeAlias = str | Sequence[str] | click.ParamType  # type: ignore[type-arg]  # generic in late versions only
"""What an option takes: a word for it, a choice, or a type."""

_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("N", "BYTES"), NUMBER),
    **dict.fromkeys(("NATS", "SHARE", "PROBABILITY", "EXPONENT"), float),
    "FILE": click.Path(),
    "DAY": click.DateTime(["%Y-%m-%d"]),
}
"""The types of the words; any other word is that of a text."""


def option(flags: str, value: Value, text: str, **settings: Any) -> Any:
    """Return an option with its help; what it says where it is left out is shown.

    The settings are those of click, and `name`, where it is not that of the long flag.
    """
    if isinstance(value, str):
        settings = {"type": _KINDS.get(value, str), "metavar": value} | settings
    elif isinstance(value, click.ParamType):
        settings = {
            "type": value,
            "metavar": "N" if isinstance(value, WholeNumber) else None,
        } | settings
    else:
        settings = {"type": click.Choice(list(value))} | settings
    if settings.get("default") is not None:
        settings = {"show_default": True} | settings
    name = settings.pop("name", None)
    return click.option(*flags.split(), *([name] if name else []), help=text, **settings)


def flag(flags: str, text: str, *, name: str | None = None) -> Any:
    """Return an option without a value."""
    return click.option(*flags.split(), *([name] if name else []), is_flag=True, help=text)


def asked(value: Value, text: str, *, flags: str = "", **settings: Any) -> Any:
    """Return a field of a record for `grouped` that an option fills.

    Its flag is the field's name unless `flags` says another.
    """
    default = () if settings.get("multiple") else settings.get("default")
    build = functools.partial(option, value=value, text=text, **settings)
    return dataclasses.field(default=default, metadata={"option": build, "flags": flags})


def asked_flag(text: str, *, flags: str = "") -> Any:
    """Return a field of a record for `grouped` that an option without a value fills."""
    build = functools.partial(flag, text=text)
    return dataclasses.field(default=False, metadata={"option": build, "flags": flags})


def given(option: Any) -> Any:
    """Return a field of a record for `grouped` that an option of its name, or arguments, fill."""
    return dataclasses.field(metadata={"option": lambda _, **__: option, "flags": ""})


def grouped(name: str, record: type[Any], *options: Any) -> Any:
    """Add options to a command and hand it their values as one frozen record.

    The record is a dataclass. Its fields are `asked`, or the names of `options`, or have a value
    without one; the command is given it as its argument `name`.
    """
    fields = dataclasses.fields(record)
    own = [_option_of(field) for field in fields if "option" in field.metadata]

    def decorate(command: Callable[..., None]) -> Any:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            values = {field.name: given.pop(field.name) for field in fields if field.name in given}
            command(**{name: record(**values)}, **given)

        decorated: Any = wrapped
        for each in reversed([*options, *own]):
            decorated = each(decorated)
        return decorated

    return decorate


def _option_of(field: dataclasses.Field[Any]) -> Any:
    flags = field.metadata["flags"] or f"--{field.name.removesuffix('_path').replace('_', '-')}"
    return field.metadata["option"](flags, name=field.name)


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


def registry_option(*, required: bool = True) -> Any:
    """Return the option --registry."""
    text = "Registry of metrics, a TOML file."
    return option("--registry", "FILE", text, required=required, name="registry_path")


def metric_option(*, required: bool = False) -> Any:
    """Return the option --metric."""
    text = "Name of a metric in the registry."
    return option("--metric", "NAME", text, required=required, name="metric_name")


counts_argument = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(), metavar="COUNTS"
)
json_option = flag("--json", "Print one JSON document instead of text.", name="as_json")
chart_option = option(
    "--chart",
    "FILE",
    "Also draw a chart into a file that ends in .svg, .png or .html.",
    callback=_check_chart,
)


def options_typed() -> dict[str, str]:
    """Return the flags that stand on the command line, by the names of their arguments."""
    context = click.get_current_context()
    return {
        str(param.name): param.opts[0]
        for param in context.command.params
        if context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    }


def refuse_beside(option: str, *others: str | type[Any]) -> None:
    """Refuse arguments, or the fields of a record, that an option would ignore."""
    names: list[str] = []
    for each in others:
        names += [each] if isinstance(each, str) else [f.name for f in dataclasses.fields(each)]
    typed = [flag for name, flag in options_typed().items() if name in names]
    if typed:
        raise click.UsageError(f"{', '.join(typed)} must be omitted with {option}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes, beside the terminal, and in which form it stands there."""

    csv_path: str | None = asked("FILE", "Also write the rows to a CSV file.")
    html_path: str | None = asked(
        "FILE",
        "Also write a report as one HTML file: charts, tables, diagnostics, hashes.",
        callback=_check_folder,
    )
    chart: str | None = given(chart_option)
    as_json: bool = given(json_option)


output_options = grouped("output", Output)


def save_chart(record: Displayed, path: str | None) -> None:
    """Draw a record's chart into a file, if one was asked for."""
    if path is not None:
        record.plot().save(path)


seed_option = option(
    "--seed",
    WholeNumber(0),
    "Random seed for a repeatable run. Default: a new one for each run.",
)
detection_options = grouped(
    "detection",
    Detection,
    option("--level", "SHARE", "Error rate of detection.", default=0.05),
    option(
        "--correction",
        CORRECTIONS,
        "What the level limits: the expected share of false detections (bh; adaptive finds more if "
        "many candidates are present), or the probability of any false detection (bonferroni).",
        default="bh",
    ),
    option("--confidence", "SHARE", "Confidence level of the intervals.", default=0.95),
)
