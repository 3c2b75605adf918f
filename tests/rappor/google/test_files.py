"""Files of google/rappor: hash layout, readers and writers, and its own collection decoded."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rappor import Candidates, Counts, FileError, Params, ParamsError, decode
from rappor.candidates.google_hashing import GOOGLE_LAYOUT, compute_google_cells
from rappor.cli.app import run
from rappor.estimator.error_control import ErrorControl
from rappor.google import files
from rappor.protocol.encodings.encodings_by_name import get_encoder

GOOGLE = Path(__file__).parent / "data"
PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75, layout=GOOGLE_LAYOUT)


def write_map(path: Path, candidates: Candidates, params: Params) -> None:
    """Write map.csv: a string, then cohort * k + bit + 1 of each hash in each cohort."""
    cells = candidates.compute_cells(params, 0, len(candidates)).tolist()
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [text or "Empty", *(cell + 1 for cell in row if cell >= 0)]
            for text, row in zip(candidates.strings, cells, strict=True)
        )


def read_csv(name: str) -> dict[str, dict[str, str]]:
    """Read a table of the recorded collection by its string column."""
    with (GOOGLE / name).open(newline="") as file:
        return {row["string"]: row for row in csv.DictReader(file)}


def test_bloom_bits_are_those_of_their_python_client() -> None:
    """All 240 recorded filters come out, for 8 to 128 bits and any text."""
    vectors = json.loads((GOOGLE / "vectors.json").read_text())["vectors"]
    assert len(vectors) == 240
    for row in vectors:
        letters = {key: row[key] for key in ("k", "h", "m", "f", "p", "q")}
        params = Params(**letters, layout=GOOGLE_LAYOUT, insecure=True)
        value = row["value"].encode()
        cells = compute_google_cells([value], params)[0].reshape(params.m, params.h)
        own = [int(cell) - row["cohort"] * params.k for cell in cells[row["cohort"]] if cell >= 0]
        bits = "".join("1" if i in own else "0" for i in reversed(range(params.k)))
        assert bits == row["bloom"]


def md5(cohort: int, value: bytes) -> bytes:
    """Hash as their Python client does."""
    return hashlib.md5(cohort.to_bytes(4, "big") + value, usedforsecurity=False).digest()


@pytest.mark.slow
@pytest.mark.parametrize("m", [3, 5000])
def test_cells_are_those_of_md5(m: int) -> None:
    """Strings of any length are hashed with MD5, and repeated strings are dropped."""
    values = [b"\xe9" * length for length in range(120)]
    params = Params(k=256, h=16, m=m, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    cells = compute_google_cells(values, params).reshape(len(values), m, 16)
    for value, rows in zip(values, cells, strict=True):
        for cohort in (0, 1, m - 1):
            digest = md5(cohort, value)
            expected = [
                -1 if byte in digest[:i] else cohort * 256 + byte for i, byte in enumerate(digest)
            ]
            assert rows[cohort].tolist() == expected


def test_their_layout_is_not_offered_to_devices() -> None:
    """A device refuses to encode under the layout, and the fingerprint differs."""
    with pytest.raises(ParamsError, match="layout"):
        get_encoder(PAPER)
    assert PAPER.fingerprint != Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75).fingerprint


def test_unknown_layouts_are_refused() -> None:
    """Candidates need a known layout."""
    params = Params(k=8, f=0.5, p=0.25, q=0.75, layout="other")
    with pytest.raises(ParamsError, match="layout must be rappor-1 or google"):
        Candidates.from_list(["a"]).compute_cells(params, 0, 1)


def test_recorded_collection_is_decoded_with_fewer_false_strings_and_better_coverage() -> None:
    """On its own data: fewer false strings, smaller total variation, and higher coverage."""
    params = files.read_params(GOOGLE / "params.csv")
    assert params == PAPER
    counts = files.read_counts(GOOGLE / "counts.csv", params)
    estimates = decode(counts, files.read_candidates(GOOGLE / "candidates.txt"), distribution=True)
    truth = {text: float(row["proportion"]) for text, row in read_csv("truth.csv").items()}
    theirs = read_csv("reference_results.csv")
    ours = {row["candidate"]: row for row in estimates.rows()}
    assert sum(row["detected"] and text not in truth for text, row in ours.items()) < sum(
        text not in truth for text in theirs
    )

    def variation(shares: dict[str, float]) -> float:
        names = truth.keys() | shares.keys()
        return sum(abs(truth.get(name, 0) - shares.get(name, 0)) for name in names) / 2

    assert variation({text: row["posterior_share"] for text, row in ours.items()}) < variation(
        {text: float(row["proportion"]) for text, row in theirs.items()}
    )
    covered = [row["ci_low"] <= truth.get(text, 0) <= row["ci_high"] for text, row in ours.items()]
    their_covered = [
        float(row["prop_low_95"]) <= truth.get(text, 0) <= float(row["prop_high_95"])
        for text, row in theirs.items()
    ]
    assert np.mean(covered) > np.mean(their_covered)
    assert covered.count(False) <= stats.binom.isf(1e-9, len(covered), 0.05)
    low, high = (
        estimates.ci_low_adjusted[estimates.detected],
        estimates.ci_high_adjusted[estimates.detected],
    )
    true = np.array(
        [truth.get(row["candidate"], 0.0) for row in estimates.rows(detected_only=True)]
    )
    outside = int(((true < low) | (true > high)).sum())
    assert outside <= stats.binom.isf(1e-9, len(true), 0.05)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (Params.profile("balanced"), "layout must be google"),
        (dataclasses.replace(PAPER, g=0.2), r"g must be 0\.5"),
    ],
)
def test_what_their_files_cannot_say_is_not_converted(
    params: Params, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another layout and another g are refused before a file is written."""
    ours, theirs = tmp_path / "ours.counts", tmp_path / "theirs"
    theirs.mkdir()
    Counts.zero(params).save(ours)
    words = ["--params", str(theirs / "params.csv"), "--out", str(theirs / "counts.csv")]
    assert run(["convert", str(ours), *words]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not list(theirs.iterdir())


def test_a_map_decodes_as_the_candidates_that_it_was_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A map that is written and read again gives the same estimates, in any order of cells."""
    candidates = files.read_candidates(GOOGLE / "candidates.txt")
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    path = tmp_path / "map.csv"
    write_map(path, candidates, PAPER)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join([row[0], *reversed(row[1:]), "NA"]) for row in rows))
    mapped = files.read_map(path, PAPER)
    assert mapped.strings == candidates.strings
    listed, answer = decode(counts, candidates), decode(counts, mapped)
    assert answer.candidates == listed.candidates
    # The order of the cells is the order of the sums: the last digits differ.
    assert answer.share == pytest.approx(listed.share, abs=1e-12)
    assert answer.detected.tolist() == listed.detected.tolist()
    words = ["--params", str(GOOGLE / "params.csv"), "--json", "--all"]
    source = ["decode", str(GOOGLE / "counts.csv"), "--format", "google"]
    assert run([*source, *words, "--map", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == answer.to_dict()
    both = ["--map", str(path), "--candidates", str(GOOGLE / "candidates.txt")]
    assert run([*source, *words, *both]) == 2


def test_a_repeated_string_of_a_map_is_kept_once(tmp_path: Path) -> None:
    """The first row of a string counts, and the number of further rows is in `n_duplicates`."""
    params = Params(k=4, h=1, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    (tmp_path / "map.csv").write_text("a,1,5\na,2,6\n")
    mapped = files.read_map(tmp_path / "map.csv", params)
    assert mapped.n_duplicates == 1
    assert mapped.compute_cells(params, 0, 1).tolist() == [[0, 4]]
    with pytest.raises(ParamsError, match="the map's"):
        mapped.compute_cells(PAPER, 0, 1)


def test_reports_are_summed_from_their_text_form(tmp_path: Path) -> None:
    """The last column, irr, is read from bit k - 1 down to bit 0, into its cohort's row."""
    params = Params(k=12, h=2, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    header = "client,cohort,bloom,prr,irr\n"
    (tmp_path / "reports.csv").write_text(
        header + "c1,0,,,000000000001\nc2,1,,,100000000000\nc3,1,,,100000000001\n"
    )
    counts = files.read_reports(tmp_path / "reports.csv", params)
    assert counts.cohort_reports.tolist() == [1, 2]
    assert counts.bit_counts[0].tolist() == [1] + [0] * 11
    assert counts.bit_counts[1].tolist() == [1] + [0] * 10 + [2]


READERS = {"counts": files.read_counts, "reports": files.read_reports, "map": files.read_map}
HEAD = "k,h,m,p,q,f\n"
BAD = [
    ("params", ["", "k,h,m,f,p,q\n8,1,2,.5,.25,.75\n"], "header"),
    ("params", [HEAD, HEAD + "8,1,2,.25,.75,.5\n" * 2], "one row"),
    ("params", [f"{HEAD}8,1,two,.25,.75,.5\n", f"{HEAD}8,1,2,.25,.75\n"], "integers"),
    ("params", [f"{HEAD}8,1,2,.75,.25,.5\n"], "p must be less than q"),
    ("params", [f"{HEAD}8,1,2,.25,2,.5\n"], "q must be"),
    ("params", [f"{HEAD}8,1,2,nan,.75,.5\n"], "p must be"),
    ("params", [f"{HEAD}0,1,2,.2,.7,.5\n"], "k must be"),
    ("counts", ["", "5,1,2\n", "5,1,2\n" * 3], "2 cohorts"),
    ("counts", ["5,1\n5,1,2\n"], "3 cells"),
    ("counts", ["5,1,x\n5,1,2\n"], "whole number, got 'x'"),
    ("counts", ["reports,1,2\n5,1,2\n"], "line 1: .*got 'reports'; a row of titles"),
    ("counts", ["5,1,2.5\n", "5,1,nan\n", "5,1,0x1\n", "5,1e400,2\n", "5,1_0,2\n"], "whole"),
    ("counts", ["5,\u0661,2\n", "5,1e-1,2\n", "5,,2\n", "9223372036854775808,1,2\n"], "whole"),
    ("map", ["a,1.5,3", "a,0x1,3", "a,,", "a,inf,3"], "line 2"),
    ("counts", ["5,1,6\n5,1,2\n"], "ones"),
    ("counts", ["5,1,-1\n5,1,2\n"], "got '-1'$"),
    ("reports", ["c,-1,,,01", "c,2,,,01", "c,0,,,0", "c,0,,,02", "c,0,01", "c,x,,,01"], "line 3"),
    ("map", ["a", "a,0,5", "a,1,5", "a,1,2,3", "a,x,5", "a,NA"], "line 2"),
]


@pytest.mark.parametrize(("kind", "texts", "reason"), BAD)
def test_bad_files_are_refused(tmp_path: Path, kind: str, texts: list[str], reason: str) -> None:
    """Each with its line, and parameters with their letter.

    Swapped p and q, NaN, a probability of 2 and no bits at all, which their tools let pass; rows of
    another width or number, junk, more ones than reports; a cohort that is none is not counted
    into another one; cells outside the filter, too many, none or no numbers.
    """
    params = Params(k=2, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    path = tmp_path / f"{kind}.csv"
    before = {"reports": "client,cohort,bloom,prr,irr\nc,0,,,01\n", "map": "b,1,3\n"}
    for text in texts:
        path.write_text(before.get(kind, "") + text)
        with pytest.raises((FileError, ParamsError), match=reason):
            files.read_params(path) if kind == "params" else READERS[kind](path, params)


@pytest.mark.slow
def test_error_control_changes_what_is_detected() -> None:
    """A defect of theirs: options for level and correction that change a printed line only."""
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    candidates = files.read_candidates(GOOGLE / "candidates.txt")
    rules = ((0.2, "bh"), (0.05, "bh"), (0.05, "bonferroni"), (1e-4, "bh"))
    controls = [ErrorControl(alpha=level, method=correction) for level, correction in rules]
    n_detected = [
        int(decode(counts, candidates, error_control=control).detected.sum())
        for control in controls
    ]
    assert n_detected == sorted(n_detected, reverse=True)
    assert len(set(n_detected)) == 4


def test_absent_candidates_are_not_given_the_mass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """google/rappor reports 56 of 100 absent strings with 55 % of the mass."""
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    absent = [f"nobody holds {i}" for i in range(100)]
    estimates = decode(counts, absent, distribution=True)
    assert int(estimates.detected.sum()) <= stats.binom.isf(1e-9, 100, 0.05)
    assert estimates.posterior_share is not None
    assert estimates.posterior_share.sum() < 0.15
    assert estimates.unallocated > 0.85
    (tmp_path / "candidates.txt").write_text(absent[0])
    words = ["--params", str(GOOGLE / "params.csv")]
    words += ["--candidates", str(tmp_path / "candidates.txt")]
    assert run(["decode", str(GOOGLE / "counts.csv"), "--format", "google", "--json", *words]) == 0
    assert '"estimates": []' in capsys.readouterr().out


@pytest.mark.parametrize("name", ["NA", "007", "1e3", "TRUE", ""])
def test_every_string_stays_the_text_it_is(name: str, tmp_path: Path) -> None:
    """google/rappor crashes for a candidate NA, and drops leading zeros of numeric strings."""
    params = Params(k=64, h=1, m=8, f=0.25, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    candidates = Candidates.from_list([name, "other", "absent"])
    write_map(tmp_path / "map.csv", candidates, params)
    mapped = files.read_map(tmp_path / "map.csv", params)
    assert mapped.strings == candidates.strings
    assert np.array_equal(
        mapped.compute_cells(params, 0, 3), candidates.compute_cells(params, 0, 3)
    )


def test_candidates_with_equal_bits_are_named_as_a_group(tmp_path: Path) -> None:
    """google/rappor splits the mass of two candidates with equal bits silently."""
    params = Params(k=16, h=1, m=2, f=0.25, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    (tmp_path / "map.csv").write_text("a,1,17\nb,1,17\nc,2,18\n")
    ones = np.full((2, 16), 100_000 * params.p_star).astype(np.int64)
    ones[:, 0] = int(100_000 * params.q_star)
    counts = Counts(params, ones, np.array([100_000, 100_000]))
    estimates = decode(counts, files.read_map(tmp_path / "map.csv", params))
    rows = {row["candidate"]: row for row in estimates.rows()}
    assert rows["a"]["group"] == rows["b"]["group"] == 1
    assert rows["a"]["share"] == rows["b"]["share"] == pytest.approx(1, abs=0.1)
    assert "group" not in rows["c"]


def test_command_line_decodes_and_converts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --format google, decode gives the estimates of `decode`, and convert is reversible."""
    counts, params = str(GOOGLE / "counts.csv"), str(GOOGLE / "params.csv")
    words = ["--format", "google", "--params", params]
    words += ["--candidates", str(GOOGLE / "candidates.txt"), "--json"]
    assert run(["decode", counts, *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    keys = ["estimates", "reports", "unallocated", "unallocated_std_error", "assumptions"]
    assert list(answer) == [*keys, "warnings", "diagnostics"]
    assert answer["reports"] == 1_000_000
    assert run(["decode", counts, "--format", "google"]) == 2
    ours, back = str(tmp_path / "ours.counts"), str(tmp_path / "back.csv")
    assert run(["convert", counts, "--params", params, "--out", ours]) == 0
    assert Counts.load(ours) == files.read_counts(counts, files.read_params(params))
    again = str(tmp_path / "params.csv")
    assert run(["convert", ours, "--params", again, "--out", back]) == 0
    assert files.read_counts(back, files.read_params(again)) == Counts.load(ours)
