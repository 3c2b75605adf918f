"""`rappor discover`: finds strings from counts of parts, without a list."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from registries import toml_of
from shell import Shell, ok, refused, uploads

REGISTRY = toml_of(
    "engine",
    epoch='"month"',
    profile='"low-noise"',
    parts='[{name = "prefix:2", share = 0.4}, {name = "whole"}]',
    candidates='"engines.txt"',
)


@pytest.fixture
def parts(shell: Shell) -> tuple[str, str]:
    """Return counts of both parts of 100,000 devices.

    All engines except one have at most five letters.
    """
    (shell.place / "metrics.toml").write_text(REGISTRY)
    (shell.place / "engines.txt").write_text("duckduckgo\nbing\n")
    (shell.place / "population.csv").write_text("value,weight\nqwant,5\nduckduckgo,3\nmojek,2\n")
    simulated = ("--population", "population.csv", "--reports", "1e5", "--seed", "3")
    out = shell.path("engine.counts")
    printed = ok(shell.metric("simulate", *simulated, "--out", out))
    names = "engine-prefix-2.counts", "engine-whole.counts"
    first, last = map(shell.path, names)
    assert printed == f"100,000 reports of engine in {first} to {last}\n"
    return names


@pytest.mark.slow
def test_files_of_parts_become_strings(shell: Shell, parts: tuple[str, str]) -> None:
    """The output lists the strings, the results of each part, and the limits of the search."""
    options = ("--alphabet", "a-z", "--longest", "5", "--keep", "9")
    code, printed, err = shell("discover", *parts, *options)
    assert (code, err) == (0, "")
    lines = [line.split() for line in printed.splitlines() if line]
    assert [line[0] for line in lines[1:3]] == ["qwant", "mojek"]
    (prefix_row,) = [line for line in lines if line[0] == "prefix:2"]
    assert prefix_row[2] == "703"
    assert "Strings of up to 5 characters, alphabet (as given): abcdefghij" in printed
    unfinished = printed.partition("Prefixes with a larger share than their strings")[2]
    assert "du " in unfinished


@pytest.mark.slow
def test_the_metric_s_own_candidates_are_known_strings(
    shell: Shell, parts: tuple[str, str]
) -> None:
    """With the metric's candidates, a string is found that is longer than --longest."""
    options = ("--alphabet", "a-z", "--longest", "5", "--keep", "9", "--registry", "metrics.toml")
    document = json.loads(ok(shell("discover", *parts, *options, "--json")))
    candidates = [row["candidate"] for row in document["estimates"]]
    assert candidates[:3] == ["qwant", "duckduckgo", "mojek"]
    assert [prefix["part"] for prefix in document["prefixes"]] == ["prefix:2"]
    assert "du" not in [unfinished["prefix"] for unfinished in document["unfinished"]]


@pytest.mark.slow
def test_strings_go_to_a_csv_file(shell: Shell, parts: tuple[str, str]) -> None:
    """The CSV has the columns of `rappor decode`. --known replaces the metric's candidates."""
    (shell.place / "known.txt").write_text("duckduckgo\r\n\nbing\n")
    out = shell.path("found.csv")
    more = ("--known", "known.txt", "--longest", "5", "--keep", "9", "--csv", out)
    ok(shell("discover", *parts, "--alphabet", "a-z", *more))
    with Path(out).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows][:3] == ["qwant", "duckduckgo", "mojek"]


def test_alphabets_have_ranges(shell: Shell, parts: tuple[str, str]) -> None:
    """A hyphen at an end stands for itself, and a repeated character counts once."""
    options = ("--alphabet=-a-cqwntmojek0-2b", "--longest", "2", "--json")
    assert json.loads(ok(shell("discover", *parts, *options)))["alphabet"] == "-abcqwntmojek012"


def test_one_part_alone_has_no_answer(shell: Shell, parts: tuple[str, str]) -> None:
    """One part alone gives one sentence and exit code 1."""
    err = refused(shell("discover", parts[0], "--alphabet", "a-z"), 1)
    assert err.startswith("rappor: counts must be of a prefix, or several, and of the whole")


def test_uploads_are_added_up_a_part_at_a_time(shell: Shell) -> None:
    """`rappor aggregate --part` adds the reports of one part only."""
    (shell.place / "metrics.toml").write_text(REGISTRY.replace('"month"', '"life"'))
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 60)))
    numbers = []
    for part in ("prefix:2", "whole"):
        out = shell.path(f"{part[:3]}.counts")
        command = ("aggregate", "uploads.jsonl", "--part", part, "--out", out, "--json")
        printed = ok(shell.metric(*command))  # 60 devices of one part only: probability 5e-14
        numbers.append(json.loads(printed)["reports"])
    assert sum(numbers) == 60
    err = refused(shell.metric("aggregate", "uploads.jsonl", "--part", "prefix:9", "--out", "x"))
    assert "--part must be a part that is there, got 'prefix:9': inputs have prefix:2, whole" in err


def test_reports_and_days_of_parts_have_files_of_their_own(
    shell: Shell, parts: tuple[str, str]
) -> None:
    """The name of a file contains the part before the day, also for folders of reports."""
    people = ("--population", "population.csv", "--devices", "300", "--seed", "1")
    days = ("--days", "2", "--out", shell.path("day.counts"))
    document = json.loads(ok(shell.metric("simulate", *people, *days, "--json")))
    assert document["reports"] == 600
    assert [Path(name).name for name in document["files"]] == [
        f"day-{part}-{day}.counts" for part in ("prefix-2", "whole") for day in (1, 2)
    ]
    ok(shell.metric("simulate", *people, "--out", shell.path("r") + "/"))
    assert {path.name for path in shell.place.glob("r-*")} == {"r-prefix-2", "r-whole"}
    ok(shell.metric("simulate", *people, "--out", shell.path("all.parquet")))
    read = ("aggregate", shell.path("all-prefix-2.parquet"), "--out", shell.path("again.counts"))
    ok(shell.metric(*read))
    assert len(parts) == 2
