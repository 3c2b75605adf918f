"""Losses of a person over a registry, and losses by a change of parameters.

Losses of independent reports add. The tests compare sums and joint losses with enumerations of all
coins of the randomizer for one bit.
"""

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
from registries import build_metric

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
"""The parameters before a change have this value."""

OTHER_P_AND_Q = Params(k=1, encoding="boolean", f=0.3, g=0.2, p=0.375, q=0.5)
"""Parameters that differ from `OLD` in p and q. A device keeps its permanent response."""

OTHER_F_AND_G = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
"""Parameters that differ from `OLD` in f and g. A device has to draw a new permanent response."""


def test_losses_add_over_metrics_values_and_people() -> None:
    """The loss of a person is the loss of one value times the values, summed over all metrics.

    The loss of a group is the loss of a person times the number of people.
    """
    total = compose_losses(
        [build_metric(BALANCED, "a"), build_metric(STRICT, "b", epoch="year")], values=3, reports=5
    )
    per_value = [epsilon_n(BALANCED, 5), epsilon_n(STRICT, 5)]
    assert [item.per_value for item in total.items] == per_value
    assert [item.epsilon for item in total.items] == [3 * loss for loss in per_value]
    assert [item.epoch for item in total.items] == ["life", "year"]
    assert total.epsilon == 3 * sum(per_value)
    assert total.epsilon_of_group(4) == 12 * sum(per_value)


def test_without_a_number_of_reports_each_value_costs_epsilon_inf() -> None:
    """Without a number of reports, each value costs epsilon_inf, the loss of any number of reports.

    With f = 0 the permanent response is the value, so epsilon_inf and the sum are infinite.
    """
    assert compose_losses([build_metric(BALANCED, "a")]).epsilon == epsilon_inf(BALANCED)
    unlimited = Params(k=4, f=0.0, p=0.25, q=0.75)
    assert (
        compose_losses([build_metric(unlimited, "a"), build_metric(STRICT, "b")]).epsilon
        == math.inf
    )
    assert compose_losses([]).epsilon == 0


@pytest.mark.parametrize("params", [BALANCED, Params(k=4, f=0.2, g=0.0, p=0.25, q=0.75)])
def test_a_metric_with_one_report_per_epoch_costs_epsilon_1(params: Params) -> None:
    """A metric with one report per quarter costs epsilon_1 for any passed number of reports.

    The cost of a scope is this loss, rounded up to a thousandth.
    """
    once = build_metric(params, epoch="quarter", interval="epoch")
    assert (
        compose_losses([once]).epsilon
        == compose_losses([once], reports=10).epsilon
        == epsilon_1(params)
    )
    assert 0 <= scope_cost(once) - epsilon_1(params) < 0.001
    assert [loss.reports for loss in privacy_report(once).losses] == [1]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1"])
def test_numbers_of_values_reports_and_people_are_positive_integers(bad: Any) -> None:
    """Other numbers of values, reports and people are refused, with the name of the argument."""
    with pytest.raises(ParamsError, match="values must be an integer of at least 1, got"):
        compose_losses([], values=bad)
    with pytest.raises(ParamsError, match="reports must be an integer of at least 1, got"):
        compose_losses([], reports=bad)
    with pytest.raises(ParamsError, match="n_people must be an integer of at least 1, got"):
        compose_losses([]).epsilon_of_group(bad)


def enumerate_reports(bit: bytes, reports: list[Params]) -> Distribution:
    """Return the joint distribution of the reports of one permanent response.

    Parameters
    ----------
    bit : the true bit.
    reports : parameters of each report. Only p and q may differ.
    """
    distribution: Distribution = {}
    for permanent, probability in enumerate_permanent_response(bit, reports[0]).items():
        draws = [enumerate_instantaneous_response(permanent, params).items() for params in reports]
        for drawn in itertools.product(*draws):
            key = b"".join(report for report, _ in drawn)
            weight = math.prod((weight for _, weight in drawn), start=probability)
            distribution[key] = distribution.get(key, Fraction(0)) + weight
    return distribution


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1)])
def test_loss_of_a_change_is_exact(before: int, after: int) -> None:
    """The loss across a change of parameters equals an enumeration of all coins.

    The enumeration takes the largest log-likelihood ratio of two true bits, over all sequences of
    `before` reports with the old and `after` reports with the new parameters. A change of p and q
    keeps the permanent response. After any other change a device draws a new response, and the
    losses of both scopes add.
    """
    values = (b"\0", b"\1")
    kept_change = compute_change_loss(OLD, OTHER_P_AND_Q, before=before, after=after)
    distributions = [
        enumerate_reports(bit, [OLD] * before + [OTHER_P_AND_Q] * after) for bit in values
    ]
    assert kept_change.kept
    assert kept_change.epsilon == pytest.approx(compute_largest_log_ratio(distributions), rel=1e-9)
    assert kept_change.epsilon_inf == epsilon_inf(OLD)
    redrawn = compute_change_loss(OLD, OTHER_F_AND_G, before=before, after=after)
    old_distributions = (enumerate_reports(bit, [OLD] * before) for bit in values)
    new_distributions = (enumerate_reports(bit, [OTHER_F_AND_G] * after) for bit in values)
    assert not redrawn.kept
    assert redrawn.epsilon == pytest.approx(
        compute_largest_log_ratio(list(old_distributions))
        + compute_largest_log_ratio(list(new_distributions))
    )
    assert redrawn.epsilon_inf == epsilon_inf(OLD) + epsilon_inf(OTHER_F_AND_G)


def test_unchanged_parameters_cost_nothing_and_losses_of_epochs_add() -> None:
    """Unchanged parameters cost nothing more, and the losses of two epochs add."""
    unchanged = compute_change_loss(OLD, OLD, before=2, after=3)
    assert (unchanged.kept, unchanged.epsilon) == (True, epsilon_n(OLD, 5))
    next_epoch = compute_change_loss(OLD, OTHER_P_AND_Q, before=2, after=3, is_for_life=False)
    assert next_epoch.epsilon == epsilon_n(OLD, 2) + epsilon_n(OTHER_P_AND_Q, 3)


@pytest.mark.parametrize("change", [{"k": 64}, {"h": 2}, {"m": 64}, {"normalize": "nfc"}])
def test_a_change_of_the_true_bits_ends_the_permanent_response(change: dict[str, Any]) -> None:
    """Another k, h, m or normalizer gives other true bits, so devices draw new permanent responses.

    The reports before and after the change can be decoded together, unless the normalizer changed:
    then one string stands for different groups of values.
    """
    new = dataclasses.replace(BALANCED, **change)
    assert not compute_change_loss(BALANCED, new, before=1, after=1).kept
    assert can_decode_together(BALANCED, new) == ("normalize" not in change)


def compute_estimates(params: Params) -> dict[bytes, Fraction]:
    """Return the de-biased estimate of each one-bit report."""
    forced_1, forced_0 = Fraction(params.t_1, ONE), Fraction(params.t_0, ONE)
    p, q = Fraction(params.t_p, ONE), Fraction(params.t_q, ONE)
    low, high = p + (q - p) * forced_1, q - (q - p) * forced_0
    return {bytes([bit]): (bit - low) / (high - low) for bit in (0, 1)}


def test_the_joint_error_of_two_reports_is_exact() -> None:
    """The error of a mean of two reports equals the enumeration over all coins.

    The two reports come from two devices, or from one device. The true bit is 0, so the mean
    estimate is 0. The weights of the two reports are inverse variances. Two reports of one device
    share its permanent response and therefore have a larger error, unless the change draws a new
    response.
    """
    error = compute_joint_error(OLD, OTHER_P_AND_Q, before=1, after=1)
    first, second = compute_estimates(OLD), compute_estimates(OTHER_P_AND_Q)
    weight = Fraction(error.after**2 / (error.before**2 + error.after**2))
    distribution = enumerate_reports(b"\0", [OLD, OTHER_P_AND_Q])
    first_distribution = {
        bytes([x]): sum(c for key, c in distribution.items() if key[0] == x) for x in (0, 1)
    }
    second_distribution = {
        bytes([x]): sum(c for key, c in distribution.items() if key[1] == x) for x in (0, 1)
    }
    different_devices = {
        x + y: first_distribution[x] * second_distribution[y]
        for x in first_distribution
        for y in second_distribution
    }
    for joint, expected in (
        (distribution, error.same_devices),
        (different_devices, error.together),
    ):
        estimates = {key: weight * first[key[:1]] + (1 - weight) * second[key[1:]] for key in joint}
        mean = sum(probability * estimates[key] for key, probability in joint.items())
        square = sum(probability * estimates[key] ** 2 for key, probability in joint.items())
        assert mean == 0
        assert expected == pytest.approx(math.sqrt(square), rel=1e-9)
    assert error.together < min(error.before, error.after)
    assert error.same_devices > error.together
    assert compute_joint_error(OLD, OTHER_F_AND_G, before=9, after=4).same_devices == pytest.approx(
        compute_joint_error(OLD, OTHER_F_AND_G, before=9, after=4).together
    )


@pytest.mark.parametrize(("before", "after"), [(1000, 1000), (1000, 4000), (4000, 1000)])
@pytest.mark.parametrize("h", [1, 2])
def test_unchanged_parameters_have_the_error_of_the_mean_of_all_reports(
    before: int, after: int, h: int
) -> None:
    """Without a change of parameters, the joint error is the error of the mean of all reports.

    `same_devices` is the error if all devices of the smaller collection report in both collections.
    The variance of the mean then also contains the covariance of each device's two reports.
    """
    params = Params(k=64, h=h, m=8, f=0.3, p=0.25, q=0.75)
    error = compute_joint_error(params, params, before=before, after=after)
    one_report = compute_standard_error(params, 1) ** 2
    # The covariance of two reports of one device.
    shared = compute_standard_error(params, 1, reports_per_device=2) ** 2 - one_report
    n, twice = before + after, min(before, after)
    assert error.together == pytest.approx(math.sqrt(one_report / n))
    assert error.same_devices == pytest.approx(math.sqrt(n * one_report + 2 * twice * shared) / n)


@pytest.mark.parametrize(
    "values",
    [{"encoding": "onehot", "categories": ("a", "b", "c")}, {"encoding": "set", "items": 4}],
)
def test_a_repeated_report_of_one_bucket_adds_no_information(values: dict[str, Any]) -> None:
    """Two equal reports of each device have the error of one report.

    Generalized randomized response has no instantaneous noise, so the second report is the first.
    """
    params = Params.profile("once", **values)
    assert params.response.is_exclusive
    error = compute_joint_error(params, params, before=1000, after=1000)
    assert error.same_devices == pytest.approx(error.before, rel=1e-12)
    assert error.together == pytest.approx(error.before / math.sqrt(2), rel=1e-12)


def test_other_encodings_and_layouts_are_not_decoded_together() -> None:
    """Parameters with other encodings or hash layouts cannot be decoded together."""
    assert not can_decode_together(OLD, BALANCED)
    google_params = Params(k=8, m=4, f=0.5, p=0.25, q=0.75, layout=GOOGLE_LAYOUT)
    assert can_decode_together(google_params, dataclasses.replace(google_params, q=0.7))
    assert not can_decode_together(
        google_params, dataclasses.replace(google_params, layout="rappor-1")
    )
    with pytest.raises(ParamsError, match="parameters must agree in encoding"):
        compute_joint_error(OLD, BALANCED, before=1, after=1)


def test_counts_without_noise_on_zeros_have_no_error_of_a_rare_string() -> None:
    """With p* = 0 in one of the collections the joint error of a rare string is 0."""
    zeros_without_noise = Params(k=8, h=1, m=2, f=0, p=0, q=0.5, insecure=True)
    larger_q = Params(k=8, h=1, m=2, f=0, p=0, q=0.75, insecure=True)
    for pair in (
        (zeros_without_noise, larger_q),
        (zeros_without_noise, BALANCED),
        (BALANCED, zeros_without_noise),
    ):
        error = compute_joint_error(*pair, before=9, after=4)
        assert error.together == error.same_devices == 0
