"""Lives of devices under audit: what they record on which day, and what a client answers.

A command stands for the client. Each line of its standard input is one run of a program on some
device, `{"folder":..., "registry":..., "metric":..., "now":..., "events":[[moment, value], ...]}`:
it opens the device `now` and records the values, each at a moment, all in seconds since 1970. It
answers with a line,
`{"waiting":[{"metric":..., "params":..., "cohort":..., "bits":..., "due":...}, ...], "spent":...}`:
the finished reports of the device that are not sent, the oldest first, each with the moment from
which it may leave, and the nats that the device counts. `due` and `spent` may be null. The command
is started anew for each day, and another device comes first each day.

Devices are twins. The first of two is opened without an event, so that it draws its secret before
it knows a value, and its folder is copied. From then on twins live alike, but for their values, and
the second one's value changes after two days. So whatever depends on anything but the values is
equal in both: how many reports there are, of which metrics, parts and cohorts, in which order.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rappor.auditing.pairs import special_values
from rappor.auditing.subject import run_lines
from rappor.base.errors import ReportError
from rappor.base.progress import Progress
from rappor.counts.arrays import Integers
from rappor.protocol.encodings import encoding_of
from rappor.protocol.wire import decode_base64url
from rappor.registry.metric import Metric

CHOICES: Final = 16
"""Values that a choosing device records in one interval."""

EVENTS_A_DAY: Final = 2
"""Values that the others record in a day: an interval has one report all the same."""

MANY: Final = 1000
"""Reports of a device that sends many: as many wait at most in the project's own client."""

_A_RUN: Final = 50
"""Events of a run that records many: a program may drop what it cannot write in time."""

_LONGEST: Final = 1 << 22
"""Bytes of an answer that are read: 1,000 reports of 2,040 bits take a tenth of it."""

_BEFORE_THE_END: Final = datetime.timedelta(days=1500)
"""Days before the metric ends: a year's epoch begins after them, and two more after that."""

_STEPS: Final[Mapping[str, datetime.timedelta]] = {
    "none": datetime.timedelta(minutes=1),
    "day": datetime.timedelta(days=1),
    "week": datetime.timedelta(weeks=1),
}
"""Times between two events that are both reported."""

_STRINGS: Final = 4
"""Random strings among the values, beside the special ones."""

FIRST, RESTARTED = 0, 1


class Report(NamedTuple):
    """A finished report on a device; `due` is the moment from which it may leave, if it is told."""

    metric: str
    params: str
    cohort: int
    bits: bytes
    due: float | None

    @property
    def form(self) -> tuple[str, str, int, int]:
        """What of a report may not depend on the value."""
        return self.metric, self.params, self.cohort, len(self.bits)


class Held(NamedTuple):
    """What a device answers: its finished reports, and the nats that it counts."""

    waiting: tuple[Report, ...]
    spent: float | None


class Day(NamedTuple):
    """A day of all devices; `other` days have other values, of the second twin or of both."""

    day: datetime.date
    epoch: int
    other: str = ""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The days of all lives, in their order, and the places of some of them."""

    days: tuple[Day, ...]
    same: range
    """Places of the days of the first epoch, before its clock is set back."""
    next_epoch: int | None
    back: int | None

    @classmethod
    def of(cls, metric: Metric) -> Calendar:
        """Return the days of a metric: a report's interval ends with the next of them."""
        if metric.interval == "epoch":
            return cls._of_once(metric)
        step = datetime.timedelta(days=7 if metric.interval == "week" else 1)
        n = 3 if metric.interval == "week" else 6
        first = _epoch_after(metric, metric.expires - _BEFORE_THE_END)
        same = [Day(first + i * step, 0, "second" if i > RESTARTED else "") for i in range(n)]
        if metric.epoch == "life":
            return cls((*same, Day(first + n * step, 0)), range(n), None, None)
        second = _epoch_after(metric, first)
        later = [Day(second + i * step, 1, "both") for i in (1, 2)]
        ending = Day(second, 1, "both")  # it only ends the interval before it
        return cls((*same, *later, Day(first + n * step, 0), ending), range(n), n, n + 2)

    @classmethod
    def _of_once(cls, metric: Metric) -> Calendar:
        """Return the last days of three epochs: on them each device reports once, whenever it may.

        In between the clock is set back. What is new after that is the second epoch's report.
        """
        starts = [_epoch_after(metric, metric.expires - _BEFORE_THE_END)]
        for _ in range(3):
            starts.append(_epoch_after(metric, starts[-1]))
        one, two, three = (start - datetime.timedelta(days=1) for start in starts[1:])
        days = Day(one, 0), Day(two, 1, "second"), Day(one, 1, "second"), Day(three, 2, "both")
        return cls(days, range(1), 2, None)


def _epoch_after(metric: Metric, day: datetime.date) -> datetime.date:
    """Return the first day of the next epoch; the day itself for a metric for life."""
    later = day
    while metric.epoch != "life" and metric.epoch_at(later) == metric.epoch_at(day):
        later += datetime.timedelta(days=1)
    return later


def values_of(metric: Metric, rng: np.random.Generator) -> list[str]:
    """Return the values of devices, two by two: plain ones, then those that are treated apart."""
    params = metric.params
    texts = [text for pair in encoding_of(params).contrasts for text in pair]
    if encoding_of(params).hashed:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        texts = ["".join(rng.choice(letters, 12)) + ".com" for _ in range(_STRINGS)]
    special = [] if metric.complete else special_values(params, rng)
    texts = list(dict.fromkeys([*texts, *special]))
    return texts if len(texts) % 2 == 0 else [*texts, texts[0]]


@dataclass(frozen=True, slots=True)
class Lives:
    """What twins held and answered: `values` is (devices, days), `held` is by day and device."""

    calendar: Calendar
    values: Integers
    held: Sequence[Sequence[Held]]

    def new(self, place: int, late: int) -> list[tuple[Report, ...]]:
        """Return, by device, the reports of a day, new in the answer of `late` days later."""
        at = place + late
        if at >= len(self.held):
            return [() for _ in self.held[0]]
        before = self.held[at - 1] if at else [Held((), None)] * len(self.held[0])
        return [
            now.waiting[len(then.waiting) :]
            for now, then in zip(self.held[at], before, strict=True)
        ]


class Sent(NamedTuple):
    """The reports of devices that choose or send many, and what they had recorded.

    `values` is (devices, CHOICES) or (devices,), `epochs` (MANY,) for those that send many.
    """

    values: Integers
    reports: Sequence[tuple[Report, ...]]
    epochs: Integers


@dataclass(frozen=True, slots=True)
class Program:
    """A client's command, with the folders of its devices."""

    command: Sequence[str]
    place: Path
    registry: str
    metric: Metric
    texts: Sequence[str]

    def live(self, n: int, rng: np.random.Generator, progress: Progress) -> Lives:
        """Let n devices, twins two by two, live through all days."""
        calendar = Calendar.of(self.metric)
        first = rng.integers(0, len(self.texts), size=n)
        first[1::2] = (first[::2] + rng.integers(1, len(self.texts), size=n // 2)) % len(self.texts)
        twin = np.arange(n) % 2 == 1
        changed = {"": np.zeros(n, bool), "second": twin, "both": np.ones(n, bool)}
        values = np.stack([first ^ changed[day.other] for day in calendar.days], axis=1)
        self._open_twins([f"{number}" for number in range(n)], calendar.days[0].day)
        lives = []
        for number, day in enumerate(calendar.days):
            progress("living through days", number, len(calendar.days))
            order = np.roll(np.arange(n), -3 * number).tolist()
            lines = [
                self._line(f"{each}", _noon(day.day), [values[each, number]] * EVENTS_A_DAY)
                for each in order
            ]
            answers = dict(zip(order, self._run(lines), strict=True))
            lives.append([answers[each] for each in range(n)])
        return Lives(calendar, values, lives)

    def send_many(self, n: int, rng: np.random.Generator, progress: Progress) -> Sent:
        """Let n devices, twins two by two, record a value for each of many reports.

        There are none where an epoch has one report: they would take centuries.
        """
        step = _STEPS.get(self.metric.interval)
        if step is None:
            return Sent(np.zeros(0, dtype=np.int64), (), np.zeros(MANY, dtype=np.int64))
        progress("sending many reports", 0, None)
        late = int(self.metric.interval != "none")
        span = step * (MANY + late) if late else datetime.timedelta(0)
        first = _epoch_after(self.metric, self.metric.expires - _BEFORE_THE_END - span)
        values = (rng.integers(0, len(self.texts)) + np.arange(n)) % len(self.texts)
        names = [f"many{number}" for number in range(n)]
        self._open_twins(names, first)
        noon = _noon(first)
        lines = [
            self._line(name, noon + at * step, [value] * min(_A_RUN, MANY + late - at), step)
            for at in range(0, MANY + late, _A_RUN)
            for name, value in zip(names, values.tolist(), strict=True)
        ]
        days = [first + int(late) * (i * step) for i in range(MANY)]
        epochs = np.unique([self.metric.epoch_at(day) for day in days], return_inverse=True)[1]
        return Sent(values, [held.waiting for held in self._run(lines)[-n:]], epochs)

    def _open_twins(self, names: Sequence[str], day: datetime.date) -> None:
        """Open every second device without an event, and copy its folder for the next one."""
        self._run([self._line(name, _noon(day), []) for name in names[::2]])
        for name, twin in zip(names[::2], names[1::2], strict=True):
            if (own := self.place / name).exists():
                shutil.copytree(own, self.place / twin)

    def choose(self, n: int, rng: np.random.Generator, progress: Progress) -> Sent:
        """Let n devices record many values in one interval, each one of two by a fair coin."""
        progress("choosing among events", 0, None)
        values = rng.integers(0, 2, size=(n, CHOICES))
        first, then = (_noon(day.day) for day in Calendar.of(self.metric).days[:2])
        names = [f"choosing{number}" for number in range(n)]
        self._run(
            self._line(name, first, own) for name, own in zip(names, values.tolist(), strict=True)
        )
        answers = self._run(self._line(name, then, [0]) for name in names)
        return Sent(values, [held.waiting for held in answers], values[0])

    def _line(
        self,
        name: str,
        begin: datetime.datetime,
        values: Sequence[int],
        step: datetime.timedelta = _STEPS["none"],
    ) -> str:
        """Return a run that records values by position, one at each step."""
        now = begin.timestamp()
        return json.dumps(
            {
                "folder": str(self.place / name),
                "registry": self.registry,
                "metric": self.metric.name,
                "now": now,
                "events": [
                    (now + step.total_seconds() * i, self.texts[value])
                    for i, value in enumerate(values)
                ],
            }
        )

    def _run(self, lines: Iterator[str] | Sequence[str]) -> list[Held]:
        answers = run_lines(self.command, list(lines), longest=_LONGEST)
        return [_read(line, self.metric.name) for line in answers]


def _noon(day: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(day, datetime.time(12), datetime.UTC)


def _read(line: str, metric: str) -> Held:
    try:
        document = json.loads(line)
        reports = tuple(_report(entry, metric) for entry in document["waiting"])
        spent = document["spent"]
        return Held(reports, None if spent is None else float(spent))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error) if isinstance(error, ReportError) else type(error).__name__
        raise ReportError(
            f"an answer must be JSON with the keys waiting and spent: {reason}"
        ) from None


def _report(entry: Any, metric: str) -> Report:
    cohort, due = entry["cohort"], entry.get("due")
    if type(cohort) is not int:
        raise ReportError("cohort must be an integer in an answer")
    bits = decode_base64url("bits", entry["bits"])
    own = (str(entry.get("metric", metric)), str(entry["params"]), cohort, bits)
    return Report(*own, None if due is None else float(due))
