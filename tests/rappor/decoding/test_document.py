"""The pages about decoding contain the constants of the code."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from rappor import Params
from rappor.estimator import fit, selection
from rappor.estimator import score_tests as significance

FOLDER = ROOT / "rappor" / "decoding"
METHOD = " ".join((FOLDER / "METHOD.md").read_text(encoding="utf-8").split())
VALIDATION = (FOLDER / "VALIDATION.md").read_text(encoding="utf-8")

VALUES = {
    "TAPER": fit.TAPER,
    "_REWEIGHTINGS": fit._REWEIGHTINGS,
    "SCREENED": selection.SCREENED,
    "LASSO_PENALTY": selection.LASSO_PENALTY,
    "STAY_RATE": selection.STAY_RATE,
    "_REFINEMENTS": selection._REFINEMENTS,
    "_WINDOW": selection._WINDOW,
    "TILTS": len(significance.TILTS),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_table_has_the_constants_of_the_code(name: str) -> None:
    """The table of tuned constants in VALIDATION.md has the values of the code.

    A constant that changes in the code needs a new measurement, and a new row.
    """
    # A row of the table begins with the name of the constant. Its second cell has the value.
    (documented,) = re.findall(rf"^\| `{name}` \| (.+?) \|", VALIDATION, re.MULTILINE)
    value = VALUES[name]
    numbers = tuple(float(number) for number in re.findall(r"[\d.]+", documented))
    assert numbers == (value if isinstance(value, tuple) else (value,))


def test_the_text_has_the_numbers_of_the_code() -> None:
    """METHOD.md has the numbers of the code in its description of the estimator."""
    low, high = fit.TAPER
    assert f"from 1 at {low:g} standard deviations above the fit to 0 at {high:g}" in METHOD
    assert f"The {selection.SCREENED:,} best stay, so the memory is bounded." in METHOD
    assert f"lasso on the {selection.LASSO_SCREENED:,} best" in METHOD


@pytest.mark.parametrize("name", ["strict", "balanced", "low-noise", "once"])
def test_the_formulas_of_effective_probabilities_are_those_of_the_code(name: str) -> None:
    """The formulas of METHOD.md give q* and p* of a profile, whose g is not 1/2."""
    params = Params.profile(name)
    page = (FOLDER / "METHOD.md").read_text(encoding="utf-8")
    for symbol, expected in (("q*", params.q_star), ("p*", params.p_star)):
        (formula,) = re.findall(rf"^    {re.escape(symbol)} = (.+?)  +P\(", page, re.MULTILINE)
        code = formula.replace("f g", "f * g").replace(") (", ") * (").replace("g (", "g * (")
        f, g, p, q = params.f, params.g, params.p, params.q
        value = eval(code, {}, {"f": f, "g": g, "p": p, "q": q})  # noqa: S307 - our own page
        assert value == pytest.approx(expected, rel=1e-12)


def test_the_example_of_effective_probabilities_is_a_profile() -> None:
    """METHOD.md has f, g, p, q and the effective probabilities of `balanced`."""
    params = Params.profile("balanced")
    f, g, p, q, low, high = (
        f"{number:.4f}".removeprefix("0")
        for number in (params.f, params.g, params.p, params.q, params.p_star, params.q_star)
    )
    assert f"f = {f}, g = {g}, p = {p} and q = {q}, so q* = {high} and p* = {low}." in METHOD
