"""`rappor simulate`: a population's counts, or its reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.console import (
    NUMBER,
    Slow,
    json_option,
    load_metric,
    metric_option,
    print_json,
    registry_option,
    seed_option,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rappor.simulation.collection import ReportBlock


@click.command()
@registry_option
@metric_option
@click.option(
    "--population", "population_path", required=True, type=click.Path(), help="CSV: value,weight."
)
@click.option("--reports", required=True, type=NUMBER, help="Devices, each with one report.")
@seed_option
@click.option("--out", required=True, type=click.Path(), help="Counts, or reports as .parquet.")
@json_option
def simulate(
    registry_path: str,
    name: str,
    population_path: str,
    reports: int,
    seed: int | None,
    out: str,
    as_json: bool,
) -> None:
    """Draw one report from each of many devices that hold a population's values.

    Counts are exact whatever their number; a .parquet file holds every single report.
    """
    from rappor.engines import parquet
    from rappor.simulation.collection import simulate_counts, simulate_reports
    from rappor.simulation.population import Population

    metric = load_metric(registry_path, name)
    population = Population.from_csv(population_path)
    if Path(out).suffix == ".parquet":
        drawn = simulate_reports(population, metric.params, n_reports=reports, seed=seed)
        with Slow() as slow:
            parquet.write_parquet(
                out,
                _told(drawn, slow, reports),
                params=metric.params,
                metric=name,
                day=datetime.datetime.now(datetime.UTC).date(),
            )
    else:
        counts = simulate_counts(
            population, metric.params, n_reports=reports, seed=seed, metric=name
        )
        counts.save(out)
    if as_json:
        print_json({"metric": name, "params": metric.fingerprint, "reports": reports, "out": out})
    else:
        click.echo(f"{reports:,} reports of {name} in {out}")


def _told(
    drawn: Iterator[ReportBlock], slow: Slow, n_reports: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint16]]]:
    """Pass reports on and tell how far they are."""
    done = 0
    for block in drawn:
        yield block.packed, block.cohorts
        done += len(block.packed)
        slow("drawing reports", done, n_reports)
