"""Profiles: every encoding keeps the promised losses, with the response that the planner chooses.

A profile is a name for noise. A registry with `profile = "balanced"` is safe only if all encodings
keep the two losses that the profile promises.
"""

from __future__ import annotations

import pytest

from rappor.base.errors import ParamsError
from rappor.planning.category_noise import choose_category_noise
from rappor.planning.noise import Budget, choose_noise, find_best_high, round_to_thresholds
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES

PROMISES = {"strict": (1, 2), "balanced": (2, 4), "low-noise": (4, 6), "once": (4, 4)}
"""Promised losses of each profile in nats: epsilon_1 and epsilon_inf."""

ROUNDING = 2
"""Largest difference of a threshold between two machines. The planner computes logarithms, which
may differ in their last bit from machine to machine."""

SHAPES = [
    ("bloom", 0),
    ("boolean", 0),
    *(("onehot", k) for k in (2, 3, 12, 24, 25, 128)),
    *(("buckets", k) for k in (1, 2, 11, 23)),
]
"""Pairs of an encoding and a number of categories or edges. A profile has thresholds for each
number of bits up to 24, and the thresholds of strings for more bits."""


def make_params(name: str, encoding: str, n: int) -> Params:
    """Return the parameters of a profile for an encoding with n categories or edges."""
    return Params.profile(name, encoding=encoding, categories=tuple(map(str, range(n))))


def test_the_promises() -> None:
    """Each profile has its two promised losses, and "once" has no instantaneous noise."""
    assert {n: (p.epsilon_1, p.epsilon_inf) for n, p in PROFILES.items()} == PROMISES
    once = Params.profile("once")
    assert (once.p, once.q) == (0, 1)
    assert Params.profile("balanced", encoding="onehot", categories=tuple("abc")).keep is None
    for encoding in ("onehot", "buckets"):
        assert make_params("once", encoding, 3).response.is_exclusive
    for name in PROMISES:
        params = Params.profile(name, normalize="host")
        assert (params.k, params.h, params.m, params.normalize) == (128, 1, 128, "host")


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize(("encoding", "n"), SHAPES)
def test_every_encoding_keeps_the_promise(name: str, encoding: str, n: int) -> None:
    """The losses of a profile are at most the promised losses, and smaller by less than 1e-6.

    A smaller loss would waste accuracy.
    """
    params = make_params(name, encoding, n)
    limit_1, limit_inf = PROMISES[name]
    assert limit_1 - 1e-6 < epsilon_1(params) <= limit_1
    assert limit_inf - 1e-6 < epsilon_inf(params) <= limit_inf


@pytest.mark.parametrize("name", PROMISES)
def test_the_table_is_what_the_planner_chooses(name: str) -> None:
    """The table of a profile contains the thresholds that the planner computes.

    Categories have the planner's thresholds. The thresholds of strings are optimal for values that
    are as rare as one bit in 128 or, for some profiles, in the limit of rare values. The variance
    is therefore up to 1.3 % above the variance that `choose_noise` finds.
    """
    profile, budget = PROFILES[name], Budget(*PROMISES[name])
    shaped = [("onehot", k) for k in range(2, 2 + len(profile.categories))] + [("boolean", 0)]
    rows = [*profile.categories, profile.boolean]
    for (encoding, k), row in zip(shaped, rows, strict=True):
        planned = choose_category_noise(budget, encoding, tuple(map(str, range(k))))
        chosen = (planned.t_1, planned.t_0, planned.t_p, planned.t_q)
        assert max(abs(a - b) for a, b in zip(row, chosen, strict=True)) <= ROUNDING
    # Probabilities of a 1 for a true 1, in a report and in the permanent response.
    highs = {
        "strict": (0.5, 0.55),
        "balanced": (0.5, 0.6),
        "low-noise": (find_best_high(4, 1 / 128), find_best_high(6, 1 / 128)),
        "once": (0.5, 0.5),
    }[name]
    params = Params.profile(name)
    planned = round_to_thresholds(
        lambda noise: Params(k=128, m=128, **noise), budget, highs, bits=1
    )
    for letter in ("t_1", "t_0", "t_p", "t_q"):
        assert abs(getattr(params, letter) - getattr(planned, letter)) <= ROUNDING
    searched = choose_noise(*PROMISES[name])
    for variance, best in zip(compute_variances(params), compute_variances(searched), strict=True):
        assert best * (1 - 1e-6) <= variance <= 1.013 * best


@pytest.mark.parametrize(
    ("k", "t"), [(2, 4067311411), (3, 3996696098), (8, 3677461735), (24, 2928851392)]
)
def test_thresholds_of_categories_under_once_never_change(k: int, t: int) -> None:
    """Under `once`, the threshold t of `keep` for k categories has this value in every version.

    Thresholds are part of the fingerprint, so a collector would refuse reports of another version.
    Numbers in k buckets have the threshold of k categories.
    """
    params = make_params("once", "onehot", k)
    assert (params.k, params.keep) == (k + 1, t / 2**32)
    assert make_params("once", "buckets", k - 1).keep == params.keep


def test_more_than_128_categories_under_once_are_refused() -> None:
    """With more than 128 categories, strings are more accurate, and the refusal says so."""
    make_params("once", "onehot", 128)
    with pytest.raises(ParamsError, match=r"at most 128 under the profile once, got 129: .* bloom"):
        make_params("once", "onehot", 129)
    make_params("strict", "onehot", 129)


def compute_variances(params: Params) -> list[float]:
    """Return two variances of an estimated share, for one report and for many reports.

    The variance of many reports is the variance of the permanent response. A bit is a Bernoulli
    variable. Its mean is computed for a true bit that is 1 with probability 1/k.
    """
    variances = []
    for low, high in ((params.p_star, params.q_star), (params.f1, 1 - params.f0)):
        mean = low + (high - low) / params.k
        variances.append(mean * (1 - mean) / (high - low) ** 2)
    return variances


def test_an_unknown_profile_is_refused() -> None:
    """The message lists the profiles, or names the replacement of a removed profile or encoding."""
    with pytest.raises(ParamsError, match=r"profile must be one of strict, .*, got 'lax'"):
        Params.profile("lax")
    with pytest.raises(ParamsError, match="got 'accurate': low-noise loses less and finds as many"):
        Params.profile("accurate")
    with pytest.raises(ParamsError, match="encoding must not be 'flags': use a metric of encoding"):
        make_params("balanced", "flags", 24)
