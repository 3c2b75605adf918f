"""The tables [program] and [installations] of a registry: accepted, refused, ignored by devices."""

from __future__ import annotations

import pytest
from registries import entry_of

from rappor import Registry
from rappor.base.errors import MetricError
from rappor.protocol.segments import Dimension
from rappor.registry.sealed_json import format_sealed_json

BUDGET = "[budget]\ntotal = inf\n"
ENTRIES = entry_of("page", epoch='"quarter"') + entry_of("trial", min_reports="0")
PROGRAM = '[program]\nname = "Sketch"\n'
INSTALLATIONS = '[installations]\nmetric = "page"\n'


def load(tables: str) -> Registry:
    """Load a registry of two metrics with further tables."""
    return Registry.loads(tables + BUDGET + ENTRIES)


def test_a_registry_needs_neither_table() -> None:
    """Without the tables, the program has no name and nothing is counted."""
    registry = load("")
    assert (registry.program, registry.installations) == ("", None)


def test_both_texts_are_read() -> None:
    """The name of the program may have spaces and letters of any script."""
    registry = load('[program]\nname = "Sketch, für alle"\n' + INSTALLATIONS)
    assert (registry.program, registry.installations) == ("Sketch, für alle", "page")


def test_a_device_in_a_segment_has_the_same_texts() -> None:
    """The registry of a segment differs from the registry in the fingerprints of its metrics."""
    segments = "{version = ['1']}"
    registry = Registry.loads(
        BUDGET + PROGRAM + INSTALLATIONS + entry_of("page", segments=segments)
    )
    assert registry["page"].segments == (Dimension("version", ("1",)),)
    of_device = registry.in_segment({"version": "1"})
    assert of_device["page"].fingerprint != registry["page"].fingerprint
    assert (of_device.program, of_device.installations) == ("Sketch", "page")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("installations = 3\n", "registry: installations must be a table with the one key metric"),
        ("[installations]\n", "registry: installations must be a table with the one key metric"),
        (
            '[installations]\nmetric = "page"\nby = "day"\n',
            "registry: installations must be a table with the one key metric",
        ),
        (
            '[installations]\nmetric = ["page"]\n',
            "registry: metric of installations must be a non-empty text of one line, got ['page']",
        ),
        (
            '[installations]\nmetric = "pages"\n',
            "metric of installations: unknown metric 'pages'; did you mean 'page'?",
        ),
        (
            '[installations]\nmetric = "trial"\n',
            "metric 'trial': min_reports must be at least 1 for the metric of installations, got "
            "0: only reports in closed blocks are counted",
        ),
        ("[program]\n", "registry: program must be a table with the one key name"),
        (
            '[program]\nname = " "\n',
            "registry: name of program must be a non-empty text of one line, got ' '",
        ),
        (
            '[program]\nname = "a\\nb"\n',
            "registry: name of program must be a non-empty text of one line, got 'a\\nb'",
        ),
        ('[programme]\nname = "a"\n', "registry: unknown key 'programme'; did you mean 'program'?"),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(table: str, message: str) -> None:
    """The message names the table, the key and the value."""
    with pytest.raises(MetricError) as error:
        load(table)
    assert str(error.value) == message


def test_devices_in_other_languages_get_neither_text() -> None:
    """The sealed JSON, hence its seal, is the same with and without the tables."""
    notices = {"page": "about page", "trial": "about trial"}
    plain, named = load(""), load(PROGRAM + INSTALLATIONS)
    assert format_sealed_json(plain, notices) == format_sealed_json(named, notices)
