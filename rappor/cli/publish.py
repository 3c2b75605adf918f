"""`rappor publish`: a trend as an edition of a static site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from rappor.cli.commands import command
from rappor.cli.console import Slow, print_json
from rappor.cli.options import detection_options, json_option, option_field, option_group
from rappor.cli.site_files import write_edition
from rappor.cli.trend_files import TrendFiles
from rappor.estimator.error_control import ErrorControl
from rappor.registry.registry import Registry


@command(
    "rappor publish weeks.json --registry metrics.toml --by week --out site",
    "rappor publish weeks.json --registry metrics.toml --smooth 2 --out site --json",
)
def publish(
    *,
    files: TrendFiles = option_group(TrendFiles),
    detection: ErrorControl = detection_options(),
    out: str = option_field(
        "FOLDER",
        "Folder of the site. It is created if needed, and existing files stay.",
        type=click.Path(file_okay=False),
        required=True,
    ),
    as_json: bool = json_option(),
) -> None:
    """Write a trend as an edition of a static site.

    COUNTS are files as for `rappor trend`. --registry is required, because the site shows what is
    collected and what is promised. An edition has charts with intervals, tables, the counts, the
    candidates and the command that computes its numbers again. Its address is a hash of these and
    never changes. Publish next week's counts, and they become another edition.

    Everything in the folder is public, including the list of candidates.
    """
    from rappor.comparison.trend import trend

    if files.registry_path is None:
        raise click.UsageError("give --registry: the site says what is collected")
    released, candidates = files.released()
    metric = Registry.load(files.registry_path).metric(files.metric_name or released.metric)
    released = dataclasses.replace(released, metric=metric.name)
    with Slow() as slow:
        found = trend(
            released,
            candidates,
            by=files.by,
            smooth=files.smooth,
            error_control=detection,
            progress=slow,
        )
    shown = write_edition(Path(out), found, released, candidates, metric)
    if as_json:
        print_json(shown)
    else:
        known = "is" if shown.new else "was already"
        click.echo(f"edition {shown.edition} of {shown.metric} {known} in {shown.page}")
