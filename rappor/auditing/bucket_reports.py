"""Checks of a client whose reports name one bucket (generalized randomized response, GRR).

Part of the audit of a client (`rappor.auditing.device`), for sets, and for categories and numbers
with one report an epoch. Input: the reports of the copied devices and of the choosing devices
(`rappor.auditing.device_histories`). Output: checks.

A value owns b of the k buckets of the device's cohort: a category owns one bucket, and a set owns
the buckets of its items. A correct device pads or cuts them at random to exactly n buckets. The
report then names one of the n buckets with probability `keep`, and one of all k buckets otherwise.
So the probabilities that the report names a certain bucket are

    keep min(1, b / n) / b + (1 - keep) / k              a bucket that the value owns
    keep max(0, 1 - b / n) / (k - b) + (1 - keep) / k    any other bucket, which padding may add

The bits of such a report exclude each other, so the checks of separate bits do not apply. Each
check here counts an *event*: the report names a bucket of a certain subset of the buckets, such as
the buckets of the shorter half of the items. The probability of the event is the sum of the
probabilities above over the subset.

    event: the named bucket is ...                       finds a client that ...
    an own bucket                                        does not pad, or pads with own buckets
    the bucket r, for each r                             reserves a bucket for the empty set, or
                                                         draws from another number of buckets
    of the first third of the items, the first, the last prefers items by their order
    of the shorter third, the shortest, the longest item prefers items by their length
    of the lower third of the own buckets, the lowest .. draws the index of a bucket with a bias

Subsets and probabilities differ from device to device, because cohorts do. The number of devices
with an event is then no binomial number. But beyond its mean plus or minus 1, each of its tails is
at most the tail of the binomial distribution with the mean of the probabilities (Hoeffding 1956).
So the checks use the mean.

One check is exact. A *copy* is a device with the same folder, hence the same secret. The response
follows from secret, scope and own buckets, so device and copy must make the same report of a value,
even if the copy records the items in another order.

Notation: N is a number of reports. Arrays of subsets are (N, k) bool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rappor.auditing.check import Case, Check, check_binomial, check_exact
from rappor.auditing.device_histories import CopiedReports, Report
from rappor.auditing.device_reports import CasesAndRatios, MetricReports
from rappor.auditing.likelihood_ratios import LogRatio
from rappor.auditing.pairs import TrueBits, split_items, unpack
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.protocol.params import Params


class BucketReports(NamedTuple):
    """N reports that name one bucket, and the buckets that the reported values own."""

    devices: Integers
    """(N,) index of the device, in increasing order."""
    values: Integers
    """(N,) index of the value."""
    cohorts: Integers
    """(N,) cohort of the report."""
    named: Booleans
    """(N, k). True for the bucket that the report names."""
    owned: Booleans
    """(N, k). True for the buckets that the value owns in the cohort."""


def compute_bucket_probabilities(owned: Booleans, params: Params) -> Floats:
    """Compute the probability that a report names each bucket: (N, k), rows with the sum 1.

    `owned` is (N, k), the buckets that each value owns before padding or cutting.
    """
    n, k, keep = params.items, params.k, params.keep
    assert keep is not None
    n_owned = owned.sum(axis=1, keepdims=True)
    # The empty set owns no bucket, so its first probability has no effect.
    p_own = np.minimum(1, n_owned / n) / np.maximum(n_owned, 1)
    p_other = np.maximum(0, 1 - n_owned / n) / np.maximum(k - n_owned, 1)
    probabilities: Floats = keep * np.where(owned, p_own, p_other) + (1 - keep) / k
    return probabilities


def check_bucket_reports(metric_reports: MetricReports, copies: CopiedReports) -> Iterator[Check]:
    """Yield the checks of reports that name one bucket, except the choice among events.

    The counts use the reports of the devices. The copies are only compared with their devices,
    because a correct copy adds no information.
    """
    params = metric_reports.params
    reports, next_reports = (
        _read_reports(metric_reports, by_device, copies.values)
        for by_device in (copies.of_devices, copies.in_next_epoch)
    )
    yield _check_copies(copies)
    yield check_binomial(
        "client: own buckets are named as often as they should", _yield_own_cases(params, reports)
    )
    yield check_binomial(
        "client: every bucket and every item is drawn alike",
        _yield_draw_cases(metric_reports, reports),
    )
    yield check_binomial(
        "client: another epoch is independent", _yield_epoch_cases(params, reports, next_reports)
    )
    yield check_binomial("client: devices differ", *_compare_devices(params, reports))


def _read_reports(
    metric_reports: MetricReports, by_device: Sequence[Sequence[Report]], values: Integers
) -> BucketReports:
    """Return the last valid report of each device, and the own buckets of the device's value."""
    devices, reports = metric_reports.select_last(by_device)
    return BucketReports(
        devices,
        values[devices],
        np.array([report.cohort for report in reports], dtype=np.int64),
        unpack(b"".join(report.bits for report in reports), metric_reports.params),
        metric_reports.compute_true_bits(reports, values[devices]),
    )


def _check_copies(copies: CopiedReports) -> Check:
    """Count the copies whose reports differ from the reports of their device.

    The sending time of a report is drawn anew, so only metric, parameters, cohort and bits are
    compared.
    """
    pairs = list(zip(copies.of_devices, copies.of_copies, strict=True))
    n_different = sum(
        [report[:-1] for report in reports] != [report[:-1] for report in reports_of_copy]
        for reports, reports_of_copy in pairs
    )
    return check_exact("copies: one value, one report", (n_different, len(pairs)))


def _count_event(
    description: str, named: Booleans, is_event: Booleans, probabilities: Floats
) -> Case:
    """Count the reports that name a bucket of the event.

    `named`, `is_event` and `probabilities` are (N, k): for each report the named bucket, the
    buckets of the event, and the probability of each bucket. The probability of the returned case
    is the mean over the reports of the probability of the event.
    """
    n = len(named)
    p_event = float((probabilities * is_event).sum() / n) if n else 0.0
    # Rounding may raise the sum of all probabilities of a row above 1.
    return Case(description, int((named & is_event).sum()), n, min(1.0, p_event))


def _yield_own_cases(params: Params, reports: BucketReports) -> Iterator[Case]:
    """Yield the counts of named own buckets: of all reports, by value, and by number of buckets."""
    probabilities = compute_bucket_probabilities(reports.owned, params)
    n_owned = reports.owned.sum(axis=1)
    groups = {
        "all values": n_owned >= 0,
        **{f"value {value + 1}": reports.values == value for value in np.unique(reports.values)},
        **{f"values of {size} own buckets": n_owned == size for size in np.unique(n_owned)},
    }
    for name, rows in groups.items():
        yield _count_event(name, reports.named[rows], reports.owned[rows], probabilities[rows])


def _yield_draw_cases(metric_reports: MetricReports, reports: BucketReports) -> Iterator[Case]:
    """Yield the counts of each named bucket, and of items and own buckets by their ranks."""
    params = metric_reports.params
    probabilities = compute_bucket_probabilities(reports.owned, params)
    n = len(reports.values)
    for bucket, ones in enumerate(reports.named.sum(axis=0).tolist()):
        yield Case(f"bucket {bucket}", ones, n, float(probabilities[:, bucket].sum()) / max(1, n))
    # Events of all sets of two or more items, by name, with the rows of the reports.
    pooled: dict[str, list[tuple[Integers, Booleans]]] = {}
    for value in np.unique(reports.values).tolist():
        items = split_items(params, metric_reports.texts[value])
        if len(items) < 2:
            continue
        rows = np.flatnonzero(reports.values == value)
        for name, is_event in list_rank_events(params, items, reports.cohorts[rows]).items():
            pooled.setdefault(name, []).append((rows, is_event))
            yield _count_event(
                f"{name} of value {value + 1}", reports.named[rows], is_event, probabilities[rows]
            )
    for name, rows_and_events in pooled.items():
        rows = np.concatenate([rows for rows, _ in rows_and_events])
        is_event = np.concatenate([is_event for _, is_event in rows_and_events])
        yield _count_event(
            f"{name} of all sets", reports.named[rows], is_event, probabilities[rows]
        )


def list_rank_events(
    params: Params, items: Sequence[str], cohorts: Integers
) -> dict[str, Booleans]:
    """Return events by name, for N reports of one set in the cohorts (N,).

    Three orders are used: the items in the order of recording, the items by length, and the own
    buckets by index. Each order gives three events: the report names a bucket of the first third,
    the first bucket, or the last bucket of the order. The first third finds a client that cuts a
    set to its first items. The first and the last bucket find a client that draws an index with a
    bias, for example never the last one.

    Returns a dict from the name of the event to an (N, k) bool array, the buckets of the event.
    """
    true_bits = TrueBits(params, items)
    by_length = sorted(range(len(items)), key=lambda item: len(items[item]))
    events: dict[str, Booleans] = {}
    for row, cohort in enumerate(cohorts.tolist()):
        numbers = np.arange(len(items))
        buckets = true_bits.bits(numbers, np.full(len(items), cohort)).argmax(axis=1)
        orders = {
            ("the first third", "the first item", "the last item"): buckets,
            ("the shorter third", "the shortest item", "the longest item"): buckets[by_length],
            ("the lower third", "the lowest bucket", "the highest bucket"): np.unique(buckets),
        }
        for names, ordered in orders.items():
            subsets = ordered[: max(1, len(ordered) // 3)], ordered[:1], ordered[-1:]
            for name, subset in zip(names, subsets, strict=True):
                is_event = events.setdefault(name, np.zeros((len(cohorts), params.k), np.bool_))
                is_event[row, subset] = True
    return events


def _yield_epoch_cases(
    params: Params, reports: BucketReports, next_reports: BucketReports
) -> Iterator[Case]:
    """Yield the counts of equal buckets, and of equal cohorts, in two epochs of one device.

    A device records one value in both epochs, so a client that repeats its first response names the
    same bucket. A correct client draws cohort and bucket anew: with the probabilities P and P' of
    the buckets in both epochs, the buckets are equal with the probability sum over r of P_r P'_r.
    """
    _, rows, next_rows = np.intersect1d(reports.devices, next_reports.devices, return_indices=True)
    p_equal = (
        compute_bucket_probabilities(reports.owned[rows], params)
        * compute_bucket_probabilities(next_reports.owned[next_rows], params)
    ).sum(axis=1)
    n = len(p_equal)
    n_equal = int((reports.named[rows] & next_reports.named[next_rows]).sum())
    yield Case("one bucket in two epochs", n_equal, n, float(p_equal.sum()) / max(1, n))
    n_equal = int((reports.cohorts[rows] == next_reports.cohorts[next_rows]).sum())
    yield Case("one cohort in two epochs", n_equal, n, 1 / params.m)


def _compare_devices(params: Params, reports: BucketReports) -> CasesAndRatios:
    """Compare the cohorts and buckets of unrelated devices.

    Counts: two devices have one cohort, each device in one pair; and a cohort is in the lower half
    of all cohorts. Log ratio: one secret of all devices. Devices with one secret name one bucket if
    they have the same own buckets and cohort (a group). Let P_d be the probability of the bucket
    that device d names. A correct client gives the reports of a group with the probability

        product over all devices d of P_d,

    and a client with one secret with P of the first device, if all buckets are equal, else 0.
    """
    half = len(reports.values) // 2
    first, second = reports.cohorts[:half], reports.cohorts[half : 2 * half]
    cases = [
        Case("two devices in one cohort", int((first == second).sum()), half, 1 / params.m),
        Case(
            "a cohort of the lower half",
            int((reports.cohorts < params.m // 2).sum()),
            len(reports.cohorts),
            params.m // 2 / params.m,
        ),
    ]
    probabilities = compute_bucket_probabilities(reports.owned, params)
    logs = np.log((probabilities * reports.named).sum(axis=1))
    keys = np.column_stack([reports.cohorts, reports.owned])
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    named = reports.named.argmax(axis=1)
    log_ratio = 0.0
    for group in range(int(groups.max(initial=-1)) + 1):
        rows = np.flatnonzero(groups.ravel() == group)
        is_one_bucket = (named[rows] == named[rows[0]]).all()
        log_ratio += -float(logs[rows[1:]].sum()) if is_one_bucket else -math.inf
    return cases, [LogRatio("one secret of all devices", log_ratio)]
