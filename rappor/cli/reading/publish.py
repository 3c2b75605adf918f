"""`rappor publish`: a trend as an edition of a static site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json
from rappor.cli.options import detection_options, json_option, option_field, option_group
from rappor.cli.reading.trend_inputs import TrendInputs
from rappor.estimator.error_control import ErrorControl
from rappor.registry.registry import Registry


@command(
    "rappor publish weeks.json --registry metrics.toml --by week --out site",
    "rappor publish weeks.json --registry metrics.toml --smooth 2 --out site --json",
)
def publish(
    *,
    inputs: TrendInputs = option_group(TrendInputs),
    detection: ErrorControl = detection_options(),
    out: str = option_field(
        "FOLDER",
        "Folder of the site. It is created if it does not exist, and existing files stay.",
        type=click.Path(file_okay=False),
        required=True,
    ),
    as_json: bool = json_option(),
) -> None:
    """Write a trend as an edition of a static site.

    COUNTS are files as for `rappor trend`. --registry is required, because the site shows the
    privacy notice of the metric. An edition contains charts with intervals, tables, the counts,
    the candidates and the command that computes its numbers again. Its address is a hash of its
    content and never changes. Next week's counts become another edition.

    Everything in the folder is public, including the list of candidates.
    """
    from rappor.comparison.trend import trend
    from rappor.reporting.site_files import write_edition

    if inputs.registry_path is None:
        raise click.UsageError("give --registry: the site says what is collected")
    released, candidates = inputs.read_periods()
    registry = Registry.load(inputs.registry_path)
    metric = registry.metric(inputs.metric_name or released.metric)
    # Case: counts of a CSV table, which do not name their metric. The folder of an edition has the
    # name of the metric.
    released = dataclasses.replace(released, metric=metric.name)
    with ProgressDisplay() as progress:
        comparison = trend(
            released,
            candidates,
            by=inputs.by,
            smooth=inputs.smooth,
            complete=metric.complete,
            error_control=detection,
            progress=progress,
        )
    site_edition = write_edition(
        Path(out), comparison, released, candidates, metric, program=registry.program
    )
    if as_json:
        print_json(site_edition)
    else:
        verb = "is" if site_edition.new else "was already"
        click.echo(
            f"edition {site_edition.edition} of {site_edition.metric} {verb} in {site_edition.page}"
        )
