"""Error control: the error rates of detections and intervals.

Every analysis (`decode`, `compare_samples`, `discover`, ...) takes an `ErrorControl` and stores it
in its result, so that a table states its error rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice, check_number, format_value

Correction = Literal["bh", "adaptive", "bonferroni"]
"""Names that select a correction for multiple tests. `ErrorControl.method` explains them."""
CORRECTIONS: Final[tuple[str, ...]] = get_args(Correction)
"""The names of the corrections are in the order in which help texts list them."""

_FEW_ONES: Final = 9.0
"""Variance of the number of ones at the bits of an absent string, in all cohorts together, below
which the method "adaptive" is replaced by "bh". If every bit is a fair coin, 36 devices have the
variance 9, because each device adds 1/4.

The method "adaptive" counts the absent candidates by the p-values above a limit (lambda, 1/2). With
few ones this count is too small. Measured at a variance of .5: all candidates counted as present.
Measured at variances of 1 to 30: the false discovery rate was .01 to .07, as with
Benjamini-Hochberg."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorControl:
    """Error rates of detections and of confidence intervals.

    Attributes
    ----------
    alpha : error rate of detection, in (0, 1).
    method : the kind of error that alpha bounds. "bh": the false discovery rate [BH95]. "adaptive":
        the same rate, with more detections if many candidates are present [STS04]. "bonferroni":
        the probability of any false detection.
    confidence : probability with which a two-sided interval contains the true value, in (0, 1).
    ranked : True if the order of the candidates says how likely they are, the most likely first.
        The tests then have weights (`rappor.estimator.rank_weights`), so that more of the likely
        candidates are detected. The order must not come from reports of the same metric, of any
        epoch: the error rate would be exceeded. Only `decode` and planning support it, and not
        the method "adaptive".

    Raises
    ------
    ParamsError
        A field is outside its range, or `ranked` is True with the method "adaptive".

    Examples
    --------
    >>> ErrorControl(alpha=0.01, method="bonferroni")
    ErrorControl(alpha=0.01, method='bonferroni', confidence=0.95, ranked=False)
    """

    alpha: float = 0.05
    method: str = "bh"
    confidence: float = 0.95
    ranked: bool = False

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, "(0, 1)")
        check_number("confidence", self.confidence, "(0, 1)")
        check_choice("method", self.method, CORRECTIONS)
        if not isinstance(self.ranked, bool):
            raise ParamsError(f"ranked must be True or False, got {format_value(self.ranked)}")
        # The estimate of the number of absent candidates has no proof for tests with weights.
        if self.ranked and self.method == "adaptive":
            raise ParamsError("method must be bh or bonferroni for a ranked list, got 'adaptive'")

    def refuse_ranked(self, noun: str) -> None:
        """Raise ParamsError if the list is ranked. For analyses whose tests have no weights.

        Parameters
        ----------
        noun : the analysis, such as "comparisons".
        """
        if self.ranked:
            raise ParamsError(
                f"ranked must be False for {noun}, whose tests weigh all candidates "
                "equally: use decode for a ranked list"
            )

    def for_ones_variance(self, variance: float) -> ErrorControl:
        """Return the error control for strings, given the variance of the ones of an absent string.

        The method "adaptive" becomes "bh" if the variance is too small (`_FEW_ONES`).

        Parameters
        ----------
        variance : variance of the number of ones at the bits of an absent string.
        """
        # Case: few reports. A number of ones then takes few values, so most absent candidates have
        # the same p-value. In a collection of 30 reports this p-value was .44, below lambda, so
        # nearly all absent candidates counted as present, and "adaptive" exceeded its error rate.
        return self.for_several_tests() if variance < _FEW_ONES else self

    def for_several_tests(self) -> ErrorControl:
        """Return the error control for p-values that combine several tests.

        The method "adaptive" becomes "bh". The combined p-values of absent candidates are larger
        than uniform p-values, so "adaptive" would overestimate the number of absent candidates. The
        estimate may exceed the number of all candidates, and "bh" then detects more.
        """
        return replace(self, method="bh") if self.method == "adaptive" else self
