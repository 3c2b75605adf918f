"""Options of commands: declarations as fields of records, and options that several commands share.

How to think about it
---------------------
A command is a function with keyword arguments. The default value of an argument declares an option,
and `with_options` turns the declarations into options of click:

    @command("rappor greet --name Ada")
    def greet(*, name: str = option_field("NAME", "Whom to greet."), output: Output =
              option_group(Output)) -> None: ...

`option_field` declares one option. Its flag follows from the name of the argument: `csv_path`
becomes --csv. `option_group` declares all options of a dataclass, whose fields are declared in the
same way, and the function receives an instance. Several commands can therefore share a dataclass,
and its `__post_init__` checks that the options do not contradict each other.

A declaration is a field of `dataclasses`. Its metadata contains either

    "option"   the function that builds the option of click, and "flags", its flags; or
    "inner"    the declarations of the options of a group, by name, and "make", the function that
               makes the argument of the command from the values of these options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from click.core import ParameterSource

from rappor.base.display import DisplayedRecord
from rappor.base.errors import ParamsError
from rappor.cli.option_values import NUMBER, WholeNumber
from rappor.estimator.error_control import CORRECTIONS, ErrorControl


class Option(click.Option):
    """Option whose default is displayed in the usual notation: 1,000,000 and 1e-9."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flags and the help text, with the default in plain numbers."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        # click shows a default that is a text of `show_default` in parentheses. They are removed.
        text = re.sub(r"\[default: \((.*?)\)(?=[;\]])", r"[default: \1", record[1])
        # A port is a name made of digits: 8,080 is no port.
        if self.name != "port":
            text = re.sub(r"(?<=\[default: )[0-9][0-9.e-]*(?=[;\]])", _format_default, text)
        return record[0], text


def _format_default(number: re.Match[str]) -> str:
    """Format the number of a default for people."""
    if number[0].isdecimal():
        return f"{int(number[0]):,}"
    try:
        return f"{float(number[0]):g}".replace("e-0", "e-")
    except ValueError:
        # Case: the default is an address such as 127.0.0.1, which begins like a number.
        return number[0]


Value: TypeAlias = str | Sequence[str] | click.ParamType  # type: ignore[type-arg]  # generic in late versions only
"""Value of an option. A text is its metavariable, such as FILE; a list contains its choices; other
values are types of click."""

_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("N", "BYTES"), NUMBER),
    **dict.fromkeys(("NATS", "SHARE", "PROBABILITY", "EXPONENT"), float),
    "FILE": click.Path(),
    "DAY": click.DateTime(["%Y-%m-%d"]),
}
"""Types of click, by metavariable. An option with another metavariable has a text as its value."""


def option(flags: str, value: Value, text: str, **settings: Any) -> Any:
    """Return an option of click with its help text and its default.

    Parameters
    ----------
    flags : the flags, separated by blanks, such as "-k --bits".
    value : type of the value.
    text : help text.
    settings : settings of click. `name` replaces the name that follows from the long flag.
    """
    if isinstance(value, str):
        settings = {"type": _KINDS.get(value, str), "metavar": value} | settings
    elif isinstance(value, click.ParamType):
        metavar = "N" if isinstance(value, WholeNumber) else None
        settings = {"type": value, "metavar": metavar} | settings
    else:
        settings = {"type": click.Choice(list(value))} | settings
    if settings.get("default") is not None:
        settings = {"show_default": True} | settings
    name = settings.pop("name", None)
    return click.option(
        *flags.split(), *([name] if name else []), cls=Option, help=text, **settings
    )


def flag(flags: str, text: str, *, name: str | None = None) -> Any:
    """Return an option of click without a value."""
    return click.option(*flags.split(), *([name] if name else []), is_flag=True, help=text)


def option_field(value: Value, text: str, *, flags: str = "", **settings: Any) -> Any:
    """Declare an option, as the default of a command's argument or as the field of a dataclass.

    Parameters
    ----------
    value : type of the value.
    text : help text.
    flags : the flags; empty for the flag that follows from the argument's name.
    settings : settings of click.
    """
    default = () if settings.get("multiple") else settings.get("default")
    build = functools.partial(option, value=value, text=text, **settings)
    return _declare(build, flags, default)


def flag_field(text: str, *, flags: str = "") -> Any:
    """Declare an option without a value."""
    return _declare(functools.partial(flag, text=text), flags, default=False)


def argument_field(**settings: Any) -> Any:
    """Declare a positional argument with settings of click."""
    return _declare(lambda _, name: click.argument(name, **settings))


def option_group(
    record: type[Any], *, convert: Callable[[Any], Any] | None = None, **declarations: Any
) -> Any:
    """Declare all options that the fields of a dataclass declare. The command gets an instance.

    Parameters
    ----------
    record : the dataclass.
    convert : function of the instance. The command gets its result in place of the instance.
    declarations : declarations of options by the name of the field. A dataclass of the library,
        such as `ErrorControl`, declares no options, so the command declares them.
    """
    fields = [
        *declarations.items(), *((field.name, field) for field in dataclasses.fields(record))
    ]  # fmt: skip
    inner = {name: field.metadata for name, field in fields if field.metadata}

    def make(values: Mapping[str, Any]) -> Any:
        instance = record(**values)
        return instance if convert is None else convert(instance)

    return dataclasses.field(metadata={"inner": inner, "make": make})


def _declare(build: Callable[..., Any], flags: str = "", default: Any = None) -> Any:
    """Return a field whose metadata contains the function that builds an option, and the flags."""
    return dataclasses.field(default=default, metadata={"option": build, "flags": flags})


def with_options(function: Callable[..., None]) -> Any:
    """Return a function to which click has added the declared options of a command.

    click calls it with the values of all options. It makes the arguments of the command from them,
    and calls the command.
    """
    arguments = inspect.signature(function).parameters.values()
    declarations = {argument.name: argument.default.metadata for argument in arguments}

    @functools.wraps(function)
    def call(**values: Any) -> None:
        function(**_collect_values(declarations, values))

    decorated: Any = call
    # A decorator of click adds its option at the front, so the last option is added first.
    for decorate in reversed(list(_build_options(declarations))):
        decorated = decorate(decorated)
    return decorated


def _build_options(declarations: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the decorators of all declared options."""
    for name, metadata in declarations.items():
        if "inner" in metadata:
            yield from _build_options(metadata["inner"])
        else:
            flags = metadata["flags"] or f"--{name.removesuffix('_path').replace('_', '-')}"
            yield metadata["option"](flags, name=name)


def _collect_values(declarations: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command from the values of its options."""
    return {
        name: metadata["make"](_collect_values(metadata["inner"], values))
        if "inner" in metadata
        else values[name]
        for name, metadata in declarations.items()
    }


def _check_chart(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Check that a chart can be drawn and saved.

    The check precedes a computation that may take minutes. Shell completion skips it.
    """
    if path is not None and not ctx.resilient_parsing:
        from rappor.reporting.charts import check_suffix

        try:
            check_suffix(path)
        except ParamsError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return _check_folder(ctx, param, path)


def _check_folder(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Check that the folder of a file exists, before a computation that may take minutes."""
    if path is not None and not ctx.resilient_parsing and not Path(path).parent.is_dir():
        raise click.BadParameter(f"there is no folder {Path(path).parent}", ctx, param)
    return path


def registry_option(*, required: bool = True) -> Any:
    """Declare --registry, the list of all metrics of a program."""
    return option_field(
        "FILE",
        "Registry: a TOML file that lists metrics with their parameters.",
        flags="--registry",
        required=required,
    )


def metric_argument(*, required: bool = True) -> Any:
    """Declare METRIC, the name of a metric in the registry."""
    return argument_field(required=required, metavar="METRIC" if required else "[METRIC]")


def metric_option() -> Any:
    """Declare --metric, for commands that read files. Most files contain their metric's name."""
    text = "Name of the metric in the registry. Default: the only metric that the files name."
    return option_field("NAME", text, flags="--metric")


def json_option() -> Any:
    """Declare --json, for scripts."""
    return flag_field("Print one JSON document instead of text.", flags="--json")


def chart_option() -> Any:
    """Declare --chart, a file with a drawing of the result."""
    text = "Also draw a chart into a file that ends in .svg, .png or .html."
    return option_field("FILE", text, callback=_check_chart)


def seed_option() -> Any:
    """Declare --seed, which makes random results repeatable."""
    text = "Random seed for a repeatable run. Default: a new one for each run."
    return option_field(WholeNumber(0), text)


def detection_options(*, include_ranked: bool = False) -> Any:
    """Declare the options of the error control: --level, --correction and --confidence.

    `include_ranked` adds --ranked, for commands whose tests can have weights.
    """
    ranked = flag_field(
        "The order of the candidates says how likely they are, the most likely first: the tests "
        "get weights, so that more of the likely ones are detected. The order must not come from "
        "reports of this metric, of any epoch. Default: what the registry says of its list.",
    )
    return option_group(
        ErrorControl,
        **({"ranked": ranked} if include_ranked else {}),
        alpha=option_field(
            "SHARE",
            "Error rate of detection. --correction says which errors it limits.",
            default=0.05,
            flags="--level",
        ),
        method=option_field(
            CORRECTIONS,
            "What --level limits: the expected share of absent strings among the detected strings "
            "(bh; adaptive detects more if many candidates are present), or the probability of "
            "one or more false detections (bonferroni).",
            default="bh",
            flags="--correction",
        ),
        confidence=option_field("SHARE", "Confidence level of the intervals.", default=0.95),
    )


def list_typed_options() -> dict[str, str]:
    """Return the flags that the person has typed, by the names of their arguments."""
    context = click.get_current_context()
    return {
        str(param.name): param.opts[0]
        for param in context.command.params
        if context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    }


def refuse_options(option: str, *ignored: str) -> None:
    """Raise a usage error if the person has typed arguments that an option would ignore.

    Parameters
    ----------
    option : the option, such as "--by".
    ignored : names of the ignored arguments.
    """
    typed = [flag for name, flag in list_typed_options().items() if name in ignored]
    if typed:
        raise click.UsageError(f"{', '.join(typed)} must be omitted with {option}")


def refuse_options_without(needed: str, *names: str) -> None:
    """Raise a usage error if the person has typed options that have no effect without others.

    Parameters
    ----------
    needed : the missing options or arguments, such as "METRIC and --registry".
    names : names of the arguments without an effect.
    """
    typed = [flag for name, flag in list_typed_options().items() if name in names]
    if typed:
        verb = "goes" if len(typed) == 1 else "go"
        raise click.UsageError(f"{', '.join(typed)} {verb} with {needed}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionOptions:
    """Number of devices behind the reports, for devices that reported several times."""

    devices: float | None = option_field(
        "N",
        "Number of devices that sent all reports, if they reported several times. Default: the "
        "number that the counts contain, or an estimate from several files.",
        type=float,
    )
    reports_per_device: float | None = option_field(
        "N",
        "Number of reports of each device, instead of --devices. 1 if no device reported twice.",
        type=float,
    )

    def __post_init__(self) -> None:
        """Raise a usage error for two numbers that may contradict each other."""
        if self.devices is not None and self.reports_per_device is not None:
            raise click.UsageError("give either --devices or --reports-per-device")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Files and format of a command's result."""

    csv_path: str | None = option_field("FILE", "Also write the rows to a CSV file.")
    html_path: str | None = option_field(
        "FILE",
        "Also write a report as one HTML file: charts, tables, diagnostics, hashes.",
        callback=_check_folder,
    )
    chart: str | None = chart_option()
    as_json: bool = json_option()


def save_chart(record: DisplayedRecord, path: str | None, *, days: str = "") -> None:
    """Save the chart of a record. Without a path, do nothing.

    Parameters
    ----------
    record : the record.
    path : path of the file.
    days : days of the reports, for a record that does not contain them.
    """
    if path is None:
        return
    chart = record.plot()
    if days:
        subject = ", ".join(filter(None, (chart.subject, days)))
        chart = dataclasses.replace(chart, subject=subject)
    chart.save(path)
