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
from rappor.protocol.encodings.encoding import (
    Encoding,
    EncodingParams,
    describe_fields,
    describe_normalizer,
)
from rappor.protocol.normalizers import FIELD_SEPARATOR, normalize, split_normalizers
from rappor.protocol.parts import extract_part
from rappor.protocol.tuples import list_normalizers

DEFAULT_LAYOUT: Final = "rappor-1"
"""Name of the hash layout of protocol version 1, which `hash_to_bits` computes.

A hash layout is the rule from a string and a cohort to bits. Devices support this layout only.
Counts of other software, such as google/rappor, have other layouts. The name of any other layout is
part of the fingerprint, so counts of two layouts never mix.
"""

DIGEST_BYTES: Final = 16
"""Length of the SHA-256 prefix that MurmurHash3 hashes, in bytes. Two strings with equal prefixes
have equal bits in all cohorts. To find two such strings takes about 2^64 attempts."""


class Bloom(Encoding):
    """Strings: each value sets up to h of k bits, chosen by the hash functions of the cohort."""

    name = "bloom"
    is_hashed = True
    supports_normalizer = True
    supports_parts = True
    supports_fields = True
    min_bits = 2

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> None:
        """Return None: the number of bits of a Bloom filter is a free choice."""

    def check_can_encode(self) -> None:
        """Raise ParamsError for a foreign hash layout or a normalizer that is not installed."""
        check_can_hash(self.params)

    def find_set_bits(self, value: object, cohort: int) -> list[int]:
        """Return the bits of a text, which is hashed in UTF-8.

        A metric may report only a part of the text, such as a prefix of some length.
        """
        self.check_can_encode()
        return hash_to_bits(self.extract_reported_part(value).encode(), cohort, self.params)

    def extract_reported_part(self, value: object) -> str:
        """Return the part of the normalized text that the parameter set reports.

        Of a tuple, the result is all normalized fields joined by U+001F, because tuples have no
        parts.
        """
        return extract_part(self.params.part, self.read_text(value))

    def is_representable(self, value: object) -> bool:
        """Return whether the normalized text contains at least one character.

        Example: a normalizer of host names reduces a text without a host to the empty text. Without
        a normalizer every text is representable, also the empty text. A tuple is representable if
        the text of each field is representable and does not contain U+001F.
        """
        if self.params.field_names:
            return self._is_representable_tuple(value)
        return self.params.normalize == "none" or normalize(self.params.normalize, value) != ""

    def _is_representable_tuple(self, value: object) -> bool:
        """Return whether no field contains the separator, or is empty after normalizing."""
        texts = self.normalize_fields(value)
        normalizers = list_normalizers(self.params.normalize, len(texts))
        return all(
            FIELD_SEPARATOR not in text and (text != "" or normalizer == "none")
            for text, normalizer in zip(texts, normalizers, strict=True)
        )

    @property
    def true_bit_counts(self) -> range:
        """One to h bits: two hash functions may choose the same bit."""
        return range(1, min(self.params.h, self.params.k) + 1)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the privacy loss between two Bloom filters of 1 to h set bits each, in nats.

        Every bit that only one of the filters sets adds to the loss. If k >= 2 h, both can have h
        set bits without a common bit, and the loss is h (up + down) ([EPK14] Theorem 1). The paper
        does not treat k < 2 h. There the two filters differ in at most k bits. The loss is
        largest if each of the k bits is set in exactly one filter, and if the value whose bits lose
        more (`up` or `down`) sets as many bits as possible: min(h, k - 1), because the other value
        sets at least one bit. The other value sets the remaining bits.

        Parameters
        ----------
        up : largest loss of one bit that only the first value sets, in nats.
        down : largest loss of one bit that only the second value sets, in nats.
        """
        # Example: k = 3 and h = 2. One filter has 2 set bits, and the other filter has 1.
        n_larger = min(self.params.h, self.params.k - 1)
        n_smaller = min(self.params.h, self.params.k - n_larger)
        # Either value may have the larger filter.
        return max(n_larger * up + n_smaller * down, n_smaller * up + n_larger * down)

    @property
    def description(self) -> str:
        """A text or the fields of a tuple, and the number of bits to which they are hashed."""
        params = self.params
        if params.field_names:
            fields = " and ".join(describe_fields(params))
            return f"{fields} together, hashed to {params.h} of {params.k} bits"
        return f"a text{describe_normalizer(params)}, hashed to {params.h} of {params.k} bits"


def check_can_hash(params: EncodingParams) -> None:
    """Raise ParamsError for a foreign hash layout or a normalizer that is not installed."""
    if params.layout != DEFAULT_LAYOUT:
        raise ParamsError(
            f"layout must be {DEFAULT_LAYOUT} to encode, got {format_value(params.layout)}"
        )
    for name in split_normalizers(params.normalize):
        normalize(name, "")  # raises MissingExtraError without its library


def hash_to_bits(value: bytes, cohort: int, params: EncodingParams) -> list[int]:
    """Return the bit index of each hash function. Some indices may be equal.

    Two hashes run one after the other. SHA-256 gives a digest of the string. MurmurHash3_x86_32
    hashes the digest to a bit: hash function number i = 0 ... h - 1 of cohort j has the seed
    j h + i.
    """
    # MurmurHash3 alone can be inverted, so anybody could construct a string that has the bits of a
    # chosen string in all cohorts. SHA-256 prevents this.
    digest = hashlib.sha256(value).digest()[:DIGEST_BYTES]
    seeds = range(cohort * params.h, (cohort + 1) * params.h)
    # The product maps 32-bit integers to 0..k-1. Each result has floor(2^32 / k) or one more of
    # them, as with a modulo, but no division is needed.
    return [mmh3.hash(digest, seed, signed=False) * params.k >> 32 for seed in seeds]
