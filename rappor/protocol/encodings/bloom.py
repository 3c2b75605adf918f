"""The Bloom encoding of strings: h hash functions set bits of a Bloom filter of k bits.

Each cohort has its own hash functions ([EPK14] section 2). Two strings that collide in one cohort
seldom collide in all cohorts, so counts of several cohorts distinguish them.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import mmh3

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value
from rappor.protocol.encodings.encoding import Encoding, EncodingParams, describe_normalizer
from rappor.protocol.normalizers import normalize
from rappor.protocol.parts import extract_part

DEFAULT_LAYOUT: Final = "rappor-1"
"""Name of the hash layout of protocol version 1, which `hash_to_bits` computes. The name of any
other layout is part of the fingerprint."""

DIGEST_BYTES: Final = 16
"""Length of the SHA-256 prefix that MurmurHash3 hashes, in bytes. Two strings with equal prefixes
have equal bits in all cohorts; to find two such strings takes about 2^64 attempts."""


class Bloom(Encoding):
    """Strings: each value sets up to h of k bits, chosen by the hash functions of the cohort."""

    name = "bloom"
    is_hashed = True
    supports_normalizer = True
    supports_parts = True
    min_bits = 2

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> None:
        """Return None: the number of bits of a Bloom filter is a free choice."""

    def check_can_encode(self) -> None:
        """Raise ParamsError for a foreign hash layout or a normalizer that is not installed."""
        check_can_hash(self.params)

    def find_set_bits(self, value: object, cohort: int) -> list[int]:
        """Return the bits of the reported part of a text, which is hashed in UTF-8."""
        self.check_can_encode()
        return hash_to_bits(self.extract_reported_part(value).encode(), cohort, self.params)

    def extract_reported_part(self, value: object) -> str:
        """Return the part of the normalized text that the parameter set reports."""
        return extract_part(self.params.part, normalize(self.params.normalize, value))

    def is_representable(self, value: object) -> bool:
        """Return whether normalizing keeps any text; without a normalizer every text fits."""
        return self.params.normalize == "none" or normalize(self.params.normalize, value) != ""

    @property
    def true_bit_counts(self) -> range:
        """One to h bits: two hash functions may choose the same bit."""
        return range(1, min(self.params.h, self.params.k) + 1)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the privacy loss between two Bloom filters of 1 to h bits each, in nats.

        Two filters differ most if they are disjoint: h bits in each direction, loss h (up + down)
        ([EPK14] Theorem 1). Disjoint filters of h bits exist if k >= 2 h. The paper does not treat
        fewer bits. Then the larger filter has min(h, k - 1) bits, and the other filter has the
        remaining bits, at least one.
        """
        # k = 3, h = 2: one filter may have 2 bits and the other the remaining 1.
        more = min(self.params.h, self.params.k - 1)
        fewer = min(self.params.h, self.params.k - more)
        return max(more * up + fewer * down, fewer * up + more * down)

    @property
    def description(self) -> str:
        """A text, and the number of bits to which it is hashed."""
        params = self.params
        return f"a text{describe_normalizer(params)}, hashed to {params.h} of {params.k} bits"


def check_can_hash(params: EncodingParams) -> None:
    """Raise ParamsError for a foreign hash layout or a normalizer that is not installed."""
    if params.layout != DEFAULT_LAYOUT:
        raise ParamsError(
            f"layout must be {DEFAULT_LAYOUT} to encode, got {format_value(params.layout)}"
        )
    normalize(params.normalize, "")  # raises MissingExtraError without its library


def hash_to_bits(value: bytes, cohort: int, params: EncodingParams) -> list[int]:
    """Return the bit index of each hash function. Some indices may be equal.

    SHA-256 decides which strings are equal. MurmurHash3_x86_32 spreads them over cohorts: hash
    function j of cohort c has the seed c h + j.
    """
    # MurmurHash3 alone can be inverted: anybody could write a string with the bits of another.
    digest = hashlib.sha256(value).digest()[:DIGEST_BYTES]
    seeds = range(cohort * params.h, (cohort + 1) * params.h)
    # The product maps a uniform 32-bit integer to 0..k-1 without the bias of a modulo.
    return [mmh3.hash(digest, seed, signed=False) * params.k >> 32 for seed in seeds]
