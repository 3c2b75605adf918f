"""`rappor plan`: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass

import click

from rappor.cli.commands import Command
from rappor.cli.console import print_json
from rappor.cli.numbers import COUNT, NUMBER, WholeNumber
from rappor.cli.options import (
    PROFILE_NAME,
    chart_option,
    detection_options,
    grouped,
    json_option,
    metric_option,
    registry_option,
    save_chart,
)
from rappor.cli.plan_asked import BudgetOptions, RepeatOptions, Size, Strings, Subject
from rappor.cli.plan_parts import SearchOptions, print_parts_plan
from rappor.cli.plan_tables import print_plan
from rappor.decoding.detection import Detection
from rappor.protocol.encodings import ENCODINGS
from rappor.protocol.params import MAX_HASHES
from rappor.registry.metric import EPOCHS, INTERVALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the printed entry is called, and where the plan goes beside the terminal."""

    name: str
    chart: str | None
    as_json: bool


@click.command(
    cls=Command,
    examples=(
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --reports 1e6",
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --share .01 --chart found.svg",
        "rappor plan --profile balanced --reports 1e6 --table population.csv",
        "rappor plan --encoding onehot --categories light,dark,other \\\n"
        "  --epsilon-1 1 --epsilon-inf 2 --devices 1e4 --days 30",
        "rappor plan --discover --epsilon-1 2 --epsilon-inf 4 --reports 1e7 --longest 6",
        "rappor plan --registry metrics.toml --metric search_engine \\\n"
        "  --devices 1e5 --reports-per-device 30",
    ),
)
@grouped(
    "subject",
    Subject,
    click.option(
        "--encoding",
        type=click.Choice(list(ENCODINGS)),
        help="How values become bits.  [default: bloom]",
    ),
    click.option(
        "--categories",
        metavar="LIST",
        help="Categories, flags, or edges of buckets, separated by commas.",
    ),
    registry_option(required=False),
    metric_option(),
    click.option(
        "--write",
        is_flag=True,
        help="Write the planned numbers into the metric's entry in the registry.",
    ),
)
@grouped(
    "budget",
    BudgetOptions,
    click.option(
        "--epsilon-1", type=float, metavar="NATS", help="Largest privacy loss of one report."
    ),
    click.option(
        "--epsilon-inf",
        type=float,
        metavar="NATS",
        help="Largest privacy loss of all reports of one value.",
    ),
    click.option(
        "--profile",
        type=PROFILE_NAME,
        help="Predict for these named parameters instead of choosing some.",
    ),
    click.option(
        "--max-bytes",
        type=NUMBER,
        metavar="BYTES",
        help="Largest size of the bits of a report.",
    ),
    click.option(
        "--hashes",
        type=WholeNumber(1, MAX_HASHES),
        metavar="N",
        help=f"Consider only designs with N hash functions, 1 to {MAX_HASHES}.",
    ),
    click.option("--symmetric", is_flag=True, help="Consider only designs in which q is 1 - p."),
)
@grouped(
    "size",
    Size,
    click.option(
        "--reports",
        type=NUMBER,
        metavar="N",
        help="Expected reports, such as 1e6. Prints the smallest share detected.",
    ),
    click.option(
        "--devices",
        type=COUNT,
        metavar="N",
        help="Devices instead of reports; see --reports-per-device and --days.",
    ),
    click.option(
        "--share",
        type=float,
        metavar="SHARE",
        help="Smallest share to detect (0.01 is 1 %). Prints the reports needed.",
    ),
)
@grouped(
    "repeats",
    RepeatOptions,
    click.option(
        "--reports-per-device",
        type=WholeNumber(1, 10**6),
        metavar="N",
        help="Reports that each device sends.  [default: 1]",
    ),
    click.option(
        "--days",
        type=WholeNumber(1, 36_500),
        metavar="N",
        help="Days of collection, from the first day of an epoch on. A device reports once in each "
        "interval.",
    ),
    click.option(
        "--interval",
        type=click.Choice([name for name in INTERVALS if name != "none"]),
        help="Time in which a device reports once.  [default: the metric's, or day; epoch "
        "where both losses are equal]",
    ),
    click.option(
        "--epoch",
        type=click.Choice(list(EPOCHS)),
        metavar="EPOCH",
        help="How long a permanent response lasts: life, year, quarter or month.  [default: the "
        "metric's, or quarter]",
    ),
)
@grouped(
    "strings",
    Strings,
    click.option(
        "--candidates",
        type=NUMBER,
        metavar="N",
        help="Candidate strings that will be tested.  [default: 1000, or all answers]",
    ),
    click.option(
        "--zipf",
        type=float,
        metavar="EXPONENT",
        help="Assume shares in proportion to rank^-EXPONENT.  [default: 1]",
    ),
    click.option(
        "--table",
        type=click.Path(),
        metavar="FILE",
        help="Take the shares from a CSV file with the header value,weight.",
    ),
)
@grouped(
    "search",
    SearchOptions,
    click.option(
        "--discover",
        is_flag=True,
        help="Plan parts that find strings without a list of candidates. --candidates is then the "
        "number of strings.",
    ),
    click.option(
        "--longest",
        type=WholeNumber(2),
        metavar="N",
        help="Length of the longest string to find, in characters, with --discover.",
    ),
    click.option(
        "--alphabet",
        metavar="CHARACTERS",
        help="Characters of the strings, with --discover.  [default: a-z]",
    ),
)
@detection_options
@click.option(
    "--power",
    type=float,
    default=0.8,
    show_default=True,
    metavar="PROBABILITY",
    help="Probability with which a string of the smallest share is detected.",
)
@grouped(
    "output",
    Output,
    click.option(
        "--name",
        default="my_metric",
        show_default=True,
        metavar="NAME",
        help="Name of the metric in the printed entry of a registry.",
    ),
    chart_option,
    json_option,
)
def plan(
    *,
    subject: Subject,
    budget: BudgetOptions,
    size: Size,
    repeats: RepeatOptions,
    strings: Strings,
    search: SearchOptions,
    detection: Detection,
    power: float,
    output: Output,
) -> None:
    """Choose parameters for a privacy budget before collecting.

    Give the budget (--epsilon-1 and --epsilon-inf), a --profile, or a metric of a registry, whose
    parameters are kept unless you give a budget. With --reports or --devices the command computes
    the smallest share that is detected; with --share it computes the reports that are needed. If
    devices report again, it also shows what that adds and costs. It prints the registry entry at
    the end.

    With --discover the command plans a metric for strings without a list: its parts, their shares
    of the devices, bits and cohorts. It predicts how many strings `rappor discover` will find.
    """
    from rappor.planning.entry import with_numbers
    from rappor.planning.repeats import compare_repeats, describe_once

    metric = subject.metric
    pace = repeats.settled(metric, bare=budget.is_bare)
    size, each = size.answered(min(1, pace.each)), max(1, pace.each)
    if search.discover:
        if metric is not None or subject.n_answers is not None or output.chart is not None:
            raise click.UsageError("--discover plans a new metric of strings, without a chart")
        print_parts_plan(
            search.plan(
                strings.question(detection, power, subject, each),
                budget=budget.of_discovery(),
                reports=size.of_discovery(),
            ),
            name=output.name,
            epoch=pace.epoch,
            interval=pace.interval,
            as_json=output.as_json,
        )
        return
    planned = budget.plan(subject, strings.question(detection, power, subject, each), size)
    if metric is not None:
        params = with_numbers(metric.params, planned.params)
        planned = dataclasses.replace(planned, params=params)
    compared = compare_repeats(planned, epochs=pace.epochs, once=pace.once) if each > 1 else ()
    # The library has no clock; a year is a term that somebody will think about again.
    today = datetime.datetime.now(datetime.UTC).date()
    entry = planned.to_toml(
        output.name if metric is None else metric.name,
        expires=today + datetime.timedelta(days=365),
        epoch=pace.epoch,
        interval=pace.interval,
    )
    if subject.write:
        subject.write_numbers(planned.params)
    save_chart(planned, output.chart)
    if output.as_json:
        print_json(planned.to_dict(), toml=entry, **({"repeats": compared} if compared else {}))
    else:
        print_plan(planned, compared, entry, describe_once(pace.epoch) if pace.once else None)
