"""Value -> bits: which bits of a report a value sets, before any noise.

An encoder is made by `encoder(params)`. Bits travel packed: bit i is bit i mod 8, least
significant first, of byte i div 8, which is bit i of one little-endian integer.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import mmh3

from rappor.errors import ParamsError, ReportError
from rappor.protocol.normalizers import normalize
from rappor.protocol.params import LAYOUT, Params

_WORD: Final = (1 << 64) - 1


class Encoder(Protocol):
    """What every encoding can do."""

    @property
    def params(self) -> Params:
        """The parameters that it encodes under."""

    def parse_value(self, text: str) -> object:
        """Turn text, as on a command line, into a value of this encoding."""

    def encode(self, value: object, cohort: int) -> bytes:
        """Return the ceil(k/8) bytes of the bits that a value sets in a cohort."""


def encoder(params: Params) -> Encoder:
    """Return the encoder of a parameter set."""
    return _ENCODERS[params.encoding](params)


def parse_value(params: Params, text: str) -> object:
    """Turn text, as on a command line, into a value of the parameters' encoding."""
    return encoder(params).parse_value(text)


@dataclass(frozen=True, slots=True)
class Bloom:
    """Strings: h hashed bits, other ones in each cohort."""

    params: Params

    def __post_init__(self) -> None:
        """Refuse parameters whose bits lie elsewhere."""
        if self.params.layout != LAYOUT:
            raise ParamsError(f"layout must be {LAYOUT} to encode, got {self.params.layout!r}")

    def parse_value(self, text: str) -> str:
        """Return the text itself."""
        return text

    def encode(self, value: object, cohort: int) -> bytes:
        """Set the bits of a text, normalised and hashed in UTF-8."""
        _check_cohort(cohort, self.params)
        text = normalize(self.params.normalize, value)
        return _pack(_bloom_bits(text.encode(), cohort, self.params), self.params)


@dataclass(frozen=True, slots=True)
class OneHot:
    """Categories: one bit each, exactly one set."""

    params: Params
    _bits: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look the categories up as they are after normalising."""
        object.__setattr__(self, "_bits", _normalized_bits(self.params))

    def parse_value(self, text: str) -> str:
        """Return the text itself."""
        return text

    def encode(self, value: object, cohort: int) -> bytes:
        """Set the bit of a category's name."""
        _check_cohort(cohort, self.params)
        return _pack([_bit_of(value, self._bits, self.params)], self.params)


@dataclass(frozen=True, slots=True)
class Boolean:
    """Yes or no: one bit."""

    params: Params

    def parse_value(self, text: str) -> bool:
        """Read true, yes, 1 or false, no, 0."""
        answer = _BOOLEANS.get(text.strip().lower())
        if answer is None:
            raise ReportError(f"a value must be one of {', '.join(_BOOLEANS)}, got {_told(text)}")
        return answer

    def encode(self, value: object, cohort: int) -> bytes:
        """Set the bit if the value is True."""
        _check_cohort(cohort, self.params)
        if not isinstance(value, bool):
            raise ReportError(f"a value must be True or False, got {_told(value)}")
        return _pack([0] if value else [], self.params)


@dataclass(frozen=True, slots=True)
class Flags:
    """Independent yes or no answers: one bit each, any number set."""

    params: Params
    _bits: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look the flags up as they are after normalising."""
        object.__setattr__(self, "_bits", _normalized_bits(self.params))

    def parse_value(self, text: str) -> tuple[str, ...]:
        """Split names at commas; the empty text names none."""
        return tuple(text.split(",")) if text else ()

    def encode(self, value: object, cohort: int) -> bytes:
        """Set the bits of the named flags, given in any order."""
        _check_cohort(cohort, self.params)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ReportError(f"a value must be an iterable of names, got {_told(value)}")
        return _pack((_bit_of(name, self._bits, self.params) for name in value), self.params)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Numbers: one bit for each of (-inf, e1), [e1, e2), ..., [en, inf)."""

    params: Params

    def parse_value(self, text: str) -> float:
        """Read a number."""
        try:
            return float(text)
        except ValueError:
            raise ReportError(f"a value must be a number, got {_told(text)}") from None

    def encode(self, value: object, cohort: int) -> bytes:
        """Set the bit of the bucket that holds a number."""
        _check_cohort(cohort, self.params)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ReportError(f"a value must be an int or a float, got {_told(value)}")
        if isinstance(value, float) and math.isnan(value):
            raise ReportError("a value must be a number, got NaN")
        edges = [float(edge) for edge in self.params.categories]
        return _pack([bisect.bisect_right(edges, value)], self.params)


_ENCODERS: Final[Mapping[str, type[Bloom | OneHot | Boolean | Flags | Buckets]]] = {
    "bloom": Bloom,
    "onehot": OneHot,
    "boolean": Boolean,
    "flags": Flags,
    "buckets": Buckets,
}
_BOOLEANS: Final = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def _bloom_bits(value: bytes, cohort: int, params: Params) -> list[int]:
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


def _pack(bits: Iterable[int], params: Params) -> bytes:
    packed = 0
    for i in bits:
        packed |= 1 << i
    return packed.to_bytes(params.n_bytes, "little")


def _normalized_bits(params: Params) -> dict[str, int]:
    """Return the bit of each category's normalised name."""
    bits: dict[str, int] = {}
    for i, category in enumerate(params.categories):
        if bits.setdefault(normalize(params.normalize, category), i) != i:
            raise ParamsError(
                f"categories must be distinct after normalising by {params.normalize}, "
                f"got {category!r} again"
            )
    return bits


def _bit_of(name: object, bits: Mapping[str, int], params: Params) -> int:
    bit = bits.get(normalize(params.normalize, name))
    if bit is None:
        allowed = ", ".join(params.categories)
        raise ReportError(f"a value must be one of {allowed}, got {_told(name)}")
    return bit


def _check_cohort(cohort: int, params: Params) -> None:
    if not isinstance(cohort, int) or isinstance(cohort, bool) or not 0 <= cohort < params.m:
        raise ReportError(f"cohort must be an integer in [0, {params.m - 1}], got {cohort!r}")


def _told(value: object) -> str:
    """Describe a recorded value by all that may be told of it: its type, and a text's length."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)} characters" if isinstance(value, str) else kind
