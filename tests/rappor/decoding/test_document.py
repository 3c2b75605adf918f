"""The pages about decoding contain the constants of the code."""

from __future__ import annotations

import re

import pytest
from places import ROOT

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
