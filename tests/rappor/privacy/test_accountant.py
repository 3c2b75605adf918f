"""Losses of a person over a registry, and losses by a change of parameters."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
from enumeration import (
    Distribution,
    compute_largest_log_ratio,
    enumerate_instantaneous_response,
    enumerate_permanent_response,
)
from registries import metric_of

from rappor.base.errors import ParamsError
from rappor.candidates.google_hashing import GOOGLE_LAYOUT
from rappor.planning.changed_params import can_decode_together, compute_joint_error
from rappor.planning.detection_limit import compute_standard_error
from rappor.privacy.accountant import compose_losses
from rappor.privacy.assessment import privacy_report
from rappor.privacy.parameter_changes import compute_change_loss
from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.thresholds import ONE
from rappor.registry.budget import scope_cost

BALANCED, STRICT = Params.profile("balanced"), Params.profile("strict")
OLD = Params(k=1, encoding="boolean", f=0.3, g=0.2, p=0.25, q=0.75)
FAINTER = Params(k=1, encoding="boolean", f=0.3, g=0.2, p=0.375, q=0.5)
REDRAWN = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)


def test_losses_add_over_metrics_values_and_people() -> None:
    """The total is the loss of a value, times the values, summed over metrics, times the people."""
    total = compose_losses(
        [metric_of(BALANCED, "a"), metric_of(STRICT, "b", epoch="year")], values=3, reports=5
    )
    per_value = [epsilon_n(BALANCED, 5), epsilon_n(STRICT, 5)]
    assert [item.per_value for item in total.items] == per_value
    assert [item.epsilon for item in total.items] == [3 * loss for loss in per_value]
    assert [item.epoch for item in total.items] == ["life", "year"]
    assert total.epsilon == 3 * sum(per_value)
    assert total.epsilon_of_group(4) == 12 * sum(per_value)


def test_without_a_number_all_reports_are_counted() -> None:
    """Without a number of reports each value costs epsilon_inf, which may be infinite."""
    assert compose_losses([metric_of(BALANCED, "a")]).epsilon == epsilon_inf(BALANCED)
    endless = Params(k=4, f=0.0, p=0.25, q=0.75)
    assert compose_losses([metric_of(endless, "a"), metric_of(STRICT, "b")]).epsilon == math.inf
    assert compose_losses([]).epsilon == 0


@pytest.mark.parametrize("params", [BALANCED, Params(k=4, f=0.2, g=0.0, p=0.25, q=0.75)])
def test_reports_beyond_the_interval_are_not_charged(params: Params) -> None:
    """With one report a quarter the loss is epsilon_1, whatever number is passed."""
    once = metric_of(params, epoch="quarter", interval="epoch")
    assert (
        compose_losses([once]).epsilon
        == compose_losses([once], reports=10).epsilon
        == epsilon_1(params)
    )
    assert 0 <= scope_cost(once) - epsilon_1(params) < 0.001
    assert [loss.reports for loss in privacy_report(once).losses] == [1]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1"])
def test_counts_are_counts(bad: Any) -> None:
    """Numbers of values, reports and people must be positive integers."""
    with pytest.raises(ParamsError, match="values must be an integer of at least 1, got"):
        compose_losses([], values=bad)
    with pytest.raises(ParamsError, match="reports must be an integer of at least 1, got"):
        compose_losses([], reports=bad)
    with pytest.raises(ParamsError, match="n_people must be an integer of at least 1, got"):
        compose_losses([]).epsilon_of_group(bad)


def enumerate_reports(bit: bytes, reports: list[Params]) -> Distribution:
    """Return the distribution of reports under one permanent response. Each has its own p and q."""
    law: Distribution = {}
    for memoised, chance in enumerate_permanent_response(bit, reports[0]).items():
        draws = [enumerate_instantaneous_response(memoised, params).items() for params in reports]
        for drawn in itertools.product(*draws):
            key = b"".join(report for report, _ in drawn)
            weight = math.prod((weight for _, weight in drawn), start=chance)
            law[key] = law.get(key, Fraction(0)) + weight
    return law


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1)])
def test_loss_of_a_change_is_exact(before: int, after: int) -> None:
    """The loss of a change equals the worst ratio over all coins of the randomizer.

    A change of p and q keeps the permanent response. For any other change the losses of both scopes
    add.
    """
    values = (b"\0", b"\1")
    kept = compute_change_loss(OLD, FAINTER, before=before, after=after)
    laws = [enumerate_reports(bit, [OLD] * before + [FAINTER] * after) for bit in values]
    assert kept.kept
    assert kept.epsilon == pytest.approx(compute_largest_log_ratio(laws), rel=1e-9)
    assert kept.epsilon_inf == epsilon_inf(OLD)
    redrawn = compute_change_loss(OLD, REDRAWN, before=before, after=after)
    parts = (enumerate_reports(bit, [OLD] * before) for bit in values)
    others = (enumerate_reports(bit, [REDRAWN] * after) for bit in values)
    assert not redrawn.kept
    assert redrawn.epsilon == pytest.approx(
        compute_largest_log_ratio(list(parts)) + compute_largest_log_ratio(list(others))
    )
    assert redrawn.epsilon_inf == epsilon_inf(OLD) + epsilon_inf(REDRAWN)


def test_no_change_costs_nothing_and_epochs_add() -> None:
    """Unchanged parameters cost nothing more, and the losses of two epochs add."""
    same = compute_change_loss(OLD, OLD, before=2, after=3)
    assert (same.kept, same.epsilon) == (True, epsilon_n(OLD, 5))
    waits = compute_change_loss(OLD, FAINTER, before=2, after=3, is_for_life=False)
    assert waits.epsilon == epsilon_n(OLD, 2) + epsilon_n(FAINTER, 3)


@pytest.mark.parametrize("change", [{"k": 64}, {"h": 2}, {"m": 64}, {"normalize": "nfc"}])
def test_other_bits_draw_other_responses(change: dict[str, Any]) -> None:
    """A change of the true bits ends the permanent response."""
    new = dataclasses.replace(BALANCED, **change)
    assert not compute_change_loss(BALANCED, new, before=1, after=1).kept
    assert can_decode_together(BALANCED, new) == ("normalize" not in change)


def compute_estimates(params: Params) -> dict[bytes, Fraction]:
    """Return the de-biased estimate of each one-bit report."""
    forced_1, forced_0 = Fraction(params.t_1, ONE), Fraction(params.t_0, ONE)
    p, q = Fraction(params.t_p, ONE), Fraction(params.t_q, ONE)
    low, high = p + (q - p) * forced_1, q - (q - p) * forced_0
    return {bytes([bit]): (bit - low) / (high - low) for bit in (0, 1)}


def test_errors_together_are_exact() -> None:
    """The error of two reports equals the enumeration over all coins.

    The reports are of one device, or of two devices.
    """
    error = compute_joint_error(OLD, FAINTER, before=1, after=1)
    first, second = compute_estimates(OLD), compute_estimates(FAINTER)
    weight = Fraction(error.after**2 / (error.before**2 + error.after**2))
    law = enumerate_reports(b"\0", [OLD, FAINTER])
    one = {bytes([x]): sum(c for key, c in law.items() if key[0] == x) for x in (0, 1)}
    two = {bytes([x]): sum(c for key, c in law.items() if key[1] == x) for x in (0, 1)}
    apart = {x + y: one[x] * two[y] for x in one for y in two}
    for joint, expected in ((law, error.same_devices), (apart, error.together)):
        estimates = {key: weight * first[key[:1]] + (1 - weight) * second[key[1:]] for key in joint}
        mean = sum(chance * estimates[key] for key, chance in joint.items())
        square = sum(chance * estimates[key] ** 2 for key, chance in joint.items())
        assert mean == 0
        assert expected == pytest.approx(math.sqrt(square), rel=1e-9)
    assert error.together < min(error.before, error.after)
    assert error.same_devices > error.together
    assert compute_joint_error(OLD, REDRAWN, before=9, after=4).same_devices == pytest.approx(
        compute_joint_error(OLD, REDRAWN, before=9, after=4).together
    )


@pytest.mark.parametrize(("before", "after"), [(1000, 1000), (1000, 4000), (4000, 1000)])
@pytest.mark.parametrize("h", [1, 2])
def test_the_smaller_collection_reports_twice(before: int, after: int, h: int) -> None:
    """Without a change of parameters, the joint error is that of the mean of all reports.

    The devices of the smaller collection report in both collections.
    """
    params = Params(k=64, h=h, m=8, f=0.3, p=0.25, q=0.75)
    error = compute_joint_error(params, params, before=before, after=after)
    alone = compute_standard_error(params, 1) ** 2
    # The covariance of two reports of one device.
    shared = compute_standard_error(params, 1, reports_per_device=2) ** 2 - alone
    n, twice = before + after, min(before, after)
    assert error.together == pytest.approx(math.sqrt(alone / n))
    assert error.same_devices == pytest.approx(math.sqrt(n * alone + 2 * twice * shared) / n)


def test_different_questions_are_not_decoded_together() -> None:
    """Parameters with other encodings or hash layouts cannot be decoded together."""
    assert not can_decode_together(OLD, BALANCED)
    theirs = Params(k=8, m=4, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    assert can_decode_together(theirs, dataclasses.replace(theirs, q=0.7))
    assert not can_decode_together(theirs, dataclasses.replace(theirs, layout="rappor-1"))
    with pytest.raises(ParamsError, match="parameters must agree in encoding"):
        compute_joint_error(OLD, BALANCED, before=1, after=1)


def test_counts_without_noise_on_zeros_have_no_error_of_a_rare_string() -> None:
    """With p* = 0 on one side the joint error of a rare string is 0."""
    bare = Params(k=8, h=1, m=2, f=0, p=0, q=0.5, insecure=True)
    surer = Params(k=8, h=1, m=2, f=0, p=0, q=0.75, insecure=True)
    for pair in ((bare, surer), (bare, BALANCED), (BALANCED, bare)):
        error = compute_joint_error(*pair, before=9, after=4)
        assert error.together == error.same_devices == 0
