"""Changing the parameters of a live metric: its cost to a device, and its effect on estimates."""

from __future__ import annotations

from dataclasses import dataclass

from rappor.protocol.loss import epsilon_inf, epsilon_n, epsilon_reports
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a device loses, in nats, by reports of one value before and after a change.

    `kept` tells that the permanent response stays. `epsilon_inf` is the loss by any number of
    reports.
    """

    kept: bool
    epsilon: float
    epsilon_inf: float


def change_cost(
    old: Params, new: Params, *, before: int, after: int, for_life: bool = True
) -> Cost:
    """Account for numbers of reports of one value before and after the change.

    A change of p and q alone keeps the permanent response, and so epsilon_inf. Any
    other one draws a new permanent response, and the losses add. So they do with epochs
    (`for_life` is false): there a change waits for the next one.
    """
    if for_life and old.permanent_fingerprint == new.permanent_fingerprint:
        reports = {old: before + after} if old == new else {old: before, new: after}
        return Cost(kept=True, epsilon=epsilon_reports(reports), epsilon_inf=epsilon_inf(old))
    return Cost(
        kept=False,
        epsilon=epsilon_n(old, before) + epsilon_n(new, after),
        epsilon_inf=epsilon_inf(old) + epsilon_inf(new),
    )
