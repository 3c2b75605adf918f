"""Values that an audit sends to an encoder, and their true bits.

The input is the parameters of a metric. The output is texts (pairs, random values, special values,
spellings) and their bits (`TrueBits`).

The loss of a metric is the loss between the two values whose bits differ most. So an audit sends
*pairs*: two values that differ in as many bits as the encoding allows. For strings, these are two
Bloom filters of h bits each that have no bit in common. The bits of a string change with the
cohort. So `choose_pairs` searches for pairs that differ in as many cohorts as possible and together
set every bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import numpy as np

from rappor.candidates.compiled_hashing import compute_cells
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.encodings import get_encoder, get_encoding
from rappor.protocol.normalizers import FIELD_SEPARATOR, MAX_TEXT_BYTES, NORMALIZERS, normalize
from rappor.protocol.params import Params
from rappor.protocol.tuples import list_normalizers, split_fields

_MIN_PAIRS: Final = 8
"""Smallest number of pairs of strings.

Another pair has other bits, so a fault that does not touch one pair's bits shows in the others.
More pairs leave fewer devices for each value.
"""

_MIN_POOL: Final = 1024
"""Smallest number of pairs of strings among which the search chooses.

The best 8 of 1,024 pairs differ in all their bits in every cohort of the profiles, and in 97 % of
them where bits are few and cohorts many (k = 8, m = 64).
"""

_POOL_PER_BIT: Final = 16
"""Number of pairs in the pool for each bit, so that the chosen pairs set every bit.

At k = 1,024 the first 25 pairs set all bits.
"""

_MAX_HASH_COLUMNS: Final = 128
"""Largest product of hash functions and cohorts (h m) for which the search computes bits.

The profiles have h = 1 and m = 128 and are computed whole. With more, only the first cohorts are
compared. Time and memory of the search grow with it.
"""


def choose_pairs(params: Params) -> list[tuple[str, str]]:
    """Choose the pairs of values, as texts, that an observer must distinguish.

    An encoding with few values has its own pairs. For strings, random pairs are added in the order
    of their difference, largest first, until at least `_MIN_PAIRS` are chosen and some value sets
    each bit.
    """
    if contrasts := get_encoding(params).most_different_pairs:
        return contrasts
    pool = 2 * max(_MIN_POOL, _POOL_PER_BIT * params.k)
    # All texts have one length, so that a leak of the length does not depend on the pair. They are
    # domains, so that every normalizer keeps them distinct.
    texts = [repeat_in_fields(params, f"audit{number:06}.com") for number in range(pool)]
    values = Texts.from_bytes([normalize(params.normalize, text).encode() for text in texts])
    cohorts = min(params.m, max(1, _MAX_HASH_COLUMNS // params.h))
    few_cohorts = dataclasses.replace(params, m=cohorts)
    # (texts, cohorts, h): the number j k + i of bit i in cohort j. -1 stands for a hash function
    # that gives a bit which another hash function of the same text has already set.
    cells = compute_cells(hash_texts(values), few_cohorts).reshape(pool, cohorts, params.h)
    # By pair: number of differing bits over all cohorts, and the bits that either text sets.
    n_differing = np.zeros(pool // 2, dtype=np.int64)
    is_set = np.zeros((pool // 2, params.k), dtype=np.bool_)
    for j in range(cohorts):
        cells_of_cohort = cells[:, j]
        bits = np.zeros((pool, params.k), dtype=np.bool_)
        rows, hashes = np.nonzero(cells_of_cohort >= 0)
        bits[rows, cells_of_cohort[rows, hashes] - j * params.k] = True
        n_differing += (bits[0::2] ^ bits[1::2]).sum(axis=1)
        is_set |= bits[0::2] | bits[1::2]
    chosen: list[int] = []
    is_missing = np.ones(params.k, dtype=np.bool_)
    for pair in np.argsort(-n_differing, kind="stable").tolist():
        if len(chosen) < _MIN_PAIRS or (is_missing & is_set[pair]).any():
            chosen.append(pair)
            is_missing &= ~is_set[pair]
        if len(chosen) >= _MIN_PAIRS and not is_missing.any():
            break
    return [(texts[2 * pair], texts[2 * pair + 1]) for pair in chosen]


def repeat_in_fields(params: Params, text: str) -> str:
    """Return a value whose every field is the text, as `Encoding.parse_value` reads it.

    The value of a metric without fields is the text itself.
    """
    return FIELD_SEPARATOR.join([text] * max(1, len(params.field_names)))


def split_items(params: Params, text: str) -> list[str]:
    """Return the items of a set that is given as a text; empty for encodings of one value."""
    encoder = get_encoder(params)
    if not encoder.supports_items:
        return []
    value = encoder.parse_value(text)
    assert isinstance(value, list)
    return [item for item in value if item]


def draw_random_values(params: Params, n: int, rng: np.random.Generator) -> list[str]:
    """Draw n values, each field a text of 1 to 64 characters; none if values are not hashed."""
    if not get_encoding(params).is_hashed:
        return []
    n_fields = max(1, len(params.field_names))
    sizes = rng.integers(1, 65, size=n * n_fields)
    texts = ["".join(rng.choice(_LETTERS, size=size)) for size in sizes]
    starts = range(0, len(texts), n_fields)
    return [FIELD_SEPARATOR.join(texts[start : start + n_fields]) for start in starts]


def list_special_values(params: Params, rng: np.random.Generator) -> list[str]:
    """Return texts that programs often treat specially.

    For strings: the empty text, a text of 257 characters, which is longer than a buffer of 256
    bytes, and the longest text. For other encodings: values outside all categories.
    """
    if get_encoding(params).is_hashed:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        long = ["".join(rng.choice(letters, size)) for size in (257, MAX_TEXT_BYTES)]
        return [repeat_in_fields(params, text) for text in ("", *long)]
    return list(get_encoding(params).unlisted_values)


_LETTERS: Final = tuple("abcdefghijXYZ0123.-\u00e9\u00df\u6f22\U0001f600")
"""Characters whose UTF-8 encoding has one to four bytes."""


def choose_spellings(params: Params) -> list[tuple[str, str]]:
    """Return pairs of different texts that the normalizer makes equal, if any.

    The normalizer `none` makes no two texts equal, so the result is empty.
    """
    texts = [repeat_in_fields(params, text) for text in ("caf\u00e9.com", "audit.com")]
    spellings = [(text, _respell(params, text)) for text in (*texts, *params.categories)]
    return [
        (text, respelled)
        for text, respelled in spellings
        if text != respelled
        and normalize(params.normalize, text) == normalize(params.normalize, respelled)
    ]


def _respell(params: Params, text: str) -> str:
    """Return a value in another spelling: each field is respelled for its own normalizer."""
    fields = split_fields(text)
    names = list_normalizers(params.normalize, len(fields))
    return FIELD_SEPARATOR.join(
        NORMALIZERS[name].respell(field) for name, field in zip(names, fields, strict=True)
    )


class TrueBits:
    """The true bits of a list of values, by cohort.

    Values are given by their index in the list. Values 2i and 2i + 1 are the two values of pair i.
    """

    def __init__(self, params: Params, values: Iterable[str]) -> None:
        """Store the values. Their bits are computed on demand."""
        self.values = list(values)
        self._params = params
        self._encoder = get_encoder(params)
        # Packed bits by code, where the code of a value in a cohort is value * m + cohort.
        self._cache: dict[int, bytes] = {}

    def check(self) -> None:
        """Raise ReportError if a text is not a valid value."""
        for number in range(len(self.values)):
            self._encode_bits(number * self._params.m)

    def bits(self, values: Integers, cohorts: Integers) -> Booleans:
        """Return the (n, k) bool bits of n values, given by index, in n cohorts."""
        # Many devices have the same value and cohort: encode each combination once.
        codes, rows = np.unique(values * self._params.m + cohorts, return_inverse=True)
        packed = b"".join(self._encode_bits(code) for code in codes.tolist())
        return unpack(packed, self._params)[rows]

    def _encode_bits(self, code: int) -> bytes:
        """Return the packed bits of the value and cohort with this code, from the cache."""
        if code not in self._cache:
            value, cohort = divmod(code, self._params.m)
            parsed = self._encoder.parse_value(self.values[value])
            self._cache[code] = self._encoder.encode(parsed, cohort)
        return self._cache[code]


def unpack(packed: bytes, params: Params) -> Booleans:
    """Unpack n packed patterns, stored one after the other, into an (n, k) bool array."""
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(-1, params.n_bytes)
    return np.unpackbits(rows, axis=1, count=params.k, bitorder="little").astype(np.bool_)
