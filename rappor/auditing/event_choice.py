"""Check of the choice among events: each event of an interval is equally likely to be reported.

Part of the audit of a client (`rappor.auditing.device`). Input: the reports of the choosing devices
and the values of their events (`rappor.auditing.device_histories`). Output: one `Check`.
"""

from __future__ import annotations

import numpy as np

from rappor.auditing.check import Case, Check, check_binomial
from rappor.auditing.device_histories import EVENTS_TO_CHOOSE, RecordedReports
from rappor.auditing.device_reports import MetricReports
from rappor.auditing.pairs import unpack
from rappor.counts.arrays import Booleans, Integers


def check_choice(metric_reports: MetricReports, chosen: RecordedReports) -> Check:
    """Test that each event of an interval is equally likely to be reported.

    Each choosing device records n = 16 events of value 0 or 1, drawn by fair coins, and makes one
    report. The audit compares the value that the report indicates with the value of each event.

    How a report indicates a value: let bit A be set by value 0 only, and bit B by value 1 only. A
    report with one of the two bits indicates the bit's value. The indication is right with
    probability

        r = q* (1 - p*) / (q* (1 - p*) + p* (1 - q*)).

    If only one of the values has such a bit, the bit indicates its value and the absence of the bit
    indicates the other value. The indication is then right with probability r = (q* + 1 - p*) / 2.

    A correct client reports event i once in n times, and then the indication agrees with the value
    of event i with probability r. Otherwise it agrees with probability 1/2. Together

        P(indication agrees with event i) = (r + (n - 1) / 2) / n.

    The last case of the check is whether both values are indicated equally often.
    """
    name = "client: any event of an interval is chosen"
    # The last valid report of each device, with the device's row in `chosen`.
    rows_and_reports = [
        (row, valid[-1])
        for row, reports in enumerate(chosen.reports)
        if (valid := metric_reports.select_valid(reports))
    ]
    reports = [report for _, report in rows_and_reports]
    values = chosen.values[[row for row, _ in rows_and_reports]]
    bits = unpack(b"".join(report.bits for report in reports), metric_reports.params)
    zero, one = (
        metric_reports.compute_true_bits(reports, np.full(len(reports), value)) for value in (0, 1)
    )
    # 1, -1 or 0 for each report: bit A is set, is not set, or does not exist. The same for bit B.
    bit_a, bit_b = _compute_indications(bits, zero & ~one), _compute_indications(bits, one & ~zero)
    # 1 indicates value 1, -1 indicates value 0, and 0 indicates nothing.
    indicated = np.sign(bit_b - bit_a)
    has_both_bits = (bit_a != 0) & (bit_b != 0)
    p, q = metric_reports.params.p_star, metric_reports.params.q_star
    p_right = q * (1 - p) / (q * (1 - p) + p * (1 - q)), (q + 1 - p) / 2
    rows_by_case = has_both_bits & (indicated != 0), ~has_both_bits & (indicated != 0)
    cases = [
        Case(
            f"the value of event {event + 1} of {EVENTS_TO_CHOOSE}",
            int((indicated[rows] == 2 * values[rows, event] - 1).sum()),
            int(rows.sum()),
            (probability + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE,
        )
        for rows, probability in zip(rows_by_case, p_right, strict=True)
        for event in range(EVENTS_TO_CHOOSE)
    ]
    ones, n = int((indicated[rows_by_case[0]] == 1).sum()), int(rows_by_case[0].sum())
    return check_binomial(name, [*cases, Case("the second of two values", ones, n, 0.5)])


def _compute_indications(bits: Booleans, only: Booleans) -> Integers:
    """Return, by report, 1 if the first bit of `only` is set, -1 if not, and 0 without such a bit.

    `only` is (n, k) bool: the bits that one of two values sets and the other does not.
    """
    first_bits = np.take_along_axis(bits, np.argmax(only, axis=1)[:, None], axis=1)[:, 0]
    return np.where(only.any(axis=1), np.where(first_bits, 1, -1), 0)
