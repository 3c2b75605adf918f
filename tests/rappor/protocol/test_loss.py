"""Privacy loss: published figures, the limits for few and many reports, and numerical accuracy.

`test_randomizer_exact` compares the loss with enumerations of the randomizer for small k. This
module tests it for the sizes of real metrics.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.base.errors import ParamsError
from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n, posterior_bound
from rappor.protocol.params import Params


def make_bloom(f: float, p: float, q: float, **shape: int) -> Params:
    """Return parameters of strings, by default with k = 128 and h = 2."""
    fields: dict[str, Any] = {"k": 128, "h": 2} | shape
    return Params(**fields, f=f, p=p, q=q)


def make_params(encoding: str, k: int, f: float, p: float, q: float) -> Params:
    """Return parameters of an encoding without hashes, with k categories or edges."""
    names = () if encoding == "boolean" else tuple(str(i) for i in range(k))
    bits = k + (encoding == "buckets")
    return Params(encoding=encoding, k=bits, categories=names, f=f, p=p, q=q)


# Parameters of the examples in [EPK14] sections 5.2 and 5.4, and of the collection in Chrome.
PAPER_52 = make_bloom(0.5, 0.5, 0.75)
PAPER_54 = make_bloom(0.75, 0.5, 0.75)
BROWSER = make_bloom(0.5, 0.25, 0.75)


@pytest.mark.parametrize(
    ("params", "figures"),
    [
        (PAPER_52, {1: 1.0743, 2: 2.017, 3: 2.756, 5: 3.656, 10: 4.299, 10**9: 4.3944}),
        (PAPER_54, {1: 0.5343, 2: 0.990, 3: 1.334, 5: 1.734, 10: 2.005, 10**9: 2.0433}),
        (BROWSER, {1: 2.0433, 2: 3.389, 3: 4.022, 5: 4.351, 10: 4.394, 10**9: 4.3944}),
        (make_bloom(0.75, 0.45, 0.55, k=20, h=4), {1: 0.4001}),
        (make_bloom(0.95, 0, 1, h=4), {1: 0.8007}),
    ],
)
def test_known_figures(params: Params, figures: dict[int, float]) -> None:
    """The loss of n reports equals the published figures, to all printed digits.

    `figures` maps n to the loss in nats. Figures of 1 and 1e9 reports have four decimals, and the
    others have three. 1e9 reports lose as much as any number of reports.
    """
    for n, expected in figures.items():
        half_a_digit = 5e-5 if n in (1, 10**9) else 5e-4
        assert epsilon_n(params, n) == pytest.approx(expected, abs=half_a_digit)


@pytest.mark.parametrize(
    "params",
    [
        make_bloom(0.0, 0.25, 0.75, k=4, h=1),
        make_params("boolean", 1, 0.0, 0.25, 0.75),
        *(make_params(encoding, 3, 0.0, 0.25, 0.75) for encoding in ("onehot", "buckets")),
    ],
)
def test_without_permanent_noise_the_loss_has_no_limit(params: Params) -> None:
    """For f = 0 the loss of n reports is n epsilon_1, and epsilon_inf is infinite.

    Without permanent noise, an observer averages the instantaneous noise away. With p = 0 or q = 1
    as well, one report has an infinite loss.
    """
    assert epsilon_inf(params) == math.inf
    for n in (7, 10**9):
        assert epsilon_n(params, n) == pytest.approx(n * epsilon_1(params))
    changes: list[dict[str, Any]] = [{"p": 0.0}, {"q": 1.0}]
    for certain in changes:
        assert epsilon_1(dataclasses.replace(params, **certain, insecure=True)) == math.inf


def test_permanent_noise_bounds_even_certain_bits() -> None:
    """With p = 0 and q = 1, one report loses as much as any number of reports.

    Such a report is the permanent response, which all reports repeat.
    """
    params = make_bloom(0.5, 0, 1)
    assert epsilon_1(params) == epsilon_n(params, 10**9) == epsilon_inf(params)


def compute_loss_of_ones(params: Params, n: int) -> float:
    """Return the loss of n reported ones about one bit, computed with 60 decimal digits.

    The loss is the logarithm of the ratio of two probabilities of n ones: with a true 1, and with a
    true 0. `ratio` is (p / q)^n, and a is f / 2.
    """
    with decimal.localcontext(prec=60):
        a, low, high = (Decimal(x) for x in (params.f / 2, params.p, params.q))
        ratio = (low / high) ** n
        return float(((1 - a + a * ratio) / (a + (1 - a) * ratio)).ln())


@pytest.mark.parametrize("n", [1, 2, 1000, 10**9])
@pytest.mark.parametrize(
    ("f", "p", "q"),
    [
        (0.5, 0.5, 0.5 + 2**-32),
        (0.5, 2**-32, 2**-31),
        (2**-31, 2**-32, 0.5),
        (1 - 2**-31, 0.01, 0.02),
        (1 - 2**-31, 0.5, 0.5 + 2**-32),
    ],
)
def test_the_loss_keeps_ten_digits(n: int, f: float, p: float, q: float) -> None:
    """The loss has ten right digits even if p and q, or f and 1, differ by one coin threshold.

    A formula that subtracts nearly equal numbers would lose the digits. The loss of one bit is the
    larger of the losses of n ones and of n zeros. `down` exchanges ones and zeros, so its loss of
    ones is the loss of zeros of `up`.
    """
    up = make_params("boolean", 1, f, p, q)
    down = make_params("boolean", 1, f, 1 - q, 1 - p)
    assert epsilon_n(up, n) >= compute_loss_of_ones(up, n) * (1 - 1e-10)
    assert max(compute_loss_of_ones(up, n), compute_loss_of_ones(down, n)) == pytest.approx(
        epsilon_n(up, n), rel=1e-10
    )
    assert epsilon_n(up, n) == epsilon_n(down, n)


@given(
    st.floats(0.001, 0.99),
    st.floats(0, 0.7),
    st.floats(0.01, 0.3),
    st.sampled_from([1, 2, 17, 10**3, 10**9]),
)
def test_losses_are_ordered(f: float, p: float, gap: float, n: int) -> None:
    """epsilon_1 <= epsilon_n <= epsilon_inf, and epsilon_n <= n epsilon_1.

    More reports reveal more. They reveal at most the permanent response, and at most as much as
    independent reports.
    """
    params = make_bloom(f, p, p + gap)
    loss_1, loss_n, loss_inf = epsilon_1(params), epsilon_n(params, n), epsilon_inf(params)
    assert 0 < loss_1 <= loss_n * (1 + 1e-12)
    assert loss_n <= loss_inf * (1 + 1e-12)
    assert loss_n <= n * loss_1 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("epsilon", "prior", "low", "high"),
    [
        (math.log(3), 0.5, 0.25, 0.75),
        (5, 0.1, 0.000748, 0.942826),
        (0, 0.3, 0.3, 0.3),
        (math.inf, 0.3, 0, 1),
        (1e6, 0.3, 0, 1),
        (math.inf, 0, 0, 0),
        (1e6, 0, 0, 0),
        (math.inf, 1, 1, 1),
    ],
)
def test_posterior_bounds(epsilon: float, prior: float, low: float, high: float) -> None:
    """The bounds are Bayes' theorem with the likelihood ratios e^-epsilon and e^epsilon.

    A prior of 0 or 1 does not change.
    """
    assert posterior_bound(epsilon, prior) == pytest.approx((low, high), abs=1e-6)


@given(st.floats(0, 50), st.floats(0, 1))
def test_posterior_bounds_contain_the_prior(epsilon: float, prior: float) -> None:
    """The prior belief is always a possible posterior belief."""
    low, high = posterior_bound(epsilon, prior)
    assert 0 <= low <= prior * (1 + 1e-12)
    assert prior * (1 - 1e-12) <= high <= 1


def test_arguments_outside_their_range_are_refused() -> None:
    """Every argument has a range, and a NaN is outside every range."""
    for n in (0, -1, 1.0, True, "1", math.nan, 10**15 + 1):
        with pytest.raises(ParamsError, match=r"n must be an integer in \[1, 1,000,0"):
            epsilon_n(PAPER_52, n)  # type: ignore[arg-type]
    for epsilon in (-0.1, math.nan):
        with pytest.raises(ParamsError, match=r"epsilon must be a number in \[0, infinity\], got"):
            posterior_bound(epsilon, 0.5)
    for prior in (-0.1, 1.1, math.nan):
        with pytest.raises(ParamsError, match=r"prior must be a number in \[0, 1\], got"):
            posterior_bound(1, prior)
