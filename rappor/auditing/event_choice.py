"""Check of the choice among events: each event of an interval is equally likely to be reported.

Part of the audit of a client (`rappor.auditing.device`). Input: the reports of the choosing devices
and the values of their events (`rappor.auditing.device_histories`). Output: one `Check`.

Each choosing device records n = 16 events of value 0 or 1, drawn by fair coins, and makes one
report. The audit compares the value that the report indicates with the value of each event. Reports
of separate bits and reports that name one bucket indicate values in different ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rappor.auditing.bucket_reports import compute_bucket_probabilities
from rappor.auditing.check import Case, Check, check_binomial
from rappor.auditing.device_histories import EVENTS_TO_CHOOSE, RecordedReports, Report
from rappor.auditing.device_reports import MetricReports
from rappor.auditing.pairs import unpack
from rappor.counts.arrays import Booleans, Integers


def check_choice(metric_reports: MetricReports, chosen: RecordedReports) -> Check:
    """Test that each event of an interval is equally likely to be reported."""
    reports = metric_reports.select_last(chosen.reports)
    is_exclusive = metric_reports.params.response.is_exclusive
    yield_cases = _yield_bucket_cases if is_exclusive else _yield_bit_cases
    return check_binomial(
        "client: any event of an interval is chosen",
        yield_cases(metric_reports, reports.reports, chosen.values[reports.devices]),
    )


def _yield_bit_cases(
    metric_reports: MetricReports, reports: Sequence[Report], values: Integers
) -> Iterator[Case]:
    """Yield the counts of agreements of reports of separate bits with the values of events.

    `values` is (reports, n): the values of the events behind each report.

    How a report indicates a value: let bit A be set by value 0 only, and bit B by value 1 only. A
    report with one of the two bits indicates the bit's value. The indication is right with
    probability

        r = q* (1 - p*) / (q* (1 - p*) + p* (1 - q*)).

    If only one of the values has such a bit, a 1 of the bit indicates this value and a 0 indicates
    the other value. The indication is right with probability q* for a report of this value, and
    1 - p* for a report of the other value. Both values are equally likely, so

        r = (q* + 1 - p*) / 2.

    A correct client reports event i once in n times, and then the indication agrees with the value
    of event i with probability r. Otherwise it agrees with probability 1/2. Together

        P(indication agrees with event i) = (r + (n - 1) / 2) / n.

    The last case counts how often the second value is indicated. If both bits exist, that is half
    of the indications, because both values and both bits are treated alike.
    """
    bits = unpack(b"".join(report.bits for report in reports), metric_reports.params)
    true_bits_0, true_bits_1 = (
        metric_reports.compute_true_bits(reports, np.full(len(reports), value)) for value in (0, 1)
    )
    # For each report 1 if bit A is set, -1 if it is not set, and 0 if value 0 has no such bit. The
    # same for bit B and value 1.
    bit_a, bit_b = (
        _compute_indications(bits, true_bits_0 & ~true_bits_1),
        _compute_indications(bits, true_bits_1 & ~true_bits_0),
    )
    # 1 indicates value 1, -1 indicates value 0, and 0 indicates nothing: both bits are set, neither
    # bit is set, or neither bit exists.
    indicated = np.sign(bit_b - bit_a)
    has_both_bits = (bit_a != 0) & (bit_b != 0)
    p, q = metric_reports.params.p_star, metric_reports.params.q_star
    p_right = q * (1 - p) / (q * (1 - p) + p * (1 - q)), (q + 1 - p) / 2
    rows_by_case = has_both_bits & (indicated != 0), ~has_both_bits & (indicated != 0)
    for rows, probability in zip(rows_by_case, p_right, strict=True):
        for event in range(EVENTS_TO_CHOOSE):
            yield Case(
                _name_event(event),
                int((indicated[rows] == 2 * values[rows, event] - 1).sum()),
                int(rows.sum()),
                (probability + (EVENTS_TO_CHOOSE - 1) / 2) / EVENTS_TO_CHOOSE,
            )
    ones, n = int((indicated[rows_by_case[0]] == 1).sum()), int(rows_by_case[0].sum())
    yield Case(_SECOND_VALUE, ones, n, 0.5)


def _compute_indications(bits: Booleans, only: Booleans) -> Integers:
    """Return, by report, 1 if the first bit of `only` is set, -1 if not, and 0 without such a bit.

    `only` is (n, k) bool: the bits that one of two values sets and the other does not.
    """
    first_bits = np.take_along_axis(bits, np.argmax(only, axis=1)[:, None], axis=1)[:, 0]
    return np.where(only.any(axis=1), np.where(first_bits, 1, -1), 0)


def _yield_bucket_cases(
    metric_reports: MetricReports, reports: Sequence[Report], values: Integers
) -> Iterator[Case]:
    """Yield the counts of agreements of reports that name one bucket with the values of events.

    `values` is (reports, n): the values of the events behind each report.

    A report indicates a value if it names a bucket that only this value owns. Let P_v(w) be the
    probability that a report of value v indicates value w (`compute_bucket_probabilities`). A
    correct client reports each of the n events with probability 1 / n. So the report indicates w
    with probability

        (1 / n) sum over the n events of P_v(w),    v the value of the event.

    Under the fault of a client that always reports event i, it indicates the value w of event i
    with the larger probability P_w(w).
    """
    named = unpack(b"".join(report.bits for report in reports), metric_reports.params)
    n = len(reports)
    owned = [metric_reports.compute_true_bits(reports, np.full(n, value)) for value in (0, 1)]
    only = owned[0] & ~owned[1], owned[1] & ~owned[0]
    # (reports, 2): whether a report indicates each value, and the probability that it does.
    is_indicated = np.stack([(named & buckets).any(axis=1) for buckets in only], axis=1)
    share_of_one = values.mean(axis=1)
    p_indicated = np.zeros((n, 2))
    for value, share in enumerate((1 - share_of_one, share_of_one)):
        probabilities = compute_bucket_probabilities(owned[value], metric_reports.params)
        p_indicated += share[:, None] * np.stack(
            [(probabilities * buckets).sum(axis=1) for buckets in only], axis=1
        )
    rows = np.arange(n)
    for description, indicated_values in [
        *((_name_event(event), values[:, event]) for event in range(EVENTS_TO_CHOOSE)),
        (_SECOND_VALUE, np.ones(n, dtype=np.int64)),
    ]:
        ones = int(is_indicated[rows, indicated_values].sum())
        probability = float(p_indicated[rows, indicated_values].sum()) / max(1, n)
        yield Case(description, ones, n, probability)


_SECOND_VALUE: Final = "the second of two values"
"""Describes the count of reports that indicate the second value."""


def _name_event(event: int) -> str:
    """Return the description of the count of agreements with an event."""
    return f"the value of event {event + 1} of {EVENTS_TO_CHOOSE}"
