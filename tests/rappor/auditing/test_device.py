"""The audit of a client (`audit_client`): a correct client passes, and planted faults are found.

The audit runs the client as a program for many simulated devices and days. A device records values,
restarts, and changes its clock.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from audits import list_faulty_checks
from places import ROOT
from registries import format_registry

from rappor import Metric, ParamsError, Registry, ReportError
from rappor.auditing import audit_client

SHIPPED_CLIENT = [sys.executable, "-m", "rappor_client.audited"]
"""The audit starts the Python client of this project by this command, which contains no fault."""

FAULTY_CLIENT = [sys.executable, str(ROOT / "tests" / "support" / "audited_child.py")]
"""Command of a small client for tests. A further argument is the name of a planted fault. Without
the argument, the client is correct."""

SILENT_CLIENT = [
    *(sys.executable, "-IS", "-c"),
    'for _ in open(0): print(\'{"waiting": [], "spent": 0}\')',
]
"""Command of a client without devices and without reports, which starts in milliseconds."""

AUDIT_README = (ROOT / "rappor" / "auditing" / "README.md").read_text(encoding="utf-8")


def declared(
    folder: Path, epoch: str, interval: str = "day", f: float = 0.5
) -> tuple[Metric, Path]:
    """Write a registry of one metric, named "page", and return the metric and the path."""
    path = folder / "metrics.toml"
    shape = {"k": "128", "m": "128", "f": str(f), "p": "0.05", "q": "0.7"}
    path.write_text(format_registry(epoch=f'"{epoch}"', interval=f'"{interval}"', **shape))
    return Registry.load(path).metric("page"), path


LISTED = {"encoding": '"onehot"', "categories": '["quite long", "short"]'}
METRIC_ENTRIES: dict[str, dict[str, str]] = {
    "plain": {},
    "parts": {"parts": '[{name = "prefix:3", share = 0.3}, {name = "whole"}]'},
    "once": LISTED | {"interval": '"epoch"'},
    "tuple": {"fields": '["site", "country"]', "normalize": '{site = "host"}'},
    "sets": {"encoding": '"set"', "items": "4", "interval": '"epoch"', "profile": '"once"'},
    "categories once": LISTED | {"interval": '"epoch"', "profile": '"once"'},
    "segments": LISTED | {"segments": '{system = ["mac", "linux"]}'},
}
"""Maps the name of a kind of metric to the fields of its registry entry."""

UNSEEN_CHECKS = {
    # A device makes one report in an epoch. A check of repeated reports compares nothing. Two bits
    # equal the true bits by chance, even on all devices.
    "once": {
        "client: one cohort in an epoch",
        "client: one permanent response in an epoch",
        "client: each of 1,000 reports has its noise",
        "client: no coins come again after a restart",
        "client: a clock set back brings no third response",
        "client: no report is the true bits",
        "client: no report comes again",
    },
    # One report in an epoch, which names one bucket.
    "sets": {"client: one cohort in an epoch"},
    "categories once": {"client: one cohort in an epoch"},
    # A report has two bits. Two such reports are often equal by chance.
    "segments": {"client: no report is the true bits", "client: no report comes again"},
}
"""Checks that have the verdict "not seen", by kind of metric. For all other kinds, every check
compares reports."""

SLOW = ("parts", "sets")
"""Kinds of metrics that the second stage audits. All checks of "plain" are made of "parts", too: a
device of the part "whole" is a device without parts."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=getattr(pytest.mark, "slow" if kind in SLOW else "acceptance"))
        for kind in METRIC_ENTRIES
    ],
)
def test_every_kind_of_metric_passes(tmp_path: Path, kind: str) -> None:
    """A correct client passes for metrics with parts, tuples, segments and one report an epoch.

    The audit searches the client's folder for recorded values. The stored list of categories must
    not count as a recorded value, because it is the same on every device.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(format_registry(epoch='"month"', **METRIC_ENTRIES[kind]))
    audit = audit_client(SHIPPED_CLIENT, Registry.load(path).metric("page"), path, devices=20)
    assert audit.passed, audit.faults
    # The tables of the README of the audit explain every check.
    explained = set(re.findall(r"^\| `(.*?)` \|", AUDIT_README, re.MULTILINE))
    assert {check.name for check in audit.checks} <= explained
    unseen = [check.name for check in audit.checks if check.verdict == "not seen"]
    assert set(unseen) == UNSEEN_CHECKS.get(kind, set())
    # If the reports of a metric name one bucket, `BUCKET_CHECKS` replace the checks of separate
    # bits. Each of them must have the verdict "pass", and not "not seen": it has compared reports.
    # All other metrics lack at least one of these checks.
    is_exclusive = Registry.load(path).metric("page").params.response.is_exclusive
    passed_names = {check.name for check in audit.checks if check.verdict == "pass"}
    assert is_exclusive == (passed_names >= BUCKET_CHECKS)


BUCKET_CHECKS = {
    "copies: one value, one report",
    "client: own buckets are named as often as they should",
    "client: every bucket and every item is drawn alike",
    "client: another epoch is independent",
    "client: devices differ",
}
"""Checks of reports that name one bucket. All other reports lack the first three checks, and have
the last two with other statistics."""


# Names of checks. Twins are two devices with one secret whose values differ.
FORM = "twins: as many reports, of the same form"
CHOSEN = "client: any event of an interval is chosen"

FAULTS = {
    "": set(),
    "secret changed by each restart": {"client: one cohort in an epoch"},
    # 25 devices record another value. Each of them has 127 bits of true 0, so together they have
    # 3,175. A permanent response has a 1 in .25 of these bits. Reports then have a 1 with
    # probability .7 at a permanent 1, and .05 at a permanent 0. With one permanent response, a bit
    # is 1 in both of two reports with probability .25 (.7^2) + .75 (.05^2) = .124. The expected
    # number is 394 bits. A correct client has fewer than 280 with probability 4e-11, so such a
    # number is a fault. With two permanent responses, the probability is p*^2 = .2125^2 = .045. The
    # expected number is 143 bits, and 280 or more have a probability below 1e-20.
    "not memoized": {"client: one permanent response in an epoch"},
    "one epoch": {"client: another epoch is independent"},
    "other secret in an earlier epoch": {"client: a clock set back brings no third response"},
    # 50 devices with 127 bits of true 0 have a third permanent response, of another value.
    "ended epochs forgotten": {"client: a clock set back brings no third response"},
    "no reports": {"client: every device reports"},
    "redraws waiting": {"client: finished reports stay as they are"},
    "readable": {"folder: only its user can read it"},
    "readable below": {"folder: only its user can read it"},
    "value on disk": {"folder: no value is in it"},
    "value compressed": {"folder: no value is in it"},
    "value in base64": {"folder: no value is in it"},
    "smaller loss in the ledger": {"client: the ledger counts"},
    # The check compares the first twins of 25 pairs, in 12 pairs of unrelated devices. With one
    # secret, all devices are in one cohort. With different secrets, the two devices of a pair are
    # in one of the 128 cohorts with probability 1/128, and those of all pairs with (1/128)^12.
    "one secret": {"client: devices differ"},
    # Of the bits of true 0, .25 instead of .124 are 1 in two reports.
    "no fresh coins": {
        "client: one permanent response in an epoch",
        "client: no report comes again",
    },
    # On 50 devices, 127 bits of true 0 are equal in both runs of each pair.
    "fresh coins repeated by each run": {"client: no coins come again after a restart"},
    # After the first report of the first epoch, a device makes five further reports in this epoch.
    # Each of the five reports lacks its fresh noise with probability 1/5, and equals the permanent
    # response then. Two such reports are equal. 13 of 50 devices are expected to have at least two
    # such reports. Four devices with two equal reports are a fault.
    "fresh coins left out at times": {"client: no report comes again"},
    # Eight devices have about 760 permanent zeros. All are reported as 0 with probability 1e-17.
    "each 1,000th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    "each 100th report without fresh coins": {"client: each of 1,000 reports has its noise"},
    # A correct device repeats its 128 bits with probability 1 / 350,000.
    "each 100th report is the one before": {"client: each of 1,000 reports has its noise"},
    # Four devices have 508 bits of true 0. The share .05 is reported as 1, instead of .21 +- .02.
    "empty text without permanent noise": {"client: share of ones"},
    "first report in the clear": {"client: no report is the true bits"},
    "empty text in the clear": {"client: no report is the true bits"},
    # One value of twins is odd and the other is even (see `audited_child`). All pairs of twins have
    # values of one parity with probability 2^-7.
    "silent once changed": {FORM},
    "odd values twice": {FORM},
    "odd values dropped": {FORM},
    "odd values dropped in the evening": {FORM},
    "cohort by value": {FORM},
    # Half of the values have one length, and each other value has its own length.
    "cohort by length": {FORM},
    "odd values one byte short": {FORM, "client: reports have the metric's form"},
}
"""Checks that must find each fault. A comment states the evidence that 50 devices give."""


COPIES = "copies: one value, one report"
OWN = "client: own buckets are named as often as they should"
DRAW = "client: every bucket and every item is drawn alike"

SET_FAULTS = {
    "": set(),
    # 200 sets of one item name its bucket 12 times if padded, and 96 times if not.
    "no padding": {OWN},
    "padding repeats items": {OWN},
    # 800 devices have sets of several items. A correct client reports the lowest own bucket on 50
    # +- 7 of these devices. The faulty client squares the coin of the index, as a fraction of 1. It
    # chooses the lowest of 8 buckets with probability sqrt(1/8) = .35 instead of .125, so about 140
    # devices report the lowest own bucket.
    "biased index": {DRAW},
    "choice by order": {DRAW},
    # A cut set names an item of the first third in .16 of its reports, and in .48 if these items
    # are kept.
    "cut by order": {DRAW},
    "cut by length": {DRAW},
    "empty set has its own bucket": {DRAW},
    # Own buckets of 232 instead of 464 buckets are other buckets.
    "k of half the items": {OWN},
    # The check compares 1,200 devices with their copies. A device and its copy with other coins
    # report the same bucket by chance, with probability .03 for 8 own buckets. One device that
    # differs from its copy is a fault.
    "coins fresh": {COPIES},
    "coins by order": {COPIES},
    "one cohort": {"client: devices differ"},
    "two buckets": {"client: reports have the metric's form"},
    "many items late": {"client: times do not depend on the value"},
    "one secret": {"client: devices differ"},
    "one epoch": {"client: every device reports"},
    "coins of another epoch": {"client: another epoch is independent"},
    "first event": {CHOSEN},
    "day for epoch": {"client: one report an interval"},
}
"""Faults of reports of sets, most of them in the drawing of the bucket (`set_faults`)."""

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
"""Checks that must find each fault in a metric of three categories with strong noise. The audit
needs many devices for them."""


COMBINED_FAULTS = [
    # "last value": 168 reports of choosing devices indicate the preferred value, instead of 90.
    (
        ("not memoized", "cohort by value", "first report in the clear", "last value"),
        {
            "client: one permanent response in an epoch",
            FORM,
            "client: no report is the true bits",
            CHOSEN,
        },
    ),
    (
        ("no interval", "odd values late", "silent once changed"),
        {
            "client: one report an interval",
            "client: times do not depend on the value",
            FORM,
        },
    ),
    # The client reports every day instead of once an epoch. 181 of 300 reports of choosing devices
    # indicate a value. 168 of them indicate the first event, instead of 95 +- 7.
    (("day for epoch", "first event"), {"client: one report an interval", CHOSEN}),
]
"""Faults of one client, and the checks that must find them. Each of these checks finds one fault of
its row, and passes in an audit of each other fault of the row alone."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "expected"),
    COMBINED_FAULTS,
    ids=[", ".join(faults) for faults, _ in COMBINED_FAULTS],
)
def test_planted_faults_are_found_together(
    tmp_path: Path, faults: tuple[str, ...], expected: set[str]
) -> None:
    """One audit finds several faults of one client, each by its own check.

    The audits of one fault each are in the stage acceptance (`test_a_planted_fault_is_found`,
    `test_faults_of_an_interval_are_found`).
    """
    interval = "epoch" if "day for epoch" in faults else "day"
    f = 0.5 if "not memoized" in faults else 0.2
    command = [*FAULTY_CLIENT, ", ".join(faults)]
    audit = audit_client(command, *declared(tmp_path, "month", interval, f), seed=1)
    assert expected <= list_faulty_checks(audit)
    assert not audit.passed


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    """The check for the violated property finds the fault. A client without a fault passes."""
    audit = audit_client([*FAULTY_CLIENT, fault], *declared(tmp_path, "month"), seed=1)
    assert FAULTS[fault] <= list_faulty_checks(audit)
    assert audit.passed == (not fault)


_AUDITS = 7
"""Number of audits after which a fault counts as not found: .05^7 is 8e-10."""


@pytest.mark.acceptance
@pytest.mark.parametrize("fault", STRICT_FAULTS)
def test_a_planted_fault_is_found_in_three_categories(tmp_path: Path, fault: str) -> None:
    """With strong noise and few bits, the audit chooses enough devices to find every fault.

    An audit finds a fault with the probability `MIN_POWER`, .95, or more. The coins of the devices
    are those of the system, so an audit of this test may miss the fault. The test repeats it up to
    `_AUDITS` times: if each audit has that power, all miss with probability 8e-10 at most.
    `not_examined` has no sentence about faults that the parameters hide.
    """
    path = tmp_path / "metrics.toml"
    three = '["light", "dark", "high contrast"]'
    entry = {"encoding": '"onehot"', "categories": three, "profile": '"strict"'}
    path.write_text(format_registry(epoch='"month"', **entry))
    metric = Registry.load(path).metric("page")
    for seed in range(_AUDITS):
        result = audit_client([*FAULTY_CLIENT, fault], metric, path, seed=seed)
        if STRICT_FAULTS[fault] <= list_faulty_checks(result):
            break
    assert STRICT_FAULTS[fault] <= list_faulty_checks(result)
    assert result.passed == (not fault)
    assert not any(sentence.startswith("Parameters") for sentence in result.not_examined)


@pytest.mark.parametrize(
    ("fault", "devices"),
    [
        *(pytest.param(fault, None, marks=pytest.mark.acceptance) for fault in SET_FAULTS),
        # An exact check: one deviating report is a fault, so the fewest devices find it.
        pytest.param("two buckets", 20, marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found_in_reports_of_sets(
    tmp_path: Path, fault: str, devices: int | None
) -> None:
    """The audit chooses enough devices for every fault of sets of 8 items, and lists none."""
    path = tmp_path / "metrics.toml"
    entry = {"encoding": '"set"', "items": "8", "interval": '"epoch"', "profile": '"once"'}
    path.write_text(format_registry(epoch='"month"', **entry))
    metric = Registry.load(path).metric("page")
    result = audit_client([*FAULTY_CLIENT, fault], metric, path, devices=devices, seed=1)
    assert SET_FAULTS[fault] <= list_faulty_checks(result)
    assert result.passed == (not fault)
    is_small = any(sentence.startswith("Parameters") for sentence in result.not_examined)
    assert is_small == (devices is not None)


@pytest.mark.slow
def test_a_client_without_reports_does_not_pass(tmp_path: Path) -> None:
    """A client that sends no report has the fault "every device reports" alone.

    With strings of 128 bits, 20 devices would show a third permanent response, so the record does
    not list this fault among those that the parameters hide.
    """
    result = audit_client(SILENT_CLIENT, *declared(tmp_path, "month"), devices=20, seed=1)
    assert list_faulty_checks(result) == {"client: every device reports"}
    assert not result.passed
    assert not any("a third permanent response" in text for text in result.not_examined)


@pytest.mark.slow
def test_the_faults_that_parameters_hide_are_listed(tmp_path: Path) -> None:
    """The record lists the faults that 20 devices with one bit would often miss.

    The list depends on the metric and the number of devices, and not on the client's reports.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(format_registry(epoch='"month"', encoding='"boolean"', profile='"strict"'))
    result = audit_client(
        SILENT_CLIENT, Registry.load(path).metric("page"), path, devices=20, seed=1
    )
    (sentence,) = [text for text in result.not_examined if text.startswith("Parameters")]
    assert "20 devices would often miss" in sentence
    assert "a third permanent response after the clock was set back" in sentence
    assert "the first event of an interval that is always reported" in sentence


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("", set()),
        ("no interval", {"client: one report an interval"}),
        # 181 of 300 reports indicate a value. 168 of them indicate the first event, instead of
        # 95 +- 7. The time of sending is another property, so one client has both faults.
        (
            "first event, odd values late",
            {CHOSEN, "client: times do not depend on the value"},
        ),
        # 168 reports indicate the preferred value, instead of 90.
        ("last value", {CHOSEN}),
        # The client reports every day instead of once an epoch.
        ("day for epoch", {"client: one report an interval"}),
    ],
)
def test_faults_of_an_interval_are_found(tmp_path: Path, fault: str, expected: set[str]) -> None:
    """A client must choose any event of the interval, and report it at a time without meaning."""
    interval = "epoch" if "epoch" in fault else "day"
    audited = audit_client(
        [*FAULTY_CLIENT, fault], *declared(tmp_path, "month", interval, 0.2), seed=1
    )
    assert expected <= list_faulty_checks(audited)
    assert audited.passed == (not fault)


def test_commands_and_numbers_without_an_audit_are_refused(tmp_path: Path) -> None:
    """A command with other output than a client's, and too few devices, are refused."""
    metric, path = declared(tmp_path, "life")
    with pytest.raises(ReportError, match="must be JSON with the keys waiting and spent"):
        audit_client([sys.executable, "-c", "for _ in open(0): print('{}')"], metric, path)
    with pytest.raises(ParamsError, match=r"devices must be an integer in \[20, 10,000\]"):
        audit_client(FAULTY_CLIENT, metric, path, devices=19)
