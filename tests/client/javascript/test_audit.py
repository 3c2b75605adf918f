"""The project's own audit of the client in JavaScript: white-box, from outside, and over time."""

from __future__ import annotations

from pathlib import Path

import pytest
from audits import ENCODINGS, SMALL, faults_of, run_audit
from node import TESTS
from tools import need

from rappor import Registry
from rappor.auditing import JsonLines, audit_client, audit_exactly, compute_reference_outputs
from rappor.auditing.reference_encoder import DeviceInputs, DeviceOutputs
from rappor.registry.sealed_json import format_sealed_json

REGISTRY = """
[budget]
total = inf
[metrics.page]
description = "Which page"
owner = "o"
expires = 2030-12-31
encoding = "bloom"
k = 128
m = 128
f = 0.5
p = 0.05
q = 0.7
epoch = "month"
"""


def program(name: str) -> list[str]:
    """Return the command that runs a program of these tests."""
    return [str(need("node")), str(TESTS / name)]


def encoder_passes(name: str, trials: int) -> None:
    """Audit probabilities, permanent responses, independence and coins."""
    audited = ENCODINGS[name]
    command = JsonLines(audited.params, program("audited_encoder.mjs"))
    found = run_audit(command, audited, trials=trials)
    assert found.passed, faults_of(found)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_every_encoding_passes_from_outside(name: str) -> None:
    """Two thousand devices each."""
    encoder_passes(name, 2000)


def test_the_encoder_is_the_protocol_to_the_bit() -> None:
    """With secret and coins given, over random parameters, metrics, epochs and values."""
    asked: list[DeviceInputs] = []

    def shipped(question: DeviceInputs) -> DeviceOutputs:
        asked.append(question)
        return compute_reference_outputs(question)

    assert audit_exactly(shipped, SMALL, vectors=200, seed=18).passed
    answers = JsonLines(SMALL.params, program("audited_encoder.mjs")).compute_outputs(asked)
    assert answers == [compute_reference_outputs(each) for each in asked]


def client_passes(folder: Path, devices: int) -> None:
    """Audit the client with a store in a file, in processes of its own, day after day."""
    path = folder / "metrics.toml"
    path.write_text(REGISTRY)
    registry = Registry.load(path)
    path.with_suffix(".json").write_text(format_sealed_json(registry, {"page": "-"}))
    command = program("audited_client.mjs")
    found = audit_client(command, registry.metric("page"), path, devices=devices)
    assert found.passed, faults_of(found)
    assert len(found.checks) > 8


@pytest.mark.acceptance
def test_the_client_passes_over_time(tmp_path: Path) -> None:
    """A hundred devices through restarts, two epochs and a clock that goes back."""
    client_passes(tmp_path, devices=100)
