"""Audit of a client: compare the reports of simulated devices over restarts, days and epochs.

Authors of a client of the protocol call `audit_client`. The input is a command that represents the
client, and a metric. The output is an `Audit` with about 20 checks. This module compares the states
and reports of simulated devices with a correct client. Other modules of the audit of a client:

    device_calendar     the days of the histories
    device_histories    runs the devices
    device_reports      the reports of the devices as arrays, with their true bits
    many_reports        the check of 1,000 reports of a device
    bucket_reports      the checks of reports that name one bucket
    event_choice        the check of the choice among the events of an interval
    folder              the checks of files
    likelihood_ratios   likelihood ratios of faults and of a correct client
    detectable_faults   the faults that the audit may miss, because it has too few devices

The audit sees reports, cohorts, recorded losses and files, but neither a secret nor a permanent
response. There are three kinds of checks:

- *Exact*: two twins (devices with one secret and different values) must agree in everything that
  must not depend on values. One difference is a fault.
- *Binomial*: a count of bits, devices or reports has a known probability under a correct client.
- *Likelihood ratio*: the reports of all days together are compared with a named fault
  (`rappor.auditing.likelihood_ratios`). This finds faults that no single count shows. The table
  names the fault after the word "ratio".

    check                                          statistic
    twins: as many reports, of the same form       days with a difference of form; exact
    twins: the same nats                           days with a difference of loss; exact
    client: reports have the metric's form         reports of an unknown form; exact
    client: finished reports stay as they are      states with a changed report; exact
    client: one report an interval                 intervals with a second report; exact
    client: one cohort in an epoch                 reports in another cohort; exact
    client: every device reports                   pairs of twins with a report in each epoch
    client: share of ones                          ones by true bit: p* or q*
    client: one permanent response in an epoch     a bit 1 on two days; ratios: response redrawn by
                                                   each restart, second response
    client: another epoch is independent           a bit 1 in two epochs; ratio: shared response
    client: each of 1,000 reports has its noise    ones of the i-th report; ratios: no fresh noise
                                                   in each 2nd, 3rd, ... 1,000th report
    client: devices differ                         a bit 1 on two devices; ratios: response shared
                                                   by two devices, by all devices
    client: no coins come again after a restart    bits equal in all pairs of runs; ratio: fresh
                                                   coins of the run before
    client: a clock set back ...                   a bit 1 on two days; ratio: third response
    client: no report is the true bits             devices with such a report
    client: no report comes again                  devices with two equal reports
    client: times do not depend on the value       reports of a value that are sent later than the
                                                   median of the day: hypergeometric
    client: the ledger counts                      losses that fall or lie outside bounds; exact
    client: any event of an interval is chosen     reports that indicate event i
    folder: ...                                    files (`rappor.auditing.folder`); exact

If reports name one bucket (generalized randomized response), their bits exclude each other. Then
the checks of bits, of coins, of the clock, of equal reports and of 1,000 reports are replaced by
those of `rappor.auditing.bucket_reports`:

    copies: one value, one report                  copies with another report; exact
    client: own buckets are named ...              reports that name an own bucket
    client: every bucket and every item ...        reports that name bucket r, or an item by rank
    client: another epoch is independent           buckets and cohorts equal in two epochs
    client: devices differ                         cohorts of two devices; ratio: one secret

An exact check raises no false alarm. Each other check raises one with probability at most
`FALSE_ALARM_RATE`. `NOT_EXAMINED` lists the limits of the audit.

The true bits of a report are the bits of the value that a correct client reports: a scope is
memoized with the first value of its epoch, so later values of the epoch do not count.

    probability of      given a 0    given a 1
    a reported 1        p*           q*            of the true bit
    a reported 1        p            q             of the permanent response
    a permanent 1       f1           1 - f0        of the true bit

So f1 is the probability that the permanent response has a 1 for a true 0, and f0 the probability
that it has a 0 for a true 1.
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
from rappor.auditing.bucket_reports import check_bucket_reports
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
from rappor.auditing.detectable_bucket_faults import describe_small_faults
from rappor.auditing.detectable_faults import (
    SENDING_SIZES,
    AuditSizes,
    choose_sizes,
    list_missed_faults,
)
from rappor.auditing.device_calendar import FIRST_DAY, RESTART_DAY
from rappor.auditing.device_histories import (
    ClientProgram,
    CopiedReports,
    DeviceHistories,
    DeviceState,
    RecordedReports,
    Report,
    choose_values,
)
from rappor.auditing.device_reports import (
    CasesAndRatios,
    DayReports,
    MetricReports,
    SeveralDays,
    match_devices,
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
from rappor.auditing.pairs import TrueBits, split_items
from rappor.auditing.probabilities import yield_independent_cases, yield_repeated_cases
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import read_count
from rappor.base.sentence_numbers import format_count
from rappor.counts.arrays import Integers
from rappor.protocol.encodings import get_encoding
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

_COPIED_PER_DEVICE: Final = 8
"""Number of copied devices for each device with a history, if the caller passes `devices`.

A larger number finds smaller faults in the probabilities of buckets, and takes more time.
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
        If `devices` is outside its range.
    ReportError
        If the command fails or writes other lines than described.

    Examples
    --------
    The client of this project passes the audit, which takes seconds with the smallest number of
    devices:

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
    if devices is None:
        sizes = choose_sizes(metric, truth)
    else:
        n_devices = read_count("devices", devices, _MIN_DEVICES, _MAX_DEVICES) // 2 * 2
        # Only reports that name one bucket are compared with the reports of copies.
        n_copied = _COPIED_PER_DEVICE * n_devices * metric.params.response.is_exclusive
        sizes = AuditSizes(n_devices, _CHOOSING_PER_DEVICE * n_devices, SENDING_SIZES[0], n_copied)
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        program = ClientProgram(command, root, str(Path(registry).resolve()), metric, texts)
        histories = program.run_histories(sizes.histories, rng, progress)
        chosen = program.record_choices(sizes.choosing, rng, progress)
        many = program.send_many(sizes.sending, rng, progress)
        copies = program.copy(sizes.copied, progress)
        file_checks = [
            *check_folder(root, _list_stored_texts(metric, texts), metric.params.categories)
        ]
    comparison = _ClientComparison(metric, histories, many, copies, texts)
    missed = _format_missed(
        list_missed_faults(metric, truth, sizes), sizes.copied or sizes.histories
    )
    if sizes.copied:
        missed = [describe_small_faults(metric.params, truth, sizes.copied), *missed]
    return Audit(
        metric=metric,
        trials=sizes.histories,
        n_reports=len(histories.calendar.days),
        level=FALSE_ALARM_RATE,
        checks=(
            *comparison.yield_checks(),
            check_choice(comparison.metric_reports, chosen),
            *file_checks,
        ),
        not_examined=(*NOT_EXAMINED, *missed),
    )


def _list_stored_texts(metric: Metric, texts: Sequence[str]) -> list[str]:
    """List the texts of values that a device may store: the items of a set, the fields of a tuple.

    A device may store them one by one, so each is searched for.
    """
    if get_encoding(metric.params).supports_items:
        return [item for text in texts for item in split_items(metric.params, text)]
    return [field for text in texts for field in split_fields(text)]


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
        copies: CopiedReports,
        texts: Sequence[str],
    ) -> None:
        self.metric_reports = MetricReports(metric, histories, texts)
        self._metric, self._histories, self._texts = metric, histories, texts
        self._many, self._copies = many, copies
        self._calendar = histories.calendar

    def yield_checks(self) -> Iterator[Check]:
        """Yield all checks of the reports and states.

        `count_violations` maps the name of an exact check to a method. The method returns the
        number of violations of the condition, and the number of comparisons.
        """
        count_violations: dict[str, Callable[[], tuple[int, int]]] = {
            "twins: as many reports, of the same form": self._count_different_forms,
            "twins: the same nats": self._count_different_nats,
            "client: reports have the metric's form": self._count_invalid,
            "client: finished reports stay as they are": self._count_changed,
            "client: one report an interval": self._count_extra_reports,
            "client: one cohort in an epoch": self._count_changed_cohorts,
        }
        for name, count in count_violations.items():
            yield check_exact(name, count())
        yield self._check_presence()
        if self.metric_reports.params.response.is_exclusive:
            yield from check_bucket_reports(self.metric_reports, self._copies)
        else:
            yield from self._check_separate_bits()
        yield self._check_times()
        yield self._check_ledger()

    def _check_separate_bits(self) -> Iterator[Check]:
        """Yield the checks that assume independent noise on each bit of a report."""
        comparisons: dict[str, Callable[[MetricReports], CasesAndRatios]] = {
            "client: one permanent response in an epoch": self._compare_days,
            "client: another epoch is independent": self._compare_epochs,
            "client: each of 1,000 reports has its noise": self._compare_many_reports,
            "client: devices differ": _compare_devices,
            "client: no coins come again after a restart": self._compare_runs,
        }
        yield check_binomial("client: share of ones", _yield_bit_cases(self.metric_reports))
        for name, compare in comparisons.items():
            yield check_binomial(name, *compare(self.metric_reports))
        yield self._check_clock(self.metric_reports)
        yield self._check_noise("client: no report is the true bits", is_compared_with_truth=True)
        yield self._check_noise("client: no report comes again", is_compared_with_truth=False)

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
        days = [[state.finished_reports for state in day] for day in self._histories.states_by_day]
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
                n_earlier = len(earlier.finished_reports)
                n_changed += later.finished_reports[:n_earlier] != earlier.finished_reports
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
        """Count the reports of the first epoch in another cohort than the first report."""
        n_changed = n_reports = 0
        first_day = self.metric_reports.read_day(FIRST_DAY)
        # All days of the first epoch but the first: a device restarts on each of them.
        for day in self._calendar.first_epoch[RESTART_DAY:]:
            first, later = match_devices(first_day, self.metric_reports.read_day(day))
            n_changed += int((first.cohorts != later.cohorts).sum())
            n_reports += len(later.cohorts)
        return n_changed, n_reports

    def _compare_days(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the reports of the first epoch, which share one permanent response.

        Counts: a bit is 1 in the first report and in a later report. Log ratios: a permanent
        response that each restart redraws, and a second response after the value has changed.
        """
        cases: list[Case] = []
        for day in self._calendar.first_epoch[RESTART_DAY:]:
            first, later = match_devices(
                metric_reports.read_day(FIRST_DAY), metric_reports.read_day(day)
            )
            cases += yield_repeated_cases(
                _count_matches(first, later), metric_reports.params, f"on day {day + 1}"
            )
        days = metric_reports.read_days(self._calendar.first_epoch)
        if days is None or len(days.bits) <= RESTART_DAY + 1:
            # Case: the metric reports once an epoch. The first epoch then has no report after the
            # second twins have changed their value, so nothing could show a second response.
            return cases, []
        params = metric_reports.params
        redrawn = compute_redrawn_ratio(days.count_ones(), days.truth, params)
        # The second twins record another value on the days after `RESTART_DAY`. A faulty client
        # then draws a second permanent response, of the other value. Only the devices whose true
        # bits change with the value are compared.
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
        """Compare the fresh coins of two runs in a row, which have one order of the devices.

        A generator that restarts with the process draws the same coins for the same device again.
        Then a bit is the same in both runs, because its permanent response is the same too. The
        method counts the bits that are the same in all r pairs of runs. Under a correct client a
        bit is counted with probability

            (1 - a) (p^2 + (1 - p)^2)^r + a (q^2 + (1 - q)^2)^r,

        where a is the probability of a permanent 1: f1 for a true 0, and 1 - f0 for a true 1.
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
                (1 - p_permanent_1) * p_same[0] + p_permanent_1 * p_same[1],
            )
            for bit, p_permanent_1 in enumerate((params.f1, 1 - params.f0))
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
            for day_indices in (self._calendar.first_epoch, self._calendar.next_epoch)
        )
        if earlier is None or later is None:
            return [], []
        cases: list[Case] = []
        later_day = metric_reports.read_day(self._calendar.next_epoch[0])
        for day in self._calendar.first_epoch:
            cases += yield_independent_cases(
                _count_matches(*match_devices(metric_reports.read_day(day), later_day)),
                metric_reports.expected,
            )
        # Twins have one secret and so one cohort: compare the cohorts of first twins only.
        first, second = match_devices(
            metric_reports.read_day(FIRST_DAY), later_day.select(later_day.devices % 2 == 0)
        )
        same = int((first.cohorts == second.cohorts).sum())
        cases.append(
            Case("one cohort in two epochs", same, len(first.devices), 1 / metric_reports.params.m)
        )
        earlier, later = match_devices(earlier, later)
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
        back = metric_reports.read_days(self._calendar.clock_set_back)
        epochs = [
            days
            for day_indices in (self._calendar.first_epoch, self._calendar.next_epoch)
            if (days := metric_reports.read_days(day_indices)) is not None
        ]
        if back is None or len(epochs) < 2:
            return mark_not_seen(name, "the metric has no second epoch")
        matched_devices = set[int]()
        evidence: list[CasesAndRatios] = []
        for number, epoch in enumerate(epochs, start=1):
            earlier, after = match_devices(epoch, back)
            same = earlier.cohorts == after.cohorts
            if metric_reports.params.m > 1:
                # Bad case: about one device in m has the same cohort in both epochs by accident, so
                # its cohort does not show which epoch it repeats. It is compared with the first
                # epoch only. A device that repeats the first epoch would seem to have a third
                # response in a comparison with the second. The reverse case is not handled: with
                # few cohorts, a client that goes on with the second epoch seems to have a third
                # response on these devices.
                same &= ~np.isin(earlier.devices, list(matched_devices))
                matched_devices |= set(earlier.devices[same].tolist())
            evidence.append(
                _compare_clock(
                    earlier.select(same), after.select(same), number, metric_reports.params
                )
            )
        if metric_reports.params.m == 1:
            checks = [check_binomial(name, *cases_and_ratios) for cases_and_ratios in evidence]
            return max(checks, key=lambda check: 1.0 if check.p_value is None else check.p_value)
        # A correct client has no report in a cohort of neither epoch: probability 0.
        unknown_devices = len(set(back.devices.tolist()) - matched_devices)
        unknown = Case("in a cohort of neither epoch", unknown_devices, len(back.devices), 0.0)
        cases = [case for cases_of_epoch, _ in evidence for case in cases_of_epoch]
        ratios = [ratio for _, ratios_of_epoch in evidence for ratio in ratios_of_epoch]
        return check_binomial(name, [*cases, unknown], ratios)

    def _compare_many_reports(self, metric_reports: MetricReports) -> CasesAndRatios:
        """Compare the reports of the sending devices (`rappor.auditing.many_reports`)."""
        return compare_many_reports(metric_reports, self._many)

    def _check_noise(self, name: str, *, is_compared_with_truth: bool) -> Check:
        """Count the devices with a report that equals its true bits, or with two equal reports.

        The first comparison is made if `is_compared_with_truth`, else the second. Both events are
        rare under a correct client:

        - A report equals its true bits with probability at most max(1 - p*, q*)^k.
        - Two reports of one permanent response are equal with probability at most
          (max over x in {p, q} of x^2 + (1 - x)^2)^k.

        The probability for one device is at most the sum over its reports, or over the pairs of its
        reports.
        """
        params = self.metric_reports.params
        # The last day only ends the interval of the day before, so no report belongs to it.
        days = [self.metric_reports.read_day(day) for day in range(len(self._calendar.days) - 1)]
        if is_compared_with_truth:
            p_equal = max(1 - params.p_star, params.q_star) ** params.k
            comparisons = [(day.devices, (day.bits == day.truth).all(axis=1)) for day in days]
        else:
            p_equal = max(p_one**2 + (1 - p_one) ** 2 for p_one in (params.p, params.q)) ** params.k
            pairs = (match_devices(first, second) for first, second in combinations(days, 2))
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
        name, n_values = "client: times do not depend on the value", len(self._texts)
        n_late = np.zeros(n_values, dtype=np.int64)
        # For each value: probabilities of 0, 1, 2, ... late reports on the days so far.
        distributions = [np.ones(1)] * n_values
        for values_and_times in self._yield_sending_times():
            send_times = np.array([time for _, time in values_and_times if time is not None])
            # Skip a day without reports, or with a report whose time the client does not reveal.
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

    def _yield_sending_times(self) -> Iterator[list[tuple[int, float | None]]]:
        """Yield, for each day, the values and the sending times of the last reports of devices.

        Devices with a history have several days. Copied devices have one day in each of two epochs.
        Their copies are left out, because times may be derived from the secret.
        """
        reports_by_day: list[tuple[Integers, Sequence[tuple[Report, ...]]]] = [
            (self._histories.values[:, day], self._histories.list_new_reports(day, 1))
            for day in range(len(self._calendar.days) - 1)
        ]
        copies = self._copies
        reports_by_day += [
            (copies.values, reports) for reports in (copies.of_devices, copies.in_next_epoch)
        ]
        for values, new_reports in reports_by_day:
            yield [
                (value, report.send_after)
                for value, reports in zip(values.tolist(), new_reports, strict=True)
                for report in reports[-1:]
                if report.metric == self._metric.name
            ]

    def _check_ledger(self) -> Check:
        """Compare the recorded privacy losses with the smallest and largest loss of the reports.

        A loss must never fall. After the last day it must be at least epsilon_1, the loss of one
        report, and at most the cost of one scope for each epoch of the history.
        """
        name = "client: the ledger counts"
        # A device without reports has no loss: under a sampling rate it does not take part.
        last = [
            state.spent for state in self._histories.states_by_day[-1] if state.finished_reports
        ]
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
    """Count the differences between twins, over runs and pairs, and the number of comparisons.

    `runs` has, for each run, one object for each device, such as the loss that the device has
    recorded. The devices 2i and 2i + 1 are twins, so their objects must be equal.
    """
    pairs = [pair for run in runs for pair in zip(run[::2], run[1::2], strict=True)]
    return sum(first != second for first, second in pairs), len(pairs)


def _yield_bit_cases(metric_reports: MetricReports) -> Iterator[Case]:
    """Yield the counts of ones on the first day: of all devices, and of devices with each value."""
    reports = metric_reports.read_day(FIRST_DAY)
    values = metric_reports.histories.values[reports.devices, FIRST_DAY]
    groups = {f"value {value + 1}": values == value for value in np.unique(values)}
    for name, rows in {"all values": values >= 0, **groups}.items():
        for bit, probability in enumerate(metric_reports.expected):
            is_counted = (reports.truth == bit) & rows[:, None]
            ones, n = int(reports.bits[is_counted].sum()), int(is_counted.sum())
            yield Case(f"{name}, given true {bit}", ones, n, probability)


def _compare_devices(metric_reports: MetricReports) -> CasesAndRatios:
    """Compare the reports and cohorts of pairs of unrelated devices.

    Only first twins are compared, each in one pair: the i-th device of the first half with the i-th
    device of the second half. Counts: a bit is 1 on both devices, and both have one cohort. Log
    ratios: one permanent response of two devices with the same cohort and true bits, and one
    permanent response of all devices with the same cohort and true bits.
    """
    reports = metric_reports.read_day(FIRST_DAY)
    reports = reports.select(reports.devices % 2 == 0)
    half = len(reports.devices) // 2
    first, second = reports.select(np.arange(half)), reports.select(np.arange(half, 2 * half))
    same = int((first.cohorts == second.cohorts).sum())
    cases = [
        *yield_independent_cases(_count_matches(first, second), metric_reports.expected),
        Case("two devices in one cohort", same, half, 1 / metric_reports.params.m),
    ]
    days = metric_reports.read_days(metric_reports.histories.calendar.first_epoch)
    if days is None:
        return cases, []
    # Devices with one secret have one cohort, and one permanent response to each value. If the
    # metric has a single cohort, only the reports can show a shared secret. The reports are
    # compared in two ways. Pairs of devices show a secret that many devices share, but not all.
    # Groups of all devices with equal true bits show a secret that all devices share.
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
    """Count the bits that are 1 in the reports of both days, device by device."""
    matches = MatchCounts()
    matches.add(first.bits, second.bits, (first.truth, second.truth))
    return matches
