"""Page about planning: its table equals the numbers of the planner."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from rappor import Params
from rappor.planning import DetectionTarget, Frequencies, predict_power

DOCUMENT = (ROOT / "rappor" / "planning" / "README.md").read_text(encoding="utf-8")
# A row of the table: profile, reports per device, and one cell for each number of devices.
ROWS = re.findall(r"^\| ([a-z-]+) \| (\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "reports_per_device", "cells"), ROWS)
def test_the_table_is_what_the_planner_computes(
    profile: str, reports_per_device: str, cells: str
) -> None:
    """Each cell of a row is the smallest share of a string that a collection detects.

    The four cells are for 1e4, 1e5, 1e6 and 1e7 devices. 1,000 strings have the shares of Zipf's
    law.
    """
    target = DetectionTarget(
        frequencies=Frequencies.zipf(1000), reports_per_device=int(reports_per_device)
    )
    params = Params.profile(profile)
    shares = [
        predict_power(params, target, reports=int(reports_per_device) * 10**power).share
        for power in (4, 5, 6, 7)
    ]
    # `share` is None if no share is detected. The page has no such cell: None would be written as
    # 1e+02 %.
    assert cells == " | ".join(f"{100 * (share or 1):.2g} %" for share in shares)


def test_every_profile_has_its_rows() -> None:
    """Each profile has a row for one report of a device, and a row for thirty reports.

    A device reports once an epoch under `once`, so this profile has no row for thirty.
    """
    daily = ("strict", "balanced", "low-noise")
    assert [row[:2] for row in ROWS] == [
        *((profile, "1") for profile in (*daily, "once")),
        *((profile, "30") for profile in daily),
    ]
