"""Under which parameters reports are accepted: those of the registry, and of older ones."""

from __future__ import annotations

from collections.abc import Sequence

from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


class AcceptedParams:
    """The parameter sets under which each metric of the current registry is accepted.

    `registry` is the current registry and `text` the file that it was read from.
    """

    def __init__(
        self, current: Registry, older: Sequence[Registry] = (), *, text: str = ""
    ) -> None:
        """Index the current registry, and older ones for clients that lag behind it."""
        self.registry = current
        self.text = text
        self._metrics: dict[tuple[str, str], Metric] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                if name in current:  # reports of a metric that was removed are refused
                    self._metrics[name, metric.fingerprint] = metric

    def metric(self, name: str, fingerprint: str) -> Metric | None:
        """Return the metric under the parameters that a report names, None if not accepted."""
        return self._metrics.get((name, fingerprint))
