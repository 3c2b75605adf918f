"""`rappor discover`: finds strings from counts of parts, without a list."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from registries import format_registry
from shell import Shell, expect_refusal, expect_success, make_uploads

REGISTRY = format_registry(
    "engine",
    epoch='"month"',
    profile='"low-noise"',
    parts='[{name = "prefix:2", share = 0.4}, {name = "whole"}]',
    candidates='"engines.txt"',
)


@pytest.fixture
def parts(shell: Shell) -> tuple[str, str]:
    """Return the names of the counts of both parts of 100,000 devices.

    qwant and mojek have five letters, and duckduckgo has more.
    """
    (shell.folder / "metrics.toml").write_text(REGISTRY)
    (shell.folder / "engines.txt").write_text("duckduckgo\nbing\n")
    (shell.folder / "population.csv").write_text("value,weight\nqwant,5\nduckduckgo,3\nmojek,2\n")
    simulated = ("--population", "population.csv", "--reports", "1e5", "--seed", "3")
    out = shell.path("engine.counts")
    printed = expect_success(shell.run_on_metric("simulate", *simulated, "--out", out))
    names = "engine-prefix-2.counts", "engine-whole.counts"
    first, last = map(shell.path, names)
    assert printed == f"100,000 reports of engine in {first} to {last}\n"
    return names


@pytest.mark.slow
def test_files_of_parts_become_strings(shell: Shell, parts: tuple[str, str]) -> None:
    """The output lists the strings, the results of each part, and the limits of the search.

    The search tests all 26^2 + 26 + 1 = 703 prefixes of up to two letters. The prefix "du" is
    detected and no string continues it, because duckduckgo is longer than --longest.
    """
    options = ("--alphabet", "a-z", "--longest", "5", "--keep", "9")
    code, printed, err = shell("discover", *parts, *options)
    assert (code, err) == (0, "")
    lines = [line.split() for line in printed.splitlines() if line]
    assert [line[0] for line in lines[1:3]] == ["qwant", "mojek"]
    (prefix_row,) = [line for line in lines if line[0] == "prefix:2"]
    assert prefix_row[2] == "703"
    assert "Strings of up to 5 characters, alphabet (from --alphabet): abcdefghij" in printed
    unfinished = printed.partition("Prefixes with a larger share than their strings")[2]
    assert "du " in unfinished


@pytest.mark.slow
def test_candidates_of_the_metric_are_known_strings(shell: Shell, parts: tuple[str, str]) -> None:
    """A candidate of the metric is detected although it is longer than --longest."""
    options = ("--alphabet", "a-z", "--longest", "5", "--keep", "9", "--registry", "metrics.toml")
    document = json.loads(expect_success(shell("discover", *parts, *options, "--json")))
    candidates = [row["candidate"] for row in document["estimates"]]
    assert candidates[:3] == ["qwant", "duckduckgo", "mojek"]
    assert [prefix["part"] for prefix in document["prefixes"]] == ["prefix:2"]
    assert "du" not in [unfinished["prefix"] for unfinished in document["unfinished"]]


@pytest.mark.slow
def test_discovered_strings_are_written_as_csv(shell: Shell, parts: tuple[str, str]) -> None:
    """The CSV has the columns of `rappor decode`. --known replaces the metric's candidates."""
    (shell.folder / "known.txt").write_text("duckduckgo\r\n\nbing\n")
    out = shell.path("found.csv")
    more = ("--known", "known.txt", "--longest", "5", "--keep", "9", "--csv", out)
    expect_success(shell("discover", *parts, "--alphabet", "a-z", *more))
    with Path(out).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows][:3] == ["qwant", "duckduckgo", "mojek"]


def test_a_result_of_the_metric_is_no_list_of_known_strings(
    shell: Shell, parts: tuple[str, str]
) -> None:
    """Known strings from reports of the same metric are refused, as candidates of `decode` are."""
    table = "candidate,count,std_error,metric,fingerprint\nqwant,9,1,engine,abc\n"
    (shell.folder / "result.csv").write_text(table)
    words = ("discover", *parts, "--alphabet", "a-z", "--known", "result.csv")
    assert "must not be a result of the same metric" in expect_refusal(shell(*words), 1)


def test_alphabets_have_ranges(shell: Shell, parts: tuple[str, str]) -> None:
    """a-c is a range of characters. A hyphen at an end is a character, and each counts once."""
    options = ("--alphabet=-a-cqwntmojek0-2b", "--longest", "2", "--json")
    assert (
        json.loads(expect_success(shell("discover", *parts, *options)))["alphabet"]
        == "-abcqwntmojek012"
    )


def test_counts_of_one_part_are_refused(shell: Shell, parts: tuple[str, str]) -> None:
    """Counts of one part give one sentence and exit code 1."""
    err = expect_refusal(shell("discover", parts[0], "--alphabet", "a-z"), 1)
    assert err.startswith("rappor: counts must be of one or more prefixes and of the part whole")


def test_aggregate_adds_the_reports_of_one_part(shell: Shell) -> None:
    """`rappor aggregate --part` adds the reports of one part only. Both parts have all reports."""
    (shell.folder / "metrics.toml").write_text(REGISTRY.replace('"month"', '"life"'))
    (shell.folder / "uploads.jsonl").write_bytes(b"\n".join(make_uploads(shell.folder, 60)))
    numbers = []
    for part in ("prefix:2", "whole"):
        out = shell.path(f"{part[:3]}.counts")
        command = ("aggregate", "uploads.jsonl", "--part", part, "--out", out, "--json")
        # All 60 devices are in one part with probability .6^60 = 5e-14.
        printed = expect_success(shell.run_on_metric(*command))
        numbers.append(json.loads(printed)["reports"])
    assert sum(numbers) == 60
    err = expect_refusal(
        shell.run_on_metric("aggregate", "uploads.jsonl", "--part", "prefix:9", "--out", "x")
    )
    assert "--part must be a part of the inputs, got 'prefix:9': inputs have prefix:2, whole" in err


def test_each_part_and_day_of_a_simulation_has_a_file(shell: Shell, parts: tuple[str, str]) -> None:
    """`rappor simulate` writes a file, or a folder of reports, for each part and day.

    The name has the part and then the day.
    """
    people = ("--population", "population.csv", "--devices", "300", "--seed", "1")
    days = ("--days", "2", "--out", shell.path("day.counts"))
    document = json.loads(expect_success(shell.run_on_metric("simulate", *people, *days, "--json")))
    assert document["reports"] == 600
    assert [Path(name).name for name in document["files"]] == [
        f"day-{part}-{day}.counts" for part in ("prefix-2", "whole") for day in (1, 2)
    ]
    expect_success(shell.run_on_metric("simulate", *people, "--out", shell.path("r") + "/"))
    assert {path.name for path in shell.folder.glob("r-*")} == {"r-prefix-2", "r-whole"}
    expect_success(shell.run_on_metric("simulate", *people, "--out", shell.path("all.parquet")))
    read = ("aggregate", shell.path("all-prefix-2.parquet"), "--out", shell.path("again.counts"))
    expect_success(shell.run_on_metric(*read))
    assert len(parts) == 2
