"""Reports of simulated devices as arrays, for the audit of a client.

`rappor.auditing.device_histories` returns the reports of each device as objects. `MetricReports`
selects the reports of the metric under audit, and returns them as arrays, together with their true
bits:

    method      result         axes
    read_day    `DayReports`   (n, k): the first report of each device for one day
    read_days   `SeveralDays`  (days, n, k): the devices that have a report on each of several days

n is a number of devices and k the number of bits of a report. There are two kinds of true bits, for
a device that records "a" on the first day of an epoch and "b" on the second:

- `truth`: the bits of the value that a correct client reports. A correct client reports the first
  value of an epoch in the whole epoch: on both days the bits of "a".
- `recorded`: the bits of the value that the device recorded: on the second day the bits of "b".

Devices 2i and 2i + 1 are twins: they have one secret, and so one permanent response to equal true
bits. If twins have equal true bits, their reports are dependent, so only the first twin is
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from rappor.auditing.check import Case
from rappor.auditing.device_histories import DeviceHistories, Report
from rappor.auditing.likelihood_ratios import LogRatio, OnesByBit
from rappor.auditing.pairs import TrueBits, unpack
from rappor.counts.arrays import Booleans, Integers
from rappor.registry.metric import Metric

CasesAndRatios = tuple[Sequence[Case], Sequence[LogRatio]]
"""Input of a check of the audit: counts with their probabilities under a correct client, and for
each known fault the log likelihood ratio of the reports (`likelihood_ratios`)."""


class DayReports(NamedTuple):
    """First report of each device for one day, as arrays of n devices."""

    devices: Integers
    """(n,) index of the device, in increasing order."""
    cohorts: Integers
    """(n,) cohort of the report."""
    bits: Booleans
    """(n, k) bits of the report."""
    truth: Booleans
    """(n, k) true bits of the first value of the epoch, which a correct client reports."""
    recorded: Booleans
    """(n, k) true bits of the value that the device recorded on this day."""

    def select(self, rows: Integers | Booleans) -> DayReports:
        """Return the reports of some rows, by index or as (n,) bool."""
        devices, cohorts, bits, truth, recorded = self
        return DayReports(devices[rows], cohorts[rows], bits[rows], truth[rows], recorded[rows])


class SeveralDays(NamedTuple):
    """First reports of several days, of the n devices that have a report on each of these days.

    All days are of one epoch. In an epoch a correct client has one cohort and reports one value, so
    cohort and `truth` of a single day stand for all days. Only the recorded value may change.
    """

    devices: Integers
    """(n,) index of the device, in increasing order."""
    cohorts: Integers
    """(n,) cohort of the report of the first day. A correct client has this cohort on all days."""
    bits: Booleans
    """(days, n, k) bits of the reports."""
    truth: Booleans
    """(n, k) true bits of the first value of the epoch, in the cohort of the report of the last
    day. A correct client has the same cohort on the first day."""
    recorded: Booleans
    """(n, k) true bits of the value that the device recorded on the last day."""

    def select(self, rows: Integers | Booleans) -> SeveralDays:
        """Return the reports of some rows, by index or as (n,) bool."""
        devices, cohorts, bits, truth, recorded = self
        return SeveralDays(devices[rows], cohorts[rows], bits[:, rows], truth[rows], recorded[rows])

    def count_ones(self, days: slice = slice(None)) -> OnesByBit:
        """Count, for each device and bit, the reports of these days in which the bit is 1."""
        bits = self.bits[days]
        return OnesByBit(bits.sum(axis=0), len(bits))


class LastReports(NamedTuple):
    """Last valid report of each of n devices that have one."""

    devices: Integers
    """(n,) index of the device, in increasing order."""
    reports: Sequence[Report]
    """The report of each device, in the same order."""


_Reports = TypeVar("_Reports", DayReports, SeveralDays)


def match_devices(first: _Reports, second: _Reports) -> tuple[_Reports, _Reports]:
    """Return the reports of the devices that both arguments have, in the same order."""
    _, here, there = np.intersect1d(first.devices, second.devices, return_indices=True)
    return first.select(here), second.select(there)


class MetricReports:
    """Reports of the metric under audit as arrays, together with their true bits.

    Reports of another metric, or of an unknown form, are left out. The audit counts them in a check
    of its own.

    Parameters
    ----------
    metric : the metric under audit.
    histories : states of the simulated devices by day. They contain values as indices.
    texts : the text of each value, by its index.
    """

    def __init__(self, metric: Metric, histories: DeviceHistories, texts: Sequence[str]) -> None:
        self.metric, self.params = metric, metric.params
        # Probability that a correct client reports a 1, for true bit 0 and for true bit 1.
        self.expected = self.params.p_star, self.params.q_star
        self.histories = histories
        self.texts = texts
        # True bits by fingerprint of the parameters. A metric of strings may divide its devices
        # among several parts (the whole string, or a prefix of it), with parameters of their own.
        self._true_bits_by_params: dict[str, TrueBits] = {}

    def is_valid(self, report: Report) -> bool:
        """Return whether a report has known parameters, a valid cohort and valid bits."""
        params = self.metric.accepted.get(report.params)
        if params is None or not 0 <= report.cohort < params.m:
            return False
        packed = int.from_bytes(report.bits, "little")
        # The last byte may have more than the k bits of a report. The further bits must be 0.
        has_valid_bits = len(report.bits) == params.n_bytes and not packed >> params.k
        # Some mechanisms never send certain bits. For example, a report that names one bucket never
        # has two ones.
        return has_valid_bits and not params.response.find_fault(packed)

    def select_valid(self, reports: Iterable[Report]) -> list[Report]:
        """Return the valid reports of this metric."""
        return [
            report
            for report in reports
            if report.metric == self.metric.name and self.is_valid(report)
        ]

    def select_last(self, reports_by_device: Sequence[Sequence[Report]]) -> LastReports:
        """Return the last valid report of each device that has one."""
        reports = {
            device: valid[-1]
            for device, all_reports in enumerate(reports_by_device)
            if (valid := self.select_valid(all_reports))
        }
        return LastReports(np.array(list(reports), dtype=np.int64), list(reports.values()))

    def read_day(self, day: int) -> DayReports:
        """Return, for each device, its first report of the values of one day.

        `day` is an index of the calendar. If twins have the same true bits, only the first twin is
        included: the twins share permanent coins, so their reports are dependent.
        """
        # The run of the client on the day after the values were recorded finishes their report.
        first_reports = {
            device: valid[0]
            for device, reports in enumerate(self.histories.list_new_reports(day, days_later=1))
            if (valid := self.select_valid(reports))
        }
        devices = np.array(list(first_reports), dtype=np.int64)
        reports = list(first_reports.values())
        day_reports = DayReports(
            devices,
            np.array([report.cohort for report in reports], dtype=np.int64),
            unpack(b"".join(report.bits for report in reports), self.params),
            self.compute_true_bits(reports, self._list_reported_values(day)[devices]),
            self.compute_true_bits(reports, self.histories.values[devices, day]),
        )
        # Find the rows of first twins (even indices) whose next row is their second twin. The
        # devices are in increasing order, so the second twin can only be in the next row.
        first_twins = np.flatnonzero((np.diff(devices) == 1) & (devices[:-1] % 2 == 0))
        truth = day_reports.truth
        has_same_truth = (truth[first_twins] == truth[first_twins + 1]).all(axis=1)
        second_twins = first_twins[has_same_truth] + 1
        return day_reports.select(np.delete(np.arange(len(devices)), second_twins))

    def read_days(self, day_indices: Sequence[int]) -> SeveralDays | None:
        """Return the first reports of several days; return None if there are no days."""
        if not day_indices:
            return None
        days = [self.read_day(day) for day in day_indices]
        devices = days[0].devices
        for day in days[1:]:
            devices = np.intersect1d(devices, day.devices)
        days = [day.select(np.isin(day.devices, devices)) for day in days]
        bits = np.stack([day.bits for day in days])
        return SeveralDays(devices, days[0].cohorts, bits, days[-1].truth, days[-1].recorded)

    def compute_true_bits(self, reports: Sequence[Report], values: Integers) -> Booleans:
        """Return the true bits of the part of the value that each report has, (n, k).

        Parameters
        ----------
        reports : the n reports. The parameters of a report determine the part.
        values : (n,) index of the value of each report.
        """
        bits = np.zeros((len(reports), self.params.k), dtype=np.bool_)
        for row, (report, value) in enumerate(zip(reports, values.tolist(), strict=True)):
            if report.params not in self._true_bits_by_params:
                params = self.metric.accepted[report.params]
                self._true_bits_by_params[report.params] = TrueBits(params, self.texts)
            true_bits = self._true_bits_by_params[report.params]
            bits[row] = true_bits.bits(np.array([value]), np.array([report.cohort]))[0]
        return bits

    def _list_reported_values(self, day: int) -> Integers:
        """Return the (devices,) indices of the values that a correct client reports on a day.

        A correct client memoizes the permanent response of the first value of an epoch, and repeats
        it. So it reports the first value of the epoch on all days.
        """
        epochs = [calendar_day.epoch for calendar_day in self.histories.calendar.days]
        epoch = epochs[day]
        return self.histories.values[:, epochs.index(epoch)]
