"""`rappor pull`: counts from a collector into a file."""

from __future__ import annotations

import datetime

from rappor.base.errors import DecodeError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import print_json, print_parts, table
from rappor.cli.options import argument_field, flag_field, json_option, option_field


@command(
    "rappor pull https://collector.example.org search_engine \\\n"
    "  --from 2026-11-01 --to 2026-11-30 --out november.json",
    "rappor pull http://127.0.0.1:8080 theme --out theme.json \\\n  --token-file token.txt",
)
def pull(
    *,
    url: str = argument_field(),
    metric: str = argument_field(),
    first: datetime.datetime | None = option_field(
        "DAY",
        "First day (UTC), such as 2026-11-01. Default: the first released day.",
        flags="--from",
    ),
    last: datetime.datetime | None = option_field(
        "DAY", "Last day (UTC), included. Default: the last released day.", flags="--to"
    ),
    by: str = option_field(
        ["day", "week", "month"],
        "Separate counts for each day, week (from Monday on) or month.",
        default="day",
    ),
    segments: bool = flag_field(
        "Separate counts for each segment of the metric. Default: one sum."
    ),
    path: str = option_field(
        "FILE",
        "File to write. Every command that takes counts reads it.",
        required=True,
        flags="--out",
    ),
    token_file: str | None = option_field(
        "FILE", "File with the read token. Default: the variable RAPPOR_TOKEN."
    ),
    as_json: bool = json_option(),
) -> None:
    """Read the counts of a metric from a collector into a file.

    URL is the collector's address for analysts. `rappor decode`, `rappor compare`, all other
    commands that take counts, and Counts.load_all in Python read the file.

    The collector releases whole blocks, so some days are not yet released. The command lists them.
    Days are kept apart, because they show how often the same devices report. `rappor decode` adds
    them up, often with smaller errors than one sum has. `rappor trend` compares them.

    A token is never an argument, because others could see it.
    """
    from rappor.remote.collector_client import CollectorClient
    from rappor.remote.token import read_token

    collector = CollectorClient(url, read_token(token_file))
    found = collector.counts(
        metric, first and first.date(), last and last.date(), by=by, segments=segments
    )
    if not found.n_reports:
        waiting = f"; reports wait on {_listed(found.withheld)}" if found.withheld else ""
        raise DecodeError(
            f"the collector releases no reports of {found.metric} on these days{waiting}"
        )
    found.save(path)
    if as_json:
        periods = [
            {"from": str(each.first), "to": str(each.last), "reports": each.n_reports}
            for each in found.periods
        ]
        withheld = [str(day) for day in found.withheld]
        head = {"metric": found.metric, "reports": found.n_reports}
        print_json(head, periods=periods, withheld=withheld, file=path)
        return
    shown = table("days", "reports")
    for period in found.periods:
        shown.add_row(period.name, f"{period.n_reports:,}")
    print_parts(shown, f"{format_count(found.n_reports, 'report')} of {found.metric} in {path}.")
    if found.withheld:
        print_parts(f"Some reports wait on {_listed(found.withheld)}.")


def _listed(days: tuple[datetime.date, ...]) -> str:
    """Write days, no more than a few of them."""
    few = ", ".join(str(day) for day in days[:5])
    return few if len(days) <= 5 else f"{few} and {format_count(len(days) - 5, 'other day')}"
