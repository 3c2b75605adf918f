"""The tables [program] and [installations] of a registry.

[program] has the name of the program, which pages for people show. [installations] names the metric
by whose reports a collector counts active installations. Devices need neither table.
"""

from __future__ import annotations

import pytest
from registries import format_entry

from rappor import Registry
from rappor.base.errors import MetricError
from rappor.protocol.segments import Dimension
from rappor.registry.sealed_json import format_sealed_json

BUDGET = "[budget]\ntotal = inf\n"
ENTRIES = format_entry("page", epoch='"quarter"') + format_entry("trial", min_reports="0")
PROGRAM = '[program]\nname = "Sketch"\n'
INSTALLATIONS = '[installations]\nmetric = "page"\n'


def load(tables: str) -> Registry:
    """Load a registry of two metrics with further tables."""
    return Registry.loads(tables + BUDGET + ENTRIES)


def test_a_registry_needs_neither_table() -> None:
    """Without the tables, the program has no name, and no metric counts installations."""
    registry = load("")
    assert (registry.program, registry.installations) == ("", None)


def test_both_tables_are_read() -> None:
    """Both tables are read. The name of a program may have spaces and letters of any script."""
    registry = load('[program]\nname = "Sketch, für alle"\n' + INSTALLATIONS)
    assert (registry.program, registry.installations) == ("Sketch, für alle", "page")


def test_the_registry_of_a_segment_has_the_same_tables() -> None:
    """The registry of a device in a segment has both tables, and other fingerprints of metrics."""
    segments = "{version = ['1']}"
    registry = Registry.loads(
        BUDGET + PROGRAM + INSTALLATIONS + format_entry("page", segments=segments)
    )
    assert registry["page"].segments == (Dimension("version", ("1",)),)
    in_segment = registry.in_segment({"version": "1"})
    assert in_segment["page"].fingerprint != registry["page"].fingerprint
    assert (in_segment.program, in_segment.installations) == ("Sketch", "page")


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


def test_the_sealed_json_has_neither_table() -> None:
    """The sealed JSON for devices in other languages, and its seal, do not depend on the tables.

    A new name of the program must not look like a changed registry to a device.
    """
    notices = {"page": "about page", "trial": "about trial"}
    plain, named = load(""), load(PROGRAM + INSTALLATIONS)
    assert format_sealed_json(plain, notices) == format_sealed_json(named, notices)
