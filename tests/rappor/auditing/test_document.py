"""The page about the audit: tables, lists and figures equal the code, and examples run."""

from __future__ import annotations

import doctest
import re

import pytest
from audits import SMALL_METRIC, run_audit
from places import ROOT

from rappor import Params, epsilon_1, epsilon_inf
from rappor.auditing import Check, create_reference_encoder, inference_attack
from rappor.auditing.device import NOT_EXAMINED
from rappor.auditing.lower_bound import estimate_reachable_bound
from rappor.auditing.scope import list_not_examined

FOLDER = ROOT / "rappor" / "auditing"
DOCUMENT = (FOLDER / "README.md").read_text(encoding="utf-8")
BALANCED = Params.profile("balanced")


@pytest.mark.slow
def test_every_check_is_explained() -> None:
    """The table has the name of every check of an audit once."""
    names = [
        check.name
        for check in run_audit(create_reference_encoder(SMALL_METRIC), SMALL_METRIC).checks
    ]
    table = DOCUMENT.split("| check | question |", maxsplit=1)[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(.*?)`", cell)]
    assert sorted(named) == sorted(names)


@pytest.mark.parametrize("profile", ["strict", "balanced", "low-noise"])
def test_the_table_of_trials_has_the_reachable_bounds(profile: str) -> None:
    """The table has the reachable part of both losses with 1e4, 1e5 and 1e6 devices."""
    params = Params.profile(profile)
    for name, n, claim in (
        ("epsilon_1", 1, epsilon_1(params)),
        ("epsilon_inf", None, epsilon_inf(params)),
    ):
        shares = [estimate_reachable_bound(params, n, 10**power) / claim for power in (4, 5, 6)]
        cells = " | ".join(f"{share:.0%}".replace("%", " %") for share in shares)
        assert f"| {profile} | {name} | {cells} |" in DOCUMENT


def test_the_limits_of_an_audit_are_listed() -> None:
    """The lists of limits on the page equal `Audit.not_examined` and `NOT_EXAMINED`."""
    part = DOCUMENT.split("## What it cannot see")[1].split("\n## ")[0]
    listed = re.findall(r"^- (.*)$", part, re.MULTILINE)
    client = DOCUMENT.split("## Audit a client")[1].split("\n## ")[0]
    assert re.findall(r"^- (.*)$", client, re.MULTILINE) == list(NOT_EXAMINED)
    unseen = [
        Check(name=name, verdict="not seen", detail="")
        for name in ("permanent: same in another spelling", "own coins: no shift register")
    ]
    sentences = list_not_examined(BALANCED, unseen, trials=100_000, n_values=35, n_reports=64)
    assert listed == list(sentences)


@pytest.mark.slow
def test_figures_of_the_inference_attack_are_those_of_the_page() -> None:
    """The page states these figures for the profile balanced.

    "values" has a sampling error, so its figure is a range.
    """
    exposure = inference_attack(BALANCED, reports=[50, 1000], devices=2000, seed=1)
    last = exposure.memoized[-1]
    assert f"{last.true_bits:.1%}" == "78.7%"
    assert f"{last.bound:.1%}" == "35.5%"
    assert 0.17 < last.values < 0.21
    assert f"{exposure.redrawn[0].true_bits:.1%}" == "99.9%"
    assert exposure.redrawn[0].values == pytest.approx(exposure.ceiling, abs=0.05)


@pytest.mark.slow
def test_the_examples_run() -> None:
    """Each example prints the output below it, from top to bottom."""
    example = "\n".join(re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(example, {}, "auditing", None, None)
    assert len(test.examples) > 20
    assert doctest.DocTestRunner().run(test).failed == 0
