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
    "tuple": {"fields": '["site", "country"]', "normalize": '{site = "host"}'},
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
    audit = audit_client(SHIPPED, Registry.load(path).metric("page"), path, devices=20)
    assert audit.passed, audit.faults
    unseen = [check.name for check in audit.checks if check.verdict == "not seen"]
    # A device with one report has nothing to repeat, so some checks are not seen.
    assert unseen == [] if kind == "plain" else len(unseen) < 8


FORM = "twins: as many reports, of the same form"
CHOSEN = "client: any event of an interval is chosen"

# The checks that must find each fault. A comment says why the fault is found with 50 devices.
FAULTS = {
    "": set(),
    "forgets": {"client: one cohort in an epoch"},
    # 25 devices record another value and have 3,175 bits of true 0. With one response a bit is 1 in
    # two reports in .124 of them, 394. Without one response it is 143, with a standard deviation of
    # 12: below 280 except with probability 1e-20.
    "not memoized": {"client: one permanent response in an epoch"},
    "one epoch": {"client: another epoch is independent"},
    "back": {"client: a clock set back brings no third response"},
    # 50 devices with 127 bits of true 0 have a third permanent response, of another value.
    "ended epochs forgotten": {"client: a clock set back brings no third response"},
    "silent": {"client: every device reports"},
    "redraws waiting": {"client: finished reports stay as they are"},
    "readable": {"folder: only its user can read it"},
    "readable below": {"folder: only its user can read it"},
    "value on disk": {"folder: no value is in it"},
    "value compressed": {"folder: no value is in it"},
    "value in base64": {"folder: no value is in it"},
    "cheap": {"client: the ledger counts"},
    # All devices are in one cohort: probability (1/128)^12.
    "one secret": {"client: devices differ"},
    # A bit is 1 in two reports in .25 of the bits of true 0, instead of .124.
    "no fresh coins": {
        "client: one permanent response in an epoch",
        "client: no report comes again",
    },
    # On 50 devices, 127 bits of true 0 are equal in both pairs of runs.
    "fresh coins repeated by each run": {"client: no coins come again after a restart"},
    # 13 of 50 devices have two noiseless reports among five, which are equal. Two devices are a
    # fault.
    "fresh coins left out at times": {"client: no report comes again"},
    # Eight devices have about 760 permanent zeros. All are reported as 0 with probability 1e-17.
    "each 1,000th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    "each 100th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    # A correct device repeats its 128 bits with probability 1 / 350,000.
    "each 100th report is the one before": {"client: each of 1,000 reports has its noise"},
    # Four devices have 508 bits of true 0: .05 are reported as 1, not .21 +- .02.
    "empty text without permanent noise": {"client: share of ones"},
    "first report in the clear": {"client: no report is the true bits"},
    "empty text in the clear": {"client: no report is the true bits"},
    # The values of twins differ in being odd (see `audited_child`), except with probability 2^-7.
    "silent once changed": {FORM},
    "odd values twice": {FORM},
    "odd values dropped": {FORM},
    "odd values dropped in the evening": {FORM},
    "cohort by value": {FORM},
    # Half of the values have one length, and each other value has its own length.
    "cohort by length": {FORM},
    "short": {FORM, "client: reports have the metric's form"},
}


STRICT_FAULTS = {
    "": set(),
    "not memoized": {"client: one permanent response in an epoch"},
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

STAGES: dict[str, Any] = {
    "": (),
    "not memoized": pytest.mark.slow,
    "cohort by value": pytest.mark.slow,
    "silent once changed": pytest.mark.slow,
    "first report in the clear": pytest.mark.slow,
}
"""Marks of the faults that other stages than acceptance run: "" runs always."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=STAGES.get(fault, pytest.mark.acceptance)) for fault in FAULTS],
)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """The check for the violated property finds the fault. A client without a fault passes."""
    audit = audit_client([*CHILD, fault], *declared(tmp_path, "month"), seed=1)
    assert FAULTS[fault] <= faults_of(audit)
    assert audit.passed == (not fault)


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


@pytest.mark.slow
def test_a_client_without_reports_does_not_pass(tmp_path: Path) -> None:
    """Most checks are "not seen", and the missing reports are a fault."""
    result = audit_client([*CHILD, "silent"], *declared(tmp_path, "month"), devices=20, seed=1)
    assert faults_of(result) == {"client: every device reports"}
    assert not result.passed


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param("", set(), marks=pytest.mark.acceptance),
        pytest.param("no interval", {"client: one report an interval"}, marks=pytest.mark.slow),
        # 181 of 300 reports indicate a value. 168 agree with the first event, for 95 +- 7 expected.
        pytest.param("first event", {CHOSEN}, marks=pytest.mark.slow),
        # 168 indicate the preferred value, for 90 expected.
        pytest.param("last value", {CHOSEN}, marks=pytest.mark.slow),
        pytest.param("late", {"client: times do not depend on the value"}, marks=pytest.mark.slow),
        # It reports every day, so also again after the clock is set back.
        ("day for epoch", {"client: one report an interval"}),
    ],
)
def test_faults_of_an_interval_are_found(tmp_path: Path, fault: str, expected: set[str]) -> None:
    """A correct client reports any event of the interval, at a time independent of the value."""
    interval = "epoch" if "epoch" in fault else "day"
    audited = audit_client([*CHILD, fault], *declared(tmp_path, "month", interval, 0.2), seed=1)
    assert expected <= faults_of(audited)
    assert audited.passed == (not fault)


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    """Too few devices, and a command without output, are errors of one sentence."""
    metric, path = declared(tmp_path, "life")
    with pytest.raises(ReportError, match="must be JSON with the keys waiting and spent"):
        audit_client([sys.executable, "-c", "for _ in open(0): print('{}')"], metric, path)
    with pytest.raises(ParamsError, match=r"devices must be an integer in \[20, 10,000\]"):
        audit_client(CHILD, metric, path, devices=19)
