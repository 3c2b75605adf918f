"""README of the benchmarks: its figures are the recorded ones.

A row of a table in `benchmarks/README.md` describes a benchmark, whose results are recorded in
`benchmarks/results/NAME.json`. `FIGURES` has phrases of these rows, in which # stands for a printed
number, and for each phrase a function that computes the numbers from the recorded tables.
"""

from __future__ import annotations

import decimal
import json
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from places import ROOT

README: Final = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")

NUMBER: Final = r"(\d[\d,]*\.\d+|\d[\d,]*\d|\d|\.\d+)"
"""Matches a number as the README prints it, such as 5,126 or .95."""

NOT_COMPARED: Final = {
    "curves": "its result is two pictures, which `python -m benchmarks curves` draws",
    "page": "its record is of an earlier client, whose record() waited for the store",
    "sizing": "its row refers to another machine, whose result was not recorded",
}
"""Benchmarks whose rows contain no recorded figure, with the reason."""


class Recorded:
    """The recorded tables of a benchmark."""

    def __init__(self, name: str) -> None:
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        self.tables: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["tables"]

    def read_cell(self, row: str | int, column: str, table: int = 0) -> Any:
        """Return a cell. A text selects the row whose first column has this text."""
        rows = self.tables[table]["rows"]
        if isinstance(row, str):
            (row,) = [i for i, cells in enumerate(rows) if next(iter(cells.values())) == row]
        return rows[row][column]

    def read_column(self, column: str, table: int = 0, **equal: Any) -> list[float]:
        """Return the numbers of a column, of the rows that have equal cells in other columns."""
        return [
            cells[column]
            for cells in self.tables[table]["rows"]
            if all(cells[name] == value for name, value in equal.items())
            if isinstance(cells[column], int | float)
        ]

    def read_title(self, table: int = 0) -> list[float]:
        """Return the numbers of a title."""
        return [
            float(number.replace(",", ""))
            for number in re.findall(NUMBER, self.tables[table]["title"])
        ]


def find_ends(numbers: list[float]) -> tuple[float, float]:
    """Return the smallest and the largest number."""
    return min(numbers), max(numbers)


def compute_association(recorded: Recorded) -> Iterable[float]:
    """Return coverage of cells, and numbers and shares of rejected independent tables."""
    yield from find_ends(recorded.read_column("cells covered"))
    for unit in ("one-hot", "strings"):
        rows = [row for row in recorded.tables[1]["rows"] if row["reports"].startswith(unit)]
        n_collections = sum(row["collections"] for row in rows)
        yield sum(row["rejected"] * row["collections"] for row in rows) / n_collections
        yield n_collections
    yield max(abs(row["rejected"] - row["predicted"]) for row in recorded.tables[2]["rows"])


def compute_category_ratios(recorded: Recorded) -> Iterable[float]:
    """Return the smallest and largest ratio of each other mechanism to our variance."""
    rows = recorded.tables[0]["rows"][:-1]  # the last row has means
    yield from find_ends([row["by formula"] for row in rows])
    for share in (0.02, 0.5):
        yield from find_ends([row["bits by ours"] for row in rows if row["share"] == share])
    yield from find_ends([row["GRR of peers"] / row["measured"] for row in rows])
    *unary, last = [row["unary by ours"] for row in rows]
    yield from find_ends(unary)
    yield last


def compute_needed(recorded: Recorded) -> Iterable[float]:
    """Return the reports for 25 strings of three other ways, divided by those of two parts."""
    base = recorded.read_cell("3 and 6 letters", "25 strings")
    for way in ("a letter a part", "pieces, 30,000 pairs kept", "a dictionary of 10,000"):
        yield recorded.read_cell(way, "25 strings") / base


def list_false_shares(recorded: Recorded) -> tuple[float, float]:
    """Return the smallest and largest mean false share of a size of the grid, in percent."""
    shares = [recorded.read_column("false share", table) for table in range(4)]
    return find_ends([100 * statistics.mean(column) for column in shares])


FIGURES: Final[list[tuple[str, str, Callable[[Recorded], Iterable[float]]]]] = [
    (
        "paper",
        "# strings with the paper's parameters, # with h = 1 and asymmetric noise",
        lambda r: [r.read_cell(f"{x}, decode", "found BH") for x in ("paper", "asymmetric")],
    ),
    (
        "paper",
        "Total variation # and #; of least squares # and #",
        lambda r: [
            r.read_cell(f"{design}, {decoder}", "total variation")
            for decoder in ("decode", "least squares")
            for design in ("paper", "asymmetric")
        ],
    ),
    (
        "coverage",
        "coverage of all candidates # to #; false share at most #",
        lambda r: [*find_ends(r.read_column("all")), max(r.read_column("false share"))],
    ),
    (
        "sums",
        "covered in # to # (in # for ten equal strings)",
        lambda r: [
            *find_ends(
                [
                    row["plain sum covered"]
                    for row in r.tables[0]["rows"]
                    if not row["collection"].startswith("ten equal")
                ]
            ),
            r.read_cell("ten equal, ten absent", "plain sum covered"),
        ],
    ),
    ("sums", "listed values: # to # of 1,000", lambda r: find_ends(r.read_column("covered", 1))),
    (
        "sums",
        "complete categories # to # of",
        lambda r: find_ends(r.read_column("complete / IBU", 3)),
    ),
    (
        "trends",
        "in # of # collections, false share # with a standard error of #",
        lambda r: [
            r.read_cell("the slope finds the fall", "measured"),
            r.read_title()[3],
            r.read_cell("false share of changes", "measured"),
            r.read_cell("standard error of the false share", "measured"),
        ],
    ),
    (
        "association",
        "total variation # at (2, 4) nats and # at (4, 6); two answers of 2 nats have # with "
        "google/rappor's bits and # with optimized ones, where one tuple of 4 nats has #.",
        lambda r: [r.read_cell(row, "total variation") for row in (0, 1, 3, 4, 2)],
    ),
    (
        "association",
        "Cells covered # to #. The test rejects # of # independent one-hot tables and # of # "
        "tables with strings; its power is within # of",
        compute_association,
    ),
    (
        "changes",
        "# collections of strings: # of the changed strings are covered if the correlation of the "
        "devices is passed, and # if not. # collections of each change of yes-or-no: # and # of "
        "the changes are covered, and # of the changes of 0. Slopes of 12 weeks, correlation not "
        "passed: # (strings) and # (yes-or-no)",
        lambda r: [
            r.read_cell(0, "collections"),
            *(r.read_cell(row, "changed covered") for row in (0, 1)),
            r.read_cell(3, "collections"),
            *(r.read_cell(row, "changed covered") for row in (3, 4)),
            r.read_cell(5, "others covered"),
            *(r.read_cell(row, "changed covered") for row in (2, 6)),
        ],
    ),
    (
        "permanent",
        "`balanced` finds # strings, [EPK14]'s symmetric response #; at (4, 8) nats # and #. "
        "`low-noise` finds #, `once` with one report #.",
        lambda r: [
            r.read_cell(row, "found")
            for row in (
                *("balanced, 30", "(2, 4), symmetric, 30"),
                *("(4, 8), f0 = .2, 30", "(4, 8), symmetric, 30"),
                *("low-noise, 30", "once, 1"),
            )
        ],
    ),
    (
        "permanent",
        "with probability #, and #",
        lambda r: [r.read_cell(row, "linked by two reports") for row in (1, 0)],
    ),
    (
        "categories",
        "variance # to # of the formula. The bits that `once` had before have # to # times the "
        "variance at a share of 2 %, and # to # times at 50 %",
        lambda r: list(compute_category_ratios(r))[:6],
    ),
    (
        "categories",
        "has # to # of our variance (standard error .05); its better unary encoding has # to # "
        "times, but # times for",
        lambda r: list(compute_category_ratios(r))[6:],
    ),
    (
        "atlas",
        "two of # recorded settings",
        lambda r: [sum(len(table["rows"]) for table in r.tables[::2])],
    ),
    (
        "plan",
        "numbers of found strings are within # %, probabilities of detection within #, widths of "
        "intervals within # %",
        lambda r: [
            max(
                100 * abs(seen / found - 1)
                for seen, found in zip(
                    r.read_column("found seen"), r.read_column("found"), strict=True
                )
            ),
            max(map(abs, r.read_column("worst bin"))),
            max(100 * abs(ratio - 1) for ratio in r.read_column("width ratio")),
        ],
    ),
    (
        "audits",
        "# audits of encoders under random parameters, # of the client",
        lambda r: r.read_column("audits"),
    ),
    (
        "audits",
        "probability of at most #",
        lambda r: [r.read_cell("encoder", "stated: at most")],
    ),
    (
        "discover",
        "#, and # by an oracle without collisions; false share #",
        lambda r: [r.read_cell(0, column) for column in ("found", "oracle", "false share")],
    ),
    (
        "sets",
        "means of six collections: # found (standard error #), # % false; one drawn item #; pad "
        "and sample #; PrivSet, whose devices must know the list, #. Sets of at most 32 items, six "
        "collections: # found (standard error #), # % false; #, # and #",
        lambda r: [
            r.read_cell(row, column)
            for first in (0, 4)
            for row, column in (
                *((first, "found"), (first, "std error"), (first, "false %")),
                *((first + 1, "found"), (first + 2, "found"), (first + 3, "found")),
            )
        ],
    ),
    (
        "listed",
        "share of 40 % # and #, # and # rare names found; with parts # and # names. 300 devices: # "
        "and #, the first block closes on day # and never",
        lambda r: [
            *(r.read_cell(row, "std error at 40 %") for row in (2, 0)),
            *(r.read_cell(row, "rare found") for row in (2, 0)),
            *(r.read_cell(1, column) for column in ("std error at 40 %", "rare found")),
            *(r.read_cell(row, "std error at 40 %") for row in (7, 6)),
            r.read_cell(2, "first block, days", 1),
        ],
    ),
    (
        "ranked",
        "# strings with equal weights, # in the right order, # with ranks wrong by a factor of e, "
        "# in reversed order; false shares at most #. In the order of an earlier result, where "
        "collisions dominate, the false share is #",
        lambda r: [
            *(r.read_cell(row, "found") for row in (6, 7, 8, 10)),
            max(r.read_cell(row, "false share") for row in range(6, 11)),
            r.read_cell(-1, "false share"),
        ],
    ),
    (
        "needed",
        "a part for each letter #, the pieces of [FPE16] #, a dictionary #",
        compute_needed,
    ),
    (
        "scenarios",
        "false share at most #; # to # of the adjusted intervals",
        lambda r: [
            max(r.read_column("false share")),
            *find_ends([*r.read_column("reported covered"), *r.read_column("current covered")]),
        ],
    ),
    (
        "reference",
        "`decode` detects # present and # absent strings, google/rappor # and #: a false share of "
        "# and #. With as many absent strings as google/rappor, `decode` detects # more present "
        "strings a collection on average. Total variation, with the rest as a cell, is # of "
        "google/rappor's in sum. It is lower on # of # collections, and # times",
        lambda r: [
            r.read_cell("true strings", "ours", 3),
            r.read_cell("false strings", "ours", 3),
            r.read_cell("true strings", "theirs", 3),
            r.read_cell("false strings", "theirs", 3),
            r.read_cell("false share", "ours", 3),
            r.read_cell("false share", "theirs", 3),
            r.read_cell(
                "true strings found in addition, at their number of false strings (mean)", "ours", 3
            ),
            r.read_cell("total variation, in sum", "ours", 3),
            r.read_cell("total variation lower, collections", "ours", 3),
            r.read_cell("total variation lower, collections", "theirs", 3),
            max(r.read_column("ratio")),
        ],
    ),
    (
        "reference",
        "# to # times as fast (# in the median of the settings)",
        lambda r: [
            *find_ends(r.read_column("times", 2)),
            statistics.median(r.read_column("times", 2)),
        ],
    ),
    (
        "tables",
        "Bonferroni gives #",
        lambda r: [r.read_cell("true strings, Bonferroni", "ours", 1)],
    ),
    ("grid", "mean false share # to # %", list_false_shares),
    (
        "mechanisms",
        "Bloom h = 1: # to # of the optimum at epsilon 1, 2 and 4. Hadamard response: # to #",
        lambda r: [
            end
            for name in ("Bloom h = 1, q = .5", "pure-ldp Hadamard response")
            for end in find_ends([r.read_cell(name, f"eps {epsilon}") for epsilon in (1, 2, 4)])
        ],
    ),
    ("aggregate", "# times as fast", lambda r: [r.read_cell("sum_bits", "ratio")]),
    ("draw", "# times as fast", lambda r: [r.read_cell("simulate_reports", "ratio")]),
    ("exact", "# s", lambda r: [r.read_cell("simulate_counts", "seconds")]),
    ("hash", "# times as fast", lambda r: [r.read_cell("Candidates.cells", "ratio")]),
    ("decode", "1e5 candidates # s, 1e6 # s", lambda r: r.read_column("seconds")),
    (
        "decode",
        "# found in # CPU s, # in #, # in #",
        lambda r: [
            number
            for pair in zip(
                r.read_column("found", 1)[1:], r.read_column("CPU seconds", 1)[1:], strict=True
            )
            for number in pair
        ],
    ),
    (
        "commands",
        "`demo` # CPU s. `decode` of 2,000 candidates # s, of 1e5 # s, of 1e6 # s in # MB",
        lambda r: [*r.read_column("CPU seconds"), r.read_column("peak MB")[-1]],
    ),
    (
        "engines",
        "two cores # million reports/s (Intel Xeon). A Spark executor # million from files that it "
        "opens, # from files that Spark passes, # from a data frame",
        lambda r: [
            r.read_cell(engine, "reports/s") / 1e6
            for engine in ("files:2", "classic:1", "bytes:1", "frame:1")
        ],
    ),
    (
        "device",
        "median # us for a report, # us for an event that can only repeat a response. While a "
        "stopped process has the lock # us, and 99.9 % within # ms",
        lambda r: [
            r.read_cell("one value again and again", "median"),
            r.read_cell("an event that can only repeat its interval's response", "median"),
            r.read_cell("one value, while a stopped process keeps the lock", "median"),
            r.read_cell("one value, while a stopped process keeps the lock", "99.9 %") / 1000,
        ],
    ),
    (
        "kit",
        "# ms if telemetry is off, # ms on most days if it is on, # ms if the run starts the "
        "process that records (which takes # ms itself)",
        lambda r: [
            *(r.read_cell(row, "CPU more") for row in (2, 4, 5)),
            r.read_cell(6, "CPU"),
        ],
    ),
    (
        "reading",
        "# times as fast for one report, # times for 200",
        lambda r: [r.read_cell(row, "times as fast") for row in (0, 2)],
    ),
    (
        "collector",
        "# of its rate on SQLite, # on PostgreSQL",
        lambda r: [r.read_cell(row, "of nothing") for row in (2, 4)],
    ),
    (
        "stream",
        "for each candidate # ns, and # ns for each cohort",
        lambda r: map(float, re.findall(r"= ([0-9.]+)", r.tables[0]["note"])),
    ),
]
"""Name of a benchmark, phrase of its row, and function of the recorded tables that returns the
numbers at the signs #, in order."""


def find_row(name: str) -> str:
    """Return the row of a benchmark in the README."""
    (row,) = re.findall(rf"^\| `{name}` \|.*\|$", README, re.MULTILINE)
    return str(row)


def print_like(value: float, printed: str) -> str:
    """Print a number with as many digits as a printed one. The README omits a leading 0.

    Recorded numbers have four digits, so half of the last printed digit is rounded up: the README
    has .119 for a number that is recorded as .1185.
    """
    unit = decimal.Decimal(1).scaleb(-len(printed.partition(".")[2]))
    # Twelve digits remove the error of a quotient of two recorded numbers.
    exact = decimal.Decimal(f"{value:.12g}")
    text = f"{exact.quantize(unit, decimal.ROUND_HALF_UP):,}"
    return text.removeprefix("0") if printed.startswith(".") else text


@pytest.mark.parametrize(
    ("name", "phrase", "compute"), FIGURES, ids=[f"{name}: {phrase}" for name, phrase, _ in FIGURES]
)
def test_figures_are_the_recorded_ones(
    name: str, phrase: str, compute: Callable[[Recorded], Iterable[float]]
) -> None:
    """Each printed figure is the recorded one, rounded to the printed digits."""
    pattern = re.escape(phrase).replace(r"\#", NUMBER)
    match = re.search(rf"(?<![\d.,]){pattern}(?![\d]|[.,]\d)", find_row(name))
    assert match is not None
    recorded = [
        print_like(value, printed)
        for value, printed in zip(compute(Recorded(name)), match.groups(), strict=True)
    ]
    assert list(match.groups()) == recorded


def test_every_row_is_compared() -> None:
    """Every benchmark of the tables has a recorded result and a compared phrase, or a reason."""
    names = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    compared = {name for name, _, _ in FIGURES}
    assert not compared & NOT_COMPARED.keys()
    assert set(names) == compared | NOT_COMPARED.keys()
    results = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert set(names) == results
