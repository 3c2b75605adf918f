"""`rappor aggregate`: uploads and stored reports become counts."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from shell import REGISTRY, Shell, expect_refusal, expect_success, make_uploads

from rappor import Counts, Registry, Upload, encode_value
from rappor.engines import write_parquet
from rappor.protocol.randomizer import SECRET_BYTES

ENCODING = 'encoding = "bloom"'
"""`REGISTRY` has this line in the entry of each metric of strings, first in the entry of engine."""

ENCODING_WITH_PARTS = (
    f'parts = [{{name = "prefix:3", share = 0.5}}, {{name = "whole"}}]\n{ENCODING}'
)
"""Replaces `ENCODING` in the entry of a metric. Half of the devices then report the first three
letters of a string, and the other devices report the whole string. Each piece is called a part."""

TRAILER_BYTES = 8
"""Length of the end of a gzip file, in bytes. The end contains checksum and length of the data."""


def store(shell: Shell, name: str, day: int = 1, metric: str = "engine") -> Path:
    """Write a Parquet file of 300 reports of a day of November 2026, and return its path."""
    params = Registry.load(shell.folder / "metrics.toml")[metric].params
    rows = np.zeros((300, params.n_bytes), np.uint8), np.zeros(300, np.int32)
    path = shell.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.date(2026, 11, day)
    write_parquet(path, [rows], params=params, metric=metric, day=date)
    return path


def send(shell: Shell, n: int, name: str = "uploads.jsonl") -> None:
    """Write a file of n uploads with one report each."""
    (shell.folder / name).write_bytes(b"\n".join(make_uploads(shell.folder, n)))


def aggregate_counts(shell: Shell, *inputs: object, name: str = "engine") -> Counts:
    """Run `rappor aggregate` on inputs, and return the counts that it writes."""
    out = shell.path("sums.counts")
    expect_success(shell.run_on_metric("aggregate", *map(str, inputs), "--out", out, name=name))
    return Counts.load(out)


def test_stored_days_bound_the_squared_reports(shell: Shell) -> None:
    """The metric's interval is a day, so 300 reports of one day come from 300 devices.

    Two files of one day have 600 devices: 600 * 1^2. Two files of two days may have the same 300
    devices: 300 * 2^2 = 1200. All three files: 300 * 2^2 + 300 * 1^2 = 1500. Without days, the sum
    of squared reports is unknown.
    """
    paths = {
        name: store(shell, f"{name}.parquet", day)
        for name, day in zip("abc", (1, 1, 2), strict=True)
    }
    for files, squares in (("ab", 600), ("ac", 1200), ("abc", 1500)):
        assert (
            aggregate_counts(shell, *(paths[name] for name in files)).sum_squared_reports == squares
        )
    pq.write_table(pq.read_table(paths["a"]).drop_columns(["day"]), paths["a"])
    assert aggregate_counts(shell, paths["a"]).sum_squared_reports is None


@pytest.mark.slow
def test_uploads_are_added_and_refusals_are_printed(shell: Shell) -> None:
    """A repeated upload counts once. A refused line is printed with its reason and its number."""
    lines = make_uploads(shell.folder, 5)
    body = b"\n".join([*lines, lines[0], b"junk \xff", b"{}"])
    (shell.folder / "uploads.jsonl").write_bytes(body)
    words = ("aggregate", "uploads.jsonl", "--out", shell.path("sums.counts"))
    document = json.loads(expect_success(shell.run_on_metric(*words, "--json")))
    assert (document["reports"], document["repeated"]) == (5, 1)
    assert sorted(refusal["first_line"] for refusal in document["refused"]) == [7, 8]
    code, printed, err = shell.run_on_metric(*words)
    assert code == 0
    assert "5 reports of engine" in printed
    assert "first on line 7" in err


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        (("uploads.jsonl",), 2, "give --part: inputs have prefix:3, whole of engine"),
        (("junk.jsonl",), 1, "at least 1 acceptable report"),
    ],
)
def test_inputs_that_cannot_be_added_write_no_file(
    shell: Shell, inputs: tuple[str, ...], code: int, message: str
) -> None:
    """Reports of several parts, and inputs without a valid report, give an error and no file.

    The parts of a metric have different bits, so their counts cannot be added.
    """
    registry = REGISTRY.replace(ENCODING, ENCODING_WITH_PARTS, 1)
    (shell.folder / "metrics.toml").write_text(registry)
    send(shell, 40)  # all 40 devices are in one part with probability 2 * .5^40 = 2e-12
    (shell.folder / "junk.jsonl").write_bytes(b"\x00\xff\n")
    out = shell.folder / "sums.counts"
    assert message in expect_refusal(
        shell.run_on_metric("aggregate", *inputs, "--out", str(out)), code
    )
    assert not out.exists()


def test_a_folder_of_rows_and_uploads_is_added_up(shell: Shell) -> None:
    """A folder may contain files of rows and of uploads. A refused row is printed with its file."""
    for day in (1, 2):
        store(shell, f"lake/day=2026-11-0{day}/a.parquet", day)
    send(shell, 4, "lake/uploads.jsonl")
    bad = shell.folder / "lake" / "b.csv"
    bad.write_text("format,metric,params,cohort,bits\n1,engine,aaaa,1,AAAA\n")
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    document = json.loads(expect_success(shell.run_on_metric(*words, "--json")))
    assert (document["reports"], document["uploads"], document["files"]) == (604, 4, 3)
    (refusal,) = document["refused"]
    assert (refusal["metric"], refusal["params"], refusal["n"]) == ("engine", "aaaa", 1)
    assert refusal["first_file"] == str(bad)
    reason = "params must be accepted for the metric (metric engine, params aaaa)"
    assert shell.run_on_metric(*words)[2] == f"refused 1, first in {bad}: {reason}\n"


def test_control_characters_in_names_of_rows_are_escaped(shell: Shell) -> None:
    """Control characters in the names of refused rows are escaped on the terminal."""
    path = shell.folder / "rows.csv"
    path.write_text("format,metric,params,cohort,bits\n1,\x1b[31m,\u202e,1,AAAA\n")
    err = expect_refusal(shell.run_on_metric("aggregate", str(path), "--out", shell.path("x")), 1)
    assert "registry (metric \N{SYMBOL FOR ESCAPE}[31m, params [U+202E])" in err


def test_a_second_run_continues_after_a_broken_file(shell: Shell) -> None:
    """A run that fails leaves its checkpoint. The run that writes the counts removes it."""
    for name in ("a", "b"):
        store(shell, f"lake/{name}.parquet")
    broken, checkpoint = shell.folder / "lake/broken.csv", shell.folder / "sums.counts.checkpoint"
    broken.write_text("no such columns\n")
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    assert "broken.csv: columns must include format" in expect_refusal(shell.run_on_metric(*words))
    assert checkpoint.exists()
    broken.unlink()
    assert "600 reports of engine" in expect_success(shell.run_on_metric(*words))
    assert not checkpoint.exists()


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("lake/x.counts", "must lie outside of the folder that is read"),
        ("lake/inner/x.counts", "must lie outside of the folder that is read"),
        ("none/x.counts", "its folder does not exist"),
        ("lake", "it must be a file, or the name of a new one"),
        ("/dev/null", "it must be a file, or the name of a new one"),
    ],
)
def test_outputs_inside_the_inputs_are_refused(shell: Shell, out: str, reason: str) -> None:
    """An output inside the input folder, in a missing folder, or that is no file, is refused.

    The next run would read an output inside the input folder. The error comes before any input is
    read: the input is junk.
    """
    (shell.folder / "lake" / "inner").mkdir(parents=True)
    (shell.folder / "lake" / "x.parquet").write_text("junk")
    words = ("aggregate", shell.path("lake"), "--out", shell.path(out))
    assert reason in expect_refusal(shell.run_on_metric(*words))
    assert sorted(path.name for path in shell.folder.glob("lake/*")) == ["inner", "x.parquet"]


def test_uploads_may_be_compressed(shell: Shell) -> None:
    """A gzip-compressed file of uploads is read, by its path and in a folder.

    The error of a truncated file names the file.
    """
    path = shell.folder / "compressed" / "uploads.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"\n".join(make_uploads(shell.folder, 5))))
    for source in (path, path.parent):
        assert aggregate_counts(shell, source).n_reports == 5
    # The file loses its end, and the last byte of the compressed data.
    path.write_bytes(path.read_bytes()[: -TRAILER_BYTES - 1])
    error = expect_refusal(shell.run_on_metric("aggregate", str(path), "--out", shell.path("x")))
    assert "uploads.jsonl.gz: Compressed file ended" in error


def test_reports_of_several_metrics_need_a_choice(shell: Shell) -> None:
    """Inputs with reports of several metrics need --metric. Other reports are not in the counts."""
    for name in ("engine", "theme"):
        store(shell, f"lake/{name}.parquet", metric=name)
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    message = "give --metric: inputs have reports of several metrics, engine, theme"
    assert message in expect_refusal(shell(*words, "--registry", "metrics.toml"))
    assert aggregate_counts(shell, shell.path("lake"), name="theme").metric == "theme"
    message = "inputs must have reports of sync, got engine, theme"
    assert message in expect_refusal(shell.run_on_metric(*words, name="sync"), 1)


def test_segments_are_added_up(shell: Shell) -> None:
    """Reports of all segments, and reports without a segment, become one sum."""
    before = "[metrics.engine_strict]"
    text = REGISTRY.replace(before, f'segments = {{version = ["1"]}}\n\n{before}', 1)
    (shell.folder / "metrics.toml").write_text(text)
    metric = Registry.loads(text)["engine"]
    metrics = [metric, metric.in_segment({"version": "1"}), metric.in_segment({})]
    # The secret of device i is 32 bytes with the value i. Any secrets would do.
    secrets = [bytes([i]) * SECRET_BYTES for i in range(len(metrics))]
    reports = [
        encode_value(secret, segment_metric, "qwant").report
        for secret, segment_metric in zip(secrets, metrics, strict=True)
    ]
    bodies = [Upload(id=Upload.new_id(), reports=(report,)).to_json() for report in reports]
    (shell.folder / "uploads.jsonl").write_bytes(b"\n".join(bodies))
    counts = aggregate_counts(shell, "uploads.jsonl")
    assert (counts.n_reports, counts.params) == (3, metric.params)
