"""What a device has spent, in nats, computed from its state when somebody asks.

The loss is a sum over scopes of what each can have cost at most. What the sum promises depends on
the metric; `PrivacySpent` says it in words.
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

ONE_RESPONSE: Final = (
    "In each epoch your device keeps repeating the value of its first report, even if your value "
    "changes. This limits everything that your reports reveal about your values, if the number and "
    "the times of the reports do not depend on them."
)
ONE_REPORT: Final = (
    "Your device sends one report at most in each year, quarter or month. This limits everything "
    "that your reports reveal about your values, if the time of a report does not depend on them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPrivacySpent:
    """Privacy loss of one metric at most, in nats; the number of its scopes; the promise."""

    nats: float
    scopes: int
    promise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """What a device has spent at most: nats in all and by metric, since consent was given.

    `reserved` are the nats that metrics with reports have reserved, by calendar year; those of
    earlier consents too.
    """

    nats: float
    metrics: Mapping[str, MetricPrivacySpent]
    reserved: Mapping[int, float]

    @classmethod
    def of(cls, scopes: Collection[Scope], reserved: Mapping[int, float]) -> PrivacySpent:
        """Sum up scopes beside what is reserved; nothing is known of a year that was lost."""
        metrics = {
            name: _metric([each for each in scopes if each.metric == name])
            for name in sorted({scope.metric for scope in scopes})
        }
        nats = math.inf if math.inf in reserved.values() else 0.0
        return cls(
            nats=math.fsum([nats, *(each.nats for each in metrics.values())]),
            metrics=metrics,
            reserved=reserved,
        )

    def belief(self, prior: float = _EVEN_ODDS) -> tuple[float, float]:
        """Return the lowest and the highest belief that all reports can make of a prior belief."""
        return posterior_bound(self.nats, prior)

    def __str__(self) -> str:
        """Say it in plain words."""
        paragraphs = [
            f"Privacy loss so far: epsilon = {self.nats:.2f} (nats) at most. Somebody who thought "
            "it 50 % likely that this device has some value is at most "
            f"{format_belief(self.belief()[1])} sure after all of its reports."
        ]
        for name, spent in self.metrics.items():
            values = format_count(spent.scopes, "value")
            paragraphs += [
                f"  {name}: epsilon = {spent.nats:.2f} at most, for {values}.",
                f"    {spent.promise}",
            ]
        for year, nats in self.reserved.items():
            known = f"  Reserved for {year}: epsilon = {nats:.2f} at most."
            lost = f"  Reserved for {year}: unknown, because its records were lost."
            paragraphs.append(lost if nats == math.inf else known)
        return "\n".join(map(_wrapped, paragraphs))


NOTHING_SPENT: Final = PrivacySpent(nats=0.0, metrics={}, reserved={})


def _metric(scopes: list[Scope]) -> MetricPrivacySpent:
    is_once = all(scope.interval == "epoch" for scope in scopes)
    return MetricPrivacySpent(
        nats=math.fsum(scope.price for scope in scopes),
        scopes=len(scopes),
        promise=ONE_REPORT if is_once else ONE_RESPONSE,
    )


def _wrapped(text: str) -> str:
    """Wrap a paragraph at 80 columns, all of its lines indented as the first one."""
    import textwrap  # noqa: PLC0415 - loaded at opening: later no handle may be free

    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(text, 80, subsequent_indent=indent)
