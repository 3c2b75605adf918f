"""Changing the parameters of a live metric: its cost to a device, and its effect on estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rappor.errors import ParamsError
from rappor.limits import standard_error
from rappor.params import Params
from rappor.privacy import epsilon_inf, epsilon_n, epsilon_reports, permanent_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a device loses, in nats, by reports of one value before and after a change.

    `kept` tells that the permanent response stays. `ever` is the loss by any number of reports.
    """

    kept: bool
    epsilon: float
    ever: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointError:
    """Standard errors of a rare string's share: each collection's, and both decoded together.

    `together` if each device reports once, in one of the two; `same_devices` if those of the
    smaller collection report in both, where a permanent response that stays is noise that the
    second report does not take away.
    """

    before: float
    after: float
    together: float
    same_devices: float


def change_cost(
    old: Params, new: Params, *, before: int, after: int, for_life: bool = True
) -> Cost:
    """Account for so many reports of one value before and after the change.

    A change of p and q alone keeps the permanent response, and so the loss for ever. Any
    other one draws a new permanent response, and the losses add. So they do with epochs
    (`for_life` is false): there a change waits for the next one.
    """
    if for_life and permanent_part(old) == permanent_part(new):
        reports = {old: before + after} if old == new else {old: before, new: after}
        return Cost(kept=True, epsilon=epsilon_reports(reports), ever=epsilon_inf(old))
    return Cost(
        kept=False,
        epsilon=epsilon_n(old, before) + epsilon_n(new, after),
        ever=epsilon_inf(old) + epsilon_inf(new),
    )


def decode_together(old: Params, new: Params) -> bool:
    """Tell whether counts before and after can be decoded as one: rows of one regression."""
    same = ("encoding", "normalize", "categories", "layout")
    return all(getattr(old, name) == getattr(new, name) for name in same)


def joint_error(old: Params, new: Params, *, before: int, after: int) -> JointError:
    """Return the standard errors of a share from so many reports before and after the change.

    Both collections estimate the same share and are weighted by their inverse variances, as
    the decoder does. Collisions of strings are left out.
    """
    if not decode_together(old, new):
        raise ParamsError("parameters must agree in encoding, categories and normalizer")
    first = standard_error(old, before) / before
    second = standard_error(new, after) / after
    both = first**2 + second**2  # 0 if a true 0 is always seen as one: p* = 0
    weight = second**2 / both if both else 0.5
    apart = weight**2 * first**2 + (1 - weight) ** 2 * second**2
    # Of the larger collection's devices, min / max report twice.
    common = 2 * weight * (1 - weight) * _shared_noise(old, new) / max(before, after)
    return JointError(
        before=first,
        after=second,
        together=math.sqrt(apart),
        same_devices=math.sqrt(apart + common),
    )


def _shared_noise(old: Params, new: Params) -> float:
    """Return the covariance of one device's two de-biased reports of a bit that is 0, over h.

    With a = f/2 it is a (1-a) / (1-2a)^2 whatever p and q: Cov(S, S') = a (1-a)(q-p)(q'-p'),
    and q* - p* = (1-2a)(q-p).
    """
    if permanent_part(old) != permanent_part(new):
        return 0.0
    a = old.f / 2
    return a * (1 - a) / ((1 - 2 * a) ** 2 * old.h)
