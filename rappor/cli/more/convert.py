"""`rappor convert`: counts from and to the files of google/rappor, Google's implementation."""

from __future__ import annotations

from pathlib import Path

import click

from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.options import argument_field, flag_field, json_option, option_field


@command(
    "rappor convert counts.csv --params params.csv --out google.counts",
    "rappor convert google.counts --params back.csv --out back_counts.csv",
)
def convert(
    *,
    source: str = argument_field(type=click.Path()),
    params_path: str = option_field(
        "FILE",
        "Google's params.csv. It is read if SOURCE ends in .csv, and written otherwise.",
        required=True,
    ),
    out: str = option_field("FILE", "File to write.", required=True),
    has_reports: bool = flag_field(
        "SOURCE contains single reports (columns client,cohort,bloom,prr,irr) instead of counts.",
        flags="--reports",
    ),
    as_json: bool = json_option(),
) -> None:
    """Convert counts from and to the files of google/rappor.

    A SOURCE that ends in .csv is a file of google/rappor: counts.csv, or a reports file with
    --reports. It becomes a counts file, which `rappor decode` reads without a registry. Any other
    SOURCE is a counts file, and becomes counts.csv and params.csv. Its parameters must have the
    hash layout of google/rappor.
    """
    from rappor.counts.counts import Counts
    from rappor.google import files

    is_from_google = Path(source).suffix == ".csv"
    if has_reports and not is_from_google:
        raise click.UsageError("--reports needs a SOURCE that ends in .csv")
    if is_from_google:
        params = files.read_params(params_path)
        read = files.read_reports if has_reports else files.read_counts
        counts = read(source, params)
        counts.save(out)
    else:
        counts = Counts.load(source)
        files.write_counts(out, counts)
        files.write_params(params_path, counts.params)
    if as_json:
        print_json({"params": counts.params.fingerprint}, reports=counts.n_reports, out=out)
    else:
        click.echo(f"{format_count(counts.n_reports, 'report')} in {out}")
