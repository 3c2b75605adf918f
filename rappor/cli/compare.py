"""`rappor compare`: what changed between periods, segments or metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow
from rappor.cli.count_files import read_counts
from rappor.cli.options import (
    chart_option,
    csv_option,
    detection_options,
    grouped,
    html_option,
    json_option,
    refuse_beside,
    save_chart,
    source_options,
)
from rappor.cli.sources import Source
from rappor.decoding.detection import Detection
from rappor.ground.errors import DecodeError, FileError
from rappor.protocol.segments import Segment

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.candidates.stream import CandidateStream
    from rappor.counts.counts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples(Source):
    """What the command line says about the samples and what their strings may be."""

    def samples(self) -> tuple[dict[str, list[Counts]], Candidates | CandidateStream | None]:
        """Read the samples by their names, and the candidates where they are needed."""
        samples = _periods(self.paths[0]) if len(self.paths) == 1 else self._each()
        checked = list(samples.values())
        metrics = {counts.metric for sample in checked for counts in sample} - {""}
        if len(metrics) > 1:  # of two metrics, the baseline's candidates are asked about
            checked = checked[:1]
        return samples, self.candidates(*checked)

    def segments(self) -> tuple[list[Counts], Candidates | CandidateStream | None]:
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
            Path(path).stem if stems[Path(path).stem] == 1 else path: read_counts(path)
            for path in self.paths
        }


def _periods(path: str) -> dict[str, list[Counts]]:
    """Return a sample a period of one file that was pulled by day, week or month."""
    from rappor.counts.released import Released

    try:
        periods = Released.load(path).periods
    except FileError:
        read_counts(path)  # a file of one sample, or none at all, which has its own sentence
        periods = ()
    if len(periods) < 2:
        raise click.UsageError(
            "give two or more COUNTS, or one that was pulled by day, week, month"
        )
    return {period.name: list(period.collections) for period in periods}


@click.command(
    cls=Command,
    examples=(
        "rappor compare may.counts june.counts --registry metrics.toml",
        "rappor compare weeks.json --registry metrics.toml --all --csv changes.csv",
        "rappor compare may.counts june.counts --candidates engines.txt --overlap 1",
        "rappor compare may.counts june.counts --registry metrics.toml --html june.html",
        "rappor compare may.counts june.counts --registry metrics.toml --chart june.svg",
        "rappor compare segments.json --registry metrics.toml --by version \\\n"
        "  --html segments.html",
    ),
)
@grouped(
    "files",
    _Samples,
    *source_options("Candidate strings"),
)
@detection_options
@click.option(
    "--overlap",
    type=float,
    metavar="SHARE",
    help="How much the devices of two samples are the same: 0 for different devices, 1 for the "
    "same ones with as many reports. Default: estimated from the bits if possible, else 0.",
)
@click.option(
    "--baseline",
    type=click.Choice(["first", "previous"]),
    default="first",
    show_default=True,
    help="What each sample is compared with: the first one, or the one before it.",
)
@click.option(
    "--by",
    metavar="PROPERTY",
    help="Compare groups of devices: split counts of segments by this public property, or by all "
    "properties with 'all'.",
)
@click.option("--all", "show_all", is_flag=True, help="Also list candidates that did not change.")
@csv_option
@html_option
@chart_option
@json_option
def compare(
    *,
    files: _Samples,
    detection: Detection,
    overlap: float | None,
    baseline: str,
    by: str | None,
    show_all: bool,
    csv_path: str | None,
    html_path: str | None,
    chart: str | None,
    as_json: bool,
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
    Each segment is decoded separately and compared with the largest one. The command refuses
    segments below the metric's minimum number of reports.
    """
    from rappor.cli.comparison_table import print_comparison
    from rappor.decoding.comparison.compare import compare as compare_samples

    if by is not None:
        refuse_beside("--by", "overlap", "baseline", "show_all")
        _compare_segments(
            files,
            None if by == "all" else by,
            detection,
            _Output(csv_path, html_path, chart, as_json),
        )
        return
    samples, candidates = files.samples()
    with Slow() as slow:
        found = compare_samples(
            samples,
            candidates,
            detection=detection,
            overlap=overlap,
            baseline=baseline,
            progress=slow,
        )
    if csv_path is not None:
        found.to_csv(csv_path, changed_only=not show_all)
    if html_path is not None:
        found.to_html(html_path)
    save_chart(found, chart)
    if as_json:
        click.echo(found.to_json(changed_only=not show_all))
    else:
        print_comparison(found, changed_only=not show_all)


class _Output(NamedTuple):
    """Where segments go."""

    csv_path: str | None
    html_path: str | None
    chart: str | None
    as_json: bool


def _compare_segments(
    files: _Samples, dimension: str | None, detection: Detection, output: _Output
) -> None:
    """Estimate shares in each segment, and their differences from the largest one."""
    from rappor.cli.segments_table import print_segments
    from rappor.decoding.segments.by_segment import by_segment

    counts, candidates = files.segments()
    with Slow() as slow:
        found = by_segment(
            counts,
            candidates,  # type: ignore[arg-type]  # a stream is refused with a sentence
            dimension=dimension,
            detection=detection,
            progress=slow,
        )
    if output.csv_path is not None:
        found.to_csv(output.csv_path)
    if output.html_path is not None:
        found.to_html(output.html_path)
    save_chart(found, output.chart)
    if output.as_json:
        click.echo(found.to_json())
    else:
        print_segments(found)
