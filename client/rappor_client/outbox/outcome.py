"""What became of a recorded value."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal


class SkipReason(enum.Enum):
    """Why nothing is kept of a value."""

    NO_CONSENT = "there is no consent"
    OPTED_OUT = "the person refuses this metric"
    EXPIRED = "the last day of the metric's collection is over"
    NO_BUDGET = "the year's budget has no room for the metric"
    NOT_IN_SAMPLE = "the device is not in the metric's sample"
    EARLY = "the day that the device draws in the epoch has not come"
    LATE = "the epoch ends before a report could leave"
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
    """What became of a value: RECORDED, SKIPPED or FAILED; true if it is recorded.

    RECORDED: its noisy report, or the one that it repeats, is to be sent. SKIPPED: the metric is
    skipped
    on this device, whatever its values are, or the person has refused. FAILED: it is lost, or not
    yet on the disk where the metric is durable. `reason` says why; outcomes are equal if only it
    differs. An outcome speaks to the host program alone: it is never sent.
    """

    word: Literal["recorded", "skipped", "failed"]
    reason: SkipReason | None = field(default=None, compare=False)

    RECORDED: ClassVar[Outcome]
    SKIPPED: ClassVar[Outcome]
    FAILED: ClassVar[Outcome]

    def __bool__(self) -> bool:
        """Return whether the value is kept."""
        return self.word == "recorded"

    def __str__(self) -> str:
        return self.word if self.reason is None else f"{self.word}: {self.reason.value}"


Outcome.RECORDED = Outcome("recorded")
Outcome.SKIPPED = Outcome("skipped")
Outcome.FAILED = Outcome("failed")

SKIPPED: Final = {reason: Outcome("skipped", reason) for reason in SkipReason}
FAILED: Final = {reason: Outcome("failed", reason) for reason in SkipReason}
