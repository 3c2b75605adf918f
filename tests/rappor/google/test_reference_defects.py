"""Defects of published RAPPOR code, each with a test that it is not here.

The first half is what was seen in randomizers and collectors, the second what the decoder of
google/rappor does on inputs at the edge. Every docstring says what the defect was.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from google_clients import permanent_python, write_map
from scipy import stats

from rappor import (
    Candidates,
    Counts,
    DecodeError,
    FileError,
    Metric,
    Params,
    ParamsError,
    Population,
    Report,
    ReportError,
    Upload,
    decode,
    encode_value,
    parse_upload,
    simulate_counts,
)
from rappor.candidates.google_hashing import LAYOUT
from rappor.cli.app import run
from rappor.decoding.detection import Detection
from rappor.google import files
from rappor.google.effective_noise import effective_f
from rappor.protocol.randomizer import instantaneous_response, permanent, permanent_response

GOOGLE = Path(__file__).parent / "data"
PAPER = files.read_params(GOOGLE / "params.csv")
SECRET = bytes(range(32))
SMALL = Params(k=4, h=1, m=4, f=0.5, p=0.25, q=0.75)
N = 100_000


def expected_counts(params: Params, shares: dict[str, float]) -> Counts:
    """Return the counts of N devices a cohort as they fall in the mean, under any layout."""
    cells = Candidates.from_list(shares).cells(params, 0, len(shares))
    true = np.zeros(params.m * params.k)
    for row, share in zip(cells, shares.values(), strict=True):
        true[row] += share
    ones = N * (params.p_star + (params.q_star - params.p_star) * true)
    table = ones.astype(np.int64).reshape(params.m, params.k)
    return Counts(params, table, np.full(params.m, N))


def metric(name: str, params: Params = SMALL) -> Metric:
    expires = datetime.date(2030, 1, 1)
    return Metric(
        name=name,
        params=params,
        description="d",
        owner="o",
        expires=expires,
        epoch="life",
        interval="none",
    )


def coins_of(u: int) -> Callable[[int], Sequence[int]]:
    """Return coins that all show the same number."""
    return lambda n: [u] * n


def test_a_set_bit_is_cleared_by_its_coin() -> None:
    """Defect: a randomizer that never clears a set bit, so that a zero proves absence."""
    between = coins_of(SMALL.t_1 + 1)  # from t_1 to t_1 + t_0: the response is 0
    assert permanent_response(b"\x0f", SMALL, between) == b"\x00"


def test_the_last_bit_is_randomized_like_the_others() -> None:
    """Defect: a loop that stops one bit early and shows the last one bare."""
    for k in (1, 7, 8, 9, 13):
        params = Params(k=k, h=1, m=1, f=0.5, p=0.25, q=0.75, encoding="flags", categories=_k(k))
        assert permanent_response(bytes(params.n_bytes), params, coins_of(0))[-1] >> (k - 1) % 8 & 1


def _k(k: int) -> tuple[str, ...]:
    return tuple(f"flag {i}" for i in range(k))


def test_both_bit_values_have_their_own_chance() -> None:
    """Defect: an instantaneous response that uses p for bits of both values."""
    between = coins_of((SMALL.t_p + SMALL.t_q) // 2)
    assert instantaneous_response(b"\x05", SMALL, between) == b"\x05"


def test_the_permanent_response_stays_the_same() -> None:
    """Defect: a permanent response that is drawn again at each call, and averages out."""
    first = [encode_value(SECRET, metric("page"), "a").permanent for _ in range(20)]
    assert set(first) == {first[0]}


def test_each_metric_has_its_own_permanent_response() -> None:
    """Defect: responses keyed by secret and bits alone, shared by all metrics of a device."""
    params = Params(k=32, h=1, m=1, f=0.5, p=0.25, q=0.75)
    bits = b"\x01\x00\x00\x00"
    responses = {permanent(SECRET, f"metric{i}", "", params, bits) for i in range(10)}
    assert len(responses) == 10
    # Theirs takes no metric at all: this is what the defect looks like.
    assert permanent_python(SECRET, 1, k=32, f=0.5) == permanent_python(SECRET, 1, k=32, f=0.5)


@pytest.mark.parametrize("f", [0.3, 0.45, 0.1])
def test_f_is_decoded_as_it_was_randomized(f: float) -> None:
    """Defect: f rounded to 1/128 on the device while decoding uses f as written.

    Here the device's threshold is what p* and q* are computed from, and of their clients the
    effective f can be named.
    """
    params = Params(k=8, h=1, m=1, f=f, p=0.25, q=0.75)
    randomized = (params.t_1 + params.t_0) / 2**32
    assert params.q_star - params.p_star == pytest.approx(
        (1 - randomized) * (params.t_q - params.t_p) / 2**32, rel=1e-15
    )


def test_the_f_of_their_clients_can_be_named(tmp_path: Path) -> None:
    """The same defect in their collections: f = .3 is 39/128 in Python and 38/128 in C++."""
    path = tmp_path / "params.csv"
    path.write_text("k,h,m,p,q,f\n8,1,2,.25,.75,.3\n")
    assert files.read_params(path).f == pytest.approx(0.3, abs=1e-9)
    assert files.read_params(path, client="python").f == pytest.approx(39 / 128, abs=1e-9)
    assert files.read_params(path, client="cpp").f == pytest.approx(38 / 128, abs=1e-9)
    assert effective_f(0.3, "java") == 38 / 128


@pytest.mark.parametrize("cohort", [-1, 4, 5])
def test_a_cohort_out_of_range_is_refused_everywhere(cohort: int, tmp_path: Path) -> None:
    """Defect: cohort -1 counted into the last cohort, m into another one (modulo)."""
    report = Report(metric="page", params=SMALL.fingerprint, cohort=cohort, bits=b"\x01")
    with pytest.raises(ReportError, match="cohort"):
        Counts.from_reports([report], SMALL, "page")
    with pytest.raises(ReportError):
        Counts.from_packed(np.ones((1, 1), np.uint8), np.array([cohort]), SMALL)
    (tmp_path / "reports.csv").write_text(f"client,cohort,bloom,prr,irr\nc,{cohort},,,0001\n")
    with pytest.raises(FileError, match="cohort"):
        files.read_reports(tmp_path / "reports.csv", SMALL)


def test_two_ends_with_different_k_notice_it() -> None:
    """Defect: client and server with different k, for months, without a word."""
    other = Params(k=8, h=1, m=4, f=0.5, p=0.25, q=0.75)
    report = encode_value(SECRET, metric("page", other), "a").report
    with pytest.raises(ReportError, match="params"):
        Counts.from_reports([report], SMALL, "page")
    upload = Upload(id=Upload.new_id(), reports=(report,)).to_json()
    known = {("page", SMALL.fingerprint): SMALL}
    _, (answer,) = parse_upload(upload, lambda *key: known.get(key))
    assert isinstance(answer, ReportError)


def test_error_control_changes_what_is_detected() -> None:
    """Defect: options for level and correction that change nothing but a printed line."""
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    candidates = files.read_candidates(GOOGLE / "candidates.txt")
    found = [
        int(
            decode(
                counts, candidates, detection=Detection(level=level, correction=correction)
            ).detected.sum()
        )
        for level, correction in ((0.2, "bh"), (0.05, "bh"), (0.05, "bonferroni"), (1e-4, "bh"))
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


def test_intervals_cover_what_they_promise() -> None:
    """Defect: 95 % intervals that hold the truth of 58 to 78 % of what is reported.

    On the recorded collection the adjusted intervals of the detected strings and the plain
    ones of all candidates miss no more often than chance allows at 1e-9.
    """
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    found = decode(counts, files.read_candidates(GOOGLE / "candidates.txt"))
    with (GOOGLE / "truth.csv").open(newline="") as file:
        truth = {row["string"]: float(row["proportion"]) for row in csv.DictReader(file)}
    true = np.array([truth.get(text, 0.0) for text in found.candidates])
    missed = int(((true < found.ci_low) | (true > found.ci_high)).sum())
    assert missed <= stats.binom.isf(1e-9, len(true), 0.05)
    low, high = found.ci_low_adjusted[found.detected], found.ci_high_adjusted[found.detected]
    outside = (true[found.detected] < low) | (true[found.detected] > high)
    assert int(outside.sum()) <= stats.binom.isf(1e-9, len(outside), 0.05)


@pytest.mark.parametrize("encoding", ["onehot", "flags"])
def test_categories_are_decoded(encoding: str) -> None:
    """Defect: categorical decoding that crashes."""
    names = ("a", "b", "c")
    params = Params(k=3, h=1, m=1, f=0.5, p=0.25, q=0.75, encoding=encoding, categories=names)
    counts = Counts(params, np.array([[60_000, 50_000, 40_000]]), np.array([N]))
    assert sorted(decode(counts).candidates) == list(names)


def test_an_edited_map_is_read_anew(tmp_path: Path) -> None:
    """Defect: a map cached by its file's name only, so that edits change nothing."""
    path = tmp_path / "map.csv"
    path.write_text("a,1,5\n")
    params = Params(k=4, h=1, m=2, f=0.5, p=0.25, q=0.75, layout=LAYOUT)
    first = files.read_map(path, params).cells(params, 0, 1)
    path.write_text("a,2,6\n")
    assert (files.read_map(path, params).cells(params, 0, 1) - first).tolist() == [[1, 1]]


def test_cohort_zero_is_a_cohort() -> None:
    """Defect: cohort 0 treated as no cohort."""
    report = Report(metric="page", params=SMALL.fingerprint, cohort=0, bits=b"\x01")
    assert Counts.from_reports([report], SMALL, "page").reports.tolist() == [1, 0, 0, 0]


# What their decoder does at the edge.


def test_absent_candidates_are_not_given_the_mass() -> None:
    """Defect: 56 of 100 strings with 55 % of the mass reported when none of them is there."""
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    absent = [f"nobody holds {i}" for i in range(100)]
    found = decode(counts, absent, distribution=True)
    assert int(found.detected.sum()) <= stats.binom.isf(1e-9, 100, 0.05)
    assert found.share is not None
    assert found.share.sum() < 0.15
    assert found.unallocated > 0.85


def test_more_ones_than_reports_are_refused(tmp_path: Path) -> None:
    """Defect: bit counts above the number of reports taken as they are."""
    rows = (GOOGLE / "counts.csv").read_text().splitlines()
    cells = rows[0].split(",")
    cells[1] = str(int(cells[0]) + 1)
    (tmp_path / "counts.csv").write_text("\n".join([",".join(cells), *rows[1:]]))
    with pytest.raises(FileError, match="ones"):
        files.read_counts(tmp_path / "counts.csv", PAPER)


def test_candidates_with_equal_bits_are_named_as_a_group(tmp_path: Path) -> None:
    """Defect: the mass of two candidates with equal bits split between them without a word."""
    params = Params(k=16, h=1, m=2, f=0.25, p=0.25, q=0.75, layout=LAYOUT)
    (tmp_path / "map.csv").write_text("a,1,17\nb,1,17\nc,2,18\n")
    candidates = files.read_map(tmp_path / "map.csv", params)
    ones = np.full((2, 16), N * params.p_star).astype(np.int64)
    ones[:, 0] = int(N * params.q_star)
    found = decode(Counts(params, ones, np.array([N, N])), candidates)
    rows = {row["candidate"]: row for row in found.rows()}
    assert rows["a"]["group"] == rows["b"]["group"] == 1
    assert rows["a"]["proportion"] == rows["b"]["proportion"] == pytest.approx(1, abs=0.1)
    assert "group" not in rows["c"]


def test_one_cohort_is_decoded() -> None:
    """Defect: a crash for m = 1."""
    params = Params(k=32, h=1, m=1, f=0.25, p=0.25, q=0.75)
    counts = simulate_counts(Population(["a", "b", "c"], [3, 2, 1]), params, n_reports=N, seed=1)
    found = decode(counts, ["a", "b", "c"])
    assert len(found) == 3
    assert found.detected.any()


def test_no_candidates_is_an_error_in_words() -> None:
    """Defect: a crash for no candidates."""
    with pytest.raises(DecodeError, match="at least 1"):
        decode(files.read_counts(GOOGLE / "counts.csv", PAPER), [])


@pytest.mark.parametrize("name", ["NA", "007", "1e3", "TRUE", ""])
def test_every_string_stays_the_text_it_is(name: str, tmp_path: Path) -> None:
    """Defect: a candidate named NA crashes, and numeric strings lose their leading zeros."""
    params = Params(k=64, h=1, m=8, f=0.25, p=0.25, q=0.75, layout=LAYOUT)
    counts = expected_counts(params, {name: 0.7, "other": 0.3})
    candidates = Candidates.from_list([name, "other", "absent"])
    write_map(tmp_path / "map.csv", candidates, params)
    mapped = files.read_map(tmp_path / "map.csv", params)
    assert mapped.strings == candidates.strings
    for asked in (candidates, mapped):
        found = decode(counts, asked)
        assert found.candidates[0] == name
        assert found.detected[0]


@pytest.mark.parametrize("row", ["8,1,2,.75,.25,.5", "8,1,2,.25,.75,1", "8,1,2,-.1,.75,.5"])
def test_parameters_out_of_range_are_refused(row: str, tmp_path: Path) -> None:
    """Defect: swapped p and q accepted, and 107 strings printed."""
    (tmp_path / "params.csv").write_text(f"k,h,m,p,q,f\n{row}\n")
    with pytest.raises(ParamsError):
        files.read_params(tmp_path / "params.csv")


def test_the_same_input_gives_the_same_answer() -> None:
    """Defect: five runs on one input shared 9 of 56 strings seen."""
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    candidates = files.read_candidates(GOOGLE / "candidates.txt")
    answers = {decode(counts, candidates, distribution=True).to_json() for _ in range(3)}
    assert len(answers) == 1


def test_nothing_detected_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: no file, or yesterday's, and exit status 1 where nothing is detected."""
    (tmp_path / "candidates.txt").write_text("nobody holds this\n")
    words = ["--params", str(GOOGLE / "params.csv"), "--json"]
    words += ["--candidates", str(tmp_path / "candidates.txt")]
    assert run(["decode", str(GOOGLE / "counts.csv"), "--format", "google", *words]) == 0
    assert '"estimates": []' in capsys.readouterr().out
