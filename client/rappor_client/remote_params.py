"""A newer registry from the collector: taken only where it cannot weaken what was shipped.

The registry that ships with the program says what is recorded. A collector may change the
noise and the size of a metric's reports inside a cap that is fixed in the program, and may end
a metric earlier. It cannot add metrics, change what a value means, lengthen anything, or touch
how a metric is paced and memoised.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rappor.errors import ParamsError, RapporError
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.errors import UploadError
from rappor_client.periods import Clock, day_of
from rappor_client.state import fact, set_fact
from rappor_client.store import Store
from rappor_client.transport import Transport

_TEXT: Final = "offered_registry"
_DAY: Final = "offer_day"
_OK: Final = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OfferCap:
    """The most that offered parameters may lose: nats by one report, and by all of a value."""

    one: float
    ever: float

    def __post_init__(self) -> None:
        """Refuse what is no bound."""
        for name in ("one", "ever"):
            if not getattr(self, name) >= 0:
                raise ParamsError(
                    f"{name} must be a number in [0, infinity], got {getattr(self, name)!r}"
                )


class Offers:
    """Asks the collector for its registry, at most once a day, and remembers what it said."""

    def __init__(
        self, store: Store, transport: Transport, *, shipped: Registry, cap: OfferCap, clock: Clock
    ) -> None:
        """Start from what ships with the program."""
        self._store = store
        self._transport = transport
        self._shipped = shipped
        self._cap = cap
        self._clock = clock
        self.registry = shipped

    def recall(self) -> None:
        """Take up what was offered to an earlier process; sqlite3.Error where that fails."""
        with self._store.reading() as db:
            text = fact(db, _TEXT)
        if text is not None:
            self._take(text)

    def refresh(self, *, timeout: float) -> None:
        """Ask again if the day has changed; whatever cannot be taken changes nothing."""
        today = day_of(self._clock()).isoformat()
        with self._store.transaction() as db:
            if fact(db, _DAY) == today:
                return
            set_fact(db, _DAY, today)
        try:
            answer = self._transport.registry(timeout=timeout)
            text = answer.body.decode()
        except (UploadError, UnicodeDecodeError):
            return
        if answer.status == _OK and self._take(text):
            with self._store.transaction() as db:
                set_fact(db, _TEXT, text)

    def _take(self, text: str) -> bool:
        try:
            offered = Registry.loads(text, path="the collector's registry")
        except RapporError:
            return False
        self.registry = within(self._shipped, offered, self._cap)
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
    return epsilon_1(offered.params) <= cap.one and epsilon_inf(offered.params) <= cap.ever


def _meaning(params: Params) -> tuple[object, ...]:
    return params.encoding, params.categories, params.normalize, params.layout


def _changed(shipped: Metric, offered: Metric) -> Metric:
    expires = min(shipped.expires, offered.expires)
    return dataclasses.replace(shipped, params=offered.params, expires=expires)
