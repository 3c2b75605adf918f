"""Registry: all metrics of a program, and what they may cost a device in a calendar year."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from rappor.base.atomic_files import read_text
from rappor.base.errors import MetricError
from rappor.base.ranges import check_number
from rappor.protocol.params import Params
from rappor.registry.budget import check_budget
from rappor.registry.metric import Metric
from rappor.registry.toml_file import check_known, read_budget, read_entries, read_toml


class Registry(Mapping[str, Metric]):
    """Metrics by name, in the order of their declaration.

    `total` is the budget of a device for a calendar year (UTC), in nats; infinite if it must be.
    """

    def __init__(
        self, metrics: Iterable[Metric], *, total: float, today: datetime.date | None = None
    ) -> None:
        """Take metrics with distinct names that the total covers.

        With `today`, what has expired before its year is not counted. Raises MetricError for a
        name that is declared twice, and where the metrics do not fit.
        """
        self._metrics: dict[str, Metric] = {}
        for metric in metrics:
            if metric.name in self._metrics:
                raise MetricError(f"metric {metric.name!r} must be declared once")
            self._metrics[metric.name] = metric
        check_number("total", total, "(0, infinity]", error=MetricError)
        self.total = total
        self.reserved = check_budget(
            self._metrics.values(), total, year=None if today is None else today.year
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, today: datetime.date | None = None) -> Self:
        """Read a registry's file; FileError if it is none, MetricError for a wrong entry.

        Both name the file, because a command may read two of them.
        """
        name = os.fspath(path)
        try:
            return cls.loads(read_text(path), path=name, today=today)
        except MetricError as error:
            if str(error).startswith(name):
                raise
            raise MetricError(f"{name}: {error}") from None

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
