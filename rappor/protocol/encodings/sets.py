"""The encoding of sets: each item of a collection of strings owns one of k buckets.

The bucket of an item is its Bloom bit with one hash function, so it differs between cohorts.
Example: with k = 464, the set {"git", "vim"} owns two buckets in most cohorts, and one bucket in
the few cohorts in which both items have the same hash.

A value is the state of a program at one moment, for example its installed plugins. Generalized
randomized response pads or cuts the own buckets to `items` buckets, so that a report does not show
how many items a device has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rappor.base.errors import ReportError
from rappor.base.ranges import check_integer
from rappor.protocol.encodings.bloom import check_can_hash, hash_to_bits
from rappor.protocol.encodings.encoding import (
    Encoding,
    EncodingParams,
    describe_normalizer,
    describe_value,
)
from rappor.protocol.normalizers import normalize

MAX_ITEMS: Final = 64
"""Largest number of own buckets of a set, n. With more, the limit of 2040 buckets leaves too few
buckets that are not own buckets, and the variance of every share grows."""

DEFAULT_ITEMS: Final = 8
"""Number of own buckets of a set under a profile, unless the entry has another number."""

_NO_SETS: Final = (str, bytes, bytearray, memoryview, Mapping)
"""Collections that are values of the wrong kind. A text contains letters, bytes contain integers,
and a mapping contains keys: iterating over one by mistake would report something that nobody
meant."""


class Sets(Encoding):
    """Sets of strings: each item owns the bucket of its hash in the cohort."""

    name = "set"
    single_value_noun = "item"
    is_hashed = True
    is_exclusive = False
    supports_rappor = False
    supports_grr = True
    supports_items = True
    share_unit = "devices"
    supports_normalizer = True
    min_bits = 2

    @classmethod
    def check_params(cls, params: EncodingParams) -> None:
        """Raise ParamsError unless `items` is in [1, 64] and the common checks pass."""
        super().check_params(params)
        check_integer("items", params.items, 1, MAX_ITEMS)

    @classmethod
    def count_bits(cls, categories: Sequence[str]) -> None:
        """Return None: the number of buckets is a free choice."""

    def check_can_encode(self) -> None:
        """Raise ParamsError for a foreign hash layout or a normalizer that is not installed."""
        check_can_hash(self.params)

    def parse_value(self, text: str) -> list[str]:
        """Convert a text to a set. Tabs separate the items; the empty text is the empty set."""
        return text.split("\t")

    def parse_arguments(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the arguments of a command line, each of which is an item."""
        return texts

    def read_items(self, value: object) -> set[str]:
        """Return the distinct normalized items of a collection, without empty items.

        An item with a lone surrogate cannot be hashed and is left out, too.
        """
        texts = (item for item in _read_items(value) if not _has_lone_surrogate(item))
        return {text for item in texts if (text := normalize(self.params.normalize, item))}

    def find_set_bits(self, value: object, cohort: int) -> set[int]:
        """Return the own buckets of a collection of texts. Empty items own no bucket."""
        self.check_can_encode()
        buckets: set[int] = set()
        for item in _read_items(value):
            # A collection of a million items owns all buckets after some ten thousand. Hashing the
            # remaining items would change nothing, and would delay the program that records.
            if len(buckets) == self.params.k:
                break
            text = "" if _has_lone_surrogate(item) else normalize(self.params.normalize, item)
            if text:
                buckets.update(hash_to_bits(text.encode(), cohort, self.params))
        return buckets

    def _convert_value(self, value: object) -> set[str]:
        """Convert a collection of texts to a set of its distinct items."""
        return _read_items(value)

    def is_representable(self, value: object) -> bool:
        """Return whether no item is left out. The device counts the values with items left out.

        - An item with a lone surrogate is left out, because it cannot be hashed. Names of files can
          have a lone surrogate.
        - Of a set with more than `items` buckets, the response keeps `items` buckets. The method
          compares the number of distinct items: two items may have one bucket, but the bucket
          depends on the cohort, which is not known yet.
        """
        texts: set[str] = set()
        for item in _read_items(value):
            if _has_lone_surrogate(item):
                return False
            if text := normalize(self.params.normalize, item):
                texts.add(text)
            # Normalizing the rest of a million items took ten seconds of the program that records.
            if len(texts) > self.params.items:
                return False
        return True

    @property
    def true_bit_counts(self) -> range:
        """Exactly `items` buckets, after padding or cutting."""
        return range(self.params.items, self.params.items + 1)

    def compute_largest_loss(self, up: float, down: float) -> float:
        """Return the loss between two disjoint sets, in nats, if each bit had noise of its own."""
        return self.params.items * (up + down)

    @property
    def description(self) -> str:
        """A set of texts, the number of its items, and the number of buckets."""
        params = self.params
        return (
            f"a set of up to {params.items} texts{describe_normalizer(params)}, each hashed to one "
            f"of {params.k} buckets"
        )


def _read_items(value: object) -> set[str]:
    """Return the distinct items of a collection.

    A generator is refused, because a device may read a value more than once.

    Raises
    ------
    ReportError
        The value is not a collection, or has an item that is not a text. The message contains no
        item.
    """
    expected = "a value must be a collection of texts"
    if isinstance(value, _NO_SETS) or not isinstance(value, Collection):
        raise ReportError(f"{expected}, got {describe_value(value)}")
    items = list(value)
    # Check the types before a set is built: an unhashable item, such as a list, would raise
    # TypeError. `isinstance` would trust the attribute `__class__`, which a mock can set to str.
    for item in items:
        if not issubclass(type(item), str):
            raise ReportError(f"{expected}, got an item {describe_value(item)}")
    # A subclass of str may have a hash or an encoding of its own. Its characters are the item.
    return {str.__str__(item) for item in items}


def _has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains half of a surrogate pair, which UTF-8 cannot express."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
