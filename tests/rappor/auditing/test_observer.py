"""The inference attack: an observer guesses bits and values from the reports of one device.

`memoized` rows are for devices with a permanent response, and `redrawn` rows for devices that draw
it anew for each report. Rows have the shares of right guesses of permanent bits, true bits and
values.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from enumeration import enumerate_reports

from rappor import Params, ParamsError
from rappor.auditing import inference_attack
from rappor.auditing.observer import compute_permanent_bits_known
from rappor.privacy.report_linkage import reports_to_recover
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.encodings.encodings_by_name import get_encoder

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)
BROWSER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
SMALL = Params(k=2, f=0.5, p=0.25, q=0.625)
SIGMAS = 6.2
"""Standard errors of a bound. A normal deviate exceeds them with probability 3e-10."""


@pytest.mark.parametrize(("params", "n"), [(PAPER, 207), (BROWSER, 51)])
def test_number_of_reports_that_reveal_all_permanent_bits(params: Params, n: int) -> None:
    """207 and 51 reports are the fewest that reveal all 128 permanent bits with probability .99."""
    assert compute_permanent_bits_known(params, n) ** 128 >= 0.99
    assert compute_permanent_bits_known(params, n - 1) ** 128 < 0.99
    assert reports_to_recover(params) == n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_share_of_right_true_bits_is_exact(n: int) -> None:
    """The share of right guesses of a true bit equals an enumeration of all coins.

    The best guess from the number of ones among n reports is the more likely true bit.
    """
    memoized = inference_attack(SMALL, reports=[n], devices=10, candidates=2).memoized[0]
    distributions = []
    for truth in (0, 1):
        distribution = [Fraction(0)] * (n + 1)
        for history, probability in enumerate_reports(bytes([truth]), SMALL, n).items():
            distribution[sum(report & 1 for report in history)] += probability
        distributions.append(distribution)
    right = sum(max(if_zero, if_one) for if_zero, if_one in zip(*distributions, strict=True)) / 2
    assert memoized.true_bits == pytest.approx(float(right), rel=1e-12)


def test_one_report_without_fresh_noise_reveals_the_permanent_response() -> None:
    """With p = 0 and q = 1, one report reveals every permanent bit, and 50 reveal no more.

    A permanent bit equals the true bit with probability 1 - f / 2 = 0.75.
    """
    params = Params(k=16, f=0.5, p=0, q=1)
    first, later = inference_attack(
        params, reports=[1, 50], devices=50, candidates=8, seed=3
    ).memoized
    assert first.permanent_bits == later.permanent_bits == 1
    assert first.true_bits == later.true_bits == pytest.approx(0.75)
    assert first.values == later.values


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        Params.profile("balanced"),
        BROWSER,
        Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean"),
        Params(k=3, f=0.5, p=0.25, q=0.75, encoding="onehot", categories=("a", "b", "c")),
        Params(
            k=3,
            f=0.5,
            p=0.25,
            q=0.75,
            encoding="buckets",
            categories=(format_edge(1), format_edge(2)),
        ),
    ],
    ids=lambda params: f"{params.encoding}-{params.h}",
)
def test_no_observer_beats_the_bound(params: Params) -> None:
    """With C candidates, the share of right values is at most e^eps_n / (C - 1 + e^eps_n).

    eps_n is the loss of n reports. The share of right true bits never falls with more reports.
    """
    exposure = inference_attack(params, devices=1000, candidates=50, seed=5)
    for rows in (exposure.memoized, exposure.redrawn):
        for row in rows:
            assert row.values <= row.bound + SIGMAS * row.std_error
            assert 0.5 <= row.true_bits <= 1
        assert (np.diff([row.true_bits for row in rows]) > -1e-9).all()


def test_values_of_a_boolean_are_its_true_bits() -> None:
    """For booleans, the simulated share of right values is the exact share of right true bits."""
    params = Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean")
    for row in inference_attack(params, reports=[1, 7, 40], devices=20_000, seed=2).memoized:
        assert abs(row.values - row.true_bits) <= SIGMAS * math.sqrt(0.25 / 20_000)


@pytest.mark.slow
def test_the_permanent_response_limits_what_many_reports_reveal() -> None:
    """If the permanent response is redrawn, 1,000 reports reveal the true bits and the value.

    With a permanent response, they reveal the response, which differs from the true bits. The
    ceiling is the share of values that their bits determine.
    """
    params = Params.profile("balanced")
    exposure = inference_attack(params, devices=1000, seed=1)
    memoized, redrawn = exposure.memoized[-1], exposure.redrawn[-1]
    error = SIGMAS * math.sqrt(0.25 / 1000)
    assert abs(redrawn.values - exposure.ceiling) < error
    assert redrawn.true_bits == pytest.approx(1)
    assert memoized.values + error < redrawn.values
    assert memoized.true_bits == pytest.approx(1 - (params.f1 + params.f0) / 2)
    assert memoized.permanent_bits == pytest.approx(1)


def test_ceiling_is_the_share_of_different_patterns() -> None:
    """Of candidates with equal bits, the attack can name one, so the ceiling counts patterns.

    A seed repeats the result.
    """
    bits = {get_encoder(SMALL).encode(f"candidate{number:06}.com", 0) for number in range(10)}
    first, same, different = (
        inference_attack(SMALL, reports=[1], devices=10, candidates=10, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first.ceiling == len(bits) / 10
    assert first == same != different


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"reports": []}, "reports must have at least one number"),
        ({"reports": [0]}, "reports must be an integer of at least 1"),
        ({"reports": [1, 1]}, "reports must grow, got 1 after 1"),
        ({"devices": 9}, r"devices must be an integer in \[10, 1,000,000\], got 9"),
        ({"candidates": 1}, r"candidates must be an integer in \[2, 1,000,000\], got 1"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers: dict[str, Any], sentence: str) -> None:
    """Numbers outside their range, and numbers of reports that do not increase, are errors."""
    with pytest.raises(ParamsError, match=sentence):
        inference_attack(SMALL, **numbers)
