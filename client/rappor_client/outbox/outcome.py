"""Outcome of recording a value: recorded, skipped or failed, with the reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal


class SkipReason(enum.Enum):
    """Reason why a value is not recorded.

    An epoch is a calendar period, such as a quarter. For a metric with one report in each epoch,
    the device draws the day of its report at random from the days of the epoch.

    Examples
    --------
    >>> SkipReason.EXPIRED.value
    "the last day of the metric's collection is over"
    """

    NO_CONSENT = "there is no consent"
    OPTED_OUT = "the person refuses this metric"
    EXPIRED = "the last day of the metric's collection is over"
    NO_BUDGET = "the year's budget has no room for the metric"
    NOT_IN_SAMPLE = "the device is not in the metric's sample"
    EARLY = "the report day, which the device has drawn at random from the epoch, has not come"
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
    """Outcome of recording a value; true if the value is recorded.

    The outcome is for the host program only and is never sent. The outcome depends on the registry,
    on the date and on the files of the device. Of the value it depends on the kind only, such as
    text or number. Outcomes with the same word are equal, whatever their reason is.

    Attributes
    ----------
    word : str
        "recorded", "skipped" or "failed".

        "recorded": one report will be sent for the interval of the event, such as its day. If the
        interval has several events, the value of one of them is drawn at random, and this event
        may be chosen. If the device has drawn its permanent response earlier in the epoch, the
        report is made from this response, whatever the value is.

        "skipped": the metric is skipped on this device whatever its values are, the person has
        refused the metric, or the host has passed a wrong name or kind.

        "failed": the event is lost, with one exception. The events of a durable metric must be on
        the disk before `record` returns. If another process has the lock, the event waits in memory
        and is written later. The outcome is then "failed" with the reason `LOCKED`.
    reason : SkipReason, optional
        Reason of "skipped" and "failed". None for "recorded".

    Examples
    --------
    >>> outcome = Outcome("skipped", SkipReason.OPTED_OUT)
    >>> outcome == Outcome.SKIPPED, bool(outcome), str(outcome)
    (True, False, 'skipped: the person refuses this metric')
    """

    word: Literal["recorded", "skipped", "failed"]
    reason: SkipReason | None = field(default=None, compare=False)

    RECORDED: ClassVar[Outcome]
    SKIPPED: ClassVar[Outcome]
    FAILED: ClassVar[Outcome]

    def __bool__(self) -> bool:
        """Return whether the value is recorded."""
        return self.word == "recorded"

    def __str__(self) -> str:
        return self.word if self.reason is None else f"{self.word}: {self.reason.value}"


Outcome.RECORDED = Outcome("recorded")
Outcome.SKIPPED = Outcome("skipped")
Outcome.FAILED = Outcome("failed")

SKIPPED: Final = {reason: Outcome("skipped", reason) for reason in SkipReason}
"""The outcome "skipped" by reason. `record` takes a few microseconds, so it returns these objects
and creates none."""
FAILED: Final = {reason: Outcome("failed", reason) for reason in SkipReason}
"""The outcome "failed" by reason. `record` returns these objects and creates none."""
