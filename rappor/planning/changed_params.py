"""Standard errors of estimates from counts before and after a change of parameters.

An analyst who changes a live metric has two collections with different noise. If both have the same
encoding, one regression can use both. The module computes the error of a rare string by each
collection, and by both together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rappor.base.errors import ParamsError
from rappor.planning.detection_limit import compute_rare_variance, compute_standard_error
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class JointError:
    """Standard errors of a rare string's share: by each collection, and by both together.

    Attributes
    ----------
    before, after : error by the collection before, and after, the change.
    together : error by both collections, if no device reports in both.
    same_devices : error by both collections, if the devices of the smaller collection report in
        both. If such a device keeps its permanent response, its second report repeats the permanent
        noise of its first report, so the error is larger.
    """

    before: float
    after: float
    together: float
    same_devices: float


def can_decode_together(old: Params, new: Params) -> bool:
    """Return whether counts before and after can be decoded in one regression."""
    is_same_layout = old.normalize == new.normalize and old.layout == new.layout
    is_same_value = is_same_layout and old.field_names == new.field_names
    return is_same_value and get_encoding(old).has_same_categories(new)


def compute_joint_error(old: Params, new: Params, *, before: int, after: int) -> JointError:
    """Compute the standard errors of a rare string's share before and after a change of parameters.

    The decoder weights the two collections by their inverse variances. Collisions of strings are
    neglected.

    Parameters
    ----------
    old, new : the parameters before and after the change.
    before, after : numbers of reports under the old and the new parameters.

    Returns
    -------
    JointError, with errors as shares of the devices.

    Raises
    ------
    ParamsError
        The parameters differ in encoding, categories, fields or normalizer.
    """
    if not can_decode_together(old, new):
        raise ParamsError("parameters must agree in encoding, categories, fields and normalizer")
    error_before = compute_standard_error(old, before) / before
    error_after = compute_standard_error(new, after) / after
    variance_sum = error_before**2 + error_after**2
    # `weight` is the weight of the old collection, proportional to 1 / error_before^2. Case
    # variance_sum = 0: p* = 0 before and after the change. A rare string then has no noise, and the
    # weight is arbitrary.
    weight = error_after**2 / variance_sum if variance_sum else 0.5
    independent = weight**2 * error_before**2 + (1 - weight) ** 2 * error_after**2
    # min(before, after) devices report twice. The means over `before` and `after` reports have the
    # covariance noise * min / (before * after) = noise / max(before, after).
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
    """Compute the covariance of one device's two de-biased reports of a true 0, divided by h.

    f1 is the probability that a true 0 becomes a permanent 1, and h the number of bits over which
    the estimate of a string averages. The covariance is f1 (1 - f1) / (1 - f)^2. It does not depend
    on p and q: the reported bits S and S' have Cov(S, S') = f1 (1 - f1)(q - p)(q' - p'), and
    de-biasing divides by q* - p* = (1 - f)(q - p) and by q'* - p'* = (1 - f)(q' - p').

    Generalized randomized response has `keep` in place of f, p and q, and no other noise.
    """
    # Other permanent parameters: the device draws a new permanent response, so no noise is shared.
    if old.permanent_fingerprint != new.permanent_fingerprint:
        return 0.0
    # Case: both reports are the permanent response itself. The second report repeats the first, so
    # the covariance is the variance of one report.
    if old.response.is_exclusive:
        return compute_rare_variance(old)
    return old.f1 * (1 - old.f1) / ((1 - old.f) ** 2 * old.h)
