"""Bloom: strings, hashed onto h of k bits, other ones in each cohort."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import mmh3

from rappor.base.errors import ParamsError
from rappor.base.ranges import format_value
from rappor.protocol.encodings.encoding import Encoding, normalised_by
from rappor.protocol.encodings.shape import Shape
from rappor.protocol.normalizers import normalize
from rappor.protocol.parts import cut

LAYOUT: Final = "rappor-1"
"""The hash layout of protocol version 1; any other one enters the fingerprint."""

DIGEST_BYTES: Final = 16
"""Of the SHA-256 of a string, the bytes that are hashed on."""


class Bloom(Encoding):
    """Strings: h hashed bits, other ones in each cohort."""

    name = "bloom"
    hashed = True
    normalizes = True
    least_bits = 2

    @classmethod
    def implied_bits(cls, categories: Sequence[str]) -> None:
        """Return None: k is free."""

    def check_values(self) -> None:
        """Refuse parameters whose bits lie elsewhere, or whose normalizer is not installed."""
        if self.params.layout != LAYOUT:
            raise ParamsError(
                f"layout must be {LAYOUT} to encode, got {format_value(self.params.layout)}"
            )
        normalize(self.params.normalize, "")

    def bits(self, value: object, cohort: int) -> list[int]:
        """Return the bits of the reported part of a text, hashed in UTF-8."""
        self.check_values()
        return _hashed(self.reported_part(value).encode(), cohort, self.params)

    def reported_part(self, value: object) -> str:
        """Return the part of a normalised text that devices report."""
        return cut(self.params.part, normalize(self.params.normalize, value))

    def fits(self, value: object) -> bool:
        """Return whether normalising leaves something of a text; without it any text fits."""
        return self.params.normalize == "none" or normalize(self.params.normalize, value) != ""

    @property
    def true_bits(self) -> range:
        """One to h: hashes may meet."""
        return range(1, min(self.params.h, self.params.k) + 1)

    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss between two filters, each of 1 to h bits.

        It is h (up + down) whenever k >= 2h, the paper's case; fewer bits leave less to differ in.
        """
        more = min(self.params.h, self.params.k - 1)  # the other filter is not empty
        fewer = min(self.params.h, self.params.k - more)
        return max(more * up + fewer * down, fewer * up + more * down)

    @property
    def described(self) -> str:
        """A text, and how many bits are left of it."""
        params = self.params
        return f"a text{normalised_by(params)}, hashed to {params.h} of {params.k} bits"


def _hashed(value: bytes, cohort: int, params: Shape) -> list[int]:
    """Return the bit of each hash, as the protocol defines them; some may be equal.

    SHA-256 decides which strings are alike, MurmurHash3_x86_32 spreads them over cohorts.
    MurmurHash3 alone can be inverted: anybody could make a string with another one's bits.
    """
    digest = hashlib.sha256(value).digest()[:DIGEST_BYTES]
    seeds = range(cohort * params.h, (cohort + 1) * params.h)
    return [mmh3.hash(digest, seed, signed=False) * params.k >> 32 for seed in seeds]
