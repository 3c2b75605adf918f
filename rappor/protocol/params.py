"""Params: what every device and every decoder of one metric must share, to the last bit.

Probabilities are 32-bit thresholds. A uniform 32-bit integer u hits when u < t, so the
probability that really happens is t / 2^32; Params keeps that one and forgets the decimal
that was typed. Accounting, simulation and decoding all read it from here.

One letter, one meaning, as in [EPK14] (arXiv 1407.6981): k bits, h hash functions,
m cohorts; f the permanent noise, p and q the probabilities that a 0 and a 1 are sent as a 1.
g is not the paper's: of the bits that the permanent noise forces, the share that becomes 1. In
the paper it is a half. A smaller one finds more rare strings at the same privacy.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from dataclasses import InitVar, dataclass
from typing import Any, Final, TypedDict

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice, check_integer, check_number, format_value
from rappor.protocol.encodings import encoding_named
from rappor.protocol.encodings.bloom import LAYOUT
from rappor.protocol.normalizers import NORMALIZERS
from rappor.protocol.parts import check_part
from rappor.protocol.profiles import profile_named
from rappor.protocol.segments import Segment, check_segment

ONE: Final = 1 << 32
"""The threshold of probability one."""

MAX_BITS: Final = 2040
"""Most bits of a report: HKDF-Expand-SHA256 yields 255 * 32 bytes, four for each bit."""

MAX_HASHES: Final = 16
MAX_COHORTS: Final = 65536


LETTERS: Final = ("k", "h", "m", "f", "g", "p", "q")
"""The dimensions of a parameter set, and its noise."""

NOISE: Final = LETTERS[3:]

EPOCHS: Final = ("life", "year", "quarter", "month")
"""Times for which a device repeats one permanent response."""

INTERVALS: Final = ("day", "week", "epoch")
"""Times in which a device sends at most one report of a metric."""

_PUBLIC: Final = ("p", "q", "segment", "interval", "epoch")
"""Keys of the canonical JSON that the permanent response does not depend on."""


def threshold(probability: float) -> int:
    """Turn a probability into its 32-bit threshold, floor(x * 2^32 + 0.5) in binary64."""
    return math.floor(probability * ONE + 0.5)


class Noise(TypedDict):
    """The noise of a parameter set, as keywords."""

    f: float
    g: float
    p: float
    q: float


def noise_of(t_1: int, t_0: int, t_p: int, t_q: int) -> Noise:
    """Return the f, g, p and q that have these thresholds."""
    forced = t_1 + t_0
    g = 0.5 if t_1 == t_0 else t_1 / forced
    return {"f": forced / ONE, "g": g, "p": t_p / ONE, "q": t_q / ONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameter set of one metric; equal sets have equal fingerprints.

    A permanent response forces a bit with probability `f`; the share `g` of the forced bits becomes
    1, the others 0. `f`, `g`, `p` and `q` read back as what the 32-bit thresholds make of them.
    `categories` are the names of a one-hot encoding, or the edges of buckets as
    decimal text, in bit order. `part` is what of a string is told, where a metric asks its
    devices for parts: "prefix:N", "whole", or empty. `segment` is what devices tell of themselves
    in the clear; empty where they tell nothing. `interval` and `epoch` are the calendar of a
    metric of a registry; both are empty for parameters outside a registry. `insecure=True`
    admits parameters that promise nothing.

    Raises ParamsError, one sentence, for whatever is outside its range.
    """

    k: int
    h: int = 1
    m: int = 1
    f: float
    g: float = 0.5
    p: float
    q: float
    encoding: str = "bloom"
    categories: tuple[str, ...] = ()
    normalize: str = "none"
    layout: str = LAYOUT
    part: str = ""
    segment: Segment = ()
    interval: str = ""
    epoch: str = ""
    insecure: InitVar[bool] = False

    def __post_init__(self, insecure: bool) -> None:
        """Check every field once; what passes here is trusted everywhere."""
        encoding = encoding_named(self.encoding)
        check_choice("normalize", self.normalize, NORMALIZERS)
        _check_layout(self.layout)
        check_part(self.part)
        check_segment(self.segment)
        _check_calendar(self.interval, self.epoch)
        check_integer("k", self.k, encoding.least_bits, MAX_BITS)
        check_integer("h", self.h, 1, MAX_HASHES)
        check_integer("m", self.m, 1, MAX_COHORTS)
        encoding.check(self)
        check_number("f", self.f, "[0, 1)")
        check_number("g", self.g, "[0, 1]")
        check_number("p", self.p, "[0, 1]")
        check_number("q", self.q, "[0, 1]")
        _check_thresholds(self)
        # From here on only what the 32-bit coins can really do.
        noise = noise_of(self.t_1, self.t_0, self.t_p, self.t_q)
        for name, probability in noise.items():
            object.__setattr__(self, name, probability)
        if not insecure:
            self._check_secure()

    @classmethod
    def profile(
        cls,
        name: str,
        *,
        encoding: str = "bloom",
        categories: tuple[str, ...] = (),
        normalize: str = "none",
    ) -> Params:
        """Return the best response of an encoding that keeps a profile's promise.

        Strings have k = 128, h = 1 and m = 128. Raises ParamsError for any other name of a profile
        or encoding.
        """
        profile = profile_named(name)
        kind = encoding_named(encoding)
        k = kind.implied_bits(categories)
        return cls(
            k=128 if k is None else k,
            m=128 if k is None else 1,
            **noise_of(*profile.thresholds(k)),
            encoding=encoding,
            categories=categories,
            normalize=normalize,
        )

    @property
    def t_1(self) -> int:
        """Threshold of f g, by which the permanent response forces a bit to 1."""
        return threshold(self.f * self.g)

    @property
    def t_0(self) -> int:
        """Threshold of f (1 - g), by which it forces a bit to 0."""
        return threshold(self.f * (1 - self.g))

    @property
    def t_p(self) -> int:
        """Threshold of p."""
        return threshold(self.p)

    @property
    def t_q(self) -> int:
        """Threshold of q; it may be 2^32, so compare in more than 32 bits."""
        return threshold(self.q)

    @property
    def f1(self) -> float:
        """Probability that a true 0 is a permanent 1, f/2 in the paper."""
        return self.t_1 / ONE

    @property
    def f0(self) -> float:
        """Probability that a true 1 is a permanent 0, f/2 in the paper."""
        return self.t_0 / ONE

    @property
    def p_star(self) -> float:
        """Probability that a report shows 1 for a true 0 ([EPK14] Lemma 1 where g is a half)."""
        return self.p + (self.q - self.p) * self.f1

    @property
    def q_star(self) -> float:
        """Probability that a report shows 1 for a true 1 ([EPK14] Lemma 1 where g is a half)."""
        return self.q - (self.q - self.p) * self.f0

    @property
    def n_bytes(self) -> int:
        """Bytes of one report's bits: ceil(k / 8)."""
        return (self.k + 7) // 8

    @property
    def is_bare(self) -> bool:
        """Whether a report is the permanent response itself, without fresh noise."""
        return self.t_p == 0 and self.t_q == ONE

    @property
    def density(self) -> float:
        """Probability that a random string sets a given bit, 1 - (1 - 1/k)^h."""
        return float(-math.expm1(self.h * math.log1p(-1 / self.k))) if self.k > 1 else 1.0

    def in_segment(self, segment: Segment) -> Params:
        """Return the same parameters of devices that tell this segment."""
        return dataclasses.replace(self, segment=segment, insecure=True)

    @property
    def unsegmented(self) -> Params:
        """The same parameters of devices that tell no segment."""
        return self.in_segment(()) if self.segment else self

    def __hash__(self) -> int:
        """Hash what sets differ in most: a device looks them up two dozen times a report."""
        return hash((self.k, self.f, self.p, self.q, self.part))

    @property
    def pace(self) -> str:
        """Time in which a device sends at most one report: an interval, or a whole epoch.

        The pace is empty for parameters outside a registry.
        """
        return self.epoch if self.interval == "epoch" else self.interval

    @property
    def fingerprint(self) -> str:
        """The first 8 bytes of SHA-256 over the canonical JSON, as 16 hex digits."""
        return _fingerprints(self)[0]

    @property
    def permanent_fingerprint(self) -> str:
        """SHA-256 over the canonical JSON without p, q, segment and calendar, as 64 hex digits.

        It names what the permanent response depends on: sets that differ in these only have
        one permanent response, and any other two have nothing in common. It is whole because
        two sets of one scope with eight bytes in common could be found in 2^32 tries.
        """
        return _fingerprints(self)[1]

    def _check_secure(self) -> None:
        """Refuse the sets under which a bit of one report can be certain."""
        if self.t_1 == 0 and self.t_p == 0:
            forced = "f g must be greater than 0 where p is 0"
        elif self.t_0 == 0 and self.t_q == ONE:
            forced = "f (1 - g) must be greater than 0 where q is 1"
        else:
            return
        raise ParamsError(
            f"{forced}, got f = {self.f:g} and g = {self.g:g}, under which one report reveals the "
            "value; say insecure to allow it"
        )

    def _identity(self) -> dict[str, Any]:
        """Return what must match for two reports to be added: the fingerprint's preimage."""
        identity: dict[str, Any] = {
            "v": 1,
            "encoding": self.encoding,
            "k": self.k,
            "h": self.h,
            "m": self.m,
            "f": self.t_1,
            "p": self.t_p,
            "q": self.t_q,
        }
        if self.t_0 != self.t_1:
            identity["f0"] = self.t_0
        if self.categories:
            names = "\n".join(self.categories).encode()
            identity["categories"] = hashlib.sha256(names).hexdigest()
        if self.normalize != "none":
            identity["normalize"] = self.normalize
        if self.layout != LAYOUT:
            identity["layout"] = self.layout
        if self.part:
            identity["part"] = self.part
        if self.segment:
            identity["segment"] = dict(self.segment)
        if self.interval:
            # A device with an older registry may report daily where the new one says weekly. Under
            # a fingerprint of its own, a collector judges it by its own interval.
            identity |= {"interval": self.interval, "epoch": self.epoch}
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

        Insecure sets are admitted: whoever wrote this one had to say so then.
        """
        try:
            document = json.loads(text, object_pairs_hook=_distinct_keys)
            written = _canonical(document)
            if not isinstance(document, dict) or document.pop("v", None) != 1:
                raise ParamsError("parameters must be a JSON object of version 1")
            t_1 = document["f"]
            t_0 = document.pop("f0", t_1)
            document |= noise_of(t_1, t_0, document["p"], document["q"])
            document["categories"] = tuple(document.get("categories", ()))
            document["segment"] = tuple(sorted(dict(document.get("segment", ())).items()))
            params = cls(**document, insecure=True)
        except ParamsError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ParamsError(
                f"parameters must be JSON as written by Params.to_json, got {type(error).__name__}"
            ) from None
        if params.to_json() != written:  # 1.0 or true for 1, a text for a list, a fraction
            raise ParamsError("parameters must be JSON as written by Params.to_json")
        return params


@functools.lru_cache(maxsize=1024)
def _fingerprints(params: Params) -> tuple[str, str]:
    """Return both fingerprints; a device asks for them a dozen times a report."""
    identity = params._identity()
    whole = _sha256(identity)[:16]
    for public in _PUBLIC:
        identity.pop(public, None)
    return whole, _sha256(identity)


def _sha256(document: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()


def _canonical(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ParamsError("parameters must be a JSON object in which no key stands twice")
    return entries


def _check_calendar(interval: str, epoch: str) -> None:
    if (interval, epoch) == ("", ""):
        return
    check_choice("interval", interval, INTERVALS)
    check_choice("epoch", epoch, EPOCHS)


def _check_layout(layout: object) -> None:
    if not isinstance(layout, str) or not layout:
        raise ParamsError(f"layout must be a non-empty name, got {format_value(layout)}")
    if any(0xD800 <= ord(c) < 0xE000 for c in layout):
        raise ParamsError("layout must be valid Unicode, got a lone surrogate")


def _check_thresholds(params: Params) -> None:
    if params.t_p >= params.t_q:
        raise ParamsError(
            f"p must be less than q by at least 2^-32, got p = {params.p!r} and q = {params.q!r}"
        )
    forced = params.t_1 + params.t_0
    if forced == 0 and params.f != 0:
        raise ParamsError(f"f must be 0 or at least 2^-32, got {params.f!r}")
    if forced >= ONE:
        raise ParamsError(f"f must be less than 1 by at least 2^-31, got {params.f!r}")
