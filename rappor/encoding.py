"""Encodings: which bits a value sets. Nothing after this point asks what the value was.

Bits are packed into ceil(k/8) bytes: bit i is bit i mod 8, least significant first, of byte
i div 8; unused bits are 0.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import mmh3

from rappor.errors import ParamsError, ReportError
from rappor.normalize import normalize
from rappor.params import LAYOUT, Params

_MASK = (1 << 64) - 1


class Encoder:
    """Turns a value into the bits of one parameter set; see `encoder`."""

    name: ClassVar[str]

    def __init__(self, params: Params) -> None:
        """Serve one parameter set.

        Raises
        ------
        ParamsError: the set is for another encoding.
        """
        if params.encoding != self.name:
            raise ParamsError(f"encoding must be {self.name}, got {params.encoding}")
        self.params = params

    def encode(self, value: Any, cohort: int) -> bytes:
        """Return the bits that a value sets in a cohort, ceil(k/8) bytes.

        Raises
        ------
        ReportError: the value is not of this encoding's kind; only its type is told.
        ParamsError: the cohort is outside 0..m-1.
        """
        if not isinstance(cohort, int) or not 0 <= cohort < self.params.m:
            raise ParamsError(
                f"cohort must be an integer in [0, {self.params.m - 1}], got {cohort!r}"
            )
        mask = 0
        for bit in self._bits(value, cohort):
            mask |= 1 << bit
        return mask.to_bytes(self.params.n_bytes, "little")

    def parse(self, text: str) -> Any:
        """Read a value from command-line text."""
        return text

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:
        raise NotImplementedError


class Bloom(Encoder):
    """Strings: h bits of k, others in every cohort."""

    name = "bloom"

    def __init__(self, params: Params) -> None:
        """Serve one parameter set of the protocol's own hash layout."""
        super().__init__(params)
        if params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT!r} on a device, got {params.layout!r}")

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:
        text = normalize(self.params.normalize, value)
        return bloom_bits(text.encode(), cohort, k=self.params.k, h=self.params.h)


class OneHot(Encoder):
    """Categories: one bit each."""

    name = "onehot"

    def __init__(self, params: Params) -> None:
        """Index the categories as they are after normalising."""
        super().__init__(params)
        self._place = _index(params)

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:  # noqa: ARG002
        return [_find(self._place, value, self.params)]


class Flags(OneHot):
    """Independent yes/no answers: any number of named bits."""

    name = "flags"

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:  # noqa: ARG002
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise ReportError(f"a value must be a set of flags, got {type(value).__name__}")
        return [_find(self._place, flag, self.params) for flag in value]

    def parse(self, text: str) -> list[str]:
        """Read names joined by commas; the empty text is no flag."""
        return text.split(",") if text else []


class Boolean(Encoder):
    """Yes or no: one bit."""

    name = "boolean"
    _WORDS: ClassVar = {
        "true": True,
        "yes": True,
        "1": True,
        "false": False,
        "no": False,
        "0": False,
    }

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:  # noqa: ARG002
        if not isinstance(value, bool):
            raise ReportError(f"a value must be True or False, got {type(value).__name__}")
        return [0] if value else []

    def parse(self, text: str) -> bool:
        """Read true, yes, 1, false, no or 0."""
        try:
            return bool(self._WORDS[text.lower()])
        except KeyError:
            raise ReportError("a value must be one of true, yes, 1, false, no, 0") from None


class Buckets(Encoder):
    """Numbers: n edges make the n + 1 buckets (-inf, e1), [e1, e2), ..., [en, inf)."""

    name = "buckets"

    def __init__(self, params: Params) -> None:
        """Read the edges."""
        super().__init__(params)
        self._edges = [float(edge) for edge in params.categories]

    def _bits(self, value: Any, cohort: int) -> Iterable[int]:  # noqa: ARG002
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ReportError(f"a value must be a number, got {type(value).__name__}")
        if math.isnan(value):
            raise ReportError("a value must be a number, got NaN")
        return [bisect.bisect_right(self._edges, value)]

    def parse(self, text: str) -> float:
        """Read a decimal number."""
        try:
            return float(text)
        except ValueError:
            raise ReportError(f"a value must be a number, got {len(text)} characters") from None


_ENCODERS: dict[str, type[Encoder]] = {
    kind.name: kind for kind in (Bloom, OneHot, Flags, Boolean, Buckets)
}


def encoder(params: Params) -> Encoder:
    """Return the encoder of a parameter set."""
    return _ENCODERS[params.encoding](params)


def parse_value(params: Params, text: str) -> Any:
    """Read a value of a parameter set's encoding from command-line text."""
    return encoder(params).parse(text)


def bloom_bits(value: bytes, cohort: int, *, k: int, h: int) -> list[int]:
    """Return the bit of each of the h hashes; some may be equal.

    Hash j of cohort c takes fmix64(a + (c h + j + 1) (b | 1)) of the two halves a, b of
    MurmurHash3_x64_128, and scales its upper 32 bits to 0..k-1.
    """
    digest = mmh3.mmh3_x64_128_digest(value)
    a = int.from_bytes(digest[:8], "little")
    step = int.from_bytes(digest[8:], "little") | 1
    first = cohort * h + 1
    return [(_fmix64(a + (first + j) * step) >> 32) * k >> 32 for j in range(h)]


def _fmix64(x: int) -> int:
    """MurmurHash3's 64-bit finalizer."""
    x &= _MASK
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & _MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & _MASK
    return x ^ x >> 33


def _index(params: Params) -> dict[str, int]:
    """Return the bit of each category as it is after normalising."""
    place = {normalize(params.normalize, name): bit for bit, name in enumerate(params.categories)}
    if len(place) != len(params.categories):
        raise ParamsError(f"categories must stay distinct under normalize {params.normalize!r}")
    return place


def _find(place: dict[str, int], value: Any, params: Params) -> int:
    text = normalize(params.normalize, value)
    try:
        return place[text]
    except KeyError:
        raise ReportError(
            f"a value must be one of {', '.join(params.categories)}, got another text of "
            f"{len(text)} characters"
        ) from None
