"""Examples in docstrings: each runs and prints the output that stands below it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import rappor_client

import rappor

MODULES = sorted(
    module.name
    for package in (rappor, rappor_client)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.startswith(("rappor.cli", "rappor_client.cli", "rappor_client.kit"))
)
"""Names of the modules of library and device. Commands have no examples, and the modules of the kit
need frameworks that are not installed."""

LONG = "rappor.auditing.device"
"""Module whose example audits a client for ten seconds. It runs in the stage acceptance.
`rappor/auditing/test_device.py` runs such an audit in the second stage."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.acceptance if name == LONG else ()) for name in MODULES],
)
def test_examples_of_a_module(name: str) -> None:
    """Every example of the module runs and prints the output that stands below it."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    """The test above is not empty: counting, decoding and the device have examples."""
    names = (
        "rappor.counts.counts",
        "rappor.decoding.decoder",
        "rappor_client.network.transport",
    )
    for name in names:
        module = importlib.import_module(name)
        assert any(test.examples for test in doctest.DocTestFinder().find(module))
