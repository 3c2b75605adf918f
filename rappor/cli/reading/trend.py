"""`rappor trend`: shares over days, weeks or months, and their changes."""

from __future__ import annotations

from rappor.cli.commands import command
from rappor.cli.console import Slow
from rappor.cli.options import Output, detection_options, option_group
from rappor.cli.reading.comparison_output import write_outputs
from rappor.cli.reading.trend_inputs import TrendInputs
from rappor.estimator.error_control import ErrorControl


@command(
    "rappor trend weeks.json --registry metrics.toml",
    "rappor trend weeks.json --registry metrics.toml --smooth 2 --html trend.html",
    "rappor trend may.counts june.counts --from 2026-05-01 --by month \\\n"
    "  --candidates engines.txt --csv trend.csv",
    "rappor trend weeks.json --registry metrics.toml --chart trend.svg",
)
def trend(
    *,
    inputs: TrendInputs = option_group(TrendInputs),
    detection: ErrorControl = detection_options(),
    output: Output = option_group(Output),
) -> None:
    """Show how shares change over days, weeks or months.

    COUNTS are files from `rappor pull`, or the JSON that a collector returns. Several files are
    joined. Counts from other commands contain no days: give --from.

    Each period is decoded separately. A line is fitted through all periods of each share, and a
    test over all candidates decides which lines rise or fall. The command shows the mean shares of
    the first and of the last third of the periods, and significant steps between periods. Periods
    without reports and changes of the parameters are marked. The command lists strings that
    changed, and strings that one period or all periods together detect.
    """
    from rappor.comparison.trend import trend as compute_trend

    released, candidates = inputs.read_periods()
    with Slow() as progress:
        comparison = compute_trend(
            released,
            candidates,
            by=inputs.by,
            smooth=inputs.smooth,
            complete=inputs.is_complete(released.collections),
            error_control=detection,
            progress=progress,
        )
    write_outputs(comparison, output, include_all=False)
