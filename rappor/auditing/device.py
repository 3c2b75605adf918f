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
from rappor.auditing.detectable_faults import (
    SENDING_SIZES,
    AuditSizes,
    choose_sizes,
    list_missed_faults,
)
from rappor.auditing.device_histories import (
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
from rappor.auditing.likelihood_ratios import (
    LogRatio,
    OnesOf,
    compute_common_response_ratio,
    compute_noiseless_ratio,
    compute_redrawn_ratio,
    compute_repeated_coins_ratio,
    compute_second_response_ratio,
    compute_shared_response_ratio,
    sum_log_ratio,
)
from rappor.auditing.pairs import TrueBits, unpack
from rappor.auditing.probabilities import yield_independent_cases, yield_repeated_cases
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import read_count
from rappor.base.sentence_numbers import format_count
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.privacy.report_linkage import reports_to_recover
from rappor.protocol.loss import epsilon_1
from rappor.protocol.params import Params
from rappor.registry.budget import scope_cost
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_MIN_DEVICES, _MAX_DEVICES = 20, 10_000
"""Smallest and largest number of devices with a history. Fewer devices show almost no fault. Each
device takes files, and 7 milliseconds for each day.
"""

_CHOOSING_PER_DEVICE: Final = 6
"""Number of devices that choose among events, for each device with a history, if the caller chooses
the number of devices.
"""

_NATS_TOLERANCE: Final = 1e-6
"""Tolerance in nats for rounding."""

_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - private folders below it
"""Folder of a disk in memory, where available. Devices flush every event to the disk."""

_PERIODS: Final = (2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 250, 256, 500, 1000)
"""Numbers of reports after which a fault may come again: small ones, powers of 2, round numbers."""

NOT_EXAMINED: Final = (
    "Consent: withdrawal, opting out and what they erase.",
    "Delivery: the bytes, segments and addresses of uploads, retries, logs, and what links these.",
    "Times: a moment of sending that follows the value a little, on few days, or not by its order.",
    "Accidents: a full or damaged disk, a process that is killed, a folder that was copied later.",
    "Concurrency: two processes or threads on one device.",
    "Secrets: one of few bits, as 16, or one that is drawn from a foreseeable set.",
    "Dates: a fault at midnight, in an hour without an event, at the end of a year, or much later.",
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
    devices: int | None = None,
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
    devices : int, optional
        Number of devices with a history, from 20 to 10,000, rounded down to pairs of twins. By
        default 50 to 400, as many as the noise of the metric needs: `not_examined` lists the faults
        that such an audit still misses.
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
    rng = Keystream(seed).generator()
    texts = choose_values(metric, rng)
    truth = TrueBits(metric.params, texts)
    if devices is None:
        sizes = choose_sizes(metric, truth)
    else:
        n_devices = read_count("devices", devices, _MIN_DEVICES, _MAX_DEVICES) // 2 * 2
        sizes = AuditSizes(n_devices, _CHOOSING_PER_DEVICE * n_devices, SENDING_SIZES[0])
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        program = ClientProgram(command, root, str(Path(registry).resolve()), metric, texts)
        histories = program.run_histories(sizes.histories, rng, progress)
        chosen = program.choose(sizes.choosing, rng, progress)
        many = program.send_many(sizes.sending, rng, progress)
        file_checks = [*check_folder(root, texts, metric.params.categories)]
    comparison = _ClientComparison(metric, histories, many, texts)
    missed = list_missed_faults(metric, truth, sizes)
    return Audit(
        metric=metric,
        trials=sizes.histories,
        n_reports=len(histories.calendar.days),
        level=FALSE_ALARM_RATE,
        checks=(
            *comparison.checks(),
            _check_choice(comparison.metric_reports, chosen),
            *file_checks,
        ),
        not_examined=(*NOT_EXAMINED, *_format_missed(missed, sizes.histories)),
    )


def _format_missed(missed: Sequence[str], devices: int) -> list[str]:
    """Format the missed faults as a sentence, or return nothing if no fault is missed."""
    if not missed:
        return []
    return [
        f"Parameters: with their noise, {devices} devices would often miss {'; '.join(missed)}. In "
        "brackets: the share of audits that would find it."
    ]


_Evidence = tuple[Sequence[Case], Sequence[LogRatio]]
"""Counts and log ratios that one check compares with a correct client."""


class _DayReports(NamedTuple):
    """First reports of one day: device numbers and cohorts (n,), bits and true bits (n, k)."""

    devices: Integers
    cohorts: Integers
    bits: Booleans
    truth: Booleans
    recorded: Booleans
    """True bits of the value that the device recorded on this day: (n, k).

    `truth` has the bits of the value for which a correct client answers in the epoch of the day.
    """

    def select(self, rows: Integers | Booleans) -> _DayReports:
        return _DayReports(
            self.devices[rows],
            self.cohorts[rows],
            self.bits[rows],
            self.truth[rows],
            self.recorded[rows],
        )

    def match_devices(self, other: _DayReports) -> tuple[_DayReports, _DayReports]:
        """Return the reports of the devices that have a report on both days, in the same order."""
        _, here, there = np.intersect1d(self.devices, other.devices, return_indices=True)
        return self.select(here), other.select(there)


class _SeveralDays(NamedTuple):
    """First reports of several days, of the devices that have a report on each of these days.

    `bits` is (days, n, k). `truth` and `recorded` are those of the last day, as `_DayReports` has
    them: true bits for which the devices answer, and true bits that they recorded.
    """

    devices: Integers
    cohorts: Integers
    bits: Booleans
    truth: Booleans
    recorded: Booleans

    def select(self, rows: Integers | Booleans) -> _SeveralDays:
        return _SeveralDays(
            self.devices[rows],
            self.cohorts[rows],
            self.bits[:, rows],
            self.truth[rows],
            self.recorded[rows],
        )

    def match_devices(self, other: _SeveralDays) -> tuple[_SeveralDays, _SeveralDays]:
        """Return the reports of the devices that are in both, in the same order."""
        _, here, there = np.intersect1d(self.devices, other.devices, return_indices=True)
        return self.select(here), other.select(there)

    def count_ones(self, days: slice = slice(None)) -> OnesOf:
        """Count the reports of these days in which each bit is 1."""
        bits = self.bits[days]
        return OnesOf(bits.sum(axis=0), len(bits))


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

    def select_valid(self, reports: Iterable[Report]) -> list[Report]:
        """Return the valid reports of this metric."""
        return [r for r in reports if r.metric == self.metric.name and self.is_valid(r)]

    def read_day(self, day: int) -> _DayReports:
        """Return the first report that each device made of a day's values.

        If twins have the same true bits, only the first twin is included: the twins share permanent
        coins, so their reports are dependent.
        """
        # A report is finished on the day after its values were recorded.
        first_reports = {
            device: valid[0]
            for device, reports in enumerate(self.histories.list_new_reports(day, 1))
            if (valid := self.select_valid(reports))
        }
        devices = np.array(list(first_reports), dtype=np.int64)
        reports = list(first_reports.values())
        day_reports = _DayReports(
            devices,
            np.array([report.cohort for report in reports], dtype=np.int64),
            unpack(b"".join(report.bits for report in reports), self.params),
            self.compute_true_bits(reports, self._reported_values(day)[devices]),
            self.compute_true_bits(reports, self.histories.values[devices, day]),
        )
        first_twins = np.flatnonzero((np.diff(devices) == 1) & (devices[:-1] % 2 == 0))
        truth = day_reports.truth
        has_same_truth = (truth[first_twins] == truth[first_twins + 1]).all(axis=1)
        second_twins = first_twins[has_same_truth] + 1
        return day_reports.select(np.delete(np.arange(len(devices)), second_twins))

    def read_days(self, day_indices: Sequence[int]) -> _SeveralDays | None:
        """Return the first reports of several days; None if there are no days."""
        if not day_indices:
            return None
        days = [self.read_day(day) for day in day_indices]
        devices = days[0].devices
        for day in days[1:]:
            devices = np.intersect1d(devices, day.devices)
        days = [day.select(np.isin(day.devices, devices)) for day in days]
        bits = np.stack([day.bits for day in days])
        return _SeveralDays(devices, days[0].cohorts, bits, days[-1].truth, days[-1].recorded)

    def compute_true_bits(self, reports: Sequence[Report], values: Integers) -> Booleans:
        """Return the (n, k) true bits of values, given by index, under the part of each report."""
        bits = np.zeros((len(reports), self.params.k), dtype=np.bool_)
        for row, (report, value) in enumerate(zip(reports, values.tolist(), strict=True)):
            if report.params not in self._truths:
                params = self.metric.accepted[report.params]
                self._truths[report.params] = TrueBits(params, self._texts)
            one = np.array([value]), np.array([report.cohort])
            bits[row] = self._truths[report.params].bits(*one)[0]
        return bits

    def _reported_values(self, day: int) -> Integers:
        """Return the value that each device reports on a day: the first of the day's epoch."""
        epochs = [calendar_day.epoch for calendar_day in self.histories.calendar.days]
        epoch = epochs[day]
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
        self.metric_reports = _MetricReports(metric, histories, texts)
        self._metric, self._histories, self._many, self._texts = metric, histories, many, texts
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
        }
        compared: dict[str, Callable[[_MetricReports], _Evidence]] = {
            "client: one permanent response in an epoch": self._compare_days,
            "client: another epoch is independent": self._compare_epochs,
            "client: each of 1,000 reports has its noise": self._compare_many_reports,
            "client: devices differ": _compare_devices,
            "client: no coins come again after a restart": self._compare_runs,
        }
        for name, count in exact.items():
            yield check_exact(name, count())
        yield self._check_presence()
        for name, cases in binomial.items():
            yield check_binomial(name, cases(self.metric_reports))
        for name, compare in compared.items():
            yield check_binomial(name, *compare(self.metric_reports))
        yield self._check_clock(self.metric_reports)
        yield self._check_noise("client: no report is the true bits", equals_truth=True)
        yield self._check_noise("client: no report comes again", equals_truth=False)
        yield self._check_times()
        yield self._check_ledger()

    def _check_presence(self) -> Check:
        """Count the pairs of twins with a report, in each epoch.

        Every device records a value on every day, so a correct client makes a report in each epoch.
        With a sampling rate below 1, a device takes part in an epoch with this probability. Twins
        have one secret, so they take part together.
        """
        name, rate = "client: every device reports", self._metric.sampling_rate
        n_devices = len(self._histories.states_by_day[0])
        has_report = {
            epoch: np.zeros(n_devices, dtype=np.bool_) for epoch in self._calendar.list_epochs()
        }
        # The last day only ends the interval of the day before.
        for index, day in enumerate(self._calendar.days[:-1]):
            new = self._histories.list_new_reports(index, 1)
            has_report[day.epoch] |= [
                bool(self.metric_reports.select_valid(reports)) for reports in new
            ]
        pairs = [(epoch, reports[::2] | reports[1::2]) for epoch, reports in has_report.items()]
        cases = [
            Case(f"twins with a report in epoch {epoch + 1}", int(has.sum()), len(has), rate)
            for epoch, has in pairs
        ]
        return check_binomial(name, cases)

    def _count_different_forms(self) -> tuple[int, int]:
        """Count the states in which the reports of two twins differ in their form."""
        days = [[state.waiting for state in day] for day in self._histories.states_by_day]
        runs = [*days, self._many.reports]
        return _count_twin_differences(
            [[[report.form for report in reports] for reports in run] for run in runs]
        )

    def _count_different_nats(self) -> tuple[int, int]:
        """Count the days on which two twins have recorded different privacy losses."""
        return _count_twin_differences(
            [[state.spent for state in day] for day in self._histories.states_by_day]
        )

    def _count_invalid(self) -> tuple[int, int]:
        """Count the reports of another metric, and the reports without the metric's form."""
        days = range(len(self._histories.states_by_day))
        by_device = chain.from_iterable(self._histories.list_new_reports(day, 0) for day in days)
        reports = list(chain.from_iterable(by_device))
        return len(reports) - len(self.metric_reports.select_valid(reports)), len(reports)

    def _count_changed(self) -> tuple[int, int]:
        """Count the states in which earlier reports of a device have changed or are missing."""
        n_changed, n_states = 0, 0
        for day, (before, after) in enumerate(pairwise(self._histories.states_by_day), start=1):
            if self._calendar.may_drop(day):
                # A metric that is asked once an epoch may drop its report when the epoch is over.
                continue
            n_states += len(after)
            for earlier, later in zip(before, after, strict=True):
                n_changed += later.waiting[: len(earlier.waiting)] != earlier.waiting
        return n_changed, n_states

    def _list_state_changes(self) -> list[tuple[DeviceState, DeviceState]]:
        """Return the states of each device before and after every day."""
        days = pairwise(self._histories.states_by_day)
        return [pair for before, after in days for pair in zip(before, after, strict=True)]

    def _count_extra_reports(self) -> tuple[int, int]:
        """Count the days, or histories, with more reports than the metric's interval allows."""
        n_allowed = 1
        days = [
            self._histories.list_new_reports(day, 0)
            for day in range(len(self._histories.states_by_day))
        ]
        if self._metric.interval == "epoch":
            # The whole history of a device has one report for each epoch.
            n_allowed = len(self._calendar.list_epochs())
            by_device = zip(*days, strict=True)
            days = [[tuple(chain.from_iterable(reports)) for reports in by_device]]
        counts = [
            sum(report.metric == self._metric.name for report in reports)
            for day in days
            for reports in day
        ]
        return sum(n > n_allowed for n in counts), len(counts)

    def _count_changed_cohorts(self) -> tuple[int, int]:
        """Count the reports of the first epoch whose cohort is not that of the first report."""
        n_changed = n_reports = 0
        first_day = self.metric_reports.read_day(FIRST_DAY)
        for day in self._calendar.same[RESTART_DAY:]:
            first, later = first_day.match_devices(self.metric_reports.read_day(day))
            n_changed += int((first.cohorts != later.cohorts).sum())
            n_reports += len(later.cohorts)
        return n_changed, n_reports

    def _compare_days(self, metric_reports: _MetricReports) -> _Evidence:
        """Compare the reports of the first epoch, which share one permanent response."""
        cases: list[Case] = []
        for day in self._calendar.same[RESTART_DAY:]:
            first, later = metric_reports.read_day(FIRST_DAY).match_devices(
                metric_reports.read_day(day)
            )
            cases += yield_repeated_cases(
                _count_matches(first, later), metric_reports.params, f"on day {day + 1}"
            )
        days = metric_reports.read_days(self._calendar.same)
        if days is None or len(days.bits) <= RESTART_DAY + 1:
            return cases, []  # too few days to tell two permanent responses from one
        params = metric_reports.params
        redrawn = compute_redrawn_ratio(days.count_ones(), days.truth, params)
        # The second twins record another value after the restart. A client that answers for this
        # value has a second permanent response.
        changed = days.select((days.truth != days.recorded).any(axis=1))
        second = compute_second_response_ratio(
            changed.count_ones(slice(RESTART_DAY + 1)),
            changed.count_ones(slice(RESTART_DAY + 1, None)),
            (changed.truth, changed.recorded),
            params,
        )
        return cases, [
            sum_log_ratio("a new permanent response after each restart", redrawn),
            sum_log_ratio("a second permanent response after the value has changed", second),
        ]

    def _compare_runs(self, metric_reports: _MetricReports) -> _Evidence:
        """Compare the fresh coins of two runs in a row, in which devices have one order.

        A bit that has one permanent response and equal fresh coins is the same in both runs. The
        count is of the bits that are the same in all pairs of runs.
        """
        pairs = self._calendar.list_run_pairs()
        days = metric_reports.read_days([day for pair in pairs for day in pair])
        if days is None:
            return [], []
        params = metric_reports.params
        first, second = days.bits[::2], days.bits[1::2]
        both, neither = (first & second).sum(axis=0), (~first & ~second).sum(axis=0)
        is_same = both + neither == len(pairs)
        p_same = [(x**2 + (1 - x) ** 2) ** len(pairs) for x in (params.p, params.q)]
        cases = [
            Case(
                f"equal in {format_count(len(pairs), 'pair')} of runs given true {bit}",
                int(is_same[days.truth == bit].sum()),
                int((days.truth == bit).sum()),
                (1 - one) * p_same[0] + one * p_same[1],
            )
            for bit, one in enumerate((params.f1, 1 - params.f0))
        ]
        ratio = compute_repeated_coins_ratio(both, neither, len(pairs), days.truth, params)
        return cases, [sum_log_ratio("fresh coins of the run before", ratio)]

    def _compare_epochs(self, metric_reports: _MetricReports) -> _Evidence:
        """Compare the reports of two epochs, which have independent coins and cohorts."""
        earlier, later = (
            metric_reports.read_days(places)
            for places in (self._calendar.same, self._calendar.later)
        )
        if earlier is None or later is None:
            return [], []
        cases: list[Case] = []
        other = metric_reports.read_day(self._calendar.later[0])
        for day in self._calendar.same:
            cases += yield_independent_cases(
                _count_matches(*metric_reports.read_day(day).match_devices(other)),
                metric_reports.expected,
            )
        first, second = metric_reports.read_day(FIRST_DAY).match_devices(
            other.select(other.devices % 2 == 0)
        )
        same = int((first.cohorts == second.cohorts).sum())
        cases.append(
            Case("one cohort in two epochs", same, len(first.devices), 1 / metric_reports.params.m)
        )
        earlier, later = earlier.match_devices(later)
        ratio = compute_shared_response_ratio(
            earlier.count_ones(),
            later.count_ones(),
            (earlier.truth, later.truth),
            metric_reports.params,
        )
        return cases, [sum_log_ratio("one permanent response for two epochs", ratio)]

    def _check_clock(self, metric_reports: _MetricReports) -> Check:
        """Compare the reports after the clock was set back with the reports of both epochs.

        A correct client repeats the response of the first epoch, to which its clock points, or of
        the second epoch, which it has reached. The cohort says which. With one cohort, the reports
        must agree with the first epoch on all devices, or with the second epoch on all devices: a
        correct client decides by the dates, which are the same on all devices.
        """
        name = "client: a clock set back brings no third response"
        back = metric_reports.read_days(self._calendar.back)
        epochs = [
            days
            for places in (self._calendar.same, self._calendar.later)
            if (days := metric_reports.read_days(places)) is not None
        ]
        if back is None or len(epochs) < 2:
            return mark_not_seen(name, "the metric has no second epoch")
        matched_devices = set[int]()
        evidence: list[_Evidence] = []
        for number, epoch in enumerate(epochs, start=1):
            earlier, after = epoch.match_devices(back)
            same = earlier.cohorts == after.cohorts
            if metric_reports.params.m > 1:
                # Two epochs have one cohort by accident on one device of m: compare it once.
                same &= ~np.isin(earlier.devices, list(matched_devices))
                matched_devices |= set(earlier.devices[same].tolist())
            evidence.append(
                _compare_clock(
                    earlier.select(same), after.select(same), number, metric_reports.params
                )
            )
        if metric_reports.params.m == 1:
            checks = [check_binomial(name, *compared) for compared in evidence]
            return max(checks, key=lambda check: 1.0 if check.p_value is None else check.p_value)
        unknown_devices = len(set(back.devices.tolist()) - matched_devices)
        unknown = Case("in a cohort of neither epoch", unknown_devices, len(back.devices), 0.0)
        cases = [case for compared, _ in evidence for case in compared]
        ratios = [ratio for _, compared in evidence for ratio in compared]
        return check_binomial(name, [*cases, unknown], ratios)

    def _compare_many_reports(self, metric_reports: _MetricReports) -> _Evidence:
        """Compare the i-th reports of all devices with many reports, and reports at a period.

        Reports are compared with the permanent response if enough reports reveal it, else with the
        true bits. Each report is also compared with the report before. Reports at a period are
        compared with the other reports of their epoch, which share one permanent response: that
        shows a fault of every 100th report in few bits, and in epochs of few reports.
        """
        cases: list[Case] = []
        log_ratios = np.zeros((len(_PERIODS), 2))
        params = metric_reports.params
        repeats = np.zeros((MANY_REPORTS, 2), dtype=np.int64)  # report, (equal, n)
        match_probability = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q)) ** params.k
        # Twice the number of reports that reveals the permanent response with probability .99.
        n_needed = 2 * (reports_to_recover(params) or MANY_REPORTS)
        counts = np.zeros(
            (MANY_REPORTS, 2, 2, 2), dtype=np.int64
        )  # report, is permanent, bit, (ones, n)
        values, many, epochs = self._many
        first_twin = np.zeros((MANY_REPORTS, params.k), dtype=np.bool_)
        for device, (value, device_reports) in enumerate(zip(values.tolist(), many, strict=True)):
            reports = metric_reports.select_valid(device_reports)[:MANY_REPORTS]
            n_reports = len(reports)
            inputs = metric_reports.compute_true_bits(reports, np.full(n_reports, value))
            # Twins with the same true bits share their permanent coins, so only the first twin of
            # such a pair is counted.
            differs = (inputs != first_twin[:n_reports]).any(axis=1)
            is_counted = np.full(n_reports, device % 2 == 0) | differs
            first_twin[:n_reports] = inputs
            bits = unpack(b"".join(report.bits for report in reports), params)
            is_equal = (bits[1:] == bits[:-1]).all(axis=1)
            repeats[1:n_reports] += np.stack([is_equal, np.ones_like(is_equal)], axis=1)
            log_ratios += _compare_periods(
                bits, inputs, epochs[:n_reports], is_counted, metric_reports.params
            )
            is_known = np.zeros(n_reports, dtype=np.int64)
            for epoch in np.unique(epochs):
                rows = np.flatnonzero(epochs == epoch)
                if n_reports == MANY_REPORTS and len(rows) >= n_needed:
                    inputs[rows] = bits[rows].mean(axis=0) > (params.p + params.q) / 2
                    is_known[rows] = 1
            for one in (0, 1):
                selected = (inputs == one) & is_counted[:, None]
                rows_and_stage = np.arange(n_reports), is_known
                np.add.at(counts[..., one, 0], rows_and_stage, (bits & selected).sum(axis=1))
                np.add.at(counts[..., one, 1], rows_and_stage, selected.sum(axis=1))
        expected = (metric_reports.expected, (params.p, params.q))
        for index, is_permanent, one in np.ndindex(MANY_REPORTS, 2, 2):
            ones, n = counts[index, is_permanent, one].tolist()
            what = f"report {index + 1:,} given {('true', 'permanent')[is_permanent]} {one}"
            cases.append(Case(what, ones, n, expected[is_permanent][one]))
        # With few bits two correct reports are often equal. Then a probability of 1/2 is tested,
        # because 8 devices cannot show that equal reports are too frequent.
        for index, (n_equal, n) in enumerate(repeats.tolist()):
            what = f"report {index + 1:,} equals the one before"
            cases.append(Case(what, n_equal, n, min(match_probability, 0.5)))
        names = [
            f"no fresh noise in {which} {period:,} reports"
            for period in _PERIODS
            for which in ("each of", "the first of each")
        ]
        values_by_period = log_ratios.ravel().tolist()
        return cases, [LogRatio(*pair) for pair in zip(names, values_by_period, strict=True)]

    def _check_noise(self, name: str, *, equals_truth: bool) -> Check:
        """Count the devices with a report that equals its true bits, or another report.

        The probability for one device is at most the sum over its reports, or over pairs of its
        reports.
        """
        params = self.metric_reports.params
        days = [self.metric_reports.read_day(day) for day in range(len(self._calendar.days) - 1)]
        if equals_truth:
            p_equal = max(1 - params.p_star, params.q_star) ** params.k
            comparisons = [(day.devices, (day.bits == day.truth).all(axis=1)) for day in days]
        else:
            p_equal = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q)) ** params.k
            pairs = (first.match_devices(second) for first, second in combinations(days, 2))
            comparisons = [(a.devices, (a.bits == b.bits).all(axis=1)) for a, b in pairs]
        devices = {int(device) for day in days for device in day.devices}
        noiseless = {
            int(device) for numbers, is_equal in comparisons for device in numbers[is_equal]
        }
        bound = len(comparisons) * p_equal
        return check_rare(name, len(noiseless), len(devices), bound, "have such a report")

    def _check_times(self) -> Check:
        """Compare, for each value, how often reports are sent later than the median of the day.

        Of a day's N reports, K are later than the median. If a value has n of them, the number of
        its later reports is hypergeometric(N, K, n), provided that times do not depend on values.
        Days are independent, so the distributions are convolved.
        """
        name, metric_name = "client: times do not depend on the value", self._metric.name
        n_values = len(self._texts)
        n_late, distributions = np.zeros(n_values, dtype=np.int64), [np.ones(1)] * n_values
        for day in range(len(self._calendar.days) - 1):
            new = self._histories.list_new_reports(day, 1)
            values_and_times = [
                (value, report.due)
                for value, reports in zip(self._histories.values[:, day], new, strict=True)
                for report in reports[-1:]
                if report.metric == metric_name
            ]
            due = np.array([time for _, time in values_and_times if time is not None])
            if len(due) < len(values_and_times) or not values_and_times:
                continue
            is_late = due > np.median(due)
            day_values = np.array([value for value, _ in values_and_times])
            for value in range(n_values):
                has_value = day_values == value
                n, total = int(has_value.sum()), int(is_late.sum())
                n_late[value] += int(is_late[has_value].sum())
                pmf = stats.hypergeom.pmf(np.arange(n + 1), len(due), total, n)
                distributions[value] = np.convolve(distributions[value], pmf)
        if max(map(len, distributions)) == 1:
            return mark_not_seen(name, "no moment of sending is told")
        p_values = [
            2 * min(pmf[: count + 1].sum(), pmf[count:].sum())
            for count, pmf in zip(n_late, distributions, strict=True)
        ]
        p_value = min(1.0, float(min(p_values)) * n_values)
        worst = int(np.argmin(p_values))
        of_all = f"{n_late[worst]:,} of its {len(distributions[worst]) - 1:,} reports"
        detail = f"value {worst + 1} of {n_values}: {of_all} leave later than the day's median"
        return check_p_value(name, p_value, detail)

    def _check_ledger(self) -> Check:
        """Compare the recorded privacy losses with the smallest and largest loss of the reports."""
        name = "client: the ledger counts"
        # A device without reports, as under a sampling rate, has no loss.
        last = [state.spent for state in self._histories.states_by_day[-1] if state.waiting]
        if None in last or not last:
            return mark_not_seen(name, "devices count no nats")
        scopes = len({day.epoch for day in self._calendar.days})
        least = epsilon_1(self.metric_reports.params)
        most = scopes * scope_cost(self.metric_reports.metric)
        falling = sum(
            (later.spent or 0) < (earlier.spent or 0)
            for earlier, later in self._list_state_changes()
        )
        outside = sum(
            not least - _NATS_TOLERANCE <= (nats or 0) <= most + _NATS_TOLERANCE for nats in last
        )
        counted = (
            f"{falling:,} times the nats of a device fell, {outside:,} of {len(last):,} devices"
        )
        detail = f"{counted} count less than {least:.3f} or more than {most:.3f}"
        return check_condition(name, detail, is_fault=falling + outside > 0)


def _count_twin_differences(runs: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Count the differences between twins, over days and pairs, and the number of comparisons."""
    pairs = [pair for run in runs for pair in zip(run[::2], run[1::2], strict=True)]
    return sum(first != second for first, second in pairs), len(pairs)


def _check_choice(metric_reports: _MetricReports, chosen: RecordedReports) -> Check:
    """Test that each event of an interval is equally likely to be reported.

    The events have two values, drawn by fair coins. A report with the first value's bit and without
    the second value's bit indicates the first value. The indication is right with a probability
    that follows from p* and q*.
    """
    name = "client: any event of an interval is chosen"
    formed = [
        (row, valid[-1])
        for row, reports in enumerate(chosen.reports)
        if (valid := metric_reports.select_valid(reports))
    ]
    reports = [report for _, report in formed]
    values = chosen.values[[row for row, _ in formed]]
    bits = unpack(b"".join(report.bits for report in reports), metric_reports.params)
    zero, one = (
        metric_reports.compute_true_bits(reports, np.full(len(reports), value)) for value in (0, 1)
    )
    shown = _compute_indications(bits, zero & ~one), _compute_indications(bits, one & ~zero)
    indicated = np.sign(shown[1] - shown[0])  # 1 indicates the second value, -1 the first
    has_both = (shown[0] != 0) & (shown[1] != 0)
    p, q = metric_reports.params.p_star, metric_reports.params.q_star
    right = q * (1 - p) / (q * (1 - p) + p * (1 - q)), (q + 1 - p) / 2
    tells = has_both & (indicated != 0), ~has_both & (indicated != 0)
    cases = [
        Case(
            f"the value of event {event + 1} of {EVENTS_TO_CHOOSE}",
            int((indicated[rows] == 2 * values[rows, event] - 1).sum()),
            int(rows.sum()),
            (probability + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE,
        )
        for rows, probability in zip(tells, right, strict=True)
        for event in range(EVENTS_TO_CHOOSE)
    ]
    ones, n = int((indicated[tells[0]] == 1).sum()), int(tells[0].sum())
    return check_binomial(name, [*cases, Case("the second of two values", ones, n, 0.5)])


def _compute_indications(bits: Booleans, only: Booleans) -> Integers:
    """Return, by report, 1 if the first bit of `only` is set, -1 if not, and 0 without such a bit.

    `only` is (n, k) bool: the bits that one of two values sets and the other does not.
    """
    first_bits = np.take_along_axis(bits, np.argmax(only, axis=1)[:, None], axis=1)[:, 0]
    return np.where(only.any(axis=1), np.where(first_bits, 1, -1), 0)


def _yield_bit_cases(metric_reports: _MetricReports) -> Iterator[Case]:
    """Yield the counts of ones of all devices, and of the devices with each value."""
    seen = metric_reports.read_day(FIRST_DAY)
    values = metric_reports.histories.values[seen.devices, FIRST_DAY]
    groups = {f"value {value + 1}": values == value for value in np.unique(values)}
    for name, rows in {"all values": values >= 0, **groups}.items():
        for bit, probability in enumerate(metric_reports.expected):
            at = (seen.truth == bit) & rows[:, None]
            ones, n = int(seen.bits[at].sum()), int(at.sum())
            yield Case(f"{name}, given true {bit}", ones, n, probability)


def _compare_devices(metric_reports: _MetricReports) -> _Evidence:
    """Compare the reports and cohorts of pairs of unrelated devices."""
    seen = metric_reports.read_day(FIRST_DAY)
    seen = seen.select(seen.devices % 2 == 0)
    half = len(seen.devices) // 2
    first, second = seen.select(np.arange(half)), seen.select(np.arange(half, 2 * half))
    same = int((first.cohorts == second.cohorts).sum())
    cases = [
        *yield_independent_cases(_count_matches(first, second), metric_reports.expected),
        Case("two devices in one cohort", same, half, 1 / metric_reports.params.m),
    ]
    days = metric_reports.read_days(metric_reports.histories.calendar.same)
    if days is None:
        return cases, []
    # Devices with one secret have one permanent response to a value, in one cohort. With one cohort
    # the cohorts say nothing, so all reports of the devices are compared: pair by pair for secrets
    # that only some devices share, and in groups of one value for a secret that all devices have.
    days = days.select(days.devices % 2 == 0)
    half = len(days.devices) // 2
    one, other = days.select(np.arange(half)), days.select(np.arange(half, 2 * half))
    is_alike = (one.truth == other.truth).all(axis=1) & (one.cohorts == other.cohorts)
    one, other = one.select(is_alike), other.select(is_alike)
    params = metric_reports.params
    pair_ratio = compute_shared_response_ratio(
        one.count_ones(), other.count_ones(), (one.truth, other.truth), params
    )
    keys = np.column_stack([days.cohorts, days.truth])
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    group_ratio = compute_common_response_ratio(
        days.count_ones(), groups.ravel(), days.truth, params
    )
    return cases, [
        sum_log_ratio("one permanent response of two devices", pair_ratio),
        sum_log_ratio("one permanent response of all devices", group_ratio),
    ]


def _compare_periods(
    bits: Booleans, truth: Booleans, epochs: Integers, is_counted: Booleans, params: Params
) -> Floats:
    """Compute log ratios of a device whose reports at a period have no fresh noise.

    Parameters
    ----------
    bits, truth : (n, k) bool. Reports of the device in their order, and their true bits.
    epochs : (n,) int64. Index of the epoch of each report.
    is_counted : (n,) bool. False if the first twin has the same permanent coins.

    Returns
    -------
    (len(_PERIODS), 2). Log ratio of the fault at the last and at the first report of each period.
    """
    ratios = np.zeros((len(_PERIODS), 2))
    if not len(bits):
        return ratios
    _, first_rows, epoch_rows = np.unique(epochs, return_index=True, return_inverse=True)
    all_ones = np.zeros((len(first_rows), bits.shape[1]), dtype=np.int64)
    np.add.at(all_ones, epoch_rows, bits)
    n_all = np.bincount(epoch_rows)[:, None]
    is_new = is_counted[first_rows]
    for row, period in enumerate(_PERIODS):
        for column, start in enumerate((period - 1, 0)):
            ones = np.zeros_like(all_ones)
            np.add.at(ones, epoch_rows[start::period], bits[start::period])
            n = np.bincount(epoch_rows[start::period], minlength=len(first_rows))[:, None]
            ratio = compute_noiseless_ratio(
                OnesOf(all_ones - ones, n_all - n), OnesOf(ones, n), truth[first_rows], params
            )
            ratios[row, column] = ratio[is_new].sum()
    return ratios


def _compare_clock(
    earlier: _SeveralDays, after: _SeveralDays, epoch: int, params: Params
) -> _Evidence:
    """Compare the reports after the clock was set back with the reports of one epoch."""
    cases: list[Case] = []
    for day, bits in enumerate(after.bits, start=1):
        matches = MatchCounts()
        matches.add(earlier.bits[0], bits, (earlier.truth, earlier.truth))
        cases += yield_repeated_cases(matches, params, f"in epoch {epoch}, {day} days later")
    ratio = compute_second_response_ratio(
        earlier.count_ones(), after.count_ones(), (earlier.truth, after.recorded), params
    )
    return cases, [sum_log_ratio(f"a third permanent response beside epoch {epoch}", ratio)]


def _count_matches(first: _DayReports, second: _DayReports) -> MatchCounts:
    matches = MatchCounts()
    matches.add(first.bits, second.bits, (first.truth, second.truth))
    return matches
