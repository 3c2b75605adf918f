"""Language: the docstrings and names of the whole code base stay near the field's terms."""

from __future__ import annotations

import functools
import re
from typing import Final

from language import (
    CodeBase,
    count_missing_nouns,
    has_verb,
    is_participle,
    iterate_quoted_names,
)
from places import ROOT

FOLDERS: Final = ("rappor", "client", "server", "tests", "benchmarks")

BOUNDS: Final = {
    "pronouns": (60, 59),
    "unclear_clauses": (5, 3),
    "participle_names": (3, 2),
    "silent_constants": (0, 0),
}
"""Largest value of each figure: the goal, and the present bound, which only falls.

The goals lie between our first measurement and eleven well-written projects: pronouns 26 in 1,000
words of docstrings, unclear clauses at most 6 %, participles 0 to 3.8 % of the functions."""

LONG_WORDS: Final = (7, 5.2)
"""Smallest percentage of long words: the goal, and the present bound, which only rises. Eleven
well-written projects have 10.8 %."""

RIDDLES: Final = (0, 0)
"""Number of clauses with two missing nouns: the goal, and the present bound, which only falls. A
clause with two missing nouns is seldom understood."""

CONFIGURATION: Final = {".pyi", ".js", ".mjs", ".ts", ".toml", ".html", ".json", ".yml", ".sh"}
"""Kinds of files, beside Python's, whose words are names that a docstring may quote."""

FOREIGN: Final = {"gen_counts", "R"}
"""Names of other software that docstrings quote. The repository has no such code, so
`test_names_in_backticks_exist` would not find these names."""

LEFT_OUT: Final = {"data", "vectors", "node_modules", "__pycache__"}
"""Folders whose files contain no name that a docstring may quote."""


@functools.cache
def read_code_base() -> CodeBase:
    """Return the facts about the Python files of source, tests and benchmarks."""
    code_base = CodeBase()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            code_base.add(path)
    return code_base


def test_language_does_not_slide_back() -> None:
    """Every figure of the whole code base stays on its side of its bound.

    Terms are long words, and paraphrases of terms are short ones. A clause with two turns of phrase
    in place of nouns is seldom understood. One test has all bounds, because the measurement of
    the code base takes seconds.
    """
    figures = read_code_base().figures
    value_of = {name: getattr(figures, name) for name in BOUNDS}
    value_of["riddles"] = len(figures.riddles)
    bounds = BOUNDS | {"riddles": RIDDLES}
    assert {name: value for name, value in value_of.items() if value > bounds[name][1]} == {}
    assert figures.long_words >= LONG_WORDS[1]


def test_measures_recognise_what_they_are_made_for() -> None:
    """A sentence of the old style is found, and its rewrite is not."""
    assert count_missing_nouns("Return what is told of those that nobody asked about.") > 1
    assert not count_missing_nouns("Return the log lines about metrics without a request.")
    assert is_participle("shown")
    assert is_participle("_moved")
    assert not is_participle("send_upload")
    assert not is_participle("format_change")
    assert not has_verb("Of groups, on SQLite.")
    assert has_verb("Largest batch. The limit bounds the memory of a transaction.")
    assert has_verb("Counts the reports of a day.")
    assert not has_verb("Counts of a day, from the runs of a week.")
    assert has_verb("Number of bisections. They find the quantile.")
    assert list(iterate_quoted_names("Returns `Counts.add()`, not ``code`` or `a b`.")) == [
        "Counts.add"
    ]


def test_names_in_backticks_exist() -> None:
    """A name that a docstring quotes stands somewhere in the repository as code."""
    known = known_names() | FOREIGN
    missing = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, line, name in read_code_base().quoted_names
        if not set(name.split(".")) <= known
    ]
    assert not missing, missing


def known_names() -> set[str]:
    """Return every word of code and configuration: docstrings and comments are left out."""
    words = set(read_code_base().words)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if LEFT_OUT.isdisjoint(path.parts):
                words |= set(path.relative_to(ROOT).with_suffix("").parts)
                if path.suffix in CONFIGURATION:
                    words |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return words
