"""Audit of a client: compare the reports of simulated devices over restarts, days and epochs.

For authors of a client of the protocol. Input: a command that represents the client, and a metric.
Output: an `Audit` with about 20 checks. This module compares the states and reports of devices with
a correct client. Other modules of the audit of a client:

    device_calendar     the days of the histories
    device_histories    runs the devices
    device_reports      their reports as arrays, with the true bits behind them
    many_reports        the check of 1,000 reports of a device
    event_choice        the check of the choice among the events of an interval
    folder              the checks of files
    likelihood_ratios   how much better a fault explains the reports than a correct client
    detectable_faults   which faults the number of devices is too small for

The audit sees reports, cohorts, recorded losses and files, but neither a secret nor a permanent
response. There are three kinds of checks:

- *Exact*: two twins (devices with one secret and different values) must agree in everything that
  must not depend on values. One difference is a fault.
- *Binomial*: a count of bits, devices or reports has a known probability under a correct client.
- *Likelihood ratio*: the reports of all days together are compared with a named fault
  (`rappor.auditing.likelihood_ratios`). This finds faults that no single count shows.

    check                                          statistic
    twins: as many reports, of the same form       days with a difference of form; exact
    twins: the same nats                           days with a difference of loss; exact
    client: reports have the metric's form         reports of an unknown form; exact
    client: finished reports stay as they are      states with a changed report; exact
    client: one report an interval                 intervals with a second report; exact
    client: one cohort in an epoch                 reports in another cohort; exact
    client: every device reports                   pairs of twins with a report in each epoch
    client: share of ones                          ones by true bit: p* or q*
    client: one permanent response in an epoch     a bit 1 on two days; ratios: redrawn, second
    client: another epoch is independent           a bit 1 in two epochs; ratio: shared response
    client: each of 1,000 reports has its noise    ones of the i-th report; ratios at each period
    client: devices differ                         a bit 1 on two devices; ratios: shared, common
    client: no coins come again after a restart    bits equal in all pairs of runs; ratio: coins
    client: a clock set back ...                   a bit 1 on two days; ratio: third response
    client: no report is the true bits             devices with such a report
    client: no report comes again                  devices with two equal reports
    client: times do not depend on the value       late reports of a value: hypergeometric
    client: the ledger counts                      losses that fall or lie outside bounds; exact
    client: any event of an interval is chosen     reports that indicate event i
    folder: ...                                    files (`rappor.auditing.folder`); exact

False alarms: an exact check never errs, and each other check errs with probability at most
`FALSE_ALARM_RATE`. `NOT_EXAMINED` lists what the audit does not look at.

The true bits of a report are the bits of the value that a correct client reports: a scope is
memoized with the first value of its epoch, so later values of the epoch do not count. p* and q* are
the probabilities of a reported 1 for a true bit 0 and 1; p and q the same for a bit of the
permanent response; f1 and 1 - f0 the probabilities of a permanent 1 for a true bit 0 and 1.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Final

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
from rappor.auditing.device_calendar import FIRST_DAY, RESTART_DAY
from rappor.auditing.device_histories import (
    ClientProgram,
    DeviceHistories,
    DeviceState,
    RecordedReports,
    choose_values,
)
from rappor.auditing.device_reports import (
    CasesAndRatios,
    DayReports,
    MetricReports,
    SeveralDays,
)
from rappor.auditing.event_choice import check_choice
from rappor.auditing.evidence import MatchCounts
from rappor.auditing.folder import check_folder
from rappor.auditing.likelihood_ratios import (
    compute_common_response_ratio,
    compute_redrawn_ratio,
    compute_repeated_coins_ratio,
    compute_second_response_ratio,
    compute_shared_response_ratio,
    sum_log_ratio,
)
from rappor.auditing.many_reports import compare_many_reports
from rappor.auditing.pairs import TrueBits
from rappor.auditing.probabilities import yield_independent_cases, yield_repeated_cases
from rappor.auditing.reference_encoder import check_separate_bits
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import read_count
from rappor.base.sentence_numbers import format_count
from rappor.protocol.loss import epsilon_1
from rappor.protocol.params import Params
from rappor.protocol.tuples import split_fields
from rappor.registry.budget import scope_cost
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_MIN_DEVICES, _MAX_DEVICES = 20, 10_000
"""Smallest and largest number of devices with a history.

Fewer devices show almost no fault. Each device takes files, and 7 milliseconds for each day.
"""

_CHOOSING_PER_DEVICE: Final = 6
"""Number of choosing devices for each device with a history, if the caller passes `devices`.

A choosing device runs two days instead of 13, so six of them take about as long.
"""

_NATS_TOLERANCE: Final = 1e-6
"""Nats by which a recorded loss may exceed its bounds, because clients round losses."""

_MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - private folders below it
"""Folder in memory in which the devices' folders are created, if the system has it.

Devices flush every event to the disk, which takes most of the time on a real disk.
"""

NOT_EXAMINED: Final = (
    "Consent: withdrawal, opting out, and the data that they erase.",
    "Delivery: the bytes, segments and addresses of uploads, retries and logs, and their links.",
    "Times: a sending time that depends on the value only a little, only on few days, or without "
    "being earlier or later.",
    "Accidents: a full or damaged disk, a killed process, a folder that is copied later.",
    "Concurrency: two processes or threads on one device.",
    "Secrets: a secret of few random bits, such as 16, or from a predictable set.",
    "Dates: a fault at midnight, in an hour without an event, at the end of a year, or much later.",
    "Many reports: a fault after 1,000 reports, or at no fixed period; noise that is repeated "
    "later than in the next report.",
    "Values: other values; a file that contains a value encrypted or rearranged, or reveals it by "
    "its size.",
    "Ledger: wrong nats that are equal on twins and within their bounds.",
    "Rare faults: for example missing noise of one value. --command tests many more devices, and "
    "measures losses.",
)
"""Limits of the audit, one sentence each. They are part of `Audit.not_examined`."""


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
        If `devices` is outside its range, or the reports of the metric name one bucket.
    ReportError
        If the command fails or writes other lines than described.

    Examples
    --------
    The client of this project passes. With the smallest number of devices the audit takes seconds:

    >>> import pathlib, sys, tempfile
    >>> from rappor import Registry
    >>> from rappor.auditing import audit_client
    >>> text = '''
    ... [budget]
    ... total = 24
    ... [metrics.theme]
    ... description = "Light or dark appearance"
    ... owner = "design@example.org"
    ... expires = 2099-12-31
    ... encoding = "onehot"
    ... categories = ["light", "dark"]
    ... profile = "balanced"
    ... epoch = "quarter"
    ... '''
    >>> command = [sys.executable, "-m", "rappor_client.audited"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "metrics.toml")
    ...     _ = path.write_text(text)
    ...     metric = Registry.load(path)["theme"]
    ...     audit_client(command, metric, path, devices=20, seed=1).passed
    True
    """
    rng = Keystream(seed).generator()
    texts = choose_values(metric, rng)
    truth = TrueBits(metric.params, texts)
    check_separate_bits(metric)
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
        # A device may store the fields of a tuple one by one, so each field is searched for.
        fields = [field for text in texts for field in split_fields(text)]
        file_checks = [*check_folder(root, fields, metric.params.categories)]
    comparison = _ClientComparison(metric, histories, many, texts)
    missed = list_missed_faults(metric, truth, sizes)
    return Audit(
        metric=metric,
        trials=sizes.histories,
        n_reports=len(histories.calendar.days),
        level=FALSE_ALARM_RATE,
        checks=(
            *comparison.checks(),
            check_choice(comparison.metric_reports, chosen),
            *file_checks,
        ),
        not_examined=(*NOT_EXAMINED, *_format_missed(missed, sizes.histories)),
    )


def _format_missed(missed: Sequence[str], devices: int) -> list[str]:
    """Format the missed faults as a sentence, or return nothing if no fault is missed."""
    if not missed:
        return []
    return [
        f"Parameters: with the noise of this metric, {devices} devices would often miss these "
        f"faults: {'; '.join(missed)}. In brackets: the probability that an audit finds the fault."
    ]


class _ClientComparison:
    """The checks of this module's table, except the choice among events and the files."""

    def __init__(
        self,
        metric: Metric,
        histories: DeviceHistories,
        many: RecordedReports,
        texts: Sequence[str],
    ) -> None:
        self.metric_reports = MetricReports(metric, histories, texts)
        self._metric, self._histories, self._many, self._texts = metric, histories, many, texts
        self._calendar = histories.calendar

    def checks(self) -> Iterator[Check]:
        """Yield all checks of the reports and states.

        The tables below map the name of a check to the method that counts for it.
        """
        exact: dict[str, Callable[[], tuple[int, int]]] = {
            "twins: as many reports, of the same form": self._count_different_forms,
            "twins: the same nats": self._count_different_nats,
            "client: reports have the metric's form": self._count_invalid,
            "client: finished reports stay as they are": self._count_changed,
            "client: one report an interval": self._count_extra_reports,
            "client: one cohort in an epoch": self._count_changed_cohorts,
        }
        binomial: dict[str, Callable[[MetricReports], Iterator[Case]]] = {
            "client: share of ones": _yield_bit_cases,
        }
        compared: dict[str, Callable[[MetricReports], CasesAndRatios]] = {
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
        """Count the states in which the reports of two twins differ in their form.

        The form of a report is its metric, parameters, cohort and size. A value that decides how
        many reports a device makes, or which, would be revealed by the reports' number or form.
        """
        days = [[state.waiting for state in day] for day in self._histories.states_by_day]
        runs = [*days, self._many.reports]
        return _count_twin_differences(
            [[[report.form for report in reports] for reports in run] for run in runs]
        )

    def _count_different_nats(self) -> tuple[int, int]:
        """Count the days on which two twins have recorded different privacy losses.

        A loss that depends on the value would reveal the value to whoever reads the loss.
        """
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
                # Not a fault: a metric that reports once an epoch drops an unsent report when the
                # epoch is over.
                continue
            n_states += len(after)
            for earlier, later in zip(before, after, strict=True):
                n_changed += later.waiting[: len(earlier.waiting)] != earlier.waiting
        return n_changed, n_states

    def _list_state_changes(self) -> list[tuple[DeviceState, DeviceState]]:
        """Return pairs of states of one device, after a day's run and after the next day's run."""
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

    def _compare_days(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the reports of the first epoch, which share one permanent response.

        Counts: a bit is 1 in the first report and in a later report. Log ratios: a permanent
        response that each restart redraws, and a second response after the value has changed.
        """
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
            # Too few days: one report after the change cannot show a second permanent response.
            return cases, []
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

    def _compare_runs(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the fresh coins of two runs in a row, in which devices have one order.

        A generator that restarts with the process draws the same coins for the same device again.
        Then a bit is the same in both runs, because its permanent response is the same too. Count:
        bits that are the same in all r pairs of runs. A correct client has them with probability

            (1 - a) (p^2 + (1 - p)^2)^r + a (q^2 + (1 - q)^2)^r,   a = f1 or 1 - f0.
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

    def _compare_epochs(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the reports of two epochs, which have independent coins and cohorts.

        Counts: a bit is 1 in both epochs, and a device has the same cohort in both epochs. Log
        ratio: one permanent response for both epochs.
        """
        earlier, later = (
            metric_reports.read_days(day_indices)
            for day_indices in (self._calendar.same, self._calendar.later)
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
        # Twins have one secret and so one cohort: compare the cohorts of first twins only.
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

    def _check_clock(self, metric_reports: MetricReports) -> Check:
        """Compare the reports after the clock was set back with the reports of both epochs.

        A correct client repeats the response of the first epoch, to which its clock points, or of
        the second epoch, which it has reached. There are two cases:

        - Several cohorts: the cohort of a report shows which epoch the device repeats, because two
          epochs have independent cohorts. A report in a cohort of neither epoch is a fault.
        - One cohort: the reports must agree with the first epoch on all devices, or with the second
          epoch on all devices. A correct client decides by the dates, which are the same on all
          devices. So the larger of the two p-values counts.
        """
        name = "client: a clock set back brings no third response"
        back = metric_reports.read_days(self._calendar.back)
        epochs = [
            days
            for day_indices in (self._calendar.same, self._calendar.later)
            if (days := metric_reports.read_days(day_indices)) is not None
        ]
        if back is None or len(epochs) < 2:
            return mark_not_seen(name, "the metric has no second epoch")
        matched_devices = set[int]()
        evidence: list[CasesAndRatios] = []
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

    def _compare_many_reports(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the reports of the sending devices (`rappor.auditing.many_reports`)."""
        return compare_many_reports(metric_reports, self._many)

    def _check_noise(self, name: str, *, equals_truth: bool) -> Check:
        """Count the devices with a report that equals its true bits, or another report of theirs.

        `equals_truth` selects the comparison. A report equals its true bits with probability at
        most max(1 - p*, q*)^k. Two reports of one permanent response are equal with probability at
        most (max over x in {p, q} of x^2 + (1 - x)^2)^k. The probability for one device is at most
        the sum over its reports, or over the pairs of its reports.
        """
        params = self.metric_reports.params
        days = [self.metric_reports.read_day(day) for day in range(len(self._calendar.days) - 1)]
        if equals_truth:
            p_equal = max(1 - params.p_star, params.q_star) ** params.k
            comparisons = [(day.devices, (day.bits == day.truth).all(axis=1)) for day in days]
        else:
            p_equal = max(one**2 + (1 - one) ** 2 for one in (params.p, params.q)) ** params.k
            pairs = (first.match_devices(second) for first, second in combinations(days, 2))
            comparisons = [
                (first.devices, (first.bits == second.bits).all(axis=1)) for first, second in pairs
            ]
        devices = {int(device) for day in days for device in day.devices}
        noiseless = {
            int(device) for numbers, is_equal in comparisons for device in numbers[is_equal]
        }
        bound = len(comparisons) * p_equal
        return check_rare(name, len(noiseless), len(devices), bound, "have such a report")

    def _check_times(self) -> Check:
        """Compare, for each value, how often reports are sent later than the median of the day.

        Of a day's N reports, K are later than the median. If n of the reports are of one value, the
        number of its late reports is hypergeometric(N, K, n), provided that times do not depend on
        values. Days are independent, so the distributions of a value's late reports are convolved
        over the days. The p-value is two-sided, with Bonferroni's correction for the values.
        """
        name, metric_name = "client: times do not depend on the value", self._metric.name
        n_values = len(self._texts)
        n_late = np.zeros(n_values, dtype=np.int64)
        # For each value: probabilities of 0, 1, 2, ... late reports on the days so far.
        distributions = [np.ones(1)] * n_values
        for day in range(len(self._calendar.days) - 1):
            new = self._histories.list_new_reports(day, 1)
            values_and_times = [
                (value, report.due)
                for value, reports in zip(self._histories.values[:, day], new, strict=True)
                for report in reports[-1:]
                if report.metric == metric_name
            ]
            send_times = np.array([time for _, time in values_and_times if time is not None])
            # A day without reports, or with a report whose time the client does not reveal.
            if len(send_times) < len(values_and_times) or not values_and_times:
                continue
            is_late = send_times > np.median(send_times)
            day_values = np.array([value for value, _ in values_and_times])
            for value in range(n_values):
                has_value = day_values == value
                n, n_late_reports = int(has_value.sum()), int(is_late.sum())
                n_late[value] += int(is_late[has_value].sum())
                pmf = stats.hypergeom.pmf(np.arange(n + 1), len(send_times), n_late_reports, n)
                distributions[value] = np.convolve(distributions[value], pmf)
        if max(map(len, distributions)) == 1:
            return mark_not_seen(name, "the client reveals no sending time")
        p_values = [
            2 * min(pmf[: count + 1].sum(), pmf[count:].sum())
            for count, pmf in zip(n_late, distributions, strict=True)
        ]
        p_value = min(1.0, float(min(p_values)) * n_values)
        worst = int(np.argmin(p_values))
        of_all = f"{n_late[worst]:,} of its {len(distributions[worst]) - 1:,} reports"
        detail = f"value {worst + 1} of {n_values}: {of_all} are sent later than the day's median"
        return check_p_value(name, p_value, detail)

    def _check_ledger(self) -> Check:
        """Compare the recorded privacy losses with the smallest and largest loss of the reports.

        A loss must never fall. After the last day it must be at least epsilon_1, the loss of one
        report, and at most the cost of one scope for each epoch of the history.
        """
        name = "client: the ledger counts"
        # A device without reports has no loss: under a sampling rate it does not take part.
        last = [state.spent for state in self._histories.states_by_day[-1] if state.waiting]
        if None in last or not last:
            return mark_not_seen(name, "the client records no privacy loss")
        # Each epoch of the history is a scope of its own, and its cost adds to the loss.
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
        detail = (
            f"the loss of a device fell {falling:,} times; {outside:,} of {len(last):,} devices "
            f"record less than {least:.3f} or more than {most:.3f} nats"
        )
        return check_condition(name, detail, is_fault=falling + outside > 0)


def _count_twin_differences(runs: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Count the differences between twins, over days and pairs, and the number of comparisons.

    `runs` has, for each run, one comparable object for each device. The devices 2i and 2i + 1 are
    twins.
    """
    pairs = [pair for run in runs for pair in zip(run[::2], run[1::2], strict=True)]
    return sum(first != second for first, second in pairs), len(pairs)


def _yield_bit_cases(metric_reports: MetricReports) -> Iterator[Case]:
    """Yield the counts of ones on the first day: of all devices, and of devices with each value."""
    seen = metric_reports.read_day(FIRST_DAY)
    values = metric_reports.histories.values[seen.devices, FIRST_DAY]
    groups = {f"value {value + 1}": values == value for value in np.unique(values)}
    for name, rows in {"all values": values >= 0, **groups}.items():
        for bit, probability in enumerate(metric_reports.expected):
            is_counted = (seen.truth == bit) & rows[:, None]
            ones, n = int(seen.bits[is_counted].sum()), int(is_counted.sum())
            yield Case(f"{name}, given true {bit}", ones, n, probability)


def _compare_devices(metric_reports: MetricReports) -> CasesAndRatios:
    """Compare the reports and cohorts of pairs of unrelated devices.

    Only first twins are compared, each in one pair: the i-th device of the first half with the i-th
    device of the second half. Counts: a bit is 1 on both devices, and both have one cohort. Log
    ratios: one permanent response of two devices with the same cohort and true bits, and one
    permanent response of all devices with the same cohort and true bits.
    """
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
    first_half, second_half = days.select(np.arange(half)), days.select(np.arange(half, 2 * half))
    is_comparable = (first_half.truth == second_half.truth).all(axis=1) & (
        first_half.cohorts == second_half.cohorts
    )
    first_half, second_half = first_half.select(is_comparable), second_half.select(is_comparable)
    params = metric_reports.params
    pair_ratio = compute_shared_response_ratio(
        first_half.count_ones(),
        second_half.count_ones(),
        (first_half.truth, second_half.truth),
        params,
    )
    # A group is the devices of one cohort with equal true bits.
    keys = np.column_stack([days.cohorts, days.truth])
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    group_ratio = compute_common_response_ratio(
        days.count_ones(), groups.ravel(), days.truth, params
    )
    return cases, [
        sum_log_ratio("one permanent response of two devices", pair_ratio),
        sum_log_ratio("one permanent response of all devices", group_ratio),
    ]


def _compare_clock(
    earlier: SeveralDays, after: SeveralDays, epoch: int, params: Params
) -> CasesAndRatios:
    """Compare the reports after the clock was set back with the reports of one epoch.

    `earlier` has the reports of the epoch with number `epoch` (1 or 2), `after` the later reports
    of the same devices. A correct client that repeats this epoch has one permanent response.
    """
    cases: list[Case] = []
    for day, bits in enumerate(after.bits, start=1):
        matches = MatchCounts()
        matches.add(earlier.bits[0], bits, (earlier.truth, earlier.truth))
        cases += yield_repeated_cases(matches, params, f"in epoch {epoch}, {day} days later")
    ratio = compute_second_response_ratio(
        earlier.count_ones(), after.count_ones(), (earlier.truth, after.recorded), params
    )
    return cases, [sum_log_ratio(f"a third permanent response, compared with epoch {epoch}", ratio)]


def _count_matches(first: DayReports, second: DayReports) -> MatchCounts:
    """Count the bits that are 1 in both of two reports, row by row."""
    matches = MatchCounts()
    matches.add(first.bits, second.bits, (first.truth, second.truth))
    return matches
