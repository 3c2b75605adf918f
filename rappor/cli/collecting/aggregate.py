"""`rappor aggregate`: computes counts from uploads or from stored reports.

An upload is one request of a device to a collector, a line of JSON with one or more reports. A row
is one report in a table of Parquet, CSV or JSON lines. Counts are the number of reports and the
number of ones at each bit, by cohort.

The command runs in these steps:

1. `_check_out` checks the path of the counts file. Without this step, a wrong path would be noticed
   only after all reports have been read, which may take hours.
2. `_separate_inputs` finds which files contain uploads, and which contain rows. With Spark, all
   files contain rows.
3. Uploads are added up line by line (`engines.json_lines`). Rows are added up on all cores
   (`engines.machine`) or in Spark (`engines.spark`). Both results contain counts for each metric
   and parameter set, and the numbers of refused reports.
4. `_select_counts` selects the counts of one metric and part, and adds the counts of its segments.
5. The counts are saved. Then the command prints a summary, and warns of refusals.

| case                                    | error         |
|-----------------------------------------|---------------|
| reports of several metrics, no --metric | MetricError   |
| reports of several parts, no --part     | MetricError   |
| no report of the named metric           | DecodeError   |
| all reports refused, or none at all     | DecodeError   |
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.base.errors import DecodeError, FileError, MetricError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json
from rappor.cli.options import (
    argument_field,
    json_option,
    metric_option,
    option_field,
    registry_option,
)
from rappor.engines.layout import REASONS
from rappor.registry.registry import Registry
from rappor.reporting.markup import replace_invisible

if TYPE_CHECKING:
    from rappor.counts.counts import Counts
    from rappor.engines.json_lines import Aggregation
    from rappor.engines.machine import FileAggregation

_COUNTS_FILE: Final = b"RAPPOR COUNTS "
"""First bytes of a counts file of any version. A file that begins with them contains sums already,
and no uploads."""

_PROGRESS_LINES: Final = 1000
"""Number of lines between two updates of the progress display. More updates would slow down the
reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedReports:
    """Refused reports with one reason.

    Attributes
    ----------
    reason : the reason.
    n : number of refused reports.
    first_line : number of the line of the first refused report in a stream of uploads, from 1.
    first_file : file of the first refused report among files of rows.
    metric, params : metric and fingerprint of the parameters in the refused rows.
    """

    reason: str
    n: int
    first_line: int | None = None
    first_file: str | None = None
    metric: str = ""
    params: str = ""


@command(
    "rappor aggregate uploads.jsonl --registry metrics.toml --out week.counts",
    "rappor aggregate reports.parquet --registry metrics.toml \\\n"
    "  --metric search_engine --out week.counts --json",
    "rappor aggregate lake --registry metrics.toml --out lake.counts",
)
def aggregate(
    *,
    inputs: tuple[str, ...] = argument_field(
        nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="INPUTS"
    ),
    registry_path: str = registry_option(),
    metric_name: str | None = metric_option(),
    part: str | None = option_field(
        "PART", "Part of the string, such as prefix:3, for a metric with parts."
    ),
    out: str = option_field("FILE", "Counts file to write.", required=True),
    engine: str = option_field(
        ["files", "spark"],
        "Where reports are added up: on all cores of this machine (files), or in Apache Spark.",
        default="files",
    ),
    remote: str | None = option_field(
        "URL",
        "Address of a Spark Connect server, such as sc://localhost, with --engine spark. Default: "
        "Spark's own settings.",
    ),
    as_json: bool = json_option(),
) -> None:
    """Add up uploads or stored reports into counts.

    INPUTS are files and folders of reports in Parquet, CSV or JSON lines, or of uploads, one JSON
    document per line (- is standard input). Rows that are no valid reports are refused and counted
    by reason. If all reports belong to one metric, you can omit --metric. After an interruption,
    run the same command again: FILE.checkpoint contains the sums of the files that are already
    added up. With --engine spark, INPUTS are paths that Spark can read.
    """
    from rappor.engines.json_lines import aggregate_jsonl

    registry = Registry.load(registry_path)
    if metric_name is not None:
        registry.metric(metric_name)
    if remote is not None and engine != "spark":
        raise click.UsageError("--remote needs --engine spark")
    checkpoint = Path(f"{out}.checkpoint")
    _check_out(Path(out), [] if engine == "spark" else inputs)
    streams, tables = ([], list(inputs)) if engine == "spark" else _separate_inputs(inputs)
    with ProgressDisplay() as progress:
        # All streams are read as one, so that a retry of an upload in another file is recognised.
        uploads = aggregate_jsonl(_read_lines(streams, progress), registry.lookup)
        rows = None
        if engine == "spark":
            from rappor.engines import spark

            with spark.open_session(remote) as session:
                rows = spark.aggregate_paths(session, tables, registry)
        elif tables:
            from rappor.engines import aggregate_files

            rows = aggregate_files(tables, registry, checkpoint=checkpoint, progress=progress)
    refused = _list_refusals(uploads, rows)
    collections = [*uploads.counts.values(), *(rows.counts.values() if rows else ())]
    counts = _select_counts(collections, metric_name, part)
    if counts is None or counts.n_reports == 0:
        _warn_of_refusals(refused)
        raise DecodeError("inputs must have at least 1 acceptable report, got 0")
    counts.save(out)
    # The next run of the same command must not continue a sum that is complete.
    checkpoint.unlink(missing_ok=True)
    if as_json:
        print_json(
            {"metric": counts.metric, "params": counts.params.fingerprint},
            reports=counts.n_reports,
            uploads=uploads.n_uploads,
            repeated=uploads.n_repeated,
            files=rows.n_files if rows else 0,
            resumed=rows.n_resumed if rows else 0,
            file_access=rows.file_access if rows else "",
            refused=refused,
            out=out,
        )
        return
    click.echo(f"{format_count(counts.n_reports, 'report')} of {counts.metric} in {out}")
    if uploads.n_repeated:
        click.echo(f"{format_count(uploads.n_repeated, 'repeated upload')} ignored")
    if rows:
        _print_files(rows)
    _warn_of_refusals(refused)


def _check_out(out: Path, inputs: Sequence[str]) -> None:
    """Check the path of the counts before the reports are read, which may take hours.

    Raises
    ------
    FileError
        The path cannot be written, or it lies inside a folder of the inputs. In the second case the
        next run would read the counts as reports.
    """
    folder = out.absolute().parent
    if not folder.is_dir():
        raise FileError(out, "its folder does not exist")
    if out.exists() and not out.is_file():
        raise FileError(out, "it must be a file, or the name of a new one")
    for path in filter(os.path.isdir, inputs):
        if folder.resolve().is_relative_to(Path(path).resolve()):
            raise FileError(out, f"it must lie outside of the folder that is read, {path}")


def _separate_inputs(inputs: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the paths of uploads, and the paths of rows. A folder may contain both kinds.

    input                                            contents
    -, the standard input                            uploads
    a file with another suffix than those below      uploads
    a file of Parquet or CSV, also in a folder       rows
    a file of JSON lines, also in a folder           uploads if its first object has `reports`
                                                     (`contains_uploads`), else rows
    """
    from rappor.engines.files import contains_uploads, find_files, is_of_rows

    streams: list[str] = []
    tables: list[str] = []
    for path in inputs:
        if path == "-" or not (Path(path).is_dir() or is_of_rows(path)):
            streams.append(path)
            continue
        for file in find_files([path]):
            (streams if contains_uploads(file.path) else tables).append(file.path)
    return streams, tables


def _read_lines(paths: list[str], progress: ProgressDisplay) -> Iterator[bytes]:
    """Yield every line of every stream, and show how many bytes are read."""
    from rappor.engines.files import is_packed, open_text

    # The unpacked size of a packed file is unknown, and so is the size of a pipe. The display then
    # has no total.
    plain = [path for path in paths if Path(path).is_file() and not is_packed(path)]
    sizes = [Path(path).stat().st_size for path in plain]
    total = sum(sizes) if len(sizes) == len(paths) else None
    n_bytes = 0
    for path in paths:
        try:
            with open_text(path) if is_packed(path) else click.open_file(path, "rb") as stream:
                for number, line in enumerate(stream):
                    if number == 0 and line.startswith(_COUNTS_FILE):
                        raise FileError(path, "it has counts already: run rappor decode on it")
                    yield line
                    n_bytes += len(line)
                    if number % _PROGRESS_LINES == 0:
                        progress("reading uploads", n_bytes, total)
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(path, getattr(error, "strerror", None) or str(error)) from None


def _select_counts(
    collections: Sequence[Counts], name: str | None, part: str | None
) -> Counts | None:
    """Return the counts of the requested metric and part; None without any counts."""
    names = sorted({counts.metric for counts in collections})
    if name is None and len(names) > 1:
        raise MetricError(
            f"give --metric: inputs have reports of several metrics, {', '.join(names)}"
        )
    sums: dict[str, Counts] = {}
    for counts in collections:
        if name in (None, counts.metric):
            # Each segment has a parameter set of its own. Without the segment, all of them have the
            # same parameters, and their counts can be added. `+` does not assume that the devices
            # of two segments differ, because a device may have changed its segment.
            unsegmented = counts.without_segment
            fingerprint = unsegmented.params.fingerprint
            previous_sum = sums.get(fingerprint)
            sums[fingerprint] = unsegmented if previous_sum is None else previous_sum + unsegmented
    selected = list(sums.values())
    if not selected and names:
        raise DecodeError(f"inputs must have reports of {name}, got {', '.join(names)}")
    if selected and (part is not None or len(selected) > 1):
        return _select_part(selected, part)
    return selected[0] if selected else None


def _select_part(selected: list[Counts], name: str | None) -> Counts:
    """Return the counts of the requested part.

    Parts have different devices and different bits, so their counts are never added.
    """
    parts = {counts.params.part: counts for counts in selected}
    # Counts of a metric without parts have an empty text as the name of the part.
    names = "no parts" if "" in parts else ", ".join(sorted(parts))
    available = f"inputs have {names}"
    if name is None:
        raise MetricError(f"give --part: {available} of {selected[0].metric}")
    if name not in parts:
        raise MetricError(f"--part must be a part of the inputs, got {name!r}: {available}")
    return parts[name]


def _list_refusals(
    uploads: Aggregation, rows: FileAggregation | None
) -> tuple[RefusedReports, ...]:
    """Return the refusals of uploads and of rows, the most frequent first."""
    refusals = [
        RefusedReports(reason=reason, n=refusal.n, first_line=refusal.first_line)
        for reason, refusal in uploads.refused.items()
    ]
    if rows is not None:
        refusals += [
            RefusedReports(
                reason=REASONS[reason],
                n=n,
                first_file=rows.first_refused.get((metric, params, reason)),
                metric=metric,
                params=params,
            )
            for (metric, params, reason), n in rows.refused.items()
        ]
    return tuple(sorted(refusals, key=lambda refusal: -refusal.n))


def _print_files(rows: FileAggregation) -> None:
    """Print how many files an earlier run had added up already, and how Spark read the files.

    `file_access` says whether the workers of a cluster opened the files themselves.
    """
    files = format_count(rows.n_files, "file")
    if rows.n_resumed:
        click.echo(f"{rows.n_resumed:,} of {files} added up by an earlier run")
    if rows.file_access:
        click.echo(f"{files}: {rows.file_access}")


def _warn_of_refusals(refusals: tuple[RefusedReports, ...]) -> None:
    """Write the refusals to standard error, a line for each reason."""
    for refusal in refusals:
        where = f", first in {refusal.first_file}" if refusal.first_file else ""
        if refusal.first_line:
            where = f", first on line {refusal.first_line:,}"
        # Refusals of uploads are counted by their reason only, without metric and parameters.
        names = [f"metric {refusal.metric}"] if refusal.metric else []
        names += [f"params {refusal.params}"] if refusal.params else []
        # Rows are untrusted input, so their names may contain control characters of a terminal.
        labels = f" ({replace_invisible(', '.join(names))})" if names else ""
        click.echo(f"refused {refusal.n:,}{where}: {refusal.reason}{labels}", err=True)
