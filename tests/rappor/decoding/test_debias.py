"""Several collections stacked as rows of one regression."""

from __future__ import annotations

import math

import numpy as np
import pytest
from decodings import (
    CANDIDATES,
    POPULATION,
    N,
    by_name,
    counted,
    largest_error,
    standardised_errors,
)

from rappor.decoding.decoder import decode
from rappor.protocol.params import Params


def test_two_parameter_sets_decoded_together_beat_each_alone() -> None:
    """Rows of both stack: errors shrink as for independent data, and the truth is met."""
    other = Params(k=100, h=2, m=16, f=0.1, p=0.2, q=0.7)
    collections = [counted(), counted(other, seed=2)]
    alone = [decode(counts, CANDIDATES) for counts in collections]
    together = decode(collections, CANDIDATES)
    assert together.reports == 2 * N
    assert np.abs(standardised_errors(together, POPULATION)).max() < largest_error(len(CANDIDATES))
    errors = [by_name(estimates, estimates.std_error) for estimates in (*alone, together)]
    for text in CANDIDATES:
        first, second, both = (table[text] for table in errors)
        pooled = 1 / math.hypot(1 / first, 1 / second)
        assert both < min(first, second)
        assert both == pytest.approx(pooled, rel=0.2)
