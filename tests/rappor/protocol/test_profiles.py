"""Profiles: promises that are kept, by the best response of each encoding."""

from __future__ import annotations

import pytest

from rappor.base.errors import ParamsError
from rappor.planning.category_noise import choose_category_noise
from rappor.planning.noise import Budget, choose_noise, find_best_high, round_to_thresholds
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES

PROMISES = {"strict": (1, 2), "balanced": (2, 4), "low-noise": (4, 6), "once": (4, 4)}

ROUNDING = 2
"""Thresholds by which two machines may differ."""

SHAPES = [
    ("bloom", 0),
    ("boolean", 0),
    *(("onehot", k) for k in (2, 3, 12, 24, 25, 1000)),
    *(("buckets", k) for k in (1, 2, 11, 23)),
]


def of_profile(name: str, encoding: str, n: int) -> Params:
    """Return a profile of an encoding with so many categories or edges."""
    return Params.profile(name, encoding=encoding, categories=tuple(map(str, range(n))))


def test_the_promises() -> None:
    """Losses of one report and of any number; the last one is told once."""
    assert {n: (p.epsilon_1, p.epsilon_inf) for n, p in PROFILES.items()} == PROMISES
    once = Params.profile("once")
    assert (once.p, once.q) == (0, 1)
    for name in PROMISES:
        params = Params.profile(name, normalize="host")
        assert (params.k, params.h, params.m, params.normalize) == (128, 1, 128, "host")


@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize(("encoding", "n"), SHAPES)
def test_every_encoding_keeps_the_promise(name: str, encoding: str, n: int) -> None:
    """No loss is exceeded, and none is left."""
    params = of_profile(name, encoding, n)
    one, ever = PROMISES[name]
    assert one - 1e-6 < epsilon_1(params) <= one
    assert ever - 1e-6 < epsilon_inf(params) <= ever


@pytest.mark.parametrize("name", PROMISES)
def test_the_table_is_what_the_planner_chooses(name: str) -> None:
    """Categories and yes or no to the threshold; strings near the search."""
    profile, budget = PROFILES[name], Budget(*PROMISES[name])
    shaped = [("onehot", k) for k in range(2, 26)] + [("boolean", 0)]
    rows = [*profile.categories, profile.strings, profile.yes_or_no]
    for (encoding, k), row in zip(shaped, rows, strict=True):
        if row != profile.strings:
            planned = choose_category_noise(budget, encoding, tuple(map(str, range(k))))
            chosen = (planned.t_1, planned.t_0, planned.t_p, planned.t_q)
            assert max(abs(a - b) for a, b in zip(row, chosen, strict=True)) <= ROUNDING
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
    for each, best in zip(variances(params), variances(searched), strict=True):
        assert best * (1 - 1e-6) <= each <= 1.013 * best


def variances(params: Params) -> list[float]:
    """Return the variances of one report and of any number, at the mean level of a bit."""
    found = []
    for low, high in ((params.p_star, params.q_star), (params.f1, 1 - params.f0)):
        mean = low + (high - low) / params.k
        found.append(mean * (1 - mean) / (high - low) ** 2)
    return found


def test_what_is_no_profile_is_refused() -> None:
    """A name that is gone names its replacement, the encoding's name too."""
    with pytest.raises(ParamsError, match=r"profile must be one of strict, .*, got 'lax'"):
        Params.profile("lax")
    with pytest.raises(ParamsError, match="got 'accurate': low-noise loses less and finds as many"):
        Params.profile("accurate")
    with pytest.raises(ParamsError, match="encoding must not be 'flags': use a metric of encoding"):
        of_profile("balanced", "flags", 24)
