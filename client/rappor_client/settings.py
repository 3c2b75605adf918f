"""Everything that a host program chooses for its device, checked once and passed on as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from rappor.ground.errors import ParamsError
from rappor.ground.ranges import check_choice, check_integer
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.registry import Registry
from rappor_client.network.transport import Transport
from rappor_client.periods import Clock

Policy = Literal["error", "reset", "disable"]
"""What to do about a secret that is damaged, lost or another device's."""

_MOST: Final = (1 << 63) - 1
"""The largest number that the database takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The host's own limit, in nats: it may lower the registry's total and never raises it.

    `per` says what the total is for: each calendar "year", or the whole "life" of the device, all
    years together. For life, an epoch counts in its own year and a metric without epochs once.
    """

    total: float = math.inf
    per: Literal["year", "life"] = "year"

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        _check_cap("total", self.total)
        check_choice("per", self.per, ("year", "life"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
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
class Settings:
    """What `Client.open` was called with; see there for each field.

    `registry` is the one that ships with the program. `consent` and `opted_out` are the person's
    choices at the time of opening; a metric that the registry no longer has may be among them.
    `max_delay` is in seconds; without `background` only a flush sends.
    """

    folder: Path
    registry: Registry
    transport: Transport | None
    consent: bool
    opted_out: frozenset[str]
    caps: Caps
    limits: SpoolLimits
    on_bad_identity: Policy
    max_delay: float
    background: bool
    clock: Clock
    coins: Coins

    def __post_init__(self) -> None:
        """Check what types alone do not."""
        if self.on_bad_identity not in get_args(Policy):
            raise ParamsError(
                f"on_bad_identity must be one of {', '.join(get_args(Policy))}, "
                f"got {self.on_bad_identity!r}"
            )
        if not 0 <= self.max_delay < math.inf:
            raise ParamsError(f"max_delay must be a number in [0, infinity), got {self.max_delay}")


def check_consent(consent: object) -> None:
    """Raise ParamsError for what is no answer: a text such as "no" would read as consent."""
    if not isinstance(consent, bool):
        raise ParamsError(f"consent must be True or False, got {consent!r}")


def read_names(what: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of the names that a metric can have.

    Raises ParamsError for what are no names; one text would read as letters.
    """
    if isinstance(names, str):
        raise ParamsError(f"{what} must be a collection of names, got one text")
    known = frozenset(names)
    if not all(isinstance(name, str) for name in known):
        raise ParamsError(f"{what} must be a collection of names, got something else in it")
    return frozenset(filter(METRIC_NAME.fullmatch, known))


def read_segment(own: Mapping[str, str]) -> dict[str, str]:
    """Return a device's public properties; ParamsError for what are no texts by name."""
    if not isinstance(own, Mapping) or not all(
        isinstance(each, str) for pair in own.items() for each in pair
    ):
        raise ParamsError("segment must be a mapping of names to texts")
    return dict(own)


def _check_cap(name: str, cap: object) -> None:
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap >= 0:
        raise ParamsError(f"{name} must be a number in [0, infinity], got {cap!r}")
