"""Audits of the JavaScript client: of its encoder, and of the client over days."""

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
    """Audit an encoding: probabilities, permanent responses, independence and coins."""
    audited = ENCODINGS[name]
    command = JsonLines(audited.params, program("audited_encoder.mjs"))
    audit = run_audit(command, audited, trials=trials)
    assert audit.passed, faults_of(audit)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_every_encoding_passes_from_outside(name: str) -> None:
    """With two thousand simulated devices for each encoding."""
    encoder_passes(name, 2000)


@pytest.mark.slow
def test_the_encoder_equals_the_reference_bit_by_bit() -> None:
    """For fixed secrets and coins, over random parameters, metrics, epochs and values."""
    inputs: list[DeviceInputs] = []

    def record_inputs(query: DeviceInputs) -> DeviceOutputs:
        inputs.append(query)
        return compute_reference_outputs(query)

    assert audit_exactly(record_inputs, SMALL, vectors=200, seed=18).passed
    outputs = JsonLines(SMALL.params, program("audited_encoder.mjs")).compute_outputs(inputs)
    assert outputs == [compute_reference_outputs(query) for query in inputs]


def client_passes(folder: Path, devices: int) -> None:
    """Audit the client with a store in a file, in a process for each day."""
    path = folder / "metrics.toml"
    path.write_text(REGISTRY)
    registry = Registry.load(path)
    path.with_suffix(".json").write_text(format_sealed_json(registry, {"page": "-"}))
    command = program("audited_client.mjs")
    audit = audit_client(command, registry.metric("page"), path, devices=devices)
    assert audit.passed, faults_of(audit)
    assert len(audit.checks) > 8


@pytest.mark.acceptance
def test_the_client_passes_over_time(tmp_path: Path) -> None:
    """A hundred devices through restarts, two epochs and a clock that goes back."""
    client_passes(tmp_path, devices=100)
