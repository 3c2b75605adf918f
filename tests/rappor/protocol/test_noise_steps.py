"""Steps of noise: each is more noise than what it is put in the place of, for any reports."""

from __future__ import annotations

import pytest

from rappor import Params, epsilon_n
from rappor.protocol.loss import epsilon_reports
from rappor.protocol.noise_steps import STEPS, at_step, is_noisier

PROFILES = [Params.profile(name) for name in ("strict", "balanced", "accurate")]
OTHERS = [Params(k=8, f=0.5, p=p, q=q) for p, q in ((0.0, 0.3), (0.9, 1.0), (0.25, 0.75))]


@pytest.mark.parametrize("step", range(len(STEPS) + 1))
@pytest.mark.parametrize("params", [*PROFILES, *OTHERS], ids=range(6))
def test_step_never_costs_more(params: Params, step: int) -> None:
    """One report, a thousand, and a thousand under both: under the same permanent response."""
    changed = at_step(params, step)
    assert changed.permanent_fingerprint == params.permanent_fingerprint
    for n in (1, 2, 1000):
        assert epsilon_n(changed, n) <= epsilon_n(params, n)
    if changed != params:
        assert (changed.p, changed.q) == STEPS[step - 1]
        both = epsilon_reports({params: 1000, changed: 1000})
        assert both <= epsilon_n(params, 2000)


def test_less_noise_in_either_direction_is_not_more() -> None:
    """Ones that tell less are no excuse for zeros that tell more."""
    own = Params(k=8, f=0.5, p=0.06, q=0.56)
    first = Params(k=8, f=0.5, p=0.25, q=0.75)
    assert not is_noisier(first, own)
    assert not is_noisier(own, first)
    assert at_step(own, 1) == own
    assert is_noisier(at_step(own, 2), own)


def test_steps_go_upwards() -> None:
    """Each is noisier than the one before."""
    at = [Params(k=8, f=0.5, p=p, q=q) for p, q in STEPS]
    for quieter, louder in zip(at[1:], at, strict=False):
        assert is_noisier(quieter, louder)
        assert not is_noisier(louder, quieter)
