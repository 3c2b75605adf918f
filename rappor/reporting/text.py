"""Text tables of estimates, for a terminal and for `print`."""

from __future__ import annotations

import itertools
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rappor.decoding.contrasts import Contrast
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.post_stratification import WeightedTotals
from rappor.reporting.contrast_table import contrast_cells, contrast_titles
from rappor.reporting.footnotes import FORGED, list_footnotes
from rappor.reporting.markup import shorten
from rappor.reporting.numbers import (
    format_interval,
    format_percent,
    format_share,
    format_short_percent,
)

_LEAST_NAME, _MOST_NAME = 9, 40
"""Columns of a candidate: numbers are never cut, names are."""


def estimates_text(
    estimates: Estimates,
    *,
    detected_only: bool = True,
    forged: bool = False,
    width: int = 100,
) -> str:
    """Format the rows of estimates and their footnotes as text.

    If only detected rows are listed, the intervals are adjusted: they hold for the list as a whole.
    If all candidates are listed, each interval holds on its own. The strings that the metric's
    entry lists come first, and an undetected one has its own interval. The share of all other
    strings comes last. With `forged`, the numbers of forged reports replace the intervals.
    """
    sentences = [*([FORGED] if forged else []), *list_footnotes(estimates)]
    rows = _rows(estimates, detected_only=detected_only, forged=forged)
    lines = [*_table(list(rows), width)]
    if estimates.contrasts:
        lines += ["", *_contrasts(estimates.contrasts, estimates.error_control.confidence, width)]
    return "\n".join([*lines, *(wrap(sentence, width) for sentence in sentences)])


def weighted_text(weighted: WeightedTotals, *, width: int = 100) -> str:
    """Format weighted totals of segments and their footnotes as text."""
    weights = ", ".join(f"{name} {format_percent(part)}" for name, part in weighted.weights.items())
    sentences = [
        f"Weighted shares of {len(weighted.weights):,} segments with {weighted.reports:,} reports: "
        f"{weights}. Listed are {len(weighted.contrasts):,} of {weighted.n_candidates:,} "
        "candidates.",
        *weighted.assumptions,
        *(each.sentence for each in weighted.warnings),
    ]
    lines = _contrasts(weighted.contrasts, weighted.error_control.confidence, width, "candidate")
    return "\n".join([*lines, *(wrap(sentence, width) for sentence in sentences)])


def _contrasts(
    contrasts: Iterable[Contrast], confidence: float, width: int, what: str = "together"
) -> Iterator[str]:
    titles = contrast_titles(format_short_percent(confidence), what)
    return _table([titles, *map(contrast_cells, contrasts)], width)


def detected_table(
    estimates: Estimates, *, truth: Mapping[str, int], most: int, width: int = 100
) -> str:
    """Format the most frequent detected rows, with their true counts."""
    rows = _rows(estimates, detected_only=True, truth=truth)
    return "\n".join(_table(list(itertools.islice(rows, 1 + most)), width))


def wrap(sentence: str, width: int) -> str:
    """Break a sentence into lines of at most `width` columns; a number keeps its unit."""
    lines = textwrap.fill(sentence.replace(" %", "\xa0%"), width, break_on_hyphens=False)
    return lines.replace("\xa0", " ")


def _rows(
    estimates: Estimates,
    *,
    detected_only: bool,
    truth: Mapping[str, int] | None = None,
    forged: bool = False,
) -> Iterator[tuple[str, ...]]:
    """Yield the titles, then the cells of each row."""
    interval = f"{format_short_percent(estimates.error_control.confidence)} interval"
    interval = f"adjusted {interval}" if detected_only else f"{interval} of each"
    yield (
        *("candidate", "reports", "std error", "share"),
        *(("forged make", "forged hide") if forged else (interval,)),
        *(() if estimates.posterior_share is None else ("distribution", "its error")),
        *(() if truth is None else ("truth",)),
    )
    for row in estimates.rows(detected_only=detected_only):
        error = None if row["std_error"] is None else row["std_error"] / estimates.reports
        is_adjusted = detected_only and row["detected"]
        low, high = adjusted_interval(row) if is_adjusted else (row["ci_low"], row["ci_high"])
        yield (
            _name(row),
            f"{row['count']:,.0f}",
            "unknown" if row["std_error"] is None else f"{row['std_error']:,.0f}",
            format_share(row["share"], error),
            *(_forged(row) if forged else [format_interval(low, high, error)]),
            *(_distribution(row) if "posterior_share" in row else ()),
            *(() if truth is None else (f"{truth.get(row['candidate'], 0):,}",)),
        )
    if (rest := estimates.not_listed) is not None:
        reports, error = estimates.reports, rest.std_error
        yield (
            rest.name,
            f"{rest.estimate * reports:,.0f}",
            f"{error * reports:,.0f}",
            format_share(rest.estimate, error),
            *(
                ("", "")
                if forged
                else (format_interval(max(rest.ci_low, 0.0), rest.ci_high, error),)
            ),
            *(() if estimates.posterior_share is None else ("", "")),
            *(() if truth is None else ("",)),
        )


def _name(row: Mapping[str, Any]) -> str:
    group = f" (group {row['group']})" if "group" in row else ""
    mark = "" if row["detected"] else " (not detected)"
    return f"{row['candidate']}{group}{mark}"


def _distribution(row: Mapping[str, Any]) -> tuple[str, str]:
    error = row["posterior_share_std_error"]
    return format_share(row["posterior_share"], error), format_share(error, error) or "unknown"


def _forged(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers of forged reports that create and hide a row; empty if unknown."""
    for key in ("forged_to_make", "forged_to_hide"):
        number = row.get(key)
        yield "" if key not in row else "none can" if number is None else f"{number:,}"


def _table(rows: list[tuple[str, ...]], width: int) -> Iterator[str]:
    """Yield one line for each row: the first column is aligned left, numbers right."""
    widest = [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    room = max(_LEAST_NAME, min(width - sum(2 + each for each in widest), _MOST_NAME))
    names = [shorten(row[0], room) for row in rows]
    first = max(map(_columns, names))
    for name, row in zip(names, rows, strict=True):
        cells = (f"  {cell:>{most}}" for cell, most in zip(row[1:], widest, strict=True))
        yield (name + " " * (first - _columns(name)) + "".join(cells)).rstrip()


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
