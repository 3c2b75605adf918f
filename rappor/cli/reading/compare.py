"""`rappor compare`: significant differences of shares between periods, segments or metrics."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rappor.base.errors import DecodeError
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay
from rappor.cli.options import (
    Output,
    detection_options,
    flag_field,
    option_field,
    option_group,
    refuse_options,
)
from rappor.cli.reading.comparison_output import write_outputs
from rappor.cli.reading.count_inputs import CountInputs
from rappor.cli.reading.epoch_note import add_epoch_note
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Segment

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleInputs(CountInputs):
    """Options for files of counts that are compared.

    A sample is a group of counts whose shares are compared with the shares of other groups: a
    period, a segment (devices with the same public properties) or a metric. The collections of a
    sample are its `Counts`: one for each parameter set.
    """

    def read_samples(self) -> tuple[dict[str, list[Counts]], Candidates | None]:
        """Read the samples by their names, and the candidates.

        The candidates are None if the encoding has one bit for each category, because the
        categories are then the candidates.
        """
        samples = self._read_periods() if len(self.paths) == 1 else self._read_files()
        # `read_candidates` refuses a sample with fewer reports than its metric demands.
        checked_samples = list(samples.values())
        # Counts without a metric's name, such as CSV tables, belong to any metric.
        metrics = {counts.metric for sample in checked_samples for counts in sample} - {""}
        if len(metrics) > 1:
            # Case: samples of two metrics. The command line names one metric at most, the metric of
            # the first sample. Its minimum of reports does not apply to the other samples. So only
            # the first sample is checked, and all samples are compared by the candidates of its
            # metric.
            checked_samples = checked_samples[:1]
        return samples, self.read_candidates(*checked_samples)

    def read_segments(self) -> tuple[list[Counts], Candidates | None]:
        """Read the counts of segments, and the candidates as for `read_samples`."""
        counts = [collection for collection in self.read_counts() if collection.n_reports]
        if not counts:
            raise DecodeError("counts must have at least 1 report, got 0")
        samples: dict[Segment, list[Counts]] = {}
        for collection in counts:
            samples.setdefault(collection.params.segment, []).append(collection)
        # Each segment is checked separately, so a segment below the metric's minimum number of
        # reports is refused even if all segments together have enough reports.
        return counts, self.read_candidates(*samples.values())

    def find_metric_of_samples(self, samples: Mapping[str, list[Counts]]) -> Metric | None:
        """Return the entry of the metric; None without a registry, or for two metrics."""
        counts = [collection for sample in samples.values() for collection in sample]
        if len({collection.metric for collection in counts} - {""}) > 1:
            return None
        return self.find_metric(counts)

    def list_days(self) -> list[datetime.date]:
        """List the first and the last day of each sample; nothing if a file has no days."""
        from rappor.counts.input_files import read_days, read_released

        if len(self.paths) == 1:
            released = read_released(self.paths[0])
            periods = () if released is None else released.periods
            return [day for period in periods for day in (period.first, period.last)]
        ranges = [read_days(path) for path in self.paths]
        return [day for days in ranges for day in days] if all(ranges) else []

    def _read_files(self) -> dict[str, list[Counts]]:
        """Read a sample from each file.

        The name of a sample is the name of its file without suffix. Files with the same name in
        different folders have their paths as names.
        """
        stems = Counter(Path(path).stem for path in self.paths)
        return {
            Path(path).stem if stems[Path(path).stem] == 1 else path: self.read_file(path)
            for path in self.paths
        }

    def _read_periods(self) -> dict[str, list[Counts]]:
        """Read a sample for each period of one file that was pulled by day, week or month."""
        from rappor.counts.input_files import read_released

        released = read_released(self.paths[0])
        periods = () if released is None else released.periods
        if len(periods) < 2:
            raise click.UsageError(
                "give two or more COUNTS, or one that was pulled by day, week or month"
            )
        return {period.name: list(period.collections) for period in periods}


@command(
    "rappor compare may.counts june.counts --registry metrics.toml",
    "rappor compare weeks.json --registry metrics.toml --all --csv changes.csv",
    "rappor compare may.counts june.counts --candidates engines.txt \\\n  --device-correlation 1",
    "rappor compare may.counts june.counts --registry metrics.toml --html june.html",
    "rappor compare may.counts june.counts --registry metrics.toml --chart june.svg",
    "rappor compare segments.json --registry metrics.toml --by version \\\n  --html segments.html",
)
def compare(
    *,
    inputs: _SampleInputs = option_group(_SampleInputs),
    detection: ErrorControl = detection_options(),
    device_correlation: float | None = option_field(
        "SHARE",
        "Correlation of the device noise of two samples: 0 if no device reports in both, 1 if the "
        "same devices report equally often in both. Device noise is the error that comes from the "
        "values and the permanent responses of the devices. Default: the correlation is unknown, "
        "and the standard errors are estimated from the variance of the bits.",
    ),
    baseline: str = option_field(
        ["first", "previous"],
        "Sample with which each other sample is compared: the first sample, or the sample before "
        "it.",
        default="first",
    ),
    by: str | None = option_field(
        "PROPERTY",
        "Compare groups of devices instead of files or periods. A group has the same value of this "
        "public property, such as version, or with 'all' the same values of all properties.",
    ),
    show_all: bool = flag_field(
        "List all candidates, also candidates that are not detected and did not change.",
        flags="--all",
    ),
    output: Output = option_group(Output),
) -> None:
    """Show which shares differ between two or more samples.

    COUNTS are files as for `rappor decode`, one for each sample: a period, a segment or a metric.
    Each other sample is compared with the first sample, unless --baseline changes that. A file
    that was pulled by day, week or month contains one sample for each.

    Differences are estimated bit by bit, so strings that did not change cancel out, even if they
    are not candidates. Each difference has an interval. --level limits how many strings without a
    change are shown as changed. A newcomer is detected in a sample but not in the baseline, and a
    leaver in the baseline but not in the sample.

    A device repeats the value of its first report for a whole epoch. So two periods of one epoch do
    not show devices that changed their value: choose periods of different epochs.

    With --by, COUNTS are files of `rappor pull --segments` or `rappor simulate --segment`, for a
    metric with public properties. Each segment is decoded separately and compared with all others
    together. The command refuses segments below the metric's minimum number of reports.
    """
    from rappor.comparison.compare_samples import compare_samples
    from rappor.comparison.compare_segments import compare_segments

    with ProgressDisplay() as progress:
        shared_args: dict[str, Any] = {"error_control": detection, "progress": progress}
        if by is not None:
            refuse_options("--by", "device_correlation", "baseline")
            counts, candidates = inputs.read_segments()
            comparison = compare_segments(
                counts,
                candidates,
                dimension=None if by == "all" else by,
                # complete: the registry states that every value is in one of the categories.
                complete=inputs.is_complete(counts),
                **shared_args,
            )
        else:
            samples, candidates = inputs.read_samples()
            comparison = compare_samples(
                samples,
                candidates,
                device_correlation=device_correlation,
                baseline=baseline,
                complete=all(inputs.is_complete(sample) for sample in samples.values()),
                **shared_args,
            )
            comparison = add_epoch_note(
                comparison, inputs.find_metric_of_samples(samples), inputs.list_days()
            )
    # The names of other samples are files or days.
    days = "" if by is None else inputs.describe_days()
    write_outputs(comparison, output, include_all=show_all, days=days)
