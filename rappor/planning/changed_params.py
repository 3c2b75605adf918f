"""Errors of estimates from before and after a change of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.planning.detection_limit import compute_standard_error
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class JointError:
    """Standard errors of a rare string's share: by each collection, and by both together.

    Attributes
    ----------
    before, after : error of the collection before and after the change.
    together : error of both, if each device reports in one of the two.
    same_devices : error of both, if the devices of the smaller collection report in both. A
        permanent response that stays is noise that the second report does not average out.
    """

    before: float
    after: float
    together: float
    same_devices: float


def can_decode_together(old: Params, new: Params) -> bool:
    """Return whether counts before and after can be decoded in one regression."""
    is_same_layout = old.normalize == new.normalize and old.layout == new.layout
    return is_same_layout and get_encoding(old).has_same_categories(new)


def compute_joint_error(old: Params, new: Params, *, before: int, after: int) -> JointError:
    """Return the standard errors of a rare share before and after a change of parameters.

    Both collections estimate the same share and are weighted by their inverse variances, as in the
    decoder. Collisions are neglected.

    Parameters
    ----------
    before, after : numbers of reports.

    Raises
    ------
    ParamsError
        The parameters differ in encoding, categories or normalizer.
    """
    if not can_decode_together(old, new):
        raise ParamsError("parameters must agree in encoding, categories and normalizer")
    error_before = compute_standard_error(old, before) / before
    error_after = compute_standard_error(new, after) / after
    variance_sum = error_before**2 + error_after**2  # 0 if p* = 0: a rare string has no noise
    weight = error_after**2 / variance_sum if variance_sum else 0.5
    independent = weight**2 * error_before**2 + (1 - weight) ** 2 * error_after**2
    # Of the larger collection's devices, the share min / max reports twice.
    shared_covariance = (
        2 * weight * (1 - weight) * _compute_shared_noise(old, new) / max(before, after)
    )
    return JointError(
        before=error_before,
        after=error_after,
        together=math.sqrt(independent),
        same_devices=math.sqrt(independent + shared_covariance),
    )


def _compute_shared_noise(old: Params, new: Params) -> float:
    """Return the covariance of one device's two de-biased reports of a bit that is 0, over h.

    The covariance is f1 (1 - f1) / (1 - f)^2 for any p and q, because Cov(S, S') = f1 (1 - f1)(q -
    p)(q' - p') and q* - p* = (1 - f)(q - p).
    """
    if old.permanent_fingerprint != new.permanent_fingerprint:
        return 0.0
    return old.f1 * (1 - old.f1) / ((1 - old.f) ** 2 * old.h)
