"""Error rates of several samples: which strings are detected, and the levels of intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rappor import Candidates, Counts, Params, Population, decode, simulate_counts
from rappor.base.progress import no_progress
from rappor.comparison.per_sample import SeparateDecodes, decode_separately
from rappor.estimator.error_control import ErrorControl

PARAMS = Params(k=16, h=1, m=8, f=0.25, p=0.3, q=0.7)
NAMES = [f"s{i}" for i in range(20)]
SURE = ErrorControl(alpha=0.2, method="bh", confidence=0.9)


def side_by_side(samples: list[Counts]) -> SeparateDecodes:
    listed = Candidates.from_list(NAMES)
    return decode_separately(
        [[sample] for sample in samples], listed, SURE, no_progress, complete=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_string_is_found_by_all_samples_or_any_one(seed: int) -> None:
    """A string's p-value is twice the smaller of the pooled one and T times the smallest one."""
    population = Population(NAMES, list(np.exp(-np.arange(20) / 4)))
    samples = [
        simulate_counts(population, PARAMS, n_reports=3000, seed=10 * seed + i) for i in range(3)
    ]
    separate = side_by_side(samples)
    whole = decode(samples, NAMES, error_control=ErrorControl(alpha=0.1, confidence=0.9))
    alone = [{row["candidate"]: row["p_value"] for row in decode(s, NAMES).rows()} for s in samples]
    p_values = {
        name: min(
            2 * min(p, 3 * min(p_values_of_sample[name] for p_values_of_sample in alone)), 1.0
        )
        for name, p in zip(whole.candidates, whole.p_value.tolist(), strict=True)
    }
    ordered = sorted(p_values.values())
    passing = [p for rank, p in enumerate(ordered, 1) if p <= 0.2 * rank / 20]
    expected = {name for name, p in p_values.items() if passing and p <= passing[-1]}
    assert {
        name for name, yes in zip(separate.candidates, separate.detected, strict=True) if yes
    } == expected
    part = max(int(whole.detected.sum()), 1) / 20
    assert (separate.largest_p_value, separate.error_control.confidence) == pytest.approx(
        (0.2 * part, 1 - 0.1 * part)
    )
    levels = separate.tabulate(np.arange(20), separate.per_sample)
    for number, sample in enumerate(samples):
        single = decode(sample, NAMES, error_control=ErrorControl(alpha=0.2))
        by_itself = dict(zip(single.candidates, single.detected.tolist(), strict=True))
        detected = [
            name in expected and by_itself[name] and alone[number][name] <= 0.2 * part
            for name in separate.candidates
        ]
        assert levels.detected[number].tolist() == detected


def test_where_nothing_is_found_intervals_are_those_of_one_string() -> None:
    """If nothing is detected, intervals are adjusted as for one detected string of 20."""
    half = np.full((8, 16), 500)  # no bit has more ones than any other
    separate = side_by_side([Counts(PARAMS, half, np.full(8, 1000))] * 2)
    assert not separate.detected.any()
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 20)


def test_strings_that_cannot_be_told_apart_count_once() -> None:
    """An identifiability group counts once in the levels of intervals."""
    tiny = Params(k=2, h=1, m=1, f=0.25, p=0.3, q=0.7)
    separate = side_by_side([Counts(tiny, [[500, 500]], [1000])] * 2)
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 2)
