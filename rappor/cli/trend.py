"""`rappor trend`: how shares run over days, weeks or months."""

from __future__ import annotations

from rappor.cli.commands import command
from rappor.cli.console import Slow
from rappor.cli.options import Output, detection_options, option_group
from rappor.cli.trend_files import TrendFiles
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
    files: TrendFiles = option_group(TrendFiles),
    detection: ErrorControl = detection_options(),
    output: Output = option_group(Output),
) -> None:
    """Show how shares change over days, weeks or months.

    COUNTS are files from `rappor pull`, or the JSON that a collector
    returns. Several files are joined. Counts from other commands contain no days: give --from.

    Each period is decoded separately. Whether a share changed over the range is decided by a line
    through all periods, for all candidates together. The first third of the periods, the last
    third and significant steps between periods are shown beside it. Periods without reports stay
    visible, and so do changes of the parameters. The command shows the strings that changed, and
    those that all periods together or at least one period detect.
    """
    from rappor.cli.comparison_table import write_outputs
    from rappor.comparison.trend import trend as trend_of

    released, candidates = files.released()
    with Slow() as slow:
        found = trend_of(
            released,
            candidates,
            by=files.by,
            smooth=files.smooth,
            complete=files.is_complete(released.collections),
            error_control=detection,
            progress=slow,
        )
    write_outputs(found, output, every=False)
