"""The audit of a client: a correct one passes, and each fault of a device's memory is found."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from audits import faults_of
from places import ROOT

from rappor import Metric, Params, ParamsError, Registry, ReportError
from rappor.auditing import audit_client
from rappor.protocol.parts import Part
from rappor.registry.other import texts_of, with_other

NAMED = Params(k=2, encoding="onehot", categories=("vim", "emacs"), f=0.5, p=0.05, q=0.7)

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
epoch = "{epoch}"
interval = "{interval}"
"""

CHILD = [sys.executable, str(ROOT / "tests" / "support" / "audited_child.py")]


def declared(folder: Path, epoch: str, interval: str = "none") -> tuple[Metric, Path]:
    """Write a registry of one metric."""
    path = folder / "metrics.toml"
    path.write_text(REGISTRY.format(epoch=epoch, interval=interval))
    return Registry.load(path).metric("page"), path


@pytest.mark.parametrize(
    ("epoch", "interval"),
    [("month", "day"), pytest.param("year", "none", marks=pytest.mark.acceptance)],
)
def test_the_shipped_client_passes(tmp_path: Path, epoch: str, interval: str) -> None:
    """Twenty devices in processes of their own, day after day."""
    client = [sys.executable, "-m", "rappor_client.audited"]
    found = audit_client(client, *declared(tmp_path, epoch, interval), devices=20)
    assert found.passed, faults_of(found)
    unseen = {check.name for check in found.checks if check.verdict == "not seen"}
    assert unseen == ({"client: one report an interval"} if interval == "none" else set())
    assert any("Consent" in sentence for sentence in found.not_examined)


def test_the_list_of_categories_is_no_value(tmp_path: Path) -> None:
    """A device keeps its parameters, whatever its value is."""
    path = tmp_path / "metrics.toml"
    own = 'encoding = "onehot"\ncategories = ["quite long", "short"]'
    text = REGISTRY.format(epoch="month", interval="day")
    path.write_text(text.replace('encoding = "bloom"\nk = 128\nm = 128', own))
    client = [sys.executable, "-m", "rappor_client.audited"]
    found = audit_client(client, Registry.load(path).metric("page"), path, devices=20)
    assert "folder: no value is in it" not in faults_of(found)


FAULTS = {
    "": set(),
    "forgets": {"client: one cohort in an epoch"},
    # 2,540 zeros are both one in .124 of the pairs, 315; without a common response 115 are, with a
    # standard deviation of 11: below 210, where a fault is found, but for a probability of 1e-17
    "no latch": {"client: one permanent response in an epoch"},
    "one epoch": {"client: another epoch is independent"},
    "back": {"client: a clock set back brings no third response"},
    "redraws waiting": {"client: finished reports stay as they are"},
    "readable": {"folder: only its user can read it"},
    "value on disk": {"folder: no value is in it"},
    "cheap": {"client: the ledger counts"},
    # one cohort for all: (1/128)^10
    "one secret": {"client: devices differ"},
    # .25 for .124
    "no fresh coins": {"client: one permanent response in an epoch"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """Each by the check that is about it, and the same client without a fault passes."""
    found = audit_client([*CHILD, fault], *declared(tmp_path, "month"), devices=20)
    assert FAULTS[fault] <= faults_of(found)
    assert found.passed == (not fault)


def test_two_reports_in_an_interval_are_found(tmp_path: Path) -> None:
    """A client that reports every event, though the registry says a day."""
    found = audit_client(CHILD, *declared(tmp_path, "life", "day"), devices=20)
    assert faults_of(found) >= {"client: one report an interval"}


@pytest.mark.parametrize(
    "change",
    [
        {"patterns": 2},
        {"parts": (Part("prefix:3", 0.2), Part("whole"))},
        {"params": texts_of(with_other(NAMED)[0])},
    ],
)
def test_what_is_not_audited_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """Before any device is asked: several patterns, parts, and metrics that belong together."""
    metric, path = declared(tmp_path, "year")
    with pytest.raises(ParamsError, match="one pattern, no parts, no other and an interval below"):
        audit_client(["false"], dataclasses.replace(metric, **change), path)


def test_what_is_no_answer_is_refused(tmp_path: Path) -> None:
    """One sentence; metrics whose devices keep more than one response are refused too."""
    metric, path = declared(tmp_path, "life")
    with pytest.raises(ReportError, match="must be JSON with the keys waiting and spent"):
        audit_client([sys.executable, "-c", "for _ in open(0): print('{}')"], metric, path)
    with pytest.raises(ParamsError, match=r"devices must be an integer in \[20, 10,000\]"):
        audit_client(CHILD, metric, path, devices=19)
