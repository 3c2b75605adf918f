"""What a metric says now, as a part of a page: the sentence, each string with its bar and its run.

Bars are shares of the latest periods, whiskers their intervals; a line beside each bar is the share
of every period, with a band of its intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rappor.comparison.overview import Overview, OverviewRow
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import report
from rappor.protocol.loss import epsilon_1
from rappor.reporting.changes import named, string
from rappor.reporting.charts import COLORS, Panels
from rappor.reporting.document import Content, header
from rappor.reporting.dots import along
from rappor.reporting.footnotes import list_missing_periods
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import (
    format_change,
    format_interval,
    format_percent,
    format_share,
    format_short_percent,
)
from rappor.reporting.page import candidates_table
from rappor.reporting.plots import shares_of
from rappor.reporting.scale import Scale
from rappor.reporting.tables import folded, section
from rappor.reporting.time_chart import axis, ribbon

_TOP: Final = 3
_MOST: Final = 20
"""Lines of a card, and of a page."""

_PANELS: Final = 6
_HEIGHT: Final = 26


def overview_content(found: Overview) -> Content:
    """Return what a page shows: the sentence, the strings, and folded what it rests on."""
    title = shorten(found.comparison.metric, 60) or "Overview"
    estimates = found.estimates
    lines = found.lines()
    drawn = (
        found.comparison.shown_rows[:_PANELS].tolist() if len(found.comparison.samples) > 1 else []
    )
    panels = Panels(title="Shares", charts=[shares_of(found.comparison, i) for i in drawn])
    more = f" {len(lines) - _MOST:,} more are in the files only." if len(lines) > _MOST else ""
    parts = [
        header(
            title,
            sentence(found),
            warnings=[each.sentence for each in estimates.warnings],
        ),
        _ranks(found, lines[:_MOST]),
        tag("p", f"{_legend(found)}{more}", class_="note"),
        tag("p", basis(found), class_="note"),
        *([section(f"By {found.comparison.by}", panels.inline(), name="shares")] if drawn else []),
        folded(
            "Numbers, and what they rest on",
            candidates_table(report(estimates)),
            *(
                tag("p", text)
                for text in (estimates.assumptions, *list_missing_periods(found.comparison))
            ),
            *(tag("p", each.sentence) for each in found.comparison.warnings),
            name="numbers",
        ),
    ]
    return Content(title, tuple(parts))


def overview_card(found: Overview) -> Markup:
    """Return what a list of metrics shows of one: the sentence, and its most common strings."""
    lines = found.lines()[:_TOP]
    return join(tag("p", sentence(found)), _ranks(found, lines))


def sentence(found: Overview) -> Markup:
    """Say which string leads, and which shares changed over all periods."""
    lines, changes = found.lines(), found.changes()
    detected = [line for line in lines if line.detected]
    if not detected:
        return join("No listed string is common enough to be detected yet.")
    first = max(detected, key=lambda line: line.share)
    parts = [string(first.name), f" leads with {_share(first)} of the reports"]
    n = len(found.comparison.samples)
    if not found.comparison.primary:
        return join(*parts, ".")
    over = f"over {n} {found.comparison.by}s"
    if not changes:
        return join(*parts, f"; no share changed significantly {over}.")
    return join(*parts, f". {over[0].upper()}{over[1:]} ", named(changes, found.comparison), ".")


def basis(found: Overview) -> str:
    """Say in a line how many reports and devices there are, and how much noise."""
    estimates = found.estimates
    share = estimates.diagnostics.get("detectable_share")
    losses = max(epsilon_1(each.params) for each in estimates.collections)
    parts = [
        f"{estimates.reports:,} reports in {found.latest}, as informative as {found.devices:,.0f} "
        "devices with one report each",
        *(
            [f"shares from {format_percent(share)} are usually found"]
            if share and share < 1
            else []
        ),
        *_outside(estimates),
        f"epsilon of one report: {losses:.3g}",
    ]  # fmt: skip
    return "; ".join(parts) + "."


def _outside(estimates: Estimates) -> Iterator[str]:
    """Yield which share no candidate has, and which share is not in the list of the entry."""
    rest = estimates.not_listed
    if rest is not None:
        ends = format_interval(max(rest.ci_low, 0.0), rest.ci_high, rest.std_error)
        share = format_share(max(rest.estimate, 0.0), rest.std_error)
        yield f"{share} are not in the list ({ends})"
    if math.isfinite(estimates.unallocated) and estimates.unallocated > 0:
        yield f"{format_percent(estimates.unallocated)} have no detected string"


def _ranks(found: Overview, lines: Sequence[OverviewRow]) -> Markup:
    scale = _scale(lines)
    rows = (
        tag(
            "li",
            tag("span", string(each.name), class_="name"),
            tag(
                "span",
                tag("strong", _share(each)),
                " ",
                tag("small", format_interval(each.low, each.high, each.std_error) if each.detected
                    else "not detected"),
                class_="share",
            ),
            _bar(each, scale),
            *_run(each, found),
            class_="" if each.detected else "undetected",
        )
        for each in lines
    )  # fmt: skip
    return tag("ol", *rows, class_="ranks")


def _scale(lines: Sequence[OverviewRow]) -> Scale:
    ends = [end for each in lines for end in (each.low or 0.0, each.high or each.share)]
    return Scale.over([0.0, *ends], start=0.0, end=99.0)


def _bar(line: OverviewRow, scale: Scale) -> Markup:
    """Draw a share as a bar from 0, and its interval over the end."""
    y, low, high = _HEIGHT / 2, line.low, line.high
    parts = [
        tag("rect", x=along(scale, 0.0), y=y - 6, height=12, rx=2, fill=COLORS[0],
            width=f"{max(scale(line.share) - scale(0.0), 0.0):.4g}%",
            fill_opacity=0.85 if line.detected else 0.3),
    ]  # fmt: skip
    if scale(0.0) > scale.start:
        zero = along(scale, 0.0)
        parts.append(tag("line", x1=zero, x2=zero, y1=0, y2=_HEIGHT, stroke="currentColor"))
    if low is not None and high is not None:
        ends = {"x1": along(scale, low), "x2": along(scale, high)}
        parts.append(tag("line", y1=y, y2=y, stroke="currentColor", stroke_width=1.5, **ends))
        parts += [
            tag("line", x1=end, x2=end, y1=y - 4, y2=y + 4, stroke="currentColor",
                stroke_width=1.5)
            for end in ends.values()
        ]  # fmt: skip
    told = f"{_share(line)}, {format_interval(low, high, line.std_error)}"
    return _drawing(told, parts, class_="bar", width=300)


def _run(line: OverviewRow, found: Overview) -> Iterator[Markup]:
    """Draw the share of every period, and say how it moved; nothing for a single period."""
    if len(line.run) < 2:
        return
    rows = [(each["ci_low"], each["estimate"], each["ci_high"]) for each in line.run]
    known = [None if None in each else each for each in rows]
    ends = [end for each in known if each is not None for end in each]
    up = axis(ends, start=_HEIGHT - 2, end=2)
    across = Scale.over([0.0, len(known) - 1.0], start=2, end=96)
    places = [across(float(number)) for number in range(len(known))]
    parts = ribbon(known, places, up, height=_HEIGHT)
    if known[-1] is not None:
        parts.append(tag("circle", cx=f"{places[-1]:g}%", cy=up(known[-1][1]), r=3, fill=COLORS[0]))
    shares = ", ".join(format_share(each[1], line.std_error) or "unknown" for each in rows)
    yield _drawing(f"by {found.comparison.by}: {shares}", parts, class_="run", width=140)
    words = tag("small", "not significant")
    if (change := line.change) is not None and change["changed"]:
        difference = change["after"] - change["before"]
        points = format_change(difference, change["std_error"])
        words = tag("strong", f"{'▲' if difference > 0 else '▼'}\u00a0{points}\u00a0points")
    yield tag("span", words, class_="moved")


def _drawing(told: str, parts: Sequence[Markup], *, class_: str, width: int) -> Markup:
    return tag(
        "svg", tag("title", told), *parts, xmlns="http://www.w3.org/2000/svg", role="img",
        aria_label=told, class_=class_, width=width, height=_HEIGHT, fill="currentColor",
    )  # fmt: skip


def _legend(found: Overview) -> str:
    confidence = format_short_percent(found.estimates.error_control.confidence)
    parts = [f"Bars: shares of the reports in {found.latest}, with {confidence} intervals."]
    n = len(found.comparison.samples)
    if n > 1:
        parts.append(
            f"Lines: each of {n} {found.comparison.by}s, with a band of intervals, on a scale of "
            f"their own; beside them the change from the first third to the last."
        )
    return " ".join(parts)


def _share(line: OverviewRow) -> str:
    return format_share(line.share, line.std_error).replace(" ", "\u00a0")
