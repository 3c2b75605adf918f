"""What memoisation promises, checked over all pairs of short histories.

The real client is led through every history of up to four reports; which permanent response it used
for which report is read from its state, whose prices are no less than what these reports cost. The
distribution of the reports is then enumerated over all coins of both responses, in binary
fractions that float64 holds exactly.
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
from devices import UNCAPPED, metric_of, peek, write_device
from enumeration import enumerate_reports
from rappor_client import Client, ClientOptions, Outcome
from rappor_client.testing import FixedClock
from registries import registry_of

from rappor import Metric, Params
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.randomizer import derive_cohort, derive_permanent_response

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
ONEHOT = Params(k=2, encoding="onehot", categories=("a", "b"), **NOISE)
BOOLEAN = Params(k=1, encoding="boolean", **NOISE)
BUCKETS = Params(k=2, encoding="buckets", categories=("0",), **NOISE)

DOMAINS: dict[str, tuple[Params, tuple[object, ...]]] = {
    "onehot": (ONEHOT, ("a", "b")),
    "boolean": (BOOLEAN, (False, True)),
    "buckets": (BUCKETS, (-1, math.nan, 1)),
}
Step = tuple[str, bytes]
"""One report: the epoch and the true bits behind its permanent response."""


class Led:
    """A history that the real client was led through: its reports' steps, and their cost."""

    def __init__(self, steps: Sequence[Step], nats: float) -> None:
        """Keep both, and the shape of repetition."""
        self.steps = tuple(steps)
        self.nats = nats
        self.shape = tuple(self.steps.index(step) for step in self.steps)


def lead(folder: Path, metric: Metric, values: Sequence[object], days: Sequence[str]) -> Led:
    """Record values on the days given and find out whose permanent response each report shows."""
    clock = FixedClock(f"{days[0]}T12:00:00")
    secret = telling_secret(metric, values, days)
    write_device(folder, secret)
    client = Client.open(
        folder,
        registry=registry_of(metric),
        consent=True,
        options=ClientOptions(clock=clock, budget_cap=UNCAPPED),
    )
    steps: list[Step] = []
    for value, day in zip(values, days, strict=True):
        clock.set(f"{day}T12:00:00")
        assert client.record(metric.name, value) == Outcome.RECORDED
        client.queued_count()
        clock.advance(days=1)
        finish_ended_intervals(client)
        assert client.queued_count() == len(steps) + 1
        epoch = metric.epoch_at(datetime.date.fromisoformat(day))
        (scope,) = [each for each in peek(folder).scopes if each.epoch == epoch]
        steps.append(step_of(scope.permanent, epoch, secret, metric, values))
    counts = [steps.count(step) for step in dict.fromkeys(steps)]
    nats = sum(epsilon_n(metric.params, n) for n in counts)
    assert nats <= client.privacy_spent().nats + 1e-9
    client.close()
    return Led(steps, nats)


def true_bits(secret: bytes, metric: Metric, epoch: str, value: object) -> bytes:
    """Return the true bits of a value in the device's cohort."""
    own = derive_cohort(secret, metric.name, epoch, metric.params)
    return get_encoder(metric.params).encode(value, own)


def responses_of(
    secret: bytes, metric: Metric, epoch: str, values: Sequence[object]
) -> dict[bytes, bytes]:
    """Return the permanent response of each value's true bits, by the protocol alone."""
    all_bits = {true_bits(secret, metric, epoch, value) for value in values}
    return {
        bits: derive_permanent_response(secret, metric.name, epoch, metric.params, bits)
        for bits in all_bits
    }


def telling_secret(metric: Metric, values: Sequence[object], days: Sequence[str]) -> bytes:
    """Return a secret under which different true bits have different permanent responses."""
    epochs = {metric.epoch_at(datetime.date.fromisoformat(day)) for day in days}
    for number in itertools.count():
        secret = number.to_bytes(32, "big")
        responses = [responses_of(secret, metric, epoch, values) for epoch in epochs]
        if all(len(set(each.values())) == len(each) for each in responses):
            return secret
    raise AssertionError


def step_of(
    response: bytes, epoch: str, secret: bytes, metric: Metric, values: Sequence[object]
) -> Step:
    """Find the true bits that a permanent response was drawn from."""
    responses = responses_of(secret, metric, epoch, values)
    (bits,) = [bits for bits, known in responses.items() if known == response]
    return epoch, bits


@functools.cache
def distribution_of_one(bits: bytes, params: Params, n: int) -> np.ndarray:
    """Return the distribution of n reports of one permanent response: shape (2^k,) * n."""
    distribution = np.zeros((2**params.k,) * n)
    for reports, probability in enumerate_reports(bits, params, n).items():
        exact = float(probability)
        assert probability == exact  # halves and quarters: no rounding
        distribution[tuple(reports)] = exact
    return distribution


def distribution_of(led: Led, params: Params) -> np.ndarray:
    """Return the distribution of a whole history's reports, flat."""
    n = len(led.steps)
    distribution = np.ones((1,) * n)
    for step in set(led.steps):
        places = [i for i, other in enumerate(led.steps) if other == step]
        one = distribution_of_one(step[1], params, len(places))
        shape = [one.shape[0] if i in places else 1 for i in range(n)]
        distribution = distribution * one.reshape(shape)
    return distribution.ravel()


def worst(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest log-likelihood ratio by which reports speak for the first."""
    return float(np.log(np.max(one / other)))


def led_histories(
    tmp_path: Path, metric: Metric, domain: Sequence[object], days: Sequence[str]
) -> list[Led]:
    """Lead the client through every history over the domain on these days."""
    histories = itertools.product(domain, repeat=len(days))
    return [
        lead(tmp_path / f"{len(days)}-{i}", metric, values, days)
        for i, values in enumerate(histories)
    ]


EPOCHS = [
    ["2026-11-18", "2026-11-19", "2026-11-20", "2026-11-21"],
    ["2026-11-18", "2026-11-30", "2026-12-01", "2026-12-31"],
    ["2026-11-18", "2026-12-01", "2026-12-02", "2026-12-03"],
    ["2026-11-18", "2026-12-01", "2027-01-01", "2027-01-02"],
    ["2026-12-01", "2026-11-18", "2026-12-02", "2026-11-19"],  # the clock is set back
]


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("days", EPOCHS, ids=" ".join)
@pytest.mark.parametrize("encoding", ["onehot", "boolean", "buckets"])
def test_by_epoch_the_ledger_bounds_all_histories(
    encoding: str, days: list[str], n: int, tmp_path: Path
) -> None:
    """Whatever the values do, the loss is at most the sum over epochs, and some pair reaches it."""
    params, domain = DOMAINS[encoding]
    if n == 4:
        domain = (domain[0], domain[-1])
    metric = metric_of(params=params, epoch="month")
    led = led_histories(tmp_path, metric, domain, days[:n])
    assert len({one.nats for one in led}) == 1
    distributions = [distribution_of(one, params) for one in led]
    losses = [worst(one, other) for one, other in itertools.permutations(distributions, 2)]
    assert max(losses) <= led[0].nats + 1e-9
    assert max(losses) == pytest.approx(led[0].nats, abs=1e-9)


def test_by_epoch_the_first_value_answers(tmp_path: Path) -> None:
    """Steps of one epoch are all alike, also when the clock goes back and forth between two."""
    metric = metric_of(params=ONEHOT, epoch="month")
    led = lead(tmp_path / "on", metric, "abab", EPOCHS[1])
    assert led.shape == (0, 0, 2, 2)
    back = lead(tmp_path / "back", metric, "aabb", EPOCHS[-1])
    assert back.shape == (0, 1, 0, 1)
    assert {epoch for epoch, _ in back.steps} == {"2026-12", "2026-11"}
    assert math.isclose(back.nats, 2 * epsilon_n(ONEHOT, 2))
