"""`rappor trend`: shares over days, weeks or months, and their changes."""

from __future__ import annotations

from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay
from rappor.cli.options import Output, detection_options, flag_field, option_group
from rappor.cli.reading.comparison_output import write_outputs
from rappor.cli.reading.epoch_note import add_epoch_note, list_days_of_periods
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
    complete: bool = flag_field(
        "Every value is in one of the categories or buckets. A registry says so by complete = true "
        "in the metric's entry; this option says so without a registry."
    ),
    output: Output = option_group(Output),
) -> None:
    """Show how shares change over days, weeks or months.

    COUNTS are files from `rappor pull`, or the JSON that a collector returns. Several files are
    joined. Counts files of other commands contain no days: --from names the first day of the first
    file.

    Each period is decoded separately. For each string, a line is fitted through its shares in all
    periods, and a test over all candidates decides which lines rise or fall. The command shows the
    mean share in the first third of the periods, the mean share in the last third, and significant
    steps from one period to the next. Marks show periods without reports, and periods with other
    parameters of the metric than before. The command lists strings that changed, and strings that
    one period or all periods together detect.

    A device repeats the value of its first report for a whole epoch. So days and weeks of one epoch
    do not show devices that changed their value: choose periods of different epochs.
    """
    # Imported here, because scipy takes most of a second, and `--help` must be fast.
    from rappor.comparison.trend import trend as compute_trend

    released, candidates = inputs.read_periods()
    with ProgressDisplay() as progress:
        comparison = compute_trend(
            released,
            candidates,
            by=inputs.by,
            smooth=inputs.smooth,
            complete=complete or inputs.is_complete(released.collections),
            error_control=detection,
            progress=progress,
        )
    comparison = add_epoch_note(
        comparison,
        inputs.find_metric(released.collections),
        list_days_of_periods(comparison),
    )
    write_outputs(comparison, output, include_all=False)
