"""`rappor convert`: counts from and to the files of google/rappor."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("source", type=click.Path())
@click.option(
    "--params",
    "params_path",
    required=True,
    type=click.Path(),
    help="params.csv: read on the way from google/rappor, written on the way to it.",
)
@click.option("--out", required=True, type=click.Path(), help="File to write.")
@click.option("--reports", is_flag=True, help="SOURCE holds reports (client,cohort,...,irr).")
def convert(source: str, params_path: str, out: str, reports: bool) -> None:
    """Move counts between this program and google/rappor.

    A SOURCE that ends in .csv is theirs, counts.csv or with --reports a reports file; it
    becomes a counts file. Any other SOURCE is a counts file, and becomes counts.csv and
    params.csv; its hash layout must be theirs, as that of what came from them is.
    """
    from rappor.counts.counts import Counts
    from rappor.google import files

    if Path(source).suffix == ".csv":
        params = files.read_params(params_path)
        read = files.read_reports if reports else files.read_counts
        counts = read(source, params)
        counts.save(out)
    else:
        counts = Counts.load(source)
        files.write_counts(out, counts)
        files.write_params(params_path, counts.params)
    click.echo(f"{counts.n_reports:,} reports in {out}")
