"""Reservations: the parts of a year's privacy budget that the metrics of a device may use.

The budget is a number of nats (the unit of privacy loss) for a calendar year. With its first report
of the year, a metric reserves the costs of all its scopes that touch the year. (A scope is one
metric in one epoch under one permanent fingerprint.) So a metric never runs out of budget in the
middle of a year. Registry and calendar alone determine how many nats a metric reserves. A metric
that does not fit is skipped for the whole year, and being skipped reveals nothing about its values.

Which metrics fit is decided in two rounds over the registry, in its order:

    1. Metrics that have reserved before keep their room. A metric whose reservation does not fit
       any more is skipped, for example because the host has lowered the budget cap.
    2. Metrics that need more nats than they have reserved get what is left, in the same order. A
       later metric may still fit where an earlier one did not.

Nats that were reserved stay reserved until the year is over. They count first, also the nats of

- other registries that share the folder;
- metrics whose scopes were different, because the registry has changed;
- earlier identities in the folder: consent was withdrawn and given again, or the state was lost.

Example: the registry has `total = 40` and the metrics A (16 nats), B (16) and C (8). The host has
lowered the total by `BudgetCap(total=24)`. A fits. B does not fit into the 8 nats that are left, so
B is skipped. C fits.

If the state is lost, the number of reserved nats is unknown. `LostYear` describes this case: all
metrics are skipped until the year is over, and metrics for life for good.
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

_EARLIER_IDENTITY: Final = ""
"""Stands in place of a metric's name for the nats that an earlier identity has reserved."""
_LIFE: Final = "life"
_TOLERANCE: Final = 1e-9
"""Nats by which a reservation may exceed the room for it. Costs are thousandths, which floats do
not contain exactly. A sum of costs is wrong by far less than this number."""

ReservationKey = tuple[int, str, str]
"""Calendar year, name of the metric, and a text that identifies the metric's scopes.

The text (`scope_identity`) contains the length of an epoch and the permanent fingerprints. A
changed registry entry with another text needs a reservation of its own."""
ScopesOfMetric = tuple[str, str]
"""Name of a metric, and the text that identifies its scopes."""


class BudgetLimits(NamedTuple):
    """Largest numbers of nats that a device may reserve.

    Attributes
    ----------
    in_year
        For one calendar year.
    in_life
        For all years together.
    """

    in_year: float
    in_life: float = math.inf

    @classmethod
    def combine(cls, registry: Registry, cap: BudgetCap) -> BudgetLimits:
        """Return the total of the registry, lowered by the budget cap of the host."""
        if cap.per == _LIFE:
            return cls(registry.total, cap.total)
        return cls(min(registry.total, cap.total))


class LostYear(NamedTuple):
    """The year whose reservations are lost.

    All metrics are skipped until the year is over.

    Attributes
    ----------
    year
        The calendar year. At first it is the latest year that clock and spool name.
    is_for_life
        Whether metrics for life are skipped for good. They are skipped if a state was lost under
        consent: it may have contained their permanent response, which must stay the only one for
        life. They are not skipped if consent was withdrawn and only the reserved nats are unknown.
    is_over
        Whether the clock has reached the following year. Then the year is final.
    """

    year: int
    is_for_life: bool
    is_over: bool = False

    def advance_to(self, year: int) -> LostYear:
        """Return the lost year after the clock has shown a calendar year.

        The cases:

        - The clock shows the same year or an earlier one, or the lost year is over: no change.
        - The clock shows the next year: the lost year is over.
        - The clock has skipped a year: it was wrong when the state was lost, for example a clock
          that starts in 1970. The reservations were made in the year that the clock shows now, so
          this is the lost year.
        """
        if year <= self.year or self.is_over:
            return self
        if year == self.year + 1:
            return self._replace(is_over=True)
        return self._replace(year=year)


@dataclass(frozen=True, slots=True)
class Reservations:
    """All reservations of a device.

    Attributes
    ----------
    nats
        Reserved nats by year, metric and scopes.
    lost
        The year whose reservations are lost, if any.
    """

    nats: Mapping[ReservationKey, float] = field(default_factory=dict)
    lost: LostYear | None = None

    @classmethod
    def from_years(cls, years: Mapping[int, float], *, is_for_life: bool = False) -> Self:
        """Return the reservations with which a new identity begins.

        Parameters
        ----------
        years
            Nats that earlier identities have reserved, by calendar year; infinity if unknown.
        is_for_life
            Whether metrics for life are skipped for good if a year is unknown.
        """
        nats = {
            (year, _EARLIER_IDENTITY, ""): reserved
            for year, reserved in years.items()
            if 0 < reserved < math.inf
        }
        unknown_years = [year for year, reserved in years.items() if reserved == math.inf]
        # All metrics are skipped until the latest unknown year is over, and so in the earlier ones.
        lost = LostYear(max(unknown_years), is_for_life) if unknown_years else None
        return cls(nats, lost)

    def sum_by_year(self) -> dict[int, float]:
        """Return the reserved nats of all metrics by calendar year; infinity for the lost year."""
        years: dict[int, float] = {}
        for (year, _, _), nats in self.nats.items():
            years[year] = years.get(year, 0.0) + nats
        if self.lost is not None:
            years[self.lost.year] = math.inf
        return dict(sorted(years.items()))

    def advance_to(self, year: int) -> Reservations:
        """Return the reservations after the clock has shown a calendar year."""
        if self.lost is None or (lost := self.lost.advance_to(year)) == self.lost:
            return self
        return Reservations(self.nats, lost)

    def find_unaffordable(
        self, registry: Registry, limits: BudgetLimits, year: int
    ) -> frozenset[str]:
        """Return the names of the metrics that do not fit into the budget of a calendar year."""
        by_scopes_in_year, by_scopes_in_life = self._sum_by_scopes(year), self._sum_by_scopes(None)
        unaffordable = self._find_forgotten(registry.values(), year)
        for limit, by_scopes in (
            (limits.in_year, by_scopes_in_year),
            (limits.in_life, by_scopes_in_life),
        ):
            reserved, missing = dict[str, float](), dict[str, float]()
            for name, metric in registry.items():
                scopes = (name, _identify_scopes(metric))
                # A metric for life has one scope in all years. Under the limit of all years, a
                # reservation of an earlier year covers this year too.
                is_one_scope = by_scopes is by_scopes_in_life and metric.epoch == _LIFE
                covered = by_scopes_in_life if is_one_scope else by_scopes_in_year
                reserved[name] = by_scopes.get(scopes, 0.0)
                missing[name] = _subtract(
                    _compute_cost_of_year(metric, year), covered.get(scopes, 0.0)
                )
            unaffordable |= _find_without_room(
                reserved, missing, limit=limit, total_reserved=sum(by_scopes.values())
            )
        return frozenset(unaffordable)

    def with_metric(self, metric: Metric, year: int) -> Reservations:
        """Return the reservations after a metric has reserved its nats of a year.

        A smaller cost never replaces a larger reservation: the larger one may be used already.
        """
        key = (year, metric.name, _identify_scopes(metric))
        cost = _compute_cost_of_year(metric, year)
        if self.nats.get(key, -1.0) >= cost:
            return self
        return Reservations({**self.nats, key: cost}, self.lost)

    def to_plain(self) -> dict[str, Any]:
        """Return the reservations as an object for JSON."""
        rows = [[*key, nats] for key, nats in sorted(self.nats.items())]
        return {"reserved": rows, "lost": None if self.lost is None else list(self.lost)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read reservations that `to_plain` has written.

        Raises LookupError, TypeError or ValueError for another object.
        """
        nats = {
            (int(year), str(name), str(scopes)): float(reserved)
            for year, name, scopes, reserved in plain["reserved"]
        }
        if not all(reserved >= 0 for reserved in nats.values()):
            raise ValueError("reserved")
        if (lost := plain["lost"]) is None:
            return cls(nats)
        year, is_for_life, is_over = lost
        return cls(nats, LostYear(int(year), bool(is_for_life), bool(is_over)))

    def _find_forgotten(self, metrics: Iterable[Metric], year: int) -> set[str]:
        """Return the names of the metrics that are skipped because reservations are lost."""
        if self.lost is None:
            return set()
        lost = self.lost.advance_to(year)
        is_over = year > lost.year
        return {
            metric.name
            for metric in metrics
            if not is_over or (lost.is_for_life and metric.epoch == _LIFE)
        }

    def _sum_by_scopes(self, wanted_year: int | None) -> dict[ScopesOfMetric, float]:
        """Return the reserved nats by metric and scopes, of one year or (None) of all years."""
        sums: dict[ScopesOfMetric, float] = {}
        for (year, name, scopes), nats in self.nats.items():
            if wanted_year in (None, year):
                before = sums.get((name, scopes), 0.0)
                # A metric for life reserves the cost of its one scope in every year anew, so the
                # sum over years would count the scope several times.
                is_for_life = scopes.startswith(f"{_LIFE} ")
                sums[name, scopes] = max(before, nats) if is_for_life else before + nats
        return sums


def _find_without_room(
    reserved: Mapping[str, float],
    missing: Mapping[str, float],
    *,
    limit: float,
    total_reserved: float,
) -> set[str]:
    """Return the names of the metrics that do not fit under a limit.

    Parameters
    ----------
    reserved
        Nats that each metric of the registry has reserved, in the registry's order.
    missing
        Nats that each metric needs beyond its reservation.
    limit
        Largest number of nats.
    total_reserved
        Reserved nats of all metrics, also of metrics that are not in the registry.
    """
    if limit == math.inf:
        return set()
    without_room = set()
    # Round 1: reservations of other registries and identities cannot be undone, so the metrics of
    # this registry share the rest.
    room = limit - (total_reserved - sum(reserved.values()))
    for name, nats in reserved.items():
        if not nats <= room + _TOLERANCE:
            without_room.add(name)
        else:
            room -= nats
    # Round 2: all reservations count here, also those of metrics without room. Their nats may be
    # used already.
    room = limit - total_reserved
    for name, nats in missing.items():
        if not (nats == 0 or nats <= room + _TOLERANCE):
            without_room.add(name)
        elif name not in without_room:
            room -= nats
    return without_room


def _subtract(needed: float, reserved: float) -> float:
    """Return the nats that are needed beyond the reserved nats, at least 0.

    Both may be infinite, and infinity minus infinity is no number.
    """
    return needed - reserved if needed > reserved else 0.0


@functools.lru_cache(maxsize=256)
def _compute_cost_of_year(metric: Metric, year: int) -> float:
    """Return the costs of all scopes of a metric that touch a calendar year, in nats."""
    return reserve(metric, year=year).total


_identify_scopes = functools.lru_cache(maxsize=256)(scope_identity)
