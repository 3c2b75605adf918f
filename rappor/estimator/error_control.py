"""How sure an answer is: one record that every question takes and every answer keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from rappor.base.ranges import check_choice, check_number

Correction = Literal["bh", "adaptive", "bonferroni"]
CORRECTIONS: Final[tuple[str, ...]] = get_args(Correction)

_FEW_ONES: Final = 9.0
"""Variance of the ones that an absent string has on its bits, below which p-values above lambda do
not count the absent ones: at .5 they did so for all, and at 1 to 30 the false share was .01 to
.07 where that of Benjamini-Hochberg was as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorControl:
    """How sure a detection and an interval are.

    Attributes
    ----------
    alpha : error rate of detection, in (0, 1).
    method : what the level bounds. "bh": the expected share of false detections [BH95];
        "adaptive": the same, and it finds more where many candidates are present [STS04];
        "bonferroni": the probability of any false detection.
    confidence : probability with which a two-sided interval holds the truth, in (0, 1).

    Raises
    ------
    ParamsError
        A field is outside its range.
    """

    alpha: float = 0.05
    method: str = "bh"
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, "(0, 1)")
        check_number("confidence", self.confidence, "(0, 1)")
        check_choice("method", self.method, CORRECTIONS)

    def for_ones(self, ones: float) -> ErrorControl:
        """Return what is applied where an absent string's ones have this variance.

        That is "bh" for "adaptive" where it is too small.
        """
        return self.for_several_tests() if ones < _FEW_ONES else self

    def for_several_tests(self) -> ErrorControl:
        """Return what is applied to p-values of several tests in one: "bh" for "adaptive".

        They are too large for it.
        """
        return replace(self, method="bh") if self.method == "adaptive" else self
