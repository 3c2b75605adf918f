"""`rappor-server publish`: publish the last whole weeks of metrics on a static site.

An edition is a published trend whose address never changes. The command writes one edition for each
metric, in four steps:

1. Close the blocks of all days that have ended. A running collector does the same after midnight,
   and may not be done when a timer of systemd runs this command early on Monday.
2. Read the counts of the last whole weeks that analysts may read.
3. Estimate the share of each candidate in each week.
4. Write the edition. It begins with the number of active installations, if the registry has a
   metric that counts them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rappor.base.errors import RapporError
from rappor.cli.commands import Command
from rappor.cli.options import option
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.app.input_files import read_registries
from rappor_server.app.settings import Settings
from rappor_server.cli.setting_options import add_closing_options, open_database, read_settings
from rappor_server.storage.database import utc_today

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Engine

    from rappor_server.storage.blocks import Rules


@click.command(
    cls=Command,
    examples=(
        "rappor-server publish --registry metrics.toml --out site",
        "rappor-server publish --registry metrics.toml --metric search_engine \\",
        "    --out site",
    ),
)
@option(
    "--metric",
    "NAME",
    "A metric to publish. May be repeated. Default: all metrics whose min_reports is above 0.",
    name="metrics",
    multiple=True,
)
@option(
    "--out",
    click.Path(file_okay=False, path_type=Path),
    "Folder of the site. It is created if needed, and existing files stay.",
    metavar="FOLDER",
    required=True,
)
@add_closing_options
def publish(*, metrics: tuple[str, ...], out: Path, **options: Any) -> None:
    """Write the last eight whole weeks of metrics as editions of a static site.

    The site has the format of `rappor publish`. Run the command once a week from a timer. If the
    weeks have not changed, the command writes the same edition again. Everything in the folder is
    public, including the candidates. A line is printed for each metric, and one for the metrics
    that are not published because their min_reports is 0.
    """
    from rappor_server.storage.blocks import rules_in_force

    settings = read_settings(options)
    registries = read_registries(settings, today=utc_today())
    registry, rules = registries[0], rules_in_force(registries)
    requested = [registry.metric(name) for name in metrics]
    with open_database(settings) as engine:
        for metric in requested or [entry for entry in registry.values() if entry.min_reports]:
            try:
                click.echo(_publish_metric(engine, registry, metric, rules, settings, out))
            except RapporError as error:
                # Without --metric, one metric without candidates must not stop the others.
                if requested:
                    raise
                click.echo(f"{metric.name}: not published: {error}")
    # A metric whose min_reports is 0 is a trial, which shows every report at once. It is published
    # only if the operator names it. Bad case: all metrics of a registry were trials, and the
    # command wrote and printed nothing.
    trials = [metric.name for metric in registry.values() if not metric.min_reports]
    if trials and not requested:
        click.echo(
            f"not published, because min_reports is 0 as in a trial: {', '.join(trials)}; "
            "--metric NAME publishes a metric all the same"
        )


def _publish_metric(
    engine: Engine,
    registry: Registry,
    metric: Metric,
    rules: Mapping[str, Rules],
    settings: Settings,
    out: Path,
) -> str:
    """Write the edition of one metric; return a line for the operator that names its page.

    Parameters
    ----------
    engine : the database
    registry : the current registry. It contains the name of the program, and the name of the metric
        that counts installations
    metric : the metric to publish
    rules : rules by which blocks close (`min_cohort` and `min_reports`), by name of the metric
    settings : settings of the collector. `analysis_folder` contains the lists of candidates that
        analysts uploaded
    out : folder of the site
    """
    from rappor.comparison.trend import trend
    from rappor.estimator.error_control import ErrorControl
    from rappor.reporting.site_files import write_edition
    from rappor_server.operations.closing import close_ended_days
    from rappor_server.queries.candidate_lists import CandidateLists
    from rappor_server.queries.candidate_sources import find_candidates
    from rappor_server.queries.page_queries import read_whole_weeks
    from rappor_server.queries.query import Subject
    from rappor_server.releases.installations import read_installations
    from rappor_server.storage.blocks import find_last_day

    # The edition shows the metric, and the number of installations. Installations are the reports
    # of the metric `registry.installations`, which is None if the registry counts none.
    shown_names = {metric.name, registry.installations}
    rules_of_shown = {name: rules[name] for name in rules if name in shown_names}
    close_ended_days(engine, rules_of_shown, utc_today())
    lists = CandidateLists(Path(settings.analysis_folder) / "lists", days=settings.list_days)
    # The empty digest chooses the candidates of the registry, or the newest uploaded list.
    source = find_candidates(metric, "", registry=settings.registry, lists=lists)
    subject = Subject(metric=metric, source=source, error_control=ErrorControl())
    collections = read_whole_weeks(
        engine, subject, find_last_day(engine, metric, today=utc_today())
    )
    if not collections.periods:
        return f"{metric.name}: no whole week is released yet"
    if registry.installations is not None:
        # Installations are counted up to the last day of the weeks. If they were counted up to
        # yesterday, a second run in the same week would write another edition of the same weeks.
        counting_metric = registry.metric(registry.installations)
        installations = read_installations(engine, counting_metric, collections.last)
        collections = replace(collections, installations=installations)
    candidates = subject.read_candidates()
    result = trend(collections, candidates, by="week", complete=metric.complete)
    page = write_edition(out, result, collections, candidates, metric, program=registry.program)
    return f"{metric.name}: edition {page.edition} in {page.page}"
