"""Simulated tuples: true bits as on a device, and the joint distribution of categories."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor import Params, ParamsError, ReportError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.tuples import combine_categories
from rappor.simulation import Population, simulate_counts, simulate_reports

PAIR = Params(
    k=64, m=3, f=0, p=0, q=1, field_names=("a", "b"), normalize="casefold,none", insecure=True
)
"""Parameters without noise: the bits of a report are the true bits."""


def test_hashed_tuples_have_the_bits_of_a_device() -> None:
    """Simulated counts of a tuple have the bits that a device encodes.

    A tab or U+001F separates the fields, and each field has its own normalizer.
    """
    for text in ("X\tY", "x\x1fY", "\t", "z\x1f"):
        counts = simulate_counts(Population([text], [1]), PAIR, n_reports=300, seed=1)
        value = dict(zip(("a", "b"), text.replace("\t", "\x1f").split("\x1f"), strict=True))
        for cohort, reports in enumerate(counts.cohort_reports):
            bits = np.frombuffer(get_encoder(PAIR).encode(value, cohort), dtype=np.uint8)
            expected = np.unpackbits(bits, bitorder="little") * reports
            assert counts.bit_counts[cohort].tolist() == expected.tolist()


def test_combinations_have_their_joint_distribution() -> None:
    """Counts, and sums of single reports, have the derived binomial distributions.

    A tuple with an unlisted value is reported as "other". The bound covers 20 tails at 1e-9.
    """
    lists = {"editor": ["vim", "code"], "system": ["linux", "mac"]}
    params = Params.profile(
        "once",
        encoding="onehot",
        categories=combine_categories(lists),
        field_names=tuple(lists),
    )
    weights = {("vim", "linux"): 5, ("code", "mac"): 3, ("vim", "other"): 2}
    population = Population.of_tuples(weights)
    gap = params.q_star - params.p_star
    probabilities = params.p_star + gap * np.array([0.5, 0, 0, 0.3, 0.2])
    n = 100_000
    drawn = simulate_counts(population, params, n_reports=n, seed=3).bit_counts[0]
    total = np.zeros(5, dtype=np.int64)
    for block in simulate_reports(population, params, n_reports=n, seed=5):
        bits = np.unpackbits(block.packed, axis=1, count=5, bitorder="little")
        total += bits.sum(axis=0, dtype=np.int64)
    for counts in (drawn, total):
        for count, p in zip(counts, probabilities, strict=True):
            tail = min(stats.binom.cdf(count, n, p), stats.binom.sf(count - 1, n, p))
            assert tail > 1e-9 / 20


def test_wrong_tuples_are_refused() -> None:
    """All tuples of a population, and the metric, must have the same number of fields."""
    with pytest.raises(ParamsError, match="tuples must have one number of fields, got several"):
        Population.of_tuples({("a", "b"): 1, ("c",): 1})
    with pytest.raises(ParamsError, match=r"the texts of tuples must be without U\+001F"):
        Population.of_tuples({("a\x1f", "b"): 1})
    with pytest.raises(ReportError, match=r"must have 2 fields separated by tabs .*, got 3"):
        simulate_counts(Population(["a\tb\tc"], [1]), PAIR, n_reports=9, seed=1)
