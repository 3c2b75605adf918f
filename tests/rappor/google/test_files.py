"""Files of google/rappor, the reference implementation: hash layout, readers, writers, decodes.

The folder `data` has known answers of google/rappor. They are vectors of its clients, and one
simulated collection with the estimates that its decoder printed.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
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
"""The recorded collection has these parameters, those of [EPK14] section 5.2."""


def write_map(path: Path, candidates: Candidates, params: Params) -> None:
    """Write a map.csv of google/rappor.

    A row has a string and the numbers of the bits that it sets: cohort * k + bit + 1. google/rappor
    writes "Empty" for the empty string.
    """
    cells = candidates.compute_cells(params, 0, len(candidates)).tolist()
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [text or "Empty", *(cell + 1 for cell in row if cell >= 0)]
            for text, row in zip(candidates.strings, cells, strict=True)
        )


def read_csv(name: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table of the recorded collection by their column "string"."""
    with (GOOGLE / name).open(newline="") as file:
        return {row["string"]: row for row in csv.DictReader(file)}


def test_bloom_bits_equal_those_of_googles_python_client() -> None:
    """The 240 recorded Bloom filters are reproduced, from 8 to 128 bits and for any text.

    With other bits, candidates would not match the reports of devices that run google/rappor. A
    recorded filter is written from bit k - 1 down to bit 0.
    """
    vectors = json.loads((GOOGLE / "vectors.json").read_text())["vectors"]
    assert len(vectors) == 240
    for row in vectors:
        letters = {key: row[key] for key in ("k", "h", "m", "f", "p", "q")}
        params = Params(**letters, layout=GOOGLE_LAYOUT, insecure=True)
        value = row["value"].encode()
        cells = compute_google_cells([value], params)[0].reshape(params.m, params.h)
        first_cell = row["cohort"] * params.k
        set_bits = [int(cell) - first_cell for cell in cells[row["cohort"]] if cell >= 0]
        bits = "".join("1" if i in set_bits else "0" for i in reversed(range(params.k)))
        assert bits == row["bloom"]


def hash_as_google(cohort: int, value: bytes) -> bytes:
    """Return the MD5 hash of cohort and value, as the Python client of google/rappor does."""
    return hashlib.md5(cohort.to_bytes(4, "big") + value, usedforsecurity=False).digest()


@pytest.mark.slow
@pytest.mark.parametrize("m", [3, 5000])
def test_cells_are_those_of_md5(m: int) -> None:
    """Cells under the layout of google/rappor are the bytes of an MD5 hash, for any length.

    With k = 256, byte i of the hash is the bit of hash function i. A bit that an earlier hash
    function has chosen already has the cell -1, so that the bit counts once.
    """
    values = [b"\xe9" * length for length in range(120)]
    params = Params(k=256, h=16, m=m, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    cells = compute_google_cells(values, params).reshape(len(values), m, 16)
    for value, rows in zip(values, cells, strict=True):
        for cohort in (0, 1, m - 1):
            digest = hash_as_google(cohort, value)
            expected = [
                -1 if byte in digest[:i] else cohort * 256 + byte for i, byte in enumerate(digest)
            ]
            assert rows[cohort].tolist() == expected


def test_devices_refuse_the_layout_of_google() -> None:
    """A device refuses to encode under the hash layout of google/rappor.

    The layout serves the decoding of counts of google/rappor only. Its name is part of the
    fingerprint, so that counts of both layouts never mix.
    """
    with pytest.raises(ParamsError, match="layout"):
        get_encoder(PAPER)
    assert PAPER.fingerprint != Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75).fingerprint


def test_unknown_layouts_are_refused() -> None:
    """Candidates cannot be hashed under an unknown layout, so the layout is refused."""
    params = Params(k=8, f=0.5, p=0.25, q=0.75, layout="other")
    with pytest.raises(ParamsError, match="layout must be rappor-1 or google"):
        Candidates.from_list(["a"]).compute_cells(params, 0, 1)


def test_recorded_collection_is_decoded_with_fewer_false_strings_and_better_coverage() -> None:
    """On a collection of google/rappor, `decode` is better than the decoder of google/rappor.

    Better means fewer absent strings among the results, a smaller total variation between the
    estimated and the true distribution, and intervals that contain the true share more often. The
    number of intervals that miss their share is at most binomial with 5 %, the adjusted intervals
    of the detected strings included.
    """
    params = files.read_params(GOOGLE / "params.csv")
    assert params == PAPER
    counts = files.read_counts(GOOGLE / "counts.csv", params)
    estimates = decode(counts, files.read_candidates(GOOGLE / "candidates.txt"), distribution=True)
    truth = {text: float(row["proportion"]) for text, row in read_csv("truth.csv").items()}
    google_rows = read_csv("reference_results.csv")
    rows = {row["candidate"]: row for row in estimates.rows()}
    n_false = sum(row["detected"] and text not in truth for text, row in rows.items())
    assert n_false < sum(text not in truth for text in google_rows)

    def compute_total_variation(shares: dict[str, float]) -> float:
        names = truth.keys() | shares.keys()
        return sum(abs(truth.get(name, 0) - shares.get(name, 0)) for name in names) / 2

    shares = {text: row["posterior_share"] for text, row in rows.items()}
    google_shares = {text: float(row["proportion"]) for text, row in google_rows.items()}
    assert compute_total_variation(shares) < compute_total_variation(google_shares)
    covered = [row["ci_low"] <= truth.get(text, 0) <= row["ci_high"] for text, row in rows.items()]
    covered_by_google = [
        float(row["prop_low_95"]) <= truth.get(text, 0) <= float(row["prop_high_95"])
        for text, row in google_rows.items()
    ]
    assert np.mean(covered) > np.mean(covered_by_google)
    assert covered.count(False) <= stats.binom.isf(1e-9, len(covered), 0.05)
    low, high = (
        estimates.ci_low_adjusted[estimates.detected],
        estimates.ci_high_adjusted[estimates.detected],
    )
    true_shares = np.array(
        [truth.get(row["candidate"], 0.0) for row in estimates.rows(detected_only=True)]
    )
    n_outside = int(((true_shares < low) | (true_shares > high)).sum())
    assert n_outside <= stats.binom.isf(1e-9, len(true_shares), 0.05)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params.profile("balanced"), "layout must be google"),
        (dataclasses.replace(PAPER, g=0.2), r"g must be 0\.5"),
    ],
)
def test_parameters_that_params_csv_cannot_contain_are_refused(
    params: Params, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`convert` refuses another layout and another g than 1/2, and writes no file.

    params.csv has neither a layout nor a g. google/rappor would decode such counts wrongly.
    """
    source, target = tmp_path / "source.counts", tmp_path / "target"
    target.mkdir()
    Counts.zero(params).save(source)
    words = ["--params", str(target / "params.csv"), "--out", str(target / "counts.csv")]
    assert run(["convert", str(source), *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(target.iterdir())


def test_a_map_gives_the_same_estimates_as_its_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A map.csv gives the same estimates as the list of candidates that it was computed from.

    google/rappor decodes with maps. The order of the bits in a row does not matter, and "NA" fills
    up short rows.
    """
    candidates = files.read_candidates(GOOGLE / "candidates.txt")
    counts = files.read_counts(GOOGLE / "counts.csv", PAPER)
    path = tmp_path / "map.csv"
    write_map(path, candidates, PAPER)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join([row[0], *reversed(row[1:]), "NA"]) for row in rows))
    mapped = files.read_map(path, PAPER)
    assert mapped.strings == candidates.strings
    listed, from_map = decode(counts, candidates), decode(counts, mapped)
    assert from_map.candidates == listed.candidates
    # Sums of floating-point numbers depend on the order of the cells, so the last digits differ.
    assert from_map.share == pytest.approx(listed.share, abs=1e-12)
    assert from_map.detected.tolist() == listed.detected.tolist()
    words = ["--params", str(GOOGLE / "params.csv"), "--json", "--all"]
    source = ["decode", str(GOOGLE / "counts.csv"), "--format", "google"]
    assert run([*source, *words, "--map", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == from_map.to_dict()
    both = ["--map", str(path), "--candidates", str(GOOGLE / "candidates.txt")]
    assert run([*source, *words, *both]) == 2


def test_a_repeated_string_of_a_map_is_kept_once(tmp_path: Path) -> None:
    """The first row of a string in a map counts, and further rows are counted as duplicates.

    The cells of a map are for its own parameters only, because it has bits and no strings to hash.
    """
    params = Params(k=4, h=1, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    (tmp_path / "map.csv").write_text("a,1,5\na,2,6\n")
    mapped = files.read_map(tmp_path / "map.csv", params)
    assert mapped.n_duplicates == 1
    assert mapped.compute_cells(params, 0, 1).tolist() == [[0, 4]]
    with pytest.raises(ParamsError, match="the map's"):
        mapped.compute_cells(PAPER, 0, 1)


def test_reports_are_summed_from_their_text_form(tmp_path: Path) -> None:
    """Each report of a file is added to the counts of its cohort.

    Its bits are in the last column (irr), written from bit k - 1 down to bit 0.
    """
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
"""Readers of the files, by the name of the file without its suffix."""
HEAD = "k,h,m,p,q,f\n"
"""params.csv must begin with this header."""
REFUSED_FILES = [
    ("params", ["", "k,h,m,f,p,q\n8,1,2,.5,.25,.75\n"], "header"),
    ("params", [HEAD, HEAD + "8,1,2,.25,.75,.5\n" * 2], "one row"),
    ("params", [f"{HEAD}8,1,two,.25,.75,.5\n", f"{HEAD}8,1,2,.25,.75\n"], "integers"),
    ("params", [f"{HEAD}8,1,2,.2_5,.75,.5\n", f"{HEAD}8,1,2,\uff10.25,.75,.5\n"], "numbers"),
    ("params", [f"{HEAD}8,1,2,nan,.75,.5\n", f"{HEAD}8,1,2,.25,1e400,.5\n"], "numbers"),
    ("params", [f"{HEAD}8,1,2,.75,.25,.5\n"], "p must be less than q"),
    ("params", [f"{HEAD}8,1,2,.25,2,.5\n"], "q must be"),
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
"""Kinds of files, contents that are refused, and the reason in the message. Rows of reports and
maps follow valid first rows, so that a message has to name the right line."""


@pytest.mark.parametrize(("kind", "texts", "reason"), REFUSED_FILES)
def test_bad_files_are_refused(tmp_path: Path, kind: str, texts: list[str], reason: str) -> None:
    """A wrong file is refused with its line or its parameter.

    google/rappor accepts many of these files and computes wrong estimates. Cases:

    - params.csv: swapped p and q, NaN, a probability of 2, no bits at all.
    - counts.csv: rows of another width or number, text in place of numbers, more ones than reports.
    - reports: another number of bits, and a cohort that does not exist, which google/rappor counts
      into another cohort.
    - map.csv: bits outside the filter, too many bits, no bits, and text in place of numbers.
    """
    params = Params(k=2, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    path = tmp_path / f"{kind}.csv"
    before = {"reports": "client,cohort,bloom,prr,irr\nc,0,,,01\n", "map": "b,1,3\n"}
    for text in texts:
        path.write_text(before.get(kind, "") + text)
        with pytest.raises((FileError, ParamsError), match=reason):
            files.read_params(path) if kind == "params" else READERS[kind](path, params)


def test_reports_without_a_header_are_refused(tmp_path: Path) -> None:
    """A file whose first row is a report is refused, because the row would not be counted."""
    params = Params(k=2, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    path = tmp_path / "reports.csv"
    path.write_text("7,1,01,01,10\n8,1,01,01,10\n")
    with pytest.raises(FileError, match=r"line 1: .*must be a header, got a report"):
        files.read_reports(path, params)


@pytest.mark.slow
def test_error_control_changes_what_is_detected() -> None:
    """A stricter level or procedure detects fewer strings.

    In google/rappor, the options for level and correction change a printed line only.
    """
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


def test_absent_candidates_have_almost_no_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Candidates that no device has get almost no share, and the rest is unallocated.

    google/rappor reports 56 of these 100 absent strings, with shares that add up to 55 %.
    """
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


@pytest.mark.parametrize(
    "write",
    [lambda text: text, lambda text: text.replace("\n", "\r"), lambda text: f"\ufeff{text}"],
)
def test_white_space_around_cells_and_on_lines_is_ignored(
    write: Callable[[str], str], tmp_path: Path
) -> None:
    """R ignores blank lines, and white space around a number and around NA."""
    params = Params(k=2, h=2, m=2, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    files_of_lines = {
        "params": " k,h , m,p,q,f\n \t\n2 , 2,2,.25 , 7.5e-01,\t.5\n \n",
        "counts": "\n10 ,\t4,6\n  \n 20,9, 11\n\t \n",
        "map": " \nvim, 1 ,NA , 4, \n\t\nemacs, NA,3,2 ,\t4\n ",
        "reports": "client,cohort,bloom,prr,irr\n\t\n7,1,,,10\n \n",
    }
    for name, text in files_of_lines.items():
        (tmp_path / f"{name}.csv").write_text(write(text), encoding="utf-8", newline="")
    assert files.read_params(tmp_path / "params.csv") == params
    counts = files.read_counts(tmp_path / "counts.csv", params)
    assert counts == Counts(params, [[4, 6], [9, 11]], [10, 20])
    cells = files.read_map(tmp_path / "map.csv", params).compute_cells(params, 0, 2)
    assert cells.tolist() == [[0, 3, -1, -1], [1, 2, 3, -1]]
    assert files.read_reports(tmp_path / "reports.csv", params).n_reports == 1


@pytest.mark.parametrize("name", ["NA", "007", "1e3", "TRUE", ""])
def test_strings_that_look_like_numbers_or_missing_values_stay_text(
    name: str, tmp_path: Path
) -> None:
    """A string of a map that looks like a number, a boolean or a missing value stays a text.

    google/rappor is written in R. It fails for the candidate "NA" and removes leading zeros.
    """
    params = Params(k=64, h=1, m=8, f=0.25, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    candidates = Candidates.from_list([name, "other", "absent"])
    write_map(tmp_path / "map.csv", candidates, params)
    mapped = files.read_map(tmp_path / "map.csv", params)
    assert mapped.strings == candidates.strings
    assert np.array_equal(
        mapped.compute_cells(params, 0, 3), candidates.compute_cells(params, 0, 3)
    )


def test_candidates_with_equal_bits_are_named_as_a_group(tmp_path: Path) -> None:
    """Two candidates with equal bits form an identifiability group, and each has the common share.

    No counts can distinguish the two. google/rappor divides their share without a word.
    """
    params = Params(k=16, h=1, m=2, f=0.25, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    (tmp_path / "map.csv").write_text("a,1,17\nb,1,17\nc,2,18\n")
    bit_counts = np.full((2, 16), 100_000 * params.p_star).astype(np.int64)
    bit_counts[:, 0] = int(100_000 * params.q_star)
    counts = Counts(params, bit_counts, np.array([100_000, 100_000]))
    estimates = decode(counts, files.read_map(tmp_path / "map.csv", params))
    rows = {row["candidate"]: row for row in estimates.rows()}
    assert rows["a"]["group"] == rows["b"]["group"] == 1
    assert rows["a"]["share"] == rows["b"]["share"] == pytest.approx(1, abs=0.1)
    assert "group" not in rows["c"]


def test_command_line_decodes_and_converts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rappor decode --format google` reads the files, and `rappor convert` loses nothing.

    Counts that are converted to this project's format and back again are equal.
    """
    counts, params = str(GOOGLE / "counts.csv"), str(GOOGLE / "params.csv")
    words = ["--format", "google", "--params", params]
    words += ["--candidates", str(GOOGLE / "candidates.txt"), "--json"]
    assert run(["decode", counts, *words]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = ["estimates", "reports", "unallocated", "unallocated_std_error", "assumptions"]
    assert list(document) == [*keys, "warnings", "diagnostics"]
    assert document["reports"] == 1_000_000
    assert run(["decode", counts, "--format", "google"]) == 2
    converted, converted_back = str(tmp_path / "rappor.counts"), str(tmp_path / "back.csv")
    assert run(["convert", counts, "--params", params, "--out", converted]) == 0
    assert Counts.load(converted) == files.read_counts(counts, files.read_params(params))
    new_params = str(tmp_path / "params.csv")
    words = ["--params", new_params, "--out", converted_back]
    assert run(["convert", converted, *words]) == 0
    read_back = files.read_counts(converted_back, files.read_params(new_params))
    assert read_back == Counts.load(converted)
