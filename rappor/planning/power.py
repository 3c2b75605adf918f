"""Power of a decode: predictions of its detections and of the widths of its intervals.

Planners call `predict` for each parameter set that they compare. The input is a parameter set, a
number of reports, and the shares of the strings (`Frequencies`). The output is a `Prediction`: the
expected number of detected strings, the smallest share that is detected with a given probability
(the power), and standard errors. No collection is simulated.

Strings are grouped in *classes* of nearly equal shares. Arrays with the axis "classes" have one
element for each class. Candidates that no device has are *absent*.

The steps are:

1. Compute the standard error of each share (`_Collection.errors`). For strings it depends on the
   strings that the decoder selects, and the selection depends on the errors. Both are computed in
   turns until they agree (`_Collection.find_selection`).
2. Find the p-value threshold of the correction, which depends on the number of detections
   (`_compute_thresholds`).
3. Compute detection probabilities, and from them all other numbers.

Theory of operation
-------------------
`rappor.planning.category_noise` has the errors of encodings with one bit for each category. The
errors of strings are as follows. The decoder regresses m k de-biased bits on the candidates
(`rappor.estimator.fit`): a row of the regression is one bit of one cohort, and the regression has a
free background, a constant for all rows. First the decoder selects the strings with a high score,
and then it fits their shares. The standard error of the share b of a string is

    error^2 = 1 / (n (1 - d) (1 - s / (m k)) E[1 / (v + tau^2)]) + (1 - 1/h) b (1 - b) R / N

| symbol | meaning |
|---|---|
| k, m, h | number of bits of a report, number of cohorts, number of hash functions |
| N, R | number of reports, number of reports of a device |
| d | density: the probability that a string sets a bit of a cohort |
| n | number of rows of a string, m k d |
| s | number of selected strings |
| S | sum of the shares of all strings: 1, or the mean number of items of a set |
| p', q' | p* and q*; for sets `Response.regression_probabilities` |
| v | variance of a row from the noise of the reports and from the sampling of the devices |
| tau^2 | variance of a row from collisions with strings that are not selected |
| E | mean over the levels of the string's rows (`compute_bit_levels`) |

- v = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) m / (N (q'-p')^2), with N reports, R reports per
  device, and the expected proportion of ones mu = p' + (q'-p') (theta + (1 - S) d). The level theta
  is the share of the devices that set the bit: the string's own share and the shares of other
  strings on the bit (`rappor.estimator.debias`). The term (1 - S) d is 0 except for sets. The
  report of a set names one of k buckets, and each item of the device owns the bucket of its hash. A
  device owns a fixed number of buckets, those of its items and random ones together, so with more
  items it owns fewer random buckets.
- tau^2 = d (1-d) (sum of the squares of the shares b' of strings that are not selected). b' is the
  share that remains after the taper: the fit lowers the weight of rows far above the fitted values
  (`rappor.estimator.fit`), so b' is b for a rare string, and 0 for a string that lifts its rows by
  more than the upper limit of `TAPER` (`_Collection.collisions`). While no string is tapered, more
  reports do not lower tau^2.
- The factor 1 - d is the proportion of the information that the free background leaves.
- The factor 1 - s / (m k) is for collisions between selected strings: each selected string costs
  the information of one row.
- The last term is for h > 1: the h bits of a string in a cohort show the same devices, so they do
  not average the sampling of these devices.

A string of share b is detected with probability Phi(b / error - z), where Phi is the normal
distribution function and z the normal quantile of the p-value threshold. With c candidates:

| correction | p-value threshold |
|---|---|
| Bonferroni | level / c |
| Benjamini-Hochberg | level r / c, with r detections; level (1 + r) / c for one further string |
| adaptive | as Benjamini-Hochberg, with the expected number of absent candidates for c |

In a ranked list the threshold of a string is its weight times this threshold, at most the level
(`rappor.planning.planned_weights`).

r is the sum of all detection probabilities at the threshold, and the threshold depends on r. So the
threshold is a fixed point. The step-up procedure of Benjamini and Hochberg uses the largest fixed
point. With few reports the decoder uses Benjamini-Hochberg in place of the adaptive correction
(`DetectionTarget.with_decoder_method`). The number of selected strings is predicted by the same
sum, at the error rate of the selection.

*Example.* A string has the share .01, and the error is .002. Its mean z score is 5. At the p-value
threshold 1e-5, with the normal quantile 4.26, it is detected with probability Phi(5 - 4.26) = 77 %.

Predictions are means over layouts and collections. They hold for candidates with distinct bits, and
for collisions that do not dominate the error. If collisions dominate, the decoder explains more
strings than the detection probabilities of single strings predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import special

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number
from rappor.counts.arrays import Floats
from rappor.estimator.detection_thresholds import ThresholdSequence
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.fit import TAPER
from rappor.estimator.score_tests import compute_ones_variance
from rappor.estimator.selection import ENTRY_RATE
from rappor.planning.category_noise import CategoryNoise
from rappor.planning.frequencies import Frequencies, compute_bit_levels
from rappor.planning.planned_weights import PlannedWeights
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params

_SHARE_GRID: Final = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 113)])
"""Shares at which errors are computed, as proportions of devices. Errors at other shares are
interpolated. Twice as many shares change the smallest detected share by a relative 1.5e-4, and all
other results by less."""

_MAX_ITERATIONS: Final = 100
"""Largest number of iterations until errors and selection agree. The limit ensures that the search
ends. The slowest of a hundred predictions needed 18 iterations."""

_MAX_STEPS: Final = 10_000
"""Largest number of steps to the fixed point of the threshold. The limit ensures that the search
ends. The slowest of a hundred predictions needed 100 steps."""

_TOLERANCE: Final = 1e-6
"""Relative change at which an iteration stops. A tolerance of 1e-9 changes no prediction by more
than a relative 1e-6."""

_MIN_INFORMATION_LEFT: Final = 0.05
"""Lower bound on the factor 1 - s / (m k). If selected strings fill all rows, the formula would
divide by 0. The search of the decoder for strings to select (`rappor.estimator.screening`) has the
same bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DetectionTarget:
    """Strings that a collection must detect, and the requested certainty.

    Parameters
    ----------
    frequencies : shares of the strings.
    error_control : error rate, correction and confidence level of the decoder.
    power : probability with which a string of the smallest share is detected. 0.8 is the convention
        of statistics.
    reports_per_device : mean number of reports of a device. N reports come from
        N / reports_per_device devices.

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
    def of(cls, target: DetectionTarget | int, *, items: int | None = None) -> DetectionTarget:
        """Return a target. A number stands for as many strings with shares by Zipf's law.

        If `items`, the largest number of items of a set, is passed, the number stands for as many
        items with popularity by Zipf's law, in sets of three quarters of `items` on average, or of
        the number of candidates if it is smaller.
        """
        if isinstance(target, DetectionTarget):
            return target
        frequencies = Frequencies.zipf(target)
        if items is not None:
            frequencies = frequencies.as_sets(items)
        return cls(frequencies=frequencies)

    def with_decoder_method(self, params: Params, n_reports: int) -> DetectionTarget:
        """Return the target with the correction that the decoder uses for these reports.

        Case: few reports, so that a row has few ones and a p-value is one of few numbers. The
        adaptive correction would exceed its error rate, so the decoder uses Benjamini-Hochberg.
        """
        if not get_encoding(params).is_hashed:
            if self.error_control.ranked:
                raise ParamsError("ranked must be False for categories: it is for lists of strings")
            return self
        ones = compute_ones_variance(params, n_reports / self.reports_per_device)
        return replace(self, error_control=self.error_control.for_ones_variance(ones))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Predicted detections and errors. Shares and errors are proportions of the devices.

    Attributes
    ----------
    expected_detections : expected number of detected candidates that are not absent.
    probabilities : (classes,) float64. Detection probability of a string of each class of the
        frequencies.
    detectable_share : smallest share that is detected with the target's power; None if no share is
        detected.
    absent_std_error : standard error of an absent candidate.
    largest_share : largest share of the frequencies.
    largest_std_error : standard error of the largest share.
    std_error : standard error of a string with `detectable_share`. If no share is detected,
        standard error of a string that all devices have.
    width : width of the confidence interval of the string that `std_error` is for.
    adjusted_width : width of its interval adjusted for the detected list (Benjamini and Yekutieli
        2005).
    parts : proportion of each cause in the variance `std_error`^2. The causes are "noise" (the
        randomization of the reports), "sampling" (of the devices), "unexplained" (strings that are
        not selected, on the same bits) and "candidates" (selected strings on the same bits, and the
        free background).
    """

    expected_detections: float
    probabilities: Floats
    detectable_share: float | None
    absent_std_error: float
    largest_share: float
    largest_std_error: float
    std_error: float
    width: float
    adjusted_width: float
    parts: dict[str, float]


def predict(params: Params, n_reports: int, target: DetectionTarget) -> Prediction:
    """Predict detections and errors of the decoder.

    Parameters
    ----------
    params : the parameters of all reports.
    n_reports : number of reports of all devices.
    target : the strings to detect, and the requested certainty.
    """
    target = target.with_decoder_method(params, n_reports)
    frequencies = target.frequencies
    collection = _choose_error_model(params, n_reports, target)
    errors = collection.errors(_SHARE_GRID)
    z = frequencies.shares / np.interp(frequencies.shares, _SHARE_GRID, errors)
    weights = PlannedWeights.of(frequencies, target.error_control)
    threshold, threshold_of_next = _compute_thresholds(z, target, weights)
    # `threshold` is computed from the expected number of detections, in which each string counts
    # with its detection probability. But a string that is detected counts as 1. So the threshold
    # for a string with a small probability is `threshold_of_next`, the threshold with one more
    # detection, and `threshold` for a string with probability 1. Between the two cases the
    # thresholds are interpolated.
    first_probabilities = _compute_detection_probabilities(z, weights.weigh_present(threshold))
    interpolated = threshold + (1 - first_probabilities) * (threshold_of_next - threshold)
    probabilities = _compute_detection_probabilities(z, weights.weigh_present(interpolated))
    share = _find_smallest_share(
        errors, weights.weigh_shares(_SHARE_GRID, threshold_of_next), target.power
    )
    n_found = float(frequencies.candidates @ probabilities)
    n_detected = max(n_found + weights.count_absent(threshold), 1.0)
    share_array = np.array([1.0 if share is None else share])
    error = float(collection.errors(share_array)[0])
    error_rate, largest = 1 - target.error_control.confidence, float(frequencies.shares.max())
    # An adjusted interval has the error probability w D e / c, with D of c candidates detected, w
    # the weight of the string, and e the error probability of an interval that is not adjusted.
    weight = float(np.interp(share_array[0], weights.shares, weights.sorted_weights))
    detected_share = min(weight * n_detected / frequencies.n_candidates, 1)
    return Prediction(
        expected_detections=n_found,
        probabilities=probabilities,
        detectable_share=share,
        absent_std_error=float(errors[0]),
        largest_share=largest,
        largest_std_error=float(collection.errors(np.array([largest]))[0]),
        std_error=error,
        width=2 * _compute_upper_quantile(error_rate / 2) * error,
        adjusted_width=2 * _compute_upper_quantile(error_rate * detected_share / 2) * error,
        parts=collection.parts(share_array),
    )


def _choose_error_model(
    params: Params, n_reports: int, target: DetectionTarget
) -> CategoryNoise | _Collection:
    """Return the error model of the encoding, which computes standard errors by share."""
    if get_encoding(params).is_hashed:
        return _build_collection(params, n_reports, target).find_selection()
    return CategoryNoise(params=params, n_reports=n_reports, repeated=target.reports_per_device)


def _build_collection(params: Params, n_reports: int, target: DetectionTarget) -> _Collection:
    """Build the error model of strings before any selection."""
    return _Collection(
        params=params,
        n_reports=n_reports,
        frequencies=target.frequencies,
        repeated=target.reports_per_device,
    )


def error_without_collisions(params: Params, n_reports: int, target: DetectionTarget) -> float:
    """Return the standard error of an absent candidate with infinitely many cohorts."""
    return float(_build_collection(params, n_reports, target).errors(np.zeros(1))[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Collection:
    """Error model of strings: reports of devices whose strings have the given frequencies.

    Attributes
    ----------
    params : the parameters of the reports.
    n_reports : number of reports of all devices, N.
    frequencies : shares of the strings.
    repeated : mean number of reports per device, R.
    tau2 : variance of a row from collisions with strings that are not selected, tau^2.
    selected : expected number of strings that the decoder selects, s.
    """

    params: Params
    n_reports: int
    frequencies: Frequencies
    repeated: float
    tau2: float = 0.0
    selected: float = 0.0

    def find_selection(self) -> _Collection:
        """Return the model with the selection that agrees with its own errors.

        Errors depend on the selected strings, and the selection depends on the errors. The two are
        computed alternately until both stay the same.
        """
        frequencies, collection = self.frequencies, self
        # The selection has no weights: the ranks of a list change no estimate and no p-value.
        control = ErrorControl(alpha=ENTRY_RATE)
        weights = PlannedWeights.of(frequencies, control)
        # The iterations change tau^2 and the number of selected strings, on which v does not
        # depend. v is most of the work.
        row_noise = self.row_noise(_SHARE_GRID)
        for _ in range(_MAX_ITERATIONS):
            errors = collection.errors(_SHARE_GRID, row_noise)
            z = frequencies.shares / np.interp(frequencies.shares, _SHARE_GRID, errors)
            steps = _build_threshold_sequence(z, frequencies, weights, control)
            threshold = _find_fixed_point(z, frequencies, weights, steps, more=0.0)
            probabilities = _compute_detection_probabilities(z, threshold)
            n_selected = (
                float(frequencies.candidates @ probabilities) + frequencies.absent * threshold
            )
            tau2 = collection.collisions(probabilities)
            previous, collection = collection, replace(collection, tau2=tau2, selected=n_selected)
            values = (previous.tau2, previous.selected), (tau2, n_selected)
            if np.allclose(*values, rtol=_TOLERANCE, atol=0):
                break
        return collection

    def errors(self, shares: Floats, row_noise: Floats | None = None) -> Floats:
        """Compute the standard errors of strings with these shares, (number of shares,) float64.

        The module docstring has the formula. `row_noise` is the result of `row_noise(shares)`, if
        the caller has it.
        """
        params = self.params
        information_left = max(1 - self.selected / (params.m * params.k), _MIN_INFORMATION_LEFT)
        information = self.information(shares, row_noise)
        return np.asarray(
            np.sqrt(
                1 / (information_left * (1 - params.density) * information) + self.spread(shares)
            )
        )

    def information(self, shares: Floats, row_noise: Floats | None = None) -> Floats:
        """Compute n E[1 / (v + tau^2)] for strings with these shares, (number of shares,) float64.

        The module docstring explains the letters. `row_noise` is that of `errors`.
        """
        params = self.params
        _, probabilities = compute_bit_levels(self.frequencies, params.density)
        noise = self.row_noise(shares) if row_noise is None else row_noise
        n_rows = params.m * params.k * params.density
        return np.asarray(n_rows * ((1 / (noise + self.tau2)) @ probabilities))

    def row_noise(self, shares: Floats) -> Floats:
        """Compute v of the rows of strings with these shares, (number of shares, levels) float64.

        The columns are the levels of `compute_bit_levels`.
        """
        levels, _ = compute_bit_levels(self.frequencies, self.params.density)
        # The level of a row with the string is
        #     theta = 1 - (1 - own share) (1 - level) = level + own share (1 - level)
        # with `level` the level from other strings.
        return self.noise(levels + np.outer(shares, 1 - levels))

    def noise(self, level: Floats) -> Floats:
        """Return v, the variance of a row, for levels of any shape.

        A level is the share of the devices that set the bit.
        """
        params = self.params
        low, high = params.response.regression_probabilities
        gap = high - low
        # Many sets have several items, so the shares have a sum above 1. The shift keeps the mean
        # level of all bits at the density.
        shift = params.density * (1 - self.frequencies.total)
        mean = low + gap * (level + shift)
        variance = mean * (1 - mean) + (self.repeated - 1) * (mean - params.p) * (params.q - mean)
        return np.asarray(variance * params.m / self.n_reports / gap**2)

    def spread(self, shares: Floats) -> Floats:
        """Return the variance that the h bits of a string have in common, (number of shares,).

        The devices of a string are distributed over the cohorts at random, so a cohort has more or
        fewer of them than expected. All h bits of the cohort measure the same deviation, so they do
        not average it out.
        """
        devices = self.n_reports / self.repeated
        return np.asarray((1 - 1 / self.params.h) * shares * (1 - shares) / devices)

    def collisions(self, probabilities: Floats) -> float:
        """Compute tau^2 if strings are selected with these probabilities, (classes,) float64.

        Every string that is not selected adds d (1 - d) share^2. Rows that a frequent string lifts
        far above the fit have a smaller weight in the decoder (the taper). The string therefore
        counts with the smaller share that the taper leaves.
        """
        frequencies, density = self.frequencies, self.params.density
        row_error = np.sqrt(self.noise(np.array([density])) + self.tau2)
        excess = frequencies.shares / row_error
        low, high = TAPER
        # `excess` is the deviation of a row with the string, in standard errors. TAPER contains two
        # deviations: the fit lowers the weight of a row from the first on, and excludes the row
        # from the second on. Case: a frequent string that is no candidate. The fit excludes its
        # rows. Without the taper here, the string would dominate the predicted error.
        taper = low * (high - excess) / ((high - low) * np.maximum(excess, low))
        squares = (frequencies.shares * np.where(excess <= low, 1.0, np.maximum(taper, 0.0))) ** 2
        unexplained = frequencies.candidates * (1 - probabilities) + frequencies.non_candidates
        return float(density * (1 - density) * (unexplained @ squares))

    def parts(self, shares: Floats) -> dict[str, float]:
        """Split the variance of a string's share by cause.

        Without collisions of any kind the variance would be v / n plus the last term of the
        formula, with v averaged over the rows of the string. tau^2 / n is the part of strings that
        are not selected, and the remaining part comes from the factors of the background and of
        selected strings.

        Parameters
        ----------
        shares : (1,) float64. The share of the string.

        Returns
        -------
        Proportions of the variance by cause, with sum 1 (`Prediction.parts`).
        """
        params = self.params
        information = self.information(shares)
        unexplained = self.tau2 / (params.m * params.k * params.density)
        noise = float(1 / information[0]) - unexplained
        # `noise` is v / n: the noise of the reports and the sampling of the devices. Their ratio is
        # computed at the mean level of a row.
        level = shares + (1 - shares) * params.density
        devices = self.n_reports / self.repeated
        sampling_share = level * (1 - level) * params.m / devices / self.noise(level)
        sampling = noise * float(sampling_share[0])
        variance = float(self.errors(shares)[0]) ** 2
        spread = float(self.spread(shares)[0])
        parts = {
            "noise": noise - sampling,
            "sampling": sampling + spread,
            "unexplained": unexplained,
            "candidates": variance - noise - unexplained - spread,
        }
        return {name: part / variance for name, part in parts.items()}


def _compute_thresholds(
    z: Floats, target: DetectionTarget, weights: PlannedWeights
) -> tuple[float, float]:
    """Compute the p-value threshold of weight 1, and the threshold with one more detection.

    Parameters
    ----------
    z : (classes,) float64. Mean z score of a string of each class.
    target : the frequencies and the correction.
    weights : weights of the tests.
    """
    frequencies = target.frequencies
    steps = _build_threshold_sequence(z, frequencies, weights, target.error_control)
    if not steps.rising:
        # Bonferroni: the threshold does not depend on the number of detections.
        return float(steps.at(1)), float(steps.at(1))
    return (
        # The smallest p-value is always compared with the threshold of rank 1.
        max(_find_fixed_point(z, frequencies, weights, steps, more=0.0), float(steps.at(1))),
        _find_fixed_point(z, frequencies, weights, steps, more=1.0),
    )


def _build_threshold_sequence(
    z: Floats, frequencies: Frequencies, weights: PlannedWeights, error_control: ErrorControl
) -> ThresholdSequence:
    """Build the thresholds of the correction by rank, from expected numbers of p-values.

    Parameters
    ----------
    z : (classes,) float64. Mean z score of a string of each class.
    frequencies : numbers of strings of each class.
    weights : weights of the tests.
    error_control : error rate and correction.
    """
    return ThresholdSequence.of(
        error_control,
        n_candidates=frequencies.n_candidates,
        n_within=lambda p_value: _count_below(z, frequencies, weights, p_value),
    )


def _count_below(
    z: Floats, frequencies: Frequencies, weights: PlannedWeights, threshold: float
) -> float:
    """Compute the expected number of candidates whose p-value is up to their threshold.

    The p-value of an absent candidate is uniform. `threshold` is the threshold of a candidate with
    weight 1.
    """
    probabilities = _compute_detection_probabilities(z, weights.weigh_present(threshold))
    return float(frequencies.candidates @ probabilities) + weights.count_absent(threshold)


def _find_fixed_point(
    z: Floats,
    frequencies: Frequencies,
    weights: PlannedWeights,
    steps: ThresholdSequence,
    *,
    more: float,
) -> float:
    """Find the largest fixed point t: the threshold at the rank `more` + (detections at t).

    A larger threshold gives more detections, and more detections give a larger threshold. The
    iteration begins at the largest threshold, and therefore decreases to the largest fixed point.

    Parameters
    ----------
    z : (classes,) float64. Mean z score of a string of each class.
    frequencies : numbers of strings of each class.
    weights : weights of the tests.
    steps : thresholds by rank.
    more : number that is added to the expected number of detections.
    """
    threshold = steps.largest
    for _ in range(_MAX_STEPS):
        previous = threshold
        n_detected = _count_below(z, frequencies, weights, previous)
        threshold = min(float(steps.at(more + n_detected)), previous)
        if previous - threshold <= _TOLERANCE * threshold:
            break
    return threshold


def _find_smallest_share(errors: Floats, thresholds: Floats, power: float) -> float | None:
    """Find the smallest share that is detected with probability `power`.

    Parameters
    ----------
    errors : standard errors of the shares `_SHARE_GRID`.
    thresholds : p-value thresholds of strings with these shares.
    power : the requested probability.

    Returns
    -------
    The share, or None if even a string that all devices have is detected with a smaller
    probability.
    """
    # With z the upper quantile of the normal distribution, a share is detected with the power if
    # share / error >= z(threshold) + z(1 - power). Errors grow more slowly than shares, and a more
    # frequent string has no smaller weight. So the condition holds from one share on.
    margin = _SHARE_GRID / errors + special.ndtri(thresholds) - _compute_upper_quantile(1 - power)
    if margin[-1] < 0:
        return None
    return float(np.interp(0.0, margin, _SHARE_GRID))


def _compute_detection_probabilities(z: Floats, threshold: float | Floats) -> Floats:
    """Compute Phi(z - quantile of the threshold): detection probabilities at mean z scores z."""
    return np.asarray(special.ndtr(z + special.ndtri(threshold)))


def _compute_upper_quantile(tail: float) -> float:
    """Return the normal quantile that is exceeded with probability `tail`."""
    return float(-special.ndtri(tail))
