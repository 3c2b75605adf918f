"""The files that `rappor decode` reads, and what it says to others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from shell import Shell, uploads

from rappor import Counts, Params, Registry

GOOGLE = ROOT / "tests" / "rappor" / "google" / "data"


def as_answered(counts: Counts) -> str:
    """Write counts as a collector answers them."""
    collection = {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.reports.tolist(),
        "ones": counts.ones.tolist(),
    }
    return json.dumps({"metric": counts.metric, "collections": [collection]})


def test_decode_needs_no_registry(shell: Shell, counts: str) -> None:
    """Counts know their parameters and candidates are named: the answer is the same."""
    candidates = ("--candidates", "engines.txt", "--json")
    with_registry = shell.metric("decode", counts, *candidates)
    assert shell("decode", counts, *candidates) == with_registry
    assert with_registry[0] == 0
    code, _, err = shell("decode", counts)
    assert code == 2
    assert "give --candidates, a file of strings, one a line, or --registry" in " ".join(
        err.split()
    )
    code, _, err = shell("decode", counts, "--registry", "metrics.toml")
    assert code == 2
    assert "give --candidates, a file of strings, one a line: the metric names none" in err


def test_decode_finds_the_metric_that_the_files_name(shell: Shell, counts: str) -> None:
    """With a registry alone the counts say which entry is meant."""
    words = ("decode", counts, "--registry", "metrics.toml", "--candidates", "engines.txt")
    assert shell(*words)[0] == 0
    unnamed = shell.path("unnamed.counts")
    known = Counts.load(counts)
    Counts(known.params, known.ones, known.reports).save(unnamed)
    code, _, err = shell("decode", unnamed, "--registry", "metrics.toml")
    assert code == 2
    assert "give --metric" in err
    Counts(known.params, known.ones, known.reports, "engine_strict").save(unnamed)
    code, _, err = shell("decode", counts, unnamed, "--candidates", "engines.txt")
    assert code == 2
    assert "counts must be of one metric, got engine, engine_strict" in err


def test_decode_reads_what_a_collector_answers(shell: Shell, counts: str) -> None:
    """The JSON of its counts decodes as the counts themselves; an empty answer is none."""
    (shell.place / "counts.json").write_text(as_answered(Counts.load(counts)))
    words = ("--candidates", "engines.txt", "--reports-per-device", "1", "--json")
    assert shell("decode", "counts.json", *words) == shell("decode", counts, *words)
    (shell.place / "counts.json").write_text('{"metric": "engine", "collections": []}')
    for more in ((), ("--registry", "metrics.toml", "--metric", "engine")):
        code, out, err = shell("decode", "counts.json", *words, *more)
        assert (code, out) == (1, "")
        assert "counts must hold at least 1" in err


def test_decode_reads_what_convert_writes(shell: Shell) -> None:
    """Converted counts of google/rappor decode alone, as their own files do."""
    for name in ("counts.csv", "params.csv", "candidates.txt"):
        shutil.copy(GOOGLE / name, shell.place / name)
    converted = shell.path("google.counts")
    assert shell("convert", "counts.csv", "--params", "params.csv", "--out", converted)[0] == 0
    words = ("--candidates", "candidates.txt", "--json")
    theirs = ("decode", "counts.csv", "--format", "google", "--params", "params.csv", *words)
    answer = shell("decode", converted, *words)
    assert answer == shell(*theirs)
    assert json.loads(answer[1])["estimates"]


def test_decode_of_reports_names_aggregate(shell: Shell) -> None:
    """Uploads and stored reports in the place of counts get the command that adds them up."""
    reports = shell.path("reports.parquet")
    simulated = ("--population", "population.csv", "--reports", "100", "--out", reports)
    assert shell.metric("simulate", *simulated)[0] == 0
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 2)))
    for name in ("reports.parquet", "uploads.jsonl"):
        code, out, err = shell("decode", name, "--candidates", "engines.txt")
        assert (code, out) == (2, "")
        assert f"rappor aggregate {shell.path(name)}" in err
        assert len(err.strip().splitlines()) == 1


BAD_COUNTS = {
    "missing.counts": None,
    "empty.counts": b"",
    "junk.counts": bytes(range(256)) * 20,
    "text.counts": b"cohort,reports,bit_0\n0,5,3\n",
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_decode_refuses_what_is_not_counts(shell: Shell, name: str) -> None:
    """A missing, empty, binary or foreign counts file is named in one sentence, exit code 2."""
    content = BAD_COUNTS[name]
    if content is not None:
        (shell.place / name).write_bytes(content)
    code, out, err = shell.metric("decode", shell.path(name), "--candidates", "engines.txt")
    assert (code, out) == (2, "")
    assert name in err
    assert len(err.strip().splitlines()) == 1


def test_decode_refuses_another_version_and_a_cut_file(shell: Shell, counts: str) -> None:
    """A later version, a cut file and an extended one are refused."""
    data = Path(counts).read_bytes()
    first, rest = data.split(b"\n", 1)
    later = first[:-1] + b"9\n" + rest
    assert later != data
    for damaged in (later, data[:-1], data + b"x"):
        (shell.place / "damaged.counts").write_bytes(damaged)
        code, _, err = shell.metric("decode", "damaged.counts", "--candidates", "engines.txt")
        assert code == 2
        assert "damaged.counts" in err


def test_decode_refuses_counts_of_another_metric(shell: Shell, counts: str) -> None:
    """Counts name their metric, and another one's are not decoded as it."""
    for name in ("engine_strict", "theme"):
        words = () if name == "theme" else ("--candidates", "engines.txt")
        code, _, err = shell.metric("decode", counts, *words, name=name)
        assert code == 2
        assert "must be of" in err


def test_decode_of_no_reports_is_no_answer(shell: Shell) -> None:
    """Zero reports have no estimates: exit code 1."""
    metric = Registry.load(shell.place / "metrics.toml").metric("engine")
    Counts.zero(metric.params, "engine").save(shell.path("zero.counts"))
    code, out, err = shell.metric("decode", "zero.counts", "--candidates", "engines.txt", "--json")
    assert (code, out) == (1, "")
    assert "at least 100 reports, the minimum of engine, got 0" in err
    code, out, err = shell("decode", "zero.counts", "--candidates", "engines.txt", "--json")
    assert (code, out) == (1, "")
    assert "at least 1 report" in err


def test_decode_bears_an_empty_cohort(shell: Shell) -> None:
    """A cohort without reports is left out of the answer, not a division by zero."""
    params = Params.profile("balanced")
    reports = np.full(128, 1000)
    reports[7] = 0
    ones = np.full((128, 128), 150)
    ones[7] = 0
    Counts(params, ones, reports, "engine").save(shell.path("gap.counts"))
    code, out, _ = shell.metric("decode", "gap.counts", "--candidates", "engines.txt", "--json")
    assert code == 0
    assert json.loads(out)["diagnostics"]["cohorts"][0]["empty"] == 1


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (b"", 1, "at least 1"),
        (b"\n\n \n", 1, "at least 1"),
        (b"good\n\xff\xfe\n", 2, "line 2"),
        (b"qwant\n", 0, ""),
        (b"x" * 1_000_000 + b"\nqwant\n", 0, ""),
    ],
)
def test_candidate_files(shell: Shell, counts: str, content: bytes, code: int, reason: str) -> None:
    """None is no answer, bad UTF-8 is told with its line, one will do, a long line is fine."""
    (shell.place / "asked.txt").write_bytes(content)
    got, _, err = shell.metric("decode", counts, "--candidates", "asked.txt", "--json")
    assert got == code
    assert reason in err
