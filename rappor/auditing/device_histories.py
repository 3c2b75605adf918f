"""Histories of simulated devices: the runs of a client under test, and the reports that it makes.

The input is a command that represents the client, and the metric under audit. The output is the
states of simulated devices on each day, for `rappor.auditing.device`, which compares them with a
correct client. This module has no check.

*The command.* Each line of its standard input is one run of a program on one device:

    {"folder":..., "registry":..., "metric":..., "now":..., "events":[[time, value], ...]}

The client opens the device in `folder` at time `now` and records the values, each with its time.
All times are in seconds since 1970. The client writes one line for each run:

    {"waiting":[{"metric":..., "params":..., "cohort":..., "bits":..., "due":...}, ...],
     "spent":...}

`waiting` has the finished reports that the device has not sent, oldest first, each with the
earliest time at which it may be sent (`due`). A report is finished when its interval is over.
`spent` is the privacy loss in nats that the device has recorded. `due` and `spent` may be null. The
command is started anew for each day.

*Twins.* Devices come in pairs: device 2i and device 2i + 1 are twins. The first twin is opened
without an event, so that it draws its secret before it receives a value. Its folder is then copied
for the second twin. From then on both twins have the same history, except for their values, and the
value of the second twin changes after two days. So everything that must not depend on the values is
equal in both twins: the number of reports, and the metrics, parts and cohorts of the reports in
their order. One difference is a fault, without any statistics.

*Four groups of devices* take part:

    group                   method          history
    devices with a history  run_histories   up to 13 days in two epochs, with a clock set back
    choosing devices        record_choices  16 events in one interval, of which one is reported
    sending devices         send_many       1,000 intervals, hence 1,000 reports
    copied devices          copy            one value in two epochs, and a copy of the device

Devices with a history and sending devices are twins. Choosing devices are not. The clock is set
back to find a client that forgets an epoch and then draws a second permanent response for it.

Copied devices exist only for metrics with generalized randomized response, whose reports name one
bucket. There the secret and the value determine the report completely, so a device and its copy
must make the same report.
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

from rappor.auditing.device_calendar import (
    BEFORE_THE_END,
    RUNS_PER_ORDER,
    Calendar,
    Day,
    find_next_epoch,
)
from rappor.auditing.encoder_under_test import run_command
from rappor.auditing.pairs import list_special_values, repeat_in_fields, split_items
from rappor.base.errors import ReportError
from rappor.base.progress import Progress
from rappor.counts.arrays import Integers
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.protocol.wire import decode_base64url
from rappor.registry.metric import Metric

EVENTS_TO_CHOOSE: Final = 16
"""Number of events that a choosing device records in one interval.

A correct client reports each event with probability 1 / 16. With more events, a client that always
takes the first or the last event differs more clearly from a correct client.
"""

_EVENTS_PER_DAY: Final = 2
"""Number of events that a device with a history records in a day.

With a single event, the audit would not find a client that makes a report of every event instead of
a report of every interval.
"""

MANY_REPORTS: Final = 1000
"""Number of reports that a sending device makes.

This project's client queues at most 1,000 finished reports, and the audit sends none. Faults after
more reports are missed.
"""

_EVENTS_PER_RUN: Final = 50
"""Number of events in one run of a sending device.

A client may drop events of a run that come faster than it can write them, so 1,000 events are not
recorded in one run.
"""

_MAX_LINE_BYTES: Final = 1 << 22
"""Largest number of bytes of a line of the client's output.

1,000 reports of 2,040 bits take a tenth of this number. A larger limit would let a faulty command
fill the memory.
"""

_STEPS: Final[Mapping[str, datetime.timedelta]] = {
    "day": datetime.timedelta(days=1),
    "week": datetime.timedelta(weeks=1),
}
"""Time between two events that are both reported, by the interval of the metric."""

_MINUTE: Final = datetime.timedelta(minutes=1)
"""Two events of one run are a minute apart, except in the runs of sending devices."""

_RANDOM_STRINGS: Final = 4
"""Number of random strings among the values of a string metric, beside the special values.

More values leave fewer devices for each value.
"""


_CUT_FACTOR: Final = 3
"""Number of items of the largest set, as a multiple of n, the number of items in a report.

A device must cut a larger set to n items, and must choose them at random: here a third of the
items. A faulty client keeps the first n items. Its reports then contain only the first third of the
items, and `rappor.auditing.bucket_reports` counts how often this third is reported.
"""

_SHORTEST_ITEM, _LONGEST_ITEM = 4, 40
"""Smallest and largest number of letters of an item. The lengths differ, so that the audit finds a
client that keeps the shortest or the longest items of a set."""


class Report(NamedTuple):
    """A finished report on a device.

    `params` is the fingerprint of the report's parameters, `bits` are packed bytes. `send_after` is
    the earliest time of sending in seconds since 1970, or None if the client does not reveal it.
    """

    metric: str
    params: str
    cohort: int
    bits: bytes
    send_after: float | None

    @property
    def form(self) -> tuple[str, str, int, int]:
        """Metric, parameters, cohort and length: the properties that must not depend on values."""
        return self.metric, self.params, self.cohort, len(self.bits)


class DeviceState(NamedTuple):
    """State of a device after a run: its finished reports, oldest first, and its privacy loss.

    `spent` is the loss in nats that the client has recorded, or None if it does not reveal it.
    """

    finished_reports: tuple[Report, ...]
    spent: float | None


def choose_values(metric: Metric, rng: np.random.Generator) -> list[str]:
    """Choose the values of devices, an even number of texts.

    Texts 2i and 2i + 1 are a pair, the values between which a device changes. Ordinary values come
    first, then special values such as the empty text.
    """
    params = metric.params
    if get_encoding(params).supports_items:
        return _choose_sets(params, rng)
    texts = [text for pair in get_encoding(params).most_different_pairs for text in pair]
    if get_encoding(params).is_hashed:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        names = ["".join(rng.choice(letters, 12)) + ".com" for _ in range(_RANDOM_STRINGS)]
        texts = [repeat_in_fields(params, name) for name in names]
    # Devices of a complete metric have only the listed values, so no other value is recorded.
    special = [] if metric.complete else list_special_values(params, rng)
    texts = list(dict.fromkeys([*texts, *special]))
    return texts if len(texts) % 2 == 0 else [*texts, texts[0]]


def _choose_sets(params: Params, rng: np.random.Generator) -> list[str]:
    """Choose six sets, as texts. n is `items`, the number of items in a report.

    The sets have n, n, 0, 3 n, 1 and n / 2 items: two full sets, the empty set, a set that a device
    cuts to n items, and two sets that a device pads. The order of the items is random. No item is
    in two sets.
    """
    n = params.items
    sizes = n, n, 0, _CUT_FACTOR * n, 1, max(1, n // 2)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    sets = []
    for size in sizes:
        lengths = rng.integers(_SHORTEST_ITEM, _LONGEST_ITEM + 1, size=size)
        # Every item is a domain. Some normalizers keep only the domain of a text, and would make
        # other distinct texts equal.
        items = ["".join(rng.choice(letters, length)) + ".com" for length in lengths]
        sets.append("\t".join(items))
    return sets


def respell_set(params: Params, text: str) -> str:
    """Return a set in another spelling: its items in reversed order, one twice, and an empty item.

    Both spellings are the same set, so a correct client makes the same report of both. Returns the
    text itself if values are not sets.
    """
    items = split_items(params, text)
    return "\t".join([*reversed(items), *items[:1], ""]) if items else text


@dataclass(frozen=True, slots=True)
class DeviceHistories:
    """Recorded values and states of all devices with a history.

    Attributes
    ----------
    calendar : the days.
    values : (devices, days) int64. Index of the value that each device records on each day.
    states_by_day : the state of each device after the run of each day, as [day][device].
    """

    calendar: Calendar
    values: Integers
    states_by_day: Sequence[Sequence[DeviceState]]

    def list_new_reports(self, day: int, days_later: int) -> list[tuple[Report, ...]]:
        """Return, by device, the reports that are new after the run `days_later` days after `day`.

        With `days_later` = 1 these are the reports of the events of `day`, because the next run
        finishes them. Days are indices of the calendar.
        """
        state_day = day + days_later
        if state_day >= len(self.states_by_day):
            return [() for _ in self.states_by_day[0]]
        states = self.states_by_day[state_day]
        # Before the first day no device has a report.
        earlier_states: Sequence[DeviceState] = [DeviceState((), None)] * len(states)
        if state_day:
            earlier_states = self.states_by_day[state_day - 1]
        # A client may drop finished reports when a new epoch begins, if the metric has one report
        # for each epoch.
        may_drop = self.calendar.may_drop(state_day)
        new_reports = []
        for later, earlier in zip(states, earlier_states, strict=True):
            # A device appends reports, so the reports after the earlier reports are new.
            n_kept = len(earlier.finished_reports)
            if may_drop:
                n_kept = count_kept(earlier.finished_reports, later.finished_reports)
            new_reports.append(later.finished_reports[n_kept:])
        return new_reports


def count_kept(before: Sequence[Report], now: Sequence[Report]) -> int:
    """Return the number of earlier reports that are still present, if the oldest were dropped.

    The kept reports are the last reports of `before` and the first reports of `now`. The result is
    the largest number n for which these are equal. *Example.* Before: A, B, C. Now: B, C, D. The
    last two reports of before are the first two of now, so two reports were kept.
    """
    return next(n for n in range(len(before), -1, -1) if before[len(before) - n :] == now[:n])


class RecordedReports(NamedTuple):
    """Reports of choosing devices or of sending devices, and the values that they recorded.

    `values` has indices of values: (devices, EVENTS_TO_CHOOSE) for choosing devices, (devices,) for
    sending devices. `reports` has the reports of each device, oldest first. `epochs` is the index
    of the epoch of each report of a sending device: (MANY_REPORTS,). It is empty for choosing
    devices, which have only one report.
    """

    values: Integers
    reports: Sequence[tuple[Report, ...]]
    epochs: Integers


class CopiedReports(NamedTuple):
    """Reports of the copied devices, and of their copies.

    `values` is (pairs,), the index of the value that device and copy record. `of_devices` and
    `of_copies` have the reports of each in the first epoch, oldest first. `in_next_epoch` has the
    further reports of the devices in the next epoch.
    """

    values: Integers
    of_devices: Sequence[tuple[Report, ...]]
    of_copies: Sequence[tuple[Report, ...]]
    in_next_epoch: Sequence[tuple[Report, ...]]


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
        # The index of the value of a second twin is a random nonzero distance (modulo the number of
        # values) from the index of the first twin. So twins have different values.
        first = rng.integers(0, len(self.texts), size=n)
        first[1::2] = (first[::2] + rng.integers(1, len(self.texts), size=n // 2)) % len(self.texts)
        is_second_twin = np.arange(n) % 2 == 1
        is_changed = {"": np.zeros(n, bool), "second": is_second_twin, "both": np.ones(n, bool)}
        # Texts 2i and 2i + 1 are a pair (`choose_values`), so an index with its lowest bit flipped
        # is the other value of the pair.
        values = np.stack([first ^ is_changed[day.changed_twins] for day in calendar.days], axis=1)
        self._open_twins([f"{number}" for number in range(n)], calendar.days[0].day)
        states = []
        for number, day in enumerate(calendar.days):
            progress("living through days", number, len(calendar.days))
            # Three days in a row have one order of the devices. A faulty client may seed its
            # generator equally in every process. In the same order, each device then has the same
            # coins on both days, which a check finds. The order of the next three days begins three
            # devices later, so that another device is the first of its process. Otherwise a fault
            # of the first report of each process would affect one device only.
            order = np.roll(np.arange(n), -3 * (number // RUNS_PER_ORDER)).tolist()
            lines = [
                self._format_run(f"{device}", day.start, [values[device, number]] * _EVENTS_PER_DAY)
                for device in order
            ]
            state_of = dict(zip(order, self._run(lines), strict=True))
            states.append([state_of[device] for device in range(n)])
        return DeviceHistories(calendar, values, states)

    def send_many(self, n: int, rng: np.random.Generator, progress: Progress) -> RecordedReports:
        """Run n devices, as n / 2 pairs of twins, through enough intervals for 1,000 reports each.

        Each device records the same value all the time. The result is empty if the metric has one
        report for each epoch. An epoch has at least a month, so 1,000 reports would take 83 years.
        """
        step = _STEPS.get(self.metric.interval)
        if step is None:
            return RecordedReports(
                np.zeros(0, dtype=np.int64), (), np.zeros(MANY_REPORTS, dtype=np.int64)
            )
        progress("sending many reports", 0, None)
        # A report is finished when the device records an event in a later interval. So 1,000
        # reports need events in 1,001 intervals.
        n_events = MANY_REPORTS + 1
        first = find_next_epoch(self.metric, self.metric.expires - BEFORE_THE_END - step * n_events)
        # Consecutive values, from a random first one, so that twins have different values.
        values = (rng.integers(0, len(self.texts)) + np.arange(n)) % len(self.texts)
        names = [f"many{number}" for number in range(n)]
        self._open_twins(names, first)
        noon = _find_noon(first)
        lines = [
            self._format_run(
                name,
                noon + start * step,
                [value] * min(_EVENTS_PER_RUN, n_events - start),
                step,
            )
            for start in range(0, n_events, _EVENTS_PER_RUN)
            for name, value in zip(names, values.tolist(), strict=True)
        ]
        # The last run of each device returns all its reports, because none was sent. So the earlier
        # runs, which return a report up to twenty times, are not parsed.
        states = self._run(lines, n_last=n)
        days = [first + i * step for i in range(MANY_REPORTS)]
        epochs = np.unique([self.metric.epoch_at(day) for day in days], return_inverse=True)[1]
        return RecordedReports(values, [state.finished_reports for state in states], epochs)

    def _open_twins(self, names: Sequence[str], day: datetime.date) -> None:
        """Open every second device without an event, and copy its folder for its twin."""
        # The devices are opened at midnight, before all events of the day, so that their clock does
        # not go back.
        midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
        self._run([self._format_run(name, midnight, []) for name in names[::2]])
        for name, twin in zip(names[::2], names[1::2], strict=True):
            # A client may create its folder only with the first event. Then there is no secret to
            # copy, and the twins differ, which the checks report.
            if (folder := self.root / name).exists():
                shutil.copytree(folder, self.root / twin)

    def record_choices(
        self, n: int, rng: np.random.Generator, progress: Progress
    ) -> RecordedReports:
        """Record 16 events on each of n devices in one interval, of value 0 or 1 by fair coins.

        A second run on the next day ends the interval, so that the one report is finished. Its
        event belongs to the next interval, so its value does not matter.
        """
        progress("choosing among events", 0, None)
        values = rng.integers(0, 2, size=(n, EVENTS_TO_CHOOSE))
        first_start, next_start = (day.start for day in Calendar.of(self.metric).days[:2])
        names = [f"choosing{number}" for number in range(n)]
        self._run(
            self._format_run(name, first_start, device_values)
            for name, device_values in zip(names, values.tolist(), strict=True)
        )
        states = self._run(self._format_run(name, next_start, [0]) for name in names)
        no_epochs = np.zeros(0, dtype=np.int64)
        return RecordedReports(values, [state.finished_reports for state in states], no_epochs)

    def copy(self, n: int, progress: Progress) -> CopiedReports:
        """Record one value on each of n devices, and in another spelling on a copy of the device.

        The values take turns, so that each is recorded equally often. A second run on the next day
        ends the interval, so that the report is finished. The devices, without their copies, then
        record the value in the next epoch.
        """
        progress("copying devices", 0, None)
        days = Calendar.of(self.metric).days
        values = np.arange(n) % len(self.texts)
        texts = [self.texts[value] for value in values.tolist()]
        spellings = [respell_set(self.metric.params, text) for text in texts]
        names, copies = ([f"{kind}{number}" for number in range(n)] for kind in ("copied", "copy"))
        pairs = zip(names, copies, strict=True)
        self._open_twins([name for pair in pairs for name in pair], days[0].day)
        of_devices = self._record(names, texts, days[:2])
        of_copies = self._record(copies, spellings, days[:2])
        later = self._record(names, texts, days[2:4])
        return CopiedReports(
            values,
            of_devices,
            of_copies,
            # In the next epoch, a client may still have the unsent reports of the epoch before, or
            # have dropped them. Only the reports after them are new.
            [
                after[count_kept(before, after) :]
                for before, after in zip(of_devices, later, strict=True)
            ],
        )

    def _record(
        self, names: Sequence[str], texts: Sequence[str], days: Sequence[Day]
    ) -> list[tuple[Report, ...]]:
        """Record a text on each device on all of these days, and return its finished reports."""
        states: list[DeviceState] = []
        for day in days:
            states = self._run(
                [
                    self._format_texts(name, day.start, [text])
                    for name, text in zip(names, texts, strict=True)
                ]
            )
        return [state.finished_reports for state in states]

    def _format_run(
        self,
        name: str,
        begin: datetime.datetime,
        values: Sequence[int],
        step: datetime.timedelta = _MINUTE,
    ) -> str:
        """Format one run as a JSON line. It records values, given by index, one at each step."""
        return self._format_texts(name, begin, [self.texts[value] for value in values], step)

    def _format_texts(
        self,
        name: str,
        begin: datetime.datetime,
        texts: Sequence[str],
        step: datetime.timedelta = _MINUTE,
    ) -> str:
        """Format one run as a JSON line. It records values, given as texts, one at each step."""
        now = begin.timestamp()
        return json.dumps(
            {
                "folder": str(self.root / name),
                "registry": self.registry,
                "metric": self.metric.name,
                "now": now,
                "events": [(now + step.total_seconds() * i, text) for i, text in enumerate(texts)],
            }
        )

    def _run(self, lines: Iterator[str] | Sequence[str], *, n_last: int = 0) -> list[DeviceState]:
        """Start the command for these runs, and return the device's state after each run.

        With `n_last`, only the states after the last `n_last` runs are parsed and returned.
        """
        lines = list(lines)
        if not lines:  # a group without devices: the start of the command would tell nothing
            return []
        output_lines = run_command(self.command, lines, max_bytes=_MAX_LINE_BYTES)
        return [_parse_state(line, self.metric.name) for line in output_lines[-n_last:]]


def _find_noon(day: datetime.date) -> datetime.datetime:
    """Return noon (UTC) of a day."""
    return datetime.datetime.combine(day, datetime.time(12), datetime.UTC)


def _parse_state(line: str, metric: str) -> DeviceState:
    """Parse a line of the client's output. Raise ReportError if the line has another form."""
    try:
        document = json.loads(line)
        reports = tuple(_parse_report(entry, metric) for entry in document["waiting"])
        spent = document["spent"]
        return DeviceState(reports, None if spent is None else float(spent))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error) if isinstance(error, ReportError) else type(error).__name__
        raise ReportError(
            f"a line must be JSON with the keys waiting and spent: {reason}"
        ) from None


def _parse_report(entry: Any, metric: str) -> Report:
    """Parse one report of a line. Without a key "metric" the report is of `metric`."""
    cohort, send_after = entry["cohort"], entry.get("due")
    if type(cohort) is not int:
        raise ReportError("cohort must be an integer in a response")
    bits = decode_base64url("bits", entry["bits"])
    return Report(
        metric=str(entry.get("metric", metric)),
        params=str(entry["params"]),
        cohort=cohort,
        bits=bits,
        send_after=None if send_after is None else float(send_after),
    )
