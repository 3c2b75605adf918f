"""Thresholds: probabilities as integers, which coins of 32 bits compare exactly.

A coin is a uniform integer u of 32 bits. An event of threshold t happens if u < t, so its
probability is exactly t / 2^32. Example: the probability 0.25 has the threshold 2^30.
"""

from __future__ import annotations

import math
from typing import Final

ONE: Final = 1 << 32
"""The probability 1 has this threshold. It is also the number of values of a coin."""


def compute_threshold(probability: float) -> int:
    """Round a probability to its 32-bit threshold: floor(x 2^32 + 0.5), computed in binary64."""
    return math.floor(probability * ONE + 0.5)
