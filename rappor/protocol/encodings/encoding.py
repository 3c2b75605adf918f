"""The interface of an encoding: a rule that turns values into bits.

An encoding defines four things:

1. The bits that a value sets (`Encoding.find_set_bits`).
2. The largest privacy loss between two values (`Encoding.compute_largest_loss`).
3. The parameters that fit: number of bits, hash functions, cohorts, categories and normalizer
   (`Encoding.check_params`).
4. Properties for statistics and texts: whether counts need candidates, what a bit stands for, how
   many bits a value can set.

Example: a one-hot encoding of the categories red, green and blue has three bits. The value "blue"
sets bit 2. Bits travel packed: bit i is bit i mod 8, least significant first, of byte i div 8. In
other words, bit i of the report is bit i of one little-endian integer. The bits of "blue" are the
byte 0b00000100.

To add an encoding, write a subclass of `Encoding` in a file beside this one, add the class to
`encodings_by_name.ENCODINGS`, and add test vectors. Privacy accounting, statistics, registry and
privacy notice follow from the properties of the class.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rappor.base.errors import ParamsError, ReportError
from rappor.base.ranges import format_value
from rappor.protocol.normalizers import NORMALIZERS, normalize
from rappor.protocol.tuples import (
    format_fields,
    join_fields,
    list_normalizers,
    normalize_fields,
    parse_assignments,
    parse_fields,
    read_fields,
    split_fields,
)


class EncodingParams(Protocol):
    """The part of `Params` that decides which bits a value sets.

    `Params` imports the encodings, so the encodings cannot import `Params`. They read a parameter
    set through this protocol.
    """

    def __hash__(self) -> int:
        """Return the same number for equal parameters: encoders are cached by their parameters."""

    @property
    def encoding(self) -> str:
        """Name of the encoding."""

    @property
    def k(self) -> int:
        """Number of bits of a report."""

    @property
    def h(self) -> int:
        """Number of hash functions."""

    @property
    def m(self) -> int:
        """Number of cohorts."""

    @property
    def n_bytes(self) -> int:
        """Length of the packed bits of a report, in bytes."""

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the bits in bit order, or the edges of buckets."""

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of a tuple, in their order; empty for other values."""

    @property
    def normalize(self) -> str:
        """Name of the normalizer. For a tuple, the names for all fields, separated by commas."""

    @property
    def layout(self) -> str:
        """Name of the hash layout."""

    @property
    def part(self) -> str:
        """Name of the reported part of a string; empty for the whole string."""

    @property
    def items(self) -> int:
        """Number of own buckets of a value after padding or cutting; 1 except for sets."""

    @property
    def has_other_bucket(self) -> bool:
        """Whether the last bit stands for every value outside the categories or buckets."""


@dataclass(frozen=True)
class Encoding(ABC):
    """A rule that turns values into bits, under one parameter set.

    Class attributes hold for all parameter sets of the encoding. Instance properties depend on the
    parameter set `params`.
    """

    params: EncodingParams

    name: ClassVar[str]
    """Name of the encoding in registries and fingerprints."""

    is_hashed: ClassVar[bool] = False
    """Whether values are hashed. Then any string is a value, and decoding needs candidates."""

    is_exclusive: ClassVar[bool] = True
    """Whether a device has exactly one of the estimated values, so that their shares sum to one. It
    is False for booleans, because only the share of true is estimated."""

    supports_rappor: ClassVar[bool] = True
    """Whether RAPPOR's responses, which randomize each bit on its own, can randomize the bits."""

    supports_grr: ClassVar[bool] = False
    """Whether generalized randomized response, whose report names one bucket, can randomize the
    bits."""

    supports_parts: ClassVar[bool] = False
    """Whether a device may report a part of its value."""

    supports_fields: ClassVar[bool] = False
    """Whether a value may be a tuple of several fields."""

    supports_items: ClassVar[bool] = False
    """Whether a value is a set of items, so that the number of own buckets is a free choice."""

    share_unit: ClassVar[str] = "reports"
    """Noun for the population of an estimated share, for texts: "reports", or "devices" for sets. A
    share of a set's item is the proportion of devices that have the item."""

    single_value_noun: ClassVar[str] = "string"
    """Noun for an estimated value that is no tuple. `value_noun` also names tuples."""

    supports_normalizer: ClassVar[bool] = False
    """Whether values are texts, which a normalizer may rewrite."""

    categories_key: ClassVar[str | None] = None
    """Key of `Params.categories` in a registry; None for an encoding without categories."""

    has_category_values: ClassVar[bool] = False
    """Whether the categories are the values of devices. Then a metric must keep its categories: a
    device with a removed value would set no bit."""

    min_bits: ClassVar[int] = 1
    """Smallest number of bits, k."""

    @classmethod
    def check_params(cls, params: EncodingParams) -> None:
        """Raise ParamsError if h, m, k, the categories, normalizer or part do not fit."""
        if not cls.is_hashed:
            for letter, value in (("h", params.h), ("m", params.m)):
                if value != 1:
                    raise ParamsError(f"{letter} must be 1 for encoding {cls.name}, got {value}")
        # Bad case: [] or None in place of () would give two unequal sets with one fingerprint.
        if cls.categories_key is None and params.categories != ():
            raise ParamsError(f"categories must be empty for encoding {cls.name}")
        if params.normalize != "none" and not cls.supports_normalizer:
            raise ParamsError(f"normalize must be none for encoding {cls.name}")
        if params.part and not cls.supports_parts:
            raise ParamsError(f"part must be absent for encoding {cls.name}")
        if params.field_names and not cls.supports_fields:
            raise ParamsError(f"fields must be absent for encoding {cls.name}")
        if params.field_names and params.part:
            raise ParamsError("part must be absent for a metric with fields")
        if params.items != 1 and not cls.supports_items:
            raise ParamsError(f"items must be absent for encoding {cls.name}, got {params.items}")

    @classmethod
    @abstractmethod
    def count_bits(cls, categories: Sequence[str]) -> int | None:
        """Return the number of bits of the categories; None if k is a free choice.

        The bucket for values outside all categories (`EncodingParams.has_other_bucket`) is not
        counted.
        """

    def parse_value(self, text: str) -> object:
        """Convert a text, for example from a command line, to a value of this encoding.

        The fields of a tuple are separated by tabs.
        """
        if self.params.field_names:
            return parse_fields(self.params.field_names, text)
        return text

    def parse_arguments(self, texts: Sequence[str]) -> object:
        """Convert the arguments of a command line to one value.

        A tuple has an argument FIELD=VALUE for each field. Other values have one argument, except
        for sets.

        Raises
        ------
        ReportError
            The number of arguments is wrong, or they are not a value. The message has no value.
        """
        if self.params.field_names:
            return parse_assignments(self.params.field_names, texts)
        if len(texts) != 1:
            raise ReportError(f"a value must be one argument, got {len(texts)}")
        return self.parse_value(texts[0])

    def read_value(self, value: object) -> object:
        """Return a recorded value in Python's own types: a str, bool, int, float, dict or set.

        Only this method reads objects of the host program. It needs no cohort, so a device can
        check a value before it reads its secret.

        Raises
        ------
        ReportError
            The value has the wrong type, contains a lone surrogate where it cannot be left out, or
            cannot be read. The message contains the type and the length of the value and never the
            value.
        """
        # The class of a value may raise anything while it is read: a mapping of a closed file, a
        # proxy of a web framework outside a request, an array of numpy without dimensions. Another
        # exception than ReportError would pass for a failure of the disk, and its text may contain
        # the value.
        try:
            return self._convert_value(value)
        except (MemoryError, ReportError):  # the machine's memory is no mistake of the program
            raise
        except Exception:  # noqa: BLE001
            raise ReportError("a value must be readable, got one that raises an error") from None

    def _convert_value(self, value: object) -> object:
        """Convert a recorded value to Python's own types. This version is for texts and tuples."""
        if self.params.field_names:
            return read_fields(self.params.field_names, value)
        return normalize("none", value)

    def read_text(self, value: object) -> str:
        """Return the normalized text of a value: of a tuple, its normalized fields joined."""
        if self.params.field_names:
            return join_fields(self.normalize_fields(value))
        return normalize(self.params.normalize, value)

    def normalize_fields(self, value: object) -> tuple[str, ...]:
        """Return the normalized texts of the fields of a tuple, which may contain U+001F."""
        return normalize_fields(self.params.field_names, self.params.normalize, value)

    @abstractmethod
    def find_set_bits(self, value: object, cohort: int) -> Iterable[int]:
        """Return the indices of the bits that a value of `read_value` sets in a cohort.

        A value of the right type outside all categories sets the last bit if the parameter set has
        a bucket for other values. Otherwise it sets no bit, and the device reports the empty
        pattern. A missing report would reveal such a value.
        """

    def encode(self, value: object, cohort: int) -> bytes:
        """Return the packed bits of a value in a cohort: ceil(k/8) bytes.

        Raises
        ------
        ReportError
            `read_value` refuses the value, or the cohort is outside [0, m).
        """
        # A bool is an int in Python, and a cohort outside the range would be another cohort's hash.
        m = self.params.m
        if not isinstance(cohort, int) or isinstance(cohort, bool) or not 0 <= cohort < m:
            raise ReportError(f"cohort must be an integer in [0, {m - 1}], got {cohort!r}")
        packed = 0
        for i in self.find_set_bits(self.read_value(value), cohort):
            packed |= 1 << i
        return packed.to_bytes(self.params.n_bytes, "little")

    def is_representable(self, value: object) -> bool:  # noqa: ARG002  (any string is)
        """Return whether the bits represent a value of `read_value`.

        A category that does not exist, a NaN, or a text without a host is not representable. Such a
        value is reported like any other, and the device counts it.
        """
        return True

    def check_can_encode(self) -> None:  # noqa: B027  (most encodings can always encode)
        """Raise ParamsError if no value can be encoded under the parameters."""

    def has_same_encoding(self, other: EncodingParams) -> bool:
        """Return whether another parameter set has this encoding, whatever its categories."""
        return other.encoding == self.name

    def has_same_categories(self, other: EncodingParams) -> bool:
        """Return whether the bits of another parameter set stand for the same values."""
        return other.categories == self.params.categories and self.has_same_encoding(other)

    @property
    @abstractmethod
    def true_bit_counts(self) -> range:
        """Range of the number of bits that a value can set."""

    @abstractmethod
    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the privacy loss between the two values whose bits differ most, in nats.

        The largest loss is linear in `up` and `down`, with the numbers of differing bits in each
        direction as weights.

        Parameters
        ----------
        up : largest loss of one bit that the first value sets and the second value does not, nats.
        down : largest loss of one bit that only the second value sets, nats.
        """

    @property
    def value_noun(self) -> str:
        """Noun for an estimated value in texts: "string", "category", "bucket", "item", "value".

        It is "combination" for a tuple: one text for each field.
        """
        return "combination" if self.params.field_names else self.single_value_noun

    @property
    def category_labels(self) -> tuple[str, ...]:
        """Label of the values that set each bit, in bit order; empty if values are hashed.

        The bucket for values outside all categories is the last bit, and has no label. The label of
        a tuple is its fields joined by U+001F.
        """
        return () if self.is_hashed else self.params.categories

    @property
    def field_categories(self) -> tuple[tuple[str, ...], ...]:
        """Categories of each field of a tuple, in the order of the fields.

        The labels are all combinations of these categories. The last field varies fastest. The
        property is empty if the values are no tuples, or if they are hashed.
        """
        return ()

    @property
    def n_categories(self) -> int:
        """Number of categories or buckets, without the bucket for values outside them."""
        return self.params.k - self.params.has_other_bucket

    @property
    def edges(self) -> tuple[float, ...]:
        """Increasing numbers between the buckets; empty for encodings without buckets."""
        return ()

    @property
    @abstractmethod
    def description(self) -> str:
        """Collected information in words, for the privacy notice that a person reads."""

    @property
    def most_different_pairs(self) -> list[tuple[str, str]]:
        """Pairs of values, as texts, whose bits differ as much as the bits of any two values.

        Together the pairs set every bit, so an audit that encodes them tests every bit. The list is
        empty if values are hashed, because an audit then searches for such pairs itself.
        """
        return [] if self.is_hashed else pair_neighbours(self.params.categories)

    @property
    def unlisted_values(self) -> tuple[str, ...]:
        """Examples of values outside all categories or buckets, as texts."""
        return ()


def check_category_names(kind: type[Encoding], params: EncodingParams, least: int) -> None:
    """Raise ParamsError unless the categories are distinct clean texts, and k is their number.

    Parameters
    ----------
    least : smallest number of categories.
    """
    names, noun = params.categories, kind.categories_key or "categories"
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ParamsError("categories must be a tuple of texts")
    if len(names) < least:
        raise ParamsError(f"{noun} must number at least {least}, got {len(names)}")
    n_categories = kind.count_bits(names)
    if n_categories is not None:
        n_bits = n_categories + params.has_other_bucket
        if params.k != n_bits:
            raise ParamsError(
                f"k must be {n_bits}, the number of bits that the {noun} need, got {params.k}"
            )
    for name in names:
        # The separator of the fields of a tuple is a control character.
        for text in split_fields(name) if params.field_names else (name,):
            check_category_name(text, noun)
    if len(set(names)) != len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        category_text = format_value(format_fields(repeated))
        raise ParamsError(f"{noun} must be distinct, got {category_text} twice")


def check_category_name(name: str, noun: str) -> None:
    """Raise ParamsError for an empty name, a control character or a lone surrogate.

    The fingerprint hashes all names joined by line feeds, so a name must not contain a line feed.
    """
    if not name or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        raise ParamsError(
            f"{noun} must be non-empty and free of control characters, got {format_value(name)}"
        )
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        raise ParamsError(f"{noun} must be valid Unicode, got a lone surrogate")


def list_unlisted_bits(params: EncodingParams) -> list[int]:
    """Return the bits that a value outside all categories or buckets sets: the last bit or none."""
    return [params.k - 1] if params.has_other_bucket else []


def pair_neighbours(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each name with the next name, and the last name with the first."""
    # Both pairs of two names would be the same pair.
    if len(names) == 2:
        return [(names[0], names[1])]
    return [*itertools.pairwise(names), (names[-1], names[0])]


def describe_normalizer(params: EncodingParams) -> str:
    """Return the information that the normalizer keeps, in words and in brackets.

    The result is empty if the normalizer keeps the whole text.
    """
    description = NORMALIZERS[params.normalize].description
    return f" ({description})" if description else ""


def describe_fields(params: EncodingParams, categories: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return the name of each field of a tuple, with the information that is kept in brackets.

    Parameters
    ----------
    categories : categories of each field; empty if the fields are hashed.
    """
    names = params.field_names
    descriptions = []
    for i, normalizer in enumerate(list_normalizers(params.normalize, len(names))):
        details = [", ".join(categories[i])] if categories else []
        details += filter(None, [NORMALIZERS[normalizer].description])
        descriptions.append(f"{names[i]} ({'; '.join(details)})" if details else names[i])
    return descriptions


def describe_value(value: object) -> str:
    """Describe a recorded value in an error message by its type, and a text by its length.

    The value itself must never stand in a message, because messages enter logs.
    """
    kind = type(value).__name__
    return f"a {kind} of {len(value)} characters" if isinstance(value, str) else kind
