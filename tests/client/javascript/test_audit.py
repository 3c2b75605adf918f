"""Audits of the JavaScript client: of its encoder, and of the client over days."""

from __future__ import annotations

from pathlib import Path

import pytest
from audits import ENCODINGS, SMALL_METRIC, list_faulty_checks, run_audit
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


def node_command(name: str) -> list[str]:
    """Return the command that runs a program of these tests."""
    return [str(need("node")), str(TESTS / name)]


@pytest.mark.acceptance
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_every_encoding_passes_an_audit(name: str) -> None:
    """Every encoding passes an audit with two thousand simulated devices.

    The audit checks probabilities, permanent responses, independence and coins.
    """
    metric = ENCODINGS[name]
    encoder = JsonLines(metric.params, node_command("audited_encoder.mjs"))
    audit = run_audit(encoder, metric, trials=2000)
    assert audit.passed, list_faulty_checks(audit)


@pytest.mark.slow
def test_the_encoder_equals_the_reference_bit_by_bit() -> None:
    """The encoder and the reference return the same bits for 200 random inputs.

    An input has a secret, coins, a metric, an epoch and a value. `record_inputs` collects the
    inputs of an audit, so the program for Node gets them all at once.
    """
    inputs: list[DeviceInputs] = []

    def record_inputs(query: DeviceInputs) -> DeviceOutputs:
        inputs.append(query)
        return compute_reference_outputs(query)

    assert audit_exactly(record_inputs, SMALL_METRIC, vectors=200, seed=18).passed
    outputs = JsonLines(SMALL_METRIC.params, node_command("audited_encoder.mjs")).compute_outputs(
        inputs
    )
    assert outputs == [compute_reference_outputs(query) for query in inputs]


@pytest.mark.acceptance
def test_the_client_passes_an_audit_over_time(tmp_path: Path) -> None:
    """The client passes an audit of a hundred devices over two epochs.

    A device has its store in a file and a process for each day. The clock once goes back.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    registry = Registry.load(path)
    path.with_suffix(".json").write_text(format_sealed_json(registry, {"page": "-"}))
    command = node_command("audited_client.mjs")
    audit = audit_client(command, registry.metric("page"), path, devices=100)
    assert audit.passed, list_faulty_checks(audit)
    assert len(audit.checks) > 8
