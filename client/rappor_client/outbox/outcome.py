"""What became of a recorded value."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal


class Reason(enum.Enum):
    """Why nothing is kept of a value."""

    NO_CONSENT = "there is no consent"
    OPTED_OUT = "the person refuses this metric"
    EXPIRED = "the last day of the metric's collection is over"
    NO_BUDGET = "the year's budget has no room for the metric"
    NOT_IN_SAMPLE = "the device is not in the metric's sample"
    EARLY = "the day that the device draws in the epoch has not come"
    ANSWERED = "the epoch has had its report"
    STOPPED = "the collector has asked everybody to stop"
    DISABLED = "the device is disabled"
    UNKNOWN_METRIC = "the registry has no such metric"
    WRONG_KIND = "the value is not of the metric's kind"
    FULL = "too many events wait in memory"
    LOCKED = "another process has the lock; the event waits in memory"
    DISK = "the disk failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a value: KEPT, SILENT or FAILED; true if it is kept.

    KEPT: its noisy report, or the one that it repeats, is to be sent. SILENT: the metric is silent
    on this device, whatever its values are, or the person has refused. FAILED: it is lost, or not
    yet on the disk where the metric is durable. `reason` says why; outcomes are equal if only it
    differs. An outcome speaks to the host program alone: it is never sent.
    """

    word: Literal["kept", "silent", "failed"]
    reason: Reason | None = field(default=None, compare=False)

    KEPT: ClassVar[Outcome]
    SILENT: ClassVar[Outcome]
    FAILED: ClassVar[Outcome]

    def __bool__(self) -> bool:
        """Return whether the value is kept."""
        return self.word == "kept"

    def __str__(self) -> str:
        return self.word if self.reason is None else f"{self.word}: {self.reason.value}"


Outcome.KEPT = Outcome("kept")
Outcome.SILENT = Outcome("silent")
Outcome.FAILED = Outcome("failed")

SILENT: Final = {reason: Outcome("silent", reason) for reason in Reason}
FAILED: Final = {reason: Outcome("failed", reason) for reason in Reason}
