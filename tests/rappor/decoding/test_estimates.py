"""The outputs of a table of estimates: rows, JSON, CSV, data frames and printed text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodings import ABSENT, CANDIDATES, N_REPORTS, simulate_population_counts
from programs import run_python

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.spreadsheet_csv import format_csv
from rappor.protocol.params import Params
from rappor.reporting.numbers import format_share


@pytest.fixture(name="estimates", scope="module")
def _estimates() -> Estimates:
    """Return the estimates of 32 candidates, eight of them present, with posterior shares."""
    return decode(simulate_population_counts(), CANDIDATES, distribution=True)


def test_keys_of_a_row_depend_on_its_detection_and_on_the_distribution(
    estimates: Estimates,
) -> None:
    """A row has eight keys, four more if it is detected, and two more with `distribution=True`.

    Adjusted intervals and numbers of forged reports exist for detected rows only. A key without a
    value would be read as 0.
    """
    common = ["candidate", "count", "std_error", "share", "ci_low", "ci_high", "p_value"]
    common += ["detected"]
    adjusted = ["ci_low_adjusted", "ci_high_adjusted", "forged_to_make", "forged_to_hide"]
    shares = ["posterior_share", "posterior_share_std_error"]
    for row in estimates.rows():
        assert list(row) == common + (adjusted if row["detected"] else []) + shares
    row = next(decode(simulate_population_counts(n=1000), ABSENT).rows())
    assert list(row) == common + (adjusted if row["detected"] else [])


def test_rows_agree_with_the_columns(estimates: Estimates) -> None:
    """Rows are sorted by share and have the numbers of the columns.

    A count is the share times the number of reports. The adjusted interval of a detected row is
    widened for the selection, so it contains the ordinary interval.
    """
    assert (np.diff(estimates.share) <= 0).all()
    assert estimates.candidates[:2] == ("true 0", "true 1")
    for i, row in enumerate(estimates.rows()):
        assert row["candidate"] == estimates.candidates[i]
        assert row["count"] == pytest.approx(estimates.share[i] * N_REPORTS)
        assert row["std_error"] == pytest.approx(estimates.std_error[i] * N_REPORTS)
        if row["detected"]:
            assert row["ci_low_adjusted"] <= row["ci_low"] < row["share"]
            assert row["share"] < row["ci_high"] <= row["ci_high_adjusted"]


def test_detected_only_omits_other_rows(estimates: Estimates) -> None:
    """`detected_only` omits undetected rows in rows, JSON and CSV."""
    all_rows = list(estimates.rows())
    detected = [row for row in all_rows if row["detected"]]
    assert 0 < len(detected) < len(all_rows)
    assert list(estimates.rows(detected_only=True)) == detected
    assert json.loads(estimates.to_json(detected_only=True))["estimates"] == detected
    assert len(estimates.to_csv(detected_only=True).splitlines()) == 1 + len(detected)


def test_json_has_the_document_of_to_dict(estimates: Estimates) -> None:
    """The JSON is one object of seven keys without NaN or infinity, and equals `to_dict`."""
    document = json.loads(estimates.to_json(), parse_constant=pytest.fail)
    keys = ["estimates", "reports", "unallocated", "unallocated_std_error", "assumptions"]
    assert list(document) == [*keys, "warnings", "diagnostics"]
    assert document == estimates.to_dict()
    assert document["reports"] == N_REPORTS


def test_csv_has_the_numbers_of_the_rows(estimates: Estimates, tmp_path: Any) -> None:
    """A program that reads the CSV gets the same names and numbers, to the last bit.

    Names may contain commas, quotation marks and line breaks. `to_csv` returns the text, and writes
    it to a path instead of an older file.
    """
    quoted_names = decode(simulate_population_counts(n=1000), ['a,"b"', "c\nd", "é"])
    path = tmp_path / "estimates.csv"
    assert path.write_text("old") == 3
    for table in (estimates, quoted_names):
        text = table.to_csv(path)
        assert path.read_bytes().decode() == text
        for row, read in zip(table.rows(), csv.DictReader(io.StringIO(text)), strict=True):
            assert read["candidate"] == row["candidate"]
            assert float(read["count"]) == row["count"]
            assert float(read["p_value"]) == row["p_value"]
            assert read["detected"] == str(row["detected"])


def test_csv_has_an_apostrophe_before_formulas() -> None:
    """A text that a spreadsheet would compute as a formula has an apostrophe in front.

    Devices may send any text, and a formula can send the contents of a sheet to a stranger. A text
    that begins with an apostrophe gets a second one, so that removing one restores every text.
    U+FF1D is the full-width equals sign, which spreadsheets also accept.
    """
    formulas = ["=1+1", "'=1+1", "''=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\uff1d1", "'", "'tis"]
    text = decode(simulate_population_counts(n=1000), [*formulas, "plain"]).to_csv()
    cells = {row["candidate"] for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert cells == {f"'{formula}" for formula in formulas} | {"plain"}
    assert {cell.removeprefix("'") for cell in cells} == {*formulas, "plain"}


@pytest.mark.slow
def test_frames_have_the_columns(estimates: Estimates) -> None:
    """Tables of pandas and Arrow have the same columns and the numbers of the rows."""
    table, frame = estimates.to_arrow(), estimates.to_pandas()
    columns = ["candidate", "count", "std_error", "share", "ci_low", "ci_high", "p_value"]
    columns += ["detected", "ci_low_adjusted", "ci_high_adjusted"]
    columns += [
        "forged_to_make",
        "forged_to_hide",
        "posterior_share",
        "posterior_share_std_error",
        "group",
    ]
    assert table.column_names == list(frame.columns) == columns
    assert table["candidate"].to_pylist() == list(frame["candidate"]) == list(estimates.candidates)
    expected = [row["count"] for row in estimates.rows()]
    assert table["count"].to_pylist() == frame["count"].tolist() == expected
    assert (
        "posterior_share"
        not in decode(simulate_population_counts(n=1000), ABSENT).to_arrow().column_names
    )


def test_str_is_the_printed_table(estimates: Estimates) -> None:
    """`str` is the printed table: titles, the detected rows and a summary; `repr` is one line."""
    lines = str(estimates).splitlines()
    n_detected = int(estimates.detected.sum())
    title = "candidate reports std error share adjusted 95 % interval distribution its error"
    assert lines[0].split() == title.split()
    first = estimates.row(0)
    error = first["std_error"] / estimates.reports
    assert lines[1].startswith("true 0 ")
    assert f"  {format_share(first['share'], error)}  " in lines[1]
    summary = f"{n_detected} of 32 candidates detected in 1,000,000"
    assert lines[1 + n_detected].startswith(summary)
    assert repr(estimates) == f"Estimates({n_detected} detected of 32 candidates, 1000000 reports)"


def decode_two_categories(shares: list[float]) -> Estimates:
    """Return estimates of categories a and b from 10,000 reports, whose estimates are `shares`."""
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.5, p=0.25, q=0.75)
    mean = params.p_star + (params.q_star - params.p_star) * np.array(shares)
    return decode(Counts(params, [np.rint(10_000 * mean).astype(int)], [10_000]))


def test_printed_intervals_are_within_0_and_1() -> None:
    """A printed adjusted interval is cut at 0 and at 1, because no share is outside.

    The columns keep the ends outside, which programs need to combine intervals.
    """
    heavy, weak = decode_two_categories([0.7, 0.035]).rows(detected_only=True)
    assert weak["ci_low_adjusted"] < 0
    assert adjusted_interval(weak) == (0.0, weak["ci_high_adjusted"])
    assert adjusted_interval(heavy) == (heavy["ci_low_adjusted"], heavy["ci_high_adjusted"])
    (certain,) = decode_two_categories([0.99, 0.0]).rows(detected_only=True)
    assert certain["ci_high_adjusted"] > 1
    assert adjusted_interval(certain) == (certain["ci_low_adjusted"], 1.0)


@pytest.mark.slow
def test_an_error_names_pandas_if_it_is_missing() -> None:
    """If pandas is not installed, `to_pandas` raises an error with the command that installs it."""
    script = (
        "import sys; sys.modules['pandas'] = None\n"
        "from rappor import Counts, MissingExtraError, Params, decode\n"
        "params = Params(k=1, encoding='boolean', f=0.5, p=0.25, q=0.75)\n"
        "try:\n    decode(Counts(params, [[5]], [10])).to_pandas()\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    message = "this needs pandas; install it with: pip install pandas\n"
    assert run_python("-c", script).stdout == message


def test_a_text_with_a_carriage_return_is_one_cell(tmp_path: Path) -> None:
    """A text with a carriage return is one cell of the CSV.

    Without quotation marks, a reader would take the rest of the text for a new row, with numbers of
    its own. A text that begins with a carriage return has an apostrophe in front, like a formula.
    """
    texts = ["a\rb", "c\r\nd", "\re", "f,g", 'h"i', "plain"]
    path = tmp_path / "rows.csv"
    path.write_text(
        format_csv(("text", "n"), ({"text": text, "n": 1} for text in texts)), newline=""
    )
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["text", "n"], *([text.replace("\re", "'\re"), "1"] for text in texts)]
