"""Tables of a comparison: changes, shares, and samples.

A comparison contains the shares of the same strings in several samples: periods, segments or
collections. A contrast is a weighted sum of the samples, such as a difference or a slope.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.base.sentence_numbers import format_plural
from rappor.comparison.comparison import Comparison
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.reporting.estimates_tables import format_candidate
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_days,
    format_interval,
    format_p_value,
    format_share,
    format_short_percent,
)
from rappor.reporting.plots import select_contrast_interval
from rappor.reporting.tables import Column, Table, table_of_cells

Row = Mapping[str, Any]
"""`Comparison.rows` yields such rows."""

_COMPARED: Final = {
    "sample": ("difference", "before", "after"),
    "segment": ("difference", "elsewhere", "here"),
}
"""Titles of the columns of a difference and of the two compared shares. The keys are the values of
`Comparison.by`, which names the kind of the samples."""

_OVER_TIME: Final = ("trend", "first third", "last third")
"""Titles of the same columns if the samples are three or more periods. The change is then the slope
of a line through all periods."""

_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""These characters draw bars of growing height, from one eighth of a line to a full line."""

_GAP: Final = "\u00b7"
"""Character that stands for a period without reports among the bars."""

_MIN_BARS: Final = 3
"""Smallest number of bars that a table contains. Fewer bars do not show how a share developed."""

_NAME_WIDTH: Final = 9
"""Number of columns of a terminal that bars leave for the name of a candidate. With more columns,
fewer names are cut, and there are fewer bars."""


def changes_table(
    comparison: Comparison, title: str, rows: Sequence[Row], *, include_names: bool = False
) -> Table[Row]:
    """Return the table of rows of primary contrasts.

    Significant changes have adjusted intervals (`explain_adjusted_intervals`).

    Parameters
    ----------
    comparison : the comparison.
    title : title of the table.
    rows : rows of its primary contrasts.
    include_names : True for a column with the name of the contrast of each row.
    """
    name: Column[Row] = Column("compared", lambda row: row["name"], "text")
    change, before, after = _name_columns(comparison)
    interval = f"{format_short_percent(comparison.error_control.confidence)} interval"
    return Table(
        title=title,
        columns=(
            Column("candidate", format_candidate, "name"),
            *((name,) if include_names else ()),
            Column("change", lambda row: row["direction"], "text"),
            Column(
                f"{change}, points",
                lambda row: format_change(row["estimate"], row["std_error"]) or "unknown",
            ),
            Column(
                interval,
                lambda row: format_change_interval(
                    *select_contrast_interval(row), row["std_error"]
                ),
            ),
            Column(before, lambda row: format_share(row["before"], row["std_error"]) or "unknown"),
            Column(after, lambda row: format_share(row["after"], row["std_error"]) or "unknown"),
            Column("p-value", lambda row: format_p_value(row["p_value"])),
        ),
        rows=rows,
    )


def explain_changes(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for below the table of changes: change and difference of shares differ.

    Yields nothing if every change of the table equals the difference of the two shares beside it.
    """
    if not comparison.primary:
        return
    by, (change, before, after) = comparison.by, _name_columns(comparison)
    if _has_line(comparison):
        first_days, last_days = (
            format_days(periods[0].first, periods[-1].last) for periods in comparison.thirds
        )
        yield (
            f"The {change} is the change along a line through all {by}s, from the first {by} to "
            f"the last, so it is not the {after} ({last_days}) minus the {before} ({first_days})."
        )
    elif any(contrast.how == "rows" for contrast in comparison.primary):
        values = format_plural(comparison.value_noun)
        yield (
            f'The {change} is not exactly "{after}" minus "{before}", and is more precise: it is '
            f"estimated from the bits of all samples together, in which {values} without a change "
            "cancel out, while each share is estimated from its own sample alone."
        )


def changes_of_contrast(
    comparison: Comparison, contrast: SampleContrast, candidates: Sequence[int], width: int
) -> Table[Row]:
    """Return the table of one contrast for a terminal of `width` columns.

    If the terminal is wide enough, the last column has a bar for the share of each of the last
    periods.

    Parameters
    ----------
    comparison : the comparison.
    contrast : one of its primary contrasts.
    candidates : indices of the listed candidates.
    width : number of columns of the terminal.
    """
    rows = [
        comparison.contrast_row(contrast, i)
        | {"group": int(comparison.group[i]), "course": comparison.per_sample.share[:, i].tolist()}
        for i in candidates
    ]
    table = changes_table(comparison, contrast.name, rows)
    # The bars get the columns of the terminal that remain beside the numbers and a short name. Two
    # spaces separate neighbouring columns of the table. Names can be cut, numbers cannot.
    numbers_width = sum(2 + column_width for column_width in table.column_widths()[1:])
    n_bars = min(len(comparison.samples), width - numbers_width - _NAME_WIDTH - 2)
    if contrast.kind != "slope" or n_bars < _MIN_BARS:
        return table
    bars: Column[Row] = Column(f"{comparison.by}s", lambda row: _draw_bars(row["course"][-n_bars:]))
    return dataclasses.replace(table, columns=(*table.columns, bars))


def shares_table(comparison: Comparison, rows: Sequence[Row]) -> Table[Row]:
    """Return the table of the share of each candidate in each sample."""
    interval = f"{format_short_percent(comparison.error_control.confidence)} interval"
    if comparison.has_adjusted_shares:
        interval = f"adjusted {interval}"
    # A period is named by its first day. The table of the samples contains both ends.
    names = {
        sample.name: sample.name if sample.first is None else f"{sample.first}"
        for sample in comparison.samples
    }
    return Table(
        title=f"Shares of the {comparison.share_unit} by {comparison.by}",
        columns=(
            Column("candidate", format_candidate, "name"),
            Column(
                comparison.by,
                lambda row: names[row["name"]] + " (smoothed)" * (row["what"] == "smoothed"),
                "text",
            ),
            Column(
                "share",
                lambda row: format_share(row["estimate"], row["std_error"]) or "no reports",
            ),
            Column(interval, _format_interval_of_share),
            Column("detected", lambda row: "yes" if row["detected"] else "no"),
        ),
        rows=rows,
    )


def samples_table(comparison: Comparison) -> Table[Sequence[str]]:
    """Return the table of the samples: reports, missing days and parameters of each sample."""
    changed_samples = {after.name for _, after in comparison.params_changes}
    unallocated = zip(
        comparison.per_sample.unallocated, comparison.per_sample.unallocated_std_error, strict=True
    )
    return table_of_cells(
        f"Every {comparison.by}: reports, effective number of devices, and unallocated share",
        (comparison.by, "reports", "effective number of devices", "days without reports",
         "days not yet released", "unallocated", "std error", "parameters"),
        (
            (
                sample.name,
                f"{sample.reports:,}",
                f"{sample.devices:,.0f}",
                _format_days(sample.missing_days),
                _format_days(sample.withheld),
                format_share(share, error) or "unknown",
                format_share(error, error) or "unknown",
                " ".join(sample.fingerprints) + " (changed)" * (sample.name in changed_samples),
            )
            for sample, (share, error) in zip(comparison.samples, unallocated, strict=True)
        ),
    )  # fmt: skip


def list_significant_steps(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each significant step, in the order of the periods.

    Two periods have one step, which is the change itself, so nothing is listed.
    """
    for contrast in comparison.contrasts if len(comparison.samples) > 2 else ():
        for i in contrast.changed.nonzero()[0].tolist() if contrast.kind == "step" else ():
            row = contrast.row(i)
            between = format_change_interval(*select_contrast_interval(row), row["std_error"])
            points = format_change(row["estimate"], row["std_error"])
            yield f"{contrast.name}  {comparison.candidates[i]}: {points} points ({between})"


def _has_line(comparison: Comparison) -> bool:
    """Return whether the changes are slopes of three or more periods.

    A line through two periods is their difference.
    """
    n_periods = sum(sample.reports > 0 for sample in comparison.samples)
    return comparison.by not in _COMPARED and n_periods > 2


def _name_columns(comparison: Comparison) -> tuple[str, str, str]:
    """Return the titles of the columns of a change, and of the shares before and after it."""
    if comparison.by in _COMPARED:
        return _COMPARED[comparison.by]
    if _has_line(comparison):
        return _OVER_TIME
    return "difference", f"first {comparison.by}", f"last {comparison.by}"


def _draw_bars(shares: Sequence[float]) -> str:
    """Return a bar for each share. A bar of full height stands for the largest share.

    A period without reports has a dot.
    """
    largest = max((share for share in shares if math.isfinite(share)), default=0.0)
    scale = (len(_BARS) - 1) / largest if largest > 0 else 0.0
    heights = (max(share, 0.0) * scale if math.isfinite(share) else None for share in shares)
    return "".join(_GAP if height is None else _BARS[round(height)] for height in heights)


def _format_interval_of_share(row: Row) -> str:
    """Format the interval of a share; empty for a period without reports."""
    if row["estimate"] is None:
        return ""
    return format_interval(row["ci_low"], row["ci_high"], row["std_error"])


def _format_days(number: int | None) -> str:
    """Format a number of days. None, an unknown number, becomes an empty text."""
    return "" if number is None else f"{number:,}"
