"""Chosen noise: within its budget, with the least variance, and with published figures."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rappor import Counts, Params, ParamsError, decode, epsilon_1, epsilon_inf
from rappor.planning.detection_limit import (
    compute_detection_limit,
    compute_rare_variance,
    compute_standard_error,
)
from rappor.planning.noise import (
    choose_noise,
    choose_published,
    compute_low_probability,
    compute_optimal_variance,
    find_best_high,
    format_forced_probabilities,
    format_probability,
)
from rappor.protocol.responses.rappor_response import compute_noise
from rappor.protocol.thresholds import compute_threshold

ONE, INF = 1.0743, 2 * 2 * math.log(3)
"""The losses of [EPK14] section 5.2, eps_1 and eps_inf."""

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)

ROUNDING = 1e-5
"""Part of the variance that 32-bit thresholds may cost at losses above 0.05."""


def variance(params: Params) -> float:
    """Return the variance of one report at the mean level of a bit."""
    return _at_level(params.p_star, params.q_star, params) / params.h


def endless(params: Params) -> float:
    """Return the variance of any number of reports at the mean level of a bit."""
    return _at_level(params.f1, 1 - params.f0, params) / params.h


def _at_level(low: float, high: float, params: Params) -> float:
    mean = low + (high - low) * params.density
    return mean * (1 - mean) / (high - low) ** 2


losses = st.tuples(st.floats(1e-3, 40), st.floats(0, 4)).map(
    lambda pair: (pair[0], min(pair[0] * (1 + pair[1]), 40.0))
)


@given(losses, st.sampled_from([1, 1, 2, 3, 16]), st.booleans())
def test_no_loss_is_exceeded(pair: tuple[float, float], h: int, symmetric: bool) -> None:
    """After rounding to 32 bits, both losses are at most the limits, and almost equal to them."""
    one, inf = pair
    params = choose_noise(one, inf, k=32, h=h, symmetric=symmetric)
    assert epsilon_1(params) <= one
    assert epsilon_inf(params) <= inf
    if one < 10 * h and inf < 15 * h:  # beyond, 32-bit coins end
        assert epsilon_1(params) >= one * 0.997
        assert epsilon_inf(params) >= inf * 0.997
    if symmetric:
        assert params.p + params.q == pytest.approx(1, abs=1e-8)
        assert params.g == 0.5


@pytest.mark.slow
@given(
    st.floats(0.01, 0.98),
    st.floats(0.02, 0.98),
    st.floats(0, 0.9),
    st.floats(0.05, 1),
    st.sampled_from([1, 2, 4]),
)
def test_no_design_of_the_same_privacy_is_better(
    f: float, g: float, p: float, up: float, h: int
) -> None:
    """No other noise with the same losses has a smaller variance, for any number of reports."""
    other = Params(k=128, h=h, m=1, f=f, g=g, p=p, q=p + (1 - p) * up)
    one, inf = epsilon_1(other), epsilon_inf(other)
    assume(0.05 <= one <= inf <= 15)
    best = choose_noise(one, inf, h=h)
    assert variance(best) <= variance(other) * (1 + ROUNDING)
    assert endless(best) <= endless(other) * (1 + ROUNDING)


@given(losses)
def test_more_hash_functions_never_help(pair: tuple[float, float]) -> None:
    """At equal losses one hash function has the least variance.

    Asymmetric noise has at most the variance of symmetric noise.
    """
    assume(0.05 <= pair[0] <= 10)
    designs = [choose_noise(*pair, h=h) for h in (1, 2, 3, 4)]
    symmetric = choose_noise(*pair, symmetric=True)
    assert all(variance(low) <= variance(high) for low, high in itertools.pairwise(designs))
    assert variance(designs[0]) <= variance(symmetric) * (1 + ROUNDING)
    assert endless(designs[0]) <= endless(symmetric) * (1 + ROUNDING)


@given(st.floats(1e-4, 40), st.floats(0, 0.9))
def test_the_search_ends_between_rare_and_even(epsilon: float, level: float) -> None:
    """A rare string has q* = 1/2, the known optimum. A share of a half has symmetric noise."""
    rare, even = find_best_high(epsilon, 0.0), find_best_high(epsilon, 0.5)
    assert rare == pytest.approx(0.5, abs=1e-9)
    assert even == pytest.approx(1 / (1 + math.exp(-epsilon / 2)), abs=1e-9)
    low = compute_low_probability(rare, epsilon)
    assert low * (1 - low) / (rare - low) ** 2 == pytest.approx(
        compute_optimal_variance(epsilon), rel=1e-6
    )
    if level <= 0.5:
        assert rare - 1e-9 <= find_best_high(epsilon, level) <= even + 1e-9


@given(st.integers(0, 2**31), st.integers(0, 2**31 - 1))
def test_f_and_g_read_back(t_1: int, t_0: int) -> None:
    """The decimals of f and g give the same thresholds. g = 1/2 needs no more digits of f."""
    assume(t_1 + t_0 > 0)
    params = Params(k=8, **compute_noise(t_1, t_0, 2**30, 2**31))
    f, g = map(float, format_forced_probabilities(params))
    assert (compute_threshold(f * g), compute_threshold(f * (1 - g))) == (t_1, t_0)


def test_variances_at_equal_privacy() -> None:
    """At the losses (1.0743, 4.394), one and two hash functions have the known variances."""
    whole = choose_noise(2, 2)  # equal losses cost one report nothing
    assert (whole.p, whole.q) == (0, 1)
    assert variance(whole) == pytest.approx(variance(choose_noise(2, 4)), rel=ROUNDING)
    asymmetric, symmetric = choose_noise(ONE, INF), choose_noise(ONE, INF, symmetric=True)
    two = choose_noise(ONE, INF, h=2)
    published = choose_published(ONE, INF)
    assert published is not None
    assert choose_published(5.9, 6.0) is None  # with p = 1/2 a weak permanent response loses less
    assert round(compute_rare_variance(PAPER), 3) == 7.875
    assert round(compute_rare_variance(published), 2) == 7.87
    assert [published.f, published.p, published.q] == pytest.approx([0.5, 0.5, 0.75], abs=1e-5)
    assert round(compute_rare_variance(symmetric), 3) == 3.384
    assert [symmetric.f, symmetric.p, symmetric.q] == pytest.approx([0.2, 0.3361, 0.6639], abs=5e-5)
    assert round(compute_rare_variance(asymmetric), 3) == 3.151
    assert round(endless(symmetric) / endless(asymmetric), 2) == 2.28
    assert round(compute_optimal_variance(ONE), 3) == 3.151
    chosen = [getattr(asymmetric, letter) for letter in ("f", "g", "p", "q", "p_star", "q_star")]
    expected = [0.454207, 0.034242, 0.249488, 0.700235, 0.256499, 0.502513]
    assert chosen == pytest.approx(expected, abs=1e-6)
    exact = choose_noise(epsilon_1(PAPER), epsilon_inf(PAPER), h=2)
    assert round(compute_rare_variance(exact), 3) == 6.768
    assert round(compute_rare_variance(two) / compute_rare_variance(asymmetric), 2) == 2.15
    assert round(compute_rare_variance(PAPER) / compute_rare_variance(exact), 2) == 1.16


def test_limits_of_the_published_collections() -> None:
    """The detection limits of [EPK14] sections 5.2, 5.3 and 5.4 are reproduced."""
    assert round(compute_standard_error(PAPER, 1_000_000)) == 2806
    processes = Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75)
    assert abs(compute_standard_error(processes, 186_792) - 1212) < 1.5
    homepages = Params(k=128, h=2, m=32, f=0.75, p=0.5, q=0.75)
    error = compute_standard_error(homepages, 14_000_000)
    assert abs(error - 20_791) < 100  # "about 14 million"
    assert round(100 * error / 14e6, 3) == 0.149
    assert round(0.001 * 14e6 / error, 2) == 0.67
    half = compute_detection_limit(homepages, 14_000_000, n_candidates=8616, power=0.5)
    assert round(100 * half, 2) == 0.65


@pytest.mark.parametrize(
    ("one", "inf", "reason"),
    [
        *((one, 1, "epsilon_1 must be a number in") for one in (0, -1, math.nan, True)),
        *((both, both, "epsilon_1 must be a number in") for both in (41, math.inf)),
        *((1, inf, "epsilon_inf must be a number in") for inf in (math.inf, math.nan)),
        (2, 1, "epsilon_inf must be at least epsilon_1"),
    ],
)
def test_impossible_losses_are_refused(one: float, inf: float, reason: str) -> None:
    """An impossible loss is refused in one sentence that names the number."""
    for choose in (choose_noise, choose_published):
        with pytest.raises(ParamsError, match=reason):
            choose(one, inf)


@given(st.integers(0, 1 << 32))
def test_shortest_decimal_reads_back(t: int) -> None:
    """The decimal gives the same threshold, and one digit less would not."""
    text = format_probability(t / 2**32)
    assert compute_threshold(float(text)) == t
    digits = len(text.partition(".")[2])
    assert digits == 1 or compute_threshold(round(t / 2**32, digits - 1)) != t


def test_repeated_reports_are_planned_as_they_are_decoded() -> None:
    """With 30 reports of each device, the planned error of an absent category is the decoder's."""
    params = Params(encoding="boolean", k=1, f=0.238406, p=0.059601, q=0.559601)
    n = 1_000_000
    counts = Counts(params, [[round(params.p_star * n)]], [n])
    for reports_per_device in (1.0, 30.0):
        decoded = float(decode(counts, reports_per_device=reports_per_device).std_error[0])
        planned = compute_standard_error(params, n, reports_per_device=reports_per_device) / n
        assert planned == pytest.approx(decoded, rel=1e-4)
        limit = compute_detection_limit(params, n, power=0.5, reports_per_device=reports_per_device)
        assert limit == pytest.approx(1.6448536 * planned, rel=1e-6)
    with pytest.raises(ParamsError, match="reports_per_device must be"):
        compute_standard_error(params, n, reports_per_device=0.5)


def test_a_limit_is_of_one_candidate_unless_said() -> None:
    """The default is one candidate, a level of 5 % and a power of 80 %."""
    stated_limit = compute_detection_limit(PAPER, 10**6, n_candidates=1, level=0.05, power=0.8)
    assert compute_detection_limit(PAPER, 10**6) == stated_limit
    assert stated_limit == pytest.approx(
        (1.6448536 + 0.8416212) * compute_standard_error(PAPER, 10**6) / 1e6
    )


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (("n_reports", "n_candidates"), (0, -1, 1.5, True, math.nan)),
        (("level", "power"), (0, 1, 1.5, -0.1, math.nan)),  # neither never nor always
    ],
)
def test_a_limit_is_of_whole_numbers_and_rates(names: tuple[str, ...], wrong: Any) -> None:
    """Numbers of reports and candidates are whole, and rates are in (0, 1)."""
    for name, number in itertools.product(names, wrong):
        arguments: dict[str, Any] = {"n_reports": 100, "n_candidates": 8, name: number}
        with pytest.raises(ParamsError, match=f"{name} must be"):
            compute_detection_limit(PAPER, **arguments)
        if name == "n_reports":
            with pytest.raises(ParamsError, match="n_reports must be"):
                compute_standard_error(PAPER, number)
