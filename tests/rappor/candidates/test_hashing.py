"""Hashes of many strings: compiled and uncompiled code sets the bits that a device sets."""

from __future__ import annotations

import hashlib
from typing import Any

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rappor.candidates.compiled_hashing import add_row_values, compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import compute_cells_uncompiled, hash_texts
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
"""Noise of the parameters. Bits of candidates do not depend on the noise."""


def test_every_seed_gives_the_hash_of_mmh3() -> None:
    """The compiled code computes the bits of the library mmh3 for all 2^20 seeds of the protocol.

    Devices use mmh3. Hash number i of cohort j has the seed 16 j + i if h = 16. The protocol has at
    most 65,536 cohorts of 16 hash functions. A row contains the cells of a cohort. If two hashes of
    a cohort choose the same bit, the second one has a negative number, so that the bit counts once.
    """
    params = Params(k=2040, h=16, m=65536, **NOISE)
    value = "ä€😀".encode()
    digest = hashlib.sha256(value).digest()[:16]
    expected = np.array([mmh3.hash(digest, seed, signed=False) for seed in range(2**20)])
    bits = expected.astype(np.uint64) * np.uint64(2040) >> np.uint64(32)
    rows = compute_cells(hash_texts(Texts.from_bytes([value])), params)[0].reshape(65536, 16)
    is_first = rows >= 0  # the first hash that chooses the bit
    bits_of_rows = rows - np.arange(65536)[:, None] * 2040
    expected_bits = bits.reshape(65536, 16).astype(np.int64)
    assert np.array_equal(bits_of_rows[is_first], expected_bits[is_first])
    for row, row_bits in zip(rows[:1000], expected_bits, strict=False):
        assert (row >= 0).sum() == len(set(row_bits.tolist()))


@given(st.lists(st.text(max_size=70), max_size=5), st.integers(1, 4), st.integers(2, 300))
def test_bits_equal_those_of_the_device(values: list[str], h: int, k: int) -> None:
    """The cells of a string are the bits that a device sets for it, in each cohort.

    `compute_cells_uncompiled` hashes few strings, for which loading the compiler takes longer, and
    must agree. Cell j k + i is bit i of cohort j.
    """
    params = Params(k=k, h=h, m=7, **NOISE)
    words = hash_texts(Texts.from_bytes([text.encode() for text in values]))
    cells = compute_cells(words, params)
    assert np.array_equal(cells, compute_cells_uncompiled(words, params))
    assert cells.shape == (len(values), 7 * h)
    encode = get_encoder(params).encode
    for row, text in zip(cells.reshape(-1, 7, h), values, strict=True):
        for cohort in range(7):
            packed = np.frombuffer(encode(text, cohort), dtype=np.uint8)
            bits = np.flatnonzero(np.unpackbits(packed, count=k, bitorder="little"))
            assert sorted(row[cohort][row[cohort] >= 0] - cohort * k) == bits.tolist()


def test_hash_words_equal_the_mixed_sha256() -> None:
    """The words are the first 16 bytes of SHA-256, after the first mixing step of MurmurHash3.

    The first step multiplies each word of 32 bits by the constant c1, rotates it by 15 bits and
    multiplies it by c2. It does not depend on the seed, so it is computed once for all hash
    functions. Values have every length from 0 to 399 bytes, hence one to seven blocks of SHA-256. A
    selection of values has the same words.
    """
    values = [bytes(range(n % 251)) * (1 + n // 251) for n in range(400)]
    words = hash_texts(Texts.from_bytes(values))
    first_bytes = np.frombuffer(
        b"".join(hashlib.sha256(value).digest()[:16] for value in values), dtype="<u4"
    )
    mixed = first_bytes.astype(np.uint64) * 0xCC9E2D51 & 0xFFFFFFFF  # c1
    mixed = (mixed << np.uint64(15) | mixed >> np.uint64(17)) & 0xFFFFFFFF
    assert np.array_equal(words.ravel(), mixed * 0x1B873593 & 0xFFFFFFFF)  # c2
    chosen = np.array([399, 3, 55, 56, 57, 0])
    assert np.array_equal(hash_texts(Texts.from_bytes(values).select(chosen)), words[chosen])


@pytest.mark.parametrize(("k", "h", "m"), [(2, 1, 1), (7, 3, 5), (128, 1, 128), (2040, 16, 2)])
def test_row_values_are_added_by_bit(k: int, h: int, m: int) -> None:
    """`add_row_values` adds up the rows of a table at the bits of each string.

    A row belongs to a cell, and a bit that two hashes choose counts once. The screening of a decode
    sums de-biased counts and variances in this way, here two columns of integers. In `padded`, the
    last row is 0: the cell -1 of a repeated bit selects it.
    """
    params = Params(k=k, h=h, m=m, **NOISE)
    words = hash_texts(Texts.from_bytes([f"value {i}".encode() for i in range(700)]))
    table = np.random.default_rng(1).integers(-1000, 1000, size=(m * k, 2)).astype(float)
    sums = np.zeros((700, 2))
    add_row_values(words, params, table, sums)
    padded = np.vstack([table, np.zeros((1, 2))])
    assert np.array_equal(sums, padded[compute_cells(words, params)].sum(axis=1))
