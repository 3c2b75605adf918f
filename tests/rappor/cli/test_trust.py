"""`rappor trust`: errors of the trust models, the chart, and refused numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from shell import Shell, expect_success

from rappor.trust.models import trust_models


def test_command_prints_the_errors_of_the_models(shell: Shell) -> None:
    """The JSON has the standard error of each model, and the one of 500 simulated trials.

    An infinite loss is null.
    """
    words = ("trust", "--devices", "1e4", "--epsilon", "1", "--runs", "500", "--seed", "3")
    rows: list[dict[str, Any]] = json.loads(expect_success(shell(*words, "--json")))["models"]
    assert [row["model"] for row in rows] == [model.name for model in trust_models(1.0, 10_000)]
    for row, model in zip(rows, trust_models(1.0, 10_000), strict=True):
        assert row["std_error"] == model.noise.std_error(3_000, 10_000)
        assert row["observed"] == pytest.approx(row["std_error"], rel=0.8)
        assert (row["epsilon_of_collector"] is None) == math.isinf(model.epsilon_of_collector)
    out = expect_success(shell(*words))
    assert "symmetric randomized response" in out
    assert "1.41" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.slow
def test_command_draws_a_chart(shell: Shell) -> None:
    """Each of three drawings has six lines, and dots for trials. Two equal models share a line."""
    path = shell.folder / "trust.svg"
    expect_success(shell("trust", "--devices", "20", "--chart", str(path), "--runs", "2"))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 18
    assert "symmetric randomized response; RAPPOR" in text
    assert text.count("<circle") + text.count("<path") > 60
