"""Checks of registries, which `rappor-server check` prints as findings.

`check_registry` looks at one registry: weak protection, expired metrics, files of candidates.
`check_edit` compares a registry with the registry before. `explain_budget` and `explain_cohorts`
have the nats of each metric, and the number of devices that the cohorts need. A finding is a text
with a level: "note", "warning" or "refused".
"""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from collectors import TODAY, UNBOUNDED, build_metric, format_entry
from rappor_server.app.input_files import InputFiles
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.ingest.registry_check import (
    check_edit,
    check_registry,
    explain_budget,
    explain_cohorts,
)
from registries import build_registry

from rappor import Metric, Params, Registry, combine_categories
from rappor.privacy.parameter_changes import cost_of_change
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.budget import scope_cost

STRICT = Params.profile("strict")
"""Parameters with so much noise that no check warns about weak protection. A registry that changes
a metric to these parameters gets a note, and no warning."""
OTHER = dataclasses.replace(STRICT, m=64)
"""The same parameters with another number of cohorts, hence another fingerprint."""


def make_onehot(*categories: str) -> Params:
    """Return parameters of the encoding `onehot` for some categories."""
    k = len(categories)
    return Params(k=k, encoding="onehot", categories=categories, f=0.5, p=0.25, q=0.75)


ONEHOT = make_onehot("a", "b", "c")


def list_levels(old: Metric, *new: Metric) -> list[str]:
    """Return the levels of the findings about an edit of one metric to some metrics."""
    return [finding.level for finding in check_edit(build_registry(old), build_registry(*new))]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (build_metric(), [build_metric()], []),
        (build_metric(), [build_metric(), build_metric("more")], []),
        (build_metric(), [build_metric("other")], ["refused"]),
        (build_metric(), [build_metric(params=STRICT)], ["note"]),
        (build_metric(), [build_metric(epoch="month")], ["note"]),
        (build_metric(), [build_metric(params=ONEHOT, description="new")], ["refused", "note"]),
        (build_metric(), [build_metric(params=ONEHOT)], ["note"]),
        (
            build_metric(params=ONEHOT),
            [build_metric(params=make_onehot("a", "b", "c", "d"))],
            ["note"],
        ),
        (
            build_metric(params=ONEHOT),
            [build_metric(params=make_onehot("a", "b"))],
            ["refused", "note"],
        ),
    ],
)
def test_levels_of_edits(old: Metric, new: list[Metric], expected: list[str]) -> None:
    """Removed metrics, removed categories and reused names are refused.

    A name is reused if the description changes together with the encoding. Every change of a metric
    that stays also gets a note with its cost, so a refused change of parameters has two findings.
    """
    assert list_levels(old, *new) == expected


def test_edits_of_the_fields_of_a_tuple() -> None:
    """A metric of a tuple must keep the order and the names of its fields.

    Devices that are not updated still send combinations in the old order, which the new registry
    does not have as categories. An edit that removes the fields of a metric of strings gets a note.
    If the edit also changes the description, it is refused, because the name would stand for
    another question.
    """
    lists = {"editor": ("vim", "code"), "system": ("linux", "mac")}

    def make_metric(*names: str, description: str = "a") -> Metric:
        chosen = {name: lists[name] for name in names}
        params = Params.profile(
            "balanced",
            encoding="onehot",
            categories=combine_categories(chosen),
            field_names=names,
        )
        return build_metric(params=params, description=description)

    old, reordered = make_metric("editor", "system"), make_metric("system", "editor")
    refusal, _ = check_edit(build_registry(old), build_registry(reordered))
    assert refusal.level == "refused"
    assert "got none of vim | linux, vim | mac, code | linux, code | mac: devices" in refusal.text
    pair = Params.profile("balanced", field_names=("site", "country"))
    plain = dataclasses.replace(pair, field_names=())
    before = build_metric(params=pair)
    assert list_levels(before, build_metric(params=plain)) == ["note"]
    renamed = build_metric(params=plain, description="b")
    refusal, _ = check_edit(build_registry(before), build_registry(renamed))
    assert "page: a name must keep its meaning, got another description and fields" in refusal.text


@pytest.mark.parametrize(
    "changed",
    [
        {"params": Params(k=16, m=4, f=0.5, p=0.4, q=0.6)},
        {"params": STRICT},
        {"params": STRICT, "epoch": "month"},
        {"parts": (Part("prefix:3", 0.25), Part("whole"))},
        *({"interval": "week"}, {"sampling_rate": 0.5}, {"epoch": "quarter"}),
    ],
    ids=str,
)
def test_note_has_the_change_and_its_cost(changed: dict[str, Any]) -> None:
    """The note about a change has the summary of `rappor privacy --changed`, and the old value."""
    old = build_metric()
    new = dataclasses.replace(old, **changed)
    first, *_ = check_edit(build_registry(old), build_registry(new))
    assert cost_of_change(old, new, reports=10).summary in first.text
    for key in changed.keys() - {"params", "parts"}:
        assert f"{key} changes from {getattr(old, key)} to {changed[key]}" in first.text


def test_note_about_changed_segments() -> None:
    """Devices without the new segments are accepted. Devices with removed segments are refused."""
    plain = build_metric(epoch="quarter")
    divided = dataclasses.replace(plain, segments=(Dimension("version", ("1",)),))
    addition, removal = (
        check_edit(build_registry(old), build_registry(new))[0].text
        for old, new in ((plain, divided), (divided, plain))
    )
    assert "segments change from none to version (1, other)" in addition
    assert "are refused" not in addition
    assert "segments change from version (1, other) to none" in removal
    assert "Clients that are not updated are refused" in removal
    assert "unless the setting `older` of the collector names the old registry" in removal


def test_warning_about_the_year_of_a_change() -> None:
    """An edit gets a warning if the budget is too small for the year of the change.

    Each registry fits the budget of 3 nats. A device that has reported before the change has
    reserved the cost of the old parameters, and reserves the cost of the new parameters in the same
    year. A budget that is the sum of both costs gets no warning.
    """
    old, new = (Registry([build_metric(params=params)], total=3.0) for params in (STRICT, OTHER))
    (_, year) = check_edit(old, new)
    assert year.level == "warning"
    sum_of_costs = sum(scope_cost(registry["page"]) for registry in (old, new))
    sentence = (
        f"needs {sum_of_costs:g} nats in the year of the change, and the budget of a year has 3 "
        "nats"
    )
    assert sentence in year.text
    (_,) = check_edit(old, Registry([new["page"]], total=sum_of_costs))


def test_notes_about_the_budget_of_each_metric() -> None:
    """A note has the nats that each metric reserves, and the number of its scopes.

    A scope is a metric in one epoch on one device. The device reserves the cost of each scope.
    """
    metrics = [build_metric("page", STRICT, epoch="quarter"), build_metric("sound", STRICT)]
    quarter, life = map(scope_cost, metrics)  # a year has four scopes of `page`, and one of `sound`
    findings = explain_budget(Registry(metrics, total=100))
    assert [finding.text for finding in findings] == [
        f"{4 * quarter + life:g} of 100 nats of a device's calendar year are reserved",
        f"page: it reserves {4 * quarter:g} nats of a calendar year: 4 x {quarter:g}",
        f"sound: it reserves {life:g} nats of a calendar year: 1 x {life:g}",
    ]


def test_warning_about_an_infinite_budget() -> None:
    """A registry with an infinite total gets a warning first."""
    first, *_ = explain_budget(build_registry(build_metric(params=STRICT)))
    assert first.level == "warning"
    assert "the privacy loss of a device has no limit" in first.text


@pytest.mark.parametrize(("devices", "has_warning"), [(None, False), (2559, True), (2560, False)])
def test_warning_about_too_many_cohorts(devices: int | None, has_warning: bool) -> None:
    """A metric gets a warning if its cohorts have fewer than 20 devices on average.

    The sum of a cohort is released only with 10 reports, the default of `min_cohort`. A mean of 20
    reports leaves room for chance. `page` has 128 cohorts, which need 128 * 20 = 2,560 devices.
    `theme` has one cohort, which is never too many.
    """
    registry = build_registry(build_metric(params=STRICT), build_metric("theme", ONEHOT))
    findings = explain_cohorts(registry, devices=devices)
    assert [finding.level for finding in findings] == ["warning"] * has_warning
    for finding in findings:
        assert finding.text.startswith("page: m is too large for 2,559 devices: of 128 cohorts, ")
        assert finding.text.endswith("m = 64 would do")


def test_warning_about_a_metric_without_minimum() -> None:
    """A metric with `min_reports` = 0 gets a warning, because every report is released at once."""
    (finding,) = explain_cohorts(build_registry(build_metric(min_reports=0)), devices=None)
    assert finding.level == "warning"
    assert "every report is shown at once" in finding.text


MINIMUMS = (
    ({"min_cohort": 20}, {"min_cohort": 19}, "min_cohort must not fall from 20 to 19"),
    ({"min_cohort": 19}, {"min_cohort": 20}, ""),
    ({"min_reports": 5}, {"min_reports": 0}, "min_reports must not fall from 5 to 0"),
    ({"min_reports": 0}, {"min_reports": 5}, "min_reports must not rise from 0 to 5"),
    ({"min_reports": 0, "min_cohort": 20}, {"min_reports": 0, "min_cohort": 1}, ""),
    ({"min_reports": 7}, {"min_reports": 5}, "min_reports must not fall from 7 to 5"),
    ({"min_reports": 5}, {"min_reports": 7}, ""),
    ({"interval": "day"}, {"interval": "week"}, ""),
    ({"epoch": "month"}, {"epoch": "life"}, ""),
)
"""Contains fields of the entry before and after an edit, and the refusal, empty if it is allowed.

A fall of a minimum breaks the promise of the privacy notice that devices have reported under. A
rise of `min_reports` from 0 is refused, because an analyst saw the waiting reports one by one, and
could subtract them from the sum of a block. `min_cohort` may fall while `min_reports` is 0, because
such a metric has no blocks, and its notice promises nothing about them."""


@pytest.mark.parametrize(("before", "after", "reason"), MINIMUMS)
def test_minimums_that_break_a_promise(
    before: dict[str, Any], after: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """An edit of minimums that breaks a promise is refused while both registries are in force.

    `check` prints a warning. `serve` refuses the registry while its setting `older` names the
    registry before. Other changes of minimums and parameters are allowed, also a longer interval.
    """
    fields = {"interval": "day", "k": 16, "m": 4, "min_reports": 5}
    texts = [UNBOUNDED + format_entry("page", **fields | changed) for changed in (before, after)]
    findings = check_edit(*(Registry.loads(text, today=TODAY) for text in texts))
    warnings = [finding.text for finding in findings if finding.level != "note"]
    for name, text in zip(("old.toml", "new.toml"), texts, strict=True):
        (tmp_path / name).write_text(text)
    old, new = (str(tmp_path / name) for name in ("old.toml", "new.toml"))
    settings = Settings(registry=new, older=(old,))
    if not reason:
        assert warnings == []
        InputFiles.read(settings, today=TODAY)
        return
    (warning,) = warnings
    assert warning.startswith(f"page: {reason}: ")
    assert warning.endswith("`serve` refuses this registry while `older` names the registry before")
    with pytest.raises(ConfigError, match=f"new.toml, after .*old.toml: page: {reason}: "):
        InputFiles.read(settings, today=TODAY)
    InputFiles.read(Settings(registry=new), today=TODAY)


def test_metric_of_older_clients_must_stay(tmp_path: Path) -> None:
    """`serve` refuses a registry that lacks a metric of the older registry, as `check` does."""
    for name, metric in (("old.toml", "page"), ("new.toml", "sound")):
        (tmp_path / name).write_text(UNBOUNDED + format_entry(metric, encoding="boolean"))
    settings = Settings(registry=str(tmp_path / "new.toml"), older=(str(tmp_path / "old.toml"),))
    with pytest.raises(ConfigError, match="page: a metric must stay"):
        InputFiles.read(settings, today=TODAY)


def test_warnings_about_weak_and_expiring_metrics() -> None:
    """Warnings have the epsilons of weak metrics and the days of expiring metrics.

    With `interval = "epoch"` each device draws one day of the epoch. A metric that expires inside
    an epoch also gets a warning with the percentage of the devices whose drawn day comes later.
    """
    weak = Params(k=16, m=4, f=0.01, p=0.01, q=0.99)
    # epsilon_inf is infinite, because no permanent response forces a bit to 1 (g = 0). But with one
    # report in an epoch the loss is epsilon_1 = 1.7, so the metric `bare` is not weak.
    infinite_epsilon_inf = Params(k=4, f=0.2, g=0, p=0.25, q=0.75)
    registry = build_registry(
        build_metric("weak", weak),
        build_metric("over", STRICT, expires=TODAY - datetime.timedelta(days=1)),
        build_metric("soon", STRICT, expires=TODAY + datetime.timedelta(days=30)),
        build_metric(
            "once", STRICT, epoch="month", interval="epoch", expires=datetime.date(2027, 6, 3)
        ),
        build_metric(
            "gone", STRICT, epoch="month", interval="epoch", expires=datetime.date(2026, 6, 3)
        ),
        build_metric("fine", Params.profile("low-noise")),
        build_metric("bare", infinite_epsilon_inf, epoch="year", interval="epoch"),
    )
    texts = [finding.text for finding in check_registry(registry, folder=Path(), today=TODAY)]
    # Devices draw one of the days of an epoch without its last eight. Of the 22 drawn days of June,
    # 19 come after June 3. Of the 357 drawn days of the year, 356 come after January 1.
    assert texts[0].startswith("weak: weak protection: epsilon is 8.")
    assert texts[1:] == [
        "over: expired on 2026-11-20",
        "soon: expires on 2026-12-21",
        "once: it expires on 2027-06-03, before the month ends: the 86.4 % of the devices that "
        "draw a later day do not answer in that month",
        "gone: expired on 2026-06-03",
        "bare: it expires on 2030-01-01, before the year ends: the 99.7 % of the devices that draw "
        "a later day do not answer in that year",
    ]


@pytest.mark.parametrize(
    ("contents", "fault"),
    [
        (b"a\nb\n", None),
        (None, "(No such file or directory)"),
        (b"", "(it has no candidates)"),
        (b"a\n\xff\n", "(line 2: it is not UTF-8)"),
    ],
)
def test_warnings_about_candidates_files(
    tmp_path: Path, contents: bytes | None, fault: str | None
) -> None:
    """A warning names an unusable file as the registry names it, relative to the registry."""
    if contents is not None:
        (tmp_path / "engines.txt").write_bytes(contents)
    registry = build_registry(build_metric(params=STRICT, candidates="engines.txt"))
    texts = [finding.text for finding in check_registry(registry, folder=tmp_path, today=TODAY)]
    if fault is None:
        assert texts == []
    else:
        (text,) = texts
        assert text.startswith(f"page: its candidates file engines.txt cannot be used {fault};")
        assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("sites", "fault"),
    [
        ("a\nb\n", None),
        (None, "(No such file or directory)"),
        ("", "(candidates of field site must not be empty)"),
    ],
)
def test_warnings_about_files_of_fields(
    tmp_path: Path, sites: str | None, fault: str | None
) -> None:
    """A warning names the file of the field that cannot be used."""
    if sites is not None:
        (tmp_path / "sites.txt").write_text(sites)
    params = dataclasses.replace(STRICT, field_names=("site", "country"))
    table = {"site": "sites.txt", "country": ("de", "fr")}
    registry = build_registry(build_metric(params=params, candidates=table))
    texts = [finding.text for finding in check_registry(registry, folder=tmp_path, today=TODAY)]
    expected = f"page: its candidates file sites.txt cannot be used {fault};"
    assert [text.startswith(expected) for text in texts] == ([] if fault is None else [True])


def test_candidates_may_change() -> None:
    """A changed list is no finding, because old counts can be decoded with the new list."""
    first = build_metric(params=STRICT, candidates=("a", "b"))
    for changed in (("b", "c"), ("a",), "engines.txt", None):
        second = dataclasses.replace(first, candidates=changed)
        assert check_edit(build_registry(first), build_registry(second)) == []
        assert check_edit(build_registry(second), build_registry(first)) == []


def test_devices_are_spread_over_segments() -> None:
    """Each segment needs 20 devices in each of its cohorts.

    The segments are the versions 1, 2, and all other versions.
    """
    segments = (Dimension("version", ("1", "2")),)
    plain = build_metric(params=Params.profile("balanced"))
    divided = dataclasses.replace(plain, segments=segments)
    enough = 20 * plain.params.m
    assert explain_cohorts(build_registry(plain), devices=enough) == []
    (finding,) = explain_cohorts(build_registry(divided), devices=3 * enough - 1)
    assert f"m is too large for {enough - 1:,} devices in each of 3 segments" in finding.text
    assert explain_cohorts(build_registry(divided), devices=3 * enough) == []


def test_the_rarest_part_of_a_string_has_the_fewest_devices() -> None:
    """Each part needs 20 devices in each of its cohorts, like a segment.

    A fifth of the devices report the first three characters. The counts of the parts are not added.
    """
    plain = build_metric(params=Params.profile("balanced"))
    divided = dataclasses.replace(plain, parts=(Part("prefix:3", 0.2), Part("whole")))
    enough = 20 * plain.params.m
    (finding,) = explain_cohorts(build_registry(divided), devices=5 * enough - 1)
    assert f"m is too large for {enough - 1:,} devices with the rarest part: " in finding.text
    assert explain_cohorts(build_registry(divided), devices=5 * enough) == []
