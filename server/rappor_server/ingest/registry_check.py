"""Checks of a registry for `rappor-server check`: weak protection, expiry, budget, cohorts, edits.

An operator runs the command before a registry is served. Nothing is changed. Every result is a
`Finding` of one sentence with a level:

    refused   the registry must not be served
    warning   protection or reports may be lost. Some warnings about an edit say that `serve`
              refuses the registry while `older` names the registry before
    note      a consequence that the operator should know

Words of a registry: an epoch is the time for which a device repeats a permanent response. An
interval is the time in which a device sends at most one report. A scope is one metric in one epoch
under one permanent fingerprint on one device. A device reserves a cost (nats) of its yearly budget
for each scope before it reports.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor.base.errors import FileError, MissingExtraError, ParamsError
from rappor.base.sentence_numbers import format_count
from rappor.candidates.entry_candidates import list_files, read_entry_candidates
from rappor.planning.changed_params import can_decode_together
from rappor.privacy.notice import describe_late_days
from rappor.privacy.parameter_changes import cost_of_change
from rappor.privacy.small_cohorts import CohortFilling
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import reserve, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.ingest.registry_changes import Finding, find_conflicts

_WEAK_EPSILON_1: Final = 4.01
_WEAK_EPSILON_INF: Final = 6.01
"""Privacy losses in nats above which a metric is called weak: epsilon_1 of one report, epsilon_inf
of all reports of a value. The profile with the least noise (low-noise) has 4 and 6 nats. The 0.01
more leaves room for its rounded parameters, so that the profile is not called weak."""
_SOON_DAYS: Final = 30
"""Number of days before the last day of a metric from which on the check warns. It is a convention:
an update of an application reaches most devices within a month. A larger value warns earlier."""
_REPORTS_OF_VALUE: Final = 10
"""Number of reports of a value before and after a change for which the privacy loss is computed. It
is the default of `rappor privacy --changed`, so that both commands show the same numbers."""
_REFUSAL: Final = ". `serve` refuses this registry while `older` names the registry before"
"""End of the sentence of a conflict whose level is "warning": the conflict holds only while both
registries are in force."""


def check_registry(registry: Registry, *, folder: Path, today: datetime.date) -> list[Finding]:
    """Return warnings of weak parameters, of expiry, and of files of candidates.

    Parameters
    ----------
    registry : the registry
    folder : folder of the registry, to which the names of files are relative
    today : the present day (UTC)
    """
    findings: list[Finding] = []
    for metric in registry.values():
        findings += _check_loss(metric)
        findings += _check_expiry(metric, today)
        findings += _check_candidates(metric, folder)
    return findings


def explain_budget(registry: Registry) -> list[Finding]:
    """Return how much of a device's budget for a calendar year each metric reserves.

    Example: a metric with four epochs in a year and a cost of 4 nats for each scope reserves
    "16 nats of a calendar year: 4 x 4".
    """
    if math.isinf(registry.total):
        findings = [
            Finding("warning", "the budget is infinite: the privacy loss of a device has no limit")
        ]
    else:
        reserved = math.fsum(row.total for row in registry.reserved)
        text = f"{reserved:g} of {registry.total:g} nats of a device's calendar year are reserved"
        findings = [Finding("note", text)]
    return findings + [
        Finding(
            "note",
            f"{row.metric}: it reserves {row.total:g} nats of a calendar year: "
            f"{row.scopes} x {row.cost:g}",
        )
        for row in registry.reserved
    ]


def explain_cohorts(registry: Registry, *, devices: int | None) -> list[Finding]:
    """Return warnings of metrics without blocks, and of metrics with too many cohorts.

    A cohort is released when enough of its devices have reported. With too many cohorts for the
    devices, many cohorts wait for days.

    Parameters
    ----------
    registry : the registry
    devices : number of devices that report in an interval, such as a day. They are assumed to be
        spread evenly over the segments. With None, the number of cohorts is not checked.
    """
    findings: list[Finding] = []
    for metric in registry.values():
        findings += _check_blocks(metric)
        if metric.min_reports and devices is not None:
            findings += _check_cohorts(metric, devices)
    return findings


def check_edit(old: Registry, new: Registry) -> list[Finding]:
    """Return the conflicts of an edit, and the consequences of every other change.

    Parameters
    ----------
    old : registry before the edit
    new : registry after the edit
    """
    findings = []
    for conflict in find_conflicts(old, new):
        end = _REFUSAL if conflict.level == "warning" else ""
        # `serve` refuses either kind, so the exit code of the command must tell a pipeline.
        findings.append(Finding("refused", conflict.text + end))
    for name, metric in old.items():
        if name in new:
            findings += _explain_changes(metric, new[name])
    return findings + list(_check_year_of_change(old, new))


def _check_blocks(metric: Metric) -> Iterator[Finding]:
    """Yield a warning for a metric without blocks."""
    if not metric.min_reports:
        text = "min_reports is 0, so every report is shown at once: for trials only"
        yield Finding("warning", f"{metric.name}: {text}")


def _check_cohorts(metric: Metric, devices: int) -> Iterator[Finding]:
    """Yield a warning if the cohorts of a metric are too many to be filled by its devices."""
    # A segment has a fingerprint of its own, so its blocks contain reports of this segment only.
    # So does a part of a string.
    per_part = int(round(metric.smallest_part * devices, 6))  # 0.2 * 10 may be 1.9999999999999998
    per_segment = per_part // metric.n_segments
    filling = CohortFilling(devices=per_segment, m=metric.params.m, min_cohort=metric.min_cohort)
    if filling.is_m_too_large:
        segments = f" in each of {metric.n_segments:,} segments" if metric.segments else ""
        part = " with the rarest part" if metric.parts else ""
        population = f"{format_count(per_segment, 'device')}{part}{segments}"
        text = f"m is too large for {population}: {filling.summary}"
        yield Finding("warning", f"{metric.name}: {text}")


def _check_loss(metric: Metric) -> Iterator[Finding]:
    """Yield a warning if a metric loses more privacy than the profile with the least noise."""
    of_one, of_all = epsilon_1(metric.params), scope_loss(metric)
    if of_one > _WEAK_EPSILON_1 or of_all > _WEAK_EPSILON_INF:
        yield Finding(
            "warning",
            f"{metric.name}: weak protection: epsilon is {of_one:.2f} for one report and "
            f"{of_all:.2f} for all reports of one value",
        )


def _check_expiry(metric: Metric, today: datetime.date) -> Iterator[Finding]:
    """Yield a warning if a metric has expired, expires soon, or ends within an epoch."""
    if today > metric.expires:
        yield Finding("warning", f"{metric.name}: expired on {metric.expires}")
        return
    if (metric.expires - today).days <= _SOON_DAYS:
        yield Finding("warning", f"{metric.name}: expires on {metric.expires}")
    for sentence in describe_late_days(metric):
        # The sentence begins with a capital letter and ends with a full stop, as the privacy notice
        # of a metric shows it. A finding has neither.
        yield Finding("warning", f"{metric.name}: {sentence[:1].lower()}{sentence[1:-1]}")


def _check_candidates(metric: Metric, folder: Path) -> Iterator[Finding]:
    """Yield a warning if the files of candidates of a metric cannot be used.

    The files are read as a query for estimates reads them, with the normalizer of the metric.
    """
    # The entry has no candidates, or lists them itself.
    if metric.candidates is None or not (files := list_files(metric.candidates)):
        return
    try:
        candidates = read_entry_candidates(metric.candidates, folder, metric.params)
        is_empty = candidates.is_in_memory and len(candidates) == 0
        fault = "it has no candidates" if is_empty else None
    except ParamsError as error:
        fault = str(error)
    except FileError as error:
        fault = error.reason if error.line is None else f"line {error.line}: {error.reason}"
    except MissingExtraError as error:  # the normalizer needs an extra that is not installed here
        fault = str(error)
    if fault is not None:
        yield Finding(
            "warning",
            f"{metric.name}: its candidates file {' or '.join(files)} cannot be used ({fault}); "
            "until it can, each request for estimates must list candidates",
        )


def _explain_changes(old: Metric, new: Metric) -> Iterator[Finding]:
    """Yield one note with all changes of a metric and their costs, or nothing without changes."""
    changes = list(_describe_changes(old, new))
    if changes:
        costs = " ".join(_describe_costs(old, new))
        yield Finding("note", f"{old.name}: {' and '.join(changes)}. {costs}")


def _check_year_of_change(old: Registry, new: Registry) -> Iterator[Finding]:
    """Yield a warning if the reserves of both registries exceed the budget of the year of the edit.

    Each registry may fit by itself. A device that reported under the old parameters before the edit
    has reserved their cost, and reserves the cost of the new parameters in the same calendar year.
    """
    before = math.fsum(reserve(metric).total for metric in old.values())
    added = math.fsum(_compute_added(old.get(metric.name), metric) for metric in new.values())
    if added and before + added > new.total:
        yield Finding(
            "warning",
            f"A device that has reported every metric under the old registry needs "
            f"{before + added:g} nats in the year of the change, and the budget of a year has "
            f"{new.total:g} nats; metrics that exceed the budget are skipped on this device until "
            "the year ends",
        )


def _compute_added(old: Metric | None, new: Metric) -> float:
    """Return the nats that a metric reserves in addition, in the calendar year of the edit.

    Parameters
    ----------
    old : entry before the edit, or None for a new metric
    new : entry after the edit
    """
    if old is None:
        return reserve(new).total
    change = cost_of_change(old, new, reports=_REPORTS_OF_VALUE)
    return change.reserved - change.reserved_before


def _describe_changes(old: Metric, new: Metric) -> Iterator[str]:
    """Yield each change of a metric that devices notice."""
    before, after = (
        ", ".join(params.fingerprint for params in metric.part_sets) for metric in (old, new)
    )
    if before != after:
        yield f"parameters change from {before} to {after}"
    elif old.parts != new.parts:
        # The names of the parts are in the fingerprints. The shares of devices that report each
        # part are not, so that they can change without new counters.
        yield "the shares of the parts change"
    if old.segments != new.segments:
        yield f"segments change from {_format_segments(old)} to {_format_segments(new)}"
    for key in ("epoch", "interval", "sampling_rate"):
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            yield f"{key} changes from {before} to {after}"


def _format_segments(metric: Metric) -> str:
    """Return the dimensions of a metric with their values, such as `version (1, 2, other)`."""
    dimensions = (
        f"{dimension.name} ({', '.join(dimension.labels)})" for dimension in metric.segments
    )
    return "; ".join(dimensions) or "none"


def _describe_costs(old: Metric, new: Metric) -> Iterator[str]:
    """Yield the costs of a change: for a device, for the estimates, and for old clients."""
    yield cost_of_change(old, new, reports=_REPORTS_OF_VALUE).summary
    if not can_decode_together(old.params, new.params):
        yield "Counts before and after cannot be decoded together: their bits mean other values."
    if not old.accepted.keys() <= new.accepted.keys():
        yield (
            "Clients that are not updated are refused, and their reports that wait are not "
            "released, unless the setting `older` of the collector names the old registry."
        )
