"""Everything that a host program chooses for its device, checked once and passed on as a whole."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice, check_integer, check_number
from rappor.protocol.randomizer import Coins, draw_system_coins
from rappor.registry.registry import Registry
from rappor_client.network.transport import Transport
from rappor_client.periods import Clock
from rappor_client.switches import switched_off

_MOST: Final = (1 << 63) - 1
"""The largest number that the database takes."""
_SWITCHES: Final = ("RAPPOR_DISABLED", "DO_NOT_TRACK", "CI")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCap:
    """The host's own limit, in nats: it may lower the registry's total and never raises it.

    `per` says what the total is for: each calendar "year", or the whole "life" of the device, all
    years together. For life, an epoch counts in its own year and a metric without epochs once.
    """

    total: float = math.inf
    per: Literal["year", "life"] = "year"

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        total: object = self.total
        if isinstance(total, bool) or not isinstance(total, int | float) or not total >= 0:
            raise ParamsError(f"total must be a number in [0, infinity], got {total!r}")
        check_choice("per", self.per, ("year", "life"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much the device keeps on its disk.

    At most `reports` reports and about `n_bytes` bytes wait to be sent; the `log` newest uploads
    are remembered for the person to see.
    """

    reports: int = 1000
    n_bytes: int = 1_000_000
    log: int = 1000

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        for name in ("reports", "n_bytes", "log"):
            check_integer(name, getattr(self, name), 1, _MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What a host program seldom chooses.

    `upload_key`: the key for sending, if the collector wants one. `budget_cap`: a lower limit than
    the registry's total. `queue_limits`: how much may wait. `segment`: public properties of this
    device by
    name, such as its version, for metrics whose entry lists them; they are sent in the clear, with
    "other" for what is not listed. `max_delay`: the longest random wait of the background sender,
    in seconds. `background`: whether there is a background sender; without it only `flush` sends.
    `raise_errors`: whether `record` raises for an unknown metric and a value of the wrong kind, as
    in
    development; else it logs them and is silent. `respect_environment`: whether `RAPPOR_DISABLED`,
    `DO_NOT_TRACK` and `CI` disable the device. `clock` and `coins` are for tests.
    """

    upload_key: str | None = None
    budget_cap: BudgetCap = BudgetCap()
    queue_limits: QueueLimits = QueueLimits()
    segment: Mapping[str, str] = field(default_factory=dict)
    max_delay: float = 900.0
    background: bool = True
    raise_errors: bool = False
    respect_environment: bool = False
    clock: Clock = time.time
    coins: Coins = draw_system_coins

    def __post_init__(self) -> None:
        """Check what types alone do not."""
        if not isinstance(self.segment, Mapping) or not all(
            isinstance(each, str) for pair in self.segment.items() for each in pair
        ):
            raise ParamsError("segment must be a mapping of names to texts")
        check_number("max_delay", self.max_delay, "[0, infinity)")

    def obstacle(self) -> str:
        """Return which of the environment's variables disables the device, in words, if any."""
        return switched_off(_SWITCHES) if self.respect_environment else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `Client.open` was called with; see there for each field.

    `registry` is the one that ships with the program. `consent` and `opted_out` are the person's
    choices at the time of opening; a metric that the registry no longer has may be among them.
    """

    folder: Path
    registry: Registry
    transport: Transport | None
    opted_out: frozenset[str]
    options: ClientOptions


def check_consent(consent: object) -> None:
    """Raise ParamsError for what is no answer: a text such as "no" would read as consent."""
    if not isinstance(consent, bool):
        raise ParamsError(f"consent must be True or False, got {consent!r}")


def read_names(what: str, names: Iterable[str]) -> frozenset[str]:
    """Return a set of names; ParamsError for a text, which would be read as its letters."""
    if isinstance(names, str):
        raise ParamsError(f"{what} must be a collection of names, got one text")
    known = frozenset(names)
    if not all(isinstance(name, str) for name in known):
        raise ParamsError(f"{what} must be a collection of names, got something else in it")
    return known
