"""Parameter sets: exact thresholds, refused values with their reasons, and fingerprints.

Device and decoder must agree on a parameter set to the last bit, so probabilities become 32-bit
thresholds, and every parameter set has one spelling.
"""

from __future__ import annotations

import dataclasses
import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rappor.base.errors import ParamsError
from rappor.protocol.encodings.buckets import format_edge
from rappor.protocol.params import MAX_BITS, Params
from rappor.protocol.thresholds import ONE, compute_threshold
from rappor.protocol.tuples import combine_categories


def build_params(**changes: Any) -> Params:
    """Return parameters of strings with some changed arguments."""
    fields: dict[str, Any] = {"k": 8, "h": 2, "m": 4, "f": 0.5, "p": 0.25, "q": 0.75}
    return Params(**fields | changes)


def build_category_params(encoding: str, *categories: str, **changes: Any) -> Params:
    """Return parameters with categories or edges, and with some changed arguments."""
    extra = encoding == "buckets"
    fields = {"k": max(len(categories) + extra, 1), "h": 1, "m": 1}
    return build_params(encoding=encoding, categories=categories, **fields | changes)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [(0, 0), (1, ONE), (0.5, 1 << 31), (2**-33, 1), (0.999 * 2**-33, 0), (1 - 2**-34, ONE)],
)
def test_a_threshold_is_rounded_half_up(probability: float, expected: int) -> None:
    """A threshold is floor(x * 2^32 + 0.5), computed in binary64.

    Another rule of rounding would give another fingerprint in another language.
    """
    assert compute_threshold(probability) == expected


def test_size_and_density_of_a_report() -> None:
    """A report has ceil(k/8) bytes, and `density` is the probability that a string sets a bit."""
    assert [build_params(k=k).n_bytes for k in (2, 8, 9, 2040)] == [1, 1, 2, 255]
    assert build_params(k=4, h=2).density == pytest.approx(1 - (3 / 4) ** 2)
    assert build_params(k=1, h=1, m=1, encoding="boolean").density == 1


REFUSED_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"encoding": "b"}, "encoding must be one of bloom, onehot, boolean, buckets, set, got 'b'"),
    (
        {"encoding": "flags"},
        "^encoding must not be 'flags': use a metric of encoding boolean for each flag$",
    ),
    ({"encoding": ["bloom"]}, "encoding must be one of .*, got \\['bloom'\\]"),
    ({"normalize": "upper"}, "normalize must be one of none, nfc, .*, got 'upper'"),
    ({"layout": ""}, "layout must be a non-empty name, got ''"),
    ({"layout": "\ud800"}, "layout must be valid Unicode, got a lone surrogate"),
    ({"layout": 3}, "layout must be a non-empty name, got 3"),
    *(
        ({name: value}, re.escape(f"{name} must be {constraint}, got {value!r}"))
        for name, constraint, wrong in (
            ("k", "an integer in [2, 2,040]", (1, 2041, 8.0, "8")),
            ("h", "an integer in [1, 16]", (0, 17, True)),
            ("m", "an integer in [1, 65,536]", (0, 65537)),
            ("f", "a number in [0, 1)", (1, -0.1, math.nan, False, "0.5")),
            ("g", "a number in [0, 1]", (1.1,)),
            ("p", "a number in [0, 1]", (-1, math.nan, True)),
            ("q", "a number in [0, 1]", (1.5, math.inf, None)),
        )
        for value in wrong
    ),
    ({"p": 0.75}, r"p must be less than q by at least 2\^-32, got p = 0.75 and q = 0.75"),
    ({"p": 0.75 - 2**-40}, "p must be less than q"),
    ({"f": 2**-34}, r"f must be 0 or at least 2\^-32"),
    ({"f": 1 - 2**-33}, r"f must be less than 1 by at least 2\^-31"),
    ({"f": 0, "p": 0}, "f g must be greater than 0 where p is 0, got f = 0 and g = 0.5"),
    ({"f": 0, "q": 1}, r"f \(1 - g\) must be greater than 0 where .*; set insecure to allow it"),
    ({"categories": ("a",)}, "categories must be empty for encoding bloom"),
    ({"encoding": "boolean"}, "h must be 1 for encoding boolean, got 2"),
    ({"encoding": "boolean", "h": 1}, "m must be 1 for encoding boolean, got 4"),
    ({"encoding": "boolean", "h": 1, "m": 1}, "k must be 1 for encoding boolean, got 8"),
    (
        {"encoding": "boolean", "h": 1, "m": 1, "k": 1, "normalize": "nfc"},
        "normalize must be none for encoding boolean",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED_ARGUMENTS)
def test_an_argument_outside_its_range_is_refused(changes: dict[str, Any], reason: str) -> None:
    """The message names the argument, its constraint and the refused value."""
    with pytest.raises(ParamsError, match=reason):
        build_params(**changes)


REFUSED_NAMES: list[tuple[str, tuple[Any, ...], str]] = [
    ("onehot", ("a",), "categories must number at least 2, got 1"),
    ("buckets", (), "edges must number at least 1, got 0"),
    ("onehot", ("a", ""), "categories must be non-empty and free of control characters, got ''"),
    ("onehot", ("a", "b\n"), "categories must be non-empty and free of control characters"),
    ("onehot", ("a", "\x85"), "categories must be non-empty and free of control characters"),
    ("onehot", ("a", "\ud800"), "categories must be valid Unicode, got a lone surrogate"),
    ("onehot", ("a", "b", "a"), "categories must be distinct, got 'a' twice"),
    ("onehot", ("a", 1), "categories must be a tuple of texts"),
    ("buckets", ("x",), "edges must be decimal numbers"),
    ("buckets", ("1", "1"), "edges must be distinct, got '1' twice"),
    ("buckets", ("2", "1"), "edges must increase"),
    ("buckets", ("inf",), "edges must be finite"),
    ("buckets", ("nan",), "edges must be finite"),
    ("buckets", ("1.0",), "edges must be written as shortest decimals; use format_edge"),
]


@pytest.mark.parametrize(("encoding", "names", "reason"), REFUSED_NAMES)
def test_wrong_names_are_refused(encoding: str, names: tuple[Any, ...], reason: str) -> None:
    """The message names the first category or edge that is wrong."""
    with pytest.raises(ParamsError, match=reason):
        build_category_params(encoding, *names)


def test_k_agrees_with_the_names() -> None:
    """The number of bits, k, is the number of categories, or the number of edges plus one."""
    with pytest.raises(ParamsError, match=r"k must be 2, .* that the categories need, got 3"):
        build_category_params("onehot", "a", "b", k=3)
    with pytest.raises(ParamsError, match=r"k must be 3, .* that the edges need, got 2"):
        build_category_params("buckets", "1", "2", k=2)
    with pytest.raises(ParamsError, match="categories must be a tuple of texts"):
        build_params(encoding="onehot", k=2, h=1, m=1, categories=["a", "b"])
    with pytest.raises(ParamsError, match="normalize must be none for encoding buckets"):
        build_category_params("buckets", "1", normalize="nfc")


def test_insecure_parameters_are_made_on_request() -> None:
    """Parameters under which one report can reveal the value need `insecure=True`.

    One report reveals the value if a bit is certain to be 0 or 1 in it. That is the case with p = 0
    if the permanent response never forces a 1, and with q = 1 if it never forces a 0.
    """
    assert build_params(f=0, p=0, q=1, insecure=True).t_q == ONE
    assert build_params(f=0).t_1 == 0
    for certain in ({"g": 0, "p": 0}, {"g": 1, "q": 1}):
        with pytest.raises(ParamsError, match="one report reveals the value; set insecure"):
            build_params(f=0.5, **certain)
        assert build_params(f=0.5, **certain, insecure=True).f == 0.5


def test_the_limits_are_allowed() -> None:
    """Both ends of every allowed interval are accepted."""
    assert build_params(k=2, h=1, m=1).k == 2
    assert build_params(k=MAX_BITS, h=16, m=65536).m == 65536
    assert build_params(f=2**-32).t_1 == 1
    assert build_params(f=1 - 2**-31).t_1 == 2**31 - 1
    assert build_params(p=0, q=1).t_q == ONE


def test_every_field_enters_the_fingerprint() -> None:
    """Two parameter sets that differ in any field have different fingerprints.

    Otherwise a collector would add reports that were made under different parameters.
    """
    changes: list[dict[str, Any]] = [
        {},
        {"k": 9},
        {"h": 3},
        {"m": 5},
        {"f": 0.25},
        {"p": 0.5},
        {"q": 0.5},
        {"normalize": "nfc"},
        {"layout": "other"},
    ]
    sets = [build_params(**change) for change in changes]
    sets += [build_category_params("onehot", "a", "b"), build_category_params("onehot", "b", "a")]
    assert len({params.fingerprint for params in sets}) == len(sets)


TEXT = build_params().to_json()
"""JSON as `to_json` writes it. The test of refused texts changes one place of it."""


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "1", "{}", "[" * 100_000, TEXT[:-1], TEXT + "x"),
        *(
            TEXT.replace(old, new)
            for old, changed in {
                '"v":1': ('"v":2', '"v":true', '"v":1.0', '"v":1,"x":1', '"v":1,"v":1'),
                '"k":8': ('"k":8.0', '"k":8,"k":8'),
                '"m":4': ('"m":true',),
                '"h":2,': ("",),
                '"k":8,': ("",),
                '"f":1073741824': (
                    *(
                        f'"f":{number}'
                        for number in ("1073741824.25", '"x"', "NaN", 10**400, "9" * 5000)
                    ),
                    *('"f":1073741824,"f0":1073741824', '"f":2147483648,"f0":2147483648'),
                    *('"f":-1,"f0":1', '"f":1073741824,"g":0.5'),
                ),
                '"v"': ('"insecure":true,"v"',),
            }.items()
            for new in changed
        ),
        build_category_params("onehot", "a", "b").to_json().replace('["a","b"]', '"ab"'),
    ],
)
def test_other_json_is_refused(text: str) -> None:
    """from_json refuses every text that to_json does not write.

    A lenient reader would give one parameter set several fingerprints.
    """
    assert text != TEXT
    with pytest.raises(ParamsError):
        Params.from_json(text)


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (10, "10"),
        (0.5, "0.5"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.25e-7, "-1.25e-7"),
        (5e-324, "5e-324"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e16, "10000000000000000"),
        (100.25, "100.25"),
    ],
)
def test_edges_are_written_as_in_ecmascript(edge: float, text: str) -> None:
    """An edge is written as ECMAScript writes numbers (RFC 8785 section 3.2.2.3).

    Edges are part of the fingerprint, which a client in JavaScript computes, too.
    """
    assert format_edge(edge) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_edges_read_back(edge: float) -> None:
    """The text of an edge reads back to the same binary64 number.

    It has an exponent only if the number is below 1e-6 or at least 1e21.
    """
    text = format_edge(edge)
    assert float(text) == edge
    assert format_edge(float(text)) == text
    assert ("e" in text) == (edge != 0 and not 1e-6 <= abs(edge) < 1e21)


PROBABILITIES = st.floats(0, 1) | st.integers(0, ONE).map(lambda t: t / ONE)
"""Probabilities, of which many are exactly a threshold divided by 2^32."""

SHAPES = st.sampled_from(
    [
        {"k": 2, "h": 16, "m": 65536, "normalize": "domain"},
        {"k": MAX_BITS, "layout": "other"},
        {"k": 1, "encoding": "boolean"},
        {"k": 2, "encoding": "onehot", "categories": ("ä", "\U0001f388"), "normalize": "casefold"},
        {"k": 2, "encoding": "onehot", "categories": ('"\\', "a")},
        {"k": 3, "encoding": "buckets", "categories": ("-1e-7", "1e+21")},
    ]
)
"""Fields of parameter sets that a test combines with any noise: size, encoding and names."""


@given(SHAPES, st.floats(0, 0.999), st.floats(0, 1), PROBABILITIES, PROBABILITIES)
def test_any_parameter_set_is_read_back_from_its_fields_and_from_json(
    shape: dict[str, Any], f: float, g: float, first_rate: float, second_rate: float
) -> None:
    """A parameter set that is made again from its fields, or read from its JSON, is equal.

    The fields f, p and q are the effective probabilities: thresholds divided by 2^32. They give the
    same thresholds again, so a registry or a file can store either.
    """
    low, high = sorted((first_rate, second_rate))
    forced = compute_threshold(f * g) + compute_threshold(f * (1 - g))
    assume(compute_threshold(low) < compute_threshold(high) and (f == 0 or forced > 0))
    params = Params(**shape, f=f, g=g, p=low, q=high, insecure=True)
    assert (params.t_p, params.t_q) == (compute_threshold(low), compute_threshold(high))
    probabilities = (params.p, params.q, params.f)
    thresholds = (params.t_p, params.t_q, params.t_1 + params.t_0)
    expected = [Fraction(threshold, ONE) for threshold in thresholds]
    assert [Fraction(probability) for probability in probabilities] == expected
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    for again in (Params(**fields, insecure=True), Params.from_json(params.to_json())):
        assert again == params
        for name in ("t_1", "t_0", "t_p", "t_q"):
            assert getattr(again, name) == getattr(params, name)
        assert (again.to_json(), again.fingerprint) == (params.to_json(), params.fingerprint)


@pytest.mark.parametrize("code", range(0xA1))
def test_every_control_character_is_refused(code: int) -> None:
    """Names of categories contain no control character (U+0000 to U+001F, U+007F to U+009F).

    Such a character could change a terminal or a CSV file. U+00A0 is no control character.
    """
    if 0x20 <= code < 0x7F or code == 0xA0:
        assert build_category_params("onehot", "a", f"a{chr(code)}b").k == 2
        return
    with pytest.raises(ParamsError, match="free of control characters"):
        build_category_params("onehot", "a", f"a{chr(code)}b")


def test_the_largest_tuple_has_a_bit_for_each_of_2040_combinations() -> None:
    """A tuple of categories has at most 2,040 combinations: each needs a bit of the report.

    8 times 255 combinations are allowed, and 13 times 157 are one too many.
    """
    values = [str(number) for number in range(157)]
    lists = {"a": values[:8], "b": [f"b{number}" for number in range(255)]}
    assert len(combine_categories(lists)) == 2040
    with pytest.raises(ParamsError, match="must have at most 2,040 combinations, got 2,041"):
        combine_categories({"a": values[:13], "b": values})


def test_categories_that_are_no_product_are_refused_before_a_product_is_built() -> None:
    """Ten categories with eight different fields each would have 10^8 combinations."""
    fields = tuple("abcdefgh")
    categories = tuple("\x1f".join([f"value {i}"] * len(fields)) for i in range(10))
    with pytest.raises(ParamsError, match="must be all combinations"):
        Params(
            k=10,
            encoding="onehot",
            categories=categories,
            field_names=fields,
            f=0.5,
            p=0.25,
            q=0.75,
        )


@pytest.mark.parametrize("name", ["balanced", "once"])
def test_a_profile_for_categories_needs_categories(name: str) -> None:
    """The message names the missing argument, and not k, which a profile computes."""
    with pytest.raises(ParamsError, match="categories must be given for encoding onehot, got none"):
        Params.profile(name, encoding="onehot")


@pytest.mark.parametrize("empty", [[], None, "", {}])
def test_categories_of_an_encoding_without_categories_are_the_empty_tuple(empty: Any) -> None:
    """Otherwise two unequal parameter sets would have one fingerprint."""
    with pytest.raises(ParamsError, match="categories must be empty for encoding bloom"):
        Params(k=8, categories=empty, f=0.5, p=0.25, q=0.75)


@given(f=st.floats(1e-9, 0.999), g=st.floats(0, 1))
def test_rounding_to_thresholds_changes_the_probabilities_by_at_most_the_documented_amounts(
    f: float, g: float
) -> None:
    """Differences: 2^-33 at most for f g and f (1 - g), 2^-32 for f, and 2^-33 / f for g."""
    params = Params(k=8, f=f, g=g, p=0.25, q=0.75)
    slack = 1 + 1e-6  # for rounding in binary64
    assert abs(params.f1 - f * g) <= 2**-33 * slack
    assert abs(params.f0 - f * (1 - g)) <= 2**-33 * slack
    assert abs(params.f - f) <= 2**-32 * slack
    assert abs(params.g - g) <= 2**-33 / params.f * slack
