"""Page about planning: its table equals the numbers of the planner."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from rappor import Params
from rappor.planning import DetectionTarget, Frequencies, predict_power

DOCUMENT = (ROOT / "rappor" / "planning" / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z-]+) \| (\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "each", "cells"), ROWS)
def test_the_table_is_what_the_planner_computes(profile: str, each: str, cells: str) -> None:
    """A cell is the smallest detected share by profile, reports per device, and devices."""
    question = DetectionTarget(frequencies=Frequencies.zipf(1000), reports_per_device=int(each))
    params = Params.profile(profile)
    shares = [
        predict_power(params, question, reports=int(each) * 10**power).share
        for power in (4, 5, 6, 7)
    ]
    assert cells == " | ".join(f"{100 * (share or 1):.2g} %" for share in shares)


def test_every_profile_has_its_rows() -> None:
    """Each profile has a row for one report, and one for thirty reports if devices report again."""
    assert [row[0] for row in ROWS] == [
        *("strict", "balanced", "low-noise", "once"),
        *("strict", "balanced", "low-noise"),
    ]
