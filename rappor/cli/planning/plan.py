"""`rappor plan`: choose parameters for a privacy budget, and predict their detections."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

import click

from rappor.cli.commands import command
from rappor.cli.console import print_json, print_pairs, print_parts, print_table
from rappor.cli.options import (
    chart_option,
    detection_options,
    json_option,
    option_field,
    option_group,
    refuse_options,
    save_chart,
)
from rappor.cli.planning.plan_options import (
    AssociationOptions,
    BudgetOptions,
    DiscoveryOptions,
    PaceOptions,
    PlannedMetric,
    SizeOptions,
    StringOptions,
)
from rappor.estimator.error_control import ErrorControl
from rappor.privacy.unchanged_values import list_unchanged_losses

if TYPE_CHECKING:
    from rappor.planning.association_power import AssociationPower
    from rappor.planning.collection_pace import CollectionPace
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.plans import Plan
    from rappor.planning.repeats import RepeatedReports


@command(
    "rappor plan --epsilon-1 1 --epsilon-inf 4 --reports 1e6",
    "rappor plan --epsilon-1 1 --epsilon-inf 4 --share .01 --chart found.svg",
    "rappor plan --profile balanced --reports 1e6 --table population.csv",
    "rappor plan --profile balanced --reports 1e6 --candidates 1e4 --ranked",
    "rappor plan --encoding onehot --categories light,dark,other \\\n"
    "  --epsilon-1 1 --epsilon-inf 2 --devices 1e4 --days 30",
    "rappor plan --encoding set --items 8 --profile once --devices 1e5",
    "rappor plan --discover --epsilon-1 2 --epsilon-inf 4 --reports 1e7 --longest 6",
    "rappor plan search_engine --registry metrics.toml \\\n  --devices 1e5 --reports-per-device 30",
)
def plan(
    *,
    planned: PlannedMetric = option_group(PlannedMetric),
    budget: BudgetOptions = option_group(BudgetOptions),
    size: SizeOptions = option_group(SizeOptions),
    pace_options: PaceOptions = option_group(PaceOptions),
    strings: StringOptions = option_group(StringOptions),
    discovery: DiscoveryOptions = option_group(DiscoveryOptions),
    association: AssociationOptions = option_group(AssociationOptions),
    detection: ErrorControl = detection_options(include_ranked=True),
    power: float = option_field(
        "PROBABILITY",
        "Probability with which a string of the smallest detected share is detected.",
        default=0.8,
    ),
    name: str = option_field(
        "NAME", "Name of a new metric in the printed registry entry.", default="my_metric"
    ),
    chart: str | None = chart_option(),
    as_json: bool = json_option(),
) -> None:
    """Choose parameters for a privacy budget before collecting.

    Give the budget (--epsilon-1 and --epsilon-inf), a --profile, or a METRIC of a registry, whose
    parameters stay unless you give a budget. With --reports or --devices the command computes the
    smallest share that is detected. With --share it computes the necessary number of reports. If
    devices report several times, it also shows how this changes errors and privacy loss. At the
    end it prints the entry for the registry.

    With --ranked, or ranked = true in the entry of METRIC, the prediction is for a ranked list: its
    order says how likely the candidates are. The prediction assumes that the order is right.

    For a metric with fields, or with --cells, the command also predicts how strong an association
    of two fields must be, so that the test of `rappor associate` detects it. The prediction assumes
    that all listed values of a field are equally frequent.

    With --discover the command plans a metric for strings without a list of candidates: the parts
    of the strings, their shares of the devices, bits and cohorts. It predicts how many strings
    `rappor discover` will find.
    """
    from rappor.planning.metric_plan import adapt_plan, format_entry, write_numbers
    from rappor.planning.repeats import compare_repeats

    metric = planned.metric
    pace = pace_options.choose(metric, has_instantaneous_noise=budget.has_instantaneous_noise)
    reports_per_device = pace.reports_per_device
    if metric is not None and metric.ranked:
        detection = dataclasses.replace(detection, ranked=True)
    target = strings.read_target(
        planned, detection, power=power, reports_per_device=reports_per_device
    )
    # The library reads no clock, so the command passes the day. A metric expires after a year, and
    # people then decide again whether the metric is necessary.
    expires = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=365)
    calendar: dict[str, Any] = {"expires": expires, "epoch": pace.epoch, "interval": pace.interval}
    if metric is not None:
        refuse_options("METRIC", "name")
    if discovery.discover:
        # A discovery plans no test of independence, and predicts a number of strings in place of a
        # smallest share with its interval.
        refuse_options("--discover", "cells", "listed_share", "power", "confidence")
        has_strings = planned.n_categories is None and not planned.has_sets
        if metric is not None or not has_strings or chart is not None:
            raise click.UsageError("--discover plans a new metric of strings, without a chart")
        parts = discovery.plan(
            target,
            budget=budget.read_budget_of_discovery(),
            reports=size.count_reports_of_discovery(pace),
        )
        entry = parts.to_toml(name, **calendar)
        if as_json:
            print_json(parts.to_dict(), toml=entry)
        else:
            _print_discovery(parts, entry)
        return
    reports = size.count_reports(pace)
    result = budget.plan(planned, target, reports=reports, share=size.share)
    if metric is None:
        entry = association.add_fields(result).to_toml(name, **calendar)
    else:
        result = adapt_plan(result, metric, reports=reports)
        entry = format_entry(str(planned.registry_path), metric.name, result.params)
        if planned.write:
            write_numbers(str(planned.registry_path), metric.name, result.params)
    # Errors and privacy losses of other numbers of reports of a device, for a comparison.
    repeats: tuple[RepeatedReports, ...] = ()
    if reports_per_device > 1:
        repeats = compare_repeats(result, epochs=pace.epochs, once=pace.has_one_report_per_epoch)
    association_power = association.predict(planned, result, reports_per_device=reports_per_device)
    save_chart(result, chart)
    if as_json:
        optional_parts = {"repeats": repeats, "association": association_power}
        print_json(
            result.to_dict(interval=pace.interval),
            toml=entry,
            **{key: part for key, part in optional_parts.items() if part},
        )
    else:
        _print_plan(result, pace, repeats, association_power, entry)


def _print_plan(
    plan: Plan,
    pace: CollectionPace,
    repeats: tuple[RepeatedReports, ...],
    association_power: AssociationPower | None,
    entry: str,
) -> None:
    """Print a plan in sections, from the summary to the entry for the registry.

    Parameters
    ----------
    plan : the plan. The first section is its summary. Later sections show the privacy loss of a
        value that stays the same over several epochs, and other designs for the same budget.
    pace : how often a device reports. If it reports once in an epoch, a section explains this.
    repeats : predictions for other numbers of reports of a device; empty for one report.
    association_power : prediction for two fields, or None.
    entry : TOML of the metric's entry.
    """
    from rappor.planning.repeats import describe_once
    from rappor.reporting.plan_tables import (
        alternatives_table,
        association_table,
        plan_table,
        repeats_table,
    )
    from rappor.reporting.privacy_tables import (
        choose_note_on_unchanged_values,
        unchanged_values_table,
    )

    print_pairs(plan_table(plan))
    if association_power is not None:
        print_table(association_table(association_power))
    if pace.has_one_report_per_epoch:
        print_parts(f"\n{describe_once(pace.epoch)}")
    if repeats:
        print_table(repeats_table(repeats))
    losses = list_unchanged_losses(plan.params, pace.interval)
    note = choose_note_on_unchanged_values(losses, plan.params)
    print_table(unchanged_values_table(losses), note)
    print_table(alternatives_table(plan.alternatives))
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _print_discovery(plan: DiscoveryPlan, entry: str) -> None:
    """Print the parts, the strings that they find, and the entry for the registry."""
    from rappor.reporting.plan_tables import discovery_table, layouts_table

    print_pairs(discovery_table(plan))
    print_table(layouts_table(plan))
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)
