"""A newer registry from the collector, followed only where it cannot weaken the shipped one.

The registry that ships with the program says what is recorded. A collector may change the noise
and the size of a metric's reports, inside a cap that the program fixes, and may end a metric
earlier. It cannot add metrics, change what a value means, make collection last longer, or change
a metric's interval and epoch.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rappor.errors import RapporError
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.errors import UploadError
from rappor_client.periods import day_of
from rappor_client.settings import OfferCap, Settings
from rappor_client.state import read_state, write_state
from rappor_client.store import Store

_TEXT: Final = "offered_registry"
_DAY: Final = "offer_day"
_OK: Final = 200


class Offers:
    """Asks the collector for its registry at most once a day, and remembers the answer.

    Without a cap or a transport in the settings it asks nothing and `registry` is the shipped one.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        """Start from the registry that ships with the program."""
        self._store = store
        self._settings = settings
        self.registry = settings.registry

    def recall(self) -> None:
        """Follow what an earlier process was offered; sqlite3.Error where that cannot be read."""
        if self._settings.offers is None or self._settings.transport is None:
            return
        with self._store.reading() as db:
            text = read_state(db, _TEXT)
        if text is not None:
            self._follow(text, self._settings.offers)

    def refresh(self, *, timeout: float) -> None:
        """Ask again if the day has changed; an offer that is not admitted changes nothing."""
        cap, transport = self._settings.offers, self._settings.transport
        if cap is None or transport is None:
            return
        today = day_of(self._settings.clock()).isoformat()
        with self._store.transaction() as db:
            if read_state(db, _DAY) == today:
                return
            write_state(db, _DAY, today)
        try:
            answer = transport.registry(timeout=timeout)
            text = answer.body.decode()
        except (UploadError, UnicodeDecodeError):
            return
        if answer.status == _OK and self._follow(text, cap):
            with self._store.transaction() as db:
                write_state(db, _TEXT, text)

    def _follow(self, text: str, cap: OfferCap) -> bool:
        try:
            offered = Registry.loads(text, path="the collector's registry")
            self.registry = within(self._settings.registry, offered, cap)
        except RapporError:  # no registry, or one that passes the shipped total
            return False
        return True


def within(shipped: Registry, offered: Registry, cap: OfferCap) -> Registry:
    """Return the shipped registry with those changes of the offered one that the cap admits."""
    metrics = [
        _changed(metric, offered[name]) if _admits(cap, metric, offered.get(name)) else metric
        for name, metric in shipped.items()
    ]
    return Registry(metrics, total=shipped.total)


def _admits(cap: OfferCap, shipped: Metric, offered: Metric | None) -> bool:
    if offered is None or offered.epoch != shipped.epoch:
        return False
    if _meaning(offered.params) != _meaning(shipped.params):
        return False
    params = offered.params
    return epsilon_1(params) <= cap.epsilon_1 and epsilon_inf(params) <= cap.epsilon_inf


def _meaning(params: Params) -> tuple[object, ...]:
    return params.encoding, params.categories, params.normalize, params.layout


def _changed(shipped: Metric, offered: Metric) -> Metric:
    expires = min(shipped.expires, offered.expires)
    return dataclasses.replace(shipped, params=offered.params, expires=expires)
