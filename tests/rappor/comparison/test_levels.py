"""Error rates over several samples: which strings are detected, and the levels of intervals.

Half of the error rate is for the decode of all samples together, and half for the samples alone.
Here the error rate is 0.2 and the confidence 0.9, with 20 candidates.
"""

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


def decode_samples(samples: list[Counts]) -> SeparateDecodes:
    """Decode each sample alone, with error control over all samples."""
    listed = Candidates.from_list(NAMES)
    return decode_separately(
        [[sample] for sample in samples], listed, SURE, no_progress, complete=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_string_is_detected_by_all_samples_together_or_by_one_alone(seed: int) -> None:
    """A string's p-value is 2 min(pooled p, T * smallest p of a sample), with T = 3 samples.

    Benjamini-Hochberg over these p-values gives the detected strings. A sample detects a string if
    the string is detected overall, a decode of this sample alone detects it, and its p-value in the
    sample is at most the error rate times the part of strings that the pooled decode detects.
    """
    population = Population(NAMES, list(np.exp(-np.arange(20) / 4)))
    samples = [
        simulate_counts(population, PARAMS, n_reports=3000, seed=10 * seed + i) for i in range(3)
    ]
    separate = decode_samples(samples)
    pooled = decode(samples, NAMES, error_control=ErrorControl(alpha=0.1, confidence=0.9))
    alone = [{row["candidate"]: row["p_value"] for row in decode(s, NAMES).rows()} for s in samples]
    p_values = {
        name: min(
            2 * min(p, 3 * min(p_values_of_sample[name] for p_values_of_sample in alone)), 1.0
        )
        for name, p in zip(pooled.candidates, pooled.p_value.tolist(), strict=True)
    }
    ordered = sorted(p_values.values())
    passing = [p for rank, p in enumerate(ordered, 1) if p <= 0.2 * rank / 20]
    expected = {name for name, p in p_values.items() if passing and p <= passing[-1]}
    assert {
        name for name, yes in zip(separate.candidates, separate.detected, strict=True) if yes
    } == expected
    detected_part = max(int(pooled.detected.sum()), 1) / 20
    assert (separate.largest_p_value, separate.error_control.confidence) == pytest.approx(
        (0.2 * detected_part, 1 - 0.1 * detected_part)
    )
    levels = separate.tabulate(np.arange(20), separate.per_sample)
    for number, sample in enumerate(samples):
        single = decode(sample, NAMES, error_control=ErrorControl(alpha=0.2))
        by_itself = dict(zip(single.candidates, single.detected.tolist(), strict=True))
        detected = [
            name in expected and by_itself[name] and alone[number][name] <= 0.2 * detected_part
            for name in separate.candidates
        ]
        assert levels.detected[number].tolist() == detected


def test_without_a_detection_intervals_are_those_of_one_detected_string() -> None:
    """If nothing is detected, intervals are adjusted as for one detected string of 20."""
    half = np.full((8, 16), 500)  # no bit has more ones than any other
    separate = decode_samples([Counts(PARAMS, half, np.full(8, 1000))] * 2)
    assert not separate.detected.any()
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 20)


def test_strings_with_equal_bits_count_once() -> None:
    """With one cohort of two bits, 20 strings form two groups of equal bits and count as two."""
    tiny = Params(k=2, h=1, m=1, f=0.25, p=0.3, q=0.7)
    separate = decode_samples([Counts(tiny, [[500, 500]], [1000])] * 2)
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 2)
