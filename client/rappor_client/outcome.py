"""What became of a recorded value."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """What became of a value.

    An outcome is true where a noisy report is safe on the disk, waiting to be sent or held for
    its interval. It speaks to the host program alone: it is never sent, and no counter that a
    collector sees depends on it.
    """

    RECORDED = "recorded"
    """A noisy report of this value waits to be sent."""
    HELD = "held"
    """A noisy report of this value takes part in the choice of its interval's one report."""
    REPEATED = "repeated"
    """A noisy report waits or is held, but it repeats an earlier value, not this one."""
    CLOSED = "closed"
    """The interval has had its report: it is a whole epoch, or the clock was set back."""
    SILENT = "silent"
    """The metric is silent on this device, whatever its values are.

    The year's budget has no room for it, the device is not in its sample, the day that it draws
    in an epoch has not come, or the collector has asked everybody to stop.
    """
    NO_CONSENT = "no consent"
    OPTED_OUT = "opted out"
    EXPIRED = "expired"
    """The last day of the metric's collection is over."""
    DISABLED = "disabled"
    """The identity is damaged and the policy is to record nothing."""
    QUEUED = "queued"
    """The report waits in memory: another process has held the database's lock for 50 ms.

    Or `record` was called in the middle of a `record`, as by a signal's handler. It is stored with
    the next one, or by the sender; it is lost if the process ends before.
    """
    FAILED = "failed"
    """Nothing is safe: the disk is full or read-only, or locked before the device has a secret.

    This is counted and logged.
    """

    def __bool__(self) -> bool:
        """Return whether a report is safe on the disk."""
        return self in (Outcome.RECORDED, Outcome.HELD, Outcome.REPEATED)
