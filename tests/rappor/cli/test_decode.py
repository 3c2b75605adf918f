"""`rappor decode`: JSON for scripts, and the results of its options."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from decodings import build_released_counts
from registries import format_registry
from shell import Shell, expect_refusal, expect_success
from warm_commands import locate_commands

from rappor import Counts, Params, Population, Registry, decode, simulate_counts
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
def test_json_is_the_record_of_the_library(
    shell: Shell, counts: str, words: str, options: dict[str, Any]
) -> None:
    """--json prints `Estimates.to_json()` in one line, with the detected rows, or with all rows."""
    estimates = decode(Counts.load(counts), ["bing", "duckduckgo", "qwant"], **options)
    command = ("decode", counts, "--candidates", "engines.txt", "--json", *words.split())
    assert (
        expect_success(shell.run_on_metric(*command))
        == f"{estimates.to_json(detected_only=True)}\n"
    )
    assert expect_success(shell.run_on_metric(*command, "--all")) == f"{estimates.to_json()}\n"


def test_a_table_in_place_of_a_list_is_reported(shell: Shell, counts: str) -> None:
    """A line of a table is no string of a device, so the command warns of the delimiter.

    One string with a comma among other strings is no table.
    """
    table = shell.folder / "table.csv"
    for lines, is_table in (("engine,weight\nbing,3\nqwant,1\n", True), ("a,b\nqwant\n", False)):
        table.write_text(lines, encoding="utf-8")
        code, _, err = shell.run_on_metric("decode", counts, "--candidates", str(table))
        assert code == 0
        assert ("every line contains a comma" in err) == is_table
    for lines, is_quoted in (('"bing"\n"qwant"\n', True), ('"bing"\nqwant\n"\n', False)):
        table.write_text(lines, encoding="utf-8")
        code, _, err = shell.run_on_metric("decode", counts, "--candidates", str(table))
        assert code == 0
        assert ("every line is between quotation marks" in err) == is_quoted


def test_candidates_may_be_compressed(shell: Shell, counts: str) -> None:
    """A file of candidates that gzip compressed is read.

    Blank and repeated lines are counted on standard error.
    """
    compressed = gzip.compress((shell.folder / "engines.txt").read_bytes() + b"\nqwant\n")
    (shell.folder / "engines.gz").write_bytes(compressed)
    words = ("decode", counts, "--json", "--all", "--candidates")
    code, out, err = shell.run_on_metric(*words, "engines.gz")
    assert (code, out) == (0, expect_success(shell.run_on_metric(*words, "engines.txt")))
    assert "1 blank lines and 1 repeated" in err


def test_contrasts_are_equal_in_text_json_and_page(shell: Shell, counts: str) -> None:
    """Sums of candidates, and differences of two candidates, are printed in all outputs.

    The candidates of a sum are those that match an expression, or those of a file. Quantiles are
    refused for strings.
    """
    (shell.folder / "group.txt").write_text("duckduckgo\nqwant\n", encoding="utf-8")
    listed = shell.path("group.txt")
    words: tuple[str, ...] = ("decode", counts, "--candidates", "engines.txt")
    words += ("--sum", "^(duck|qw)", "--sum", f"@{listed}", "--difference", "duckduckgo", "qwant")
    page = shell.path("page.html")
    out = expect_success(shell.run_on_metric(*words, "--json", "--html", page))
    group, same, difference = json.loads(out)["contrasts"]
    assert group["name"] == "^(duck|qw) (2 candidates)"
    assert {**group, "name": f"@{listed}"} == same
    assert difference["name"] == "duckduckgo - qwant"
    text = shell.run_on_metric(*words)[1]
    for contrast in (group, difference):
        written = format_share(contrast["estimate"], contrast["std_error"])
        assert written in text
        assert written in Path(page).read_text(encoding="utf-8")


@pytest.mark.slow
def test_decode_weighs_segments(shell: Shell, counts: str) -> None:
    """The share in weighted segments is the weighted mean of the shares, with its standard error.

    Both segments have the same counts, so the mean is the share of each. The weights are .75 and
    .25.
    """
    whole = Counts.load(counts)
    for name in ("1", "2"):
        params = whole.params.with_segment((("version", name),))
        Counts(
            params, whole.bit_counts, whole.cohort_reports, whole.metric, whole.sum_squared_reports
        ).save(shell.path(f"{name}.counts"))
    weights = shell.folder / "weights.csv"
    weights.write_text("segment,weight\nversion=1,30\nversion=2,10\n", encoding="utf-8")
    words = ("decode", *(shell.path(f"{name}.counts") for name in "12"), "--weights", str(weights))
    words += ("--candidates", "engines.txt")
    document = json.loads(expect_success(shell.run_on_metric(*words, "--json")))
    assert document["weights"] == {"version=1": 0.75, "version=2": 0.25}
    unweighted = json.loads(
        shell.run_on_metric("decode", counts, "--candidates", "engines.txt", "--json")[1]
    )
    for row, contrast in zip(unweighted["estimates"], document["contrasts"], strict=True):
        assert contrast["name"] == row["candidate"]
        assert contrast["estimate"] == pytest.approx(row["share"])
        expected = (0.75**2 + 0.25**2) ** 0.5 * row["std_error"] / 50_000
        assert contrast["std_error"] == pytest.approx(expected)
    assert "version=1 75.0 %" in shell.run_on_metric(*words)[1]
    assert "--sum must be omitted with --weights" in expect_refusal(
        shell.run_on_metric(*words, "--sum", "x")
    )
    Counts.zero(params, whole.metric).save(shell.path("2.counts"))
    assert "at least 1 report each, got 0 of version=2" in shell.run_on_metric(*words)[2]
    numbers = (f"version=1,{text}\nversion=2,1\n" for text in ("a", "1_0", "\uff11", "1e400"))
    for lines in (*numbers, "version=1,1\nversion=1,2\n"):
        weights.write_text(lines, encoding="utf-8")
        assert "each line must be a segment, a comma and a weight" in shell.run_on_metric(*words)[2]


@pytest.mark.slow
def test_decode_states_the_number_of_all_candidates(shell: Shell, counts: str) -> None:
    """Of 140,001 candidates, only those with the best scores have rows. The text states all."""
    long = shell.path("long.txt")
    names = ["duckduckgo", *(f"nobody's {i}" for i in range(140_000))]
    Path(long).write_text("\n".join(names), encoding="utf-8")
    words = ("decode", counts, "--candidates", long, "--all", "--csv", shell.path("rows.csv"))
    assert "of 140,001 candidates detected in 50,000 reports" in expect_success(
        shell.run_on_metric(*words)
    )
    assert (shell.folder / "rows.csv").read_text().count("\n") < 140_001


def test_decode_writes_a_table_a_report_and_a_chart(shell: Shell, counts: str) -> None:
    """Without --all, an undetected candidate has no row.

    The page contains the command line and the hashes of the files.
    """
    rows, page, chart = map(shell.path, ("rows.csv", "report.html", "chart.svg"))
    words = ("--csv", rows, "--html", page, "--chart", chart)
    out = expect_success(
        shell.run_on_metric("decode", counts, "--candidates", "engines.txt", *words)
    )
    assert "bing" not in out
    assert Path(rows).read_text().count("\n") == 3
    html = Path(page).read_text(encoding="utf-8")
    for text in (out, html):
        assert "2 of 3 candidates detected in 50,000 reports" in text
    assert "<code>rappor decode " in html
    assert f"--html {page}" in html
    for name in (counts, "engines.txt"):
        assert hashlib.sha256((shell.folder / name).read_bytes()).hexdigest() in html
    assert re.match("<svg[^>]*><title>engine: Shares of the reports", Path(chart).read_text())


def test_a_chart_names_the_days_of_all_files(shell: Shell) -> None:
    """The chart has the metric and the days of the files, or no days if a file has none.

    A file of counts has no days, so the range of the other files would be too short.
    """
    params = Registry.load(shell.folder / "metrics.toml")["engine"].params
    for day in (2, 5):
        counts = simulate_counts(
            Population(["duckduckgo"], [1]), params, n_reports=2e4, seed=day, metric="engine"
        )
        released = build_released_counts({datetime.date(2026, 11, day): counts}, "engine")
        released.save(shell.folder / f"{day}.json")
    counts.save(shell.folder / "undated.counts")
    chart = shell.path("chart.svg")
    for files, subject in (
        (("2.json",), "engine, 2026-11-02: "),
        (("5.json", "2.json"), "engine, 2026-11-02 to 2026-11-05: "),
        (("2.json", "undated.counts"), "engine: "),
    ):
        words = ("--candidates", "engines.txt", "--chart", chart)
        expect_success(shell("decode", *files, *words))
        drawing = Path(chart).read_text()
        assert f"<title>{subject}Shares of the reports" in drawing
        assert f">{subject.removesuffix(': ')}</text>" in drawing


def test_forged_reports_are_listed(shell: Shell, counts: str) -> None:
    """With --forged, the table has the forged reports that would make or hide each row.

    The table fits 80 columns, and a sentence below explains both numbers.
    """
    words = ("decode", counts, "--candidates", "engines.txt", "--all")
    rows = json.loads(shell.run_on_metric(*words, "--json")[1])["estimates"]
    _, out, _ = shell.run_on_metric(*words, "--forged")
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
    """A terminal of 80 columns shows the beginning of long candidates and all digits of numbers."""
    name = "https://www.example.org/a-rather-long-address-of-a-page"
    (shell.folder / "long.txt").write_text(f"duckduckgo\nqwant\n{name}\n")
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
    run = [str(locate_commands() / "rappor"), *words]
    with subprocess.Popen(run, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL):
        os.close(follower)
        output = b""
        # Linux raises EIO after the last process has closed the follower.
        with contextlib.suppress(OSError):
            while piece := os.read(leader, 1 << 16):
                output += piece
    os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", output.decode())


def test_decode_joins_files_of_several_parameter_sets(shell: Shell, counts: str) -> None:
    """Files of one parameter set are added, and two parameter sets are decoded together.

    A file without reports adds no parameter set.
    """
    empty = shell.path("empty.counts")
    path_of_strict = shell.simulate("other.counts", 9000, name="engine_strict")
    strict = Counts.load(path_of_strict)
    Counts(strict.params, strict.bit_counts, strict.cohort_reports, "engine").save(path_of_strict)
    Counts.zero(Params.profile("low-noise"), "engine").save(empty)
    other_day = shell.path("other_day.counts")
    Counts.load(counts).save(other_day)
    files = (counts, other_day, path_of_strict, empty)
    document = json.loads(
        shell.run_on_metric("decode", *files, "--candidates", "engines.txt", "--json")[1]
    )
    assert document["reports"] == 109_000
    assert len(document["diagnostics"]["cohorts"]) == 2


def test_decode_needs_the_minimum_of_reports_of_the_metric(shell: Shell) -> None:
    """Counts with fewer reports than `min_reports` are refused, with exit code 1.

    Candidates come from the file that the registry names.
    """
    for n_reports, code in ((4999, 1), (5000, 0)):
        name = shell.simulate(f"{n_reports}.counts", n_reports, name="engine_strict")
        exit_code, out, err = shell.run_on_metric("decode", name, "--json", name="engine_strict")
        assert (exit_code, bool(out), "at least 5,000 reports" in err) == (
            code,
            code == 0,
            code == 1,
        )


def test_decode_of_categories_refuses_candidates(shell: Shell) -> None:
    """The rows of categories are the categories of the metric and "other"."""
    (shell.folder / "population.csv").write_text("value,weight\nlight,3\ndark,1\n")
    name = shell.simulate("theme.counts", 100_000, name="theme")
    document = json.loads(shell.run_on_metric("decode", name, "--all", "--json", name="theme")[1])
    assert [row["candidate"] for row in document["estimates"]] == ["light", "dark", "other"]
    err = expect_refusal(
        shell.run_on_metric("decode", name, "--candidates", "engines.txt", name="theme")
    )
    assert "must be omitted" in err


@pytest.mark.slow
def test_the_registry_may_rank_its_list(shell: Shell, counts: str) -> None:
    """`ranked = true` in an entry is --ranked for the candidates of the entry.

    Candidates of --candidates are not ranked by it.
    """
    registry = shell.folder / "metrics.toml"
    text = registry.read_text()
    for line in ('candidates = "engines.txt"', 'candidates = ["bing", "duckduckgo", "qwant"]'):
        entry = f"[metrics.engine]\n{line}\nranked = true"
        registry.write_text(text.replace("[metrics.engine]", entry))
        ranked = expect_success(shell.run_on_metric("decode", counts, "--all", "--json"))
        assert ranked == expect_success(
            shell.run_on_metric("decode", counts, "--all", "--json", "--ranked")
        )
        weights = [row["weight"] for row in json.loads(ranked)["estimates"]]
        assert weights[0] != weights[1]
        words = ("decode", counts, "--all", "--json", "--candidates", "engines.txt")
        assert "weight" not in expect_success(shell.run_on_metric(*words))
        assert "weight" in expect_success(shell.run_on_metric(*words, "--ranked"))
        err = expect_refusal(shell.run_on_metric("decode", counts, "--correction", "adaptive"))
        assert "--correction must be bh or bonferroni for a ranked list" in err


def test_a_result_is_refused_as_candidates_of_its_metric(shell: Shell, counts: str) -> None:
    """The CSV of a result names its metric, and a decode of the same metric refuses it.

    Candidates that were chosen by the same reports would make p-values too small.
    """
    last = shell.path("last.csv")
    expect_success(
        shell.run_on_metric("decode", counts, "--candidates", "engines.txt", "--csv", last)
    )
    assert ",engine," in Path(last).read_text().splitlines()[1]
    words = ("decode", counts, "--candidates", last)
    for more in ((), ("--ranked",)):
        err = expect_refusal(shell.run_on_metric(*words, *more), 1)
        assert "must not be a result of the same metric" in err
        assert "a result of engine (" in err
    err = expect_refusal(shell.run_on_metric(*words, "--weights", "x", "--ranked"))
    assert "--ranked must be omitted with --weights" in err


def test_candidates_of_tuples_have_several_forms(shell: Shell) -> None:
    """The same tuples, written in four ways, give the same shares.

    The ways are a list for each field, a list and a file, a file of lines with tabs, and
    --candidates.
    """
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
        (shell.folder / name).write_text(format_registry("pair", **entry))
    (shell.folder / "sites.txt").write_text("A.org\nB.org\n")
    pairs = "".join(
        f"{site}\t{country}\n" for site in ("A.org", "b.org") for country in ("de", "fr")
    )
    (shell.folder / "pairs.tsv").write_text(pairs)
    (shell.folder / "pairs.csv").write_text("value,weight\nA.ORG\tde,3\nb.org\tfr,1\nc.org\tde,1\n")
    words = ("--reports", "1e5", "--seed", "1", "--out", str(shell.folder / "pair.counts"))
    source = ("--registry", "lists.toml", "--population", "pairs.csv")
    expect_success(shell("simulate", "pair", *source, *words))
    shares = {}
    for name in files:
        more = ("--candidates", "pairs.tsv") if name == "none.toml" else ()
        words = ("decode", "pair.counts", "--registry", name, *more, "--json", "--all")
        rows = json.loads(expect_success(shell(*words)))["estimates"]
        shares[name] = {row["candidate"]: row["share"] for row in rows}
        assert set(shares[name]) == {"a.org\x1fde", "a.org\x1ffr", "b.org\x1fde", "b.org\x1ffr"}
        assert shares[name] == shares["lists.toml"]
    # The true share is 3/5. Six standard errors are at most .024.
    assert abs(shares["lists.toml"]["a.org\x1fde"] - 0.6) < 0.03
    assert "a.org | de" in expect_success(
        shell("decode", "pair.counts", "--registry", "lists.toml")
    )
    (shell.folder / "pairs.tsv").write_text("a.org\tde\nb.org\n")
    message = expect_refusal(shell("decode", "pair.counts", "--registry", "lines.toml"))
    assert "pairs.tsv, line 2: it must have 2 fields separated by tabs (site, country)" in message
