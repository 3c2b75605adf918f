"""`rappor aggregate`: uploads and stored reports become counts."""

from __future__ import annotations

import datetime
import gzip
import json

import numpy as np
import pyarrow.parquet as pq
from shell import REGISTRY, Shell, uploads

from rappor import Counts, Registry, Upload, encode_value
from rappor.engines import write_parquet


def test_reports_in_parquet_aggregate_to_their_sums(shell: Shell) -> None:
    """Simulated reports, summed again, hold every report."""
    reports, out = shell.path("reports.parquet"), shell.path("sums.counts")
    words = ("--population", "population.csv", "--reports", "20000", "--seed", "5")
    assert shell.metric("simulate", *words, "--out", reports)[0] == 0
    code, printed, _ = shell.metric("aggregate", reports, "--out", out, "--json")
    assert code == 0
    assert json.loads(printed)["reports"] == 20_000
    assert Counts.load(out).n_reports == 20_000
    assert Counts.load(out).squares is None


def test_stored_days_and_the_interval_bound_the_reports_of_a_device(shell: Shell) -> None:
    """A report a day: two files of one day are of other devices, and of two days of the same."""
    daily = REGISTRY.replace('interval = "none"', 'interval = "day"')
    (shell.place / "metrics.toml").write_text(daily)
    metric = Registry.loads(daily)["engine"]
    rows = np.zeros((300, metric.params.n_bytes), np.uint8), np.zeros(300, np.int32)
    for name, day in (("a", 1), ("b", 1), ("c", 2)):
        path, date = shell.place / f"{name}.parquet", datetime.date(2026, 11, day)
        write_parquet(path, [rows], params=metric.params, metric="engine", day=date)
    for files, squares in ((("a", "b"), 600), (("a", "c"), 1200), (("a", "b", "c"), 1500)):
        paths = [shell.path(f"{name}.parquet") for name in files]
        assert shell.metric("aggregate", *paths, "--out", shell.path("sums.counts"))[0] == 0
        assert Counts.load(shell.place / "sums.counts").squares == squares


def test_stored_reports_without_days_say_nothing_of_devices(shell: Shell) -> None:
    """Other programs may leave the column out."""
    daily = REGISTRY.replace('interval = "none"', 'interval = "day"')
    (shell.place / "metrics.toml").write_text(daily)
    metric = Registry.loads(daily)["engine"]
    rows = np.zeros((300, metric.params.n_bytes), np.uint8), np.zeros(300, np.int32)
    path = shell.place / "a.parquet"
    date = datetime.date(2026, 11, 1)
    write_parquet(path, [rows], params=metric.params, metric="engine", day=date)
    pq.write_table(pq.read_table(path).drop_columns(["day"]), path)
    assert shell.metric("aggregate", str(path), "--out", shell.path("sums.counts"))[0] == 0
    assert Counts.load(shell.place / "sums.counts").squares is None


def test_aggregate_sums_uploads_and_tells_what_it_refused(shell: Shell) -> None:
    """Good uploads count once, a repeated one not again, junk is told with its line."""
    lines = uploads(shell.place, 5)
    body = b"\n".join([*lines, lines[0], b"junk \xff", b"{}"])
    (shell.place / "uploads.jsonl").write_bytes(body)
    out = shell.path("sums.counts")
    code, printed, _ = shell.metric("aggregate", "uploads.jsonl", "--out", out, "--json")
    assert code == 0
    answer = json.loads(printed)
    assert (answer["reports"], answer["repeated"]) == (5, 1)
    assert sorted(refusal["first_line"] for refusal in answer["refused"]) == [7, 8]
    code, printed, err = shell.metric("aggregate", "uploads.jsonl", "--out", out)
    assert code == 0
    assert "5 reports of engine" in printed
    assert "first on line 7" in err


def test_aggregate_refuses_to_mix_parts(shell: Shell) -> None:
    """Counts of parts never mix, so uploads of several parts of a metric need several files."""
    entry = 'parts = [{name = "prefix:3", share = 0.5}, {name = "whole"}]\nencoding = "bloom"'
    registry = REGISTRY.replace('encoding = "bloom"', entry, 1)
    (shell.place / "metrics.toml").write_text(registry)
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 40)))
    out = shell.place / "sums.counts"
    code, _, err = shell.metric("aggregate", "uploads.jsonl", "--out", str(out))
    assert code == 2  # 40 devices of one part only: probability 2e-12
    assert "give --part: inputs have prefix:3, whole of engine" in err
    assert not out.exists()


def test_aggregate_of_counts_names_the_command_for_them(shell: Shell, counts: str) -> None:
    """A counts file is not refused line by line, and nothing is written."""
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 2)))
    out = shell.place / "sums.counts"
    code, printed, err = shell.metric("aggregate", "uploads.jsonl", counts, "--out", str(out))
    assert (code, printed) == (2, "")
    assert err == f"rappor: {counts}: it has counts already: run rappor decode on it\n"
    assert not out.exists()


def test_aggregate_of_nothing_writes_nothing(shell: Shell) -> None:
    """No acceptable report is no answer: exit code 1 and no file."""
    (shell.place / "junk.jsonl").write_bytes(b"\x00\xff\n")
    out = shell.place / "sums.counts"
    code, _, err = shell.metric("aggregate", "junk.jsonl", "--out", str(out))
    assert code == 1
    assert "at least 1 acceptable report" in err
    assert not out.exists()


def test_a_folder_of_rows_and_uploads_is_added_up(shell: Shell) -> None:
    """Partitions of Parquet beside a file of uploads; what is refused is named with its file."""
    metric = Registry.load(shell.place / "metrics.toml")["engine"]
    rows = np.zeros((300, metric.params.n_bytes), np.uint8), np.zeros(300, np.int32)
    lake = shell.place / "lake"
    for day in (1, 2):
        date = datetime.date(2026, 11, day)
        folder = lake / f"day={date}"
        folder.mkdir(parents=True)
        write_parquet(folder / "a.parquet", [rows], params=metric.params, metric="engine", day=date)
    (lake / "uploads.jsonl").write_bytes(b"\n".join(uploads(shell.place, 4)))
    (lake / "b.csv").write_text("format,metric,params,cohort,bits\n2,engine,aaaa,1,AAAA\n")
    out = shell.path("sums.counts")
    code, printed, _ = shell.metric("aggregate", str(lake), "--out", out, "--json")
    assert code == 0
    answer = json.loads(printed)
    assert (answer["reports"], answer["uploads"], answer["files"]) == (604, 4, 3)
    (refusal,) = answer["refused"]
    assert (refusal["metric"], refusal["params"], refusal["n"]) == ("engine", "aaaa", 1)
    assert refusal["first_file"] == str(lake / "b.csv")
    _, _, err = shell.metric("aggregate", str(lake), "--out", out)
    reason = "params must be accepted for the metric (of engine aaaa)"
    assert err == f"refused 1, first in {lake / 'b.csv'}: {reason}\n"


def test_a_second_run_goes_on_after_a_broken_file(shell: Shell) -> None:
    """The checkpoint is kept until counts are written, and removed then."""
    metric = Registry.load(shell.place / "metrics.toml")["engine"]
    rows = np.zeros((300, metric.params.n_bytes), np.uint8), np.zeros(300, np.int32)
    lake, date = shell.place / "lake", datetime.date(2026, 11, 1)
    lake.mkdir()
    for name in ("a", "b"):
        path = lake / f"{name}.parquet"
        write_parquet(path, [rows], params=metric.params, metric="engine", day=date)
    words = ("aggregate", str(lake), "--out", shell.path("sums.counts"))
    (lake / "broken.csv").write_text("no such columns\n")
    code, _, err = shell.metric(*words)
    assert code == 2
    assert "broken.csv: it has no column format" in err
    assert (shell.place / "sums.counts.checkpoint").exists()
    (lake / "broken.csv").unlink()
    code, printed, _ = shell.metric(*words)
    assert code == 0
    assert "600 reports of engine" in printed
    assert not (shell.place / "sums.counts.checkpoint").exists()


def test_counts_are_not_written_where_the_next_run_would_read_them(shell: Shell) -> None:
    """Nor where there is no folder, nor over one; both are told before anything is read."""
    (shell.place / "lake" / "inner").mkdir(parents=True)
    (shell.place / "lake" / "x.parquet").write_text("junk")
    for out, reason in (
        ("lake/x.counts", "must lie outside of the folder that is read"),
        ("lake/inner/x.counts", "must lie outside of the folder that is read"),
        ("none/x.counts", "its folder does not exist"),
        ("lake", "it must be a file, or the name of a new one"),
        ("/dev/null", "it must be a file, or the name of a new one"),
    ):
        place = shell.path(out)
        code, _, error = shell.metric("aggregate", shell.path("lake"), "--out", place)
        assert code == 2
        assert reason in error, out
    assert sorted(path.name for path in shell.place.glob("lake/*")) == ["inner", "x.parquet"]


def test_uploads_may_be_packed(shell: Shell) -> None:
    """Alone and in a folder; one that is damaged is named."""
    path = shell.place / "packed" / "uploads.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"\n".join(uploads(shell.place, 5))))
    out = shell.path("x.counts")
    for given in (path, path.parent):
        assert shell.metric("aggregate", str(given), "--out", out)[0] == 0
        assert Counts.load(out).n_reports == 5
    path.write_bytes(path.read_bytes()[:-9])
    code, _, error = shell.metric("aggregate", str(path), "--out", out)
    assert (code, "uploads.jsonl.gz: Compressed file ended" in error) == (2, True)


def test_reports_of_several_metrics_need_a_choice(shell: Shell) -> None:
    """Each metric has its own counts file; the others are left out of it."""
    registry = Registry.load(shell.place / "metrics.toml")
    (shell.place / "lake").mkdir()
    for name in ("engine", "theme"):
        params = registry[name].params
        rows = np.zeros((30, params.n_bytes), np.uint8), np.zeros(30, np.int32)
        path = shell.place / "lake" / f"{name}.parquet"
        write_parquet(path, [rows], params=params, metric=name, day=datetime.date(2026, 11, 1))
    words = ("aggregate", str(shell.place / "lake"), "--out", shell.path("sums.counts"))
    code, _, err = shell(*words, "--registry", "metrics.toml")
    assert code == 2
    assert "give --metric: inputs have reports of several metrics, engine, theme" in err
    assert shell.metric(*words, name="theme")[0] == 0
    assert Counts.load(shell.place / "sums.counts").metric == "theme"
    code, _, err = shell.metric(*words, name="add_ons")
    assert "inputs must have reports of add_ons, got engine, theme" in err


def test_remote_is_an_option_of_spark(shell: Shell) -> None:
    """It is refused, not ignored."""
    words = ("aggregate", "uploads.jsonl", "--out", shell.path("x"), "--remote", "sc://localhost")
    code, _, err = shell.metric(*words)
    assert code == 2
    assert "--remote needs --engine spark" in err


def test_segments_are_added_up(shell: Shell) -> None:
    """Reports of every segment, and those that tell none, are one collection."""
    registry = shell.place / "metrics.toml"
    text = registry.read_text().replace(
        "[metrics.engine_strict]", 'segments = {version = ["1"]}\n\n[metrics.engine_strict]', 1
    )
    registry.write_text(text)
    metric = Registry.load(registry)["engine"]
    told = [metric, metric.in_segment({"version": "1"}), metric.in_segment({})]
    bodies = [
        Upload(
            id=Upload.new_id(),
            reports=(encode_value(bytes([i]) * 32, each, "qwant").report,),
        ).to_json()
        for i, each in enumerate(told)
    ]
    (shell.place / "uploads.jsonl").write_bytes(b"\n".join(bodies))
    out = shell.path("all.counts")
    code, _, err = shell.metric("aggregate", "uploads.jsonl", "--out", out)
    assert (code, err) == (0, "")
    counts = Counts.load(out)
    assert (counts.n_reports, counts.params) == (3, metric.params)
