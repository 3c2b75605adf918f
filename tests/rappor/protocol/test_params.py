"""Parameters: exact thresholds, refusals with their reason, fingerprints."""

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
from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.params import MAX_BITS, ONE, Params, threshold


def make(**changes: Any) -> Params:
    fields: dict[str, Any] = {"k": 8, "h": 2, "m": 4, "f": 0.5, "p": 0.25, "q": 0.75}
    return Params(**fields | changes)


def named(encoding: str, *categories: str, **changes: Any) -> Params:
    extra = encoding == "buckets"
    fields = {"k": max(len(categories) + extra, 1), "h": 1, "m": 1}
    return make(encoding=encoding, categories=categories, **fields | changes)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [(0, 0), (1, ONE), (0.5, 1 << 31), (2**-33, 1), (0.999 * 2**-33, 0), (1 - 2**-34, ONE)],
)
def test_a_threshold_is_rounded_half_up(probability: float, expected: int) -> None:
    """floor(x * 2^32 + 0.5), in binary64."""
    assert threshold(probability) == expected


def test_sizes() -> None:
    """Bytes are rounded up; density is the chance that a random string sets a bit."""
    assert [make(k=k).n_bytes for k in (2, 8, 9, 2040)] == [1, 1, 2, 255]
    assert make(k=4, h=2).density == pytest.approx(1 - (3 / 4) ** 2)
    assert make(k=1, h=1, m=1, encoding="boolean").density == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"encoding": "b"}, "encoding must be one of bloom, onehot, boolean, buckets, got 'b'"),
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
        ({name: each}, re.escape(f"{name} must be {constraint}, got {each!r}"))
        for name, constraint, wrong in (
            ("k", "an integer in [2, 2,040]", (1, 2041, 8.0, "8")),
            ("h", "an integer in [1, 16]", (0, 17, True)),
            ("m", "an integer in [1, 65,536]", (0, 65537)),
            ("f", "a number in [0, 1)", (1, -0.1, math.nan, False, "0.5")),
            ("g", "a number in [0, 1]", (1.1,)),
            ("p", "a number in [0, 1]", (-1, math.nan, True)),
            ("q", "a number in [0, 1]", (1.5, math.inf, None)),
        )
        for each in wrong
    ),
    ({"p": 0.75}, r"p must be less than q by at least 2\^-32, got p = 0.75 and q = 0.75"),
    ({"p": 0.75 - 2**-40}, "p must be less than q"),
    ({"f": 2**-34}, r"f must be 0 or at least 2\^-32"),
    ({"f": 1 - 2**-33}, r"f must be less than 1 by at least 2\^-31"),
    ({"f": 0, "p": 0}, "f g must be greater than 0 where p is 0, got f = 0 and g = 0.5"),
    ({"f": 0, "q": 1}, r"f \(1 - g\) must be greater than 0 where .*; say insecure to allow it"),
    ({"categories": ("a",)}, "categories must be empty for encoding bloom"),
    ({"encoding": "boolean"}, "h must be 1 for encoding boolean, got 2"),
    ({"encoding": "boolean", "h": 1}, "m must be 1 for encoding boolean, got 4"),
    ({"encoding": "boolean", "h": 1, "m": 1}, "k must be 1 for encoding boolean, got 8"),
    (
        {"encoding": "boolean", "h": 1, "m": 1, "k": 1, "normalize": "nfc"},
        "normalize must be none for encoding boolean",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_is_outside_its_range_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Each field has its own sentence with the constraint and what was got."""
    with pytest.raises(ParamsError, match=reason):
        make(**changes)


NAMES_REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
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
    ("buckets", ("1.0",), "edges must be written as shortest decimals; use edge_text"),
]


@pytest.mark.parametrize(("encoding", "names", "reason"), NAMES_REFUSED)
def test_wrong_names_are_refused(encoding: str, names: tuple[Any, ...], reason: str) -> None:
    """Categories and edges are checked one by one."""
    with pytest.raises(ParamsError, match=reason):
        named(encoding, *names)


def test_k_agrees_with_the_names() -> None:
    """Each category needs a bit, and the edges one more than there are."""
    with pytest.raises(ParamsError, match=r"k must be 2, .* that the categories need, got 3"):
        named("onehot", "a", "b", k=3)
    with pytest.raises(ParamsError, match=r"k must be 3, .* that the edges need, got 2"):
        named("buckets", "1", "2", k=2)
    with pytest.raises(ParamsError, match="categories must be a tuple of texts"):
        make(encoding="onehot", k=2, h=1, m=1, categories=["a", "b"])
    with pytest.raises(ParamsError, match="normalize must be none for encoding buckets"):
        named("buckets", "1", normalize="nfc")


def test_insecure_parameters_are_made_on_request() -> None:
    """Whoever asks for no noise at all gets it, and says so again to get it again."""
    assert make(f=0, p=0, q=1, insecure=True).t_q == ONE
    assert make(f=0).t_1 == 0
    for certain in ({"g": 0, "p": 0}, {"g": 1, "q": 1}):
        with pytest.raises(ParamsError, match="one report reveals the value; say insecure"):
            make(f=0.5, **certain)
        assert make(f=0.5, **certain, insecure=True).f == 0.5


def test_the_limits_are_allowed() -> None:
    """Both ends of every interval."""
    assert make(k=2, h=1, m=1).k == 2
    assert make(k=MAX_BITS, h=16, m=65536).m == 65536
    assert make(f=2**-32).t_1 == 1
    assert make(f=1 - 2**-31).t_1 == 2**31 - 1
    assert make(p=0, q=1).t_q == ONE


def test_every_field_enters_the_fingerprint() -> None:
    """Two ends that differ anywhere notice."""
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
    sets = [make(**change) for change in changes]
    sets += [named("onehot", "a", "b"), named("onehot", "b", "a")]
    assert len({params.fingerprint for params in sets}) == len(sets)


TEXT = make().to_json()


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
                        f'"f":{each}'
                        for each in ("1073741824.25", '"x"', "NaN", 10**400, "9" * 5000)
                    ),
                    *('"f":1073741824,"f0":1073741824', '"f":2147483648,"f0":2147483648'),
                    *('"f":-1,"f0":1', '"f":1073741824,"g":0.5'),
                ),
                '"v"': ('"insecure":true,"v"',),
            }.items()
            for new in changed
        ),
        named("onehot", "a", "b").to_json().replace('["a","b"]', '"ab"'),
    ],
)
def test_other_json_is_refused(text: str) -> None:
    """Whatever to_json does not write is not read."""
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
    """RFC 8785 section 3.2.2.3."""
    assert edge_text(edge) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_edges_read_back(edge: float) -> None:
    """The text names the same binary64, and no exponent hides in a short one."""
    text = edge_text(edge)
    assert float(text) == edge
    assert edge_text(float(text)) == text
    assert ("e" in text) == (edge != 0 and not 1e-6 <= abs(edge) < 1e21)


probabilities = st.floats(0, 1) | st.integers(0, ONE).map(lambda t: t / ONE)
shapes = st.sampled_from(
    [
        {"k": 2, "h": 16, "m": 65536, "normalize": "domain"},
        {"k": MAX_BITS, "layout": "other"},
        {"k": 1, "encoding": "boolean"},
        {"k": 2, "encoding": "onehot", "categories": ("ä", "\U0001f388"), "normalize": "casefold"},
        {"k": 2, "encoding": "onehot", "categories": ('"\\', "a")},
        {"k": 3, "encoding": "buckets", "categories": ("-1e-7", "1e+21")},
    ]
)


@given(shapes, st.floats(0, 0.999), st.floats(0, 1), probabilities, probabilities)
def test_any_set_is_a_fixed_point_of_its_fields_and_of_json(
    shape: dict[str, Any], f: float, g: float, one: float, other: float
) -> None:
    """Made again from its own fields, or read back from JSON, a set is equal to the last bit.

    f, p and q are t / 2^32, and give the same thresholds again.
    """
    low, high = sorted((one, other))
    forced = threshold(f * g) + threshold(f * (1 - g))
    assume(threshold(low) < threshold(high) and (f == 0 or forced > 0))
    params = Params(**shape, f=f, g=g, p=low, q=high, insecure=True)
    assert (params.t_p, params.t_q) == (threshold(low), threshold(high))
    stated = (params.p, params.q, params.f)
    thresholds = (params.t_p, params.t_q, params.t_1 + params.t_0)
    assert [Fraction(each) for each in stated] == [Fraction(each, ONE) for each in thresholds]
    fields = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    for again in (Params(**fields, insecure=True), Params.from_json(params.to_json())):
        assert again == params
        for name in ("t_1", "t_0", "t_p", "t_q"):
            assert getattr(again, name) == getattr(params, name)
        assert (again.to_json(), again.fingerprint) == (params.to_json(), params.fingerprint)


@pytest.mark.parametrize("code", range(0xA1))
def test_every_control_character_is_refused(code: int) -> None:
    """Both blocks of them, to their first and last one; no other character is."""
    if 0x20 <= code < 0x7F or code == 0xA0:
        assert named("onehot", "a", f"a{chr(code)}b").k == 2
        return
    with pytest.raises(ParamsError, match="free of control characters"):
        named("onehot", "a", f"a{chr(code)}b")
