"""Any registry file is refused with one sentence, or its metrics can be recorded.

Files are drawn at random. A file that is loaded must not fail later, on the devices of users. A
file that is refused must not end in an error of Python.
"""

from __future__ import annotations

import datetime
import json
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import run_python

from rappor import encode_value
from rappor.base.errors import MetricError, MissingExtraError, RapporError
from rappor.protocol.encodings import ENCODINGS
from rappor.protocol.normalizers import MAX_TEXT_BYTES, NORMALIZERS
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor.registry.toml_file import KEYS

SECRET = bytes(range(32))
VALUES = {"boolean": True, "buckets": 0.5, "onehot": "a", "bloom": "A.com"}
"""Values that the tests record. Each encoding has one value."""

# The following TOML values replace values of a valid entry. They are plausible, at a limit, or of a
# wrong type. Hexadecimal integers may have more digits than Python converts from decimal.
NUMBERS = ("0", "-1", "1", "2", "7", "0.25", "0.5", "0.75", "1.0", "1e-300", "5e-324", "-0.0")
HUGE = ("nan", "inf", "-inf", "1e308", str(2**53), str(2**63), f"1{'0' * 400}", f"0x{'f' * 9000}")
TEXTS = ('""', '"a"', '"A"', '"whole"', '"prefix:2"', '"2030-12-31"', '"\\u0000"', '"x\\ny"')
DEEP = ("[" * 60 + "]" * 60, "{a = 1}", "[[1]]", "[1, 'a']", "2030-12-31", "12:00:00", "true")
LISTS = (
    '["a", "A"]',
    '["a", "b"]',
    '["ß", "ss"]',
    '["\\u00e9", "e\\u0301"]',
    '["a", " "]',
    '["a.com", "www.a.com"]',
    f'["a", "{"a" * (MAX_TEXT_BYTES + 1)}"]',
    "[0.5, 1]",
    f"[1, 0x{'f' * 300}]",
    '[{name = "prefix:2", share = 0.5}, {name = "whole"}]',
    f'[{{name = "prefix:2", share = 0x{"f" * 9000}}}, {{name = "whole"}}]',
)
CHOICES = [
    json.dumps(word)
    for word in (*ENCODINGS, *NORMALIZERS, "strict", "balanced", "life", "year", "month", "week")
]
LITERALS = st.sampled_from([*NUMBERS, *HUGE, *TEXTS, *DEEP, *LISTS, *CHOICES])

REQUIRED = {
    "description": '"What it is"',
    "owner": '"team"',
    "expires": "2030-12-31",
    "epoch": '"year"',
}
NOISE = {"f": "0.5", "p": "0.25", "q": "0.75"}
ENTRIES = [
    REQUIRED | NOISE | {"encoding": '"bloom"', "k": "8", "h": "1", "m": "4"},
    REQUIRED | NOISE | {"encoding": '"onehot"', "categories": '["a", "b"]'},
    REQUIRED | NOISE | {"encoding": '"buckets"', "edges": "[0, 1]"},
    REQUIRED | {"encoding": '"boolean"', "profile": '"balanced"'},
    REQUIRED | {"encoding": '"bloom"', "profile": '"balanced"', "candidates": '["a", "b"]'},
]
"""Valid entries of several encodings. `draw_registry` changes at most two keys of an entry."""


@st.composite
def draw_registry(draw: st.DrawFn) -> str:
    """Draw a registry of one metric that is valid except for at most four values.

    Up to two keys of the entry, the name of the metric, and the total may be wrong. The name and
    the total are seldom wrong, because such a registry is refused before its entry is read.
    """
    entry = dict(draw(st.sampled_from(ENTRIES)))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        entry[key] = draw(LITERALS)
    odd_names = ['"a.b"', '"x\\ny"', '""', "a.b", f"a{'.b' * 1000}"]
    name = draw(st.sampled_from(["page"] * 20 + odd_names))
    total = draw(st.one_of(*[st.just("inf")] * 9, LITERALS))
    lines = "\n".join(f"{key} = {value}" for key, value in entry.items())
    return f"[budget]\ntotal = {total}\n[metrics.{name}]\n{lines}\n"


def load_or_refuse(text: str) -> Registry | None:
    """Return the registry, or None if it was refused with one sentence."""
    try:
        return Registry.loads(text, today=datetime.date(2026, 11, 30))
    except RapporError as error:
        sentence = str(error)
    assert 10 < len(sentence) < 2000
    assert "\n" not in sentence
    return None


def record_value(metric: Metric) -> None:
    """Encode the value that `VALUES` has for the encoding of the metric."""
    day = min(metric.expires, datetime.date(2026, 11, 30))
    encode_value(SECRET, metric, VALUES[metric.params.encoding], epoch=metric.epoch_at(day))


@pytest.mark.slow
@settings(max_examples=400)
@given(draw_registry())
def test_values_of_a_loaded_registry_are_encoded(text: str) -> None:
    """If a registry is loaded without an error, a value of its metric is encoded without an error.

    The registry is loaded on the machine of its author, and values are encoded on devices.
    """
    registry = load_or_refuse(text)
    for metric in registry.values() if registry else ():
        record_value(metric)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(draw_registry(), st.data())
@example("[metrics.a]\nf" + ".x" * 2000 + " = 1\n", None)
@example("[metrics.page]\nencoding" + ".x" * 2000 + " = 1\n", None)
def test_a_damaged_registry_is_refused_in_one_sentence(
    text: str, data: st.DataObject | None
) -> None:
    """A registry with up to 40 damaged characters is loaded, or refused in one sentence.

    The two examples are keys with 2,000 dots. TOML reads each dot as a table in a table, and the
    depth of the tables must not exhaust Python's stack.
    """
    if data is not None:
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + data.draw(st.text(string.printable, max_size=10)) + text[stop:]
    load_or_refuse(text)


def format_registry(**entry: str) -> str:
    """Return the text of a registry of one metric with an infinite total."""
    lines = "\n".join(f"{key} = {value}" for key, value in entry.items())
    return f"[budget]\ntotal = inf\n[metrics.page]\n{lines}\n"


@pytest.mark.parametrize(
    ("categories", "normalizer", "reason"),
    [
        ('["a", "A"]', "casefold", "categories must be distinct after normalising by casefold"),
        ('["ß", "ss"]', "casefold", "categories must be distinct after normalising by casefold"),
        ('["a", " "]', "strip", "categories must be non-empty after normalising by strip, got ' '"),
        ('["a.org", "about:x"]', "host", "categories must be non-empty after normalising by host"),
        (f'["a", "{"b" * 8193}"]', "nfc", "categories must be non-empty after normalising by nfc"),
    ],
)
def test_categories_that_are_equal_or_empty_after_normalising_are_refused(
    categories: str, normalizer: str, reason: str
) -> None:
    """Categories that the normalizer makes equal or empty are refused when the registry is loaded.

    Otherwise a device would fail at its first value.
    """
    entry = ENTRIES[1] | {"categories": categories, "normalize": json.dumps(normalizer)}
    with pytest.raises(MetricError, match=f"^metric 'page': {reason}"):
        Registry.loads(format_registry(**entry))


@pytest.mark.parametrize(
    ("key", "literal", "reason"),
    [
        (
            "min_cohort",
            f"0x{'f' * 9000}",
            "min_cohort must be an integer of at most 9007199254740991",
        ),
        ("min_reports", str(2**63), "min_reports must be an integer of at most 9007199254740991"),
        ("k", f"0x{'f' * 9000}", r"k must be an integer in \[2, 2,040\], got a value of type int"),
        ("f", f"0x{'f' * 9000}", r"f must be a number in \[0, 1\), got a value of type int"),
        ("q", f"1{'0' * 400}", r"q must be a number in \[0, 1\], got 10{199}\.\.\. \(401 charac"),
        ("m", "nan", r"m must be an integer in \[1, 65,536\], got nan"),
    ],
)
def test_a_huge_number_has_a_short_message(key: str, literal: str, reason: str) -> None:
    """A number of thousands of digits is refused with a short message.

    The message has the key, and the beginning or the type of the number in place of its digits.
    """
    with pytest.raises(MetricError, match=f"^metric 'page': {reason}"):
        Registry.loads(format_registry(**ENTRIES[0] | {key: literal}))


@pytest.mark.parametrize("entry", ENTRIES[:2])
def test_a_registry_names_the_extra_that_its_normalizer_needs(entry: dict[str, str]) -> None:
    """Without publicsuffixlist, a registry with the normalizer `domain` is refused at loading.

    The error must come on the author's machine, and not with the first value of a device. The
    import of `rappor` itself does not need the library.
    """
    text = format_registry(**entry | {"normalize": '"domain"'})
    code = (
        "import sys; sys.modules['publicsuffixlist'] = None\n"
        "import rappor\n"
        "try: rappor.Registry.loads(sys.stdin.read())\n"
        "except rappor.RapporError as error: print(type(error).__name__, error)\n"
    )
    output = run_python("-c", code, text=text).stdout
    assert output.strip() == f"MissingExtraError {MissingExtraError('domain')}"
