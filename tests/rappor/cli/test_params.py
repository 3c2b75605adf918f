"""`rappor params`: the figures of the paper, and no noise at all."""

from __future__ import annotations

import json

from shell import Shell


def test_params_prints_what_was_promised(shell: Shell) -> None:
    """The paper's set: losses, effective probabilities and standard error ([EPK14] 5.2)."""
    words = ("-f", "0.5", "-p", "0.5", "-q", "0.75", "--hashes", "2", "--cohorts", "16")
    answer = json.loads(shell("params", *words, "--json")[1])
    assert (answer["p_star"], answer["q_star"]) == (0.5625, 0.6875)
    assert round(answer["epsilon_1"], 4) == 1.0743
    assert round(answer["epsilon_inf"], 4) == 4.3944
    assert round(answer["std_error"]) == 2806
    code, out, _ = shell("params", "--profile", "strict")
    assert code == 0
    assert "any number          2.0000            88.1 %" in out


def test_params_without_noise_says_so(shell: Shell) -> None:
    """An infinite loss is null in JSON and words in the table."""
    words = ("params", "-f", "0", "-p", "0", "-q", "1")
    assert json.loads(shell(*words, "--json")[1])["epsilon_1"] is None
    assert "infinite" in shell(*words)[1]
