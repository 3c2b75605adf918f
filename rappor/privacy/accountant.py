"""What one person's device loses over a whole registry, in nats.

Losses add over metrics, over the distinct values of a metric and over its epochs
(sequential composition); who counts all of a group of people as one adds theirs up. People
who share nothing are each bounded by their own total. Nothing that is done with the reports
later adds to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rappor.base.ranges import check_integer
from rappor.registry.budget import scope_loss
from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCost:
    """One metric's part: its loss by each value (each epoch's value), and by all of them."""

    metric: str
    epoch: str
    each: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyCost:
    """A person's loss, metric by metric."""

    items: tuple[MetricCost, ...]

    @property
    def epsilon(self) -> float:
        """The loss over all metrics: their sum."""
        return sum(item.epsilon for item in self.items)

    def of_group(self, n_people: int) -> float:
        """Return the loss of n people whose devices report the same: n times as much."""
        check_integer("n_people", n_people, 1)
        return n_people * self.epsilon


def compose_losses(
    metrics: Iterable[Metric], *, values: int = 1, reports: int | None = None
) -> PrivacyCost:
    """Add up what a device loses that reports this many distinct values for each metric.

    Each value is reported `reports` times, or as often as can be if that is None, and never more
    often than epoch and interval allow. For a metric with epochs `values` counts the epochs.
    """
    check_integer("values", values, 1)
    if reports is not None:
        check_integer("reports", reports, 1)
    items = []
    for metric in metrics:
        each = scope_loss(metric, reports)
        items.append(
            MetricCost(metric=metric.name, epoch=metric.epoch, each=each, epsilon=values * each)
        )
    return PrivacyCost(items=tuple(items))
