"""Privacy loss of a device so far, for the person: in nats, by metric, and in sentences.

The loss of a device is at most the sum of the costs of its scopes (sequential composition). A scope
is one metric in one epoch under one permanent fingerprint, a hash of the parameters that determine
the permanent response. All reports of a scope repeat one permanent response, that of the first
reported value. So the cost of a scope bounds everything that its reports reveal about this value.

Example: `search_engine` has reported in two quarters, at 4 nats each, and `theme` in one quarter,
at 2 nats. The loss is at most 10 nats.

The sum is a promise under conditions. They depend on the interval of the metric, and the texts
`ONE_RESPONSE` and `ONE_REPORT` state them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rappor.base.sentence_numbers import format_belief, format_count
from rappor.protocol.loss import posterior_bound
from rappor_client.budget.scopes import Scope

_EVEN_ODDS: Final = 0.5
"""Default prior: the probability that an observer assigns to a value before any report. At 0.5 the
value is as likely as not."""
_LINE_LETTERS: Final = 80
"""Largest length of a printed line, in characters. A terminal usually has this width."""

ONE_RESPONSE: Final = (
    "In each epoch your device keeps repeating the value of its first report, even if your value "
    "changes. This limits everything that your reports reveal about your values, if the number and "
    "the times of the reports do not depend on them."
)
"""States what the cost of a metric with `interval` "day" or "week" promises."""
ONE_REPORT: Final = (
    "Your device sends one report at most in each year, quarter or month. This limits everything "
    "that your reports reveal about your values, if the time of a report does not depend on them."
)
"""States what the cost of a metric with `interval = "epoch"` promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPrivacySpent:
    """Privacy loss of one metric.

    Attributes
    ----------
    nats : float
        Upper bound on the privacy loss, in nats.
    scopes : int
        Number of scopes that have reported. It is the number of epochs with reports. A metric for
        life has one epoch, and one scope for each permanent fingerprint that it has had.
    promise : str
        The promise of the bound and its conditions, in sentences for the person.

    Examples
    --------
    >>> MetricPrivacySpent(nats=8.0, scopes=2, promise="...").nats
    8.0
    """

    nats: float
    scopes: int
    promise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """Privacy loss of a device since consent was given.

    Printing the object gives sentences for the person.

    Attributes
    ----------
    nats : float
        Upper bound on the privacy loss, in nats: the sum over metrics. Infinity if the loss is
        unknown, because the state was lost or could not be read.
    metrics : mapping of str to MetricPrivacySpent
        Privacy loss by metric.
    reserved : mapping of int to float
        Nats by calendar year that metrics with reports have reserved, also under earlier consents.
        Infinity for a year whose reservations are unknown.

    Examples
    --------
    >>> spent = PrivacySpent(nats=1.0, metrics={}, reserved={2026: 4.0})
    >>> lowest, highest = spent.belief()
    >>> round(lowest, 3), round(highest, 3)
    (0.269, 0.731)
    """

    nats: float
    metrics: Mapping[str, MetricPrivacySpent]
    reserved: Mapping[int, float]

    @classmethod
    def of(cls, scopes: Collection[Scope], reserved: Mapping[int, float]) -> PrivacySpent:
        """Return the privacy loss of a device.

        Parameters
        ----------
        scopes : collection of Scope
            Scopes that have reported.
        reserved : mapping of int to float
            Reserved nats by calendar year; infinity if unknown.
        """
        metrics = {
            name: _sum_scopes([scope for scope in scopes if scope.metric == name])
            for name in sorted({scope.metric for scope in scopes})
        }
        # If the reservations of a year are lost, the scopes of that year are lost, too.
        lost_nats = math.inf if math.inf in reserved.values() else 0.0
        return cls(
            nats=math.fsum([lost_nats, *(metric.nats for metric in metrics.values())]),
            metrics=metrics,
            reserved=reserved,
        )

    def belief(self, prior: float = _EVEN_ODDS) -> tuple[float, float]:
        """Return the lowest and the highest belief to which all reports can change a prior belief.

        Parameters
        ----------
        prior : float, default 0.5
            Probability that an observer assigns to a value before the reports.

        Returns
        -------
        tuple of float
            Bounds on the probability after the reports.

        Raises
        ------
        ParamsError
            `prior` is not a probability.
        """
        return posterior_bound(self.nats, prior)

    def __str__(self) -> str:
        """Return the privacy loss as sentences for the person."""
        paragraphs = [
            f"Privacy loss so far: epsilon = {self.nats:.2f} (nats) at most. Somebody who thought "
            "it 50 % likely that this device has a certain value is at most "
            f"{format_belief(self.belief()[1])} sure after all of its reports."
        ]
        for name, spent in self.metrics.items():
            values = format_count(spent.scopes, "value")
            paragraphs += [
                f"  {name}: epsilon = {spent.nats:.2f} at most, for {values}.",
                f"    {spent.promise}",
            ]
        for year, nats in self.reserved.items():
            if nats == math.inf:
                paragraphs.append(f"  Reserved for {year}: unknown, because its records were lost.")
            else:
                paragraphs.append(f"  Reserved for {year}: epsilon = {nats:.2f} at most.")
        # An erasure leaves the reservations only. Without this sentence the loss of 0.00 of a new
        # device would read as if the erased device had sent nothing.
        if self.reserved:
            paragraphs.append(
                "    This limits all reports of the year, also those sent before an erasure."
            )
        return "\n".join(map(_wrap, paragraphs))


NOTHING_SPENT: Final = PrivacySpent(nats=0.0, metrics={}, reserved={})
"""Privacy loss of a device that has never reported."""
UNKNOWN_SPENT: Final = PrivacySpent(nats=math.inf, metrics={}, reserved={})
"""Privacy loss of a device whose folder could not be read."""


def _sum_scopes(scopes: list[Scope]) -> MetricPrivacySpent:
    """Return the privacy loss of one metric from its scopes."""
    # A metric may have changed its interval between epochs. Then the promise for several reports in
    # an epoch is shown, because it covers one report, too.
    is_once = all(scope.interval == "epoch" for scope in scopes)
    return MetricPrivacySpent(
        nats=math.fsum(scope.cost for scope in scopes),
        scopes=len(scopes),
        promise=ONE_REPORT if is_once else ONE_RESPONSE,
    )


def _wrap(text: str) -> str:
    """Wrap a paragraph at 80 characters; all lines get the indentation of the first line."""
    # `Client.open` has imported `textwrap` already, so this statement opens no file. A host program
    # may have no free file handle when it prints the result.
    import textwrap  # noqa: PLC0415 - the import of this module stays quick

    indent = " " * (len(text) - len(text.lstrip()))
    # A no-break space keeps a number and its per cent sign in one line.
    unbroken = text.replace(" %", "\N{NO-BREAK SPACE}%")
    wrapped = textwrap.fill(unbroken, _LINE_LETTERS, subsequent_indent=indent)
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")
