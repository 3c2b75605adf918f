"""Audit of a client: compare the reports of simulated devices over restarts, days and epochs.

`rappor.auditing.device_histories` runs the devices. This module compares their states. Twins are
compared exactly, other devices with the probabilities of a correct client.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from scipy import stats

from rappor.auditing.auditor import Audit
from rappor.auditing.check import (
    FALSE_ALARM_RATE,
    Case,
    Check,
    check_binomial,
    check_condition,
    check_exact,
    check_p_value,
    check_rare,
    mark_not_seen,
)
from rappor.auditing.device_histories import (
    EVENTS_PER_DAY,
    EVENTS_TO_CHOOSE,
    FIRST_DAY,
    MANY_REPORTS,
    RESTART_DAY,
    ClientProgram,
    DeviceHistories,
    DeviceState,
    RecordedReports,
    Report,
    choose_values,
)
from rappor.auditing.evidence import MatchCounts
from rappor.auditing.folder import check_folder
from rappor.auditing.pairs import TrueBits, unpack
from rappor.auditing.probabilities import yield_independent_cases, yield_repeated_cases
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import read_count
from rappor.counts.arrays import Booleans, Integers
from rappor.privacy.report_linkage import reports_to_recover
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import scope_cost
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_MIN_DEVICES, _MAX_DEVICES = 20, 10_000
"""Fewer tell little; each takes files, and some milliseconds for each day."""

_CHOOSING_PER_DEVICE: Final = 6
"""Number of devices that choose among events, for each device with a history: 300 for 50."""

_SENDING_DEVICES: Final = 8
"""Number of devices that send 1,000 reports each. Together they reveal one without fresh noise."""

_NATS_TOLERANCE: Final = 1e-6
"""Tolerance in nats for rounding."""

_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - private folders below it
"""Folder of a disk in memory, where available. Devices flush every event to the disk."""

NOT_EXAMINED: Final = (
    "Consent: withdrawal, opting out and what they erase.",
    "Delivery: the bytes, segments and addresses of uploads, retries, logs, and what links these.",
    "Times: a moment of sending that follows the value a little, on few days, or not by its order.",
    "Accidents: a full or damaged disk, a process that is killed, a folder that was copied later.",
    "Concurrency: two processes or threads on one device.",
    "Secrets: one of few bits, as 16, or one that is drawn from a foreseeable set.",
    "Dates: a fault at midnight, at the end of a year, or after more days than devices live.",
    "Many reports: a fault after 1,000, or in one of no fixed place; noise that comes again later.",
    "Values: others; a file that holds one encrypted or rearranged, or shows it by its size.",
    "Ledger: wrong nats that are alike for twins, within their bounds.",
    "Rare faults: as of one value's noise; --command tests many more devices, and measures losses.",
)


def audit_client(
    command: Sequence[str],
    metric: Metric,
    registry: str | os.PathLike[str],
    *,
    devices: int = 50,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Audit:
    """Audit a client: compare the reports of devices over restarts, days and epochs.

    Parameters
    ----------
    command : sequence of str
        Command that represents the client, as `rappor.auditing.device_histories` describes it.
    metric : Metric
        The metric under audit.
    registry : path
        Path of the registry that declares the metric. The command reads it.
    devices : int
        Number of devices, from 20 to 10,000, rounded down to pairs of twins.
    seed : int, optional
        Seed of the auditor's values.
    progress : callable
        Called with a stage, the completed steps and all steps.

    Returns
    -------
    Audit

    Raises
    ------
    ParamsError
        If `devices` is outside its range.
    ReportError
        If the command fails or writes other lines than described.
    """
    devices = read_count("devices", devices, _MIN_DEVICES, _MAX_DEVICES) // 2 * 2
    rng = Keystream(seed).generator()
    texts = choose_values(metric, rng)
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        place = Path(folder)
        program = ClientProgram(command, place, str(Path(registry).resolve()), metric, texts)
        histories = program.run_histories(devices, rng, progress)
        chosen = None
        if metric.interval != "none":
            chosen = program.choose(_CHOOSING_PER_DEVICE * devices, rng, progress)
        many = program.send_many(_SENDING_DEVICES, rng, progress)
        on_disk = [*check_folder(place, texts, metric.params.categories)]
    found = _ClientComparison(metric, histories, many, texts)
    return Audit(
        metric=metric,
        trials=devices,
        n_reports=len(histories.calendar.days),
        level=FALSE_ALARM_RATE,
        checks=(*found.checks(), _check_choice(found.member, chosen), *on_disk),
        not_examined=NOT_EXAMINED,
    )


class _DayReports(NamedTuple):
    """First reports of one day: device numbers and cohorts (n,), bits and true bits (n, k)."""

    devices: Integers
    cohorts: Integers
    bits: Booleans
    truth: Booleans

    def at(self, rows: Integers | Booleans) -> _DayReports:
        return _DayReports(
            self.devices[rows], self.cohorts[rows], self.bits[rows], self.truth[rows]
        )

    def match_devices(self, other: _DayReports) -> tuple[_DayReports, _DayReports]:
        """Return the reports of the devices that have a report on both days, in the same order."""
        _, here, there = np.intersect1d(self.devices, other.devices, return_indices=True)
        return self.at(here), other.at(there)


class _MetricReports:
    """Reports of one metric, and the bits that the reports should be based on."""

    def __init__(self, metric: Metric, histories: DeviceHistories, texts: Sequence[str]) -> None:
        self.metric, self.params = metric, metric.params
        self.expected = self.params.p_star, self.params.q_star
        self.histories = histories
        self._texts = texts
        self._truths: dict[str, TrueBits] = {}

    def is_valid(self, report: Report) -> bool:
        """Return whether a report has known parameters, a valid cohort and valid bits."""
        params = self.metric.accepted.get(report.params)
        return (
            params is not None
            and 0 <= report.cohort < params.m
            and len(report.bits) == params.n_bytes
            and not int.from_bytes(report.bits, "little") >> params.k
        )

    def own(self, reports: Iterable[Report]) -> list[Report]:
        """Return the valid reports of this metric."""
        return [r for r in reports if r.metric == self.metric.name and self.is_valid(r)]

    def seen(self, place: int) -> _DayReports:
        """Return the first report that each device made of a day's values.

        If twins have the same true bits, only the first twin is included: the twins share permanent
        coins, so their reports are dependent.
        """
        late = int(self.metric.interval != "none")
        found = [
            (number, own[0])
            for number, reports in enumerate(self.histories.new(place, late))
            if (own := self.own(reports))
        ]
        devices = np.array([number for number, _ in found], dtype=np.int64)
        reports = [report for _, report in found]
        seen = _DayReports(
            devices,
            np.array([report.cohort for report in reports], dtype=np.int64),
            unpack(b"".join(report.bits for report in reports), self.params),
            self.truth(reports, self._reported_values(place)[devices]),
        )
        first = np.flatnonzero((np.diff(devices) == 1) & (devices[:-1] % 2 == 0))
        repeats = first[(seen.truth[first] == seen.truth[first + 1]).all(axis=1)]
        return seen.at(np.delete(np.arange(len(devices)), repeats + 1))

    def truth(self, reports: Sequence[Report], values: Integers) -> Booleans:
        """Return the (n, k) true bits of values, given by index, under the part of each report."""
        bits = np.zeros((len(reports), self.params.k), dtype=np.bool_)
        for row, (report, value) in enumerate(zip(reports, values.tolist(), strict=True)):
            if report.params not in self._truths:
                params = self.metric.accepted[report.params]
                self._truths[report.params] = TrueBits(params, self._texts)
            one = np.array([value]), np.array([report.cohort])
            bits[row] = self._truths[report.params].bits(*one)[0]
        return bits

    def _reported_values(self, place: int) -> Integers:
        """Return the value that each device reports on a day: the first of the day's epoch."""
        epoch = self.histories.calendar.days[place].epoch
        epochs = [day.epoch for day in self.histories.calendar.days]
        return self.histories.values[:, epochs.index(epoch)]


class _ClientComparison:
    """Comparison of all reports and states of the devices with a correct client."""

    def __init__(
        self,
        metric: Metric,
        histories: DeviceHistories,
        many: RecordedReports,
        texts: Sequence[str],
    ) -> None:
        self.member = _MetricReports(metric, histories, texts)
        self._metric, self._histories, self._many, self._texts = metric, histories, many, texts
        self._late = int(metric.interval != "none")
        self._calendar = histories.calendar

    def checks(self) -> Iterator[Check]:
        """Yield all checks of the reports and states."""
        exact: dict[str, Callable[[], tuple[int, int]]] = {
            "twins: as many reports, of the same form": self._count_different_forms,
            "twins: the same nats": self._count_different_nats,
            "client: reports have the metric's form": self._count_invalid,
            "client: finished reports stay as they are": self._count_changed,
            "client: one report an interval": self._count_extra_reports,
            "client: one cohort in an epoch": self._count_changed_cohorts,
        }
        binomial: dict[str, Callable[[_MetricReports], Iterator[Case]]] = {
            "client: share of ones": _yield_bit_cases,
            "client: one permanent response in an epoch": self._yield_repeated_cases,
            "client: another epoch is independent": self._yield_epoch_cases,
            "client: a clock set back brings no third response": self._yield_clock_cases,
            "client: devices differ": _yield_device_cases,
            "client: each of 1,000 reports has its noise": self._yield_report_cases,
        }
        for name, count in exact.items():
            yield check_exact(name, count())
        for name, cases in binomial.items():
            yield check_binomial(name, cases(self.member))
        yield self._check_noise("client: no report is the true bits", equals_truth=True)
        yield self._check_noise("client: no report comes again", equals_truth=False)
        yield self._check_times()
        yield self._check_ledger()

    def _count_different_forms(self) -> tuple[int, int]:
        """Count the states in which the reports of two twins differ in their form."""
        days = [[state.waiting for state in day] for day in self._histories.states_by_day]
        answers = [*days, self._many.reports]
        return _count_twin_differences(
            [[[r.form for r in own] for own in each] for each in answers]
        )

    def _count_different_nats(self) -> tuple[int, int]:
        """Count the days on which two twins have recorded different privacy losses."""
        return _count_twin_differences(
            [[state.spent for state in day] for day in self._histories.states_by_day]
        )

    def _count_invalid(self) -> tuple[int, int]:
        """Count the reports of another metric and those without the metric's form."""
        n_days = len(self._histories.states_by_day)
        new = chain.from_iterable(self._histories.new(place, 0) for place in range(n_days))
        reports = list(chain.from_iterable(new))
        formed = [r.metric == self._metric.name and self.member.is_valid(r) for r in reports]
        return formed.count(False), len(reports)

    def _count_changed(self) -> tuple[int, int]:
        """Count the days after which a device's earlier reports had changed."""
        n_changed, n_days = 0, 0
        for place, (before, after) in enumerate(pairwise(self._histories.states_by_day), start=1):
            if self._calendar.may_drop(place):
                continue  # a report that is left over from an epoch may be dropped
            n_days += len(after)
            for then, now in zip(before, after, strict=True):
                n_changed += now.waiting[: len(then.waiting)] != then.waiting
        return n_changed, n_days

    def _list_state_changes(self) -> list[tuple[DeviceState, DeviceState]]:
        """Return the states of each device before and after every day."""
        days = pairwise(self._histories.states_by_day)
        return [pair for before, after in days for pair in zip(before, after, strict=True)]

    def _count_extra_reports(self) -> tuple[int, int]:
        """Count the days, or histories, with more reports than the metric's interval allows."""
        most = 1 if self._late else EVENTS_PER_DAY
        days = [
            self._histories.new(place, 0) for place in range(len(self._histories.states_by_day))
        ]
        if self._metric.interval == "epoch":  # a history has one report of each epoch
            most = len({day.epoch for day in self._calendar.days})
            by_device = zip(*days, strict=True)
            days = [[tuple(chain.from_iterable(own)) for own in by_device]]
        counts = [
            sum(report.metric == self._metric.name for report in reports)
            for answers in days
            for reports in answers
        ]
        return sum(n > most for n in counts), len(counts)

    def _count_changed_cohorts(self) -> tuple[int, int]:
        moved = [
            first.cohorts != later.cohorts
            for place in self._calendar.same[RESTART_DAY:]
            for first, later in [self.member.seen(FIRST_DAY).match_devices(self.member.seen(place))]
        ]
        return sum(int(each.sum()) for each in moved), sum(map(len, moved))

    def _yield_repeated_cases(self, member: _MetricReports) -> Iterator[Case]:
        """Yield pairs of reports of one epoch, which share one permanent response."""
        for place in self._calendar.same[RESTART_DAY:]:
            first, later = member.seen(FIRST_DAY).match_devices(member.seen(place))
            yield from yield_repeated_cases(
                _count_matches(first, later), member.params, f"on day {place + 1}"
            )

    def _yield_epoch_cases(self, member: _MetricReports) -> Iterator[Case]:
        """Yield pairs of reports of two epochs, which have independent coins and cohorts."""
        if self._calendar.next_epoch is None:
            return
        other = member.seen(self._calendar.next_epoch)
        for place in self._calendar.same:
            yield from yield_independent_cases(
                _count_matches(*member.seen(place).match_devices(other)), member.expected
            )
        first, second = member.seen(FIRST_DAY).match_devices(other.at(other.devices % 2 == 0))
        same = int((first.cohorts == second.cohorts).sum())
        yield Case("one cohort in two epochs", same, len(first.devices), 1 / member.params.m)

    def _yield_clock_cases(self, member: _MetricReports) -> Iterator[Case]:
        """Compare the reports after the clock was set back with the reports of both epochs."""
        there = self._calendar.back
        if there is None or self._calendar.next_epoch is None or member.params.m == 1:
            # Nothing to compare: the metric has no second epoch, or one cohort.
            return  # with one cohort nothing tells which epoch a report repeats
        back, matched_devices = member.seen(there), set[int]()
        for place in (FIRST_DAY, self._calendar.next_epoch):
            first, later = member.seen(place).match_devices(back)
            same = first.cohorts == later.cohorts
            same &= ~np.isin(first.devices, list(matched_devices))
            matched_devices |= set(first.devices[same].tolist())
            both = _count_matches(first.at(same), later.at(same)._replace(truth=first.truth[same]))
            yield from yield_repeated_cases(
                both, member.params, f"in epoch {int(place != FIRST_DAY) + 1}"
            )
        unknown_devices = len(set(back.devices.tolist()) - matched_devices)
        yield Case("in a cohort of neither epoch", unknown_devices, max(len(back.devices), 1), 0.0)

    def _yield_report_cases(self, member: _MetricReports) -> Iterator[Case]:
        """Yield the number of ones in the i-th reports of all devices with many reports.

        Reports are compared with the permanent response if enough reports reveal it, else with the
        true bits. Each report is also compared with the report before.
        """
        params = member.params
        equal = np.zeros((MANY_REPORTS, 2), dtype=np.int64)
        match_probability = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q)) ** params.k
        sure = 2 * (reports_to_recover(params) or MANY_REPORTS)
        counts = np.zeros(
            (MANY_REPORTS, 2, 2, 2), dtype=np.int64
        )  # report, is permanent, bit, (ones, n)
        values, many, epochs = self._many
        twin = np.zeros((MANY_REPORTS, params.k), dtype=np.bool_)
        for number, (value, reports) in enumerate(zip(values.tolist(), many, strict=True)):
            own = member.own(reports)[:MANY_REPORTS]
            inputs = member.truth(own, np.full(len(own), value))
            # twins with the same true bits share their permanent coins: the first one counts
            is_new = np.full(len(own), number % 2 == 0) | (inputs != twin[: len(own)]).any(axis=1)
            twin[: len(own)] = inputs
            bits = unpack(b"".join(report.bits for report in own), params)
            again = (bits[1:] == bits[:-1]).all(axis=1)
            equal[1 : len(own)] += np.stack([again, np.ones_like(again)], axis=1)
            is_known = np.zeros(len(own), dtype=np.int64)
            for epoch in np.unique(epochs):
                rows = np.flatnonzero(epochs == epoch)
                if len(own) == MANY_REPORTS and len(rows) >= sure:
                    inputs[rows] = bits[rows].mean(axis=0) > (params.p + params.q) / 2
                    is_known[rows] = 1
            for one in (0, 1):
                at = (inputs == one) & is_new[:, None]
                np.add.at(counts[..., one, 0], (np.arange(len(own)), is_known), (bits & at).sum(1))
                np.add.at(counts[..., one, 1], (np.arange(len(own)), is_known), at.sum(1))
        expected = (member.expected, (params.p, params.q))
        for place, is_permanent, one in np.ndindex(MANY_REPORTS, 2, 2):
            ones, n = counts[place, is_permanent, one].tolist()
            what = f"report {place + 1:,} given {('true', 'permanent')[is_permanent]} {one}"
            yield Case(what, ones, n, expected[is_permanent][one])
        for place, (same, n) in enumerate(equal.tolist()):  # 1/2 bounds what few devices can show
            yield Case(
                f"report {place + 1:,} equals the one before", same, n, min(match_probability, 0.5)
            )

    def _check_noise(self, name: str, *, equals_truth: bool) -> Check:
        """Count the devices with a report that equals its true bits, or another report.

        The probability for one device is at most the sum over its reports, or over pairs of its
        reports.
        """
        params = self.member.params
        days = [self.member.seen(place) for place in range(len(self._calendar.days) - self._late)]
        if equals_truth:
            kept = max(1 - params.p_star, params.q_star) ** params.k
            matches = [(day.devices, (day.bits == day.truth).all(axis=1)) for day in days]
        else:
            kept = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q)) ** params.k
            pairs = (a.match_devices(b) for a, b in combinations(days, 2))
            matches = [(a.devices, (a.bits == b.bits).all(axis=1)) for a, b in pairs]
        devices = {int(each) for day in days for each in day.devices}
        found = {int(each) for numbers, equal in matches for each in numbers[equal]}
        most = len(matches) * kept
        return check_rare(name, len(found), len(devices), most, "have such a report")

    def _check_times(self) -> Check:
        """Compare, for each value, how often reports are sent later than the median of the day.

        Of a day's N reports, K are later than the median. If a value has n of them, the number of
        its later reports is hypergeometric(N, K, n), provided that times do not depend on values.
        Days are independent, so the distributions are convolved.
        """
        name, member = "client: times do not depend on the value", self.member
        n_values = len(self._texts)
        sums, spread = np.zeros(n_values, dtype=np.int64), [np.ones(1)] * n_values
        for place in range(len(self._calendar.days) - self._late):
            new = self._histories.new(place, self._late)
            values_and_times = [
                (value, report.due)
                for value, reports in zip(self._histories.values[:, place], new, strict=True)
                for report in reports[-1:]
                if report.metric == member.metric.name
            ]
            due = np.array([moment for _, moment in values_and_times if moment is not None])
            if len(due) < len(values_and_times) or not values_and_times:
                continue
            later, own = due > np.median(due), np.array([value for value, _ in values_and_times])
            for value in range(n_values):
                n, total = int((own == value).sum()), int(later.sum())
                sums[value] += int(later[own == value].sum())
                pmf = stats.hypergeom.pmf(np.arange(n + 1), len(due), total, n)
                spread[value] = np.convolve(spread[value], pmf)
        if max(map(len, spread)) == 1:
            return mark_not_seen(name, "no moment of sending is told")
        p_values = [
            2 * min(pmf[: at + 1].sum(), pmf[at:].sum())
            for at, pmf in zip(sums, spread, strict=True)
        ]
        p_value = min(1.0, float(min(p_values)) * n_values)
        worst = int(np.argmin(p_values))
        of_all = f"{sums[worst]:,} of its {len(spread[worst]) - 1:,} reports"
        detail = f"value {worst + 1} of {n_values}: {of_all} leave later than the day's median"
        return check_p_value(name, p_value, detail)

    def _check_ledger(self) -> Check:
        """Compare the recorded privacy losses with the smallest and largest loss of the reports."""
        name = "client: the ledger counts"
        last = [state.spent for state in self._histories.states_by_day[-1] if state.waiting]
        if None in last or not last:
            return mark_not_seen(name, "devices count no nats")
        scopes = len({day.epoch for day in self._calendar.days})
        least = epsilon_1(self.member.params)
        most = scopes * scope_cost(self.member.metric)
        falling = sum(
            (now.spent or 0) < (then.spent or 0) for then, now in self._list_state_changes()
        )
        outside = sum(
            not least - _NATS_TOLERANCE <= (nats or 0) <= most + _NATS_TOLERANCE for nats in last
        )
        fell = f"{falling:,} times the nats of a device fell, {outside:,} of {len(last):,} devices"
        detail = f"{fell} count less than {least:.3f} or more than {most:.3f}"
        return check_condition(name, detail, is_fault=falling + outside > 0)


def _count_twin_differences(answers: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Count the differences between twins, over days and pairs, and the number of comparisons."""
    pairs = [pair for day in answers for pair in zip(day[::2], day[1::2], strict=True)]
    return sum(first != second for first, second in pairs), len(pairs)


def _check_choice(member: _MetricReports, chosen: RecordedReports | None) -> Check:
    """Test that each event of an interval is equally likely to be reported.

    The events have two values, drawn by fair coins. A report with the first value's bit and without
    the second value's bit indicates the first value. The indication is right with a probability
    that follows from p* and q*.
    """
    name = "client: any event of an interval is chosen"
    if chosen is None:
        return mark_not_seen(name, "every event is reported")
    formed = [
        (row, own[-1]) for row, reports in enumerate(chosen.reports) if (own := member.own(reports))
    ]
    reports = [report for _, report in formed]
    values = chosen.values[[row for row, _ in formed]]
    bits = unpack(b"".join(report.bits for report in reports), member.params)
    zero, one = (member.truth(reports, np.full(len(reports), value)) for value in (0, 1))
    shown = _compute_indications(bits, zero & ~one), _compute_indications(bits, one & ~zero)
    indicated = np.sign(shown[1] - shown[0])  # 1 tells of the one value, -1 of the other
    has_both = (shown[0] != 0) & (shown[1] != 0)
    p, q = member.params.p_star, member.params.q_star
    right = q * (1 - p) / (q * (1 - p) + p * (1 - q)), (q + 1 - p) / 2
    tells = has_both & (indicated != 0), ~has_both & (indicated != 0)
    cases = [
        Case(
            f"the value of event {place + 1} of {EVENTS_TO_CHOOSE}",
            int((indicated[rows] == 2 * values[rows, place] - 1).sum()),
            int(rows.sum()),
            (probability + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE,
        )
        for rows, probability in zip(tells, right, strict=True)
        for place in range(EVENTS_TO_CHOOSE)
    ]
    ones, n = int((indicated[tells[0]] == 1).sum()), int(tells[0].sum())
    return check_binomial(name, [*cases, Case("the second of two values", ones, n, 0.5)])


def _compute_indications(bits: Booleans, own: Booleans) -> Integers:
    """Return (n,): 1 if the value's own first bit is set, -1 if not, 0 without such a bit."""
    shown = np.take_along_axis(bits, np.argmax(own, axis=1)[:, None], axis=1)[:, 0]
    return np.where(own.any(axis=1), np.where(shown, 1, -1), 0)


def _yield_bit_cases(member: _MetricReports) -> Iterator[Case]:
    """Yield the counts of ones of all devices, and of the devices with each value."""
    seen = member.seen(FIRST_DAY)
    values = member.histories.values[seen.devices, FIRST_DAY]
    groups = {f"value {value + 1}": values == value for value in np.unique(values)}
    for name, rows in {"all values": values >= 0, **groups}.items():
        for bit, probability in enumerate(member.expected):
            at = (seen.truth == bit) & rows[:, None]
            ones, n = int(seen.bits[at].sum()), int(at.sum())
            yield Case(f"{name}, given true {bit}", ones, n, probability)


def _yield_device_cases(member: _MetricReports) -> Iterator[Case]:
    """Yield the cases of pairs of unrelated devices, and of their cohorts."""
    seen = member.seen(FIRST_DAY)
    seen = seen.at(seen.devices % 2 == 0)
    half = len(seen.devices) // 2
    first, second = seen.at(np.arange(half)), seen.at(np.arange(half, 2 * half))
    yield from yield_independent_cases(_count_matches(first, second), member.expected)
    same = int((first.cohorts == second.cohorts).sum())
    yield Case("two devices in one cohort", same, half, 1 / member.params.m)


def _count_matches(first: _DayReports, second: _DayReports) -> MatchCounts:
    matches = MatchCounts()
    matches.add(first.bits, second.bits, (first.truth, second.truth))
    return matches
