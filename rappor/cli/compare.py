"""`rappor compare`: what changed between periods, segments or metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rappor.base.errors import DecodeError
from rappor.cli.commands import command
from rappor.cli.console import Slow
from rappor.cli.count_files import read_released
from rappor.cli.input_paths import Source
from rappor.cli.options import (
    Output,
    detection_options,
    flag_field,
    option_field,
    option_group,
    refuse_options,
)
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Segment

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples(Source):
    """What the command line says about the samples and what their strings may be."""

    def samples(self) -> tuple[dict[str, list[Counts]], Candidates | None]:
        """Read the samples by their names, and the candidates where they are needed."""
        samples = _periods(self.paths[0]) if len(self.paths) == 1 else self._each()
        checked = list(samples.values())
        metrics = {counts.metric for sample in checked for counts in sample} - {""}
        if len(metrics) > 1:  # of two metrics, the baseline's candidates are asked about
            checked = checked[:1]
        return samples, self.candidates(*checked)

    def segments(self) -> tuple[list[Counts], Candidates | None]:
        """Read the counts of segments; each one must have the metric's minimum."""
        counts = [each for each in self.read() if each.n_reports]
        if not counts:
            raise DecodeError("counts must have at least 1 report, got 0")
        samples: dict[Segment, list[Counts]] = {}
        for each in counts:
            samples.setdefault(each.params.segment, []).append(each)
        return counts, self.candidates(*samples.values())

    def _each(self) -> dict[str, list[Counts]]:
        """Return a sample a file, by the file's name without its end where that tells them."""
        stems = Counter(Path(path).stem for path in self.paths)
        if len(set(self.paths)) < len(self.paths):
            raise click.UsageError("COUNTS must be different files")
        return {
            Path(path).stem if stems[Path(path).stem] == 1 else path: self.read_file(path)
            for path in self.paths
        }


def _periods(path: str) -> dict[str, list[Counts]]:
    """Return a sample a period of one file that was pulled by day, week or month."""
    released = read_released(path)
    periods = () if released is None else released.periods
    if len(periods) < 2:
        raise click.UsageError(
            "give two or more COUNTS, or one that was pulled by day, week, month"
        )
    return {period.name: list(period.collections) for period in periods}


@command(
    "rappor compare may.counts june.counts --registry metrics.toml",
    "rappor compare weeks.json --registry metrics.toml --all --csv changes.csv",
    "rappor compare may.counts june.counts --candidates engines.txt --overlap 1",
    "rappor compare may.counts june.counts --registry metrics.toml --html june.html",
    "rappor compare may.counts june.counts --registry metrics.toml --chart june.svg",
    "rappor compare segments.json --registry metrics.toml --by version \\\n  --html segments.html",
)
def compare(
    *,
    files: _Samples = option_group(_Samples),
    detection: ErrorControl = detection_options(),
    overlap: float | None = option_field(
        "SHARE",
        "How much the devices of two samples are the same: 0 for different devices, 1 for the "
        "same ones with as many reports. Default: unknown, and errors follow the variance of bits.",
    ),
    baseline: str = option_field(
        ["first", "previous"],
        "What each sample is compared with: the first one, or the one before it.",
        default="first",
    ),
    by: str | None = option_field(
        "PROPERTY",
        "Compare groups of devices: split counts of segments by this public property, or by all "
        "properties with 'all'.",
    ),
    show_all: bool = flag_field(
        "List all candidates, also those that were not found and did not change.", flags="--all"
    ),
    output: Output = option_group(Output),
) -> None:
    """Show which shares differ between two or more samples.

    COUNTS are files as for `rappor decode`, one for each sample: a period, a segment or a metric.
    The first sample is the baseline of all others, unless --baseline changes that. A file that was
    pulled by day, week or month has one sample for each.

    Differences are estimated bit by bit, so strings that did not change cancel out, even if they
    are no candidates. Each difference has an interval, and the level limits false changes. A
    newcomer is detected in a sample but not in the baseline; for a leaver it is the other way
    round.

    With --by, COUNTS are files of `rappor pull --segments`, for a metric with public properties.
    Each segment is decoded separately and compared with all others together. The command refuses
    segments below the metric's minimum number of reports.
    """
    from rappor.cli.comparison_table import write_outputs
    from rappor.comparison.compare_samples import compare_samples
    from rappor.comparison.compare_segments import compare_segments

    if by is not None:
        refuse_options("--by", "overlap", "baseline")
        counts, candidates = files.segments()
        complete = files.is_complete(counts)
    else:
        samples, candidates = files.samples()
        complete = all(files.is_complete(each) for each in samples.values())
    with Slow() as slow:
        sure: dict[str, Any] = {"complete": complete, "error_control": detection, "progress": slow}
        if by is not None:
            found = compare_segments(
                counts, candidates, dimension=None if by == "all" else by, **sure
            )
        else:
            found = compare_samples(
                samples, candidates, device_correlation=overlap, baseline=baseline, **sure
            )
    write_outputs(found, output, every=show_all)
