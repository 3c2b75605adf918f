"""`rappor aggregate`: uploads and stored reports become counts."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from shell import REGISTRY, Shell, ok, refused, uploads

from rappor import Counts, Registry, Upload, encode_value
from rappor.engines import write_parquet

PARTS = 'parts = [{name = "prefix:3", share = 0.5}, {name = "whole"}]\nencoding = "bloom"'


def store(shell: Shell, name: str, day: int = 1, metric: str = "engine") -> Path:
    """Store 300 reports of a day as Parquet; return the path."""
    params = Registry.load(shell.place / "metrics.toml")[metric].params
    rows = np.zeros((300, params.n_bytes), np.uint8), np.zeros(300, np.int32)
    path = shell.place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.date(2026, 11, day)
    write_parquet(path, [rows], params=params, metric=metric, day=date)
    return path


def send(shell: Shell, n: int, name: str = "uploads.jsonl") -> None:
    """Write a file of uploads with one report each; return the path."""
    (shell.place / name).write_bytes(b"\n".join(uploads(shell.place, n)))


def counted(shell: Shell, *inputs: object, name: str = "engine") -> Counts:
    """Run `rappor aggregate` on inputs; return the counts."""
    out = shell.path("sums.counts")
    ok(shell.metric("aggregate", *map(str, inputs), "--out", out, name=name))
    return Counts.load(out)


def test_stored_days_and_the_interval_bound_the_reports_of_a_device(shell: Shell) -> None:
    """Two files of one day have different devices, and two files of two days the same devices.

    Without the column of days, the sum of squared reports is unknown.
    """
    paths = {
        name: store(shell, f"{name}.parquet", day)
        for name, day in zip("abc", (1, 1, 2), strict=True)
    }
    for files, squares in (("ab", 600), ("ac", 1200), ("abc", 1500)):
        assert counted(shell, *(paths[name] for name in files)).sum_squared_reports == squares
    pq.write_table(pq.read_table(paths["a"]).drop_columns(["day"]), paths["a"])
    assert counted(shell, paths["a"]).sum_squared_reports is None


@pytest.mark.slow
def test_aggregate_sums_uploads_and_tells_what_it_refused(shell: Shell) -> None:
    """A repeated upload counts once, and each refusal is printed with its line."""
    lines = uploads(shell.place, 5)
    body = b"\n".join([*lines, lines[0], b"junk \xff", b"{}"])
    (shell.place / "uploads.jsonl").write_bytes(body)
    words = ("aggregate", "uploads.jsonl", "--out", shell.path("sums.counts"))
    answer = json.loads(ok(shell.metric(*words, "--json")))
    assert (answer["reports"], answer["repeated"]) == (5, 1)
    assert sorted(refusal["first_line"] for refusal in answer["refused"]) == [7, 8]
    code, printed, err = shell.metric(*words)
    assert code == 0
    assert "5 reports of engine" in printed
    assert "first on line 7" in err


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        (("uploads.jsonl",), 2, "give --part: inputs have prefix:3, whole of engine"),
        (("junk.jsonl",), 1, "at least 1 acceptable report"),
    ],
)
def test_what_has_no_sum_writes_nothing(
    shell: Shell, inputs: tuple[str, ...], code: int, said: str
) -> None:
    """Reports of several parts, or no valid report, give an error and no file."""
    (shell.place / "metrics.toml").write_text(REGISTRY.replace('encoding = "bloom"', PARTS, 1))
    send(shell, 40)  # 40 devices of one part only: probability 2e-12
    (shell.place / "junk.jsonl").write_bytes(b"\x00\xff\n")
    out = shell.place / "sums.counts"
    assert said in refused(shell.metric("aggregate", *inputs, "--out", str(out)), code)
    assert not out.exists()


def test_a_folder_of_rows_and_uploads_is_added_up(shell: Shell) -> None:
    """A folder may contain Parquet files and uploads. A refused row is printed with its file."""
    for day in (1, 2):
        store(shell, f"lake/day=2026-11-0{day}/a.parquet", day)
    send(shell, 4, "lake/uploads.jsonl")
    bad = shell.place / "lake" / "b.csv"
    bad.write_text("format,metric,params,cohort,bits\n1,engine,aaaa,1,AAAA\n")
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    answer = json.loads(ok(shell.metric(*words, "--json")))
    assert (answer["reports"], answer["uploads"], answer["files"]) == (604, 4, 3)
    (refusal,) = answer["refused"]
    assert (refusal["metric"], refusal["params"], refusal["n"]) == ("engine", "aaaa", 1)
    assert refusal["first_file"] == str(bad)
    reason = "params must be accepted for the metric (of engine aaaa)"
    assert shell.metric(*words)[2] == f"refused 1, first in {bad}: {reason}\n"


def test_names_that_rows_say_reach_no_terminal_as_they_are(shell: Shell) -> None:
    """Control characters in the names of refused rows are escaped on the terminal."""
    path = shell.place / "rows.csv"
    path.write_text("format,metric,params,cohort,bits\n1,\x1b[31m,\u202e,1,AAAA\n")
    err = refused(shell.metric("aggregate", str(path), "--out", shell.path("x")), 1)
    assert "registry (of \N{SYMBOL FOR ESCAPE}[31m [U+202E])" in err


def test_a_second_run_goes_on_after_a_broken_file(shell: Shell) -> None:
    """The checkpoint stays until the counts are written, and is removed then."""
    for name in ("a", "b"):
        store(shell, f"lake/{name}.parquet")
    broken, checkpoint = shell.place / "lake/broken.csv", shell.place / "sums.counts.checkpoint"
    broken.write_text("no such columns\n")
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    assert "broken.csv: it has no column format" in refused(shell.metric(*words))
    assert checkpoint.exists()
    broken.unlink()
    assert "600 reports of engine" in ok(shell.metric(*words))
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
def test_counts_are_not_written_where_the_next_run_would_read_them(
    shell: Shell, out: str, reason: str
) -> None:
    """An output that cannot be written, or that lies inside the inputs, is refused.

    The cases: a folder of the inputs, a missing folder, the path of a folder. The error comes
    before any input is read.
    """
    (shell.place / "lake" / "inner").mkdir(parents=True)
    (shell.place / "lake" / "x.parquet").write_text("junk")
    words = ("aggregate", shell.path("lake"), "--out", shell.path(out))
    assert reason in refused(shell.metric(*words))
    assert sorted(path.name for path in shell.place.glob("lake/*")) == ["inner", "x.parquet"]


def test_uploads_may_be_packed(shell: Shell) -> None:
    """A file packed by gzip is read, alone and in a folder.

    The error of a damaged file names the file.
    """
    path = shell.place / "packed" / "uploads.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"\n".join(uploads(shell.place, 5))))
    for source in (path, path.parent):
        assert counted(shell, source).n_reports == 5
    path.write_bytes(path.read_bytes()[:-9])
    error = refused(shell.metric("aggregate", str(path), "--out", shell.path("x")))
    assert "uploads.jsonl.gz: Compressed file ended" in error


def test_reports_of_several_metrics_need_a_choice(shell: Shell) -> None:
    """With --metric, the counts contain only the reports of that metric."""
    for name in ("engine", "theme"):
        store(shell, f"lake/{name}.parquet", metric=name)
    words = ("aggregate", shell.path("lake"), "--out", shell.path("sums.counts"))
    message = "give --metric: inputs have reports of several metrics, engine, theme"
    assert message in refused(shell(*words, "--registry", "metrics.toml"))
    assert counted(shell, shell.path("lake"), name="theme").metric == "theme"
    message = "inputs must have reports of sync, got engine, theme"
    assert message in refused(shell.metric(*words, name="sync"), 1)


def test_segments_are_added_up(shell: Shell) -> None:
    """Reports of all segments, and reports without a segment, become one sum."""
    before = "[metrics.engine_strict]"
    text = REGISTRY.replace(before, f'segments = {{version = ["1"]}}\n\n{before}', 1)
    (shell.place / "metrics.toml").write_text(text)
    metric = Registry.loads(text)["engine"]
    metrics = [metric, metric.in_segment({"version": "1"}), metric.in_segment({})]
    reports = [
        encode_value(bytes([i]) * 32, segment_metric, "qwant").report
        for i, segment_metric in enumerate(metrics)
    ]
    bodies = [Upload(id=Upload.new_id(), reports=(report,)).to_json() for report in reports]
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(bodies))
    counts = counted(shell, "uploads.jsonl")
    assert (counts.n_reports, counts.params) == (3, metric.params)
