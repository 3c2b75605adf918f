"""More noise on the collector's wish: a step for all metrics together, the same for everybody.

The registry that ships with the program says what is recorded. A collector may only ask for more
noise in each report, by one of the protocol's few steps, and only upwards. It cannot change f or
the size of reports, add a metric or end one, or ask one metric for another step than the next:
each such choice would be a mark by which it could tell this device from others.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import sqlite3
from typing import Final

from rappor.protocol.noise_steps import STEPS, at_step
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.periods import day_of
from rappor_client.settings import Settings
from rappor_client.state import noise_step, raise_noise_step, read_state, write_state
from rappor_client.store import Store
from rappor_client.transport import Transport

_DAY: Final = "offer_day"
_OK: Final = 200
_MOST_BYTES: Final = 1 << 16
_MOST_DOTS: Final = 10
"""Of a registry, and of a line of it: no valid one has as many in a key."""
_STRING: Final = re.compile(rb'"(?:[^"\\\n]|\\.)*"?|\'[^\'\n]*\'?')
"""Of one line; a missing end hides nothing that a parser would read."""
_LONG_STRINGS: Final = (b'"""', b"'''")


class Offers:
    """Asks the collector for its registry at most once a day, and remembers the step it asks for.

    Unless the settings follow offers it asks nothing, and `registry` is the shipped one.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        """Start from the registry that ships with the program."""
        self._store = store
        self._settings = settings
        self.registry = settings.registry
        if settings.offers:  # the sender's thread imports nothing: see `forking.unforked`
            import tomllib  # noqa: F401, PLC0415

    def recall(self, db: sqlite3.Connection) -> None:
        """Follow what an earlier process was asked for."""
        if self._settings.offers:
            self._follow(noise_step(db))

    def refresh(self, *, timeout: float) -> None:
        """Ask again if the day has changed; an offer of anything but a step changes nothing."""
        transport = self._settings.transport
        if not self._settings.offers or transport is None:
            return
        today = day_of(self._settings.clock()).isoformat()
        with self._store.transaction() as db:
            if read_state(db, _DAY) == today:
                return
            write_state(db, _DAY, today)
        offered = _ask(transport, timeout)
        step = None if offered is None else step_asked_for(self._settings.registry, offered)
        if step is None:
            return
        with self._store.transaction() as db:
            step = raise_noise_step(db, step)
        self._follow(step)

    def _follow(self, step: int) -> None:
        self.registry = at_noise_step(self._settings.registry, step)


def at_noise_step(shipped: Registry, step: int) -> Registry:
    """Return the shipped registry with a step for every metric for which that is more noise."""
    metrics = [_metric_at(metric, step) for metric in shipped.values()]
    return Registry(metrics, total=shipped.total, today=datetime.date.max) if step else shipped


def step_asked_for(shipped: Registry, offered: Registry) -> int | None:
    """Return the one step that explains all the noise of an offer, None if there is none.

    Metrics with another permanent response, or unknown here, are not looked at.
    """
    pairs = [
        (metric, offered[name].params)
        for name, metric in shipped.items()
        if name in offered and _is_same_but_for_noise(metric, offered[name])
    ]
    for step in range(len(STEPS) + 1):
        if pairs and all(
            at_step(metric.params.unsegmented, step) == params for metric, params in pairs
        ):
            return step
    return None


def is_quick_to_read(body: bytes) -> bool:
    """Tell whether a parser is done with it soon: its time grows as the square of a key's dots.

    Dots in texts do not count, unless some text has several lines: then all dots do.
    """
    if len(body) > _MOST_BYTES:
        return False
    if not any(mark in body for mark in _LONG_STRINGS):
        body = _STRING.sub(b"", body)
    return all(line.count(b".") <= _MOST_DOTS for line in body.splitlines())


def _ask(transport: Transport, timeout: float) -> Registry | None:
    """Return the collector's registry, None for whatever else it, or the transport, answers."""
    try:
        answer = transport.registry(timeout=timeout)
        if answer.status != _OK or not is_quick_to_read(answer.body):
            return None
        return Registry.loads(answer.body.decode(), today=datetime.date.max)
    except Exception:  # noqa: BLE001 - of any content, through a transport of the host's own
        return None


def _metric_at(metric: Metric, step: int) -> Metric:
    return dataclasses.replace(metric, params=at_step(metric.params, step))


def _is_same_but_for_noise(shipped: Metric, offered: Metric) -> bool:
    return shipped.params.permanent_fingerprint == offered.params.permanent_fingerprint
