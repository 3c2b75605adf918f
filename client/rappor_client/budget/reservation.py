"""Reservations: the parts of a year's privacy budget that the metrics of a device may use.

The budget is a number of nats (the unit of privacy loss) for a calendar year. With its first report
of the year, a metric reserves the costs of all its scopes of which at least one day is in the year.
So a metric never runs out of budget in the middle of a year.

Scope: one metric in one epoch under one permanent fingerprint, on one device. The permanent
fingerprint is a hash of the parameters that determine the permanent response, which is the noisy
value that a device draws once for a scope and repeats in all its reports.

Example: a metric with `epoch = "quarter"` and a cost of 4 nats has four scopes in a year, so it
reserves 16 nats.

Registry and calendar alone determine how many nats a metric reserves. A metric that does not fit is
skipped for the whole year. The skip reveals nothing about values, because no value has decided it.

Which metrics fit is decided in two rounds over the registry, in its order:

    1. Each metric that has reserved before keeps its reservation if the reservation still fits.
       Otherwise the metric is skipped, for example because the host has lowered the budget cap.
    2. Each metric that needs more nats than it has reserved gets the missing nats if they still
       fit. A later metric may fit where an earlier metric did not.

Nats that were reserved stay reserved until the year is over. Before the first round, these
reservations are subtracted from the limit, because no metric of the registry can use them again:

- reservations of other registries that share the folder;
- reservations of the same metrics under another epoch or fingerprint, if the registry has changed;
- reservations of earlier identities in the folder. A new identity begins after consent was
  withdrawn and given again, or after the state of the device was lost.

Example: the registry has `total = 40` and the metrics A (16 nats), B (16) and C (8). The host has
lowered the total to 24 nats with `BudgetCap(total=24)`. A fits. B does not fit into the 8 nats that
are left, so B is skipped. C fits.

If the state is lost, the number of reserved nats is unknown. `LostYear` describes this case: all
metrics are skipped until the year is over, and metrics for life (`epoch = "life"`) are skipped for
good.
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
"""Value of `epoch` and of `BudgetCap.per` that stands for all years of a device."""
_TOLERANCE: Final = 1e-9
"""Nats by which a reservation may exceed the nats that are left. Costs are multiples of 0.001,
which floats do not represent exactly (3 * 0.1 > 0.3). The rounding error of a sum of costs is far
smaller than this number. A number above 0.001 would hide a real excess."""

ReservationKey = tuple[int, str, str]
"""Calendar year, name of the metric, and a text that identifies the metric's scopes.

The text (`scope_identity`) begins with the length of an epoch and continues with the permanent
fingerprints, such as "quarter 5d1f...". If a change of the registry changes the text, the device
draws other permanent responses, so the metric needs another reservation."""
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
        The calendar year. When the loss is noticed, it is the year of the clock, or the year of the
        latest time in the lost device's database if that year is later.
    is_for_life
        Whether metrics for life are skipped for good. They are skipped if a state was lost under
        consent. The state may have contained their permanent response, and a second permanent
        response would reveal more than the budget allows. They are not skipped if consent was
        withdrawn and only the number of reserved nats is unknown.
    is_over
        Whether the clock has ever shown the following year. Then `year` changes no more.
    """

    year: int
    is_for_life: bool
    is_over: bool = False

    def advance_to(self, year: int) -> LostYear:
        """Return the lost year after the clock has shown a calendar year.

        The cases:

        - The clock shows the same year or an earlier one, or the lost year is over: no change.
        - The clock shows the next year: the lost year is over.
        - The clock shows a still later year: it was wrong when the state was lost, for example
          because it starts in 1970 without a battery. The reservations were made in the year that
          the clock shows now, so that year becomes the lost year.
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
        The year whose reservations are lost, None if no state was lost.
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
        # One lost year is enough. All metrics are skipped until the latest unknown year is over,
        # so they are skipped in the earlier unknown years, too.
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
        """Return the names of the metrics that do not fit into the budget of a calendar year.

        A metric must fit under the limit of the year and under the limit of all years together.
        """
        in_year, in_life = self._sum_by_scopes(year), self._sum_by_scopes(None)
        unaffordable = self._find_skipped_after_loss(registry.values(), year)
        unaffordable |= _find_over_limit(
            registry,
            year,
            limit=limits.in_year,
            reserved=in_year,
            paid=in_year,
            paid_for_life=in_year,
        )
        # A metric for life has the same scope in all years. So under the limit of all years, the
        # reservation of an earlier year pays for this year, too. Any other metric has new scopes,
        # for which only a reservation of this year pays.
        unaffordable |= _find_over_limit(
            registry,
            year,
            limit=limits.in_life,
            reserved=in_life,
            paid=in_year,
            paid_for_life=in_life,
        )
        return frozenset(unaffordable)

    def with_metric(self, metric: Metric, year: int) -> Reservations:
        """Return the reservations after a metric has reserved its nats of a year.

        A smaller cost never replaces a larger reservation, because reports may have used the larger
        one already.
        """
        key = (year, metric.name, _identify_scopes(metric))
        cost = _compute_cost_of_year(metric, year)
        # -1 is below every cost. So a metric with the cost 0 gets an entry, too.
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

        Raises LookupError, TypeError or ValueError for an object of any other form.
        """
        nats = {
            (int(year), str(name), str(scopes)): float(reserved)
            for year, name, scopes, reserved in plain["reserved"]
        }
        # The comparison is also false for NaN.
        if not all(reserved >= 0 for reserved in nats.values()):
            raise ValueError("reserved")
        if (lost := plain["lost"]) is None:
            return cls(nats)
        year, is_for_life, is_over = lost
        return cls(nats, LostYear(int(year), bool(is_for_life), bool(is_over)))

    def _find_skipped_after_loss(self, metrics: Iterable[Metric], year: int) -> set[str]:
        """Return the names of the metrics that are skipped because reservations are lost."""
        if self.lost is None:
            return set()
        lost = self.lost.advance_to(year)
        # Not `lost.is_over`, which stays true for good. A clock that is set back may ask about the
        # lost year again, and the reservations of that year are still unknown.
        if year <= lost.year:
            return {metric.name for metric in metrics}
        if not lost.is_for_life:
            return set()
        return {metric.name for metric in metrics if metric.epoch == _LIFE}

    def _sum_by_scopes(self, wanted_year: int | None) -> dict[ScopesOfMetric, float]:
        """Return the reserved nats by metric and scopes, of one year or (None) of all years."""
        sums: dict[ScopesOfMetric, float] = {}
        for (year, name, scopes), nats in self.nats.items():
            if wanted_year in (None, year):
                before = sums.get((name, scopes), 0.0)
                # A metric for life has one scope, and reserves the cost of this scope again in
                # every year. The sum over years would count the scope several times.
                is_for_life = scopes.startswith(f"{_LIFE} ")
                sums[name, scopes] = max(before, nats) if is_for_life else before + nats
        return sums


def _find_over_limit(
    registry: Registry,
    year: int,
    *,
    limit: float,
    reserved: Mapping[ScopesOfMetric, float],
    paid: Mapping[ScopesOfMetric, float],
    paid_for_life: Mapping[ScopesOfMetric, float],
) -> set[str]:
    """Return the names of the metrics that do not fit under one limit, by the two rounds.

    Parameters
    ----------
    registry
        Metrics of the program.
    year
        The calendar year.
    limit
        Largest number of nats.
    reserved
        Reserved nats that count against the limit.
    paid
        Reserved nats that a metric needs not reserve again.
    paid_for_life
        The same for metrics for life.
    """
    reserved_by_name, missing = dict[str, float](), dict[str, float]()
    for name, metric in registry.items():
        scopes = (name, _identify_scopes(metric))
        paid_nats = (paid_for_life if metric.epoch == _LIFE else paid).get(scopes, 0.0)
        reserved_by_name[name] = reserved.get(scopes, 0.0)
        missing[name] = _subtract(_compute_cost_of_year(metric, year), paid_nats)
    total_reserved = sum(reserved.values())
    return _find_without_room(reserved_by_name, missing, limit=limit, total_reserved=total_reserved)


def _find_without_room(
    reserved: Mapping[str, float],
    missing: Mapping[str, float],
    *,
    limit: float,
    total_reserved: float,
) -> set[str]:
    """Return the names of the metrics that do not fit under a limit, by the two rounds.

    Nats may be infinite: a metric without noise has an infinite cost. Infinity minus infinity is
    NaN, and each comparison with NaN is false. The conditions below are written so that a metric
    does not fit if a comparison is false.

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
    # Round 1: the metrics of this registry share the nats that nobody else has reserved.
    # Reservations of other registries and of earlier identities cannot be undone.
    reserved_by_others = total_reserved - sum(reserved.values())
    unreserved = limit - reserved_by_others
    for name, nats in reserved.items():
        if nats <= unreserved + _TOLERANCE:
            unreserved -= nats
        else:
            without_room.add(name)
    # Round 2: all reservations are subtracted, also those of the metrics that did not fit in round
    # 1, because reports may have used their nats already.
    unreserved = limit - total_reserved
    for name, nats in missing.items():
        # A metric that needs nothing more continues, even if the host has lowered the limit and
        # `unreserved` is negative.
        is_fitting = nats == 0 or nats <= unreserved + _TOLERANCE
        if not is_fitting:
            without_room.add(name)
        elif name not in without_room:
            unreserved -= nats
    return without_room


def _subtract(needed: float, reserved: float) -> float:
    """Return the nats that are needed beyond the reserved nats, at least 0.

    If both numbers are infinite, nothing more is needed. Their difference would be NaN.
    """
    return needed - reserved if needed > reserved else 0.0


@functools.lru_cache(maxsize=256)
def _compute_cost_of_year(metric: Metric, year: int) -> float:
    """Return the sum of the costs of a metric's scopes in a calendar year, in nats."""
    return reserve(metric, year=year).total


_identify_scopes = functools.lru_cache(maxsize=256)(scope_identity)
