"""Encodings: a value sets the bits of the protocol, and values of other types are refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rappor.base.errors import ParamsError, ReportError
from rappor.protocol.encodings import get_encoder, parse_value
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
def test_a_bucket_holds_its_lower_edge(bucket: int, values: tuple[float, ...]) -> None:
    """A bucket contains its lower edge and not its upper edge; integers are compared exactly."""
    assert [list_ones(BUCKETS, value) for value in values] == [[bucket]] * 3


@pytest.mark.parametrize(
    ("params", "value", "bits"),
    [
        (ONEHOT, "z", []),
        (ONEHOT, "", []),
        (BUCKETS, math.nan, []),
        (make_params("onehot", "a", "b", normalize="strip"), "b" * 8193, []),
        *((ONEHOT, value, None) for value in "a"),
        *((BUCKETS, value, None) for value in (math.inf, 10**400)),
        (BOOLEAN, False, None),
        *((BLOOM, value, None) for value in ("", "x" * 100_000)),  # any string fits
    ],
)
def test_a_value_outside_the_categories_is_reported_without_a_bit(
    params: Params, value: object, bits: list[int] | None
) -> None:
    """A missing report would reveal the value; `is_representable` says whether it has a bit."""
    assert get_encoder(params).is_representable(value) == (bits is None)
    assert bits in (None, list_ones(params, value))


@pytest.mark.parametrize("value", ["about:blank", "", "http://a.org/" + "x" * 8180])
def test_a_text_without_a_host_is_hashed_as_the_empty_one(value: str) -> None:
    """The empty text is hashed like any other, and is not representable."""
    params = Params(k=128, h=2, m=64, normalize="host", **NOISE)
    assert list_ones(params, value) == list_ones(BLOOM, "")
    assert not get_encoder(params).is_representable(value)
    assert get_encoder(params).is_representable("http://a.org/")


TRUTH = "thetruthabc"


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


@pytest.mark.parametrize(
    "form", [np.int8, np.int64, np.uint64, np.float16, np.float32, np.float64, np.longdouble]
)
@pytest.mark.parametrize("value", [0, 1, 2, 10, 120])
def test_a_number_of_numpy_is_encoded_as_its_value(form: Any, value: int) -> None:
    """A number of numpy sets the same bit as the equal number of Python."""
    assert list_ones(BUCKETS, form(value)) == list_ones(BUCKETS, value)


@pytest.mark.parametrize("form", [np.float16, np.float32])
def test_a_short_number_of_numpy_is_compared_exactly(form: Any) -> None:
    """The program rounds it once; comparing it with an edge rounds nothing again."""
    for edge in (0.1, 0.3, 0.7):
        params = Params(k=2, h=1, m=1, encoding="buckets", categories=(str(edge),), **NOISE)
        assert list_ones(params, form(edge)) == list_ones(params, float(form(edge)))
    assert list_ones(BUCKETS, form("nan")) == list_ones(BUCKETS, math.nan)


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_of_numpy_is_a_boolean(value: bool) -> None:
    """It is a value of the boolean encoding, and not a number."""
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
        *((params, 1) for params in (ONEHOT, BOOLEAN, BUCKETS)),  # they have one cohort
    ],
)
def test_a_cohort_out_of_range_is_refused(params: Params, cohort: Any) -> None:
    """A cohort is an integer from 0 to m - 1."""
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
    """A text of a command line becomes a value of the type that the encoding accepts."""
    parsed = parse_value(params, text)
    assert (parsed, type(parsed)) == (value, type(value))
    get_encoder(params).encode(parsed, 0)


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
