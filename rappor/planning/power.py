"""Predictions of the decoder's detections and interval widths.

Theory of operation
-------------------
`rappor.planning.category_noise` has the errors of encodings with one bit for each category. The
errors of strings are as follows. The decoder regresses m k de-biased bits on the candidates
(`rappor.estimator.fit`). A string sets n = m k d of the bits, where d is the density, and its
estimate has the error

    error^2 = 1 / (n (1 - d) (1 - s / (m k)) E[1 / (v + tau^2)])

- v = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) m / (N (q*-p*)^2) is the variance of one bit from
  coins and from the sampling of the devices, at the mean level mu = p* + (q*-p*) theta. theta is
  the string's own share plus the shares of other strings on the bit. The mean E is over all layouts
  (`compute_bit_levels`). R is the number of reports per device (`rappor.estimator.debias`).
- tau^2 = d (1-d) (sum of squares of the shares that the selection does not explain) is the variance
  of collisions. More reports do not lower tau^2.
- 1 - d is the share of the information that the free background leaves.
- s is the number of selected strings. Collisions between candidates cost the information of one bit
  for each selected string.

A string of share b is detected with probability Phi(b / error - z), where z is the normal quantile
of the p-value threshold. For Bonferroni, the threshold is level / c. For Benjamini-Hochberg, the
threshold depends on the result: with r other detections, a string needs p <= level (1 + r) / c, and
r is the sum of all detection probabilities at this threshold. The step-up procedure takes the
largest such threshold. The adaptive procedure divides by the expected number of absent candidates
instead of c, from the number of reports at which the decoder applies it. The strings that the
selection explains are predicted by the same sum, at the error rate of the selection.

Predictions are means over layouts and collections. They hold for candidates with distinct bits, and
for collisions that do not dominate the error. If collisions dominate, the decoder explains more
strings than the detection probabilities of single strings predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import special

from rappor.base.ranges import check_number
from rappor.counts.arrays import Floats
from rappor.estimator.detection_thresholds import ThresholdSequence
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.fit import TAPER
from rappor.estimator.score_tests import compute_ones_variance
from rappor.estimator.selection import ENTER
from rappor.planning.category_noise import CategoryNoise
from rappor.planning.frequencies import Frequencies, compute_bit_levels
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_SHARE_GRID: Final = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 113)])
"""Shares at which errors are computed; errors between them are interpolated.

A grid of twice as many shares changes the smallest detected share by a relative 1.5e-4, and all
other results by less."""

_MAX_ITERATIONS: Final = 100
"""Largest number of iterations until errors and selection agree.

The slowest of a hundred predictions needed 18."""

_MAX_STEPS: Final = 10_000
"""Largest number of steps to the fixed point of the threshold. The slowest of a hundred predictions
needed 100."""

_TOLERANCE: Final = 1e-6
"""Relative change at which an iteration stops.

A tolerance of 1e-9 changes no prediction by more than 1e-6."""

_MIN_INFORMATION_LEFT: Final = 0.05
"""Smallest share of the information that selected strings leave.

If selected strings fill nearly all rows, the formula has no finite error. The decoder's screening
has the same bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectionTarget:
    """The strings that a collection must detect, and the requested certainty.

    Parameters
    ----------
    frequencies : shares of the strings.
    error_control : error rate and confidence level of the decoder.
    power : probability with which a string of the smallest share is detected.
    reports_per_device : reports of each device. N reports come from N / reports_per_device devices.

    Raises
    ------
    ParamsError
        A number is outside its range.

    Examples
    --------
    >>> from rappor.planning import DetectionTarget, Frequencies
    >>> DetectionTarget(frequencies=Frequencies.zipf(100), power=0.9).frequencies.n_candidates
    100
    """

    frequencies: Frequencies
    error_control: ErrorControl = ErrorControl()
    power: float = 0.8
    reports_per_device: float = 1.0

    def __post_init__(self) -> None:
        check_number("reports_per_device", self.reports_per_device, "[1, 1000000]")
        check_number("power", self.power, "(0, 1)")

    @classmethod
    def of(cls, target: DetectionTarget | int) -> DetectionTarget:
        """Return a target; a number means as many strings with shares by Zipf's law."""
        return (
            target
            if isinstance(target, DetectionTarget)
            else cls(frequencies=Frequencies.zipf(target))
        )

    def applied(self, params: Params, n_reports: int) -> DetectionTarget:
        """Return the target with the correction that the decoder applies to these reports.

        The decoder replaces the adaptive correction if a row has too few ones.
        """
        if not get_encoding(params).is_hashed:
            return self
        ones = compute_ones_variance(params, n_reports / self.reports_per_device)
        return replace(self, error_control=self.error_control.for_ones(ones))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Predicted detections and errors, as shares of the reports.

    Attributes
    ----------
    found : expected number of present candidates that are detected.
    probabilities : (c,) float64. Detection probability of a string of each class of the
        frequencies.
    share : smallest share that is detected with the target's power; None if no share is.
    rare_error : standard error of an absent candidate.
    largest, largest_error : largest share of the frequencies, and its standard error.
    error, width, adjusted_width : standard error of a string of the smallest share (of share 1
        without a smallest share), the width of its interval, and the width of its interval adjusted
        for the detected list (Benjamini and Yekutieli 2005).
    parts : share of each cause in the variance of that error: "coins", "sampling" (of the devices),
        "unexplained" (strings on the same bits) and "candidates" (that must be distinguished).
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


def predict(params: Params, n_reports: int, target: DetectionTarget) -> Prediction:
    """Predict detections and errors of the decoder, by the theory above."""
    target = target.applied(params, n_reports)
    frequencies = target.frequencies
    collection = _choose_error_model(params, n_reports, target)
    errors = collection.errors(_SHARE_GRID)
    z = frequencies.shares / np.interp(frequencies.shares, _SHARE_GRID, errors)
    threshold, threshold_of_next = _thresholds(z, target)
    # A string that is certainly detected already counts in the threshold. A string that is
    # uncertain raises the rank by one if it passes. The two thresholds are interpolated.
    first_probabilities = _compute_detection_probabilities(z, threshold)
    probabilities = _compute_detection_probabilities(
        z, threshold + (1 - first_probabilities) * (threshold_of_next - threshold)
    )
    share = _find_smallest_share(errors, threshold_of_next, target.power)
    n_found = float(frequencies.candidates @ probabilities)
    n_detected = max(n_found + frequencies.absent * threshold, 1.0)
    share_array = np.array([1.0 if share is None else share])
    error = float(collection.errors(share_array)[0])
    error_rate, largest = 1 - target.error_control.confidence, float(frequencies.shares.max())
    chosen_share = min(n_detected / frequencies.n_candidates, 1)
    return Prediction(
        found=n_found,
        probabilities=probabilities,
        share=share,
        rare_error=float(errors[0]),
        largest=largest,
        largest_error=float(collection.errors(np.array([largest]))[0]),
        error=error,
        width=2 * _upper_quantile(error_rate / 2) * error,
        adjusted_width=2 * _upper_quantile(error_rate * chosen_share / 2) * error,
        parts=collection.parts(share_array),
    )


def _choose_error_model(
    params: Params, n_reports: int, target: DetectionTarget
) -> CategoryNoise | _Collection:
    """Return the object that computes the errors of the encoding."""
    if get_encoding(params).is_hashed:
        return _collection(params, n_reports, target).settle()
    return CategoryNoise(params=params, n_reports=n_reports, repeated=target.reports_per_device)


def _collection(params: Params, n_reports: int, target: DetectionTarget) -> _Collection:
    return _Collection(
        params=params,
        n_reports=n_reports,
        frequencies=target.frequencies,
        repeated=target.reports_per_device,
    )


def error_without_collisions(params: Params, n_reports: int, target: DetectionTarget) -> float:
    """Return the standard error of an absent candidate with infinitely many cohorts."""
    return float(_collection(params, n_reports, target).errors(np.zeros(1))[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Collection:
    """Reports of devices whose strings have the given frequencies.

    Attributes
    ----------
    repeated : reports per device.
    tau2 : variance of collisions with unexplained strings.
    selected : number of strings that the decoder selects.
    """

    params: Params
    n_reports: int
    frequencies: Frequencies
    repeated: float
    tau2: float = 0.0
    selected: float = 0.0

    def settle(self) -> _Collection:
        """Return the collection with the selection that its own errors lead to, by iteration."""
        frequencies, collection = self.frequencies, self
        for _ in range(_MAX_ITERATIONS):
            errors = collection.errors(_SHARE_GRID)
            z = frequencies.shares / np.interp(frequencies.shares, _SHARE_GRID, errors)
            steps = _steps(z, frequencies, ErrorControl(alpha=ENTER))
            threshold = _step_up(z, frequencies, steps, more=0.0)
            probabilities = _compute_detection_probabilities(z, threshold)
            n_selected = (
                float(frequencies.candidates @ probabilities) + frequencies.absent * threshold
            )
            tau2 = collection.collisions(probabilities)
            previous, collection = collection, replace(collection, tau2=tau2, selected=n_selected)
            values = (previous.tau2, previous.selected), (tau2, n_selected)
            # The fixed point: the selection that these errors allow leaves these errors.
            if np.allclose(*values, rtol=_TOLERANCE, atol=0):
                break
        return collection

    def errors(self, shares: Floats) -> Floats:
        """Return the standard errors of strings with these shares, (s,)."""
        params = self.params
        information_left = max(1 - self.selected / (params.m * params.k), _MIN_INFORMATION_LEFT)
        information = self.information(shares)
        return np.asarray(
            np.sqrt(
                1 / (information_left * (1 - params.density) * information) + self.spread(shares)
            )
        )

    def information(self, shares: Floats) -> Floats:
        """Return n E[1 / (v + tau^2)] for strings with these shares, (s,).

        N is the bits of a string.
        """
        params = self.params
        levels, probabilities = compute_bit_levels(self.frequencies, params.density)
        # The level of a bit includes the string's own share: 1 - (1 - own) (1 - level of others).
        noise = self.noise(levels + np.outer(shares, 1 - levels))
        n_rows = params.m * params.k * params.density
        return np.asarray(n_rows * ((1 / (noise + self.tau2)) @ probabilities))

    def noise(self, level: Floats) -> Floats:
        """Return the variance of one bit of one cohort, by the share of devices that set it."""
        params = self.params
        gap = params.q_star - params.p_star
        mean = params.p_star + gap * level
        variance = mean * (1 - mean) + (self.repeated - 1) * (mean - params.p) * (params.q - mean)
        return np.asarray(variance * params.m / self.n_reports / gap**2)

    def spread(self, shares: Floats) -> Floats:
        """Return the variance that the h bits of a string have in common, (s,).

        A string's devices are spread unevenly over the cohorts. The h bits of a cohort measure that
        spread once.
        """
        devices = self.n_reports / self.repeated
        return np.asarray((1 - 1 / self.params.h) * shares * (1 - shares) / devices)

    def collisions(self, probabilities: Floats) -> float:
        """Return tau^2 if the selection explains strings with these probabilities, (c,)."""
        frequencies, density = self.frequencies, self.params.density
        row_error = np.sqrt(self.noise(np.array([density])) + self.tau2)
        excess = frequencies.shares / row_error
        low, high = TAPER
        # An unexplained heavy string exceeds the taper, so the fit excludes its bits. Without the
        # factor, one heavy string that is no candidate would dominate the predicted error.
        taper = low * (high - excess) / ((high - low) * np.maximum(excess, low))
        squares = (frequencies.shares * np.where(excess <= low, 1.0, np.maximum(taper, 0.0))) ** 2
        unexplained = frequencies.candidates * (1 - probabilities) + frequencies.non_candidates
        return float(density * (1 - density) * (unexplained @ squares))

    def parts(self, shares: Floats) -> dict[str, float]:
        """Split the variance of a string of one share, (1,), by cause; the parts sum to one."""
        params = self.params
        information = self.information(shares)
        unexplained = self.tau2 / (params.m * params.k * params.density)
        noise = float(1 / information[0]) - unexplained
        # `noise` contains coins and sampling. The sampling is separated at the mean level of a bit.
        level = shares + (1 - shares) * params.density
        devices = self.n_reports / self.repeated
        sampling_share = level * (1 - level) * params.m / devices / self.noise(level)
        sampling = noise * float(sampling_share[0])
        variance = float(self.errors(shares)[0]) ** 2
        spread = float(self.spread(shares)[0])
        parts = {
            "coins": noise - sampling,
            "sampling": sampling + spread,
            "unexplained": unexplained,
            "candidates": variance - noise - unexplained - spread,
        }
        return {name: part / variance for name, part in parts.items()}


def _thresholds(z: Floats, target: DetectionTarget) -> tuple[float, float]:
    """Return the largest detected p-value, and the largest one with one more detection."""
    frequencies = target.frequencies
    steps = _steps(z, frequencies, target.error_control)
    if not steps.rising:
        # Bonferroni: the threshold does not depend on the number of detections.
        return float(steps.at(1)), float(steps.at(1))
    return (
        max(_step_up(z, frequencies, steps, more=0.0), float(steps.at(1))),
        _step_up(z, frequencies, steps, more=1.0),
    )


def _steps(z: Floats, frequencies: Frequencies, detection: ErrorControl) -> ThresholdSequence:
    """Return the correction's thresholds for the expected number of p-values."""
    return ThresholdSequence.of(
        detection,
        n_candidates=frequencies.n_candidates,
        n_within=lambda p_value: _count_below(z, frequencies, p_value),
    )


def _count_below(z: Floats, frequencies: Frequencies, p_value: float) -> float:
    """Return the expected number of candidates with a p-value up to `p_value`."""
    return (
        float(frequencies.candidates @ _compute_detection_probabilities(z, p_value))
        + frequencies.absent * p_value
    )


def _step_up(
    z: Floats, frequencies: Frequencies, steps: ThresholdSequence, *, more: float
) -> float:
    """Return the largest fixed point t: the threshold of the rank `more` + detections at t.

    The iteration starts above the largest fixed point and decreases to it, because the map is
    monotone.
    """
    threshold = steps.largest
    for _ in range(_MAX_STEPS):
        previous = threshold
        threshold = min(float(steps.at(more + _count_below(z, frequencies, previous))), previous)
        if previous - threshold <= _TOLERANCE * threshold:
            break
    return threshold


def _find_smallest_share(errors: Floats, threshold: float, power: float) -> float | None:
    """Return the share that is detected with probability `power`; None if no share is."""
    margin = _SHARE_GRID / errors - _upper_quantile(threshold) - _upper_quantile(1 - power)
    if margin[-1] < 0:
        return None
    return float(np.interp(0.0, margin, _SHARE_GRID))


def _compute_detection_probabilities(z: Floats, threshold: float | Floats) -> Floats:
    """Return the detection probabilities of strings with expected z scores `z`."""
    return np.asarray(special.ndtr(z + special.ndtri(threshold)))


def _upper_quantile(tail: float) -> float:
    """Return the normal quantile that is exceeded with probability `tail`."""
    return float(-special.ndtri(tail))
