"""Check that a registry is fit to be served, and that an edit mixes nothing incompatible."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_WEAK_ONE: Final = 4.01
_WEAK_EVER: Final = 8.01
"""Nats; the weakest named profile, at 4 and 8, is not weak."""
_SOON_DAYS: Final = 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a metric; `level` is "refused", "warning" or "note"."""

    level: str
    text: str


def check_registry(registry: Registry, *, today: datetime.date) -> list[Finding]:
    """Return warnings: weak parameters with their losses, and expiry."""
    return [finding for metric in registry.values() for finding in _check(metric, today)]


def check_edit(old: Registry, new: Registry) -> list[Finding]:
    """Return what an edit changes: refused, or allowed with its consequences."""
    findings = []
    for name, metric in old.items():
        if name not in new:
            findings.append(
                Finding(
                    "refused",
                    f"{name}: a metric must stay, with expires in the past, so that its name is "
                    "not used again for another",
                )
            )
        else:
            findings.extend(_compare(metric, new[name]))
    return findings


def _check(metric: Metric, today: datetime.date) -> Iterator[Finding]:
    one, ever = epsilon_1(metric.params), epsilon_inf(metric.params)
    if one > _WEAK_ONE or ever > _WEAK_EVER:
        yield Finding(
            "warning",
            f"{metric.name}: weak protection: {one:.2f} nats by one report, {ever:.2f} by all "
            "reports of a value",
        )
    if today > metric.expires:
        yield Finding("warning", f"{metric.name}: expired on {metric.expires}")
    elif (metric.expires - today).days <= _SOON_DAYS:
        yield Finding("warning", f"{metric.name}: expires on {metric.expires}")


def _compare(old: Metric, new: Metric) -> Iterator[Finding]:
    removed = [c for c in old.params.categories if c not in new.params.categories]
    kind = encoding_of(old.params)
    if removed and kind.names_values and kind.takes_values_of(new.params):
        yield Finding(
            "refused",
            f"{old.name}: a category must stay, got none of {', '.join(removed)}: devices still "
            "hold it",
        )
    if old.description != new.description and not kind.takes_values_of(new.params):
        yield Finding(
            "refused",
            f"{old.name}: a name must keep its meaning, got another description and encoding: "
            "use a new name",
        )
    elif old.fingerprint != new.fingerprint:
        yield Finding("note", _explain(old, new))
    if old.epoch != new.epoch:
        yield Finding(
            "warning",
            f"{old.name}: epoch changes from {old.epoch} to {new.epoch}: "
            "devices draw new permanent responses, and the losses add",
        )


def _explain(old: Metric, new: Metric) -> str:
    kept = old.params.f == new.params.f and all(
        getattr(old.params, name) == getattr(new.params, name)
        for name in ("k", "h", "m", "encoding", "categories", "normalize")
    )
    cost = (
        "permanent responses stay and so does the loss for ever"
        if kept
        else "devices draw new permanent responses, and the losses add"
    )
    return (
        f"{old.name}: parameters change from {old.fingerprint} to {new.fingerprint}: {cost}; old "
        "reports are counted apart and decoded together with the new; clients that lag behind "
        "are refused unless the old registry is given as --older"
    )
