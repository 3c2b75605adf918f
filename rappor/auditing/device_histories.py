"""Histories of simulated devices: what devices record on which day, and what a client stores.

A command represents the client under test. Each line of its standard input is one run of a program
on one device, `{"folder":..., "registry":..., "metric":..., "now":..., "events":[[time, value],
...]}`. The client opens the device at time `now` and records the values, each with its time. All
times are in seconds since 1970. The client writes one line, `{"waiting":[{"metric":...,
"params":..., "cohort":..., "bits":..., "due":...}, ...], "spent":...}`: the finished reports that
the device has not sent, oldest first, each with the earliest time at which it may be sent, and the
privacy loss in nats that the device has recorded. `due` and `spent` may be null. The command is
started anew for each day. Every third day begins with another device.

Devices are twins. The first of two twins is opened without an event, so that it draws its secret
before it receives a value. Its folder is then copied for the second twin. From then on both twins
have the same history, except for their values, and the value of the second twin changes after two
days. So everything that must not depend on the values is equal in both twins: the number of
reports, and the metrics, parts and cohorts of the reports in their order.
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

from rappor.auditing.encoder_under_test import run_command
from rappor.auditing.pairs import list_special_values
from rappor.base.errors import ReportError
from rappor.base.progress import Progress
from rappor.counts.arrays import Integers
from rappor.protocol.encodings import get_encoding
from rappor.protocol.randomizer import EXCLUDED_DAYS
from rappor.protocol.wire import decode_base64url
from rappor.registry.metric import Metric

EVENTS_TO_CHOOSE: Final = 16
"""Number of values that a device records in one interval. Each must be equally likely."""

_EVENTS_PER_DAY: Final = 2
"""Number of values that other devices record in a day. An interval still has one report."""

MANY_REPORTS: Final = 1000
"""Number of reports of a device in the test of many reports: the limit of this project's client."""

_EVENTS_PER_RUN: Final = 50
"""Number of events in one run of such a device.

A program may drop events that it cannot write in time.
"""

_MAX_LINE_BYTES: Final = 1 << 22
"""Largest number of bytes of a line: 1,000 reports of 2,040 bits take a tenth of it."""

_BEFORE_THE_END: Final = datetime.timedelta(days=1500)
"""Time before the metric expires at which a history begins. It has room for three yearly epochs."""

_STEPS: Final[Mapping[str, datetime.timedelta]] = {
    "day": datetime.timedelta(days=1),
    "week": datetime.timedelta(weeks=1),
}
"""Time between two events that are both reported, by the interval of the metric."""

_MINUTE: Final = datetime.timedelta(minutes=1)
"""Time between two events of one interval."""

_RUNS_PER_ORDER: Final = 3
"""Number of runs in a row with one order of the devices."""

_RANDOM_STRINGS: Final = 4
"""Number of random strings among the values, in addition to the special values."""

FIRST_DAY, RESTART_DAY = 0, 1

_HOURS: Final = (12, 21, 4, 23, 8, 17)
"""Hours (UTC) of the first event on the days of an epoch.

Twins record at the same time. So if a client drops the evening's events of one value, one twin of a
pair has a report less. The first three hours are at noon, in the evening and at night, because a
weekly metric has three days only.
"""


class Report(NamedTuple):
    """A finished report on a device.

    `due` is the earliest time of sending, or None if not revealed.
    """

    metric: str
    params: str
    cohort: int
    bits: bytes
    due: float | None

    @property
    def form(self) -> tuple[str, str, int, int]:
        """The properties of a report that must not depend on the value."""
        return self.metric, self.params, self.cohort, len(self.bits)


class DeviceState(NamedTuple):
    """State of a device: its finished reports, and its recorded privacy loss in nats."""

    waiting: tuple[Report, ...]
    spent: float | None


class Day(NamedTuple):
    """One day of all devices.

    `other` says which twins have another value: "", "second" or "both". `hour` is the hour (UTC) of
    the day's first event.
    """

    day: datetime.date
    epoch: int
    other: str = ""
    hour: int = 12

    @property
    def start(self) -> datetime.datetime:
        """The time of the day's first event."""
        return datetime.datetime.combine(self.day, datetime.time(self.hour), datetime.UTC)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The days of all histories, in order, and the indices of days with a special role.

    The history of a daily metric has four parts. Six days of the first epoch: from the third day
    on, each second twin records another value, which must not change its permanent response. Four
    days of the next epoch, with another value of both twins. Two days on which the clock is set
    back to the first epoch, with the value of the second epoch: a client that has forgotten the
    first epoch would make a third permanent response. A last day, which only ends the interval of
    the day before.
    """

    days: tuple[Day, ...]
    same: range
    """Indices of the days of the first epoch, before the clock is set back."""
    later: range = range(0)
    """Indices of the days of the next epoch."""
    back: range = range(0)
    """Indices of the days of the first epoch after the clock was set back."""
    is_once: bool = False
    """Whether the metric is asked once an epoch. Then a report leaves within its epoch or never."""

    def list_run_pairs(self) -> list[tuple[int, int]]:
        """Return pairs of days of the first epoch whose runs have one order of the devices.

        A client draws the coins of a day's report in the run of the day, or in the next run, which
        finishes the report. Of three runs in one order, the first two days have reports of which
        both were drawn in these three runs, whichever run draws them.
        """
        return [(day, day + 1) for day in self.same[::_RUNS_PER_ORDER] if day + 1 in self.same]

    def list_epochs(self) -> list[int]:
        """Return the epochs of all days, each once."""
        return sorted({day.epoch for day in self.days})

    def may_drop(self, day: int) -> bool:
        """Return whether a device may drop finished reports on a day, because the epoch is over."""
        is_new_epoch = day > 0 and self.days[day].epoch != self.days[day - 1].epoch
        return self.is_once and is_new_epoch

    @classmethod
    def of(cls, metric: Metric) -> Calendar:
        """Return the days for a metric. The interval of a report ends with the following day."""
        if metric.interval == "epoch":
            return cls._of_once(metric)
        is_weekly = metric.interval == "week"
        step = datetime.timedelta(days=7 if is_weekly else 1)
        # A month has four weeks: three, and one for the clock that is set back.
        n_same, n_later, n_back = (3, 2, 1) if is_weekly else (6, 4, 2)
        first = _epoch_after(metric, metric.expires - _BEFORE_THE_END)
        same = [
            Day(first + i * step, 0, "second" if i > RESTART_DAY else "", _HOURS[i])
            for i in range(n_same)
        ]
        if metric.epoch == "life":
            return cls((*same, Day(first + n_same * step, 0)), range(n_same))
        second = _epoch_after(metric, first)
        later = [Day(second + (i + 1) * step, 1, "both", _HOURS[i]) for i in range(n_later)]
        back = [Day(first + (n_same + i) * step, 0, "both", _HOURS[i]) for i in range(n_back)]
        # The last day only ends the interval of the day before, so that its report is finished.
        ending = Day(second, 1, "both")
        start_of_back = n_same + n_later
        return cls(
            (*same, *later, *back, ending),
            range(n_same),
            range(n_same, start_of_back),
            range(start_of_back, start_of_back + n_back),
        )

    @classmethod
    def _of_once(cls, metric: Metric) -> Calendar:
        """Return two days of each of two epochs: each device reports once in an epoch.

        No device draws one of the last eight days of an epoch. So every device reports of the ninth
        day from the end at the latest, if it has recorded nothing before. On the day after it the
        interval is over, and the epoch is not: a report leaves within its epoch or never. At the
        end the clock is set back to the first epoch, which has had its report.
        """
        starts = [_epoch_after(metric, metric.expires - _BEFORE_THE_END)]
        for _ in range(2):
            starts.append(_epoch_after(metric, starts[-1]))
        one, two = (start - datetime.timedelta(days=EXCLUDED_DAYS + 1) for start in starts[1:])
        next_day = datetime.timedelta(days=1)
        first = [Day(one, 0), Day(one + next_day, 0)]
        evening = _HOURS[1]
        second = [Day(two, 1, "second", evening), Day(two + next_day, 1, "second", evening)]
        back = [Day(one, 0, "both"), Day(one + next_day, 0, "both")]
        return cls((*first, *second, *back), range(1), range(2, 3), is_once=True)


def _epoch_after(metric: Metric, day: datetime.date) -> datetime.date:
    """Return the first day of the next epoch, or `day` itself for a metric without epochs."""
    later = day
    while metric.epoch != "life" and metric.epoch_at(later) == metric.epoch_at(day):
        later += datetime.timedelta(days=1)
    return later


def choose_values(metric: Metric, rng: np.random.Generator) -> list[str]:
    """Choose the values of devices as pairs: ordinary values first, then special values."""
    params = metric.params
    texts = [text for pair in get_encoding(params).most_different_pairs for text in pair]
    if get_encoding(params).is_hashed:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        texts = ["".join(rng.choice(letters, 12)) + ".com" for _ in range(_RANDOM_STRINGS)]
    special = [] if metric.complete else list_special_values(params, rng)
    texts = list(dict.fromkeys([*texts, *special]))
    return texts if len(texts) % 2 == 0 else [*texts, texts[0]]


@dataclass(frozen=True, slots=True)
class DeviceHistories:
    """Recorded values and states of twins: `values` is (devices, days)."""

    calendar: Calendar
    values: Integers
    states_by_day: Sequence[Sequence[DeviceState]]

    def list_new_reports(self, day: int, days_later: int) -> list[tuple[Report, ...]]:
        """Return, by device, the reports that are new on the day `days_later` days after `day`."""
        state_day = day + days_later
        if state_day >= len(self.states_by_day):
            return [() for _ in self.states_by_day[0]]
        states = self.states_by_day[state_day]
        # Before the first day no device has a report.
        earlier_states: Sequence[DeviceState] = [DeviceState((), None)] * len(states)
        if state_day:
            earlier_states = self.states_by_day[state_day - 1]
        may_drop = self.calendar.may_drop(state_day)
        new = []
        for later, earlier in zip(states, earlier_states, strict=True):
            n_kept = len(earlier.waiting)
            if may_drop:
                n_kept = count_kept(earlier.waiting, later.waiting)
            new.append(later.waiting[n_kept:])
        return new


def count_kept(before: Sequence[Report], now: Sequence[Report]) -> int:
    """Return the number of earlier reports that are still present, if the oldest were dropped."""
    return next(n for n in range(len(before), -1, -1) if before[len(before) - n :] == now[:n])


class RecordedReports(NamedTuple):
    """Reports of devices that choose among events or send many reports, and the recorded values.

    `values` is (devices, EVENTS_TO_CHOOSE) or (devices,). `epochs` is (MANY_REPORTS,) for devices
    that send many reports.
    """

    values: Integers
    reports: Sequence[tuple[Report, ...]]
    epochs: Integers


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """Command of a client, with the folders of its devices.

    Attributes
    ----------
    command : the command, already split into words.
    root : folder that contains the folders of all devices.
    registry : path of the registry.
    metric : the metric under audit.
    texts : values as texts. Histories refer to them by index.
    """

    command: Sequence[str]
    root: Path
    registry: str
    metric: Metric
    texts: Sequence[str]

    def run_histories(
        self, n: int, rng: np.random.Generator, progress: Progress
    ) -> DeviceHistories:
        """Run n devices, as n / 2 pairs of twins, through all days of the calendar."""
        calendar = Calendar.of(self.metric)
        first = rng.integers(0, len(self.texts), size=n)
        first[1::2] = (first[::2] + rng.integers(1, len(self.texts), size=n // 2)) % len(self.texts)
        twin = np.arange(n) % 2 == 1
        changed = {"": np.zeros(n, bool), "second": twin, "both": np.ones(n, bool)}
        values = np.stack([first ^ changed[day.other] for day in calendar.days], axis=1)
        self._open_twins([f"{number}" for number in range(n)], calendar.days[0].day)
        states = []
        for number, day in enumerate(calendar.days):
            progress("living through days", number, len(calendar.days))
            # Three days in a row have one order of the devices: a generator that restarts with the
            # process then gives each device the coins of the day before, which a check compares.
            # The next three days begin with another device: a fault of the first report of a
            # process would otherwise concern one device only.
            order = np.roll(np.arange(n), -3 * (number // _RUNS_PER_ORDER)).tolist()
            lines = [
                self._line(f"{device}", day.start, [values[device, number]] * _EVENTS_PER_DAY)
                for device in order
            ]
            state_of = dict(zip(order, self._run(lines), strict=True))
            states.append([state_of[device] for device in range(n)])
        return DeviceHistories(calendar, values, states)

    def send_many(self, n: int, rng: np.random.Generator, progress: Progress) -> RecordedReports:
        """Run n devices, as n / 2 pairs of twins, through enough intervals for 1,000 reports each.

        The result is empty if each epoch has one report: 1,000 reports would take centuries.
        """
        step = _STEPS.get(self.metric.interval)
        if step is None:
            return RecordedReports(
                np.zeros(0, dtype=np.int64), (), np.zeros(MANY_REPORTS, dtype=np.int64)
            )
        progress("sending many reports", 0, None)
        # The event of one more interval ends the last interval, so that its report is finished.
        n_events = MANY_REPORTS + 1
        first = _epoch_after(self.metric, self.metric.expires - _BEFORE_THE_END - step * n_events)
        values = (rng.integers(0, len(self.texts)) + np.arange(n)) % len(self.texts)
        names = [f"many{number}" for number in range(n)]
        self._open_twins(names, first)
        noon = _noon(first)
        lines = [
            self._line(
                name,
                noon + at * step,
                [value] * min(_EVENTS_PER_RUN, n_events - at),
                step,
            )
            for at in range(0, n_events, _EVENTS_PER_RUN)
            for name, value in zip(names, values.tolist(), strict=True)
        ]
        days = [first + i * step for i in range(MANY_REPORTS)]
        epochs = np.unique([self.metric.epoch_at(day) for day in days], return_inverse=True)[1]
        return RecordedReports(values, [state.waiting for state in self._run(lines)[-n:]], epochs)

    def _open_twins(self, names: Sequence[str], day: datetime.date) -> None:
        """Open every second device without an event, and copy its folder for its twin."""
        # At midnight: no event of the day is earlier, so that the clock does not go back.
        midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
        self._run([self._line(name, midnight, []) for name in names[::2]])
        for name, twin in zip(names[::2], names[1::2], strict=True):
            if (device_values := self.root / name).exists():
                shutil.copytree(device_values, self.root / twin)

    def choose(self, n: int, rng: np.random.Generator, progress: Progress) -> RecordedReports:
        """Record many values on each of n devices in one interval, by fair coins."""
        progress("choosing among events", 0, None)
        values = rng.integers(0, 2, size=(n, EVENTS_TO_CHOOSE))
        first, then = (day.start for day in Calendar.of(self.metric).days[:2])
        names = [f"choosing{number}" for number in range(n)]
        self._run(
            self._line(name, first, device_values)
            for name, device_values in zip(names, values.tolist(), strict=True)
        )
        answers = self._run(self._line(name, then, [0]) for name in names)
        return RecordedReports(values, [state.waiting for state in answers], values[0])

    def _line(
        self,
        name: str,
        begin: datetime.datetime,
        values: Sequence[int],
        step: datetime.timedelta = _MINUTE,
    ) -> str:
        """Format one run as a JSON line. It records values, given by index, one at each step."""
        now = begin.timestamp()
        return json.dumps(
            {
                "folder": str(self.root / name),
                "registry": self.registry,
                "metric": self.metric.name,
                "now": now,
                "events": [
                    (now + step.total_seconds() * i, self.texts[value])
                    for i, value in enumerate(values)
                ],
            }
        )

    def _run(self, lines: Iterator[str] | Sequence[str]) -> list[DeviceState]:
        answers = run_command(self.command, list(lines), max_bytes=_MAX_LINE_BYTES)
        return [_parse_state(line, self.metric.name) for line in answers]


def _noon(day: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(day, datetime.time(12), datetime.UTC)


def _parse_state(line: str, metric: str) -> DeviceState:
    try:
        document = json.loads(line)
        reports = tuple(_parse_report(entry, metric) for entry in document["waiting"])
        spent = document["spent"]
        return DeviceState(reports, None if spent is None else float(spent))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error) if isinstance(error, ReportError) else type(error).__name__
        raise ReportError(
            f"a line must be JSON with the keys waiting and spent: {reason}"
        ) from None


def _parse_report(entry: Any, metric: str) -> Report:
    cohort, due = entry["cohort"], entry.get("due")
    if type(cohort) is not int:
        raise ReportError("cohort must be an integer in a response")
    bits = decode_base64url("bits", entry["bits"])
    device_values = (str(entry.get("metric", metric)), str(entry["params"]), cohort, bits)
    return Report(*device_values, None if due is None else float(due))
