"""`Registry`: all metrics of a program, and the privacy budget of a device for a calendar year."""

from __future__ import annotations

import copy
import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from rappor.base.atomic_files import read_text
from rappor.base.errors import MetricError
from rappor.base.ranges import check_number
from rappor.protocol.params import Params
from rappor.registry.budget import check_budget, format_nats
from rappor.registry.metric import Metric
from rappor.registry.toml_file import (
    check_known,
    describe_unknown,
    read_budget,
    read_entries,
    read_texts,
    read_toml,
)


class _UnknownMetricError(KeyError):
    """Error of `registry[name]` for an unknown name. Its message contains similar names."""

    def __str__(self) -> str:
        # The message is computed when it is shown. `in` and `get` raise and discard this error, and
        # a collector calls them for every report.
        name, metric_names = self.args
        return describe_unknown(name, metric_names, "metric")


class Registry(Mapping[str, Metric]):
    """All metrics of a program, by name, in the order of their declaration.

    Parameters
    ----------
    metrics : metrics with distinct names.
    total : the privacy budget of a device for a calendar year (UTC), in nats. It may be infinite,
        and must be infinite if the loss of a metric has no limit.
    today : the present day (UTC). If it is passed, metrics reserve budget for its year only, and
        epochs after a metric's last day reserve nothing.
    program : name of the program that the metrics are about, for pages; empty if it has no name.
    installations : name of the metric whose reports the collector counts as active installations;
        None if no metric is counted. Devices ignore it.

    Attributes
    ----------
    total : the budget in nats.
    reserved : the reservation of each metric, in the order of the metrics.
    program, installations : the arguments.

    Raises
    ------
    MetricError
        A name is declared twice, the metrics reserve more than the total, or the reports of the
        metric `installations` cannot be counted.

    Examples
    --------
    >>> registry = Registry.loads('''
    ... [budget]
    ... total = 16
    ... [metrics.page]
    ... description = "Home page"
    ... owner = "web@example.org"
    ... expires = 2030-12-31
    ... encoding = "bloom"
    ... profile = "balanced"
    ... epoch = "quarter"
    ... ''')
    >>> registry["page"].epoch, registry.reserved[0].total
    ('quarter', 16.0)
    """

    def __init__(
        self,
        metrics: Iterable[Metric],
        *,
        total: float,
        today: datetime.date | None = None,
        program: str = "",
        installations: str | None = None,
    ) -> None:
        """Store the metrics, and check that the total covers them."""
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
        self.program = program
        self.installations = installations
        if installations is not None:
            self._check_installations(installations)

    def _check_installations(self, name: str) -> None:
        """Check that the metric exists, and that its reports are released in blocks."""
        # A metric that left the registry is a mistake: pages would silently show no number.
        check_known(name, self._metrics, "metric", prefix="metric of installations: ")
        # Without a minimum, the number of today's devices would grow by 1 with each report, and
        # show when each device reports.
        if not self._metrics[name].min_reports:
            raise MetricError(
                f"metric {name!r}: min_reports must be at least 1 for the metric of installations, "
                "got 0: only reports in closed blocks are counted"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, today: datetime.date | None = None) -> Self:
        """Read a registry from a TOML file.

        Parameters
        ----------
        path : path of the file.
        today : the present day (UTC), as for the constructor.

        Raises
        ------
        FileError
            The file cannot be read, or is not TOML.
        MetricError
            An entry or the budget is wrong. The message begins with the path.
        """
        return cls.loads(read_text(path), path=os.fspath(path), today=today)

    @classmethod
    def loads(cls, text: str, *, path: str = "", today: datetime.date | None = None) -> Self:
        """Read a registry from the text of a TOML file.

        Parameters
        ----------
        text : the content of the file.
        path : name of the file, with which messages begin; empty for a text without a file.
        today : the present day (UTC), as for the constructor.

        Raises
        ------
        FileError
            The text is not TOML.
        MetricError
            An entry is wrong, or the budget is missing or too small.
        """
        try:
            return cls._parse(text, path or "registry", today)
        except MetricError as error:
            # A command may read two registries, so every message names the file. Some messages
            # name it already, with the line.
            if not path or str(error).startswith((f"{path}: ", f"{path}, ")):
                raise
            raise MetricError(f"{path}: {error}") from None

    @classmethod
    def _parse(cls, text: str, path: str, today: datetime.date | None) -> Self:
        """Read a registry from a text. Messages about a single metric do not have the path."""
        document = read_toml(text, path)
        metrics = [Metric(**fields) for fields in read_entries(document, path)]
        total = read_budget(document, path)
        # A registry without a budget is refused with the smallest total that is enough.
        if total is None:
            reservations = check_budget(metrics, float("inf"))
            needed = sum(reservation.total for reservation in reservations)
            raise MetricError(
                f"{path}: the budget of a device for a calendar year must be written, in nats: "
                f"[budget] with total = {format_nats(needed)} or more"
            )
        return cls(metrics, total=total, today=today, **read_texts(document, path))

    def __getitem__(self, name: str) -> Metric:
        try:
            return self._metrics[name]
        except KeyError:
            raise _UnknownMetricError(name, tuple(self._metrics)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"Registry({list(self)}, total={self.total:g})"

    def metric(self, name: str) -> Metric:
        """Return the metric of a name.

        Raises
        ------
        MetricError
            No metric has the name. The message contains similar names.
        """
        check_known(name, self._metrics, "metric")
        return self._metrics[name]

    def in_segment(self, properties: Mapping[str, str]) -> Registry:
        """Return the registry of a device with public properties.

        The fingerprints of its metrics name the segment. Public properties cost no budget, so the
        reservations are the same, and the total is not checked again.

        Parameters
        ----------
        properties : the device's public properties, by the name of the dimension.
        """
        if not any(metric.segments for metric in self.values()):
            return self
        registry = copy.copy(self)
        registry._metrics = {name: metric.in_segment(properties) for name, metric in self.items()}
        return registry

    def lookup(self, metric: str, fingerprint: str) -> Params | None:
        """Return the parameters of a metric's reports with this fingerprint.

        Returns None for an unknown metric, and for a fingerprint that the metric's entry does not
        have.
        """
        entry = self._metrics.get(metric)
        return entry.accepted.get(fingerprint) if entry else None
