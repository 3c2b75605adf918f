"""`rappor plan`: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import click

from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.options import (
    chart_option,
    detection_options,
    json_option,
    option_field,
    option_group,
    save_chart,
)
from rappor.cli.plan_options import (
    BudgetOptions,
    RepeatOptions,
    SearchOptions,
    Size,
    Strings,
    Subject,
)
from rappor.cli.plan_tables import print_parts_plan, print_plan
from rappor.estimator.error_control import ErrorControl


@command(
    "rappor plan --epsilon-1 1 --epsilon-inf 4 --reports 1e6",
    "rappor plan --epsilon-1 1 --epsilon-inf 4 --share .01 --chart found.svg",
    "rappor plan --profile balanced --reports 1e6 --table population.csv",
    "rappor plan --encoding onehot --categories light,dark,other \\\n"
    "  --epsilon-1 1 --epsilon-inf 2 --devices 1e4 --days 30",
    "rappor plan --discover --epsilon-1 2 --epsilon-inf 4 --reports 1e7 --longest 6",
    "rappor plan --registry metrics.toml --metric search_engine \\\n"
    "  --devices 1e5 --reports-per-device 30",
)
def plan(
    *,
    subject: Subject = option_group(Subject),
    budget: BudgetOptions = option_group(BudgetOptions),
    size: Size = option_group(Size),
    repeats: RepeatOptions = option_group(RepeatOptions),
    strings: Strings = option_group(Strings),
    search: SearchOptions = option_group(SearchOptions),
    detection: ErrorControl = detection_options(),
    power: float = option_field(
        "PROBABILITY",
        "Probability with which a string of the smallest share is detected.",
        default=0.8,
    ),
    name: str = option_field(
        "NAME", "Name of the metric in the printed entry of a registry.", default="my_metric"
    ),
    chart: str | None = chart_option(),
    as_json: bool = json_option(),
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
    from rappor.planning.entry import apply_numbers
    from rappor.planning.repeats import compare_repeats, describe_once

    metric = subject.metric
    pace = repeats.settled(metric, bare=budget.is_bare)
    size, each = size.answered(min(1, pace.each)), max(1, pace.each)
    # The library has no clock; a year is a term that somebody will think about again.
    expires = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=365)
    terms: dict[str, Any] = {"expires": expires, "epoch": pace.epoch, "interval": pace.interval}
    if search.discover:
        if metric is not None or subject.n_answers is not None or chart is not None:
            raise click.UsageError("--discover plans a new metric of strings, without a chart")
        parts = search.plan(
            strings.question(detection, power, subject, each),
            budget=budget.of_discovery(),
            reports=size.of_discovery(),
        )
        entry = parts.to_toml(name, **terms)
        if as_json:
            print_json(parts.to_dict(), toml=entry)
        else:
            print_parts_plan(parts, entry)
        return
    planned = budget.plan(subject, strings.question(detection, power, subject, each), size)
    if metric is not None:
        params = apply_numbers(metric.params, planned.params)
        planned = dataclasses.replace(planned, params=params)
    compared = compare_repeats(planned, epochs=pace.epochs, once=pace.once) if each > 1 else ()
    entry = planned.to_toml(name, **terms) if metric is None else subject.entry(planned.params)
    if subject.write:
        subject.write_numbers(planned.params)
    save_chart(planned, chart)
    if as_json:
        print_json(planned.to_dict(), toml=entry, **({"repeats": compared} if compared else {}))
    else:
        print_plan(planned, compared, entry, describe_once(pace.epoch) if pace.once else None)
