"""What became of a recorded value."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """What became of a value; true if a report of it, or of its interval, is safe on the disk."""

    RECORDED = "recorded"
    HELD = "held"
    """It takes part in the choice of its interval's one report."""
    INTERVAL_OVER = "interval over"
    """The interval has had its report: the clock was set back."""
    OVER_BUDGET = "over budget"
    NO_CONSENT = "no consent"
    OPTED_OUT = "opted out"
    EXPIRED = "expired"
    DISABLED = "disabled"
    """The identity is damaged and the policy is to record nothing."""
    FAILED = "failed"
    """The disk is full, read-only or locked; counted, and told in the log."""

    def __bool__(self) -> bool:
        """Tell whether the value counts."""
        return self in (Outcome.RECORDED, Outcome.HELD)
