"""Active installations as sentences, and as the first part of a page.

The first sentence has the number of devices that reported in the latest interval that is released,
and its change. The other sentences describe the unit, the error, and all devices that are missing.

Example of the first sentence: "12,340 active installations in October 2026, 3 % more than in
September 2026."
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from typing import Final

from rappor.counts.installations import ActiveInterval, Installations
from rappor.reporting.document import collapsible
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.tables import table_of_cells

_NOT_RELEASED: Final = "The number of active installations is not released yet."
"""Sentence in place of the number. It contains no number, because a number that grows would show
single reports."""

_RATES_DIFFER: Final = "is not shown, because devices may have had different sampling rates."
"""End of the sentence in place of a number whose reports have an unknown sampling rate."""

_SHORT_NAMES: Final = {"day": "on the day before", "week": "in the week before"}
"""Names of the interval before the latest one, by the length of an interval. Other intervals have
short names of their own, such as "in September 2026"."""


def describe_installations(installations: Installations) -> Iterator[str]:
    """Yield sentences about active installations: the number, then its error and its limits."""
    latest = installations.latest
    if latest is None:
        yield _describe_no_number(installations)
    else:
        number, description = _describe_latest(installations, latest)
        yield f"{number}{description}"
    yield from _list_limits(installations)


def build_installations(installations: Installations | None) -> Markup | None:
    """Return the part of a page about active installations; None without a counted metric.

    The part ends with a table of all intervals.
    """
    if installations is None:
        return None
    latest = installations.latest
    if latest is None:
        statement = tag("p", _describe_no_number(installations), class_="answer")
        return join(statement, _build_notes(installations))
    number, description = _describe_latest(installations, latest)
    statement = tag("p", tag("strong", number), description, class_="answer")
    table = table_of_cells(
        f"Devices that reported, by {installations.pace}",
        (installations.pace, "devices", "standard error", "released"),
        (_format_row(interval) for interval in reversed(installations.intervals)),
        n_texts=1,
    )
    title = f"Active installations by {installations.pace}"
    return join(
        statement,
        _build_notes(installations),
        collapsible(title, table.to_html(), name="installations"),
    )


def _describe_no_number(installations: Installations) -> str:
    """Return the sentence in place of the number if no interval has a number."""
    if any(interval.has_unknown_rate for interval in installations.intervals):
        return f"The number of active installations {_RATES_DIFFER}"
    return _NOT_RELEASED


def _build_notes(installations: Installations) -> Markup:
    """Return one paragraph with the limits of the number."""
    return tag("p", " ".join(_list_limits(installations)), class_="note")


def _describe_latest(installations: Installations, latest: ActiveInterval) -> tuple[str, str]:
    """Return the number of devices of the latest interval, and the rest of its sentence."""
    estimate = latest.estimate_devices()
    assert estimate is not None  # `latest` is an interval with a number
    devices, error = estimate
    pace, change = installations.pace, installations.compute_change()
    description = (
        f" active installation{'' if round(devices) == 1 else 's'} {_name_interval(latest, pace)}"
    )
    if error:
        description += f" (standard error {error:,.0f})"
    if change is not None:
        before = _SHORT_NAMES.get(pace) or _name_interval(change.before, pace)
        description += f", {_format_change(change.ratio)} {before}"
        if change.std_error:
            description += f" (standard error at most {_format_percent(change.std_error)})"
    return f"{devices:z,.0f}", f"{description}."


def _list_limits(installations: Installations) -> Iterator[str]:
    """Yield sentences about missing numbers, the sampling, and devices that are not counted."""
    yield from _describe_missing(installations)
    latest = installations.latest
    if latest is not None and latest.sampling_rates[0] < 1:
        shares = " or ".join(map(format_short_percent, latest.sampling_rates))
        yield f"{shares} of the devices take part, and stand for all devices."
    if installations.has_other_pace:
        yield "Devices that still report in another interval are not counted."
    # With `interval = "epoch"`, the secret of a device draws the day of its report.
    is_epoch = installations.pace in ("month", "quarter", "year")
    absentees = "devices that were gone before the day that they drew, " if is_epoch else ""
    yield (
        f"The unit is a device that reported {installations.metric} in the {installations.pace}: "
        f"forged reports count, and devices without consent, devices without an event, {absentees}"
        "and reports of groups that are too small to be released are missing."
    )


def _describe_missing(installations: Installations) -> Iterator[str]:
    """Yield a sentence about the latest interval, the interval before it, and the last interval.

    An interval has a sentence if a part of its number is missing. The sentence has no number.
    """
    latest, pace = installations.latest, installations.pace
    if latest is None:
        return
    i = installations.intervals.index(latest)
    if not latest.is_complete:
        yield f"A part of the number {_name_interval(latest, pace)} is not released yet."
    elif i:
        before = installations.intervals[i - 1]
        if before.has_unknown_rate:
            yield f"The number {_name_interval(before, pace)} {_RATES_DIFFER}"
        elif not before.is_complete:
            yield f"A part of the number {_name_interval(before, pace)} is not released yet."
    if installations.intervals[i + 1 :]:
        last = installations.intervals[-1]
        reason = _RATES_DIFFER if last.has_unknown_rate else "is not released yet."
        yield f"The number {_name_interval(last, pace)} {reason}"


def _format_row(interval: ActiveInterval) -> tuple[str, ...]:
    """Return the cells of an interval: days, devices, standard error, and the released part."""
    released = "completely" if interval.is_complete else "a part"
    estimate = interval.estimate_devices()
    if not interval.parts:
        return interval.name, "", "", "nothing"
    if estimate is None:
        return interval.name, "not known", "", released
    devices, error = estimate
    return interval.name, f"{devices:z,.0f}", f"{error:,.0f}", released


def _name_interval(interval: ActiveInterval, pace: str) -> str:
    """Return the name of an interval with its preposition, such as "in October 2026"."""
    first = interval.first
    if pace == "day":
        return f"on {first}"
    if pace == "week":
        return f"in the week from {first} to {interval.last}"
    if pace == "month":
        return f"in {calendar.month_name[first.month]} {first.year}"
    if pace == "quarter":
        return f"in quarter {(first.month + 2) // 3} of {first.year}"
    return f"in {first.year}"


def _format_change(ratio: float) -> str:
    """Return a change such as "3 % more than", or "as many as" if it rounds to 0."""
    text = _format_percent(abs(ratio))
    if float(text.split()[0].replace(",", "")) == 0:
        return "as many as"
    return f"{text} {'more' if ratio > 0 else 'fewer'} than"


def _format_percent(ratio: float) -> str:
    """Format a ratio in per cent: whole numbers from 1 % on, and tenths below it."""
    return f"{100 * ratio:,.0f} %" if ratio >= 0.01 else f"{100 * ratio:.1f} %"
