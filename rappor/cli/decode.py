"""`rappor decode`: from counts and candidates to estimates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.console import Slow, json_option, load_metric
from rappor.errors import DecodeError, MetricError
from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.google.effective_noise import Client


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="COUNTS...")
@click.option("--registry", "registry_path", type=click.Path(), help="Registry of metrics (TOML).")
@click.option("--metric", "name", help="Name of the metric.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["rappor", "google"]),
    default="rappor",
    show_default=True,
    help="google: counts.csv of google/rappor, with --params in place of registry and metric.",
)
@click.option("--params", "params_path", type=click.Path(), help="params.csv of google/rappor.")
@click.option("--map", "map_path", type=click.Path(), help="Their map.csv instead of --candidates.")
@click.option(
    "--client",
    type=click.Choice(["python", "cpp", "java"]),
    help="Which of their clients sent the reports: each rounds f in its own way.",
)
@click.option(
    "--candidates",
    "candidates_path",
    type=click.Path(allow_dash=True),
    help="Strings to ask about, one a line; - is standard input; by default the metric's own.",
)
@click.option("--level", type=float, default=0.05, show_default=True, help="Error rate.")
@click.option(
    "--correction",
    type=click.Choice(["bh", "bonferroni"]),
    default="bh",
    show_default=True,
    help="What the level bounds: the share of false detections, or the chance of any.",
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of intervals.")
@click.option("--all", "show_all", is_flag=True, help="List undetected candidates too.")
@click.option("--distribution", is_flag=True, help="Answer for the whole list at once: share.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write the rows to a file as well.")
@json_option
def decode(
    paths: tuple[str, ...],
    registry_path: str | None,
    name: str | None,
    file_format: str,
    params_path: str | None,
    map_path: str | None,
    client: Client | None,
    candidates_path: str | None,
    level: float,
    correction: str,
    confidence: float,
    show_all: bool,
    distribution: bool,
    csv_path: str | None,
    as_json: bool,
) -> None:
    """Estimate how many devices hold each candidate.

    COUNTS are files of `rappor simulate` or `rappor aggregate`. Files under one parameter
    set are added; different sets are decoded together.
    """
    from rappor.cli.estimates_table import print_estimates
    from rappor.decoding.decoder import decode as decode_counts

    if file_format == "google":
        collections, candidates = _load_google(
            paths, params_path, candidates_path, map_path=map_path, client=client
        )
    elif params_path or map_path or client:
        raise click.UsageError("--params, --map and --client go with --format google")
    elif registry_path is None or name is None:
        raise click.UsageError("give --registry and --metric, or --format google with --params")
    else:
        metric = load_metric(registry_path, name)
        collections = _load_counts(paths, metric)
        candidates = _load_candidates(metric, registry_path, candidates_path)
    with Slow() as slow:
        estimates = decode_counts(
            collections,
            candidates,
            level=level,
            correction=correction,
            confidence=confidence,
            distribution=distribution,
            progress=slow,
        )
    if csv_path is not None:
        estimates.to_csv(csv_path, detected_only=not show_all)
    if as_json:
        click.echo(estimates.to_json(detected_only=not show_all))
    else:
        print_estimates(estimates, detected_only=not show_all)
        _tell_skipped(candidates)


def _load_google(
    paths: tuple[str, ...],
    params_path: str | None,
    candidates_path: str | None,
    *,
    map_path: str | None,
    client: Client | None,
) -> tuple[list[Counts], Candidates | None]:
    """Read the files of google/rappor; several counts.csv are added."""
    from rappor.counts.counts import Counts
    from rappor.google import files

    if params_path is None or (candidates_path is None) == (map_path is None):
        raise click.UsageError("--format google needs --params and either --candidates or --map")
    params = files.read_params(params_path, client=client)
    counts = sum((files.read_counts(path, params) for path in paths), Counts.zero(params))
    if map_path is not None:
        return [counts], files.read_map(map_path, params)
    assert candidates_path is not None
    return [counts], files.read_candidates(candidates_path)


def _load_counts(paths: tuple[str, ...], metric: Metric) -> list[Counts]:
    """Read all files and add those of one parameter set."""
    from rappor.counts.counts import Counts

    sums: dict[str, Counts] = {}
    for path in paths:
        counts = Counts.load(path)
        if counts.metric not in ("", metric.name):
            raise MetricError(f"{path}: counts must be of {metric.name}, got {counts.metric}")
        if not encoding_of(metric.params).takes_values_of(counts.params):
            raise MetricError(
                f"{path}: counts must have encoding {metric.params.encoding}, "
                f"got {counts.params.encoding}"
            )
        fingerprint = counts.params.fingerprint
        sums[fingerprint] = sums[fingerprint] + counts if fingerprint in sums else counts
    n_reports = sum(counts.n_reports for counts in sums.values())
    if n_reports < metric.min_reports:
        raise DecodeError(
            f"counts must hold at least {metric.min_reports:,} reports, the minimum of "
            f"{metric.name}, got {n_reports:,}"
        )
    return list(sums.values())


def _load_candidates(
    metric: Metric, registry_path: str, candidates_path: str | None
) -> Candidates | None:
    from rappor.candidates.candidates import Candidates

    if not encoding_of(metric.params).hashed:
        if candidates_path is not None:
            raise click.UsageError(
                f"--candidates must be left out: {metric.name} has encoding "
                f"{metric.params.encoding} and is answered in full"
            )
        return None
    if candidates_path == "-":
        with click.open_file("-", "rb") as stream:
            return Candidates.from_lines(stream, normalize=metric.params.normalize)
    if candidates_path is None:
        if metric.candidates is None:
            raise click.UsageError(f"give --candidates: {metric.name} names no file of them")
        candidates_path = str(Path(registry_path).parent / metric.candidates)
    return Candidates.from_file(candidates_path, normalize=metric.params.normalize)


def _tell_skipped(candidates: Candidates | None) -> None:
    if candidates is not None and (candidates.n_blank or candidates.n_duplicates):
        click.echo(
            f"candidates: skipped {candidates.n_blank:,} blank lines and "
            f"{candidates.n_duplicates:,} repeated ones",
            err=True,
        )
