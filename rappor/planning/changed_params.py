"""What a change of parameters does to the estimates from before and after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.planning.detection_limit import standard_error
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class JointError:
    """Standard errors of a rare string's share: each collection's, and both decoded together.

    `together` if each device reports once, in one of the two; `same_devices` if those of the
    smaller collection report in both: a permanent response that stays is noise that the second
    report does not average out.
    """

    before: float
    after: float
    together: float
    same_devices: float


def decode_together(old: Params, new: Params) -> bool:
    """Return whether counts before and after can be decoded as one: rows of one regression."""
    same = old.normalize == new.normalize and old.layout == new.layout
    return same and encoding_of(old).answers_like(new)


def joint_error(old: Params, new: Params, *, before: int, after: int) -> JointError:
    """Return the standard errors of a share before and after a change of parameters.

    `before` and `after` are numbers of reports. Both collections estimate the same share and are
    weighted by their inverse variances, as the decoder does. Collisions are left out.
    """
    if not decode_together(old, new):
        raise ParamsError("parameters must agree in encoding, categories and normalizer")
    first = standard_error(old, before) / before
    second = standard_error(new, after) / after
    both = first**2 + second**2  # 0 where p* = 0: a rare string then has no noise
    weight = second**2 / both if both else 0.5
    independent = weight**2 * first**2 + (1 - weight) ** 2 * second**2
    # Of the larger collection's devices, min / max report twice.
    common = 2 * weight * (1 - weight) * _shared_noise(old, new) / max(before, after)
    return JointError(
        before=first,
        after=second,
        together=math.sqrt(independent),
        same_devices=math.sqrt(independent + common),
    )


def _shared_noise(old: Params, new: Params) -> float:
    """Return the covariance of one device's two de-biased reports of a bit that is 0, over h.

    It is f1 (1 - f1) / (1 - f)^2 whatever p and q: Cov(S, S') = f1 (1 - f1)(q - p)(q' - p'), and
    q* - p* = (1 - f)(q - p).
    """
    if old.permanent_fingerprint != new.permanent_fingerprint:
        return 0.0
    return old.f1 * (1 - old.f1) / ((1 - old.f) ** 2 * old.h)
