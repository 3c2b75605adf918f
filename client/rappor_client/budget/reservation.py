"""What a device reserves of its budget for a calendar year, before anything happens.

Metrics reserve in the registry's order, each the prices of all its scopes that touch the year.
What was reserved before counts first: by other registries, by metrics whose scopes are others
now, and by earlier identities. A metric for which nothing is left is silent all that year,
whatever its values are; later ones may still fit. Nothing that was reserved is ever given back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from rappor.registry.budget import reserve, scope_identity
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.settings import BudgetCap

_EARLIER: Final = ""
"""In the place of a metric's name: what an identity reserved that is no more."""

_LIFE: Final = "life"
_ROUNDING: Final = 1e-9
"""Prices are thousandths of a nat; their sums in binary are off by far less."""

Row = tuple[int, str, str]
"""A year, a metric, and what its scopes depend on."""


class Limits(NamedTuple):
    """How many nats there are in a calendar year, and in all years together."""

    year: float
    life: float = math.inf

    @classmethod
    def of(cls, registry: Registry, caps: BudgetCap) -> Limits:
        """Return the registry's total, or the host's where that is lower."""
        if caps.per == _LIFE:
            return cls(registry.total, caps.total)
        return cls(min(registry.total, caps.total))


class Lost(NamedTuple):
    """When it was found that nothing tells any more what was reserved.

    All metrics are silent until that year is over; if it `is_for_life`, those for life for good.
    `is_over` says that the clock has shown the year after it.
    """

    year: int
    is_for_life: bool
    is_over: bool = False

    def followed(self, year: int) -> Lost:
        """Return the same when the clock shows a year.

        A clock that jumps over a year was wrong when the loss was found, as one that starts in
        1970: what was lost moves with it.
        """
        if year <= self.year or self.is_over:
            return self
        return self._replace(is_over=True) if year == self.year + 1 else self._replace(year=year)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The nats that are reserved by year, metric and scopes; and what was lost of it, if any."""

    nats: Mapping[Row, float] = field(default_factory=dict)
    lost: Lost | None = None

    @classmethod
    def of_earlier(cls, years: Mapping[int, float], *, is_for_life: bool = False) -> Self:
        """Begin an identity where others have reserved this; infinite where that is not known."""
        nats = {(year, _EARLIER, ""): each for year, each in years.items() if 0 < each < math.inf}
        lost = [year for year, each in years.items() if each == math.inf]
        return cls(nats, Lost(max(lost), is_for_life) if lost else None)

    def by_year(self) -> dict[int, float]:
        """Return the nats reserved so far, by calendar year; infinite where that is not known."""
        years: dict[int, float] = {}
        for (year, _, _), nats in self.nats.items():
            years[year] = years.get(year, 0.0) + nats
        if self.lost is not None:
            years[self.lost.year] = math.inf
        return dict(sorted(years.items()))

    def followed(self, year: int) -> Reserved:
        """Return the same when the clock shows a year."""
        if self.lost is None or (lost := self.lost.followed(year)) == self.lost:
            return self
        return Reserved(self.nats, lost)

    def silent_metrics(self, registry: Registry, limits: Limits, year: int) -> frozenset[str]:
        """Return the metrics that do not fit into a year.

        Where what was reserved is not known any more, all metrics are silent until that year is
        over, and those for life for good.
        """
        in_year, in_all = self._by_scopes(year), self._by_scopes(None)
        silent = self._forgotten(registry.values(), year)
        for total, reserved in ((limits.year, in_year), (limits.life, in_all)):
            had, extra = dict[str, float](), dict[str, float]()
            for name, metric in registry.items():
                scopes = (name, _scopes(metric))
                mine = in_all if reserved is in_all and metric.epoch == _LIFE else in_year
                more = _above(_price(metric, year), mine.get(scopes, 0.0))
                had[name], extra[name] = reserved.get(scopes, 0.0), more
            silent |= _without_room(had, extra, total, sum(reserved.values()))
        return frozenset(silent)

    def with_metric(self, metric: Metric, year: int) -> Reserved:
        """Return the same with what a metric reserves of a year in which it has a report."""
        row, price = (year, metric.name, _scopes(metric)), _price(metric, year)
        if self.nats.get(row, -1.0) >= price:
            return self
        return Reserved({**self.nats, row: price}, self.lost)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rows = [[*row, nats] for row, nats in sorted(self.nats.items())]
        return {"reserved": rows, "lost": None if self.lost is None else list(self.lost)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_plain` wrote; ValueError and others for what it cannot have written."""
        nats = {
            (int(y), str(name), str(scopes)): float(n) for y, name, scopes, n in plain["reserved"]
        }
        if not all(each >= 0 for each in nats.values()):
            raise ValueError("reserved")
        if (lost := plain["lost"]) is None:
            return cls(nats)
        year, is_for_life, is_over = lost
        return cls(nats, Lost(int(year), bool(is_for_life), bool(is_over)))

    def _forgotten(self, metrics: Iterable[Metric], year: int) -> set[str]:
        """Return the metrics that are silent because it is lost what was reserved."""
        if self.lost is None:
            return set()
        lost = self.lost.followed(year)
        is_over = year > lost.year
        return {
            metric.name
            for metric in metrics
            if not is_over or (lost.is_for_life and metric.epoch == _LIFE)
        }

    def _by_scopes(self, wanted: int | None) -> dict[tuple[str, str], float]:
        """Return the nats of a year, or of all; a scope for life is one in all years."""
        found: dict[tuple[str, str], float] = {}
        for (year, name, scopes), nats in self.nats.items():
            if wanted in (None, year):
                before = found.get((name, scopes), 0.0)
                is_for_life = scopes.startswith(f"{_LIFE} ")
                found[name, scopes] = max(before, nats) if is_for_life else before + nats
        return found


def _without_room(
    had: Mapping[str, float], extra: Mapping[str, float], total: float, reserved: float
) -> set[str]:
    """Return the metrics that a total has no room for, those first that have reserved before."""
    if total == math.inf:
        return set()
    silent = set()
    room = total - (reserved - sum(had.values()))
    for name, nats in had.items():
        if not nats <= room + _ROUNDING:
            silent.add(name)
        else:
            room -= nats
    room = total - reserved
    for name, nats in extra.items():
        if not (nats == 0 or nats <= room + _ROUNDING):
            silent.add(name)
        elif name not in silent:
            room -= nats
    return silent


def _above(needed: float, had: float) -> float:
    """Return what is needed beyond what there is; both may be infinite."""
    return needed - had if needed > had else 0.0


@functools.lru_cache(maxsize=256)
def _price(metric: Metric, year: int) -> float:
    return reserve(metric, year=year).total


_scopes = functools.lru_cache(maxsize=256)(scope_identity)
