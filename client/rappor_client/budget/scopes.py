"""Scopes of a device: memoized permanent responses and their costs.

A scope is one metric in one epoch under one permanent fingerprint, on one device. The permanent
fingerprint is a hash of all parameters but p, q, interval, epoch and segment. Only the hashed
parameters change the permanent response.

A scope begins with its first report. The permanent response of this report is memoized, and every
later report of the scope is drawn from it, whatever the value of the device is by then. So a scope
costs the privacy loss of one value, however often the value changes.

Example: a daily metric with `epoch = "quarter"`.

    event           scope                         report
    Oct 2:  a       new, memoizes response A      A + fresh noise
    Oct 3:  b       the same                      A + fresh noise
    Jan 1:  b       new, memoizes response B      B + fresh noise

A report is assigned to a scope at its event, and again when its interval ends (`assign_scope`),
because the device may have begun a scope in between. The rules in their order (`find_scope`):

1. The device has a scope of an epoch that contains the day. The report belongs to this scope, also
   if the registry has changed since, and has the parameters of the scope's first report.
2. The device has a scope for life, and the registry still has its permanent fingerprint. The report
   belongs to this scope, and has p, q and interval of the registry.
3. Otherwise the report begins a new scope, with its own parameters.

Why rule 1 keeps the parameters of the first report:

- Interval: the cost of the scope is computed for the number of reports of this interval.
- p and q: a report names its parameters by a fingerprint, a hash of all parameters. A collector
  accepts the fingerprints of its registries only. Perhaps none of its registries has the old
  interval together with the new p and q, and then it would refuse the report.
- Segment: the segment is the device's public properties, such as its version and country, and is
  one of the hashed parameters, too. There is one exception. Only properties that the registry lists
  may leave a device. If the present registry does not list the scope's segment, the reports have no
  segment until the epoch ends.

A scope is never dropped. A clock that is set back finds the scope of its day again, so it draws no
second permanent response.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from rappor.protocol.params import Params
from rappor.protocol.responses.response import Coins
from rappor.protocol.segments import is_listed
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.budget.metric_rules import MetricRules
from rappor_client.budget.prepared_report import PreparedReport, redraw_report

ScopeKey = tuple[str, str, str]
"""Metric, epoch and permanent fingerprint. No two scopes of a device have the same key."""


class LastReport(NamedTuple):
    """The last report of a scope.

    Attributes
    ----------
    interval_end
        End of the report's interval, in seconds since 1970.
    tag
        Tag of the report's event: a random number that identifies the event, also after a kill.
    """

    interval_end: float
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A scope that has a report, or gets its first one.

    Attributes
    ----------
    metric
        Name of the metric.
    epoch
        Name of the epoch, such as 2026-Q4; empty for a metric for life.
    first_day, last_day
        First and last day of the epoch, in ISO form (UTC).
    params
        Parameters of the scope's reports.
    cohort
        Cohort of the device in this scope.
    permanent
        Packed bits of the memoized permanent response.
    cost
        Upper bound on the privacy loss of all reports of the scope, in nats.
    has_report_limit
        Whether the cost holds only for one report in each interval.
    last_report
        The last report. None before the first report, and always without a report limit.
    """

    metric: str
    epoch: str
    first_day: str
    last_day: str
    params: Params
    cohort: int
    permanent: bytes = field(repr=False)
    cost: float
    has_report_limit: bool
    last_report: LastReport | None = None

    @property
    def key(self) -> ScopeKey:
        """Metric, epoch and permanent fingerprint, which identify the scope."""
        return self.metric, self.epoch, self.params.permanent_fingerprint

    @property
    def interval(self) -> str:
        """The interval of the scope's reports: "day", "week" or "epoch"."""
        return self.params.interval

    @property
    def report_template(self) -> PreparedReport:
        """A report of the scope without bits. `redraw_report` draws bits from its response."""
        report = Report(
            metric=self.metric, params=self.params.fingerprint, cohort=self.cohort, bits=b""
        )
        return PreparedReport(
            params=self.params,
            epoch=self.epoch,
            permanent=self.permanent,
            report=report,
        )

    def allows_report(self, interval_end: float, tag: int) -> bool:
        """Return whether a report may leave in the interval with this end.

        Parameters
        ----------
        interval_end
            End of the interval, in seconds since 1970.
        tag
            Tag of the event whose report would leave.
        """
        if not self.has_report_limit or self.last_report is None:
            return True
        # Case: the process was killed after it had stored `last_report` and before it had queued
        # this report. The bits of the report were stored before `last_report`, and are queued now.
        # They are the same bits, so the device sends one report.
        if self.last_report.tag == tag:
            return True
        # A scope with one report in an epoch has had its report. For such a scope, `interval_end`
        # is the end of the event's day (`find_interval_end`), and later days must not pass.
        if self.interval == "epoch":
            return False
        # An earlier interval comes from a clock that was set back. The interval may have had its
        # report already, so it gets none.
        return interval_end > self.last_report.interval_end

    def to_plain(self) -> dict[str, Any]:
        """Return the scope as an object for JSON. The parameters are named by their fingerprint.

        The keys "price", "is_counted" and "answered" are older than the names of the fields.
        Folders of devices contain them.
        """
        return {
            "metric": self.metric,
            "epoch": self.epoch,
            "first_day": self.first_day,
            "last_day": self.last_day,
            "params": self.params.fingerprint,
            "cohort": self.cohort,
            "permanent": self.permanent.hex(),
            "price": self.cost,
            "is_counted": self.has_report_limit,
            "answered": self.last_report,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], params: Mapping[str, Params]) -> Self:
        """Read a scope that `to_plain` has written; `params` has the parameters by fingerprint.

        Raises LookupError, TypeError, ValueError or AttributeError for another object.
        """
        fields = dict(plain)
        last_report = fields.pop("answered")
        if last_report is not None:
            last_report = LastReport(float(last_report[0]), int(last_report[1]))
        # `**fields` comes last. By then it contains only keys with the name of their field. A key
        # of another version raises TypeError.
        scope = cls(
            params=params[fields.pop("params")],
            permanent=bytes.fromhex(fields.pop("permanent")),
            cost=fields.pop("price"),
            has_report_limit=fields.pop("is_counted"),
            last_report=last_report,
            **fields,
        )
        scope._check()
        return scope

    def _check(self) -> None:
        """Raise ValueError for fields that contradict each other, as another version may write."""
        first_day, last_day = map(datetime.date.fromisoformat, (self.first_day, self.last_day))
        is_valid = (
            isinstance(self.metric, str) and isinstance(self.epoch, str),
            first_day <= last_day,
            0 <= self.cohort < self.params.m,
            len(self.permanent) == self.params.n_bytes,
            self.cost >= 0,
            self.interval != "",
        )
        if not all(is_valid):
            raise ValueError("a scope must have fields that agree with each other")


class ScopedReport(NamedTuple):
    """A report, and the scope to which it belongs."""

    scope: Scope
    report: PreparedReport


Scopes = Mapping[ScopeKey, Scope]


def find_scope(
    scopes: Scopes, rules: MetricRules, params: Params, name: str, epoch: str
) -> Scope | None:
    """Return the scope of a metric's next report, with the parameters of this report.

    The result is None if the report begins a new scope. The head of this module lists the rules.

    Parameters
    ----------
    scopes
        All scopes of the device.
    rules
        Rules of the metric on the day of the event.
    params
        Parameters of the registry's entry. For a metric with parts, they include the name of the
        part that the device reports, such as "prefix:3" for the first three letters of a string.
    name
        Name of the metric.
    epoch
        Name of the registry's epoch on this day; empty for a metric for life.
    """
    own_scopes = [scope for key, scope in scopes.items() if key[0] == name]
    # Two epochs may contain the day if a registry has changed the length of the epoch. The scope
    # that ends first comes first. Every process must choose the same scope, hence the key.
    own_scopes.sort(key=lambda scope: (scope.last_day, scope.first_day, scope.key))
    for scope in own_scopes:
        if not scope.first_day <= rules.day <= scope.last_day:
            continue
        scope_params = scope.params
        if not is_listed(scope_params.segment, rules.segments):
            scope_params = scope_params.without_segment
        if scope.epoch:
            return dataclasses.replace(scope, params=scope_params)
        # A scope without an epoch is for life. If the registry has changed the permanent
        # fingerprint, the scope is over, and another scope for life may still fit.
        present_params = _find_present_params(rules, params, epoch, scope_params)
        if present_params is not None:
            return dataclasses.replace(scope, params=present_params)
    return None


def assign_scope(
    scopes: Scopes, rules: MetricRules, prepared: PreparedReport, coins: Coins
) -> ScopedReport:
    """Return the scope of a prepared report, and the report that the device may send.

    The returned report is `prepared` itself if it was drawn from the memoized permanent response of
    the scope. Otherwise the report is drawn again from this response. Cases: after the report was
    prepared, another process began the scope, or a registry changed the parameters.

    The function stores nothing.
    """
    scope = find_scope(scopes, rules, prepared.params, prepared.report.metric, prepared.epoch)
    if scope is None:
        return ScopedReport(_begin_scope(rules, prepared), prepared)
    template = scope.report_template
    if not _has_same_response(prepared, template):
        prepared = redraw_report(template, coins)
    return ScopedReport(scope, prepared)


def find_memoized_part(scopes: Iterable[Scope], metric: Metric, epoch: str) -> str | None:
    """Return the part of a metric that the device has reported in an epoch, None without a report.

    A part is a piece of a string, such as its first three letters. A registry lists the parts, and
    for each part the share of the devices that report it. The secret of a device chooses the part
    by these shares, so with other shares the secret may choose another part.

    A device that has reported a part keeps this part until the epoch ends. Another part of the same
    string would begin a second scope, which reveals more about the value and costs as much again.
    If the present registry has no such part, or the part has another permanent fingerprint, the
    result is None.
    """
    fingerprints = {params.part: params.permanent_fingerprint for params in metric.part_sets}
    for scope in scopes:
        if (scope.metric, scope.epoch) == (metric.name, epoch):
            part = scope.params.part
            if fingerprints.get(part) == scope.params.permanent_fingerprint:
                return part
    return None


def has_reported(scopes: Iterable[Scope], name: str, day: datetime.date) -> bool:
    """Return whether a metric has reported in an epoch that contains a day.

    A scope for life is ignored. It has no epoch, so its report may be from any day.
    """
    text = day.isoformat()
    return any(
        scope.metric == name and scope.epoch and scope.first_day <= text <= scope.last_day
        for scope in scopes
    )


def _begin_scope(rules: MetricRules, prepared: PreparedReport) -> Scope:
    """Return the scope that begins with a report."""
    return Scope(
        metric=prepared.report.metric,
        epoch=prepared.epoch,
        first_day=rules.first_day,
        last_day=rules.last_day,
        params=prepared.params,
        cohort=prepared.report.cohort,
        permanent=prepared.permanent,
        cost=rules.cost,
        has_report_limit=rules.has_report_limit,
    )


def _has_same_response(first: PreparedReport, second: PreparedReport) -> bool:
    """Return whether two reports have one permanent response, under the same parameters."""
    return (
        first.epoch == second.epoch
        and first.params.fingerprint == second.params.fingerprint
        and first.report.cohort == second.report.cohort
        and first.permanent == second.permanent
    )


def _find_present_params(
    rules: MetricRules, params: Params, epoch: str, scope_params: Params
) -> Params | None:
    """Return the registry's parameters for the next report of a scope for life.

    The parameters must have the permanent fingerprint of the scope. They may have another p, q and
    interval than the scope.

    Returns None if the registry has no such parameters. Cases: the metric has epochs now, the
    registry does not list the scope's part, or the permanent fingerprint has changed.
    """
    if epoch or scope_params.part not in rules.parts:
        return None
    # `params` has the part that the secret chooses by the present shares of the parts. The scope
    # has memoized a response to its own part, so the report has the scope's part.
    if params.part != scope_params.part:
        params = dataclasses.replace(params, part=scope_params.part)
    return params if params.permanent_fingerprint == scope_params.permanent_fingerprint else None
