"""Params: what every device and every decoder of one metric must share, to the last bit.

Probabilities are 32-bit thresholds. A uniform 32-bit integer u hits when u < t, so the
probability that really happens is t / 2^32; Params keeps that one and forgets the decimal
that was typed. Accounting, simulation and decoding all read it from here.

One letter, one meaning, as in [EPK14] (arXiv 1407.6981): k bits, h hash functions,
m cohorts; f the permanent noise, p and q the chances that a 0 and a 1 are sent as a 1.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final

from rappor.errors import ParamsError

ONE: Final = 1 << 32
"""The threshold of probability one."""

MAX_BITS: Final = 2040
"""Most bits of a report: HKDF-Expand-SHA256 yields 255 * 32 bytes, four for each bit."""

MAX_HASHES: Final = 16
MAX_COHORTS: Final = 65536

ENCODINGS: Final = ("bloom", "onehot", "boolean", "flags", "buckets")
NORMALIZERS: Final = ("none", "nfc", "casefold", "strip", "host", "domain")
LAYOUT: Final = "rappor-1"
"""The hash layout of protocol version 1; any other one enters the fingerprint."""

PROFILES: Final[Mapping[str, Mapping[str, float]]] = {
    "strict": {"f": 0.537883, "p": 0.134471, "q": 0.634471},
    "balanced": {"f": 0.238406, "p": 0.059601, "q": 0.559601},
    "accurate": {"f": 0.035972, "p": 0.008993, "q": 0.508993},
}
"""Named noise levels of version 1, never changed: eps_1 and eps_inf of one string are
(1, 2), (2, 4) and (4, 8) nats. For strings they go with k = 128, h = 1, m = 128."""


def threshold(probability: float) -> int:
    """Turn a probability into its 32-bit threshold, floor(x * 2^32 + 0.5) in binary64."""
    return math.floor(probability * ONE + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameter set of one metric; equal sets have equal fingerprints.

    `f`, `p` and `q` read back as the effective probabilities (t / 2^32, exact in binary64).
    `categories` are the names of a one-hot or flags encoding, or the edges of buckets as
    decimal text, in bit order. `insecure=True` admits parameters that promise nothing.

    Raises ParamsError, one sentence, for whatever is outside its range.
    """

    k: int
    h: int = 1
    m: int = 1
    f: float
    p: float
    q: float
    encoding: str = "bloom"
    categories: tuple[str, ...] = ()
    normalize: str = "none"
    layout: str = LAYOUT
    insecure: InitVar[bool] = False

    def __post_init__(self, insecure: bool) -> None:
        """Check every field once; what passes here is trusted everywhere."""
        _check_choice("encoding", self.encoding, ENCODINGS)
        _check_choice("normalize", self.normalize, NORMALIZERS)
        _check_layout(self.layout)
        _check_integer("k", self.k, 2 if self.encoding == "bloom" else 1, MAX_BITS)
        _check_integer("h", self.h, 1, MAX_HASHES)
        _check_integer("m", self.m, 1, MAX_COHORTS)
        _check_shape(self)
        _check_probability("f", self.f, below_one=True)
        _check_probability("p", self.p)
        _check_probability("q", self.q)
        _check_thresholds(self)
        # From here on only what the 32-bit coins can really do.
        object.__setattr__(self, "f", 2 * self.t_f / ONE)
        object.__setattr__(self, "p", self.t_p / ONE)
        object.__setattr__(self, "q", self.t_q / ONE)
        if self.t_f == 0 and (self.t_p == 0 or self.t_q == ONE) and not insecure:
            raise ParamsError(
                "f must be greater than 0, or p greater than 0 and q less than 1, got f = 0 with "
                f"p = {self.p:g} and q = {self.q:g}, under which one report reveals the value; "
                "say insecure to allow it"
            )

    @classmethod
    def profile(cls, name: str, *, normalize: str = "none") -> Params:
        """Return the named Bloom profile (k = 128, h = 1, m = 128); see PROFILES."""
        _check_choice("profile", name, tuple(PROFILES))
        noise = PROFILES[name]
        return cls(k=128, h=1, m=128, f=noise["f"], p=noise["p"], q=noise["q"], normalize=normalize)

    @property
    def t_f(self) -> int:
        """Threshold of f/2, one of the two forced outcomes of the permanent response."""
        return threshold(self.f / 2)

    @property
    def t_p(self) -> int:
        """Threshold of p."""
        return threshold(self.p)

    @property
    def t_q(self) -> int:
        """Threshold of q; it may be 2^32, so compare in more than 32 bits."""
        return threshold(self.q)

    @property
    def p_star(self) -> float:
        """Chance that a report shows 1 for a true 0 ([EPK14] Lemma 1)."""
        return self.f * (self.p + self.q) / 2 + (1 - self.f) * self.p

    @property
    def q_star(self) -> float:
        """Chance that a report shows 1 for a true 1 ([EPK14] Lemma 1)."""
        return self.f * (self.p + self.q) / 2 + (1 - self.f) * self.q

    @property
    def n_bytes(self) -> int:
        """Bytes of one report's bits: ceil(k / 8)."""
        return (self.k + 7) // 8

    @property
    def density(self) -> float:
        """Chance that a random string sets a given bit, 1 - (1 - 1/k)^h."""
        return float(-math.expm1(self.h * math.log1p(-1 / self.k))) if self.k > 1 else 1.0

    @property
    def fingerprint(self) -> str:
        """The first 8 bytes of SHA-256 over the canonical JSON, as 16 hex digits."""
        return hashlib.sha256(_canonical(self._identity()).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        """Return what must match for two reports to be added: the fingerprint's preimage."""
        identity: dict[str, Any] = {
            "v": 1,
            "encoding": self.encoding,
            "k": self.k,
            "h": self.h,
            "m": self.m,
            "f": self.t_f,
            "p": self.t_p,
            "q": self.t_q,
        }
        if self.categories:
            names = "\n".join(self.categories).encode()
            identity["categories"] = hashlib.sha256(names).hexdigest()
        if self.normalize != "none":
            identity["normalize"] = self.normalize
        if self.layout != LAYOUT:
            identity["layout"] = self.layout
        return identity

    def to_json(self) -> str:
        """Write the set as one line of JSON with integer thresholds, exact in every language."""
        document = self._identity()
        if self.categories:
            document["categories"] = list(self.categories)
        return _canonical(document)

    @classmethod
    def from_json(cls, text: str) -> Params:
        """Read what `to_json` wrote.

        Insecure sets are admitted: whoever made this one had to say so then.
        """
        try:
            document = json.loads(text)
            written = _canonical(document)
            if not isinstance(document, dict) or document.pop("v", None) != 1:
                raise ParamsError("parameters must be a JSON object of version 1")
            document["f"] = 2 * document["f"] / ONE
            document["p"] /= ONE
            document["q"] /= ONE
            document["categories"] = tuple(document.get("categories", ()))
            params = cls(**document, insecure=True)
        except ParamsError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ParamsError(
                f"parameters must be JSON as written by Params.to_json, got {type(error).__name__}"
            ) from None
        if params.to_json() != written:  # 1.0 or true for 1, a text for a list, a fraction
            raise ParamsError("parameters must be JSON as written by Params.to_json")
        return params


def edge_text(edge: float) -> str:
    """Write a bucket's edge as the shortest decimal that reads back to the same binary64.

    The form is ECMAScript's Number-to-string (RFC 8785): 10, 0.5, 1e+21, 1e-7.
    """
    mantissa, _, exponent = repr(abs(float(edge))).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = (whole + fraction).lstrip("0").rstrip("0")
    if not digits:
        return "0"
    point = int(exponent or 0) + (
        len(whole) if whole != "0" else len(fraction.lstrip("0")) - len(fraction)
    )
    return ("-" if edge < 0 else "") + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """Write 0.digits times 10^point as ECMAScript does."""
    if point > 21 or point <= -6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{point - 1:+d}"
    if point <= 0:
        return "0." + "0" * -point + digits
    if len(digits) <= point:
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"


def _canonical(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices or not isinstance(value, str):
        raise ParamsError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _check_layout(layout: object) -> None:
    if not isinstance(layout, str) or not layout:
        raise ParamsError(f"layout must be a non-empty name, got {layout!r}")
    if any(0xD800 <= ord(c) < 0xE000 for c in layout):
        raise ParamsError("layout must be valid Unicode, got a lone surrogate")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ParamsError(f"{name} must be an integer in [{low}, {high}], got {value!r}")


def _check_probability(name: str, value: object, *, below_one: bool = False) -> None:
    interval = "[0, 1)" if below_one else "[0, 1]"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # A NaN fails both comparisons, so it is outside every range.
    if not number or not 0 <= value <= 1 or (below_one and value == 1):  # type: ignore[operator]
        raise ParamsError(f"{name} must be a number in {interval}, got {value!r}")


def _check_shape(params: Params) -> None:
    """Check what the encoding says about h, m and the categories."""
    if params.encoding != "bloom":
        for name, value in (("h", params.h), ("m", params.m)):
            if value != 1:
                raise ParamsError(f"{name} must be 1 for encoding {params.encoding}, got {value}")
    named = params.encoding in ("onehot", "flags", "buckets")
    if not named and params.categories:
        raise ParamsError(f"categories must be empty for encoding {params.encoding}")
    if params.normalize != "none" and params.encoding in ("boolean", "buckets"):
        raise ParamsError(f"normalize must be none for encoding {params.encoding}")
    if params.encoding == "boolean" and params.k != 1:
        raise ParamsError(f"k must be 1 for encoding boolean, got {params.k}")
    if named:
        _check_categories(params)


def _check_categories(params: Params) -> None:
    names = params.categories
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ParamsError("categories must be a tuple of texts")
    least = {"onehot": 2, "flags": 1, "buckets": 1}[params.encoding]
    noun = "edges" if params.encoding == "buckets" else "categories"
    if len(names) < least:
        raise ParamsError(f"{noun} must number at least {least}, got {len(names)}")
    bits = len(names) + 1 if params.encoding == "buckets" else len(names)
    if params.k != bits:
        raise ParamsError(
            f"k must be {bits}, the number of bits that the {noun} need, got {params.k}"
        )
    for name in names:
        if not name or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
            raise ParamsError(
                f"{noun} must be non-empty and free of control characters, got {name!r}"
            )
        if any(0xD800 <= ord(c) < 0xE000 for c in name):
            raise ParamsError(f"{noun} must be valid Unicode, got a lone surrogate")
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ParamsError(f"{noun} must be distinct, got {twice!r} twice")
    if params.encoding == "buckets":
        _check_edges(names)


def _check_edges(edges: tuple[str, ...]) -> None:
    try:
        numbers = [float(edge) for edge in edges]
    except ValueError:
        raise ParamsError("edges must be decimal numbers") from None
    if not all(math.isfinite(number) for number in numbers):
        raise ParamsError("edges must be finite")
    if any(low >= high for low, high in itertools.pairwise(numbers)):
        raise ParamsError("edges must increase")
    if any(edge != edge_text(number) for edge, number in zip(edges, numbers, strict=True)):
        raise ParamsError("edges must be written as shortest decimals; use edge_text")


def _check_thresholds(params: Params) -> None:
    if params.t_p >= params.t_q:
        raise ParamsError(
            f"p must be less than q by at least 2^-32, got p = {params.p!r} and q = {params.q!r}"
        )
    if params.t_f == 0 and params.f != 0:
        raise ParamsError(f"f must be 0 or at least 2^-32, got {params.f!r}")
    if params.t_f >= ONE // 2:
        raise ParamsError(f"f must be less than 1 by at least 2^-31, got {params.f!r}")
