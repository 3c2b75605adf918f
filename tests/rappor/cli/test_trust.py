"""`rappor trust`: what the models say, a chart, and sentences for bad input."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from shell import Shell, ok, refused

from rappor.trust.models import trust_models


def test_command_prints_what_the_models_say(shell: Shell) -> None:
    """Closed forms as they are, trials near them; infinite losses are null."""
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


def test_command_draws(shell: Shell) -> None:
    """Three panels with six lines each, one of them for two models, and dots of trials."""
    path = shell.place / "trust.svg"
    ok(shell("trust", "--devices", "1000", "--chart", str(path), "--runs", "2"))
    text = path.read_text(encoding="utf-8")
    assert text.count("<polyline") == 18
    assert "symmetric randomized response; RAPPOR" in text
    assert text.count("<circle") + text.count("<path") > 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epsilon", "0"), "epsilon must be a number in (2^-30, 10], got 0.0"),
        (("--epsilon", "inf"), "epsilon must be a number in (2^-30, 10], got inf"),
        (("--epsilon", "nan"), "epsilon must be a number in (2^-30, 10], got nan"),
        (("--share", "1.1"), "share must be a number in [0, 1], got 1.1"),
        (("--share", "nan"), "share must be a number in [0, 1], got nan"),
        (("--devices", "0"), "n must be an integer in [1, 9,007,199,254,740,992], got 0"),
        (("--devices", "1.5"), "is not a whole number"),
        (("--delta", "1"), "delta must be a number in (0, 1), got 1.0"),
        (("--beta", "0"), "beta must be a number in (0, 1), got 0.0"),
        (("--runs", "1"), "--runs"),
        (("--seed", "-1"), "-1 is less than 0"),
        (("--beta", "1e-12"), "epsilon must be larger for 32-bit coins at beta = 1e-12"),
    ],
)
def test_bad_input_gets_one_sentence(words: tuple[str, ...], said: str, shell: Shell) -> None:
    """Exit code 2, nothing on standard output."""
    assert said in refused(shell("trust", *words))
