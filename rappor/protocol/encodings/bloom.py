"""Bloom: strings, hashed onto h of k bits, other ones in each cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import mmh3

from rappor.errors import ParamsError
from rappor.protocol.encodings.encoding import Encoding, normalised_by
from rappor.protocol.normalizers import normalize

if TYPE_CHECKING:
    from rappor.protocol.params import Params

LAYOUT: Final = "rappor-1"
"""The hash layout of protocol version 1; any other one enters the fingerprint."""

_WORD: Final = (1 << 64) - 1


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
        """Refuse parameters whose bits lie elsewhere."""
        if self.params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT} to encode, got {self.params.layout!r}")

    def parse_value(self, text: str) -> str:
        """Return the text itself."""
        return text

    def bits(self, value: object, cohort: int) -> list[int]:
        """Return the bits of a text, normalised and hashed in UTF-8."""
        self.check_values()
        return _hashed(normalize(self.params.normalize, value).encode(), cohort, self.params)

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
        """A text, and what it is hashed onto."""
        params = self.params
        return (
            f"a text{normalised_by(params)}, hashed onto {params.h} of {params.k} bits in one "
            f"of {params.m} cohorts"
        )

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """Empty: which strings differ most, a search must find."""
        return []


def _hashed(value: bytes, cohort: int, params: Params) -> list[int]:
    """Return the bit of each hash, as the protocol defines them; some may be equal."""
    digest = mmh3.mmh3_x64_128_digest(value)
    a, b = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    first = cohort * params.h + 1
    mixed = (_fmix64(a + hop * (b | 1) & _WORD) for hop in range(first, first + params.h))
    return [(x >> 32) * params.k >> 32 for x in mixed]


def _fmix64(x: int) -> int:
    """Return MurmurHash3's 64-bit finalizer of x."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & _WORD
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & _WORD
    return x ^ x >> 33
