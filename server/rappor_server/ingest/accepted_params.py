"""Which reports are known here: the registry, and older ones whose reports are still taken."""

from __future__ import annotations

from collections.abc import Sequence

from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


class Known:
    """Metrics by name and fingerprint; the first registry is the current one."""

    def __init__(
        self, current: Registry, older: Sequence[Registry] = (), *, text: str = ""
    ) -> None:
        """Take the current registry and its text, and older ones for clients that lag behind."""
        self.registry = current
        self.text = text
        self._metrics: dict[tuple[str, str], Metric] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                if name in current:  # what was removed is not taken any more
                    self._metrics[name, metric.fingerprint] = metric

    def metric(self, name: str, fingerprint: str) -> Metric | None:
        """Return a metric under the parameters that a report names, None if it is unknown."""
        return self._metrics.get((name, fingerprint))

    def params(self, name: str) -> list[Params]:
        """Return all parameter sets that are taken for a metric."""
        return [metric.params for (known, _), metric in self._metrics.items() if known == name]
