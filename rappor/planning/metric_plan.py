"""Plans of a metric that a registry contains: its cohorts, and its entry with planned numbers.

`rappor plan --metric NAME` plans new numbers for an existing entry of a registry file, and prints
or writes the changed entry.
"""

from __future__ import annotations

import dataclasses

from rappor.base.atomic_files import read_text, replace_file
from rappor.planning.entry import apply_numbers, replace_numbers, write_changed_entry
from rappor.planning.planner import predict_power
from rappor.planning.plans import Plan
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.params import Params
from rappor.registry.metric import Metric


def adapt_plan(plan: Plan, metric: Metric, *, reports: int | None) -> Plan:
    """Return a plan with the parameters that the metric's entry would have.

    A metric with a list of candidates gets as many cohorts as the reports of an interval fill. More
    cohorts would delay the first results, because the collector releases a block (days of one
    cohort) only if the block has enough reports.

    Parameters
    ----------
    plan : a plan for the encoding of the metric.
    metric : the metric.
    reports : number of reports of all devices. None for an unknown number: the metric then has the
        cohorts of the plan.
    """
    if metric.listed and reports is not None:
        # Expected reports of one interval, in which each device reports once. If devices report
        # different parts of a string, the part with the fewest devices counts.
        expected = metric.smallest_part * reports / plan.question.reports_per_device
        m = choose_list_cohorts(expected, min_cohort=metric.min_cohort)
        if m != plan.params.m:
            params = dataclasses.replace(plan.params, m=m, insecure=True)
            plan = predict_power(params, plan.question, reports=reports)
    return dataclasses.replace(plan, params=apply_numbers(metric.params, plan.params))


def format_entry(path: str, name: str, params: Params) -> str:
    """Return the entry of a metric with planned numbers, as `write_numbers` writes it."""
    return write_changed_entry(read_text(path), name, params)


def write_numbers(path: str, name: str, params: Params) -> None:
    """Write planned numbers into the entry of a metric, and leave all other lines as they are."""
    changed = replace_numbers(read_text(path), name, params)
    with replace_file(path) as file:
        file.write(changed.encode())
