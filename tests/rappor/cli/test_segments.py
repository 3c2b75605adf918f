"""`rappor compare --by`: comparison of segments."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
from pathlib import Path

import pytest
from decodings import build_released_counts
from pages import SVG, parse_drawings
from shell import Shell, expect_success

from rappor import Counts, Population, Registry, simulate_counts
from rappor.counts.released_counts import ReleasedCounts

DAY = datetime.date(2026, 11, 2)
HOSTILE = "<b>2</b>"


@pytest.fixture
def segments(shell: Shell) -> Shell:
    """Return a shell in a folder with segments.json.

    The file has the counts of two versions on one day. The second version has fewer reports, other
    shares, and a name with markup.
    """
    params = Registry.load(shell.folder / "metrics.toml")["engine"].params
    params = dataclasses.replace(params, m=8)
    collections = tuple(
        simulate_counts(
            Population(["duckduckgo", "qwant"], weights),
            params.with_segment((("version", version),)),
            n_reports=n,
            seed=1,
            metric="engine",
        )
        for version, weights, n in (("1", [7, 3], 4e4), (HOSTILE, [3, 7], 2e4))
    )
    build_released_counts({DAY: collections}, "engine").save(shell.folder / "segments.json")
    return shell


def test_shares_and_differences_are_printed(segments: Shell) -> None:
    """Each segment has a table of strings that are more or less common in it than in the rest."""
    out = expect_success(
        segments("compare", "segments.json", "--by", "version", "--candidates", "engines.txt")
    )
    lines = out.splitlines()
    titles = [number for number, line in enumerate(lines) if line.endswith("against the rest")]
    assert [lines[number] for number in titles] == [
        f"version={version} against the rest" for version in ("1", HOSTILE)
    ]
    changes = [
        {line.split()[0]: line.split()[1] for line in lines[number + 2 : number + 4]}
        for number in titles
    ]
    assert changes[0] == {"duckduckgo": "more", "qwant": "less"}
    assert changes[1] == {"duckduckgo": "less", "qwant": "more"}
    words = " ".join(out.split())
    assert "4 of 6 differences of a segment from the rest are significant" in words
    assert "No device is in two segments." in words


def test_counts_files_of_single_segments_are_compared(shell: Shell) -> None:
    """`compare --by` takes files of `simulate --segment`."""
    path = shell.folder / "metrics.toml"
    entry = '[metrics.engine]\nsegments = {version = ["1", "2"]}\n'
    path.write_text(path.read_text("utf-8").replace("[metrics.engine]\n", entry), "utf-8")
    files = [
        shell.simulate(f"{version}.counts", 20_000, "--segment", f"version={version}")
        for version in ("1", "2")
    ]
    words = ("--candidates", "engines.txt")
    out = expect_success(shell("compare", *files, "--by", "version", "--all", *words))
    assert {"version=1 against the rest", "version=2 against the rest"} <= {*out.splitlines()}


def test_json_csv_page_and_chart_have_the_same_segments(segments: Shell) -> None:
    """JSON, CSV, page and chart contain the same segments, and strings are never markup."""
    table, page, chart = (segments.path(name) for name in ("s.csv", "s.html", "s.svg"))
    files = ("--csv", table, "--html", page, "--chart", chart)
    words = ("--candidates", "engines.txt", "--json")
    document = json.loads(
        expect_success(segments("compare", "segments.json", "--by", "version", *words, *files))
    )
    segment_names = [sample["segment"] for sample in document["samples"]]
    assert segment_names == [{"version": "1"}, {"version": HOSTILE}]
    with Path(table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["candidate"] for row in rows] == [row["candidate"] for row in document["rows"]]
    text = Path(page).read_text()
    assert HOSTILE not in text
    _, *parts = parse_drawings(text).values()
    assert [len(list(part.iter(f"{SVG}circle"))) for part in parts] == [2, 2]
    drawing = Path(chart).read_text()
    assert "duckduckgo" in drawing
    assert f"<title>engine, {DAY}: Shares of the reports by segment" in drawing


def test_segments_without_reports_are_left_out(segments: Shell) -> None:
    """Segments without reports are left out. Without any report the exit code is 1."""
    known = ReleasedCounts.load(segments.folder / "segments.json").collections
    empty = Counts.zero(known[0].params.with_segment((("version", "3"),)), "engine")
    for collections, code in (((*known, empty), 0), ((empty,), 1)):
        build_released_counts({DAY: collections}, "engine").save(segments.folder / "segments.json")
        words = ("--candidates", "engines.txt", "--registry", "metrics.toml")
        exit_code, _, err = segments("compare", "segments.json", "--by", "version", *words)
        assert (exit_code, "counts must have at least 1 report, got 0" in err) == (code, code == 1)


def test_a_segment_below_the_minimum_is_refused(segments: Shell) -> None:
    """Each segment needs the metric's minimum of reports. The smaller one has 20,000."""
    path = segments.folder / "metrics.toml"
    words = ("--by", "all", "--candidates", "engines.txt", "--registry", str(path))
    text = path.read_text()
    for minimum, code in ((20_000, 0), (20_001, 1)):
        least = f"[metrics.engine]\nmin_reports = {minimum}"
        path.write_text(text.replace("[metrics.engine]", least))
        exit_code, _, err = segments("compare", "segments.json", *words)
        assert (exit_code, "at least 20,001 reports" in err) == (code, code == 1)
