"""What repeated reports bring: the same devices once, as often as planned, without end.

More reports of the same devices lower the noise of their fresh coins only. Their values, and the
permanent responses that come again with each report, stay as they are until an epoch ends. The
decoder takes a device for the same one in the next epoch too, and so does this.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_integer
from rappor.planning.plans import Plan
from rappor.planning.power import predict
from rappor.protocol import loss

_ENDLESS: Final = 10**6
"""Reports a device that stand for any number: fresh coins then have a millionth of the variance."""

_A_DAY: Final = {"day": 1.0, "week": 1 / 7}
_EPOCH_DAYS: Final = {"month": 30.4375, "quarter": 91.3125, "year": 365.25}
"""Days of an epoch in the mean over years."""

_UNEVEN: Final = 1.5
"""Days by which a whole number of epochs may differ from as many of the mean length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What some reports of each device show, and lose.

    `reports_per_device` is None for any number, and the mean over devices where some send one more
    than others. `share` is the smallest share detected, None if none is; `rare_error` the standard
    error of an absent candidate, as a share; `epsilon` the loss, in nats, of a device that sends
    the most reports and keeps its value over `epochs`.
    """

    reports_per_device: float | None
    share: float | None
    rare_error: float
    epsilon: float


def compare_repeats(planned: Plan, *, epochs: int = 1, once: bool = False) -> tuple[Repeat, ...]:
    """Compare one report a device with those of a plan, and with any number of them.

    With `once` in an epoch there is no other number of reports than that of the plan.
    """
    check_integer("epochs", epochs, 1)
    question = planned.question
    devices = planned.reports / question.reports_per_device

    def repeated(each: float) -> Repeat:
        prediction = predict(
            planned.params,
            math.ceil(devices * each),
            dataclasses.replace(question, reports_per_device=each),
        )
        endless = each == _ENDLESS
        return Repeat(
            reports_per_device=None if endless else each,
            share=prediction.share,
            rare_error=prediction.rare_error,
            epsilon=_loss(planned, each, epochs=1 if each == 1 else epochs),
        )

    numbers = {1, question.reports_per_device} | (set() if once else {_ENDLESS})
    return tuple(repeated(each) for each in sorted(numbers))


def _loss(planned: Plan, each: float, *, epochs: int) -> float:
    if each == _ENDLESS:
        return epochs * planned.epsilon_inf
    return epochs * loss.epsilon_n(planned.params, math.ceil(each / epochs))


def reports_in(days: int, interval: str) -> int:
    """Return how often a device reports in some days, once in each interval.

    Raises ParamsError for a metric whose interval is "none".
    """
    check_integer("days", days, 1)
    if interval not in _A_DAY:
        raise ParamsError(f"interval must be one of {', '.join(_A_DAY)}, got {interval!r}")
    return math.ceil(days * _A_DAY[interval])


def answers_in(days: int, epoch: str) -> float:
    """Return the mean number of reports of a device that sends one in each epoch.

    The days begin with an epoch. A part of an epoch has its part of the answers: each device draws
    its day.
    """
    number = days / _EPOCH_DAYS[epoch]
    whole = max(1, round(number))
    return whole if abs(days - whole * _EPOCH_DAYS[epoch]) <= _UNEVEN else number


def epochs_in(days: int, epoch: str) -> int:
    """Return how many permanent responses of a device answer at most, as `answers_in` counts."""
    return math.ceil(answers_in(days, epoch)) if epoch in _EPOCH_DAYS else 1


def describe_once(epoch: str) -> str:
    """Say in a sentence what reporting once in an epoch is for."""
    share = answers_in(7, epoch)
    return (
        f"Each device answers once in a {epoch}, on a day that its secret draws: this is better "
        f"for answers of a {epoch}, not of a week, after which only {100 * share:.0f} % of the "
        "devices have answered."
    )
