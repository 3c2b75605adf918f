"""Registry: all metrics of a program, and what they may cost a device in a calendar year.

Two metrics may be a pair that a device answers together: categories, and what is in their `other`.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

from rappor.ground.errors import MetricError
from rappor.ground.files import read_text
from rappor.ground.ranges import check_number
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.registry.budget import check_budget
from rappor.registry.metric import Metric
from rappor.registry.other import OTHER_NAME
from rappor.registry.toml_file import check_known, read_budget, read_entries, read_toml

_SAME: Final = ("owner", "expires", "epoch", "interval", "sample", "segments")
"""What both metrics of a pair have in common, so that devices answer both at the same times, or
neither."""


class Registry(Mapping[str, Metric]):
    """Metrics by name, in the order of their declaration.

    `total` is the budget of a device for a calendar year (UTC), in nats; infinite if it must be.
    """

    def __init__(
        self, metrics: Iterable[Metric], *, total: float, today: datetime.date | None = None
    ) -> None:
        """Take metrics with distinct names that the total covers.

        With `today`, what has expired before its year is not counted. Raises MetricError for a
        name that is declared twice, for metrics that are named as a pair of `other` and are none,
        and where the metrics do not fit.
        """
        self._metrics: dict[str, Metric] = {}
        for metric in metrics:
            if metric.name in self._metrics:
                raise MetricError(f"metric {metric.name!r} must be declared once")
            self._metrics[metric.name] = metric
        self._pairs = _pair_up(self._metrics)
        check_number("total", total, "(0, infinity]", error=MetricError)
        self.total = total
        self.reserved = check_budget(
            self._metrics.values(), total, year=None if today is None else today.year
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, today: datetime.date | None = None) -> Self:
        """Read a registry's file; FileError if it is none, MetricError for a wrong entry."""
        return cls.loads(read_text(path), path=os.fspath(path), today=today)

    @classmethod
    def loads(
        cls, text: str, *, path: str = "registry", today: datetime.date | None = None
    ) -> Self:
        """Read a registry from its text; `path` is for messages."""
        document = read_toml(text, path)
        metrics = [Metric(**fields) for fields in read_entries(document, path)]
        total = read_budget(document, path)
        if total is None:
            needed = sum(each.total for each in check_budget(metrics, float("inf")))
            raise MetricError(
                f"{path}: the budget of a device for a calendar year must be written, in nats: "
                f"[budget] with total = {needed:g} or more"
            )
        return cls(metrics, total=total, today=today)

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"Registry({list(self)}, total={self.total:g})"

    def metric(self, name: str) -> Metric:
        """Return the metric, or raise MetricError with the names that come close."""
        check_known(name, self._metrics, "metric")
        return self._metrics[name]

    def together(self, name: str) -> tuple[str, ...]:
        """Return the metrics that a device answers together with one, itself among them, or alone.

        The first of them is what programs record.
        """
        return self._pairs.get(name, (name,))

    def refused_with(self, name: str) -> frozenset[str]:
        """Return what a person refuses with a metric: all that is answered together with it.

        Of what another version of the registry may have as a pair, this one may have one metric
        or none; the other one's reports may wait on the device.
        """
        pairs = [(name, f"{name}{OTHER_NAME}")]
        if name.endswith(OTHER_NAME):
            pairs.append((name.removesuffix(OTHER_NAME), name))
        strange = (pair for pair in pairs if not all(each in self for each in pair))
        return frozenset(self.together(name)).union(*strange)

    def in_segment(self, own: Mapping[str, str]) -> Registry:
        """Return the registry of a device with these public properties, which cost no budget."""
        if not any(metric.segments for metric in self.values()):
            return self
        metrics = [metric.in_segment(own) for metric in self.values()]
        return Registry(metrics, total=self.total, today=datetime.date.max)

    def lookup(self, metric: str, fingerprint: str) -> Params | None:
        """Return the parameters of a metric's reports if they have this fingerprint, else None."""
        known = self._metrics.get(metric)
        return known.accepted.get(fingerprint) if known else None


def _pair_up(metrics: Mapping[str, Metric]) -> dict[str, tuple[str, ...]]:
    """Return both names of each pair, by either name: what devices answer together.

    Raises MetricError where two metrics are named as a pair is and do not go together.
    """
    pairs: dict[str, tuple[str, ...]] = {}
    for name, second in metrics.items():
        first = metrics.get(name.removesuffix(OTHER_NAME))
        if first is None or first is second or not (first.params.other and second.params.other):
            continue
        _check_pair(first, second)
        pairs[first.name] = pairs[name] = (first.name, name)
    return pairs


def _check_pair(first: Metric, second: Metric) -> None:
    if not encoding_of(second.params).names_other_of(first.params):
        raise MetricError(
            f"metric {second.name!r} must have the categories and the normalizer of "
            f"{first.name!r}, whose other it names"
        )
    for key in _SAME:
        if getattr(first, key) != getattr(second, key):
            raise MetricError(
                f"metric {second.name!r}: {key} must be that of {first.name!r}, "
                "whose other it names"
            )
