"""Encoding: what every encoding answers about itself.

Bits travel packed: bit i is bit i mod 8, least significant first, of byte i div 8, which is
bit i of one little-endian integer.

To add an encoding, write its class beside these files, name it in `catalogue`, and add its
vectors. It fills in what is abstract here; privacy, statistics, registry and notice follow.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rappor.base.errors import ParamsError, ReportError
from rappor.base.ranges import format_value
from rappor.protocol.encodings.shape import Shape
from rappor.protocol.normalizers import NORMALIZERS


@dataclass(frozen=True)
class Encoding(ABC):
    """One way to turn values into bits, under one parameter set.

    The class answers what holds for all parameters, an instance what depends on them.
    """

    params: Shape

    name: ClassVar[str]
    """What the registry, the fingerprint and people call it."""

    hashed: ClassVar[bool] = False
    """Whether values are hashed: any string is one, and reading the sums needs candidates."""

    exclusive: ClassVar[bool] = True
    """Whether a device holds one value only, so that all shares sum to one."""

    normalizes: ClassVar[bool] = False
    """Whether values are texts that a normalizer may rewrite."""

    categories_key: ClassVar[str | None] = None
    """The registry's key for `Params.categories`; None if there are none."""

    names_values: ClassVar[bool] = False
    """Whether devices hold the categories themselves, so that none may be taken away."""

    least_bits: ClassVar[int] = 1
    """The smallest k."""

    @classmethod
    def check(cls, params: Shape) -> None:
        """Raise ParamsError where h, m, k, the categories or the normalizer do not fit."""
        if not cls.hashed:
            for letter, value in (("h", params.h), ("m", params.m)):
                if value != 1:
                    raise ParamsError(f"{letter} must be 1 for encoding {cls.name}, got {value}")
        if cls.categories_key is None and params.categories:
            raise ParamsError(f"categories must be empty for encoding {cls.name}")
        if params.normalize != "none" and not cls.normalizes:
            raise ParamsError(f"normalize must be none for encoding {cls.name}")
        if params.part and not cls.hashed:
            raise ParamsError(f"part must be absent for encoding {cls.name}")

    @classmethod
    @abstractmethod
    def implied_bits(cls, categories: Sequence[str]) -> int | None:
        """Return the k that the categories need; None where k is free."""

    def parse_value(self, text: str) -> object:
        """Turn text, as on a command line, into a value of this encoding."""
        return text

    @abstractmethod
    def bits(self, value: object, cohort: int) -> Iterable[int]:
        """Return the numbers of the bits that a value sets in a cohort.

        A value of the right kind that fits nowhere sets none: silence would speak. Raises
        ReportError for a value of the wrong kind, of which it tells type and length only.
        """

    def encode(self, value: object, cohort: int) -> bytes:
        """Return the ceil(k/8) bytes of the bits that a value sets in a cohort.

        Raises ReportError for what is no value, or a cohort outside [0, m).
        """
        m = self.params.m
        if not isinstance(cohort, int) or isinstance(cohort, bool) or not 0 <= cohort < m:
            raise ReportError(f"cohort must be an integer in [0, {m - 1}], got {cohort!r}")
        packed = 0
        for i in self.bits(value, cohort):
            packed |= 1 << i
        return packed.to_bytes(self.params.n_bytes, "little")

    def check_kind(self, value: object) -> None:
        """Raise ReportError for a value of the wrong kind.

        It needs no cohort, so a device can check a value before it touches its secret.
        """
        tuple(self.bits(value, 0))

    def fits(self, value: object) -> bool:  # noqa: ARG002  (any string does)
        """Return whether a value of the right kind is one that the encoding can tell."""
        return True

    def check_values(self) -> None:  # noqa: B027  (most have nothing to check)
        """Raise ParamsError where no value can be encoded under these parameters."""

    def takes_values_of(self, other: Shape) -> bool:
        """Return whether other parameters have this encoding, whatever their categories."""
        return other.encoding == self.name

    def answers_like(self, other: Shape) -> bool:
        """Return whether the bits of other parameters stand for the same values."""
        return other.categories == self.params.categories and self.takes_values_of(other)

    @property
    @abstractmethod
    def true_bits(self) -> range:
        """How many bits a value can set."""

    @abstractmethod
    def worst_difference(self, up: float, down: float) -> float:
        """Return the loss between the two values whose bits differ most, in nats.

        `up` is what ones in a bit's reports can tell of a true 1 against a true 0, `down` what
        zeros can tell of a true 0 against a true 1.
        """

    @property
    def answers(self) -> tuple[str, ...]:
        """What each bit stands for, in bit order; empty where candidates are needed."""
        return () if self.hashed else self.params.categories

    @property
    def edges(self) -> tuple[float, ...]:
        """The numbers that divide the answers, increasing; empty where answers are no ranges."""
        return ()

    @property
    @abstractmethod
    def described(self) -> str:
        """What is collected of a device, for the people concerned."""

    @property
    def contrasts(self) -> list[tuple[str, str]]:
        """Pairs of values, as texts, that differ in as many bits as any two do.

        Together they set every bit. Empty where they must be searched for.
        """
        return [] if self.hashed else neighbours(self.params.categories)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Texts of values that are in none of the categories or ranges."""
        return ()


def check_names(kind: type[Encoding], params: Shape, least: int) -> None:
    """Raise ParamsError unless the categories are distinct clean texts, and as many as k says."""
    names, noun = params.categories, kind.categories_key or "categories"
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ParamsError("categories must be a tuple of texts")
    if len(names) < least:
        raise ParamsError(f"{noun} must number at least {least}, got {len(names)}")
    if params.k != (needed := kind.implied_bits(names)) and needed is not None:
        raise ParamsError(
            f"k must be {needed}, the number of bits that the {noun} need, got {params.k}"
        )
    for name in names:
        check_name(name, noun)
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ParamsError(f"{noun} must be distinct, got {format_value(twice)} twice")


def check_name(name: str, noun: str) -> None:
    """Raise ParamsError for an empty name, control characters and lone surrogates."""
    if not name or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise ParamsError(
            f"{noun} must be non-empty and free of control characters, got {format_value(name)}"
        )
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        raise ParamsError(f"{noun} must be valid Unicode, got a lone surrogate")


def neighbours(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each name with the next, so that every one takes part."""
    if len(names) == 2:
        return [(names[0], names[1])]
    return [*itertools.pairwise(names), (names[-1], names[0])]


def normalised_by(params: Shape) -> str:
    """Say in words what is kept of a text, in brackets; empty if all of it is."""
    described = NORMALIZERS[params.normalize].described
    return f" ({described})" if described else ""


def described(value: object) -> str:
    """Describe a recorded value by all that may be told of it: its type, and a text's length."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)} characters" if isinstance(value, str) else kind
