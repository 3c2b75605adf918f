"""Files of counts and candidates that `rappor decode` reads, and its errors for other files."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from registries import format_registry
from shell import Shell, expect_refusal, expect_success, make_uploads
from warm_commands import locate_commands

from rappor import Counts, Params, Registry
from rappor.cli.reading.count_inputs import GoogleInputs, PartInputs
from rappor.counts.input_files import read_days
from rappor.google.effective_noise import Client

GOOGLE = ROOT / "tests" / "rappor" / "google" / "data"


def to_collector_json(counts: Counts) -> str:
    """Return counts in the JSON of a collector's response."""
    collection = {
        "fingerprint": counts.params.fingerprint,
        "params": json.loads(counts.params.to_json()),
        "reports": counts.cohort_reports.tolist(),
        "ones": counts.bit_counts.tolist(),
    }
    return json.dumps({"metric": counts.metric, "collections": [collection]})


def test_decode_needs_no_registry(shell: Shell, counts: str) -> None:
    """Counts contain their parameters, so estimates are the same with and without --registry."""
    candidates = ("--candidates", "engines.txt", "--json")
    with_registry = shell.run_on_metric("decode", counts, *candidates)
    assert shell("decode", counts, *candidates) == with_registry
    assert with_registry[0] == 0


def test_decode_uses_the_metric_of_the_counts(shell: Shell, counts: str) -> None:
    """Without --metric, the metric is that of the counts.

    Counts without a metric need --metric, and counts of two metrics are refused.
    """
    words = ("decode", counts, "--registry", "metrics.toml", "--candidates", "engines.txt")
    assert shell(*words)[0] == 0
    unnamed = shell.path("unnamed.counts")
    known = Counts.load(counts)
    Counts(known.params, known.bit_counts, known.cohort_reports).save(unnamed)
    assert "give --metric" in expect_refusal(shell("decode", unnamed, "--registry", "metrics.toml"))
    Counts(known.params, known.bit_counts, known.cohort_reports, "engine_strict").save(unnamed)
    err = expect_refusal(shell("decode", counts, unnamed, "--candidates", "engines.txt"))
    assert "counts must be of one metric, got engine, engine_strict" in err


def test_decode_reads_the_json_of_a_collector(shell: Shell, counts: str) -> None:
    """The JSON of a collector gives the estimates of its counts. One without counts is an error."""
    (shell.folder / "counts.json").write_text(to_collector_json(Counts.load(counts)))
    words = ("--candidates", "engines.txt", "--reports-per-device", "1", "--json")
    assert shell("decode", "counts.json", *words) == shell("decode", counts, *words)
    (shell.folder / "counts.json").write_text('{"metric": "engine", "collections": []}')
    for more in ((), ("--registry", "metrics.toml", "--metric", "engine")):
        err = expect_refusal(shell("decode", "counts.json", *words, *more), 1)
        assert "counts must have at least 1" in err


def test_decode_of_reports_names_the_command_aggregate(shell: Shell) -> None:
    """Uploads and stored reports are no counts. The error names the command that adds them up."""
    shell.simulate("reports.parquet", 100)
    (shell.folder / "uploads.jsonl").write_bytes(b"\n".join(make_uploads(shell.folder, 2)))
    for name in ("reports.parquet", "uploads.jsonl"):
        err = expect_refusal(shell("decode", name, "--candidates", "engines.txt"))
        assert f"rappor aggregate {shell.path(name)}" in err


def test_decode_of_no_reports_is_refused(shell: Shell) -> None:
    """Counts without reports have no estimates, so the exit code is 1."""
    metric = Registry.load(shell.folder / "metrics.toml").metric("engine")
    Counts.zero(metric.params, "engine").save(shell.path("zero.counts"))
    words = ("decode", "zero.counts", "--candidates", "engines.txt", "--json")
    err = expect_refusal(shell.run_on_metric(*words), 1)
    assert "at least 100 reports, the minimum of engine, got 0" in err
    assert "at least 1 report" in expect_refusal(shell(*words), 1)


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
    (shell.folder / "asked.txt").write_bytes(content)
    exit_code, _, err = shell.run_on_metric("decode", counts, "--candidates", "asked.txt", "--json")
    assert exit_code == code
    assert reason in err


def test_each_client_of_google_has_its_own_noise(tmp_path: Path) -> None:
    """The clients of google/rappor round f = 0.3 to different multiples of 1/128.

    Without a client, f is not rounded: 0.3 * 128 = 38.4.
    """
    (tmp_path / "params.csv").write_text("k,h,m,p,q,f\n2,1,1,0.5,0.75,0.3\n")
    (tmp_path / "counts.csv").write_text("100,60,70\n")
    clients: tuple[Client | None, ...] = (None, "python", "cpp", "java")
    source = dataclasses.asdict(
        build_inputs(str(tmp_path / "counts.csv"), candidates=str(GOOGLE / "candidates.txt"))
    )
    params = str(tmp_path / "params.csv")
    read = [
        GoogleInputs(**source, params_path=params, client=client).read_counts()
        for client in clients
    ]
    levels = [round(counts.params.f * 128, 6) for (counts,) in read]
    assert levels == [38.4, 39, 38, 38]


def build_inputs(
    *paths: str, registry: str | None = None, candidates: str | None = None
) -> PartInputs:
    """Return the inputs of a command line with these files, without --metric."""
    return PartInputs(
        paths=paths, registry_path=registry, metric_name=None, candidates_path=candidates
    )


def test_files_are_listed_with_their_hashes_and_days(shell: Shell, counts: str) -> None:
    """`list_input_files()` lists each file with its hash, and with the days of a collector's JSON.

    Standard input and a pipe can be read only once, so they are not listed.
    """
    document = json.loads(to_collector_json(Counts.load(counts)))
    response = shell.folder / "response.json"
    response.write_text(json.dumps(document | {"from": "2026-11-01", "to": "2026-11-30"}))
    candidates, registry = shell.path("engines.txt"), shell.path("metrics.toml")
    files = build_inputs(
        counts, str(response), registry=registry, candidates=candidates
    ).list_input_files()
    assert [(file.name, file.days) for file in files] == [
        (counts, ""),
        (str(response), "2026-11-01 to 2026-11-30"),
        (registry, ""),
        (candidates, ""),
    ]
    assert [file.sha256 for file in files] == [
        hashlib.sha256(Path(file.name).read_bytes()).hexdigest() for file in files
    ]
    os.mkfifo(pipe := shell.path("pipe"))
    for read_once in ("-", pipe):
        assert [
            file.name for file in build_inputs(counts, candidates=read_once).list_input_files()
        ] == [counts]
    of_google = GoogleInputs(
        **dataclasses.asdict(build_inputs(counts)), params_path=candidates, map_path=registry
    )
    assert [file.name for file in of_google.list_input_files()] == [counts, candidates, registry]


def test_days_of_a_file_need_both_ends(tmp_path: Path) -> None:
    """The days of a collector's JSON are its first and last day. With one end, there are none."""
    path, both = tmp_path / "response.json", {"from": "2026-11-01", "to": "2026-11-30"}
    one_ended = [both | {"to": None}, both | {"from": None}, {"from": both["from"]}, {}]
    for document in (both, *one_ended):
        path.write_text(json.dumps(document))
        records = tuple(both.values()) if document is both else ()
        assert tuple(map(str, read_days(str(path)))) == records


LISTED = format_registry(
    "editor",
    candidates='["vscode", "vim"]',
    parts='[{name = "prefix:3", share = 0.2}, {name = "whole"}]',
    epoch='"quarter"',
    min_reports="0",
)
"""Registry with a metric of parts whose entry lists two candidates."""


def test_known_strings_come_from_a_file(shell: Shell) -> None:
    """Known strings come from --known, or else from the metric's file of candidates.

    Blank lines are left out. Candidates that the entry itself lists are not known strings.
    """
    folder = shell.folder / "registries"
    folder.mkdir()
    (folder / "listed.toml").write_text(LISTED)
    (folder / "file.toml").write_text(LISTED.replace('["vscode", "vim"]', '"editors.txt"'))
    (folder / "editors.txt").write_bytes(b"kate\r\n\nnano\n \n")

    def known(registry: str | None, candidates: str | None) -> list[str]:
        metric = Registry.load(folder / "listed.toml")["editor"]
        parts = [Counts.zero(params, "editor") for params in metric.part_sets]
        path = None if registry is None else str(folder / registry)
        source = build_inputs(registry=path, candidates=candidates)
        is_listed = registry == "listed.toml"
        assert source.find_listed_strings(parts) == (("vscode", "vim") if is_listed else ())
        return list(source.read_known(parts).strings)

    named = ["bing", "duckduckgo", "qwant"]
    assert known("file.toml", None) == ["kate", "nano"]
    assert known("listed.toml", None) == []
    for registry in ("file.toml", "listed.toml", None):
        assert known(registry, shell.path("engines.txt")) == named
    assert known(None, None) == []
    packed = shell.folder / "engines.txt.gz"
    packed.write_bytes(gzip.compress((shell.folder / "engines.txt").read_bytes()))
    assert known(None, str(packed)) == named


def test_candidates_of_the_option_follow_the_listed_ones(shell: Shell) -> None:
    """Candidates are those that the entry lists, then those of --candidates, each once."""
    (shell.folder / "listed.toml").write_text(LISTED)
    (shell.folder / "more.txt").write_text("vim\nkate\n")
    metric = Registry.load(shell.folder / "listed.toml")["editor"]
    counts = [Counts.zero(metric.params, "editor")]
    for path, expected in ((None, ["vscode", "vim"]), ("more.txt", ["vscode", "vim", "kate"])):
        named = None if path is None else shell.path(path)
        source = build_inputs(registry=shell.path("listed.toml"), candidates=named)
        candidates = source.read_candidates(counts)
        assert candidates is not None
        assert list(candidates.strings) == expected


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["none", "casefold"])
def test_candidates_of_standard_input_are_those_of_a_file(
    shell: Shell, counts: str, normalize: str
) -> None:
    """Candidates from standard input give the JSON of the same candidates in a file.

    Both are normalized as devices normalize values.
    """
    known = Counts.load(counts)
    params = dataclasses.replace(known.params, normalize=normalize)
    Counts(params, known.bit_counts, known.cohort_reports).save(shell.path("same.counts"))
    candidates = b"BING\nDuckDuckGo\nduckduckgo\nQwant\n"
    (shell.folder / "asked.txt").write_bytes(candidates)
    words = ("decode", shell.path("same.counts"), "--json", "--all", "--candidates")
    listed = expect_success(shell(*words, "asked.txt"))
    command = [str(locate_commands() / "rappor"), *words, "-"]
    piped = subprocess.run(command, input=candidates, capture_output=True, check=True)
    assert json.loads(piped.stdout) == json.loads(listed)
    names = {row["candidate"] for row in json.loads(listed)["estimates"]}
    assert "duckduckgo" in names
    assert ("QWANT".casefold() in names) == (normalize == "casefold")


@pytest.mark.parametrize(
    ("interval", "months", "are_different_devices"),
    [("epoch", (), True), ("epoch", (10, 11), True), ("epoch", (9, 10), False), ("day", (), False)],
)
def test_files_of_one_epoch_have_different_devices(
    shell: Shell, interval: str, months: tuple[int, ...], are_different_devices: bool
) -> None:
    """With interval = "epoch", all files of one epoch have different devices.

    A device reports once in an epoch, here a quarter. September and October are in two quarters, so
    their files may have the same devices. Without dates, all files count as one epoch.
    """
    params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    noise = {"f": "0.5", "p": "0.25", "q": "0.75", "encoding": "'boolean'"}
    text = format_registry("b", epoch="'quarter'", interval=f"'{interval}'", **noise)
    (shell.folder / "once.toml").write_text(text)
    files = []
    for number in range(2):
        bit_counts, reports = np.array([[500 + number]]), np.array([1000])
        document = json.loads(to_collector_json(Counts(params, bit_counts, reports, "b", 1000)))
        document["collections"][0]["squares"] = 1000
        if months:
            day = f"2026-{months[number]:02}-01"
            document |= {"from": day, "to": day}
        files.append(shell.path(f"{number}.json"))
        Path(files[-1]).write_text(json.dumps(document))
    out = expect_success(shell("decode", *files, "--registry", "once.toml", "--json"))
    assumptions = json.loads(out)["assumptions"]
    sentence = "each of 2,000 reports comes from a different device"
    assert (sentence in assumptions) == are_different_devices
