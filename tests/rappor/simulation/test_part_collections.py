"""Simulated collections of a metric with parts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from rappor import Params, ParamsError, Population
from rappor.protocol.parts import Part
from rappor.simulation import simulate_counts, simulate_parts

PARAMS = dataclasses.replace(Params.profile("balanced"), m=4)
PARTS = (Part("prefix:1", 0.2), Part("prefix:3", 0.3), Part("whole"))
PETS = Population(["kitten", "kit", "dog"], [2, 1, 1])


def test_every_device_reports_one_part() -> None:
    """The reports of all parts sum to the devices, and each part has its share of the registry."""
    drawn = simulate_parts(PETS, PARAMS, PARTS, n_reports=1e5, seed=1, metric="pet")
    assert [counts.params.part for counts in drawn] == ["prefix:1", "prefix:3", "whole"]
    assert {counts.metric for counts in drawn} == {"pet"}
    numbers = [counts.n_reports for counts in drawn]
    assert sum(numbers) == 100_000
    for n, share in zip(numbers, (0.2, 0.3, 0.5), strict=True):
        binomial = stats.binom(100_000, share)
        assert binomial.ppf(5e-10) <= n <= binomial.isf(5e-10)


def test_a_part_is_a_collection_of_prefixes() -> None:
    """Devices of the part "prefix:1" set the bits of the first character of their string."""
    initials = Population(["k", "d"], [3, 1])
    params = dataclasses.replace(PARAMS, part="prefix:1", f=0.0, p=0.0, q=1.0, insecure=True)
    (of_part, *_) = simulate_parts(PETS, params, PARTS, n_reports=1e5, seed=1)
    of_initials = simulate_counts(initials, of_part.params, n_reports=1e5, seed=2)
    assert np.array_equal(of_part.bit_counts > 0, of_initials.bit_counts > 0)


def test_a_seed_repeats_all_parts() -> None:
    """The same seed gives the same counts of all parts, and another seed gives other counts."""
    once = simulate_parts(PETS, PARAMS, PARTS, n_reports=1e4, seed=1)
    again = simulate_parts(PETS, PARAMS, PARTS, n_reports=1e4, seed=1)
    other_seed = simulate_parts(PETS, PARAMS, PARTS, n_reports=1e4, seed=2)
    assert list(once) == list(again)
    assert once[2] != other_seed[2]


def test_parts_without_the_whole_string_are_refused() -> None:
    """The last part of a metric must be the whole string."""
    with pytest.raises(ParamsError, match="and then whole"):
        simulate_parts(PETS, PARAMS, PARTS[:2], n_reports=10)
