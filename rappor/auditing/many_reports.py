"""Comparison of 1,000 reports of each sending device with a correct client.

Part of the audit of a client (`rappor.auditing.device`). A client may lose its fresh noise only
after many reports, or at each report of a fixed period, for example where a buffer of random
numbers wraps around. Input: the reports of the sending devices
(`rappor.auditing.device_histories`). Output: counts with their probabilities, and the log ratios of
faults with a period.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rappor.auditing.check import Case
from rappor.auditing.device_histories import MANY_REPORTS, RecordedReports
from rappor.auditing.device_reports import CasesAndRatios, MetricReports
from rappor.auditing.likelihood_ratios import LogRatio, OnesByBit, compute_noiseless_ratio
from rappor.auditing.pairs import unpack
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.privacy.report_linkage import reports_to_recover
from rappor.protocol.params import Params

_PERIODS: Final = (2, 3, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 250, 256, 500, 1000)
"""Periods, in reports, at which the audit looks for reports without fresh noise.

A fault such as a buffer that wraps around comes again after a fixed number of reports: a small
number, a power of 2 or a round number. Faults at other periods are missed.
"""


class _SequenceCounts:
    """Counters by the index of a report in the sequence of its device, over all sending devices."""

    def __init__(self, k: int) -> None:
        # The array (reports, 2) counts devices whose report equals their report before, and all
        # devices.
        self._repeats = np.zeros((MANY_REPORTS, 2), dtype=np.int64)
        # The array (reports, 2, 2, 2) counts reported bits. Its axes are the index of the report,
        # the kind of input (0: true bits, 1: permanent response), the input bit, and (ones, bits).
        self._ones = np.zeros((MANY_REPORTS, 2, 2, 2), dtype=np.int64)
        self._k = k

    def add_repeats(self, bits: Booleans) -> None:
        """Compare each report of a device with the report before. `bits` is (n, k)."""
        is_equal = (bits[1:] == bits[:-1]).all(axis=1)
        self._repeats[1 : len(bits)] += np.stack([is_equal, np.ones_like(is_equal)], axis=1)

    def add_ones(
        self, bits: Booleans, inputs: Booleans, is_permanent: Integers, is_counted: Booleans
    ) -> None:
        """Add the ones of the reports of a device, by input bit.

        Parameters
        ----------
        bits : (n, k) bool. Reports in their order.
        inputs : (n, k) bool. True bits or permanent response behind each report.
        is_permanent : (n,) int64. 1 if the input is the permanent response, 0 for the true bits.
        is_counted : (n,) bool. False leaves a report out.
        """
        for input_bit in (0, 1):
            selected = (inputs == input_bit) & is_counted[:, None]
            rows_and_input = np.arange(len(bits)), is_permanent
            np.add.at(self._ones[..., input_bit, 0], rows_and_input, (bits & selected).sum(axis=1))
            np.add.at(self._ones[..., input_bit, 1], rows_and_input, selected.sum(axis=1))

    def yield_cases(self, params: Params) -> Iterator[Case]:
        """Yield all counts with their probabilities under a correct client."""
        expected = ((params.p_star, params.q_star), (params.p, params.q))
        for index, is_permanent, input_bit in np.ndindex(MANY_REPORTS, 2, 2):
            ones, n = self._ones[index, is_permanent, input_bit].tolist()
            description = (
                f"report {index + 1:,} given {('true', 'permanent')[is_permanent]} {input_bit}"
            )
            yield Case(description, ones, n, expected[is_permanent][input_bit])
        # Largest probability that two correct reports of one permanent response are equal.
        match_probability = (
            max(p_one**2 + (1 - p_one) ** 2 for p_one in (params.p, params.q)) ** self._k
        )
        # Bad case: with few bits two correct reports are often equal, and the largest probability
        # says little about the expected count. Then a probability of 1/2 is tested, with which no
        # count of at most 32 devices is a fault: these few devices cannot show too many equal
        # reports.
        for index, (n_equal, n) in enumerate(self._repeats.tolist()):
            description = f"report {index + 1:,} equals the one before"
            yield Case(description, n_equal, n, min(match_probability, 0.5))


def compare_many_reports(metric_reports: MetricReports, many: RecordedReports) -> CasesAndRatios:
    """Compare the i-th reports of all sending devices, and the reports at each period.

    Three statistics:

    - Ones in the i-th report of all devices, by input bit. The input is the permanent response if
      enough reports of the epoch reveal it, else the true bits.
    - Devices whose report i equals their report i - 1.
    - Log ratios for reports without fresh noise at a period, compared with the other reports of
      their epoch, which share one permanent response. They show a fault of every 100th report in
      few bits, and in epochs of few reports.
    """
    params = metric_reports.params
    counts = _SequenceCounts(params.k)
    log_ratios = np.zeros((len(_PERIODS), 2))
    values, reports_by_device, epochs = many
    truth_of_first_twin = np.zeros((MANY_REPORTS, params.k), dtype=np.bool_)
    for device, value in enumerate(values.tolist()):
        reports = metric_reports.select_valid(reports_by_device[device])[:MANY_REPORTS]
        n_reports = len(reports)
        truth = metric_reports.compute_true_bits(reports, np.full(n_reports, value))
        # Twins with the same true bits share their permanent coins, so only the first twin of such
        # a pair is counted. Devices with an even index are first twins.
        differs = (truth != truth_of_first_twin[:n_reports]).any(axis=1)
        is_counted = np.full(n_reports, device % 2 == 0) | differs
        truth_of_first_twin[:n_reports] = truth
        bits = unpack(b"".join(report.bits for report in reports), params)
        counts.add_repeats(bits)
        log_ratios += _compare_periods(bits, truth, epochs[:n_reports], is_counted, params)
        inputs, is_permanent = _estimate_inputs(bits, truth, epochs, params)
        counts.add_ones(bits, inputs, is_permanent, is_counted)
    names = [
        f"no fresh noise in {reports_at_period} {period:,} reports"
        for period in _PERIODS
        for reports_at_period in ("each of", "the first of each")
    ]
    values_by_period = log_ratios.ravel().tolist()
    ratios = [LogRatio(*pair) for pair in zip(names, values_by_period, strict=True)]
    return list(counts.yield_cases(params)), ratios


def _estimate_inputs(
    bits: Booleans, truth: Booleans, epochs: Integers, params: Params
) -> tuple[Booleans, Integers]:
    """Estimate the input of the fresh noise behind each report of a device.

    The reports of an epoch share one permanent response. If the epoch has enough reports, their
    mean reveals this response. Otherwise the input is the true bits, which are known.

    Parameters
    ----------
    bits, truth : (n, k) bool. Reports of the device in their order, and their true bits.
    epochs : (MANY_REPORTS,) int64. Index of the epoch of each report of a device without a gap.

    Returns
    -------
    (n, k) bool, the inputs, and (n,) int64: 1 for the permanent response, 0 for the true bits.
    """
    inputs, is_permanent = truth.copy(), np.zeros(len(bits), dtype=np.int64)
    # A device with fewer reports has unknown epochs: its i-th report may be of a later interval.
    if len(bits) < MANY_REPORTS:
        return inputs, is_permanent
    # Twice the number of reports that reveals the permanent response with probability .99.
    n_needed = 2 * (reports_to_recover(params) or MANY_REPORTS)
    for epoch in np.unique(epochs):
        rows = np.flatnonzero(epochs == epoch)
        if len(rows) >= n_needed:
            # The permanent bit is 1 if the share of ones is nearer to q than to p.
            inputs[rows] = bits[rows].mean(axis=0) > (params.p + params.q) / 2
            is_permanent[rows] = 1
    return inputs, is_permanent


def _compare_periods(
    bits: Booleans, truth: Booleans, epochs: Integers, is_counted: Booleans, params: Params
) -> Floats:
    """Compute the log ratios of one device for reports without fresh noise at each period.

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
    # (epochs, k) ones and (epochs, 1) reports of each epoch.
    all_ones = np.zeros((len(first_rows), bits.shape[1]), dtype=np.int64)
    np.add.at(all_ones, epoch_rows, bits)
    n_all = np.bincount(epoch_rows)[:, None]
    is_epoch_counted = is_counted[first_rows]
    for row, period in enumerate(_PERIODS):
        for column, start in enumerate((period - 1, 0)):
            # The suspected reports: start, start + period, start + 2 period, ...
            ones = np.zeros_like(all_ones)
            np.add.at(ones, epoch_rows[start::period], bits[start::period])
            n = np.bincount(epoch_rows[start::period], minlength=len(first_rows))[:, None]
            ratio = compute_noiseless_ratio(
                OnesByBit(all_ones - ones, n_all - n), OnesByBit(ones, n), truth[first_rows], params
            )
            ratios[row, column] = ratio[is_epoch_counted].sum()
    return ratios
