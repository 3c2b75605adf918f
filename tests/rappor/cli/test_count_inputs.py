"""Files that `rappor decode` reads, and its errors for other files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from registries import toml_of
from shell import Shell, ok, refused, uploads

from rappor import Counts, Params, Registry
from rappor.cli.reading.count_inputs import GoogleInputs, PartInputs
from rappor.counts.input_files import read_days
from rappor.google.effective_noise import Client

GOOGLE = ROOT / "tests" / "rappor" / "google" / "data"


def as_answered(counts: Counts) -> str:
    """Write counts in the JSON of a collector."""
    collection = {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.cohort_reports.tolist(),
        "ones": counts.bit_counts.tolist(),
    }
    return json.dumps({"metric": counts.metric, "collections": [collection]})


def test_decode_needs_no_registry(shell: Shell, counts: str) -> None:
    """Counts contain their parameters, so --candidates gives the same estimates as --registry."""
    candidates = ("--candidates", "engines.txt", "--json")
    with_registry = shell.metric("decode", counts, *candidates)
    assert shell("decode", counts, *candidates) == with_registry
    assert with_registry[0] == 0


def test_decode_finds_the_metric_that_the_files_name(shell: Shell, counts: str) -> None:
    """With --registry alone, the counts name their metric."""
    words = ("decode", counts, "--registry", "metrics.toml", "--candidates", "engines.txt")
    assert shell(*words)[0] == 0
    unnamed = shell.path("unnamed.counts")
    known = Counts.load(counts)
    Counts(known.params, known.bit_counts, known.cohort_reports).save(unnamed)
    assert "give --metric" in refused(shell("decode", unnamed, "--registry", "metrics.toml"))
    Counts(known.params, known.bit_counts, known.cohort_reports, "engine_strict").save(unnamed)
    err = refused(shell("decode", counts, unnamed, "--candidates", "engines.txt"))
    assert "counts must be of one metric, got engine, engine_strict" in err


def test_decode_reads_what_a_collector_answers(shell: Shell, counts: str) -> None:
    """The JSON of a collector decodes like its counts. An empty JSON is an error."""
    (shell.place / "counts.json").write_text(as_answered(Counts.load(counts)))
    words = ("--candidates", "engines.txt", "--reports-per-device", "1", "--json")
    assert shell("decode", "counts.json", *words) == shell("decode", counts, *words)
    (shell.place / "counts.json").write_text('{"metric": "engine", "collections": []}')
    for more in ((), ("--registry", "metrics.toml", "--metric", "engine")):
        err = refused(shell("decode", "counts.json", *words, *more), 1)
        assert "counts must have at least 1" in err


def test_decode_of_reports_names_aggregate(shell: Shell) -> None:
    """The error for uploads or stored reports names the command that adds them up."""
    shell.simulated("reports.parquet", 100)
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 2)))
    for name in ("reports.parquet", "uploads.jsonl"):
        err = refused(shell("decode", name, "--candidates", "engines.txt"))
        assert f"rappor aggregate {shell.path(name)}" in err


BAD_COUNTS = {
    "missing.counts": None,
    "empty.counts": b"",
    "junk.counts": bytes(range(256)) * 20,
    "text.counts": b"cohort,reports,bit_0\n0,5,3\n",
    "list.counts": b"[1, 2]\n",
    "deep.counts": b"[" * 100_000,
    "other.counts": b'{"id": 3}\n',
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_decode_refuses_what_is_not_counts(shell: Shell, name: str) -> None:
    """A missing, empty, binary or foreign file gives one sentence and exit code 2."""
    content = BAD_COUNTS[name]
    if content is not None:
        (shell.place / name).write_bytes(content)
    err = refused(shell.metric("decode", shell.path(name), "--candidates", "engines.txt"))
    assert name in err
    assert "it has reports" not in err


def test_decode_of_no_reports_is_no_answer(shell: Shell) -> None:
    """Zero reports have no estimates: exit code 1."""
    metric = Registry.load(shell.place / "metrics.toml").metric("engine")
    Counts.zero(metric.params, "engine").save(shell.path("zero.counts"))
    words = ("decode", "zero.counts", "--candidates", "engines.txt", "--json")
    err = refused(shell.metric(*words), 1)
    assert "at least 100 reports, the minimum of engine, got 0" in err
    assert "at least 1 report" in refused(shell(*words), 1)


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (b"", 2, "asked.txt: it has no candidates: write one string per line"),
        (b"\n\n \n", 2, "it has no candidates"),
        (b"good\n\xff\xfe\n", 2, "line 2"),
        (b"qwant\n", 0, ""),
        (b"x" * 1_000_000 + b"\nqwant\n", 0, ""),
    ],
)
def test_candidate_files(shell: Shell, counts: str, content: bytes, code: int, reason: str) -> None:
    """A file of candidates must not be empty, and the error for bad UTF-8 names the line.

    One candidate is enough, and a long line is allowed.
    """
    (shell.place / "asked.txt").write_bytes(content)
    got, _, err = shell.metric("decode", counts, "--candidates", "asked.txt", "--json")
    assert got == code
    assert reason in err


def test_the_noise_of_a_client_of_google_is_its_own(tmp_path: Path) -> None:
    """Each client of google/rappor rounds f in its own way."""
    (tmp_path / "params.csv").write_text("k,h,m,p,q,f\n2,1,1,0.5,0.75,0.3\n")
    (tmp_path / "counts.csv").write_text("100,60,70\n")
    clients: tuple[Client | None, ...] = (None, "python", "cpp", "java")
    source = dataclasses.asdict(
        source_of(str(tmp_path / "counts.csv"), candidates=str(GOOGLE / "candidates.txt"))
    )
    params = str(tmp_path / "params.csv")
    read = [GoogleInputs(**source, params_path=params, client=client).read() for client in clients]
    levels = [round(counts.params.f * 128, 6) for (counts,) in read]
    assert levels == [38.4, 39, 38, 38]


def source_of(
    *paths: str, registry: str | None = None, candidates: str | None = None
) -> PartInputs:
    """Return the section about sources in the report of a command line with these files."""
    return PartInputs(
        paths=paths, registry_path=registry, metric_name=None, candidates_path=candidates
    )


def test_every_file_that_was_read_is_told(shell: Shell, counts: str) -> None:
    """The report lists each file with its hash, and the days of a collector's JSON.

    Standard input and a pipe have no hash.
    """
    answer = json.loads(as_answered(Counts.load(counts)))
    answered = shell.place / "answer.json"
    answered.write_text(json.dumps(answer | {"from": "2026-11-01", "to": "2026-11-30"}))
    candidates, registry = shell.path("engines.txt"), shell.path("metrics.toml")
    files = source_of(counts, str(answered), registry=registry, candidates=candidates).files()
    assert [(file.name, file.days) for file in files] == [
        (counts, ""),
        (str(answered), "2026-11-01 to 2026-11-30"),
        (registry, ""),
        (candidates, ""),
    ]
    assert [file.sha256 for file in files] == [
        hashlib.sha256(Path(file.name).read_bytes()).hexdigest() for file in files
    ]
    os.mkfifo(pipe := shell.path("pipe"))
    for read_once in ("-", pipe):
        assert [file.name for file in source_of(counts, candidates=read_once).files()] == [counts]
    theirs = GoogleInputs(
        **dataclasses.asdict(source_of(counts)), params_path=candidates, map_path=registry
    )
    assert [file.name for file in theirs.files()] == [counts, candidates, registry]


def test_days_are_told_by_both_ends(tmp_path: Path) -> None:
    """The days of a file are printed as first and last day. A JSON of all days has none."""
    path, both = tmp_path / "answer.json", {"from": "2026-11-01", "to": "2026-11-30"}
    one_ended = [both | {"to": None}, both | {"from": None}, {"from": both["from"]}, {}]
    for document in (both, *one_ended):
        path.write_text(json.dumps(document))
        records = tuple(both.values()) if document is both else ()
        assert tuple(map(str, read_days(str(path)))) == records


LISTED = toml_of(
    "editor",
    candidates='["vscode", "vim"]',
    parts='[{name = "prefix:3", share = 0.2}, {name = "whole"}]',
    epoch='"quarter"',
    min_reports="0",
)


def test_known_strings_are_those_of_a_file(shell: Shell) -> None:
    """Known strings come from --known or from the metric's file.

    Blank lines and line ends are left out. Candidates that the entry lists are not in that file.
    """
    place = shell.place / "beside"
    place.mkdir()
    (place / "listed.toml").write_text(LISTED)
    (place / "file.toml").write_text(LISTED.replace('["vscode", "vim"]', '"editors.txt"'))
    (place / "editors.txt").write_bytes(b"kate\r\n\nnano\n \n")

    def known(registry: str | None, candidates: str | None) -> list[str]:
        metric = Registry.load(place / "listed.toml")["editor"]
        parts = [Counts.zero(params, "editor") for params in metric.part_sets]
        path = None if registry is None else str(place / registry)
        source = source_of(registry=path, candidates=candidates)
        is_listed = registry == "listed.toml"
        assert source.listed(parts) == (("vscode", "vim") if is_listed else ())
        return source.read_known(parts)

    named = ["bing", "duckduckgo", "qwant"]
    assert known("file.toml", None) == ["kate", "nano"]
    assert known("listed.toml", None) == []
    for registry in ("file.toml", "listed.toml", None):
        assert known(registry, shell.path("engines.txt")) == named
    assert known(None, None) == []


def test_named_candidates_come_after_the_list(shell: Shell) -> None:
    """Candidates of --candidates follow the listed candidates, each once.

    Without --candidates there are only listed candidates.
    """
    (shell.place / "listed.toml").write_text(LISTED)
    (shell.place / "more.txt").write_text("vim\nkate\n")
    metric = Registry.load(shell.place / "listed.toml")["editor"]
    counts = [Counts.zero(metric.params, "editor")]
    for path, expected in ((None, ["vscode", "vim"]), ("more.txt", ["vscode", "vim", "kate"])):
        named = None if path is None else shell.path(path)
        source = source_of(registry=shell.path("listed.toml"), candidates=named)
        candidates = source.candidates(counts)
        assert candidates is not None
        assert list(candidates.strings) == expected


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["none", "casefold"])
def test_standard_input_is_read_as_a_file_is(shell: Shell, counts: str, normalize: str) -> None:
    """Candidates of standard input are normalized as devices normalize values."""
    known = Counts.load(counts)
    params = dataclasses.replace(known.params, normalize=normalize)
    Counts(params, known.bit_counts, known.cohort_reports).save(shell.path("same.counts"))
    candidates = b"BING\nDuckDuckGo\nduckduckgo\nQwant\n"
    (shell.place / "asked.txt").write_bytes(candidates)
    words = ("decode", shell.path("same.counts"), "--json", "--all", "--candidates")
    listed = ok(shell(*words, "asked.txt"))
    command = [sys.executable, "-c", "from rappor.cli import main; main()", *words, "-"]
    piped = subprocess.run(command, input=candidates, capture_output=True, check=True)
    assert json.loads(piped.stdout) == json.loads(listed)
    names = {row["candidate"] for row in json.loads(listed)["estimates"]}
    assert "duckduckgo" in names
    assert ("QWANT".casefold() in names) == (normalize == "casefold")


@pytest.mark.parametrize(
    ("interval", "months", "alone"),
    [("epoch", (), True), ("epoch", (10, 11), True), ("epoch", (9, 10), False), ("day", (), False)],
)
def test_files_of_one_epoch_are_of_different_devices(
    shell: Shell, interval: str, months: tuple[int, ...], alone: bool
) -> None:
    """A metric with interval = "epoch" has different devices in all files of one epoch.

    Days of two epochs are an exception.
    """
    params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    noise = {"f": "0.5", "p": "0.25", "q": "0.75", "encoding": "'boolean'"}
    text = toml_of("b", epoch="'quarter'", interval=f"'{interval}'", **noise)
    (shell.place / "once.toml").write_text(text)
    files = []
    for number in range(2):
        ones, reports = np.array([[500 + number]]), np.array([1000])
        document = json.loads(as_answered(Counts(params, ones, reports, "b", 1000)))
        document["collections"][0]["squares"] = 1000
        if months:
            day = f"2026-{months[number]:02}-01"
            document |= {"from": day, "to": day}
        files.append(shell.path(f"{number}.json"))
        Path(files[-1]).write_text(json.dumps(document))
    out = ok(shell("decode", *files, "--registry", "once.toml", "--json"))
    assumed = json.loads(out)["assumptions"]
    assert ("each of 2,000 reports comes from a different device" in assumed) == alone
