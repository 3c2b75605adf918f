"""Options of a host program for its device, checked once when the client opens.

    ClientOptions   everything that a program seldom chooses; a public record
    BudgetCap       its limit on the privacy budget
    QueueLimits     its limits on the disk
    Settings        all arguments of `Client.open`, after their checks, for the client's own modules

A wrong option is a mistake of the host program, so it raises ParamsError at once. A wrong option
that only fails later, in a background thread, would be found by nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice, check_integer, check_number
from rappor.protocol.randomizer import draw_system_coins
from rappor.protocol.responses.response import Coins
from rappor.registry.registry import Registry
from rappor_client.network.transport import Transport
from rappor_client.periods import Clock
from rappor_client.switches import find_disabling_variable

_MAX_INTEGER: Final = (1 << 63) - 1
"""Largest integer that SQLite stores."""
_DISABLING_VARIABLES: Final = ("RAPPOR_DISABLED", "DO_NOT_TRACK", "CI")
"""Lists the environment variables that `respect_environment` obeys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCap:
    """A limit of the host program on the privacy budget of a device.

    A cap may lower the total of the registry. It never raises the total.

    Parameters
    ----------
    total : float, default infinity
        Largest number of nats that the device may reserve.
    per : {"year", "life"}, default "year"
        Time that the total is for: each calendar year, or all years together. Under "life" each
        epoch counts in its own year, and a metric for life counts once.

    Raises
    ------
    ParamsError
        An argument is outside its range.

    Examples
    --------
    >>> BudgetCap(total=16.0)
    BudgetCap(total=16.0, per='year')
    """

    total: float = math.inf
    per: Literal["year", "life"] = "year"

    def __post_init__(self) -> None:
        # `not total >= 0` also refuses a NaN, which would let every metric fit.
        total: object = self.total
        if isinstance(total, bool) or not isinstance(total, int | float) or not total >= 0:
            raise ParamsError(f"total must be a number in [0, infinity], got {total!r}")
        check_choice("per", self.per, ("year", "life"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits on the reports and uploads that a device keeps on its disk.

    Beyond a limit the oldest entries are dropped. Dropped reports are counted (`dropped_full`).

    Parameters
    ----------
    reports : int, default 1000
        Largest number of reports that wait for their first attempt.
    n_bytes : int, default 1,000,000
        Largest size of these reports, in bytes.
    log : int, default 1000
        Largest number of finished uploads that stay for the person to see.

    Raises
    ------
    ParamsError
        An argument is not an integer of at least 1.

    Examples
    --------
    >>> QueueLimits(reports=50).log
    1000
    """

    reports: int = 1000
    n_bytes: int = 1_000_000
    log: int = 1000

    def __post_init__(self) -> None:
        for name in ("reports", "n_bytes", "log"):
            check_integer(name, getattr(self, name), 1, _MAX_INTEGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options that a host program seldom chooses.

    Parameters
    ----------
    upload_key : str, optional
        The key for sending, if the collector requires one. The text of these options (`repr`)
        omits it.
    budget_cap : BudgetCap
        A smaller budget than the total of the registry. The default lowers nothing.
    queue_limits : QueueLimits
        Limits on the reports that wait on the disk.
    segment : mapping of str to str
        Public properties of this device by name, such as its version. A report contains the
        properties that its metric lists, without noise, and "other" for a value that the metric
        does not list.
    max_delay : float, default 900.0
        Longest random delay of the background sender before an upload, in seconds. The delay hides
        the time of the event.
    background : bool, default True
        Whether a background thread sends. Without it, only `flush` sends.
    raise_errors : bool, default False
        Whether `record` raises for an unknown metric and for a value of the wrong kind, as
        developers want. Otherwise the mistake is logged and the value is skipped.
    respect_environment : bool, default False
        Whether the environment variables `RAPPOR_DISABLED`, `DO_NOT_TRACK` and `CI` disable the
        device.
    clock : callable
        Returns seconds since 1970. Tests pass another clock than the system's.
    coins : callable
        Source of the coins. Tests pass fixed coins; any other use of fixed coins ends the privacy
        guarantee.

    Raises
    ------
    ParamsError
        `segment` or `max_delay` is wrong.

    Examples
    --------
    >>> options = ClientOptions(background=False, segment={"version": "2"})
    >>> options.max_delay
    900.0
    """

    # Frames of the host hold these options, and tools that report errors print them.
    upload_key: str | None = field(default=None, repr=False)
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
        if not isinstance(self.segment, Mapping) or not all(
            isinstance(text, str) for pair in self.segment.items() for text in pair
        ):
            raise ParamsError("segment must be a mapping of names to texts")
        check_number("max_delay", self.max_delay, "[0, infinity)")

    def find_obstacle(self) -> str:
        """Return why the environment disables the device, as a clause; empty if it does not."""
        return find_disabling_variable(_DISABLING_VARIABLES) if self.respect_environment else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked arguments of `Client.open`.

    Attributes
    ----------
    folder
        Folder of the host program, as an absolute path.
    registry
        Metrics of the program, in the segment of this device.
    transport
        Carrier of the uploads; None for a local device, which never sends.
    opted_out
        Names of the metrics that the person refuses, at the time of opening. A name may belong to a
        metric that the registry no longer has.
    options
        All further options.
    """

    folder: Path
    registry: Registry
    transport: Transport | None
    opted_out: frozenset[str]
    options: ClientOptions


def check_consent(consent: object) -> None:
    """Raise ParamsError for anything but True and False.

    A text such as "no" is true in Python, and would count as consent.
    """
    if not isinstance(consent, bool):
        raise ParamsError(f"consent must be True or False, got {consent!r}")


def check_names(argument: str, names: Iterable[str]) -> frozenset[str]:
    """Return a collection of names as a set; `argument` is the subject of the error's message.

    Raises ParamsError for anything but texts in the collection, and for a single text, which Python
    would read as the collection of its letters.
    """
    if isinstance(names, str):
        raise ParamsError(f"{argument} must be a collection of names, got one text")
    checked = frozenset(names)
    if not all(isinstance(name, str) for name in checked):
        raise ParamsError(f"{argument} must be a collection of names, got something else in it")
    return checked
