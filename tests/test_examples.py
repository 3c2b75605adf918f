"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import rappor

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(rappor.__path__, "rappor.")
    if not found.name.startswith("rappor.cli")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    """Every example of the module runs and prints what stands below it."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """The test above looks at something: counting and decoding have examples."""
    for name in ("rappor.counts.counts", "rappor.decoding.decoder"):
        module = importlib.import_module(name)
        assert any(test.examples for test in doctest.DocTestFinder().find(module))
