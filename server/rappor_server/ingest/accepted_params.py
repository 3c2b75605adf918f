"""Under which parameters reports are accepted: those of the registry, and of older ones."""

from __future__ import annotations

from collections.abc import Sequence

from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


class AcceptedParams:
    """The parameter sets under which each metric of the current registry is accepted.

    A metric with parts has a set for each of them. `registry` is the current registry and `text`
    the file that it was read from.
    """

    def __init__(
        self, current: Registry, older: Sequence[Registry] = (), *, text: str = ""
    ) -> None:
        """Index the current registry, and older ones for clients that lag behind it."""
        self.registry = current
        self.text = text
        self._accepted: dict[tuple[str, str], tuple[Metric, Params]] = {}
        for registry in (*reversed(older), current):
            for name, metric in registry.items():
                if name in current:  # reports of a metric that was removed are refused
                    for fingerprint, params in metric.accepted.items():
                        self._accepted[name, fingerprint] = metric, params

    def find(self, name: str, fingerprint: str) -> tuple[Metric, Params] | None:
        """Return the metric and the parameters that a report names, None if not accepted."""
        return self._accepted.get((name, fingerprint))
