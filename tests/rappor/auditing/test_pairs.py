"""The values that an audit sends."""

from __future__ import annotations

import numpy as np
import pytest
from audits import ENCODINGS

from rappor import Metric
from rappor.auditing.pairs import TrueBits, choose_pairs


@pytest.mark.parametrize("audited", ENCODINGS.values(), ids=ENCODINGS)
def test_pairs_differ_most_and_set_every_bit(audited: Metric) -> None:
    """In every cohort the values of a pair have the loss of the metric, and every bit is set."""
    params = audited.params
    truth = TrueBits(params, [each for pair in choose_pairs(params) for each in pair])
    seen = np.zeros(params.k, dtype=np.bool_)
    most = {"bloom": 2 * params.h, "boolean": 1}.get(params.encoding, 2)
    for cohort in range(params.m):
        positions = np.arange(len(truth.values))
        bits = truth.bits(positions, np.full(len(positions), cohort))
        assert ((bits[0::2] ^ bits[1::2]).sum(axis=1) == most).all()
        seen |= bits.any(axis=0)
    assert seen.all()
