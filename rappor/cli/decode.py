"""`rappor decode`: from counts and candidates to estimates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from rappor.base.atomic_files import save_text
from rappor.base.errors import FileError
from rappor.base.text_lines import WHITE_SPACE
from rappor.cli.commands import command
from rappor.cli.console import Slow, width
from rappor.cli.input_paths import GoogleSource, Source, read_lines
from rappor.cli.options import (
    Output,
    detection_options,
    flag_field,
    option_field,
    option_group,
    refuse_options,
    save_chart,
)
from rappor.estimator.error_control import ErrorControl

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.decoding.contrasts import Contrast
    from rappor.decoding.estimates import Estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Together:
    """What the command line asks of several rows at once, or of several segments."""

    sums: tuple[str, ...] = option_field(
        "GROUP",
        "Also show the share of all candidates in which the regular expression GROUP is "
        "found, or of those in the file @GROUP, one per line. Choose groups before you see "
        "the counts. May be given several times.",
        multiple=True,
        flags="--sum",
    )
    differences: tuple[tuple[str, str], ...] = option_field(
        "A B",
        "Also show the share of candidate A less that of B. May be given several times.",
        nargs=2,
        multiple=True,
        flags="--difference",
    )
    quantiles: bool = flag_field(
        "Also show for buckets which part of the numbers is below each edge, their mean and "
        "quantiles."
    )
    weights_path: str | None = option_field(
        "FILE",
        "Show weighted totals of the segments in COUNTS. FILE has a segment and its weight in "
        "each line, such as country=DE,83; the names are those that `rappor compare` shows.",
    )


@command(
    "rappor decode week.counts --registry metrics.toml",
    "rappor decode week.counts --candidates engines.txt --all --csv week.csv",
    "rappor decode week.counts --registry metrics.toml --html week.html",
    "rappor decode week.counts --registry metrics.toml --chart week.svg",
    "rappor decode week.counts --registry metrics.toml --reports-per-device 7",
    "rappor decode counts.json --registry metrics.toml --json",
    "rappor decode week.counts --registry metrics.toml --forged",
    "rappor decode week.counts --registry metrics.toml --sum duck",
    "rappor decode google.counts --candidates candidates.txt",
    "rappor decode counts.csv --format google --params params.csv \\\n"
    "  --candidates candidates.txt",
)
def decode(
    *,
    source: Source = option_group(GoogleSource, then=GoogleSource.source),
    detection: ErrorControl = detection_options(),
    devices: float | None = option_field(
        "N",
        "Number of devices behind all reports, if they reported again. Default: what the counts "
        "say, or an estimate from several files.",
        type=float,
    ),
    reports_per_device: float | None = option_field(
        "N",
        "Reports of each device, instead of --devices; 1 if no device reported again.",
        type=float,
    ),
    show_all: bool = flag_field("Also list undetected candidates.", flags="--all"),
    distribution: bool = flag_field(
        "Also estimate the distribution: a column of shares that are not negative."
    ),
    forged: bool = flag_field(
        "Show how many forged reports would create and hide each row, instead of intervals."
    ),
    together: _Together = option_group(_Together),
    output: Output = option_group(Output),
) -> None:
    """Estimate how many reports have each candidate.

    COUNTS are one or more files: from `rappor simulate`, `rappor aggregate` or `rappor convert`, or
    the JSON that a collector returns. Files with the same parameters are added: they are taken as
    different days, on each of which the same devices may have reported. If the metric of --registry
    has interval = "epoch", they are taken as one epoch, in which no device reports twice, unless
    their days say otherwise. Files with different parameters are decoded together.

    Nothing in a report proves that a device sent it. --forged shows for each detected row how many
    forged reports would create it, and how many more would hide it. A row that few reports can
    create proves little.

    The files contain their parameters. --registry adds the metric's candidates and its minimum
    number of reports. If the metric's entry lists its candidates, these come first, detected or
    not. Then come the strings of --candidates that are detected, and at the end the share of all
    strings that are not in the list.
    """
    from rappor.decoding.decoder import decode as decode_counts
    from rappor.decoding.post_stratification import group_by_segment, weigh
    from rappor.reporting.text import estimates_text, weighted_text

    counts = source.read()
    candidates = source.candidates(counts)
    if together.weights_path is not None:
        refuse_options("--weights", *_NOT_WEIGHTED)
        weights = _read_weights(together.weights_path)
        complete = source.is_complete(counts)
        with Slow() as slow:
            found = {
                name: decode_counts(
                    some, candidates, error_control=detection, complete=complete, progress=slow
                )
                for name, some in group_by_segment(counts).items()
            }
        weighted = weigh(found, weights)
        as_json = output.as_json
        click.echo(weighted.to_json() if as_json else weighted_text(weighted, width=width()))
        return
    with Slow() as slow:
        estimates = decode_counts(
            source.by_epoch(counts),
            candidates,
            listed=source.listed(counts),
            error_control=detection,
            distribution=distribution,
            devices=devices,
            reports_per_device=reports_per_device,
            complete=source.is_complete(counts),
            progress=slow,
        )
    estimates = estimates.with_contrasts(_asked_together(estimates, together))
    _write(estimates, output, source, detected_only=not show_all, forged=forged)
    if output.as_json:
        click.echo(estimates.to_json(detected_only=not show_all))
    else:
        click.echo(
            estimates_text(estimates, detected_only=not show_all, forged=forged, width=width())
        )
    say_skipped(candidates)


def _asked_together(estimates: Estimates, together: _Together) -> Iterator[Contrast]:
    """Yield what was asked of several rows."""
    from rappor.decoding.bucket_quantiles import describe_numbers

    for group in together.sums:
        if group in {"", "@"} or not (group.startswith("@") or _is_pattern(group)):
            raise click.UsageError(
                f"--sum must be a regular expression, or @ and the name of a file, got '{group}'"
            )
        if group.startswith("@"):
            yield estimates.total(read_lines(group[1:]), name=group)
        else:
            yield estimates.total_like(group)
    for first, second in together.differences:
        yield estimates.difference(first, second)
    if together.quantiles:
        yield from describe_numbers(estimates)


def _is_pattern(group: str) -> bool:
    """Return whether a text is a regular expression."""
    try:
        re.compile(group)
    except re.error:
        return False
    return True


_NOT_WEIGHTED: Final = (
    *("sums", "differences", "quantiles", "devices", "reports_per_device", "show_all"),
    *("distribution", "forged", "csv_path", "html_path", "chart"),
)
"""Options that weighted totals do not support."""


def _read_weights(path: str) -> dict[str, float]:
    """Read a segment and its weight from each line; a first line of titles is skipped.

    A title is no segment: those have a dimension and its value.
    """
    from rappor.protocol.segments import segment_name

    weights: dict[str, float] = {}
    for number, line in enumerate(read_lines(path)):
        name, comma, weight = line.rpartition(",")
        name = name.strip(WHITE_SPACE)
        try:
            value = float(weight)
        except ValueError:
            if number == 0 and "=" not in name and name != segment_name(()):
                continue
            comma = ""
        if not comma or name in weights:
            raise FileError(path, f"each line must be a segment, a comma and a weight, got {line}")
        weights[name] = value
    return weights


def _write(
    estimates: Estimates, output: Output, source: Source, *, detected_only: bool, forged: bool
) -> None:
    """Write the files that were asked for."""
    if output.csv_path is not None:
        estimates.to_csv(output.csv_path, detected_only=detected_only)
    if output.html_path is not None:
        from rappor.decoding.estimates_report import Origin
        from rappor.reporting.page import estimates_page

        typed = click.get_current_context().find_root().obj
        origin = Origin(command=shlex.join(["rappor", *(typed or ())]), files=source.files())
        save_text(estimates_page(estimates, origin, forged=forged), output.html_path)
    save_chart(estimates, output.chart)


def say_skipped(candidates: Candidates | None) -> None:
    """Say on standard error which candidates were skipped, and which have odd ends.

    A line of spaces around a name is another string than the name, and hardly any device reports
    it. Without a word the whole list would be found absent.
    """
    if candidates is None:
        return
    if candidates.n_blank or candidates.n_duplicates:
        click.echo(
            f"candidates: skipped {candidates.n_blank:,} blank lines and "
            f"{candidates.n_duplicates:,} repeated ones",
            err=True,
        )
    for number, what in (
        (candidates.n_spaced, "begin or end with white space"),
        (candidates.n_marked, "begin with a byte-order mark"),
    ):
        if number:
            click.echo(
                f"candidates: lines that {what}, which is part of their strings: {number:,}",
                err=True,
            )
