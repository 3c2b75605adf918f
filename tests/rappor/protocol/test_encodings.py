"""Encodings: the bits that a value sets, and the values that are refused.

A value is secret. So no message and no error may contain it, whatever object a program records.
"""

from __future__ import annotations

import math
import traceback
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings import get_encoder, parse_value
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.params import Params

NOISE: dict[str, Any] = {"f": 0.5, "p": 0.25, "q": 0.75}
BLOOM = Params(k=128, h=2, m=64, **NOISE)
BOOLEAN = Params(k=1, encoding="boolean", **NOISE)


def make_params(encoding: str, *names: str, normalize: str = "none") -> Params:
    """Return parameters of an encoding with these categories or edges."""
    k = len(names) + (encoding == "buckets")
    return Params(k=k, encoding=encoding, categories=names, normalize=normalize, **NOISE)


ONEHOT = make_params("onehot", *"abcdefghi")
BUCKETS = make_params("buckets", "-1", "0", "2.5")


def list_ones(params: Params, value: object, cohort: int = 0) -> list[int]:
    """Return the indices of the bits that a value sets, in the order of the protocol."""
    packed = get_encoder(params).encode(value, cohort)
    assert len(packed) == params.n_bytes
    return [i for i in range(8 * len(packed)) if packed[i // 8] >> i % 8 & 1]


def test_a_string_is_normalised_before_it_is_hashed() -> None:
    """Strings that the normalizer makes equal set equal bits."""
    folded = Params(k=128, h=2, m=64, normalize="casefold", **NOISE)
    assert (
        list_ones(folded, "STRASSE", 5)
        == list_ones(folded, "straße", 5)
        == list_ones(BLOOM, "strasse", 5)
    )


def test_another_hash_layout_is_not_for_devices() -> None:
    """The encoder refuses a hash layout that it does not compute."""
    with pytest.raises(ParamsError, match="layout must be rappor-1 to encode, got 'other'"):
        get_encoder(Params(k=8, layout="other", **NOISE))


def test_categories_are_compared_after_normalising_both() -> None:
    """The names of categories are normalized as well, so they may have capitals."""
    params = make_params("onehot", "Straße", "Weg", normalize="casefold")
    assert list_ones(params, "STRASSE") == [0]


def test_categories_that_normalise_alike_are_refused() -> None:
    """The encoder refuses categories that the normalizer makes equal."""
    with pytest.raises(ParamsError, match="distinct after normalising by casefold, got 'A' again"):
        get_encoder(make_params("onehot", "a", "b", "A", normalize="casefold"))


@pytest.mark.parametrize(
    ("bucket", "values"),
    [
        (0, (-math.inf, -(10**400), -1.0000000001)),
        (1, (-1, -1.0, -1e-300)),
        (2, (0, -0.0, 2.4999999999999996)),
        (3, (2.5, 10**400, math.inf)),
    ],
)
def test_a_bucket_contains_its_lower_edge(bucket: int, values: tuple[float, ...]) -> None:
    """A bucket contains its lower edge, and not its upper edge.

    Integers are compared exactly: an integer of 400 digits is larger than every float.
    """
    assert [list_ones(BUCKETS, value) for value in values] == [[bucket]] * 3


@pytest.mark.parametrize(
    ("params", "value", "bits"),
    [
        (ONEHOT, "z", []),
        (ONEHOT, "", []),
        (BUCKETS, math.nan, []),
        (make_params("onehot", "a", "b", normalize="strip"), "b" * 8193, []),
        (ONEHOT, "a", None),
        *((BUCKETS, value, None) for value in (math.inf, 10**400)),
        (BOOLEAN, False, None),
        *((BLOOM, value, None) for value in ("", "x" * 100_000)),  # any string fits
    ],
)
def test_a_value_outside_the_categories_is_reported_without_a_bit(
    params: Params, value: object, bits: list[int] | None
) -> None:
    """A value that is not listed is encoded as zeros, and `is_representable` returns False.

    A device reports such a value like any other. A missing report would reveal that the value is
    not listed. In the table, None stands for a value that sets a bit.
    """
    assert get_encoder(params).is_representable(value) == (bits is None)
    assert bits in (None, list_ones(params, value))


@pytest.mark.parametrize("value", ["about:blank", "", "http://a.org/" + "x" * 8180])
def test_a_text_without_a_host_is_hashed_as_the_empty_text(value: str) -> None:
    """A text without a host sets the bits of the empty text, and `is_representable` returns False.

    The device reports it like any other value, so the report does not reveal that a host is
    missing.
    """
    params = Params(k=128, h=2, m=64, normalize="host", **NOISE)
    assert list_ones(params, value) == list_ones(BLOOM, "")
    assert not get_encoder(params).is_representable(value)
    assert get_encoder(params).is_representable("http://a.org/")


TRUTH = "thetruthabc"
"""Value that must appear in no message."""


@pytest.mark.parametrize(
    ("params", "value", "reason"),
    [
        (BLOOM, 5, "a value must be a text, got int"),
        (BLOOM, None, "a value must be a text, got NoneType"),
        (BLOOM, TRUTH.encode(), "a value must be a text, got bytes"),
        (BLOOM, TRUTH + "\udfff", "a value must be valid Unicode, got 12 characters with a lone"),
        (ONEHOT, True, "a value must be a text, got bool"),
        (ONEHOT, ["a"], "a value must be a text, got list"),
        (BOOLEAN, 1, "a value must be True or False, got int"),
        (BOOLEAN, TRUTH, "a value must be True or False, got a str of 11 characters"),
        (BOOLEAN, None, "a value must be True or False, got NoneType"),
        (BUCKETS, True, "a value must be an int or a float, got bool"),
        (BUCKETS, TRUTH, "a value must be an int or a float, got a str of 11 characters"),
        (BUCKETS, Fraction(12345), "a value must be an int or a float, got Fraction"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_without_showing_it(
    params: Params, value: object, reason: str
) -> None:
    """The message contains the type and the length, never the value."""
    with pytest.raises(ReportError, match=reason) as caught:
        get_encoder(params).encode(value, 0)
    assert TRUTH not in str(caught.value)
    assert "12345" not in str(caught.value)


class Raising:
    """Object whose methods raise an error that contains the value.

    A program may record objects of its own classes, or of a framework. Their errors must not carry
    the value into a log.
    """

    def fail(self, *_: object) -> Any:
        """Raise an error in place of a result."""
        raise ZeroDivisionError(TRUTH)

    __bool__ = __contains__ = __getitem__ = __iter__ = __len__ = __float__ = __int__ = fail
    __lt__ = __gt__ = __le__ = __ge__ = __str__ = items = fail


class RaisingText(Raising, str):
    """A text whose methods raise."""

    __slots__ = ()
    __hash__ = str.__hash__


class RaisingDict(Raising, dict[str, str]):
    """A mapping whose methods raise."""


class RaisingList(Raising, list[str]):
    """A collection whose methods raise."""


class RaisingFloat(Raising, float):
    """A number whose methods raise."""


class RaisingInteger(Raising, int):
    """An integer whose methods raise."""


class RaisingKey(str):
    """The name of a field, which cannot be compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError(TRUTH)


class UnboundProxy:
    """A proxy of a web framework outside a request. Reading its attribute `__class__` raises."""

    __class__: Any = property(Raising.fail)


class NamelessType(type):
    """A class of classes without a name."""

    __name__: Any = property(Raising.fail)


class Nameless(metaclass=NamelessType):
    """An object whose type has no readable name for a message."""


SETS = Params.profile("once", encoding="set", items=2)
TUPLES = Params(k=128, h=2, m=64, field_names=("site", "country"), **NOISE)


UNREADABLE: dict[str, object] = {
    "object": Raising(),
    "mapping": RaisingDict(site=TRUTH, country="de"),
    "collection": RaisingList([TRUTH]),
    "number": RaisingFloat(2.5),
    "integer": RaisingInteger(2),
    "key": {RaisingKey("site"): TRUTH, "country": "de"},
    "proxy": UnboundProxy(),
    "proxy in a mapping": {"site": UnboundProxy(), "country": "de"},
    "proxy in a list": [UnboundProxy()],
    "nameless": Nameless(),
    "nameless in a mapping": {"site": Nameless(), "country": "de"},
    "nameless in a list": [Nameless()],
    "array": np.array(TRUTH),
}
"""Values that no encoding accepts, by name. Tests are parametrized by the names, because pytest
calls methods of parameters."""


@pytest.mark.parametrize("params", [BLOOM, ONEHOT, BOOLEAN, BUCKETS, SETS, TUPLES])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_value_whose_class_raises_is_of_the_wrong_kind(params: Params, kind: str) -> None:
    """A value whose methods raise is refused with ReportError, without the value in the traceback.

    The client would take another error for a failure of the disk. The message of that error may
    contain the value, and the client logs failures.
    """
    value = UNREADABLE[kind]
    for step in (get_encoder(params).read_value, lambda value: list_ones(params, value)):
        with pytest.raises(ReportError) as refusal:
            step(value)
        assert TRUTH not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("params", "value", "plain"),
    [
        (BLOOM, RaisingText("a"), "a"),
        (ONEHOT, np.str_("a"), "a"),
        (BOOLEAN, np.bool_(True), True),
        (BUCKETS, np.float32(0.5), 0.5),
        (BUCKETS, np.int64(7), 7),
        (SETS, {"git": 1, "vim": 2}.keys(), {"git", "vim"}),
        (SETS, [RaisingText("git"), "git"], {"git"}),
        (TUPLES, {"country": RaisingText("de"), "site": "a"}, {"site": "a", "country": "de"}),
    ],
    ids=["text", "category", "boolean", "float", "integer", "keys", "list", "fields"],
)
def test_a_value_is_read_once(params: Params, value: object, plain: object) -> None:
    """`read_value` converts a value to Python's own types, and later steps use the converted value.

    The methods of Python's own types do not raise, and give the same result at each reading. The
    converted value has the same bits as the recorded value.
    """
    encoder = get_encoder(params)
    result = encoder.read_value(value)
    assert result == plain
    members: tuple[object, ...] = (result,)
    if isinstance(result, dict):
        members = (result, *result.values())
    elif isinstance(result, set):
        members = (result, *result)
    assert {type(member) for member in members} <= {str, bool, int, float, dict, set}
    assert encoder.read_value(result) == result
    assert encoder.encode(result, 0) == encoder.encode(value, 0)


@pytest.mark.parametrize(
    "form", [np.int8, np.int64, np.uint64, np.float16, np.float32, np.float64, np.longdouble]
)
@pytest.mark.parametrize("value", [0, 1, 2, 10, 120])
def test_a_number_of_numpy_is_encoded_as_its_value(form: Any, value: int) -> None:
    """A number of numpy sets the same bit as the equal number of Python."""
    assert list_ones(BUCKETS, form(value)) == list_ones(BUCKETS, value)


@pytest.mark.parametrize("form", [np.float16, np.float32])
def test_a_short_float_of_numpy_is_compared_exactly(form: Any) -> None:
    """A float of 16 or 32 bits is compared with an edge as it is, without rounding the edge.

    numpy itself would round the edge to the shorter type, so that 0.1 as float32 and the edge 0.1
    would count as equal.
    """
    for edge in (0.1, 0.3, 0.7):
        params = Params(k=2, h=1, m=1, encoding="buckets", categories=(str(edge),), **NOISE)
        assert list_ones(params, form(edge)) == list_ones(params, float(form(edge)))
    assert list_ones(BUCKETS, form("nan")) == list_ones(BUCKETS, math.nan)


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_of_numpy_is_a_boolean(value: bool) -> None:
    """A boolean of numpy is a value of the boolean encoding, and is not a number."""
    assert list_ones(BOOLEAN, np.bool_(value)) == list_ones(BOOLEAN, value)
    with pytest.raises(ReportError, match="an int or a float"):
        list_ones(BUCKETS, np.bool_(value))


@pytest.mark.parametrize("value", [np.int64(1), np.array(1), np.array([1, 2]), np.complex128(1)])
def test_another_value_of_numpy_is_refused(value: object) -> None:
    """The boolean encoding refuses numbers; buckets refuse arrays and complex numbers."""
    with pytest.raises(ReportError, match="True or False"):
        list_ones(BOOLEAN, value)
    if not isinstance(value, np.int64):
        with pytest.raises(ReportError, match="an int or a float"):
            list_ones(BUCKETS, value)


@pytest.mark.parametrize(
    ("params", "cohort"),
    [
        *((BLOOM, cohort) for cohort in (-1, 64, True, 0.0, "0", None)),
        *((params, 1) for params in (ONEHOT, BOOLEAN, BUCKETS)),  # these have one cohort
    ],
)
def test_a_cohort_out_of_range_is_refused(params: Params, cohort: Any) -> None:
    """A cohort is an integer from 0 to m - 1.

    Another cohort would set bits that no decoder expects.
    """
    with pytest.raises(ReportError, match=rf"cohort must be an integer in \[0, {params.m - 1}\]"):
        get_encoder(params).encode("a", cohort)


@pytest.mark.parametrize(
    ("params", "text", "value"),
    [
        (BLOOM, " Text, as it is ", " Text, as it is "),
        (ONEHOT, "a", "a"),
        (BUCKETS, "2.5", 2.5),
        (BUCKETS, "-1e3", -1000.0),
        *((BOOLEAN, text, True) for text in ("true", "Yes", "1")),
        *((BOOLEAN, text, False) for text in ("FALSE", "no", "0")),
    ],
)
def test_text_becomes_a_value(params: Params, text: str, value: object) -> None:
    """A text of a command line becomes a value of the type that the encoding accepts.

    A value has one argument. Other numbers of arguments are refused.
    """
    parsed = parse_value(params, text)
    assert (parsed, type(parsed)) == (value, type(value))
    encoder = get_encoder(params)
    encoder.encode(parsed, 0)
    assert encoder.parse_arguments([text]) == value
    for texts in ([], [text, text]):
        with pytest.raises(ReportError, match=f"must be one argument, got {len(texts)}"):
            encoder.parse_arguments(texts)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (BOOLEAN, "a value must be one of true, false, yes, no, 1, 0, got a str of 11 characters"),
        (BUCKETS, "a value must be a number, got a str of 11 characters"),
    ],
)
def test_text_that_is_not_a_value_is_refused_without_showing_it(
    params: Params, reason: str
) -> None:
    """The message contains the length of the text, never the text."""
    with pytest.raises(ReportError, match=reason) as caught:
        parse_value(params, TRUTH)
    assert TRUTH not in str(caught.value)


@pytest.mark.parametrize(
    "edges",
    [(1.0, 2.0), (1e17, 2e17), (-1.7e308, 1.7e308), (1.0, math.nextafter(1, 2)), (-1.0, 0.0, 2.5)],
)
def test_the_most_different_pairs_of_numbers_set_every_bit(edges: tuple[float, ...]) -> None:
    """Large and close edges are included: 1e17 - 1 equals 1e17, and a middle may overflow."""
    params = make_params("buckets", *map(format_edge, edges))
    pairs = get_encoder(params).most_different_pairs
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    bits = [list_ones(params, parse_value(params, text)) for text in texts]
    assert bits == [[i] for i in range(params.k)]
