"""The audit of a client: a correct client passes, and each planted fault is found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from audits import faults_of
from places import ROOT
from registries import toml_of

from rappor import Metric, ParamsError, Registry, ReportError
from rappor.auditing import audit_client

SHIPPED = [sys.executable, "-m", "rappor_client.audited"]
CHILD = [sys.executable, str(ROOT / "tests" / "support" / "audited_child.py")]


def declared(
    folder: Path, epoch: str, interval: str = "day", f: float = 0.5
) -> tuple[Metric, Path]:
    """Write a registry of one metric."""
    path = folder / "metrics.toml"
    shape = {"k": "128", "m": "128", "f": str(f), "p": "0.05", "q": "0.7"}
    path.write_text(toml_of(epoch=f'"{epoch}"', interval=f'"{interval}"', **shape))
    return Registry.load(path).metric("page"), path


LISTED = {"encoding": '"onehot"', "categories": '["quite long", "short"]'}
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "parts": {"parts": '[{name = "prefix:3", share = 0.3}, {name = "whole"}]'},
    "once": LISTED | {"interval": '"epoch"'},
    "segments": LISTED | {"segments": '{system = ["mac", "linux"]}'},
}

SLOW = ("plain", "parts")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=getattr(pytest.mark, "slow" if kind in SLOW else "acceptance"))
        for kind in KINDS
    ],
)
def test_every_kind_of_metric_passes(tmp_path: Path, kind: str) -> None:
    """Metrics with parts, with segments and with one report an epoch pass.

    The stored list of categories is not a value: it is the same on every device.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(toml_of(epoch='"month"', **KINDS[kind]))
    found = audit_client(SHIPPED, Registry.load(path).metric("page"), path, devices=20)
    assert found.passed, found.faults
    unseen = [check.name for check in found.checks if check.verdict == "not seen"]
    # A device that answers once has nothing that repeats, nor has a kind all reasons to be silent.
    assert unseen == [] if kind == "plain" else len(unseen) < 8


FORM = "twins: as many reports, of the same form"
CHOSEN = "client: any event of an interval is chosen"

FAULTS = {
    "": set(),
    "forgets": {"client: one cohort in an epoch"},
    # 25 devices with another value have 3,175 zeros that are both one in .124, 394; without a
    # common response 143, with a standard deviation of 12: below 280, but for 1e-20
    "no latch": {"client: one permanent response in an epoch"},
    "one epoch": {"client: another epoch is independent"},
    "back": {"client: a clock set back brings no third response"},
    # 50 devices of 127 zeros have a third permanent response, of another value
    "ended epochs forgotten": {"client: a clock set back brings no third response"},
    "silent": {"client: every device reports"},
    "redraws waiting": {"client: finished reports stay as they are"},
    "readable": {"folder: only its user can read it"},
    "readable below": {"folder: only its user can read it"},
    "value on disk": {"folder: no value is in it"},
    "value compressed": {"folder: no value is in it"},
    "value in base64": {"folder: no value is in it"},
    "cheap": {"client: the ledger counts"},
    # one cohort for all: (1/128)^12
    "one secret": {"client: devices differ"},
    # .25 for .124
    "no fresh coins": {
        "client: one permanent response in an epoch",
        "client: no report comes again",
    },
    # 50 devices of 127 zeros are the same in both pairs of runs
    "fresh coins repeated by each run": {"client: no coins come again after a restart"},
    # of 50 devices 13 have two of five repeats in the clear; two are enough
    "fresh coins left out at times": {"client: no report comes again"},
    # eight devices have some 760 permanent zeros: all show as zeros once in 1e17
    "each 1,000th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    "each 100th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    # each of eight devices repeats its 128 bits once in 350,000
    "each 100th report is the one before": {"client: each of 1,000 reports has its noise"},
    # four devices have 508 zeros: .05 are one, not .21, with a standard deviation of .02
    "empty text without permanent noise": {"client: share of ones"},
    "first report in the clear": {"client: no report is the true bits"},
    "empty text in the clear": {"client: no report is the true bits"},
    # four of eight values are odd, unless all eight are alike, with probability 2^-7
    "silent once changed": {FORM},
    "odd values twice": {FORM},
    "odd values dropped": {FORM},
    "odd values dropped in the evening": {FORM},
    "cohort by value": {FORM},
    # half of the values have one length, the others have lengths of their own
    "cohort by length": {FORM},
    "short": {FORM, "client: reports have the metric's form"},
}


STRICT_FAULTS = {
    "": set(),
    "no latch": {"client: one permanent response in an epoch"},
    "ended epochs forgotten": {"client: a clock set back brings no third response"},
    "fresh coins repeated by each run": {"client: no coins come again after a restart"},
    "each 100th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    "one epoch": {"client: another epoch is independent"},
    "one secret": {"client: devices differ"},
    "first event": {CHOSEN},
    "last value": {CHOSEN},
    "odd values dropped in the evening": {FORM},
}
"""Faults that a metric of three categories with strong noise shows in many devices only."""

LANES: dict[str, Any] = {
    "": (),
    "no latch": pytest.mark.slow,
    "cohort by value": pytest.mark.slow,
    "silent once changed": pytest.mark.slow,
    "first report in the clear": pytest.mark.slow,
}
"""Others are for acceptance."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=LANES.get(fault, pytest.mark.acceptance)) for fault in FAULTS],
)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """The check for the violated property finds the fault. A client without a fault passes."""
    found = audit_client([*CHILD, fault], *declared(tmp_path, "month"), seed=1)
    assert FAULTS[fault] <= faults_of(found)
    assert found.passed == (not fault)


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", STRICT_FAULTS)
def test_a_planted_fault_is_found_in_three_categories(tmp_path: Path, fault: str) -> None:
    """Strong noise and few bits need more devices, and the audit chooses their number."""
    path = tmp_path / "metrics.toml"
    three = '["light", "dark", "high contrast"]'
    entry = {"encoding": '"onehot"', "categories": three, "profile": '"strict"'}
    path.write_text(toml_of(epoch='"month"', **entry))
    result = audit_client([*CHILD, fault], Registry.load(path).metric("page"), path, seed=1)
    assert STRICT_FAULTS[fault] <= faults_of(result)
    assert result.passed == (not fault)
    assert not any(sentence.startswith("Parameters") for sentence in result.not_examined)


def test_a_client_without_reports_does_not_pass(tmp_path: Path) -> None:
    """Most checks are "not seen", and the missing reports are a fault."""
    result = audit_client([*CHILD, "silent"], *declared(tmp_path, "month"), devices=20, seed=1)
    assert faults_of(result) == {"client: every device reports"}
    assert not result.passed


def test_the_faults_that_parameters_hide_are_listed(tmp_path: Path) -> None:
    """Twenty devices with one bit do not show a second response. Strings show every fault."""
    path = tmp_path / "metrics.toml"
    path.write_text(toml_of(epoch='"month"', encoding='"boolean"', profile='"strict"'))
    result = audit_client(CHILD, Registry.load(path).metric("page"), path, devices=20, seed=1)
    (sentence,) = [text for text in result.not_examined if text.startswith("Parameters")]
    assert "20 devices would often miss" in sentence
    assert "a third permanent response after the clock was set back" in sentence
    assert "the first event of an interval that is always reported" in sentence
    strings = audit_client(CHILD, *declared(tmp_path, "month"), devices=20, seed=1)
    assert strings.passed
    assert not any("a third permanent response" in text for text in strings.not_examined)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        pytest.param("", set(), marks=pytest.mark.acceptance),
        pytest.param("no interval", {"client: one report an interval"}, marks=pytest.mark.slow),
        # of 300 devices 181 tell: 168 of the first event, for 95, with a standard deviation of 7
        pytest.param("first event", {CHOSEN}, marks=pytest.mark.slow),
        # likewise 168 tell of the value that is preferred, for 90
        pytest.param("last value", {CHOSEN}, marks=pytest.mark.slow),
        pytest.param("late", {"client: times do not depend on the value"}, marks=pytest.mark.slow),
        # it answers every day: an epoch again, where the clock is set back
        ("day for epoch", {"client: one report an interval"}),
    ],
)
def test_faults_of_an_interval_are_found(tmp_path: Path, fault: str, found: set[str]) -> None:
    """A correct client reports any event of the interval, at a time independent of the value."""
    interval = "epoch" if "epoch" in fault else "day"
    audited = audit_client([*CHILD, fault], *declared(tmp_path, "month", interval, 0.2), seed=1)
    assert found <= faults_of(audited)
    assert audited.passed == (not fault)


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    """Too few devices, and a command without output, are errors of one sentence."""
    metric, path = declared(tmp_path, "life")
    with pytest.raises(ReportError, match="must be JSON with the keys waiting and spent"):
        audit_client([sys.executable, "-c", "for _ in open(0): print('{}')"], metric, path)
    with pytest.raises(ParamsError, match=r"devices must be an integer in \[20, 10,000\]"):
        audit_client(CHILD, metric, path, devices=19)
