"""Predict what the decoder will find, and how wide its intervals will be.

Theory of operation
-------------------
The decoder regresses m k de-biased bits on the candidates (`rappor.decoding.fit`). A string
sets n = m k d of them, d being the density, and its error is

    error^2 = 1 / (n (1 - d) (1 - s / (m k)) E[1 / (v + tau^2)])

- v = mu (1 - mu) m / (N (q*-p*)^2) is the variance of one bit, coins and sampling of the devices
  together, at its mean level mu = p* + (q*-p*) theta; theta is the string's own share plus
  those of others that fall on the bit, and the mean is over all layouts (`bit_levels`);
- tau^2 = d (1-d) (sum of squares of the shares that the selection does not explain) is the
  collisions' variance, which reports do not lower;
- 1 - d is what the free background takes, and s the number of selected strings, each of which
  takes as much as one bit: candidates that collide among themselves.

A string of share b is detected with chance Phi(b / error - z), z being the normal quantile of the
largest p-value that is detected. For Bonferroni it is level / c. For Benjamini-Hochberg it
follows from the answer: with r others detected a string needs p <= level (1 + r) / c, and
r is the sum of everyone's chances at this cut. The largest such cut is the step-up
procedure's. Which strings the selection explains is the same sum at the decoder's own level.

What is predicted holds in the mean over layouts and collections, for candidates that are
tied to no other, and for collisions that do not dominate: there the decoder explains more than
single strings' chances say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.fit import TAPER
from rappor.decoding.selection import ENTER
from rappor.decoding.significance import CORRECTIONS
from rappor.errors import ParamsError
from rappor.planning.frequencies import Crowd, bit_levels
from rappor.protocol.params import Params

_OWN: Final = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 113)])
"""Shares at which the error is worked out; between them it is interpolated."""

_ROUNDS: Final = 100
_CUTS: Final = 10_000
_SETTLED: Final = 1e-6
_LEAST_INFORMATION: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """What will be asked: of whom, and how sure the answers shall be.

    `level` is the error rate of detection under `correction` ("bh" or "bonferroni"), `power`
    the chance with which a string shall be detected, `confidence` that of the intervals.
    """

    crowd: Crowd
    correction: str = "bh"
    level: float = 0.05
    power: float = 0.8
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Check the ranges; NaN is in none."""
        for name in ("level", "power", "confidence"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise ParamsError(f"{name} must be a number in (0, 1), got {value!r}")
        if self.correction not in CORRECTIONS:
            raise ParamsError(
                f"correction must be one of {', '.join(CORRECTIONS)}, got {self.correction!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What a parameter set finds in so many reports; errors and widths are shares of them.

    Attributes
    ----------
    found : expected number of held candidates detected.
    chances : (c,) float64. Chance of detection of a string of each class of the crowd.
    share : the smallest share detected with the chance asked for; None if even 1 is not.
    rare_error : standard error of a candidate that nobody holds.
    error, width, adjusted_width : standard error of a string of that share, or of share 1
        without one, and whole widths of its interval alone and of the one that is widened
        for the detected list (Benjamini and Yekutieli 2005).
    parts : of that error's variance: coins, sampling (of the devices), unexplained (strings
        on the same bits) and candidates (which must be told apart).
    """

    found: float
    chances: NDArray[np.float64]
    share: float | None
    rare_error: float
    error: float
    width: float
    adjusted_width: float
    parts: dict[str, float]


def predict(params: Params, n_reports: int, question: Question) -> Prediction:
    """Predict detection and errors of the decoder; see the theory above."""
    crowd = question.crowd
    errors, hidden = _settle(params, n_reports, crowd)
    standing = crowd.shares / np.interp(crowd.shares, _OWN, errors)
    cut, more = _cuts(standing, question)
    # A string that is found anyway is one of those that set the cut; one in doubt comes on top.
    first = _chance(standing, cut)
    chances = _chance(standing, cut + (1 - first) * (more - cut))
    share = _smallest(errors, more, question.power)
    found = float(crowd.asked @ chances)
    n_detected = max(found + crowd.absent * cut, 1.0)
    own = np.array([1.0 if share is None else share])
    error = float(_errors(params, n_reports, crowd, own=own, hidden=hidden)[0])
    missed = 1 - question.confidence
    return Prediction(
        found=found,
        chances=chances,
        share=share,
        rare_error=float(errors[0]),
        error=error,
        width=2 * _quantile(missed / 2) * error,
        adjusted_width=2 * _quantile(missed * min(n_detected / crowd.n_candidates, 1) / 2) * error,
        parts=_parts(params, n_reports, crowd, own=own, hidden=hidden),
    )


def lone_error(params: Params, n_reports: int, crowd: Crowd) -> float:
    """Return the standard error of an absent candidate if there were cohorts without end."""
    lone = _Hidden(tau2=0.0, taken=0.0)
    return float(_errors(params, n_reports, crowd, own=np.zeros(1), hidden=lone)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hidden:
    """What the selection leaves and takes: tau^2, and the number of strings in it."""

    tau2: float
    taken: float


def _settle(params: Params, n_reports: int, crowd: Crowd) -> tuple[NDArray[np.float64], _Hidden]:
    """Return the errors at the shares `_OWN`, and the selection that they settle at."""
    hidden = _Hidden(tau2=0.0, taken=0.0)
    for _ in range(_ROUNDS):
        errors = _errors(params, n_reports, crowd, own=_OWN, hidden=hidden)
        standing = crowd.shares / np.interp(crowd.shares, _OWN, errors)
        cut = _step_up(standing, crowd, level=ENTER, more=0.0)
        chances = _chance(standing, cut)
        before, hidden = (
            hidden,
            _Hidden(
                tau2=_collisions(params, n_reports, crowd, chances=chances, tau2=hidden.tau2),
                taken=float(crowd.asked @ chances) + crowd.absent * cut,
            ),
        )
        settled = (before.tau2, before.taken), (hidden.tau2, hidden.taken)
        if np.allclose(*settled, rtol=_SETTLED, atol=0):
            break
    return errors, hidden


def _errors(
    params: Params,
    n_reports: int,
    crowd: Crowd,
    *,
    own: NDArray[np.float64],
    hidden: _Hidden,
) -> NDArray[np.float64]:
    """Return the standard errors of strings with these shares; the theory's formula."""
    left = max(1 - hidden.taken / (params.m * params.k), _LEAST_INFORMATION)
    information = _information(params, n_reports, crowd, own=own, tau2=hidden.tau2)
    spread = _spread(params, n_reports, own)
    return np.asarray(np.sqrt(1 / (left * (1 - params.density) * information) + spread))


def _information(
    params: Params,
    n_reports: int,
    crowd: Crowd,
    *,
    own: NDArray[np.float64],
    tau2: float,
) -> NDArray[np.float64]:
    """Return n E[1 / (v + tau^2)] for strings with these shares, n being the bits of one."""
    levels, chances = bit_levels(crowd, params.density)
    # A share of one's own lies on the bit with the shares of the others.
    noise = _noise(params, n_reports, levels + np.outer(own, 1 - levels))
    ones = params.m * params.k * params.density
    return np.asarray(ones * ((1 / (noise + tau2)) @ chances))


def _noise(params: Params, n_reports: int, level: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of one bit of one cohort if this share of devices sets it."""
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * level
    return np.asarray(mean * (1 - mean) * params.m / n_reports / gap**2)


def _spread(params: Params, n_reports: int, own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what h bits of one string share: the uneven spread of its devices over cohorts."""
    return np.asarray((1 - 1 / params.h) * own * (1 - own) / n_reports)


def _collisions(
    params: Params,
    n_reports: int,
    crowd: Crowd,
    *,
    chances: NDArray[np.float64],
    tau2: float,
) -> float:
    """Return tau^2 once these chances say which strings the selection explains."""
    density = params.density
    row = np.sqrt(_noise(params, n_reports, np.array([density])) + tau2)
    excess = crowd.shares / row
    low, high = TAPER
    # A heavy string that is not explained takes its bits out of the fit instead.
    fall = low * (high - excess) / ((high - low) * np.maximum(excess, low))
    squares = (crowd.shares * np.where(excess <= low, 1.0, np.maximum(fall, 0.0))) ** 2
    hidden = crowd.asked * (1 - chances) + crowd.unasked
    return float(density * (1 - density) * (hidden @ squares))


def _cuts(standing: NDArray[np.float64], question: Question) -> tuple[float, float]:
    """Return the largest p-value that is detected, and the one for a candidate more."""
    crowd, level = question.crowd, question.level
    least = level / crowd.n_candidates
    if question.correction == "bonferroni":
        return least, least
    return (
        max(_step_up(standing, crowd, level=level, more=0.0), least),
        _step_up(standing, crowd, level=level, more=1.0),
    )


def _step_up(standing: NDArray[np.float64], crowd: Crowd, *, level: float, more: float) -> float:
    """Return the largest cut = level (more + detected at the cut) / c [BH95].

    From above the map leads down to its largest fixed point.
    """
    cut = level
    for _ in range(_CUTS):
        detected = more + crowd.asked @ _chance(standing, cut) + crowd.absent * cut
        before, cut = cut, min(float(level * detected / crowd.n_candidates), level)
        if before - cut <= _SETTLED * cut:
            break
    return cut


def _smallest(errors: NDArray[np.float64], cut: float, power: float) -> float | None:
    """Return the share whose chance of detection at the cut is `power`, None if none's is."""
    needed = _OWN / errors - _quantile(cut) - _quantile(1 - power)
    if needed[-1] < 0:
        return None
    return float(np.interp(0.0, needed, _OWN))


def _chance(standing: NDArray[np.float64], cut: float | NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(special.ndtr(standing + special.ndtri(cut)))


def _quantile(tail: float) -> float:
    """Return the normal quantile that is exceeded with this chance."""
    return float(-special.ndtri(tail))


def _parts(
    params: Params,
    n_reports: int,
    crowd: Crowd,
    *,
    own: NDArray[np.float64],
    hidden: _Hidden,
) -> dict[str, float]:
    """Split the variance of a string of one share, (1,), by its causes; portions sum to one."""
    information = _information(params, n_reports, crowd, own=own, tau2=hidden.tau2)
    unexplained = hidden.tau2 / (params.m * params.k * params.density)
    noise = float(1 / information[0]) - unexplained
    # Of the coins and the devices together, the devices have their part at the mean level.
    level = own + (1 - own) * params.density
    sampled = level * (1 - level) * params.m / n_reports / _noise(params, n_reports, level)
    sampling = noise * float(sampled[0])
    variance = float(_errors(params, n_reports, crowd, own=own, hidden=hidden)[0]) ** 2
    spread = float(_spread(params, n_reports, own)[0])
    parts = {
        "coins": noise - sampling,
        "sampling": sampling + spread,
        "unexplained": unexplained,
        "candidates": variance - noise - unexplained - spread,
    }
    return {name: part / variance for name, part in parts.items()}
