"""Error rates over several samples: detected strings, and the confidence of their intervals.

Half of the error rate is for the pooled decode of all samples together, and half is for the
separate decodes of the samples. Here the error rate is 0.2, the confidence is 0.9, and there are 20
candidates.
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
CONTROL = ErrorControl(alpha=0.2, method="bh", confidence=0.9)
"""The error rate is large, so that the lists of detected strings differ in many cases."""


def decode_samples(samples: list[Counts]) -> SeparateDecodes:
    """Decode each sample separately, with error control over all samples."""
    listed = Candidates.from_list(NAMES)
    return decode_separately(
        [[sample] for sample in samples], listed, CONTROL, no_progress, complete=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_string_is_detected_by_the_pooled_decode_or_by_one_sample(seed: int) -> None:
    """A string is detected overall if all samples together, or a single sample, show it.

    The p-value of a string is 2 min(pooled p, T * smallest p of a sample), with T = 3 samples, by
    Bonferroni's inequality. The procedure of Benjamini and Hochberg over these p-values gives the
    strings that are detected overall. A sample detects a string under three conditions: the string
    is detected overall, a separate decode of the sample detects it, and its p-value in the sample
    is at most the error rate times the share of the 20 strings that the pooled decode detects.
    """
    population = Population(NAMES, list(np.exp(-np.arange(20) / 4)))
    samples = [
        simulate_counts(population, PARAMS, n_reports=3000, seed=10 * seed + i) for i in range(3)
    ]
    separate = decode_samples(samples)
    pooled = decode(samples, NAMES, error_control=ErrorControl(alpha=0.1, confidence=0.9))
    p_values_by_sample = [
        {row["candidate"]: row["p_value"] for row in decode(s, NAMES).rows()} for s in samples
    ]
    smallest = {name: min(p_values[name] for p_values in p_values_by_sample) for name in NAMES}
    p_values = {
        name: min(2 * min(p, 3 * smallest[name]), 1.0)
        for name, p in zip(pooled.candidates, pooled.p_value.tolist(), strict=True)
    }
    ordered = sorted(p_values.values())
    passing = [p for rank, p in enumerate(ordered, 1) if p <= 0.2 * rank / 20]
    expected = {name for name, p in p_values.items() if passing and p <= passing[-1]}
    detected_overall = zip(separate.candidates, separate.detected, strict=True)
    assert {name for name, is_detected in detected_overall if is_detected} == expected
    detected_share = max(int(pooled.detected.sum()), 1) / 20
    assert (separate.largest_p_value, separate.error_control.confidence) == pytest.approx(
        (0.2 * detected_share, 1 - 0.1 * detected_share)
    )
    levels = separate.tabulate(np.arange(20), separate.per_sample)
    for number, sample in enumerate(samples):
        single = decode(sample, NAMES, error_control=ErrorControl(alpha=0.2))
        detected_alone = dict(zip(single.candidates, single.detected.tolist(), strict=True))
        detected = [
            name in expected
            and detected_alone[name]
            and p_values_by_sample[number][name] <= 0.2 * detected_share
            for name in separate.candidates
        ]
        assert levels.detected[number].tolist() == detected


def test_without_a_detection_intervals_are_adjusted_for_one_string() -> None:
    """If no string is detected, intervals are adjusted as for one detected string of 20.

    With zero detected strings, the confidence would be 1 and the intervals infinite.
    """
    equal_bits = np.full((8, 16), 500)  # no bit has more ones than any other
    separate = decode_samples([Counts(PARAMS, equal_bits, np.full(8, 1000))] * 2)
    assert not separate.detected.any()
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 20)


def test_strings_with_equal_bits_count_once() -> None:
    """Strings with equal bits have one test: 20 strings in one cohort of two bits count as two."""
    tiny = Params(k=2, h=1, m=1, f=0.25, p=0.3, q=0.7)
    separate = decode_samples([Counts(tiny, [[500, 500]], [1000])] * 2)
    assert separate.error_control.confidence == pytest.approx(1 - 0.1 / 2)
