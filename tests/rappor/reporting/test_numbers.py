"""Numbers of estimates: an estimate that rounds to zero has no minus sign.

An estimate is negative about half of the time if its string is absent, because the expected noise
is subtracted. A table once showed -0 reports.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rappor import Estimates
from rappor.decoding.contrasts import Contrast
from rappor.decoding.spreadsheet_csv import format_csv
from rappor.reporting.estimates_tables import contrasts_table, estimate_columns
from rappor.reporting.lines import Axis
from rappor.reporting.markup import tag
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_interval,
    format_percent,
    format_share,
    format_short_percent,
)

SMALL = -1e-9
"""A negative estimate that rounds to zero in every format that has fewer than nine decimals."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_percent(SMALL), "0.0 %"),
        (format_short_percent(-0.0), "0 %"),
        (format_share(SMALL, 0.01), "0.0 %"),
        (format_share(SMALL, None), "0.000 %"),
        (format_interval(SMALL, SMALL, 0.01), "0.0 % to 0.0 %"),
        (format_change(SMALL, 0.01), "+0.0"),
        (format_change_interval(-0.0, SMALL, 0.01), "+0.0 to +0.0"),
        (Axis(field="x", title="x").write(-0.0), "0"),
        (tag("line", x=-0.0), tag("line", x=0.0)),
        (format_csv(["x"], [{"x": -0.0}]), "x\n0.0\n"),
        # The sign of an estimate that does not round to zero stays.
        (format_share(-0.001, 0.01), "-0.1 %"),
        (format_change(-0.001, 0.01), "-0.1"),
        (format_csv(["x"], [{"x": SMALL}]), "x\n-1e-09\n"),
    ],
)
def test_a_number_that_rounds_to_zero_has_no_minus_sign(text: str, expected: str) -> None:
    """Formatters of shares, changes, axes, attributes and CSV write 0 and never -0."""
    assert text == expected


@pytest.mark.parametrize(("count", "expected"), [(-0.3, "0"), (-0.0, "0"), (-0.7, "-1")])
def test_a_count_that_rounds_to_zero_has_no_minus_sign(count: float, expected: str) -> None:
    """The column of reports in text and on the page writes -0.3 reports as 0."""
    estimates = cast(
        "Estimates",
        SimpleNamespace(reports=1000, share_unit="reports", weight=None, posterior_share=None),
    )
    row: Any = {"count": count}
    columns = estimate_columns(estimates, lambda _: (None, None), "interval")
    assert columns["reports"].format_cell(row) == expected


def test_a_mean_that_is_a_negative_zero_has_no_minus_sign() -> None:
    """A contrast that is no share, such as a mean of buckets, is written as 0."""
    contrast = Contrast(
        name="mean",
        estimate=-0.0,
        std_error=1.0,
        ci_low=-0.0,
        ci_high=2.0,
        p_value=None,
        is_share=False,
    )
    text = contrasts_table([contrast], 0.95).to_text()
    assert "-0" not in text
    assert "0 to 2" in text
