"""A trusted curator's noise, from OpenDP, whose samplers leak nothing through their rounding.

Needs the extra `trust`: importing this module without it raises MissingExtraError.
"""

from __future__ import annotations

from collections.abc import Sequence

from rappor.errors import MissingExtraError
from rappor.trust.survey import check_epsilon

try:
    import opendp.prelude as dp
except ImportError:
    raise MissingExtraError("trust") from None

dp.enable_features("contrib")  # OpenDP's word for mechanisms whose proofs are not vetted yet


def laplace(counts: Sequence[float], epsilon: float) -> list[float]:
    """Publish each count with Laplace noise of its own, of scale 1/epsilon.

    A person loses epsilon in each count that includes that person; the losses add.
    """
    check_epsilon(epsilon)
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    return list(dp.m.make_laplace(*space, scale=1 / epsilon)([float(count) for count in counts]))


def geometric(counts: Sequence[int], epsilon: float) -> list[int]:
    """Publish each count with two-sided geometric noise of its own, x = e^-epsilon.

    A person loses epsilon in each count that includes that person; the losses add.
    """
    check_epsilon(epsilon)
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return list(dp.m.make_geometric(*space, scale=1 / epsilon)(list(counts)))
