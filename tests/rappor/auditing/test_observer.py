"""The inference attack: exact shares by enumeration, published figures, and the bounds."""

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
SIGMAS = 6.2  # of a normal distribution: a false alarm once in 1e9


@pytest.mark.parametrize(("params", "n"), [(PAPER, 207), (BROWSER, 51)])
def test_published_figures_of_averaging_come_out(params: Params, n: int) -> None:
    """All 128 permanent bits are known with probability .99 after 207 reports, or 51."""
    assert compute_permanent_bits_known(params, n) ** 128 >= 0.99
    assert compute_permanent_bits_known(params, n - 1) ** 128 < 0.99
    assert reports_to_recover(params) == n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_bits_recovered_are_those_of_all_histories(n: int) -> None:
    """Enumeration of all coins gives the share of right guesses of a true bit."""
    kept = inference_attack(SMALL, reports=[n], devices=10, candidates=2).memoised[0]
    distributions = []
    for truth in (0, 1):
        ones = [Fraction(0)] * (n + 1)
        for history, probability in enumerate_reports(bytes([truth]), SMALL, n).items():
            ones[sum(report & 1 for report in history)] += probability
        distributions.append(ones)
    right = sum(max(zero, one) for zero, one in zip(*distributions, strict=True)) / 2
    assert kept.true_bits == pytest.approx(float(right), rel=1e-12)


def test_without_noise_on_reports_the_permanent_response_is_all_there_is() -> None:
    """With p = 0 and q = 1 one report reveals every permanent bit, and more add nothing."""
    bare = Params(k=16, f=0.5, p=0, q=1)
    first, later = inference_attack(
        bare, reports=[1, 50], devices=50, candidates=8, seed=3
    ).memoised
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
    """With n reports the share of named values is at most e^eps_n / (C - 1 + e^eps_n)."""
    exposure = inference_attack(params, devices=1000, candidates=50, seed=5)
    for rows in (exposure.memoised, exposure.redrawn):
        for row in rows:
            assert row.values <= row.bound + SIGMAS * row.std_error
            assert 0.5 <= row.true_bits <= 1
        assert (np.diff([row.true_bits for row in rows]) > -1e-9).all()


def test_boolean_observer_is_as_good_as_it_can_be() -> None:
    """The observer names one of two values as often as (1 + total variation) / 2."""
    params = Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean")
    for row in inference_attack(params, reports=[1, 7, 40], devices=20_000, seed=2).memoised:
        assert abs(row.values - row.true_bits) <= SIGMAS * math.sqrt(0.25 / 20_000)


@pytest.mark.slow
def test_only_the_permanent_response_keeps_values_back() -> None:
    """1,000 reports reveal every value that the bits determine, if the response is redrawn."""
    params = Params.profile("balanced")
    exposure = inference_attack(params, devices=1000, seed=1)
    kept, bare = exposure.memoised[-1], exposure.redrawn[-1]
    error = SIGMAS * math.sqrt(0.25 / 1000)
    assert abs(bare.values - exposure.ceiling) < error
    assert bare.true_bits == pytest.approx(1)
    assert kept.values + error < bare.values
    assert kept.true_bits == pytest.approx(1 - (params.f1 + params.f0) / 2)
    assert kept.permanent_bits == pytest.approx(1)


def test_ceiling_counts_patterns() -> None:
    """Candidates with equal bits share one chance to be named, and a seed repeats the result."""
    bits = {get_encoder(SMALL).encode(f"candidate{number:06}.com", 0) for number in range(10)}
    first, same, other = (
        inference_attack(SMALL, reports=[1], devices=10, candidates=10, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first.ceiling == len(bits) / 10
    assert first == same != other


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
def test_observing_checks_its_ranges(numbers: dict[str, Any], sentence: str) -> None:
    """Numbers outside their range, and numbers of reports that do not increase, are errors."""
    with pytest.raises(ParamsError, match=sentence):
        inference_attack(SMALL, **numbers)
