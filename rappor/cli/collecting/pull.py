"""`rappor pull`: reads the released counts of a metric from a collector and writes a file."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from rappor.base.errors import DecodeError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import print_json, print_parts
from rappor.cli.options import (
    argument_field,
    flag_field,
    json_option,
    metric_argument,
    option_field,
)
from rappor.reporting.tables import Column, Table

if TYPE_CHECKING:
    from rappor.counts.released_counts import ReleasedCounts

_NAMED_DAYS: Final = 5
"""Largest number of unreleased days that a sentence names. Further days are counted, so that the
sentence stays short."""


@command(
    "rappor pull https://collector.example.org search_engine \\\n"
    "  --from 2026-11-01 --to 2026-11-30 --out november.json",
    "rappor pull http://127.0.0.1:8080 theme --out theme.json \\\n  --token-file token.txt",
)
def pull(
    *,
    url: str = argument_field(),
    metric: str = metric_argument(),
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
        "Separate counts for each segment, a group of devices with the same public properties. "
        "Default: one sum."
    ),
    path: str = option_field(
        "FILE",
        "File to write. All commands that take COUNTS read it.",
        required=True,
        flags="--out",
    ),
    token_file: str | None = option_field(
        "FILE",
        "File with the read token, the secret of analysts. Default: the environment variable "
        "RAPPOR_TOKEN.",
    ),
    as_json: bool = json_option(),
) -> None:
    """Read the counts of a metric from a collector into a file.

    URL is the collector's address for analysts. `rappor decode`, `rappor compare`, all other
    commands that take counts, and Counts.load_all in Python read the file.

    The collector releases reports in windows of several days with enough reports. The command
    lists the days that are not yet released.

    The file contains separate counts for each period of --by. The errors of estimates depend on
    how many reports each device has sent, because its reports repeat one permanent noise. `rappor
    decode` estimates this number from separate counts, and adds them. For one sum of all periods
    it must assume the worst case, which often makes the errors larger. `rappor trend` compares the
    periods.

    The read token is never an argument, because other users of the machine could see it.
    """
    from rappor.remote.collector_client import CollectorClient
    from rappor.remote.token import read_token

    collector = CollectorClient(url, read_token(token_file))
    released = collector.counts(
        metric, first and first.date(), last and last.date(), by=by, segments=segments
    )
    name, withheld = released.metric, released.withheld
    if not released.n_reports:
        message = f"the collector releases no reports of {name} on these days"
        if withheld:
            message += f"; days with reports not yet released: {_name_days(withheld)}"
        # The first question of whoever has just sent a report: the day of the report is not over.
        message += (
            ". A day is released after its end, when at least `min_reports` reports of the metric "
            "wait; `min_reports = 0` in the registry shows all at once, for trials"
        )
        raise DecodeError(message)
    released.save(path)
    table = _make_periods_table(released)
    if as_json:
        head = {"metric": name, "reports": released.n_reports}
        days = [str(day) for day in withheld]
        print_json(head, periods=table.to_json(), withheld=days, file=path)
        return
    print_parts(table, f"{format_count(released.n_reports, 'report')} of {name} in {path}.")
    if withheld:
        print_parts(f"Days with reports that are not yet released: {_name_days(withheld)}.")


def _make_periods_table(released: ReleasedCounts) -> Table[dict[str, Any]]:
    """Return a table with the days of each period, and the number of its reports."""

    def format_days(row: dict[str, Any]) -> str:
        # A period of one day has one date, and any other period has two: 2026-11-02/2026-11-08.
        return row["from"] if row["from"] == row["to"] else f"{row['from']}/{row['to']}"

    return Table(
        title=f"Released reports of {released.metric}",
        columns=(
            Column("days", format_days, "text"),
            Column("reports", lambda row: f"{row['reports']:,}"),
        ),
        rows=[
            {"from": str(period.first), "to": str(period.last), "reports": period.n_reports}
            for period in released.periods
        ],
    )


def _name_days(days: tuple[datetime.date, ...]) -> str:
    """Name the first days, and count the others."""
    first = ", ".join(str(day) for day in days[:_NAMED_DAYS])
    n_more = len(days) - _NAMED_DAYS
    return first if n_more <= 0 else f"{first} and {format_count(n_more, 'other day')}"
