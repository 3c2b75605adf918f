"""New dimensions and new noise for a metric that a registry file already contains.

A registry file is TOML that people write. Each entry of the file describes one metric. `rappor plan
METRIC --registry FILE` plans new dimensions (k, h and m) and new noise for the entry of METRIC. All
other lines of the entry stay: description, owner, comments.

*Example.* The entry of `editor` lists 20 strings, and has m = 128 cohorts and `min_cohort = 10`.
The plan is for 1,000 reports in each interval, so each of 128 cohorts would have 8 reports. The
reports of a cohort with fewer than 10 are released later or never. The plan therefore has m = 32
cohorts with 31 reports each: the largest power of 2 that gives a cohort three times `min_cohort`.

The steps of the command are:

1. `adapt_plan` chooses the number of cohorts, and predicts the errors of the adapted plan.
2. `format_entry` returns the changed entry for the terminal, or `write_numbers` changes the file.
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
        # different parts of a string, the part with the fewest devices counts. Devices are assumed
        # to be spread evenly over the segments, as `rappor-server check` assumes.
        devices = reports / plan.target.reports_per_device
        expected = metric.smallest_part * devices / metric.n_segments
        m = choose_list_cohorts(expected, min_cohort=metric.min_cohort)
        if m != plan.params.m:
            # `insecure` skips the check that one report cannot reveal the value. The plan's
            # parameters were made for its budget, and the number of cohorts changes no loss.
            params = dataclasses.replace(plan.params, m=m, insecure=True)
            plan = predict_power(params, plan.target, reports=reports)
    return dataclasses.replace(plan, params=apply_numbers(metric.params, plan.params))


def format_entry(path: str, name: str, params: Params) -> str:
    """Return the text of the metric's entry alone, with planned numbers in place of the old ones.

    The file does not change. `write_numbers` writes the same lines into the file.
    """
    return write_changed_entry(read_text(path), name, params)


def write_numbers(path: str, name: str, params: Params) -> None:
    """Replace the numbers of a metric in a registry file, and leave all other lines as they are."""
    changed = replace_numbers(read_text(path), name, params)
    with replace_file(path) as file:
        file.write(changed.encode())
