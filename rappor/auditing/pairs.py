"""Which values to ask about: pairs that differ in as many bits as the encoding allows.

The loss of a metric is that between the two values whose bits differ most: for strings, two
Bloom filters of h bits each without a common one. A string's bits change with the cohort. So the
search looks for pairs that differ in as many cohorts as possible and together set every bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import numpy as np

from rappor.candidates.murmur3 import bloom_cells
from rappor.candidates.sha256 import digest_texts
from rappor.candidates.texts import Texts
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.encodings import encoder, encoding_of
from rappor.protocol.normalizers import LONGEST, NORMALIZERS, normalize
from rappor.protocol.params import Params

_LEAST: Final = 8
"""Pairs of strings at least: a fault that spares the bits of one pair still meets the others."""

_POOL: Final = 1024
"""Pairs of strings at least that the search chooses from.

The best 8 of 1,024 differ in all their bits in every cohort of the profiles, and in 97 % of them
where bits are few and cohorts many (k = 8, m = 64).
"""

_POOL_PER_BIT: Final = 16
"""Pairs for each bit, so that chosen ones set them all: at k = 1,024 the first 25 do."""

_COHORTS: Final = 128
"""Hash functions times cohorts at most that the search looks at: m of the profiles."""


def choose_pairs(params: Params) -> list[tuple[str, str]]:
    """Return the pairs of values, as texts, that an observer has to distinguish.

    Of strings, the pairs that differ most, until each bit is set by some value.
    """
    if contrasts := encoding_of(params).contrasts:
        return contrasts
    pool = 2 * max(_POOL, _POOL_PER_BIT * params.k)
    texts = [f"audit{number:06}.com" for number in range(pool)]  # of one length, and a domain
    values = Texts.of([normalize(params.normalize, text).encode() for text in texts])
    cohorts = min(params.m, max(1, _COHORTS // params.h))
    few = dataclasses.replace(params, m=cohorts)
    cells = bloom_cells(digest_texts(values), few).reshape(pool, cohorts, params.h)
    differing = np.zeros(pool // 2, dtype=np.int64)
    covered = np.zeros((pool // 2, params.k), dtype=np.bool_)
    for j in range(cohorts):
        here = cells[:, j]
        bits = np.zeros((pool, params.k), dtype=np.bool_)
        rows, hashes = np.nonzero(here >= 0)
        bits[rows, here[rows, hashes] - j * params.k] = True
        differing += (bits[0::2] ^ bits[1::2]).sum(axis=1)
        covered |= bits[0::2] | bits[1::2]
    chosen: list[int] = []
    missing = np.ones(params.k, dtype=np.bool_)
    for pair in np.argsort(-differing, kind="stable").tolist():
        if len(chosen) < _LEAST or (missing & covered[pair]).any():
            chosen.append(pair)
            missing &= ~covered[pair]
        if len(chosen) >= _LEAST and not missing.any():
            break
    return [(texts[2 * pair], texts[2 * pair + 1]) for pair in chosen]


def random_values(params: Params, n: int, rng: np.random.Generator) -> list[str]:
    """Return n texts of 1 to 64 characters; none for encodings that take no strings."""
    if not encoding_of(params).hashed:
        return []
    sizes = rng.integers(1, 65, size=n)
    return ["".join(rng.choice(_LETTERS, size=size)) for size in sizes]


def special_values(params: Params, rng: np.random.Generator) -> list[str]:
    """Return texts that programs treat apart: empty, just over 256, the longest, in no category."""
    if encoding_of(params).hashed:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        long = ["".join(rng.choice(letters, size)) for size in (257, LONGEST)]
        return ["", *long, *params.categories[:1]]
    return list(encoding_of(params).unlisted)


_LETTERS: Final = tuple("abcdefghijXYZ0123.-\u00e9\u00df\u6f22\U0001f600")
"""Characters of one to four bytes."""


def spellings(params: Params) -> list[tuple[str, str]]:
    """Return texts beside other ones that the normalizer makes equal; none without a normalizer."""
    texts = ("caf\u00e9.com", "audit.com", *params.categories)
    both = [(text, NORMALIZERS[params.normalize].respell(text)) for text in texts]
    return [
        (text, other)
        for text, other in both
        if text != other and normalize(params.normalize, text) == normalize(params.normalize, other)
    ]


class Truth:
    """The true bits of values; of pairs, position 2i and 2i + 1 are the values of pair i."""

    def __init__(self, params: Params, values: Iterable[str]) -> None:
        """Keep the values; bits are computed on demand."""
        self.values = list(values)
        self._params = params
        self._encoder = encoder(params)
        self._cache: dict[int, bytes] = {}

    def check(self) -> None:
        """Raise ReportError for a text that is no value."""
        for number in range(len(self.values)):
            self._bits_of(number * self._params.m)

    def bits(self, values: Integers, cohorts: Integers) -> Booleans:
        """Return (n, k) bool, the bits of n values (by position) in n cohorts."""
        codes, where = np.unique(values * self._params.m + cohorts, return_inverse=True)
        packed = b"".join(self._bits_of(code) for code in codes.tolist())
        return unpack(packed, self._params)[where]

    def _bits_of(self, code: int) -> bytes:
        if code not in self._cache:
            value, cohort = divmod(code, self._params.m)
            parsed = self._encoder.parse_value(self.values[value])
            self._cache[code] = self._encoder.encode(parsed, cohort)
        return self._cache[code]


def unpack(packed: bytes, params: Params) -> Booleans:
    """Return (n, k) bool of n packed patterns, one after the other."""
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(-1, params.n_bytes)
    return np.unpackbits(rows, axis=1, count=params.k, bitorder="little").astype(np.bool_)
