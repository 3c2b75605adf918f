"""Check that a registry is fit to be served, and that an edit mixes nothing incompatible."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor.base.errors import FileError, MissingExtraError
from rappor.base.sentence_numbers import format_count
from rappor.candidates.candidates import Candidates
from rappor.planning.changed_params import can_decode_together
from rappor.privacy.notice import describe_late_days
from rappor.privacy.parameter_changes import cost_of_change
from rappor.privacy.small_cohorts import CohortFilling
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import reserve, scope_loss
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_server.ingest.accepted_params import why_unfit
from rappor_server.ingest.registry_changes import Finding, find_conflicts

_WEAK_EPSILON_1: Final = 4.01
_WEAK_EPSILON_INF: Final = 6.01
"""Nats; the named profile with the least noise, at 4 and 6, is not called weak."""
_SOON_DAYS: Final = 30
_REPORTS: Final = 10
"""Reports of a value before and after a change, as `rappor privacy` counts unless told."""
_REFUSAL: Final = ". `serve` refuses this registry while `older` names the registry before"
"""End of the warning of a conflict that holds only while both registries are in force."""


def check_registry(registry: Registry, *, folder: Path, today: datetime.date) -> list[Finding]:
    """Return warnings: weak parameters, expiry, and files beside the registry in `folder`."""
    findings = []
    for metric in registry.values():
        findings += [*_check(metric, today), *_check_candidates(metric, folder)]
    return findings


def explain_budget(registry: Registry) -> list[Finding]:
    """Return what each metric reserves of a device's budget for a calendar year."""
    if math.isinf(registry.total):
        findings = [
            Finding("warning", "the budget is infinite: the privacy loss of a device has no limit")
        ]
    else:
        needed = math.fsum(each.total for each in registry.reserved)
        text = f"{needed:g} of {registry.total:g} nats of a device's calendar year are reserved"
        findings = [Finding("note", text)]
    return findings + [
        Finding(
            "note",
            f"{each.metric}: it reserves {each.total:g} nats of a calendar year: "
            f"{each.scopes} x {each.cost:g}",
        )
        for each in registry.reserved
    ]


def explain_cohorts(registry: Registry, *, devices: int | None) -> list[Finding]:
    """Say which metrics show single reports or devices, and whose m is too large.

    `devices` are those that report in an interval, such as a day; spread evenly over the segments.
    """
    return [
        finding for metric in registry.values() for finding in _explain_cohorts(metric, devices)
    ]


def check_edit(old: Registry, new: Registry) -> list[Finding]:
    """Return the conflicts of an edit, and the consequences of every other change."""
    findings = []
    for finding in find_conflicts(old, new):
        is_warning = finding.level == "warning"
        findings.append(Finding(finding.level, finding.text + (_REFUSAL if is_warning else "")))
    for name in old.keys() & new.keys():
        findings.extend(_explain_changes(old[name], new[name]))
    return findings + list(_check_year(old, new))


def _explain_cohorts(metric: Metric, devices: int | None) -> Iterator[Finding]:
    if not metric.min_reports:
        text = "min_reports is 0, so every report is shown at once: for trials only"
        yield Finding("warning", f"{metric.name}: {text}")
        return
    if (unfit := why_unfit(metric)) is not None:
        yield Finding("refused", unfit)
    if devices is None:
        return
    each = devices // metric.n_segments
    filling = CohortFilling(devices=each, m=metric.params.m, min_cohort=metric.min_cohort)
    if filling.is_m_too_large:
        many = f" in each of {metric.n_segments:,} segments" if metric.segments else ""
        told = f"{format_count(each, 'device')}{many}"
        text = f"m is too large for {told}: {filling.summary}"
        yield Finding("warning", f"{metric.name}: {text}")


def _check(metric: Metric, today: datetime.date) -> Iterator[Finding]:
    one, all_reports = epsilon_1(metric.params), scope_loss(metric)
    if one > _WEAK_EPSILON_1 or all_reports > _WEAK_EPSILON_INF:
        yield Finding(
            "warning",
            f"{metric.name}: weak protection: epsilon is {one:.2f} for one report and "
            f"{all_reports:.2f} for all reports of one value",
        )
    if today > metric.expires:
        yield Finding("warning", f"{metric.name}: expired on {metric.expires}")
    elif (metric.expires - today).days <= _SOON_DAYS:
        yield Finding("warning", f"{metric.name}: expires on {metric.expires}")
    for told in describe_late_days(metric) if today <= metric.expires else ():
        yield Finding("warning", f"{metric.name}: {told[:1].lower()}{told[1:-1]}")


def _check_candidates(metric: Metric, folder: Path) -> Iterator[Finding]:
    """Read the file of candidates that a metric names, as an estimate would."""
    if not isinstance(metric.candidates, str):
        return
    try:
        found = Candidates.from_file(
            folder / metric.candidates, normalize=metric.params.normalize
        ).strings
        fault = None if found else "it has no candidates"
    except FileError as error:
        fault = error.reason if error.line is None else f"line {error.line}: {error.reason}"
    except MissingExtraError as error:
        fault = str(error)
    if fault is not None:
        yield Finding(
            "warning",
            f"{metric.name}: its candidates file {metric.candidates} cannot be used ({fault}); "
            "until it can, each request for estimates must list candidates",
        )


def _explain_changes(old: Metric, new: Metric) -> Iterator[Finding]:
    changes = list(_changes(old, new))
    if changes:
        yield Finding("note", f"{old.name}: {' and '.join(changes)}. {' '.join(_costs(old, new))}")


def _check_year(old: Registry, new: Registry) -> Iterator[Finding]:
    """Return whether the year of the change has room for what both registries reserve."""
    before = math.fsum(reserve(metric).total for metric in old.values())
    extra = math.fsum(_extra(old.get(metric.name), metric) for metric in new.values())
    if extra and before + extra > new.total:
        yield Finding(
            "warning",
            f"A device that has reported every metric reserves {before + extra:g} nats in the year "
            f"of the change, of {new.total:g}: what finds no room is silent until that year ends",
        )


def _extra(old: Metric | None, new: Metric) -> float:
    """Return what a metric reserves in the year of a change beyond what it had reserved."""
    if old is None:
        return reserve(new).total
    change = cost_of_change(old, new, reports=_REPORTS)
    return change.reserved - change.reserved_before


def _changes(old: Metric, new: Metric) -> Iterator[str]:
    """Yield what changes for devices."""
    before, after = (
        ", ".join(params.fingerprint for params in metric.part_sets) for metric in (old, new)
    )
    if before != after:
        yield f"parameters change from {before} to {after}"
    elif old.parts != new.parts:
        yield "the shares of the parts change"
    if old.segments != new.segments:
        yield f"segments change from {_dimensions(old)} to {_dimensions(new)}"
    for key in ("epoch", "interval", "sampling_rate"):
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            yield f"{key} changes from {before} to {after}"


def _dimensions(metric: Metric) -> str:
    """Write what devices tell in the clear."""
    told = (f"{each.name} ({', '.join(each.labels)})" for each in metric.segments)
    return "; ".join(told) or "none"


def _costs(old: Metric, new: Metric) -> Iterator[str]:
    """Yield what a change costs a device, in the words and numbers of `rappor privacy`."""
    yield cost_of_change(old, new, reports=_REPORTS).summary
    if not can_decode_together(old.params, new.params):
        yield "Counts before and after cannot be decoded together: their bits mean other values."
    if not old.accepted.keys() <= new.accepted.keys():
        yield (
            "Clients that are not updated are refused, and their reports that wait are not "
            "released, unless --older names the old registry."
        )
