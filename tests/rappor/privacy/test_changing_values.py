"""How visible a change of value is: closed sums against the real randomizer, all its coins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from enumeration import Distribution, histories_of, worst_ratio

from rappor.ground.errors import ParamsError
from rappor.privacy.changing_values import change_visibility
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.protocol.params import Params

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
FAINT: dict[str, Any] = {"f": 0.5, "p": 0.01, "q": 0.99}


def onehot(k: int, **noise: Any) -> Params:
    return Params(k=k, encoding="onehot", categories=tuple("abcd"[:k]), **noise)


THREE = onehot(3, **NOISE)


def law_of(history: Sequence[int], params: Params) -> Distribution:
    """Return the exact law of a history's reports, in the order of time."""
    law: Distribution = {b"": Fraction(1)}
    order: list[int] = []
    for pattern in dict.fromkeys(history):
        times = [i for i, other in enumerate(history) if other == pattern]
        order += times
        own = histories_of(pattern.to_bytes(1, "little"), params, len(times))
        pairs = itertools.product(law.items(), own.items())
        law = {past + now: x * y for (past, x), (now, y) in pairs}
    back = sorted(range(len(order)), key=order.__getitem__)
    return {bytes(key[i] for i in back): chance for key, chance in law.items()}


def mean_of(one: Distribution, other: Distribution) -> float:
    """Return the mean log-likelihood ratio if the first is true."""
    return sum(float(chance) * math.log(chance / other[reports]) for reports, chance in one.items())


def patterns_of(params: Params) -> list[int]:
    """Return every pattern of bits that some value sets."""
    if params.encoding in ("boolean", "flags"):
        return list(range(2**params.k))
    if params.encoding == "bloom":
        return [x for x in range(1, 2**params.k) if x.bit_count() <= params.h]
    return [0, *(1 << i for i in range(params.k))]  # a value that fits nowhere sets none


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize(
    "params",
    [
        onehot(2, **NOISE),
        THREE,
        Params(k=2, h=1, **NOISE),
        Params(k=2, h=2, **NOISE),
        Params(k=3, h=2, **NOISE),
        Params(k=2, encoding="flags", categories=("a", "b"), f=0.3, p=0.1, q=0.6),
        Params(k=1, encoding="boolean", f=0.3, p=0.1, q=0.6),
        Params(k=2, encoding="buckets", categories=("0",), f=0.9, p=0.0, q=0.4),
        onehot(2, f=0.6, g=0.1, p=0.1, q=0.6),
        Params(k=2, h=1, f=0.6, g=0.1, p=0.1, q=0.6),
        Params(k=2, encoding="flags", categories=("a", "b"), f=0.6, g=0.1, p=0.1, q=0.6),
    ],
    ids=str,
)
@pytest.mark.slow
def test_visibility_is_the_worst_over_all_values(params: Params, before: int, after: int) -> None:
    """The search over values finds what comparing all of them finds, both ways."""
    if params.k == 3:  # 512 outcomes of each of 216 pairs would take long
        before = after = 1
    values = patterns_of(params)
    worst = mean = 0.0
    for kept, first, second in itertools.product(values, repeat=3):
        if first != second:
            stays = law_of([kept] * (before + after), params)
            turns = law_of([first] * before + [second] * after, params)
            worst = max(worst, worst_ratio([stays, turns]))
            mean = max(mean, mean_of(turns, stays))
    seen = change_visibility(params, before, after)
    assert seen.worst == pytest.approx(worst, rel=1e-9)
    assert seen.mean == pytest.approx(mean, rel=1e-9)
    assert seen.accounted == pytest.approx(epsilon_n(params, before) + epsilon_n(params, after))


def test_the_protocols_warning_figures() -> None:
    """2.38 against 2.04, 11 against 4.3 after two reports."""
    seen = change_visibility(THREE, 1, 1)
    assert (seen.worst, seen.accounted) == pytest.approx((2.38, 2.04), abs=0.005)
    seen = change_visibility(onehot(3, **FAINT), 1, 1)
    assert seen.worst == pytest.approx(11, abs=0.05)
    assert seen.accounted == pytest.approx(4.3, abs=0.05)


def test_nothing_bounds_a_change_without_epochs() -> None:
    """The sum of losses stands still at twice the loss for ever; what shows grows on."""
    seen = [change_visibility(THREE, n, n) for n in (1, 5, 25, 50)]
    assert [s.worst for s in seen] == sorted(s.worst for s in seen)
    assert seen[-1].accounted <= 2 * epsilon_inf(THREE) * (1 + 1e-12)
    assert seen[-1].worst > 70 * epsilon_inf(THREE)
    assert seen[-1].mean > seen[-2].mean > seen[0].mean


def test_all_bits_take_part() -> None:
    """With many bits a change shows far more than its values: each bit is drawn anew."""
    few, more, many = (
        change_visibility(Params(k=k, h=1, **NOISE), 1, 1).worst for k in (8, 9, 128)
    )
    assert many - few == pytest.approx(120 * (more - few))
    assert many > 10 * few > 0


def test_limits_are_returned() -> None:
    """No permanent noise: nothing follows a change; no fresh noise: it is certain."""
    open_noise = onehot(3, f=0.0, p=0.25, q=0.75)
    seen = change_visibility(open_noise, 2, 2)
    assert seen.worst == pytest.approx(4 * epsilon_n(open_noise, 1))
    bare: dict[str, Any] = {"f": 0.5, "p": 0.0, "q": 1.0}
    for params in (
        onehot(3, **bare),
        Params(k=2, h=1, **bare),
        Params(k=1, encoding="boolean", **bare),
        Params(k=2, encoding="flags", categories=("a", "b"), **bare),
        Params(k=1, encoding="boolean", f=0.0, p=0.0, q=1.0, insecure=True),
    ):
        seen = change_visibility(params, 1, 1)
        assert (seen.worst, seen.mean) == (math.inf, math.inf)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, math.nan])
def test_reports_are_counted(bad: Any) -> None:
    """Nothing else is a number of reports."""
    for pair in ((bad, 1), (1, bad)):
        with pytest.raises(ParamsError, match=r"must be an integer in \[1, "):
            change_visibility(THREE, *pair)
