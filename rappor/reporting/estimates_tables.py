"""Tables of estimates: candidates, contrasts, and bits that no candidate explains.

Terminal, page and notebook use the same columns. A row of estimates is one candidate. Its keys are
listed in `Estimates.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rappor.decoding.contrasts import Contrast
from rappor.decoding.estimates import Estimates
from rappor.reporting.numbers import (
    format_interval,
    format_p_value,
    format_share,
    format_short_percent,
)
from rappor.reporting.tables import Column, Table, table_of_cells

Row = Mapping[str, Any]
"""`Estimates.rows` yields such rows."""

_DIGITS: Final = 4
"""Number of significant digits of a number that is not a share, such as the mean of buckets. A
convention: standard errors of such numbers seldom justify more."""

_LARGE_WEIGHT: Final = 100
"""Weight from which a table shows no decimals. Smaller weights have `_WEIGHT_DECIMALS`, because the
weights of a list of 10,000 candidates range from .2 to 21."""
_WEIGHT_DECIMALS: Final = 2


def format_candidate(row: Row) -> str:
    """Format the name of a row, with the number of its identifiability group.

    Candidates of one group have the same bits in every cohort, so counts cannot distinguish them. A
    row without a group has the number 0 or no number.
    """
    return f"{row['candidate']} (group {row['group']})" if row.get("group") else row["candidate"]


def error_of_share(row: Row, reports: int) -> float | None:
    """Return the standard error of a row's share; None for an unknown error.

    The row contains the standard error of its count, in reports. `reports` is the number of all
    reports.
    """
    return None if row["std_error"] is None else row["std_error"] / reports


def estimate_columns(
    estimates: Estimates,
    select_interval: Callable[[Row], tuple[float | None, float | None]],
    interval_title: str,
) -> dict[str, Column[Row]]:
    """Return all columns of numbers of estimates, by their keys.

    Terminal and page select columns by their keys, each in its own order.

    Parameters
    ----------
    estimates : the estimates.
    select_interval : function that returns the ends of the interval of a row.
    interval_title : title of the column of intervals.
    """

    def error(row: Row) -> float | None:
        return error_of_share(row, estimates.reports)

    columns: dict[str, Column[Row]] = {
        "share": Column("share", lambda row: format_share(row["share"], error(row))),
        "interval": Column(
            interval_title, lambda row: format_interval(*select_interval(row), error(row))
        ),
        "reports": Column(estimates.share_unit, lambda row: f"{row['count']:z,.0f}"),
        "std_error": Column("std error", lambda row: _format_number(row["std_error"], "unknown")),
        "p_value": Column("p-value", lambda row: format_p_value(row["p_value"])),
        "forged_to_make": _forged_column("forged make", "forged_to_make"),
        "forged_to_hide": _forged_column("forged hide", "forged_to_hide"),
    }
    if estimates.weight is not None:
        columns["weight"] = Column("weight", _format_weight)
    if estimates.posterior_share is not None:
        columns["distribution"] = Column("distribution", _format_posterior)
        columns["distribution_error"] = Column("its error", _format_posterior_error)
    return columns


def contrasts_table(
    contrasts: Iterable[Contrast], confidence: float, first_title: str = "together"
) -> Table[Contrast]:
    """Return the table of contrasts: sums and differences of several rows, with their errors.

    Parameters
    ----------
    contrasts : the contrasts.
    confidence : confidence level of the intervals, such as 0.95.
    first_title : title of the column of names.
    """
    return Table(
        title="Several rows together",
        columns=(
            Column(first_title, lambda contrast: contrast.name, "name"),
            Column("estimate", lambda contrast: _format_estimate(contrast, contrast.estimate)),
            Column("std error", _format_error),
            Column(f"{format_short_percent(confidence)} interval", _format_ends),
            Column(
                "p-value",
                lambda contrast: (
                    "" if contrast.p_value is None else format_p_value(contrast.p_value)
                ),
            ),
        ),
        rows=tuple(contrasts),
    )


def unexplained_bits_table(title: str, bits: Iterable[Row]) -> Table[Any]:
    """Return the table of bits that neither candidates nor noise explain.

    Parameters
    ----------
    title : title of the table.
    bits : mappings with the keys "collection" (number of the parameter set), "cohort", "bit",
        "share" and "std_error".
    """
    return table_of_cells(
        title,
        ("parameter set", "cohort", "bit", "share", "std error"),
        (
            (
                f"{bit['collection']}",
                f"{bit['cohort']}",
                f"{bit['bit']}",
                format_share(bit["share"], bit["std_error"]),
                format_share(bit["std_error"], bit["std_error"]),
            )
            for bit in bits
        ),
    )


def _format_number(number: float | None, unknown: str) -> str:
    """Format a whole number. None becomes the text `unknown`."""
    return unknown if number is None else f"{number:z,.0f}"


def _forged_column(title: str, key: str) -> Column[Row]:
    """Return a column of numbers of forged reports. Rows that are not detected have empty cells."""
    return Column(title, lambda row: _format_number(row[key], "none can") if key in row else "")


def _format_weight(row: Row) -> str:
    """Format the weight of a candidate's test. A sum of several rows has no weight."""
    if "weight" not in row:
        return ""
    return f"{row['weight']:,.{_WEIGHT_DECIMALS if row['weight'] < _LARGE_WEIGHT else 0}f}"


def _format_posterior(row: Row) -> str:
    """Format the posterior share of a row, empty for a row without it."""
    if "posterior_share" not in row:
        # The row "not in the list" is a sum of strings and has no share of the distribution.
        return ""
    return format_share(row["posterior_share"], row["posterior_share_std_error"])


def _format_posterior_error(row: Row) -> str:
    """Format the standard error of the posterior share, empty for a row without it."""
    if "posterior_share" not in row:
        return ""
    error = row["posterior_share_std_error"]
    return format_share(error, error) or "unknown"


def _format_estimate(contrast: Contrast, value: float) -> str:
    """Format a share, or a number such as the mean of buckets."""
    if contrast.is_share:
        return format_share(value, contrast.std_error)
    if math.isfinite(value):
        return f"{value:z.{_DIGITS}g}"
    # Case: a mean or a quantile beyond the outer edges of the buckets. Its value is infinite.
    return "above the edges" if value > 0 else "below the edges"


def _format_error(contrast: Contrast) -> str:
    """Format the standard error of a contrast."""
    error = contrast.std_error
    if contrast.is_share:
        return format_share(error, error)
    return f"{error:.2g}" if math.isfinite(error) else "unknown"


def _format_ends(contrast: Contrast) -> str:
    """Format the confidence interval of a contrast."""
    if contrast.is_share:
        return format_interval(contrast.ci_low, contrast.ci_high, contrast.std_error)
    low, high = (_format_estimate(contrast, end) for end in (contrast.ci_low, contrast.ci_high))
    return f"{low} to {high}"
