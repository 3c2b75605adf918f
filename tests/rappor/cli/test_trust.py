"""`rappor trust`: errors of the trust models, the chart, and refused numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from shell import Shell, ok

from rappor.trust.models import trust_models


def test_command_prints_what_the_models_say(shell: Shell) -> None:
    """The JSON has the closed forms, trials near them, and null for infinite losses."""
    words = ("trust", "--devices", "1e4", "--epsilon", "1", "--runs", "500", "--seed", "3")
    rows: list[dict[str, Any]] = json.loads(ok(shell(*words, "--json")))["models"]
    assert [row["model"] for row in rows] == [model.name for model in trust_models(1.0, 10_000)]
    for row, model in zip(rows, trust_models(1.0, 10_000), strict=True):
        assert row["std_error"] == model.noise.std_error(3_000, 10_000)
        assert row["observed"] == pytest.approx(row["std_error"], rel=0.8)
        assert (row["epsilon_of_collector"] is None) == math.isinf(model.epsilon_of_collector)
    out = ok(shell(*words))
    assert "symmetric randomized response" in out
    assert "1.41" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.slow
def test_command_draws(shell: Shell) -> None:
    """Each of the three drawings has six lines, one of them for two models, and dots of trials."""
    path = shell.place / "trust.svg"
    ok(shell("trust", "--devices", "20", "--chart", str(path), "--runs", "2"))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 18
    assert "symmetric randomized response; RAPPOR" in text
    assert text.count("<circle") + text.count("<path") > 60
