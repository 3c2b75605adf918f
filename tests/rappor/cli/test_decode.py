"""`rappor decode`: JSON for scripts, and the results of its options."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from registries import toml_of
from shell import Shell, ok, refused

from rappor import Counts, Params, decode
from rappor.estimator.error_control import ErrorControl
from rappor.reporting.numbers import format_share


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", {}),
        ("--level 0.001", {"error_control": ErrorControl(alpha=0.001)}),
        ("--correction bonferroni", {"error_control": ErrorControl(method="bonferroni")}),
        ("--ranked", {"error_control": ErrorControl(ranked=True)}),
        ("--confidence 0.99", {"error_control": ErrorControl(confidence=0.99)}),
        ("--distribution", {"distribution": True}),
        ("--devices 3e4", {"devices": 30_000}),
        ("--reports-per-device 2", {"reports_per_device": 2}),
    ],
)
def test_json_is_what_the_library_says(
    shell: Shell, counts: str, words: str, options: dict[str, Any]
) -> None:
    """--json prints the record of the library in one line, with detected rows or with all rows."""
    estimates = decode(Counts.load(counts), ["bing", "duckduckgo", "qwant"], **options)
    command = ("decode", counts, "--candidates", "engines.txt", "--json", *words.split())
    assert ok(shell.metric(*command)) == f"{estimates.to_json(detected_only=True)}\n"
    assert ok(shell.metric(*command, "--all")) == f"{estimates.to_json()}\n"


def test_candidates_may_be_packed(shell: Shell, counts: str) -> None:
    """Candidates packed by gzip are read.

    Blank and repeated lines are counted on standard error.
    """
    packed = gzip.compress((shell.place / "engines.txt").read_bytes() + b"\nqwant\n")
    (shell.place / "engines.gz").write_bytes(packed)
    words = ("decode", counts, "--json", "--all", "--candidates")
    code, out, err = shell.metric(*words, "engines.gz")
    assert (code, out) == (0, ok(shell.metric(*words, "engines.txt")))
    assert "1 blank lines and 1 repeated" in err


def test_decode_answers_for_several_rows(shell: Shell, counts: str) -> None:
    """Groups by expression or by list, and differences, are equal in text, JSON and page."""
    (shell.place / "group.txt").write_text("duckduckgo\nqwant\n", encoding="utf-8")
    listed = shell.path("group.txt")
    words: tuple[str, ...] = ("decode", counts, "--candidates", "engines.txt")
    words += ("--sum", "^(duck|qw)", "--sum", f"@{listed}", "--difference", "duckduckgo", "qwant")
    page = shell.path("page.html")
    out = ok(shell.metric(*words, "--json", "--html", page))
    group, same, difference = json.loads(out)["contrasts"]
    assert group["name"] == "^(duck|qw) (2 candidates)"
    assert {**group, "name": f"@{listed}"} == same
    assert difference["name"] == "duckduckgo - qwant"
    text = shell.metric(*words)[1]
    for contrast in (group, difference):
        written = format_share(contrast["estimate"], contrast["std_error"])
        assert written in text
        assert written in Path(page).read_text(encoding="utf-8")
    err = refused(shell.metric("decode", counts, "--candidates", "engines.txt", "--quantiles"), 1)
    assert "counts must be of buckets" in err


@pytest.mark.slow
def test_decode_weighs_segments(shell: Shell, counts: str) -> None:
    """Two segments with equal counts and the weights 3 and 1 have the total of each segment."""
    whole = Counts.load(counts)
    for name in ("1", "2"):
        params = whole.params.with_segment((("version", name),))
        Counts(
            params, whole.bit_counts, whole.cohort_reports, whole.metric, whole.sum_squared_reports
        ).save(shell.path(f"{name}.counts"))
    weights = shell.place / "weights.csv"
    weights.write_text("segment,weight\nversion=1,30\nversion=2,10\n", encoding="utf-8")
    words = ("decode", *(shell.path(f"{name}.counts") for name in "12"), "--weights", str(weights))
    words += ("--candidates", "engines.txt")
    answer = json.loads(ok(shell.metric(*words, "--json")))
    assert answer["weights"] == {"version=1": 0.75, "version=2": 0.25}
    alone = json.loads(shell.metric("decode", counts, "--candidates", "engines.txt", "--json")[1])
    for row, contrast in zip(alone["estimates"], answer["contrasts"], strict=True):
        assert contrast["name"] == row["candidate"]
        assert contrast["estimate"] == pytest.approx(row["share"])
        expected = (0.75**2 + 0.25**2) ** 0.5 * row["std_error"] / 50_000
        assert contrast["std_error"] == pytest.approx(expected)
    assert "version=1 75.0 %" in shell.metric(*words)[1]
    assert "--sum must be omitted with --weights" in refused(shell.metric(*words, "--sum", "x"))
    Counts.zero(params, whole.metric).save(shell.path("2.counts"))
    assert "at least 1 report each, got 0 of version=2" in shell.metric(*words)[2]
    for lines in ("version=1,a\nversion=2,1\n", "version=1,1\nversion=1,2\n"):
        weights.write_text(lines, encoding="utf-8")
        assert "each line must be a segment, a comma and a weight" in shell.metric(*words)[2]


@pytest.mark.slow
def test_decode_says_how_many_were_tested(shell: Shell, counts: str) -> None:
    """Of a long list only the best candidates have rows, and the text has the number of all."""
    long = shell.path("long.txt")
    names = ["duckduckgo", *(f"nobody's {i}" for i in range(140_000))]
    Path(long).write_text("\n".join(names), encoding="utf-8")
    words = ("decode", counts, "--candidates", long, "--all", "--csv", shell.path("rows.csv"))
    assert "of 140,001 candidates detected in 50,000 reports" in ok(shell.metric(*words))
    assert (shell.place / "rows.csv").read_text().count("\n") < 140_001


def test_decode_writes_a_table_a_report_and_a_chart(shell: Shell, counts: str) -> None:
    """Without --all, an undetected candidate has no row.

    The page contains the command line and the hashes of the files.
    """
    rows, page, chart = map(shell.path, ("rows.csv", "report.html", "chart.svg"))
    words = ("--csv", rows, "--html", page, "--chart", chart)
    out = ok(shell.metric("decode", counts, "--candidates", "engines.txt", *words))
    assert "bing" not in out
    assert Path(rows).read_text().count("\n") == 3
    written = Path(page).read_text(encoding="utf-8")
    for text in (out, written):
        assert "2 of 3 candidates detected in 50,000 reports" in text
    assert "<code>rappor decode " in written
    assert f"--html {page}" in written
    for name in (counts, "engines.txt"):
        assert hashlib.sha256((shell.place / name).read_bytes()).hexdigest() in written
    assert Path(chart).read_text().startswith("<svg")


def test_decode_shows_what_forgers_could_do(shell: Shell, counts: str) -> None:
    """The table has the numbers of forged reports, fits 80 columns, and is explained below."""
    words = ("decode", counts, "--candidates", "engines.txt", "--all")
    rows = json.loads(shell.metric(*words, "--json")[1])["estimates"]
    _, out, _ = shell.metric(*words, "--forged")
    lines = out.splitlines()
    title = "candidate reports std error share forged make forged hide"
    assert lines[0].split() == title.split()
    for line, row in zip(lines[1:4], rows, strict=True):
        assert len(line) <= 80
        numbers = [f"{row[key]:,}" for key in ("forged_to_make", "forged_to_hide") if key in row]
        assert line.split()[-len(numbers) :] == numbers or not numbers
    assert "this many more could remove it, and perhaps other rows too" in " ".join(out.split())
    assert "interval" not in lines[0]


@pytest.mark.slow
def test_a_terminal_of_80_columns_cuts_names_and_no_number(shell: Shell, counts: str) -> None:
    """Long candidates are cut, and all numbers of the JSON are printed."""
    name = "https://www.example.org/a-rather-long-address-of-a-page"
    (shell.place / "long.txt").write_text(f"duckduckgo\nqwant\n{name}\n")
    words = ("decode", counts, "--candidates", shell.path("long.txt"), "--all")
    rows = json.loads(shell(*words, "--json")[1])["estimates"]
    lines = on_terminal([*words, "--forged"], columns=80).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("candidate"))
    assert any("\u2026" in line for line in lines[start : start + 4])
    for line, row in zip(lines[start + 1 : start + 4], rows, strict=True):
        assert f"  {row['count']:,.0f}  " in line
        error = row["std_error"] / 50_000
        assert f"  {format_share(row['share'], error)}" in line
        assert len(line) <= 80


def on_terminal(words: list[str], *, columns: int) -> str:
    """Return the output of a command on a terminal with this number of columns."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = [sys.executable, "-c", "from rappor.cli import main; main()", *words]
    with subprocess.Popen(run, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL):
        os.close(follower)
        output = b""
        with contextlib.suppress(OSError):  # the other side has been closed
            while piece := os.read(leader, 1 << 16):
                output += piece
    os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", output.decode())


def test_decode_adds_files_of_one_set_and_joins_files_of_two(shell: Shell, counts: str) -> None:
    """Files of one parameter set are added.

    A file of another parameter set is decoded together with them.
    """
    empty = shell.path("empty.counts")
    other = shell.simulated("other.counts", 9000, name="engine_strict")
    strict = Counts.load(other)
    Counts(strict.params, strict.bit_counts, strict.cohort_reports, "engine").save(other)
    Counts.zero(Params.profile("low-noise"), "engine").save(empty)
    files = (counts, counts, other, empty)
    answer = json.loads(shell.metric("decode", *files, "--candidates", "engines.txt", "--json")[1])
    assert answer["reports"] == 109_000
    assert len(answer["diagnostics"]["cohorts"]) == 2


def test_decode_reads_candidates_from_the_registry_and_keeps_the_minimum(shell: Shell) -> None:
    """Candidates come from a file beside the registry.

    Fewer reports than the minimum are refused.
    """
    for n_reports, code in ((4999, 1), (5000, 0)):
        name = shell.simulated(f"{n_reports}.counts", n_reports, name="engine_strict")
        got, out, err = shell.metric("decode", name, "--json", name="engine_strict")
        assert (got, bool(out), "at least 5,000 reports" in err) == (code, code == 0, code == 1)


def test_decode_of_categories_takes_no_candidates(shell: Shell) -> None:
    """Categories are decoded by a closed form, and --candidates is refused."""
    (shell.place / "population.csv").write_text("value,weight\nlight,3\ndark,1\n")
    name = shell.simulated("theme.counts", 100_000, name="theme")
    answer = json.loads(shell.metric("decode", name, "--all", "--json", name="theme")[1])
    assert [row["candidate"] for row in answer["estimates"]] == ["light", "dark", "other"]
    err = refused(shell.metric("decode", name, "--candidates", "engines.txt", name="theme"))
    assert "must be omitted" in err


@pytest.mark.slow
def test_the_registry_may_rank_its_list(shell: Shell, counts: str) -> None:
    """`ranked = true` is --ranked for the entry's own list, and for no other list."""
    registry = shell.place / "metrics.toml"
    text = registry.read_text()
    for own in ('candidates = "engines.txt"', 'candidates = ["bing", "duckduckgo", "qwant"]'):
        entry = f"[metrics.engine]\n{own}\nranked = true"
        registry.write_text(text.replace("[metrics.engine]", entry))
        ranked = ok(shell.metric("decode", counts, "--all", "--json"))
        assert ranked == ok(shell.metric("decode", counts, "--all", "--json", "--ranked"))
        weights = [row["weight"] for row in json.loads(ranked)["estimates"]]
        assert weights[0] != weights[1]
        other = ("decode", counts, "--all", "--json", "--candidates", "engines.txt")
        assert "weight" not in ok(shell.metric(*other))
        assert "weight" in ok(shell.metric(*other, "--ranked"))
        err = refused(shell.metric("decode", counts, "--correction", "adaptive"))
        assert "--correction must be bh or bonferroni for a ranked list" in err


def test_a_result_is_no_list_of_its_metric(shell: Shell, counts: str) -> None:
    """The CSV of a result names its metric, and is refused as its candidates."""
    last = shell.path("last.csv")
    ok(shell.metric("decode", counts, "--candidates", "engines.txt", "--csv", last))
    assert ",engine," in Path(last).read_text().splitlines()[1]
    words = ("decode", counts, "--candidates", last)
    for more in ((), ("--ranked",)):
        err = refused(shell.metric(*words, *more), 1)
        assert "must not be a result of the same metric" in err
        assert "a result of engine (" in err
    err = refused(shell.metric(*words, "--weights", "x", "--ranked"))
    assert "--ranked must be omitted with --weights" in err


def test_tuples_are_simulated_and_decoded_field_by_field(shell: Shell) -> None:
    """Lists in the entry, a table with a file, and lines with tabs are the same candidates."""
    table = "{site = ['a.org', 'b.org'], country = ['de', 'fr']}"
    keys = {"fields": "['site', 'country']", "normalize": "{site = 'casefold'}", "epoch": "'year'"}
    files = {
        "lists.toml": table,
        "table.toml": "{country = ['de', 'fr'], site = 'sites.txt'}",
        "lines.toml": "'pairs.tsv'",
        "none.toml": None,
    }
    for name, candidates in files.items():
        entry = keys if candidates is None else keys | {"candidates": candidates}
        (shell.place / name).write_text(toml_of("pair", **entry))
    (shell.place / "sites.txt").write_text("A.org\nB.org\n")
    pairs = "".join(
        f"{site}\t{country}\n" for site in ("A.org", "b.org") for country in ("de", "fr")
    )
    (shell.place / "pairs.tsv").write_text(pairs)
    (shell.place / "pairs.csv").write_text("value,weight\nA.ORG\tde,3\nb.org\tfr,1\nc.org\tde,1\n")
    words = ("--reports", "1e5", "--seed", "1", "--out", str(shell.place / "pair.counts"))
    source = ("--registry", "lists.toml", "--population", "pairs.csv")
    ok(shell("simulate", "pair", *source, *words))
    shares = {}
    for name in files:
        more = ("--candidates", "pairs.tsv") if name == "none.toml" else ()
        words = ("decode", "pair.counts", "--registry", name, *more, "--json", "--all")
        rows = json.loads(ok(shell(*words)))["estimates"]
        shares[name] = {row["candidate"]: row["share"] for row in rows}
        assert set(shares[name]) == {"a.org\x1fde", "a.org\x1ffr", "b.org\x1fde", "b.org\x1ffr"}
        assert shares[name] == shares["lists.toml"]
    # Six standard errors are .024 and less.
    assert abs(shares["lists.toml"]["a.org\x1fde"] - 0.6) < 0.03
    assert "a.org | de" in ok(shell("decode", "pair.counts", "--registry", "lists.toml"))
    (shell.place / "pairs.tsv").write_text("a.org\tde\nb.org\n")
    message = refused(shell("decode", "pair.counts", "--registry", "lines.toml"))
    assert "pairs.tsv, line 2: it must have 2 fields separated by tabs (site, country)" in message
