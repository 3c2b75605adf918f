"""Predict what the decoder will find, and how wide its intervals will be.

Theory of operation
-------------------
`rappor.planning.answer_noise` has the errors of the encodings that answer for every bit; those of
strings follow. The decoder regresses m k de-biased bits on the candidates (`rappor.estimator.fit`).
A string sets n = m k d of them, d being the density, and its error is

    error^2 = 1 / (n (1 - d) (1 - s / (m k)) E[1 / (v + tau^2)])

- v = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) m / (N (q*-p*)^2) is the variance of one bit, coins
  and sampling of the devices together, at its mean level mu = p* + (q*-p*) theta; theta is the
  string's own share plus those of others that fall on the bit, and the mean is over all layouts
  (`bit_levels`); R is the number of reports a device (`rappor.estimator.debias`);
- tau^2 = d (1-d) (sum of squares of the shares that the selection does not explain) is the
  collisions' variance, which reports do not lower;
- 1 - d is what the free background takes, and s the number of selected strings, each of which
  takes as much as one bit: candidates that collide among themselves.

A string of share b is detected with probability Phi(b / error - z), z being the normal quantile of
the p-value threshold. For Bonferroni the threshold is level / c. For Benjamini-Hochberg it follows
from the answer: with r others detected a string needs p <= level (1 + r) / c, and r is the sum of
everyone's probabilities at this threshold. The largest such threshold is that of the step-up
procedure. The adaptive one divides by the absent candidates that it expects to count instead of by
c, from as many reports on as the decoder applies it to. Which strings the selection explains is the
same sum at the decoder's own level.

What is predicted holds in the mean over layouts and collections, for candidates that share their
bits with no other, and for collisions that do not dominate: there the decoder explains more than
the probabilities of single strings say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import special

from rappor.base.ranges import check_number
from rappor.counts.arrays import Floats
from rappor.estimator.detection_thresholds import Steps
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.fit import TAPER
from rappor.estimator.score_tests import ones_variance
from rappor.estimator.selection import ENTER
from rappor.planning.answer_noise import AnswerNoise
from rappor.planning.frequencies import Frequencies, bit_levels
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_SHARES: Final = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 113)])
"""Shares at which errors are computed; between them they are interpolated. Twice as many change the
smallest share by 1.5e-4 of it, and all else by less."""

_ROUNDS: Final = 100
"""Rounds in which errors and selection may settle: 18 were the most in a hundred predictions."""

_STEPS: Final = 10_000
"""Steps to the fixed point of the threshold: 100 were enough in a hundred predictions."""

_SETTLED: Final = 1e-6
"""Relative change at which a fixed point is reached; a thousandth of it changes no prediction by
more than 1e-6."""

_LEAST_LEFT: Final = 0.05
"""Least part of the information that selected strings leave, where they fill nearly all rows and
the formula would have no finite error; the floor of the decoder's screening."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectionTarget:
    """What a collection is to answer, and how surely.

    `frequencies` are those of the strings. `error_control` is how sure the decoder will be asked
    to be,
    `power` the probability with which a string is to be detected. `reports_per_device` is how often
    each device will report: N reports come from N / reports_per_device devices.
    """

    frequencies: Frequencies
    error_control: ErrorControl = ErrorControl()
    power: float = 0.8
    reports_per_device: float = 1.0

    def __post_init__(self) -> None:
        check_number("reports_per_device", self.reports_per_device, "[1, 1000000]")
        check_number("power", self.power, "(0, 1)")

    @classmethod
    def of(cls, asked: DetectionTarget | int) -> DetectionTarget:
        """Return a question as it is; a number stands for as many strings by Zipf's law."""
        return (
            asked
            if isinstance(asked, DetectionTarget)
            else cls(frequencies=Frequencies.zipf(asked))
        )

    def applied(self, params: Params, n_reports: int) -> DetectionTarget:
        """Return the question with the correction that the decoder applies to these reports."""
        if not encoding_of(params).hashed:
            return self
        ones = ones_variance(params, n_reports / self.reports_per_device)
        return replace(self, error_control=self.error_control.for_ones(ones))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """What a parameter set finds in a number of reports; errors and widths are shares of them.

    Attributes
    ----------
    found : expected number of present candidates that are detected.
    probabilities : (c,) float64. Probability of detection of a string of each class of the
        frequencies.
    share : the smallest share detected with the question's power; None if even 1 is not.
    rare_error : standard error of an absent candidate.
    largest, largest_error : the largest share of the frequencies, and its standard error.
    error, width, adjusted_width : standard error of a string of that share, or of share 1
        without one, and whole widths of its interval alone and of the one that is widened
        for the detected list (Benjamini and Yekutieli 2005).
    parts : of that error's variance: coins, sampling (of the devices), unexplained (strings
        on the same bits) and candidates (which must be distinguished).
    """

    found: float
    probabilities: Floats
    share: float | None
    rare_error: float
    largest: float
    largest_error: float
    error: float
    width: float
    adjusted_width: float
    parts: dict[str, float]


def predict(params: Params, n_reports: int, question: DetectionTarget) -> Prediction:
    """Predict detection and errors of the decoder; see the theory above."""
    question = question.applied(params, n_reports)
    frequencies = question.frequencies
    collection = _settled(params, n_reports, question)
    errors = collection.errors(_SHARES)
    z = frequencies.shares / np.interp(frequencies.shares, _SHARES, errors)
    threshold, more = _thresholds(z, question)
    # A string that is surely found is among those that set the threshold; one in doubt comes on
    # top of them.
    first = _detected(z, threshold)
    probabilities = _detected(z, threshold + (1 - first) * (more - threshold))
    share = _smallest(errors, more, question.power)
    found = float(frequencies.candidates @ probabilities)
    n_detected = max(found + frequencies.absent * threshold, 1.0)
    own = np.array([1.0 if share is None else share])
    error = float(collection.errors(own)[0])
    missed, largest = 1 - question.error_control.confidence, float(frequencies.shares.max())
    chosen_share = min(n_detected / frequencies.n_candidates, 1)
    return Prediction(
        found=found,
        probabilities=probabilities,
        share=share,
        rare_error=float(errors[0]),
        largest=largest,
        largest_error=float(collection.errors(np.array([largest]))[0]),
        error=error,
        width=2 * _quantile(missed / 2) * error,
        adjusted_width=2 * _quantile(missed * chosen_share / 2) * error,
        parts=collection.parts(own),
    )


def _settled(
    params: Params, n_reports: int, question: DetectionTarget
) -> AnswerNoise | _Collection:
    """Return what tells the errors of this encoding."""
    if encoding_of(params).hashed:
        return _collection(params, n_reports, question).settle()
    return AnswerNoise(params=params, n_reports=n_reports, repeated=question.reports_per_device)


def _collection(params: Params, n_reports: int, question: DetectionTarget) -> _Collection:
    return _Collection(
        params=params,
        n_reports=n_reports,
        frequencies=question.frequencies,
        repeated=question.reports_per_device,
    )


def error_without_collisions(params: Params, n_reports: int, question: DetectionTarget) -> float:
    """Return the standard error of an absent candidate in an infinite number of cohorts."""
    return float(_collection(params, n_reports, question).errors(np.zeros(1))[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Collection:
    """Reports to come, of devices with strings of these frequencies.

    The decoder selects `selected` strings and leaves `tau2`. `own` is (s,) float64 in the methods:
    shares of the strings that are looked at.
    """

    params: Params
    n_reports: int
    frequencies: Frequencies
    repeated: float
    tau2: float = 0.0
    selected: float = 0.0

    def settle(self) -> _Collection:
        """Return it with the selection that agrees with what its errors let the decoder select."""
        frequencies, after = self.frequencies, self
        for _ in range(_ROUNDS):
            errors = after.errors(_SHARES)
            z = frequencies.shares / np.interp(frequencies.shares, _SHARES, errors)
            steps = _steps(z, frequencies, ErrorControl(alpha=ENTER))
            threshold = _step_up(z, frequencies, steps, more=0.0)
            probabilities = _detected(z, threshold)
            number = float(frequencies.candidates @ probabilities) + frequencies.absent * threshold
            tau2 = after.collisions(probabilities)
            before, after = after, replace(after, tau2=tau2, selected=number)
            settled = (before.tau2, before.selected), (tau2, number)
            if np.allclose(*settled, rtol=_SETTLED, atol=0):
                break
        return after

    def errors(self, own: Floats) -> Floats:
        """Return the standard errors of strings with these shares: the theory's formula."""
        params = self.params
        left = max(1 - self.selected / (params.m * params.k), _LEAST_LEFT)
        information = self.information(own)
        return np.asarray(
            np.sqrt(1 / (left * (1 - params.density) * information) + self.spread(own))
        )

    def information(self, own: Floats) -> Floats:
        """Return n E[1 / (v + tau^2)] for strings with these shares, n being the bits of one."""
        params = self.params
        levels, probabilities = bit_levels(self.frequencies, params.density)
        # A string's own share lies on the bit together with the shares of the others.
        noise = self.noise(levels + np.outer(own, 1 - levels))
        ones = params.m * params.k * params.density
        return np.asarray(ones * ((1 / (noise + self.tau2)) @ probabilities))

    def noise(self, level: Floats) -> Floats:
        """Return the variance of one bit of one cohort if this share of devices sets it."""
        params = self.params
        gap = params.q_star - params.p_star
        mean = params.p_star + gap * level
        one = mean * (1 - mean) + (self.repeated - 1) * (mean - params.p) * (params.q - mean)
        return np.asarray(one * params.m / self.n_reports / gap**2)

    def spread(self, own: Floats) -> Floats:
        """Return what h bits of one string share: its devices' uneven spread over cohorts."""
        devices = self.n_reports / self.repeated
        return np.asarray((1 - 1 / self.params.h) * own * (1 - own) / devices)

    def collisions(self, probabilities: Floats) -> float:
        """Return tau^2 if the selection explains strings with these probabilities, (c,)."""
        frequencies, density = self.frequencies, self.params.density
        row = np.sqrt(self.noise(np.array([density])) + self.tau2)
        excess = frequencies.shares / row
        low, high = TAPER
        # A heavy string that is not explained takes its bits out of the fit instead.
        fall = low * (high - excess) / ((high - low) * np.maximum(excess, low))
        squares = (frequencies.shares * np.where(excess <= low, 1.0, np.maximum(fall, 0.0))) ** 2
        unexplained = frequencies.candidates * (1 - probabilities) + frequencies.non_candidates
        return float(density * (1 - density) * (unexplained @ squares))

    def parts(self, own: Floats) -> dict[str, float]:
        """Split the variance of a string of one share, (1,), by cause; the parts sum to one."""
        params = self.params
        information = self.information(own)
        unexplained = self.tau2 / (params.m * params.k * params.density)
        noise = float(1 / information[0]) - unexplained
        # Coins and sampling make one variance; sampling has its part at the mean level.
        level = own + (1 - own) * params.density
        devices = self.n_reports / self.repeated
        sampled = level * (1 - level) * params.m / devices / self.noise(level)
        sampling = noise * float(sampled[0])
        variance = float(self.errors(own)[0]) ** 2
        spread = float(self.spread(own)[0])
        parts = {
            "coins": noise - sampling,
            "sampling": sampling + spread,
            "unexplained": unexplained,
            "candidates": variance - noise - unexplained - spread,
        }
        return {name: part / variance for name, part in parts.items()}


def _thresholds(z: Floats, question: DetectionTarget) -> tuple[float, float]:
    """Return the largest p-value that is detected, and that for one candidate more."""
    frequencies = question.frequencies
    steps = _steps(z, frequencies, question.error_control)
    if not steps.rising:
        return float(steps.at(1)), float(steps.at(1))
    return (
        max(_step_up(z, frequencies, steps, more=0.0), float(steps.at(1))),
        _step_up(z, frequencies, steps, more=1.0),
    )


def _steps(z: Floats, frequencies: Frequencies, detection: ErrorControl) -> Steps:
    """Return the correction's thresholds for the expected number of p-values."""
    return Steps.of(
        detection,
        n_candidates=frequencies.n_candidates,
        n_within=lambda p_value: _n_within(z, frequencies, p_value),
    )


def _n_within(z: Floats, frequencies: Frequencies, p_value: float) -> float:
    """Return the expected number of candidates with a p-value up to this one."""
    return float(frequencies.candidates @ _detected(z, p_value)) + frequencies.absent * p_value


def _step_up(z: Floats, frequencies: Frequencies, steps: Steps, *, more: float) -> float:
    """Return the largest threshold t that is its own: that of the rank `more` + detected at t.

    From above the map leads down to its largest fixed point.
    """
    threshold = steps.largest
    for _ in range(_STEPS):
        before = threshold
        threshold = min(float(steps.at(more + _n_within(z, frequencies, before))), before)
        if before - threshold <= _SETTLED * threshold:
            break
    return threshold


def _smallest(errors: Floats, threshold: float, power: float) -> float | None:
    """Return the share that is detected with probability `power`, None if none is."""
    needed = _SHARES / errors - _quantile(threshold) - _quantile(1 - power)
    if needed[-1] < 0:
        return None
    return float(np.interp(0.0, needed, _SHARES))


def _detected(z: Floats, threshold: float | Floats) -> Floats:
    """Return the probabilities of detection of strings with these expected z scores."""
    return np.asarray(special.ndtr(z + special.ndtri(threshold)))


def _quantile(tail: float) -> float:
    """Return the normal quantile that is exceeded with probability `tail`."""
    return float(-special.ndtri(tail))
