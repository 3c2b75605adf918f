"""The compiled loops of the simulation: true bits, sums over devices, and draws of values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rappor.candidates.compiled_hashing import compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.simulation import compiled_loops

WIDTHS = [1, 7, 8, 9, 64, 100, 128, 129, 2040]


@pytest.mark.parametrize("h", [1, 3])
@pytest.mark.parametrize("k", WIDTHS)
def test_bits_are_those_of_the_devices_encoder(k: int, h: int) -> None:
    """Every string in every cohort has the bits of the device's encoder."""
    params = Params(k=max(k, 2), h=h, m=5, f=0.5, p=0.25, q=0.75)
    texts = ["", "a", "vim", "\u00e4"]
    values, cohorts = np.divmod(np.arange(20), 5)
    packed = np.zeros((20, params.n_bytes), dtype=np.uint8)
    words = hash_texts(Texts.from_bytes([text.encode() for text in texts]))
    compiled_loops.set_hashed_bits(words, values, cohorts.astype(np.uint16), params.k, h, packed)
    encode = get_encoder(params).encode
    expected = [encode(texts[v], j) for v, j in zip(values, cohorts.tolist(), strict=True)]
    assert [row.tobytes() for row in packed] == expected


def test_cells_add_the_devices_that_set_them() -> None:
    """Each device adds 1 to each distinct bit of its string in its cohort.

    Two of the three hashes of a string may choose the same bit, which then counts once.
    """
    params = Params(k=5, h=3, m=4, f=0.5, p=0.25, q=0.75)
    digests = np.random.default_rng(2).integers(0, 2**32, (30, 4), dtype=np.uint32)
    devices = np.random.default_rng(3).integers(0, 100, (30, 4))
    expected = np.zeros((4, 5), dtype=np.int64)
    cells = compute_cells(digests, params)
    for s, j in itertools.product(range(30), range(4)):
        for cell in {int(c) for c in cells[s, 3 * j : 3 * j + 3]} - {-1}:
            expected[j, cell - 5 * j] += devices[s, j]
    bit_counts = np.zeros((4, 5), dtype=np.int64)
    compiled_loops.add_hashed_devices(cells, devices, 3, bit_counts.reshape(-1))
    assert np.array_equal(bit_counts, expected)


@pytest.mark.parametrize("n", [1, 2, 5, 1000])
def test_drawn_values_are_those_of_a_search(n: int) -> None:
    """`pick_values` equals numpy's search of a random number in the cumulative weights.

    Random numbers are equal to every step of the cumulative weights, just below it, and random. The
    first value has the weight 0 and is never drawn.
    """
    weights = np.append(0.0, np.random.default_rng(n).random(n) ** 4)
    weights[-1] = 1.0
    steps = np.cumsum(weights)
    steps /= steps[-1]
    bits = 6
    guide = np.searchsorted(steps, np.arange(64) / 64, side="right").astype(np.int32)
    at_steps = np.ceil(steps[:-1] * 2**53).astype(np.uint64)
    near = np.concatenate([at_steps, at_steps[at_steps > 0] - 1, [0, 2**53 - 1]]).astype(np.uint64)
    words = np.concatenate(
        [near << np.uint64(11), np.random.default_rng(1).integers(0, 2**64, 500, dtype=np.uint64)]
    )
    values = np.empty(len(words), dtype=np.int64)
    compiled_loops.pick_values(words, guide, bits, steps, values)
    fractions = (words >> np.uint64(11)) / 2.0**53
    assert np.array_equal(values, np.searchsorted(steps, fractions, side="right"))
    assert values.min() == 1
