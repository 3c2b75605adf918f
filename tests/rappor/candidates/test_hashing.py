"""Hashing in bulk: the compiled kernels set the bits that the device sets."""

from __future__ import annotations

import hashlib
from typing import Any

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.candidates.few import few_cells
from rappor.candidates.murmur3 import add_rows, bloom_cells
from rappor.candidates.sha256 import digest_texts
from rappor.candidates.texts import Texts
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}


def test_every_seed_gives_the_hash_of_mmh3() -> None:
    """All 2^20 seeds that a protocol can have, k = 2040 and h = 16."""
    params = Params(k=2040, h=16, m=65536, **NOISE)
    value = "ä€😀".encode()
    digest = hashlib.sha256(value).digest()[:16]
    expected = np.array([mmh3.hash(digest, seed, signed=False) for seed in range(2**20)])
    bits = expected.astype(np.uint64) * np.uint64(2040) >> np.uint64(32)
    rows = bloom_cells(digest_texts(Texts.of([value])), params)[0].reshape(65536, 16)
    kept = rows >= 0
    found = rows - np.arange(65536)[:, None] * 2040
    assert np.array_equal(found[kept], bits.reshape(65536, 16).astype(np.int64)[kept])
    for row, own in zip(rows[:1000], bits.reshape(65536, 16), strict=False):
        assert (row >= 0).sum() == len(set(own.tolist()))  # what is dropped is a repetition


@given(st.lists(st.text(max_size=70), max_size=5), st.integers(1, 4), st.integers(2, 300))
def test_bits_are_those_of_the_device(values: list[str], h: int, k: int) -> None:
    """For any strings and shapes, also for none, compiled or not."""
    params = Params(k=k, h=h, m=7, **NOISE)
    words = digest_texts(Texts.of([text.encode() for text in values]))
    cells = bloom_cells(words, params)
    assert np.array_equal(cells, few_cells(words, params))
    assert cells.shape == (len(values), 7 * h)
    encode = encoder(params).encode
    for row, text in zip(cells.reshape(-1, 7, h), values, strict=True):
        for cohort in range(7):
            packed = np.frombuffer(encode(text, cohort), dtype=np.uint8)
            own = np.flatnonzero(np.unpackbits(packed, count=k, bitorder="little"))
            assert sorted(row[cohort][row[cohort] >= 0] - cohort * k) == own.tolist()


def test_compiled_sha256_is_that_of_the_standard_library() -> None:
    """Strings alike in their digest's first bytes alone share words, at every length and place."""
    values = [bytes(range(n % 251)) * (1 + n // 251) for n in range(400)]
    words = digest_texts(Texts.of(values))
    heads = np.frombuffer(
        b"".join(hashlib.sha256(each).digest()[:16] for each in values), dtype="<u4"
    )
    mixed = heads.astype(np.uint64) * 0xCC9E2D51 & 0xFFFFFFFF
    mixed = (mixed << np.uint64(15) | mixed >> np.uint64(17)) & 0xFFFFFFFF
    assert np.array_equal(words.ravel(), mixed * 0x1B873593 & 0xFFFFFFFF)
    some = np.array([399, 3, 55, 56, 57, 0])
    assert np.array_equal(digest_texts(Texts.of(values).take(some)), words[some])


@pytest.mark.parametrize(("k", "h", "m"), [(2, 1, 1), (7, 3, 5), (128, 1, 128), (2040, 16, 2)])
def test_rows_are_added_up_as_the_bits_say(k: int, h: int, m: int) -> None:
    """A bit that two hashes of a cohort set counts once."""
    params = Params(k=k, h=h, m=m, **NOISE)
    words = digest_texts(Texts.of([f"value {i}".encode() for i in range(700)]))
    table = np.random.default_rng(1).integers(-1000, 1000, size=(m * k, 2)).astype(float)
    sums = np.zeros((700, 2))
    add_rows(words, params, table, sums)
    padded = np.vstack([table, np.zeros((1, 2))])
    assert np.array_equal(sums, padded[bloom_cells(words, params)].sum(axis=1))
