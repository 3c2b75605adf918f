"""Steps of noise: the only p and q that a collector may ask live devices for.

They are the same for everybody, and few: a device that follows an offer tells by its parameters
no more than which step it has reached. A step keeps f and everything else, so the permanent
responses stay and all reports together stay under the same epsilon_inf.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rappor.protocol.params import ONE, Params

STEPS: Final = ((0.25, 0.75), (0.375, 0.625), (0.4375, 0.5625))
"""p and q of step 1, 2 and 3; step 0 is what the program ships with."""


def at_step(params: Params, step: int) -> Params:
    """Return the parameters with the noise of a step, themselves where that is not more noise."""
    if not step:
        return params
    p, q = STEPS[step - 1]
    changed = dataclasses.replace(params, p=p, q=q)
    return changed if is_noisier(changed, params) else params


def is_noisier(params: Params, other: Params) -> bool:
    """Tell whether reports under `params` are those under `other` with more noise on top.

    Then a 1 speaks less for a true 1, and a 0 less for a true 0: p/q and (1-q)/(1-p) are both
    nearer to one.
    """
    ones = params.t_p * other.t_q >= other.t_p * params.t_q
    zeros = (ONE - params.t_q) * (ONE - other.t_p) >= (ONE - other.t_q) * (ONE - params.t_p)
    return ones and zeros
