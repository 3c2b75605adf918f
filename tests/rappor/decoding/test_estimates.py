"""The table: rows, JSON, CSV, frames and text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decodings import ABSENT, CANDIDATES, N, counted
from programs import run_python

from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.spreadsheet_csv import csv_text
from rappor.protocol.params import Params
from rappor.reporting.numbers import format_share


@pytest.fixture(name="estimates", scope="module")
def _estimates() -> Estimates:
    return decode(counted(), CANDIDATES, distribution=True)


def test_rows_have_the_keys_of_the_contract(estimates: Estimates) -> None:
    """Rows have eight keys, and further keys if they are detected or the distribution exists."""
    always = ["candidate", "count", "std_error", "share", "ci_low", "ci_high", "p_value"]
    always += ["detected"]
    adjusted = ["ci_low_adjusted", "ci_high_adjusted", "forged_to_make", "forged_to_hide"]
    shares = ["posterior_share", "posterior_share_std_error"]
    for row in estimates.rows():
        assert list(row) == always + (adjusted if row["detected"] else []) + shares
    without = next(decode(counted(n=1000), ABSENT).rows())
    assert list(without) == always + (adjusted if without["detected"] else [])


def test_rows_agree_with_the_columns(estimates: Estimates) -> None:
    """Rows are sorted by count, and the adjusted interval contains the ordinary interval."""
    assert (np.diff(estimates.share) <= 0).all()
    assert estimates.candidates[:2] == ("true 0", "true 1")
    for i, row in enumerate(estimates.rows()):
        assert row["candidate"] == estimates.candidates[i]
        assert row["count"] == pytest.approx(estimates.share[i] * N)
        assert row["std_error"] == pytest.approx(estimates.std_error[i] * N)
        if row["detected"]:
            assert row["ci_low_adjusted"] <= row["ci_low"] < row["share"]
            assert row["share"] < row["ci_high"] <= row["ci_high_adjusted"]


def test_detected_rows_can_be_had_alone(estimates: Estimates) -> None:
    """`detected_only` omits undetected rows in rows, JSON and CSV."""
    every = list(estimates.rows())
    detected = [row for row in every if row["detected"]]
    assert 0 < len(detected) < len(every)
    assert list(estimates.rows(detected_only=True)) == detected
    assert json.loads(estimates.to_json(detected_only=True))["estimates"] == detected
    assert len(estimates.to_csv(detected_only=True).splitlines()) == 1 + len(detected)


def test_json_reads_back(estimates: Estimates) -> None:
    """The JSON is one strict object of six keys and equals `to_dict`."""
    document = json.loads(estimates.to_json(), parse_constant=pytest.fail)
    keys = ["estimates", "reports", "unallocated", "unallocated_std_error", "assumptions"]
    assert list(document) == [*keys, "warnings", "diagnostics"]
    assert document == estimates.to_dict()
    assert document["reports"] == N


def test_csv_reads_back(estimates: Estimates, tmp_path: Any) -> None:
    """Every number survives in the text and in the file, with any candidate name."""
    odd = decode(counted(n=1000), ['a,"b"', "c\nd", "é"])
    path = tmp_path / "estimates.csv"
    assert path.write_text("old") == 3
    for table in (estimates, odd):
        text = table.to_csv(path)
        assert path.read_bytes().decode() == text
        for row, read in zip(table.rows(), csv.DictReader(io.StringIO(text)), strict=True):
            assert read["candidate"] == row["candidate"]
            assert float(read["count"]) == row["count"]
            assert float(read["p_value"]) == row["p_value"]
            assert read["detected"] == str(row["detected"])


def test_csv_holds_no_formula() -> None:
    """A text that a spreadsheet would compute has an apostrophe in front. Numbers have none."""
    formulas = ["=1+1", "'=1+1", "''=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\uff1d1", "'", "'tis"]
    text = decode(counted(n=1000), [*formulas, "plain"]).to_csv()
    cells = {row["candidate"] for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert cells == {f"'{formula}" for formula in formulas} | {"plain"}
    assert {cell.removeprefix("'") for cell in cells} == {*formulas, "plain"}


@pytest.mark.slow
def test_frames_have_the_columns(estimates: Estimates) -> None:
    """Data frames of pandas and Arrow contain the same columns and numbers."""
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
    assert "posterior_share" not in decode(counted(n=1000), ABSENT).to_arrow().column_names


def test_people_read_the_table_of_the_command_line(estimates: Estimates) -> None:
    """`str` is the printed table with two digits of each error, `repr` is one line."""
    lines = str(estimates).splitlines()
    n_found = int(estimates.detected.sum())
    title = "candidate reports std error share adjusted 95 % interval distribution its error"
    assert lines[0].split() == title.split()
    first = estimates.row(0)
    error = first["std_error"] / estimates.reports
    assert lines[1].startswith("true 0 ")
    assert f"  {format_share(first['share'], error)}  " in lines[1]
    assert lines[1 + n_found].startswith(f"{n_found} of 32 candidates detected in 1,000,000")
    assert repr(estimates) == f"Estimates({n_found} detected of 32 candidates, 1000000 reports)"


def one_hot(shares: list[float]) -> Estimates:
    """Return estimates of categories a and b, each with this share of 10,000 reports."""
    params = Params(k=2, encoding="onehot", categories=("a", "b"), f=0.5, p=0.25, q=0.75)
    mean = params.p_star + (params.q_star - params.p_star) * np.array(shares)
    return decode(Counts(params, [np.rint(10_000 * mean).astype(int)], [10_000]))


def test_people_read_no_share_below_zero() -> None:
    """Printed adjusted intervals end at 0. The columns contain the whole interval."""
    heavy, weak = one_hot([0.7, 0.035]).rows(detected_only=True)
    assert weak["ci_low_adjusted"] < 0
    assert adjusted_interval(weak) == (0.0, weak["ci_high_adjusted"])
    assert adjusted_interval(heavy) == (heavy["ci_low_adjusted"], heavy["ci_high_adjusted"])


@pytest.mark.slow
def test_pandas_is_named_where_it_is_missing() -> None:
    """Without pandas the error names the package to install."""
    script = (
        "import sys; sys.modules['pandas'] = None\n"
        "from rappor import Counts, MissingExtraError, Params, decode\n"
        "params = Params(k=1, encoding='boolean', f=0.5, p=0.25, q=0.75)\n"
        "try:\n    decode(Counts(params, [[5]], [10])).to_pandas()\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    message = "this needs pandas; install it with: pip install pandas\n"
    assert run_python("-c", script).stdout == message


def test_a_carriage_return_breaks_no_row(tmp_path: Path) -> None:
    """A row with a carriage return is in quotes, and readers of CSV return the text."""
    texts = ["a\rb", "c\r\nd", "\re", "f,g", 'h"i', "plain"]
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(("text", "n"), ({"text": text, "n": 1} for text in texts)), newline="")
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["text", "n"], *([text.replace("\re", "'\re"), "1"] for text in texts)]
