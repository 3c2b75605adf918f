"""`rappor simulate`: a population's counts, or its reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow, print_json
from rappor.cli.numbers import NUMBER
from rappor.cli.options import json_option, metric_option, registry_option, seed_option
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rappor.simulation.collection import ReportBlock
    from rappor.simulation.population import Population


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What was written."""

    metric: Metric
    reports: int
    out: str


@click.command(
    cls=Command,
    examples=(
        "rappor simulate --registry metrics.toml --metric search_engine \\\n"
        "  --population population.csv --reports 1e6 --seed 1 --out week.counts",
        "rappor simulate --registry metrics.toml --metric search_engine \\\n"
        "  --population population.csv --reports 1e4 --out reports.parquet",
    ),
)
@registry_option()
@metric_option(required=True)
@click.option(
    "--population",
    "population_path",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="CSV file with the header value,weight: who holds what.",
)
@click.option(
    "--reports",
    required=True,
    type=NUMBER,
    metavar="N",
    help="Devices, each with one report; such as 1e6.",
)
@seed_option
@click.option(
    "--out",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Counts file to write, or reports if it ends in .parquet.",
)
@json_option
def simulate(
    *,
    registry_path: str,
    metric_name: str,
    population_path: str,
    reports: int,
    seed: int | None,
    out: str,
    as_json: bool,
) -> None:
    """Simulate the counts or the reports of many devices.

    Each device draws a value of the population and sends one report. Counts take the same
    time for any number of devices, and are drawn exactly; a .parquet file holds every single
    report.
    """
    from rappor.simulation.collection import simulate_counts
    from rappor.simulation.population import Population

    metric = Registry.load(registry_path).metric(metric_name)
    population = Population.from_csv(population_path)
    if Path(out).suffix == ".parquet":
        _write_reports(population, metric, reports, seed, out)
    else:
        simulate_counts(
            population, metric.params, n_reports=reports, seed=seed, metric=metric.name
        ).save(out)
    if as_json:
        print_json(Simulated(metric=metric, reports=reports, out=out))
    else:
        click.echo(f"{reports:,} reports of {metric.name} in {out}")


def _write_reports(
    population: Population, metric: Metric, reports: int, seed: int | None, out: str
) -> None:
    from rappor.engines import parquet
    from rappor.simulation.collection import simulate_reports

    drawn = simulate_reports(population, metric.params, n_reports=reports, seed=seed)
    with Slow() as slow:
        parquet.write_parquet(
            out,
            _counted(drawn, slow, reports),
            params=metric.params,
            metric=metric.name,
            day=datetime.datetime.now(datetime.UTC).date(),
        )


def _counted(
    drawn: Iterator[ReportBlock], slow: Slow, n_reports: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint16]]]:
    """Pass reports on and show how far they are."""
    done = 0
    for block in drawn:
        yield block.packed, block.cohorts
        done += len(block.packed)
        slow("drawing reports", done, n_reports)
