"""Noise that the planner chooses for two limits of the loss, epsilon_1 and epsilon_inf.

The tests check that the losses are within the limits, that no other noise of these losses has a
smaller variance, and that the figures are those of [EPK14].
"""

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

EPSILON_1, EPSILON_INF = 1.0743, 2 * 2 * math.log(3)
"""Losses of `PAPER` in nats. By [EPK14] Theorem 1, epsilon_inf is 2 h ln((1 - f/2) / (f/2)), which
is 2 * 2 ln 3 for h = 2 and f = 1/2."""

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)
"""[EPK14] section 5.2 has these parameters."""

ROUNDING = 1e-5
"""Relative increase of the variance that 32-bit thresholds may cause at losses above 0.05."""


def compute_variance(params: Params) -> float:
    """Return the variance of a share per report, at the mean level of a bit.

    The level of a bit is the proportion of the devices whose strings set the bit. Its mean is
    `Params.density`, the probability that a string sets the bit. The estimate averages h bits.
    """
    return _compute_variance_between(params.p_star, params.q_star, params) / params.h


def compute_permanent_variance(params: Params) -> float:
    """Return the variance of a share per device with infinitely many reports, at the mean level.

    Their mean is the permanent bit, so only the noise of the permanent response remains.
    """
    return _compute_variance_between(params.f1, 1 - params.f0, params) / params.h


def _compute_variance_between(low: float, high: float, params: Params) -> float:
    """Return the variance of the de-biased estimate of a bit, per report.

    The bit is reported as 1 with probability `low` for a true 0 and `high` for a true 1.
    """
    mean = low + (high - low) * params.density
    return mean * (1 - mean) / (high - low) ** 2


losses = st.tuples(st.floats(1e-3, 40), st.floats(0, 4)).map(
    lambda pair: (pair[0], min(pair[0] * (1 + pair[1]), 40.0))
)
"""Strategy for a pair of limits (epsilon_1, epsilon_inf) in nats. The second limit is at least the
first one, and at most five times as large."""


@given(losses, st.sampled_from([1, 1, 2, 3, 16]), st.booleans())
def test_chosen_noise_has_the_losses_of_the_limits(
    pair: tuple[float, float], h: int, symmetric: bool
) -> None:
    """After rounding to 32 bits, both losses are at most the limits, and at least 99.7 % of them.

    A loss above its limit would break a promise. A loss far below it would waste devices.
    """
    limit_1, limit_inf = pair
    params = choose_noise(limit_1, limit_inf, k=32, h=h, symmetric=symmetric)
    assert epsilon_1(params) <= limit_1
    assert epsilon_inf(params) <= limit_inf
    # A larger loss needs probabilities near 2^-32, the smallest one of a coin. Rounding to
    # multiples of 2^-32 then changes the loss by more than .3 %.
    if limit_1 < 10 * h and limit_inf < 15 * h:
        assert epsilon_1(params) >= limit_1 * 0.997
        assert epsilon_inf(params) >= limit_inf * 0.997
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
    f: float, g: float, p: float, rest_of_q: float, h: int
) -> None:
    """No other noise with the same losses has a smaller variance, for one or many reports.

    Hypothesis draws the alternative: f, g and p directly, and q as p plus a part of 1 - p. The
    losses of the alternative are the limits of the chosen noise.
    """
    alternative = Params(k=128, h=h, m=1, f=f, g=g, p=p, q=p + (1 - p) * rest_of_q)
    loss_1, loss_inf = epsilon_1(alternative), epsilon_inf(alternative)
    assume(0.05 <= loss_1 <= loss_inf <= 15)
    best = choose_noise(loss_1, loss_inf, h=h)
    assert compute_variance(best) <= compute_variance(alternative) * (1 + ROUNDING)
    assert compute_permanent_variance(best) <= compute_permanent_variance(alternative) * (
        1 + ROUNDING
    )


@given(losses)
def test_more_hash_functions_never_help(pair: tuple[float, float]) -> None:
    """At equal losses, the variance grows with the number of hash functions h.

    Two strings differ in up to 2 h bits, so each bit gets 1/h of the loss. The gain of averaging h
    bits is smaller than this cost. Asymmetric noise has at most the variance of symmetric noise,
    which is one of its special cases.
    """
    assume(0.05 <= pair[0] <= 10)
    designs = [choose_noise(*pair, h=h) for h in (1, 2, 3, 4)]
    symmetric = choose_noise(*pair, symmetric=True)
    assert all(
        compute_variance(low) <= compute_variance(high) for low, high in itertools.pairwise(designs)
    )
    assert compute_variance(designs[0]) <= compute_variance(symmetric) * (1 + ROUNDING)
    assert compute_permanent_variance(designs[0]) <= compute_permanent_variance(symmetric) * (
        1 + ROUNDING
    )


@given(st.floats(1e-4, 40), st.floats(0, 0.9))
def test_best_probability_of_a_true_1_lies_between_the_known_optima(
    epsilon: float, level: float
) -> None:
    """The best q* is 1/2 for a share near 0, and e^(eps/2) / (1 + e^(eps/2)) for a share of 1/2.

    These are the known optima: of optimised unary encoding [WBLJ17], and of symmetric noise. For a
    share between 0 and 1/2 the best q* lies between both. `level` is the share.
    """
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
def test_decimals_of_f_and_g_give_the_same_thresholds(t_1: int, t_0: int) -> None:
    """The decimals of f and g that a plan prints give exactly the thresholds of its parameters.

    t_1 and t_0 are the numbers of 2^32 coins that force a bit to 1 and to 0. A registry contains f
    and g instead. Other thresholds would be other parameters, with another fingerprint and loss.
    """
    assume(t_1 + t_0 > 0)
    params = Params(k=8, **compute_noise(t_1, t_0, 2**30, 2**31))
    f, g = map(float, format_forced_probabilities(params))
    assert (compute_threshold(f * g), compute_threshold(f * (1 - g))) == (t_1, t_0)


def test_variances_at_equal_privacy() -> None:
    """At the losses of [EPK14] section 5.2, variances and parameters have the known digits.

    The variances of a rare string, times the reports, are 7.875 for the paper's parameters with two
    hash functions, 3.384 for symmetric and 3.151 for asymmetric noise with one hash function. The
    last one is the smallest known variance. All figures follow from the formulas of
    `planning.noise`.
    """
    # With equal limits the permanent response spends all of the loss, and the instantaneous
    # response adds no noise.
    permanent_only = choose_noise(2, 2)
    assert (permanent_only.p, permanent_only.q) == (0, 1)
    assert compute_variance(permanent_only) == pytest.approx(
        compute_variance(choose_noise(2, 4)), rel=ROUNDING
    )
    asymmetric, symmetric = (
        choose_noise(EPSILON_1, EPSILON_INF),
        choose_noise(EPSILON_1, EPSILON_INF, symmetric=True),
    )
    two_hashes = choose_noise(EPSILON_1, EPSILON_INF, h=2)
    published = choose_published(EPSILON_1, EPSILON_INF)
    assert published is not None
    # The rule of the paper has p = 1/2. With such a p, even q = 1 loses less than 5.9 nats.
    assert choose_published(5.9, 6.0) is None
    assert round(compute_rare_variance(PAPER), 3) == 7.875
    assert round(compute_rare_variance(published), 2) == 7.87
    assert [published.f, published.p, published.q] == pytest.approx([0.5, 0.5, 0.75], abs=1e-5)
    assert round(compute_rare_variance(symmetric), 3) == 3.384
    assert [symmetric.f, symmetric.p, symmetric.q] == pytest.approx([0.2, 0.3361, 0.6639], abs=5e-5)
    assert round(compute_rare_variance(asymmetric), 3) == 3.151
    assert (
        round(compute_permanent_variance(symmetric) / compute_permanent_variance(asymmetric), 2)
        == 2.28
    )
    assert round(compute_optimal_variance(EPSILON_1), 3) == 3.151
    chosen = [getattr(asymmetric, letter) for letter in ("f", "g", "p", "q", "p_star", "q_star")]
    expected = [0.454207, 0.034242, 0.249488, 0.700235, 0.256499, 0.502513]
    assert chosen == pytest.approx(expected, abs=1e-6)
    # The paper's factor of 2.5 consists of 2.15 for the second hash function, and 1.16 for p = 1/2.
    best_of_two_hashes = choose_noise(epsilon_1(PAPER), epsilon_inf(PAPER), h=2)
    assert round(compute_rare_variance(best_of_two_hashes), 3) == 6.768
    assert round(compute_rare_variance(two_hashes) / compute_rare_variance(asymmetric), 2) == 2.15
    assert (
        round(compute_rare_variance(PAPER) / compute_rare_variance(best_of_two_hashes), 2) == 1.16
    )


def test_limits_of_the_published_collections() -> None:
    """Standard errors agree with those of [EPK14] sections 5.2, 5.3 and 5.4.

    By the paper, 14 million reports detect a share of .1 %. Such a share is .67 standard
    errors, and Bonferroni's procedure detects .65 % in half of the collections.
    """
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
    ("limit_1", "limit_inf", "reason"),
    [
        *((limit_1, 1, "epsilon_1 must be a number in") for limit_1 in (0, -1, math.nan, True)),
        *((both, both, "epsilon_1 must be a number in") for both in (41, math.inf)),
        *((1, limit_inf, "epsilon_inf must be a number in") for limit_inf in (math.inf, math.nan)),
        (2, 1, "epsilon_inf must be at least epsilon_1"),
    ],
)
def test_impossible_losses_are_refused(limit_1: float, limit_inf: float, reason: str) -> None:
    """A loss outside [.001, 40] nats, or epsilon_inf below epsilon_1, is refused by its name."""
    for choose in (choose_noise, choose_published):
        with pytest.raises(ParamsError, match=reason):
            choose(limit_1, limit_inf)


@given(st.integers(0, 1 << 32))
def test_the_shortest_decimal_gives_the_same_threshold(t: int) -> None:
    """The printed decimal of a probability gives the same threshold, and no shorter one does.

    People read and copy the decimals of a registry, so they should be short and exact.
    """
    text = format_probability(t / 2**32)
    assert compute_threshold(float(text)) == t
    digits = len(text.partition(".")[2])
    assert digits == 1 or compute_threshold(round(t / 2**32, digits - 1)) != t


def test_repeated_reports_are_planned_as_they_are_decoded() -> None:
    """The planned error of an absent category is that of a decode, for 1 and 30 reports per device.

    The counts have no randomness: a share p* of the reports is 1, as for an absent category. A
    share that is detected with the power 1/2 lies at the threshold of the test. At the level 5 %,
    the threshold is 1.645 standard errors.
    """
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


def test_a_detection_limit_is_by_default_of_one_candidate() -> None:
    """The default is one candidate, a level of 5 % and a power of 80 %.

    The limit is the sum of the two normal quantiles, 1.645 and .842, times the standard error.
    """
    stated_limit = compute_detection_limit(PAPER, 10**6, n_candidates=1, level=0.05, power=0.8)
    assert compute_detection_limit(PAPER, 10**6) == stated_limit
    assert stated_limit == pytest.approx(
        (1.6448536 + 0.8416212) * compute_standard_error(PAPER, 10**6) / 1e6
    )


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (("n_reports", "n_candidates"), (0, -1, 1.5, True, math.nan)),
        (("level", "power"), (0, 1, 1.5, -0.1, math.nan)),  # 0 is never, and 1 is always
    ],
)
def test_wrong_numbers_and_rates_of_a_detection_limit_are_refused(
    names: tuple[str, ...], wrong: Any
) -> None:
    """Numbers of reports and candidates must be positive integers, and rates must be in (0, 1)."""
    for name, number in itertools.product(names, wrong):
        arguments: dict[str, Any] = {"n_reports": 100, "n_candidates": 8, name: number}
        with pytest.raises(ParamsError, match=f"{name} must be"):
            compute_detection_limit(PAPER, **arguments)
        if name == "n_reports":
            with pytest.raises(ParamsError, match="n_reports must be"):
                compute_standard_error(PAPER, number)
