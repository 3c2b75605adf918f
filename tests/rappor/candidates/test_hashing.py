"""Hashing in bulk: the arrays and the compiled kernel set the bits that the device sets."""

from __future__ import annotations

import hashlib
from typing import Any

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.candidates import hashing, murmur3
from rappor.candidates.candidates import Candidates
from rappor.candidates.hashing import bits_in_cohorts, bloom_cells, digest_strings
from rappor.protocol.params import Params

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
VALUES = [b"", b"a", "ä€😀".encode(), b"x" * 1000]


def test_every_seed_gives_the_hash_of_mmh3() -> None:
    """All 2^20 seeds that a protocol can have, by arrays and compiled, k = 2040 and h = 16."""
    params = Params(k=2040, h=16, m=65536, **NOISE)
    words = digest_strings(VALUES[2:3])
    digest = hashlib.sha256(VALUES[2]).digest()[:16]
    expected = np.array([mmh3.hash(digest, seed, signed=False) for seed in range(2**20)])
    bits = expected.astype(np.uint64) * np.uint64(2040) >> np.uint64(32)
    for cells in (bloom_cells(words, params), murmur3.bloom_cells(words, params)):
        rows = cells[0].reshape(65536, 16)
        kept = rows >= 0
        found = rows - np.arange(65536)[:, None] * 2040
        assert np.array_equal(found[kept], bits.reshape(65536, 16).astype(np.int64)[kept])
        for row in rows[:1000]:  # what is dropped is a repetition
            assert len(set(row[row >= 0].tolist())) == (row >= 0).sum()
    assert np.array_equal(bloom_cells(words, params), murmur3.bloom_cells(words, params))


@given(st.lists(st.binary(max_size=70), max_size=5), st.integers(1, 4), st.integers(2, 300))
def test_both_kernels_agree(values: list[bytes], h: int, k: int) -> None:
    """For any strings and shapes, also for none."""
    params = Params(k=k, h=h, m=7, **NOISE)
    words = digest_strings(values)
    cells = bloom_cells(words, params)
    assert cells.shape == (len(values), 7 * h)
    assert np.array_equal(cells, murmur3.bloom_cells(words, params))


@pytest.mark.parametrize(("k", "h", "m"), [(2, 1, 1), (128, 1, 65536), (9, 4, 100)])
def test_a_cohort_of_its_own_is_one_of_all(k: int, h: int, m: int) -> None:
    """Bits of strings in cohorts of their own are those columns of the whole."""
    params = Params(k=k, h=h, m=m, **NOISE)
    words = digest_strings(VALUES)
    cohorts = np.array([0, m - 1, m // 2, m // 3], dtype=np.uint16)
    bits = bits_in_cohorts(words, cohorts, k=params.k, h=params.h)
    whole = bloom_cells(words, params).reshape(4, m, h)
    for row, j in enumerate(cohorts.tolist()):
        cells = whole[row, j]
        assert np.array_equal(bits[row], np.where(cells < 0, -1, cells - j * k))


def test_a_long_list_is_hashed_by_the_compiled_kernel() -> None:
    """It gives the same cells, block by block, as a short list by arrays."""
    params = Params(k=128, h=1, m=65536, **NOISE)
    strings = [f"candidate{i}" for i in range(1025)]
    assert len(strings) * params.m >= hashing.COMPILED_FROM
    found = Candidates.from_list(strings).cells(params, 1000, 1002)
    assert np.array_equal(found, Candidates.from_list(strings[1000:1002]).cells(params, 0, 2))
