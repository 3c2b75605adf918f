"""`rappor decode`: estimates the share of each candidate from counts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from rappor.base.atomic_files import save_text
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, get_width, warn_about_candidates
from rappor.cli.options import (
    Output,
    RepetitionOptions,
    detection_options,
    flag_field,
    option_field,
    option_group,
    refuse_options,
    save_chart,
)
from rappor.cli.reading.count_inputs import CountInputs, GoogleInputs, read_lines
from rappor.estimator.error_control import ErrorControl

if TYPE_CHECKING:
    from rappor.decoding.contrasts import Contrast
    from rappor.decoding.estimates import Estimates
    from rappor.decoding.post_stratification import WeightedTotals

_UNWEIGHTED_OPTIONS: Final = (
    *("sums", "differences", "quantiles", "devices", "reports_per_device", "show_all"),
    *("ranked", "distribution", "forged", "csv_path", "html_path", "chart"),
)
"""Names of the arguments that --weights does not support. They concern the estimates of one
collection, and a weighted total is a sum over the estimates of several segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContrastOptions:
    """Options for contrasts: sums and differences of several rows, or of several segments."""

    sums: tuple[str, ...] = option_field(
        "GROUP",
        "Also show the total share of all candidates that match the regular expression GROUP, or "
        "of the candidates in the file @GROUP, one per line. Choose groups before you see "
        "estimates: a group of candidates that happen to have large estimates has a total that is "
        "too large. May be repeated.",
        multiple=True,
        flags="--sum",
    )
    differences: tuple[tuple[str, str], ...] = option_field(
        "A B",
        "Also show the share of candidate A minus the share of candidate B. May be repeated.",
        nargs=2,
        multiple=True,
        flags="--difference",
    )
    quantiles: bool = flag_field(
        "For a metric with buckets, also show the share of the numbers below each edge, their mean "
        "and their quantiles."
    )
    weights_path: str | None = option_field(
        "FILE",
        "Show weighted totals of the segments in COUNTS. FILE contains a segment and its weight in "
        "each line, such as country=DE,83, with the names that `rappor compare` prints.",
    )

    def compute(self, estimates: Estimates) -> Iterator[Contrast]:
        """Yield the requested contrasts."""
        from rappor.decoding.bucket_quantiles import describe_numbers

        for group in self.sums:
            if group in {"", "@"} or not (group.startswith("@") or _is_pattern(group)):
                raise click.UsageError(
                    "--sum must be a regular expression, or @ and the name of a file, "
                    f"got '{group}'"
                )
            if group.startswith("@"):
                yield estimates.total(read_lines(group[1:]), name=group)
            else:
                yield estimates.total_like(group)
        for first, second in self.differences:
            yield estimates.difference(first, second)
        if self.quantiles:
            yield from describe_numbers(estimates)


@command(
    "rappor decode week.counts --registry metrics.toml",
    "rappor decode week.counts --candidates engines.txt --all --csv week.csv",
    "rappor decode week.counts --candidates words-by-frequency.txt --ranked",
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
    # `GoogleInputs` declares the options. Unless --format is google, `select_format` returns a
    # `CountInputs`, whose methods read files in our own format.
    inputs: CountInputs = option_group(GoogleInputs, convert=GoogleInputs.select_format),
    detection: ErrorControl = detection_options(include_ranked=True),
    repetition: RepetitionOptions = option_group(RepetitionOptions),
    show_all: bool = flag_field("Also list undetected candidates.", flags="--all"),
    distribution: bool = flag_field(
        "Also estimate the shares of all candidates together as a distribution, in which no share "
        "is below 0. The table gets a further column."
    ),
    forged: bool = flag_field(
        "Show the number of forged reports that would create and hide each row, instead of "
        "intervals."
    ),
    contrasts: _ContrastOptions = option_group(_ContrastOptions),
    output: Output = option_group(Output),
) -> None:
    """Estimate how many reports have each candidate.

    COUNTS are one or more files: from `rappor simulate`, `rappor aggregate` or `rappor convert`, or
    the JSON that a collector returns. Counts with the same parameters are added. The command
    assumes that each file is another day, on which the same devices may have reported. If the
    metric of --registry has interval = "epoch", it assumes that all files belong to one epoch, in
    which no device reports twice, unless the files contain days of several epochs. Counts with
    different parameters are decoded together.

    Nothing in a report proves that a device sent it. --forged shows for each detected row how many
    forged reports would create the row, and how many more would hide it. A row that few reports
    can create proves little.

    Many lists have an order, such as words by frequency. --ranked takes the order as prior
    knowledge: more candidates near the top are detected, and fewer near the end, at the same error
    rate. The order must come from elsewhere than the reports of this metric. With the result of an
    earlier epoch as the order, the error rate would not hold: the hash functions are the same in
    every epoch, so collisions repeat. Such a table of `rappor decode` or `rappor discover` is
    refused.

    The files contain their parameters. --registry adds the metric's candidates and its minimum
    number of reports. Candidates that the metric's entry lists come first, detected or not. The
    detected strings of --candidates follow, and at the end the share of all strings that are not
    in the list.
    """
    from rappor.decoding.decoder import decode as decode_counts
    from rappor.reporting.text import estimates_text, weighted_text

    if contrasts.weights_path is not None:
        refuse_options("--weights", *_UNWEIGHTED_OPTIONS)
        weighted = _decode_weighted(inputs, contrasts.weights_path, detection)
        as_text = weighted_text(weighted, width=get_width())
        click.echo(weighted.to_json() if output.as_json else as_text)
        return
    counts = inputs.read_counts()
    candidates = inputs.read_candidates(counts)
    with ProgressDisplay() as progress:
        estimates = decode_counts(
            inputs.add_counts_of_epoch(counts),
            candidates,
            listed=inputs.find_listed_strings(counts),
            error_control=replace(detection, ranked=detection.ranked or inputs.is_ranked(counts)),
            distribution=distribution,
            devices=repetition.devices,
            reports_per_device=repetition.reports_per_device,
            complete=inputs.is_complete(counts),
            progress=progress,
        )
    estimates = estimates.with_contrasts(contrasts.compute(estimates))
    _write_files(estimates, output, inputs, detected_only=not show_all, forged=forged)
    if output.as_json:
        click.echo(estimates.to_json(detected_only=not show_all))
    else:
        click.echo(
            estimates_text(estimates, detected_only=not show_all, forged=forged, width=get_width())
        )
    warn_about_candidates(candidates)


def _decode_weighted(
    inputs: CountInputs, weights_path: str, detection: ErrorControl
) -> WeightedTotals:
    """Decode the segments of the inputs separately, and compute the weighted totals."""
    from rappor.decoding.post_stratification import decode_weighted, read_weights

    counts = inputs.read_counts()
    candidates = inputs.read_candidates(counts)
    weights = read_weights(weights_path)
    complete = inputs.is_complete(counts)
    with ProgressDisplay() as progress:
        return decode_weighted(
            counts,
            candidates,
            weights,
            error_control=detection,
            complete=complete,
            progress=progress,
        )


def _is_pattern(group: str) -> bool:
    """Return whether a text is a regular expression."""
    try:
        re.compile(group)
    except re.error:
        return False
    return True


def _write_files(
    estimates: Estimates, output: Output, inputs: CountInputs, *, detected_only: bool, forged: bool
) -> None:
    """Write the CSV table, the report and the chart, if the command line names their files."""
    if output.csv_path is not None:
        estimates.to_csv(output.csv_path, detected_only=detected_only)
    if output.html_path is not None:
        from rappor.decoding.estimates_report import Origin
        from rappor.reporting.page import estimates_page

        # `rappor.cli.app.run` stores the words of the command line in the root context of click.
        typed_words = click.get_current_context().find_root().obj or ()
        command_line = shlex.join(["rappor", *typed_words])
        origin = Origin(command=command_line, files=inputs.list_input_files())
        save_text(estimates_page(estimates, origin, forged=forged), output.html_path)
    save_chart(estimates, output.chart, days=inputs.describe_days())
