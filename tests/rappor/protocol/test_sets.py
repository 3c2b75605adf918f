"""Sets of strings: their items, the values that are refused, and values of unusual size.

Each item of a set owns a bucket: the bucket to which its hash belongs. The true bits of a set are
the own buckets of its items.
"""

from __future__ import annotations

import array
from collections import UserList
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from rappor import ReportError
from rappor.protocol import normalizers
from rappor.protocol.encodings import bloom, get_encoder, get_encoding, sets
from rappor.protocol.encodings.sets import Sets
from rappor.protocol.params import Params

PARAMS = Params.profile("once", encoding="set", items=2)


class Unhashable(str):
    """A text whose hash and encoding raise errors that contain the text.

    A program may pass objects of its own classes. An error of such a class must not carry the value
    into a log.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        raise LookupError(f"lost {self!s}")

    def encode(self, *_: object) -> bytes:
        """Fail."""
        raise LookupError(f"lost {self!s}")


def make_encoder(**fields: Any) -> Sets:
    """Return the encoder of sets of at most two items."""
    encoder = get_encoder(Params.profile("once", encoding="set", items=2, **fields))
    assert isinstance(encoder, Sets)
    return encoder


@given(st.lists(st.text(max_size=5), max_size=9), st.integers(0, 127))
def test_each_item_owns_the_bucket_of_its_hash(items: list[str], cohort: int) -> None:
    """The true bits of a set are the buckets of its items, as the reference computes them.

    A set has no order and no repetition, whatever collection represents it. The empty text is no
    item. A set with more than two items does not fit these parameters.
    """
    encoder = make_encoder()
    own_buckets = reference.list_own_buckets(items, cohort, PARAMS.k)
    expected = reference.pack([int(i in own_buckets) for i in range(PARAMS.k)])
    for value in (items, tuple(items[::-1]), set(items), dict.fromkeys(items).keys(), items * 2):
        assert encoder.encode(value, cohort) == expected
    assert encoder.is_representable(items) is (len(set(items) - {""}) <= 2)


def test_items_are_normalized_before_they_are_compared() -> None:
    """Items that the normalizer makes equal are one item, and own one bucket.

    An item that becomes empty owns no bucket: a text without a host, or a text that is too long.
    """
    encoder = make_encoder(normalize="casefold")
    assert encoder.encode(["Git", "GIT"], 3) == encoder.encode(["git"], 3)
    hosts = make_encoder(normalize="host")
    assert hosts.encode(["http://a.org/x", "two words", "C:\\x"], 3) == hosts.encode(["a.org"], 3)
    assert hosts.encode(["a" * 9000], 3) == bytes(PARAMS.n_bytes)


def test_an_item_with_a_lone_surrogate_is_left_out_and_counted() -> None:
    """An item with a lone surrogate has no UTF-8, so the device reports the other items.

    Names of files can contain lone surrogates. The encoder says that the set is not representable.
    """
    encoder = make_encoder()
    value = ["git", "broken\ud800name"]
    assert encoder.encode(value, 5) == encoder.encode(["git"], 5)
    assert not encoder.is_representable(value)
    assert encoder.is_representable(["git"])
    assert encoder.is_representable([])


@pytest.mark.parametrize(
    "value",
    [
        "git",
        b"git",
        bytearray(b"git"),
        memoryview(b"git"),
        {"git": 1},
        (item for item in ["git"]),
        iter(["git"]),
        map(str, [1]),
        None,
        7,
        True,
        ["git", 7],
        ["git", None],
        ["git", b"vim"],
        [["git"]],
        ["git", ["vim"]],
        {1, 2},
        range(3),
        array.array("i", [1]),
        np.array([1, 2]),
        ["git", np.array([1, 2])],
        [MagicMock(spec=str)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_the_wrong_kind_is_a_mistake(value: object) -> None:
    """A value that is not a collection of texts is refused, and the message contains no item.

    A text is a sequence of letters, so `"git"` would silently become the set of g, i and t. An
    iterator would be empty at the second reading.
    """
    encoder = make_encoder()
    for read in (encoder.read_value, lambda value: encoder.encode(value, 0)):
        with pytest.raises(ReportError, match="a value must be a collection of texts") as refusal:
            read(value)
        assert "git" not in str(refusal.value)


@pytest.mark.parametrize(
    "value", [[], (), set(), frozenset(), {}.keys(), UserList(["git"]), np.array(["git", "vim"])]
)
def test_collections_of_every_kind_are_values(value: object) -> None:
    """Every collection of texts is a value, the empty set as well.

    A device with the empty set reports a random bucket. Without a report, the missing report would
    reveal the empty set.
    """
    encoder = make_encoder()
    encoder.read_value(value)
    encoder.encode(value, 0)


@pytest.mark.parametrize("value", [[""], ["", ""], {""}, ["two words", ""]])
def test_a_set_of_empty_items_is_the_empty_set(value: object) -> None:
    """Items that are empty, also after normalizing, own no bucket, and the set fits.

    The normalizer `host` leaves nothing of a text that is no address.
    """
    encoder = make_encoder(normalize="host")
    assert encoder.encode(value, 5) == encoder.encode([], 5)
    assert encoder.is_representable(value)


def test_a_subclass_of_texts_counts_by_its_characters() -> None:
    """An item of a subclass of `str` is read as its characters; its own methods are not called."""
    encoder = make_encoder()
    assert encoder.read_value([Unhashable("git"), "vim"]) == {"git", "vim"}
    assert encoder.encode([Unhashable("git"), "git"], 0) == encoder.encode(["git"], 0)


@pytest.mark.slow
def test_items_are_read_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_representable` normalizes three of a million items, because three are more than two.

    A program may record a large set in its main thread, so the check must be fast.
    """
    read: list[object] = []

    def normalize(name: str, text: object) -> str:
        read.append(text)
        return normalizers.normalize(name, text)

    monkeypatch.setattr(sets, "normalize", normalize)
    assert not make_encoder().is_representable([f"item {number}" for number in range(1_000_000)])
    assert len(set(read) - {""}) == 3


def test_hashing_ends_when_every_bucket_is_an_own_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last item that is hashed gives the last bucket an owner. Later items change nothing.

    Hashing all of a million items takes seconds of the program that records. The 100,000 items here
    leave one of the 2,040 buckets without an owner with a probability below 2040 exp(-49) = 1e-18.
    """
    params = Params.profile("once", encoding="set", items=64)
    hashed: list[set[int]] = []

    def hash_to_bits(item: bytes, cohort: int, params: Params) -> list[int]:
        buckets = bloom.hash_to_bits(item, cohort, params)
        hashed.append(set(buckets))
        return buckets

    monkeypatch.setattr(sets, "hash_to_bits", hash_to_bits)
    bits = get_encoder(params).encode([f"item {number}" for number in range(100_000)], 0)
    assert int.from_bytes(bits, "little").bit_count() == params.k
    assert len(set[int]().union(*hashed[:-1])) == params.k - 1


def test_a_set_is_described_by_its_numbers_of_items_and_buckets() -> None:
    """The description for people has both numbers, and a text with tabs is parsed as a set."""
    encoding = get_encoding(PARAMS)
    assert encoding.description == "a set of up to 2 texts, each hashed to one of 112 buckets"
    assert list(encoding.true_bit_counts) == [2]
    assert encoding.parse_value("git\tvim") == ["git", "vim"]
    assert make_encoder().encode(encoding.parse_value(""), 0) == bytes(PARAMS.n_bytes)
    assert not encoding.is_exclusive
