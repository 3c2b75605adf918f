"""Any registry file is refused with one sentence, or its metrics can be recorded."""

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

SOUND = {
    "description": '"What it is"',
    "owner": '"team"',
    "expires": "2030-12-31",
    "epoch": '"year"',
}
NOISE = {"f": "0.5", "p": "0.25", "q": "0.75"}
ENTRIES = [
    SOUND | NOISE | {"encoding": '"bloom"', "k": "8", "h": "1", "m": "4"},
    SOUND | NOISE | {"encoding": '"onehot"', "categories": '["a", "b"]'},
    SOUND | NOISE | {"encoding": '"buckets"', "edges": "[0, 1]"},
    SOUND | {"encoding": '"boolean"', "profile": '"balanced"'},
    SOUND | {"encoding": '"bloom"', "profile": '"balanced"', "candidates": '["a", "b"]'},
]


@st.composite
def draw_registry(draw: st.DrawFn) -> str:
    """Draw a registry that is valid except for a few keys."""
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
    """Encode a value of the metric's kind."""
    day = min(metric.expires, datetime.date(2026, 11, 30))
    encode_value(SECRET, metric, VALUES[metric.params.encoding], epoch=metric.epoch_at(day))


@pytest.mark.slow
@settings(max_examples=400)
@given(draw_registry())
def test_a_registry_that_loads_can_be_recorded(text: str) -> None:
    """An error comes when the registry is loaded, or never."""
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
    """A piece of the file is lost, or replaced by other characters."""
    if data is not None:
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + data.draw(st.text(string.printable, max_size=10)) + text[stop:]
    load_or_refuse(text)


def write_registry(**entry: str) -> str:
    """Write a registry of one metric. Its budget covers any cost."""
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
def test_categories_that_normalising_spoils_are_refused_at_loading(
    categories: str, normalizer: str, reason: str
) -> None:
    """Without the check a device would fail at its first value."""
    entry = ENTRIES[1] | {"categories": categories, "normalize": json.dumps(normalizer)}
    with pytest.raises(MetricError, match=f"^metric 'page': {reason}"):
        Registry.loads(write_registry(**entry))


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
    """The message has the key, and the beginning or the type of the number."""
    with pytest.raises(MetricError, match=f"^metric 'page': {reason}"):
        Registry.loads(write_registry(**ENTRIES[0] | {key: literal}))


@pytest.mark.parametrize("entry", ENTRIES[:2])
def test_a_registry_names_the_extra_that_its_normalizer_needs(entry: dict[str, str]) -> None:
    """The error comes when the registry is loaded.

    Importing the package does not need the library.
    """
    text = write_registry(**entry | {"normalize": '"domain"'})
    code = (
        "import sys; sys.modules['publicsuffixlist'] = None\n"
        "import rappor\n"
        "try: rappor.Registry.loads(sys.stdin.read())\n"
        "except rappor.RapporError as error: print(type(error).__name__, error)\n"
    )
    output = run_python("-c", code, text=text).stdout
    assert output.strip() == f"MissingExtraError {MissingExtraError('domain')}"
