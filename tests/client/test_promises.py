"""Check of the promise of memoization, for all pairs of short histories of values.

The promise: all reports of a device in an epoch repeat the permanent response of one value. So the
privacy loss of n reports of the epoch is at most epsilon_n, and losses of epochs add.

The check has three steps:

1. The real client records every history of up to four reports. A history is a sequence of values,
   with one value a day. The state of the client shows which permanent response each report repeats,
   and how many nats it spent.
2. The distribution of all reports of a history is enumerated over all coins of both responses. The
   probabilities of the noise are multiples of 1/4, so float64 contains all probabilities exactly.
3. The largest log-likelihood ratio of two histories must equal the sum of the epsilon_n of their
   epochs, and be at most the spent nats.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from days import finish_ended_intervals
from devices import UNCAPPED, build_metric, peek, write_device, write_events
from enumeration import enumerate_reports
from rappor_client import Client, ClientOptions, Outcome
from rappor_client.testing import FixedClock
from registries import build_registry

from rappor import Metric, Params
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.randomizer import derive_cohort, derive_permanent_response

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
"""Contains the probabilities of both responses. They are multiples of 1/4, so floats are exact."""
ONEHOT = Params(k=2, encoding="onehot", categories=("a", "b"), **NOISE)
BOOLEAN = Params(k=1, encoding="boolean", **NOISE)
BUCKETS = Params(k=2, encoding="buckets", categories=("0",), **NOISE)

DOMAINS: dict[str, tuple[Params, tuple[object, ...]]] = {
    "onehot": (ONEHOT, ("a", "b")),
    "boolean": (BOOLEAN, (False, True)),
    "buckets": (BUCKETS, (-1, math.nan, 1)),
}
"""Contains, for each encoding, the parameters, and the values whose histories are recorded. The
values of buckets are a number below the only limit 0, no number, and a number above the limit."""
Step = tuple[str, bytes]
"""Describes one report: its epoch, and the true bits of its permanent response."""


class History:
    """A history of the real client.

    Attributes
    ----------
    steps : epoch and true bits of each report
    nats : sum of the epsilon_n of all permanent responses, each repeated in n reports
    shape : for each report, the index of the first report with the same step. (0, 0, 2, 2) says
        that reports 0 and 1 repeat one permanent response, and reports 2 and 3 a second one
    """

    def __init__(self, steps: Sequence[Step], nats: float) -> None:
        self.steps = tuple(steps)
        self.nats = nats
        self.shape = tuple(self.steps.index(step) for step in self.steps)


def record_history(
    folder: Path, metric: Metric, values: Sequence[object], days: Sequence[str]
) -> list[History]:
    """Record values on some days with the real client, and return the history after each day.

    Each day ends before the next value is recorded, so each value leads to a report.
    """
    clock = FixedClock(f"{days[0]}T12:00:00")
    secret = find_distinguishing_secret(metric, values, days)
    write_device(folder, secret)
    client = Client.open(
        folder,
        registry=build_registry(metric),
        consent=True,
        options=ClientOptions(clock=clock, budget_cap=UNCAPPED),
    )
    steps: list[Step] = []
    histories: list[History] = []
    for value, day in zip(values, days, strict=True):
        clock.set(f"{day}T12:00:00")
        assert client.record(metric.name, value) == Outcome.RECORDED
        write_events(client)
        clock.advance(days=1)
        finish_ended_intervals(client)
        assert client.queued_count() == len(steps) + 1
        epoch = metric.epoch_at(datetime.date.fromisoformat(day))
        contents = peek(folder)
        (scope,) = [scope for scope in contents.scopes if scope.epoch == epoch]
        steps.append(find_step(scope.permanent, epoch, secret, metric, values))
        counts = [steps.count(step) for step in dict.fromkeys(steps)]
        nats = sum(epsilon_n(metric.params, n) for n in counts)
        assert nats <= contents.spent.nats + 1e-9
        histories.append(History(steps, nats))
    assert client.privacy_spent().nats == contents.spent.nats
    client.close()
    return histories


def encode_value(secret: bytes, metric: Metric, epoch: str, value: object) -> bytes:
    """Return the true bits of a value in the cohort of the device."""
    cohort = derive_cohort(secret, metric.name, epoch, metric.params)
    return get_encoder(metric.params).encode(value, cohort)


def compute_responses(
    secret: bytes, metric: Metric, epoch: str, values: Sequence[object]
) -> dict[bytes, bytes]:
    """Return the permanent response by true bits, for all values, computed without the client."""
    all_bits = {encode_value(secret, metric, epoch, value) for value in values}
    return {
        bits: derive_permanent_response(secret, metric.name, epoch, metric.params, bits)
        for bits in all_bits
    }


def find_distinguishing_secret(
    metric: Metric, values: Sequence[object], days: Sequence[str]
) -> bytes:
    """Return the first of the secrets 0, 1, ... with different responses to different true bits.

    Under such a secret, a permanent response shows the true bits (`find_step`).
    """
    epochs = {metric.epoch_at(datetime.date.fromisoformat(day)) for day in days}
    for number in itertools.count():
        secret = number.to_bytes(32, "big")
        responses = [compute_responses(secret, metric, epoch, values) for epoch in epochs]
        if all(len(set(by_bits.values())) == len(by_bits) for by_bits in responses):
            return secret
    raise AssertionError  # for the type checker: the loop has no end


def find_step(
    response: bytes, epoch: str, secret: bytes, metric: Metric, values: Sequence[object]
) -> Step:
    """Return the step of a report from its permanent response."""
    responses = compute_responses(secret, metric, epoch, values)
    (true_bits,) = [bits for bits, candidate in responses.items() if candidate == response]
    return epoch, true_bits


@functools.cache
def compute_response_distribution(bits: bytes, params: Params, n: int) -> np.ndarray:
    """Compute the distribution of n reports of one permanent response: shape (2^k,) * n."""
    distribution = np.zeros((2**params.k,) * n)
    for reports, probability in enumerate_reports(bits, params, n).items():
        exact = float(probability)
        assert probability == exact  # all probabilities are multiples of a power of 2
        distribution[tuple(reports)] = exact
    return distribution


def compute_distribution(history: History, params: Params) -> np.ndarray:
    """Compute the distribution of all reports of a history: shape (2^(k n),).

    Different permanent responses are drawn independently, so the distribution is the product of the
    distributions of the steps. Axis i of the product is report i.
    """
    n = len(history.steps)
    distribution = np.ones((1,) * n)
    for step in set(history.steps):
        indices = [i for i, step_of_report in enumerate(history.steps) if step_of_report == step]
        of_step = compute_response_distribution(step[1], params, len(indices))
        shape = [of_step.shape[0] if i in indices else 1 for i in range(n)]
        distribution = distribution * of_step.reshape(shape)
    return distribution.ravel()


def compute_largest_loss(distributions: Sequence[np.ndarray]) -> float:
    """Return the largest log-likelihood ratio of any two of these distributions, in nats.

    An outcome has its largest ratio between its largest and its smallest probability.
    """
    probabilities = np.stack(distributions)
    return float(np.log(np.max(probabilities.max(axis=0) / probabilities.min(axis=0))))


def record_all_histories(
    tmp_path: Path, metric: Metric, domain: Sequence[object], days: Sequence[str]
) -> list[list[History]]:
    """Return all histories of each length, from one report on, with values of the domain.

    A history of n reports is the beginning of many longer ones. The first of them is taken.
    """
    all_values = list(itertools.product(domain, repeat=len(days)))
    recorded = [
        record_history(tmp_path / f"{len(days)}-{i}", metric, values, days)
        for i, values in enumerate(all_values)
    ]
    return [
        list(
            {
                values[: n + 1]: histories[n]
                for values, histories in reversed([*zip(all_values, recorded, strict=True)])
            }.values()
        )
        for n in range(len(days))
    ]


EPOCHS = [
    ["2026-11-18", "2026-11-19", "2026-11-20", "2026-11-21"],
    ["2026-11-18", "2026-11-30", "2026-12-01", "2026-12-31"],
    ["2026-11-18", "2026-12-01", "2026-12-02", "2026-12-03"],
    ["2026-11-18", "2026-12-01", "2027-01-01", "2027-01-02"],
    ["2026-12-01", "2026-11-18", "2026-12-02", "2026-11-19"],  # the clock is set back
]
"""Contains days of four reports, in one, two or three epochs."""


@pytest.mark.slow
@pytest.mark.parametrize("days", EPOCHS, ids=" ".join)
@pytest.mark.parametrize("encoding", ["onehot", "boolean", "buckets"])
def test_spent_nats_bound_the_loss_of_all_histories(
    encoding: str, days: list[str], tmp_path: Path
) -> None:
    """The largest loss of a pair of histories equals the sum of the epsilon_n of their epochs.

    All histories of the same days cost the same nats, whatever their values are. Histories have one
    to four reports. With three values, four reports have 81 histories, so those of the first and
    the last value stand for them, and the shorter histories have all values.
    """
    params, domain = DOMAINS[encoding]
    metric = build_metric(params=params, epoch="month")
    ends = (domain[0], domain[-1])
    all_histories = record_all_histories(tmp_path, metric, ends, days)
    if len(domain) > 2:
        all_histories[:3] = record_all_histories(tmp_path, metric, domain, days[:3])
    assert [len(histories) for histories in all_histories[:3]] == [
        len(domain) ** n for n in (1, 2, 3)
    ]
    for histories in all_histories:
        assert len({history.nats for history in histories}) == 1
        distributions = [compute_distribution(history, params) for history in histories]
        loss = compute_largest_loss(distributions)
        assert loss <= histories[0].nats + 1e-9
        assert loss == pytest.approx(histories[0].nats, abs=1e-9)


def test_epoch_repeats_its_first_value(tmp_path: Path) -> None:
    """All reports of an epoch repeat its first value, also if the clock goes back and forth."""
    metric = build_metric(params=ONEHOT, epoch="month")
    # The values are a, b in November, and a, b in December.
    history = record_history(tmp_path / "on", metric, "abab", EPOCHS[1])[-1]
    assert history.shape == (0, 0, 2, 2)
    # The values are a, b in December, and a, b in November, in turn.
    back = record_history(tmp_path / "back", metric, "aabb", EPOCHS[-1])[-1]
    assert back.shape == (0, 1, 0, 1)
    assert {epoch for epoch, _ in back.steps} == {"2026-12", "2026-11"}
    # Two epochs with two reports each.
    assert math.isclose(back.nats, 2 * epsilon_n(ONEHOT, 2))
