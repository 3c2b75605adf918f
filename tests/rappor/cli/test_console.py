"""Output of commands: numbers, tables and progress for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass

import click
import pytest
from rich.console import Console
from shell import Shell, expect_success

from rappor import Params, Population, Registry, simulate_counts
from rappor.cli.console import ProgressDisplay, print_json, print_parts, print_section
from rappor.cli.examined_params import ExaminedParams
from rappor.cli.option_values import COUNT, NUMBER, WholeNumber
from rappor.reporting.numbers import (
    format_even_odds,
    format_largest_belief,
    format_least_belief,
    format_nats,
    format_percent,
    format_short_percent,
)
from rappor.reporting.tables import table_of_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A record inside another record."""

    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A record with every kind of field and a property."""

    params: Params
    name: str | None
    inner: tuple[Inner, ...]
    metric: object

    @property
    def total(self) -> float:
        """Return the sum of the losses of `inner`."""
        return sum(inner.epsilon for inner in self.inner)


def test_json_has_fields_and_properties(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON contains the fields and the properties of a record, and null in place of infinity.

    A field of type `Params` becomes its letters and its fingerprint. A field with a metric becomes
    two entries: "metric" with the name, and "params" with the fingerprint of its parameters. "any"
    is the name of the placeholder for parameters without a metric. The sum `total` is infinite.
    """
    inner = (Inner(epsilon=1.0), Inner(epsilon=math.inf))
    metric = ExaminedParams(params=Params.profile("strict")).metric_or_placeholder
    params = metric.params
    record = Outer(params=params, name=None, inner=inner, metric=metric)
    print_json(record, beside=Inner(epsilon=2.0))
    document = json.loads(capsys.readouterr().out)
    assert list(document) == [
        *("encoding", "k", "h", "m", "f", "g", "p", "q", "p_star", "q_star", "fingerprint"),
        *("name", "inner", "metric", "params", "total", "beside"),
    ]
    assert document["fingerprint"] == document["params"] == params.fingerprint
    assert document["inner"] == [{"epsilon": 1.0}, {"epsilon": None}]
    assert (document["name"], document["metric"], document["total"]) == (None, "any", None)
    assert document["beside"] == {"epsilon": 2.0}


def test_text_has_no_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and texts have no blanks at the ends of lines, and empty lines stay."""
    table = table_of_cells("Words", ("word", "number"), [("a", "1"), ("longer", "22")])
    print_parts("first\n", table)
    print_section("title", "x " * 80)
    out = capsys.readouterr().out
    assert out.startswith("first\n\nword    number\na            1\nlonger      22\n\ntitle\n  x x")
    assert all(line == line.rstrip() for line in out.splitlines())
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("terminal", "after", "is_shown"), [(True, 0, True), (True, 60, False), (False, 0, False)]
)
def test_progress_is_for_long_work_on_terminals(
    *, terminal: bool, after: float, is_shown: bool
) -> None:
    """Progress appears on a terminal after the delay, and never in a file or a pipe."""
    stream = io.StringIO()
    with ProgressDisplay(Console(file=stream, force_terminal=terminal), after=after) as slow:
        slow("reading", 0, 10)
        slow("reading", 5, 10)
    assert bool(stream.getvalue()) == is_shown


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("1e9", 10**9), ("-3", -3), ("1_000", 1000), ("2.0", 2)]
)
def test_whole_numbers_are_read(text: str, number: int) -> None:
    """Whole numbers may be written with an exponent, with underscores, or as 2.0."""
    assert NUMBER.convert(text, None, None) == number


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (NUMBER, "1.5", "not a whole number"),
        (NUMBER, "nan", "not a whole number"),
        (NUMBER, "", "not a whole number"),
        (COUNT, "0", "0 is less than 1"),
        (COUNT, "1e16", "1e16 is more than 1,000,000,000,000,000"),
        (WholeNumber(2), "1", "1 is less than 2"),
    ],
)
def test_other_numbers_are_usage_errors(kind: WholeNumber, text: str, message: str) -> None:
    """A text that is no whole number in the range is refused, and the error contains the text."""
    with pytest.raises(click.BadParameter, match=message):
        kind.convert(text, None, None)


def test_numbers_are_written_for_people() -> None:
    """Shares are written in per cent, and losses in nats.

    `format_percent` has as many digits after the point as its caller requests.
    `format_short_percent` has no trailing zero. Losses have four digits after the point, and from
    100 nats on none.
    """
    assert format_percent(0.055129, 3) == "5.513 %"
    assert format_percent(-0.00012, 2) == "-0.01 %"
    assert (format_short_percent(0.05), format_short_percent(0.001)) == ("5 %", "0.1 %")
    assert (format_nats(1.23456), format_nats(1928.3), format_nats(math.inf)) == (
        "1.2346",
        "1,928",
        "infinite",
    )
    assert (format_nats(99.5), format_nats(100.5)) == ("99.5000", "100")
    assert format_short_percent(0.123456) == "12.3456 %"


def test_beliefs_are_rounded_to_the_safe_side() -> None:
    """An observer's largest belief (bound of a posterior) is rounded up, the smallest belief down.

    The arguments of `format_largest_belief` are the bound and the loss in nats from which it
    follows. Only an infinite loss gives 100 %. A finite loss whose bound rounds to 100 % gives
    ">99.99 %". `format_even_odds` computes the bound from the loss, for an observer who believed a
    value with 50 % before the reports.
    """
    assert format_largest_belief(0.880797, 2) == "88.1 %"
    assert format_largest_belief(0.9996646, 8) == "99.967 %"
    assert format_largest_belief(0.9999999996, 21) == ">99.99 %"
    assert format_largest_belief(1.0, 100) == ">99.99 %"
    assert format_largest_belief(1.0, math.inf) == "100 %"
    assert (format_least_belief(0.1192), format_least_belief(0.0002), format_least_belief(0.0)) == (
        "11.9",
        "<0.1",
        "0",
    )
    assert (format_even_odds(2.0), format_even_odds(50.0)) == ("88.1 %", ">99.99 %")
    assert format_even_odds(math.inf) == "100 %"


def test_markup_and_control_characters_are_printed_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Markup has no effect. Control characters and marks of direction are replaced by names."""
    print_parts(":cat: [bold]a[/bold] \x1b[31mred \u202egnp\u202c \x00\x07")
    printed = capsys.readouterr().out
    assert printed == (
        ":cat: [bold]a[/bold] \N{SYMBOL FOR ESCAPE}[31mred [U+202E]gnp[U+202C] "
        "\N{SYMBOL FOR NULL}\N{SYMBOL FOR BELL}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("decode", "0"), ("trend", "0", "1", "--from", "2026-11-02")], ids=["decode", "trend"]
)
def test_control_characters_in_candidates_are_escaped(shell: Shell, words: tuple[str, ...]) -> None:
    """Tables of `decode` and of `trend` name the control characters of a candidate.

    The files "0" and "1" contain counts, and have the names of their seeds.
    """
    params = Registry.load(shell.folder / "metrics.toml")["engine"].params
    hostile = "\x1b[31mred\u202e"
    for seed in range(2):
        drawn = simulate_counts(Population([hostile], [1]), params, n_reports=1e5, seed=seed)
        drawn.save(shell.path(str(seed)))
    (shell.folder / "hostile.txt").write_text(f"{hostile}\n")
    command, *options = words
    out = expect_success(shell(command, "--candidates", "hostile.txt", *options))
    assert "\N{SYMBOL FOR ESCAPE}[31mred[U+202E]" in out
    assert not {"\x1b", "\u202e"} & set(out)
