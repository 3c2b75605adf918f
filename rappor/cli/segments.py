"""`rappor segments`: shares in groups of devices that tell a public property."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from rich.table import Table

from rappor.cli.commands import Command
from rappor.cli.console import Slow, escape, show
from rappor.cli.options import (
    chart_option,
    csv_option,
    detection_options,
    grouped,
    html_option,
    json_option,
    save_chart,
    source_options,
)
from rappor.cli.sources import Source
from rappor.decoding.detection import Detection
from rappor.errors import DecodeError
from rappor.protocol.segments import Segment

if TYPE_CHECKING:
    from rappor.counts.counts import Counts
    from rappor.decoding.segments.segments import Segments

_MOST_NAME: Final = 40


@click.command(
    cls=Command,
    examples=(
        "rappor segments segments.json --registry metrics.toml",
        "rappor segments segments.json --registry metrics.toml --dimension version \\\n"
        "  --html segments.html",
        "rappor segments segments.json --candidates engines.txt --csv segments.csv",
    ),
)
@grouped("source", Source, *source_options("Candidate strings"))
@click.option(
    "--dimension",
    metavar="NAME",
    help="The property that segments are split by. Default: all properties.",
)
@detection_options
@csv_option
@html_option
@chart_option
@json_option
def segments(
    *,
    source: Source,
    dimension: str | None,
    detection: Detection,
    csv_path: str | None,
    html_path: str | None,
    chart: str | None,
    as_json: bool,
) -> None:
    """Show shares in segments: devices of a version, a country.

    COUNTS are files from `rappor pull --segments`, for a metric with public properties. Each
    segment is decoded separately and compared with the largest one. A collector does not release
    segments below the metric's minimum number of reports, and the command refuses them.
    """
    from rappor.decoding.segments.by_segment import by_segment

    counts = [each for each in source.read() if each.n_reports]
    if not counts:
        raise DecodeError("counts must have at least 1 report, got 0")
    samples: dict[Segment, list[Counts]] = {}
    for each in counts:
        samples.setdefault(each.params.segment, []).append(each)
    candidates = source.candidates(*samples.values())  # each segment needs the metric's minimum
    with Slow() as slow:
        found = by_segment(
            counts,
            candidates,  # type: ignore[arg-type]  # a stream is refused with a sentence
            dimension=dimension,
            detection=detection,
            progress=slow,
        )
    if csv_path is not None:
        found.to_csv(csv_path)
    if html_path is not None:
        found.to_html(html_path)
    save_chart(found, chart)
    if as_json:
        click.echo(found.to_json())
    else:
        _print(found)


def _print(found: Segments) -> None:
    from rappor.reporting.numbers import short_percent
    from rappor.reporting.remarks import in_segments

    interval = f"adjusted {short_percent(found.detection.confidence)} interval"
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("candidate", "segment"):
        shown.add_column(name, overflow="ellipsis", no_wrap=True, max_width=_MOST_NAME)
    for name in ("share", interval, "points from the first"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in found.rows():
        shown.add_row(*_cells(row))
    if found.candidates:
        show(shown, "")
    show(*map(escape, in_segments(found)))


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    from rappor.reporting.numbers import percent, points

    yield escape(row["candidate"])
    yield escape(row["segment"])
    yield percent(row["proportion"], 3)
    low, high = row["ci_low"], row["ci_high"]
    unknown = low is None or high is None
    yield "unknown" if unknown else f"{percent(low, 3)} to {percent(high, 3)}"
    difference = row.get("difference")
    mark = " *" if row.get("differs") else ""
    yield "" if difference is None else points(difference) + mark
