"""`rappor trend`: how shares run over days, weeks or months."""

from __future__ import annotations

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow
from rappor.cli.options import (
    chart_option,
    csv_option,
    detection_options,
    html_option,
    json_option,
    save_chart,
)
from rappor.cli.trend_files import TrendFiles, smooth_option, trend_files
from rappor.decoding.detection import Detection


@click.command(
    cls=Command,
    examples=(
        "rappor trend weeks.json --registry metrics.toml",
        "rappor trend weeks.json --registry metrics.toml --smooth 2 --html trend.html",
        "rappor trend may.counts june.counts --from 2026-05-01 --by month \\\n"
        "  --candidates engines.txt --csv trend.csv",
        "rappor trend weeks.json --registry metrics.toml --chart trend.svg",
    ),
)
@trend_files
@smooth_option
@detection_options
@csv_option
@html_option
@chart_option
@json_option
def trend(
    *,
    files: TrendFiles,
    smooth: int,
    detection: Detection,
    csv_path: str | None,
    html_path: str | None,
    chart: str | None,
    as_json: bool,
) -> None:
    """Show how shares change over days, weeks or months.

    COUNTS are files from `rappor pull` with --by day, week or month, or the JSON that a collector
    returns. Several files are joined. Counts from other commands contain no days: give --from.

    Each period is decoded separately. Each step to the next period is estimated from the
    differences of their bits, in which the permanent noise cancels out. Periods without reports
    stay visible, and so do changes of the parameters. The command shows the strings that all
    periods together or at least one period detect.
    """
    from rappor.cli.trend_table import print_trend
    from rappor.decoding.trends.over_time import trend as trend_of

    released, candidates = files.released()
    with Slow() as slow:
        found = trend_of(
            released,
            candidates,  # type: ignore[arg-type]  # a stream is refused with a sentence
            by=files.by,
            smooth=smooth,
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
        print_trend(found)
