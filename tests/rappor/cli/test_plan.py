"""`rappor plan`: parts of a discovery, remedies for the error, and the entry of the metric."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from registries import format_registry
from shell import Shell, expect_success

from rappor import MetricError, Registry
from rappor.planning.entry import format_params_lines
from rappor.planning.set_design import design_sets

BUDGET = ("plan", "--discover", "--profile", "balanced", "--reports", "1e7")


def test_parts_are_planned(shell: Shell) -> None:
    """The plan of a discovery has a table of parts and an entry with the same parts."""
    code, printed, err = shell(*BUDGET, "--longest", "6", "--name", "word")
    assert (code, err) == (0, "")
    table, entry = printed.split("Entry for the registry:")
    metric = Registry.loads(entry)["word"]
    assert metric is not None
    assert ", ".join(part.name for part in metric.parts) in table
    assert "of up to 6 characters, 26 in the alphabet; 1,000 are assumed" in table


def test_the_largest_part_of_the_error_has_a_remedy(shell: Shell) -> None:
    """A sentence below the parts of the error names the remedy for the largest part."""
    output = expect_success(
        shell("plan", "--profile", "strict", "--reports", "1e6", "--candidates", "100")
    )
    words = " ".join(output.replace("│", " ").split())
    assert "The largest part of the error is privacy noise. To lower it, use more devices," in words


def test_the_plan_says_which_population_it_assumes(shell: Shell, tmp_path: Path) -> None:
    """The summary has the law of the shares, the candidates that devices have, and the largest.

    By Zipf's law with exponent 1, the most frequent of 2 strings has 2/3 of the devices.
    """
    table = tmp_path / "shares.csv"
    table.write_text("value,weight\nvim,3\nemacs,1\n")
    sizes = ("plan", "--profile", "balanced", "--reports", "1e5", "--candidates")
    by_law = " ".join(expect_success(shell(*sizes, "2")).split())
    by_table = " ".join(expect_success(shell(*sizes, "5", "--table", str(table))).split())
    assert (
        "assumed shares Zipf's law with exponent 1: devices have 2 of the 2 candidates, and the "
        "most frequent string has a share of 66.7 %"
    ) in by_law
    assert (
        "assumed shares given shares: devices have 2 of the 5 candidates, and the most frequent "
        "string has a share of 75.0 %"
    ) in by_table


@pytest.mark.slow
def test_the_excess_of_the_noise_is_a_part_of_the_whole_excess(shell: Shell) -> None:
    """The summary has the excess of the error over the best known mechanism, in all and by noise.

    The first number includes collisions of strings. The second one follows from the ratio of the
    designs in the table.
    """
    text = " ".join(
        expect_success(
            shell(*["plan", "--epsilon-1", "1", "--epsilon-inf", "4", "--reports", "1e6"])
        ).split()
    )
    with_collisions, noise = re.findall(r"([0-9.]+) % (?:above the best|by its noise alone)", text)
    (ratio,) = re.findall(r"this one .*? ([0-9.]+) [0-9.]+ %", text)
    assert float(with_collisions) > float(noise) + 1
    assert float(noise) == pytest.approx(100 * (float(ratio) - 1), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("interval", ["day", "week", "epoch"])
def test_plan_and_privacy_state_the_same_losses_of_a_value_that_stays(
    shell: Shell, interval: str
) -> None:
    """Two commands have one table of the losses of years, as text and as JSON.

    Bad case: `rappor plan` once assumed any number of reports. For months of six weekly reports it
    printed 141 nats a year where `rappor privacy` printed 129, and for one report an epoch it had a
    row for life, which no such metric may have.
    """
    noise = {"k": "64", "h": "3", "m": "8", "f": "0.3", "g": "0.2", "p": "0.3", "q": "0.6"}
    entry = {"epoch": '"quarter"', "interval": f'"{interval}"'}
    (shell.folder / "own.toml").write_text(format_registry("site", **noise, **entry))
    metric = ("site", "--registry", shell.path("own.toml"))
    planned = ("plan", *metric, "--devices", "1e5", "--candidates", "50")
    plan, privacy = (expect_success(shell(*words)) for words in (planned, ("privacy", *metric)))
    table = re.compile(r"^A value that stays.*?(?=\n\n)", re.DOTALL | re.MULTILINE)
    assert table.findall(plan) == table.findall(privacy)
    assert len(table.findall(plan)) == 1
    plan, privacy = (
        json.loads(expect_success(shell(*words, "--json")))
        for words in (planned, ("privacy", *metric))
    )
    assert plan["staying"] == privacy["staying"]


@pytest.mark.parametrize(("profile", "interval"), [("balanced", "day"), ("once", "epoch")])
def test_the_entry_names_the_epochs_that_the_registry_accepts(
    shell: Shell, profile: str, interval: str
) -> None:
    """The comment of the line `epoch` has exactly the other epochs with which the entry loads.

    Bad case: the comment once left out "life", which the text above it recommends.
    """
    out = expect_success(shell("plan", "--profile", profile, "--reports", "1e6"))
    entry = out.split("Entry for the registry:")[1]
    # Months cost more than the total of quarters. Only the rules of the epoch are tested here.
    entry = re.sub("^total = .*$", "total = 1000", entry, flags=re.M)
    line, epoch, others = re.findall(r'^(epoch = "(\w+)"  # or (.*): a device.*)$', entry, re.M)[0]
    named = set(re.findall(r'"(\w+)"', others)) | {epoch}
    accepted = set()
    for choice in ("life", "year", "quarter", "month"):
        text = entry.replace(line, f'epoch = "{choice}"')
        with contextlib.suppress(MetricError):
            accepted.add(Registry.loads(text)["my_metric"].epoch)
    assert f'interval = "{interval}"' in entry
    assert named == accepted


def test_json_has_the_same_numbers(shell: Shell) -> None:
    """The JSON of a discovery has its options, parts, expected detections and entry."""
    more = ("--longest", "4", "--alphabet", "a-c0-1", "--candidates", "50", "--json")
    document = json.loads(expect_success(shell(*BUDGET, *more)))
    assert (document["characters"], document["longest"], document["strings"]) == (5, 4, 50)
    assert document["parts"][-1] == {"name": "whole", "share": None}
    assert 0 < document["found"] <= 50
    assert "parts = [" in document["toml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "cohorts"),
    [
        ("--devices 300", 8),
        ("--devices 300 --days 30", 8),
        ("--reports 1e6", 128),
        ("--devices 300 --profile strict", 8),
        ("--devices 300 --epsilon-1 2 --epsilon-inf 4", 8),
        ("--share .1", 128),
    ],
)
def test_number_of_cohorts_follows_from_the_number_of_devices(
    shell: Shell, size: str, cohorts: int
) -> None:
    """A metric of 300 devices with a list of candidates gets 8 cohorts, and --write writes them.

    Without a number of devices, or with many, the plan has the 128 cohorts of the profile.
    """
    text = format_registry(
        "editor", candidates='["vim", "kate"]', profile='"balanced"', epoch='"quarter"'
    )
    (shell.folder / "list.toml").write_text(text)
    words = ("plan", "--registry", shell.path("list.toml"), "editor", *size.split())
    assert json.loads(expect_success(shell(*words, "--json")))["m"] == cohorts
    expect_success(shell(*words, "--write"))
    metric = Registry.load(shell.folder / "list.toml")["editor"]
    assert (metric.params.m, metric.listed) == (cohorts, ("vim", "kate"))


def test_plan_and_warning_name_the_same_number_of_cohorts(shell: Shell) -> None:
    """The m that a warning recommends is the m that a plan of the metric chooses.

    900 devices are 300 in each of three segments, so m is 8. The warning once recommended 15.
    """
    text = format_registry(
        "editor", candidates='["vim", "kate"]', profile='"balanced"', epoch='"quarter"'
    )
    path = shell.folder / "list.toml"
    for segments, devices in (("", 300), ('segments = {version = ["1", "2"]}\n', 900)):
        path.write_text(text + segments)
        words = ("--registry", shell.path("list.toml"), "editor", "--devices", str(devices))
        assert json.loads(expect_success(shell("plan", *words, "--json")))["m"] == 8
    profile = " ".join(
        expect_success(shell("plan", "--profile", "strict", *words[-2:-1], "300")).split()
    )
    assert "m is too large of 128 cohorts" in profile
    assert "reports in an interval; m = 8 would do" in profile


def test_a_ranked_list_is_planned_with_its_weights(shell: Shell) -> None:
    """A plan with --ranked expects more detections than a plan with equal weights.

    The key `ranked` of the entry has the effect of --ranked.
    """
    words = ("--reports", "1e6", "--candidates", "1000", "--json")
    equal = json.loads(expect_success(shell.run_on_metric("plan", *words)))
    ranked = json.loads(expect_success(shell.run_on_metric("plan", *words, "--ranked")))
    assert (equal["ranked"], ranked["ranked"]) == (False, True)
    assert ranked["found"] > equal["found"]
    assert ranked["share"] < equal["share"]
    text = expect_success(shell.run_on_metric("plan", "--reports", "1e6", "--ranked"))
    assert "Benjamini-Hochberg 5 %, weights by rank" in " ".join(text.split())
    registry = shell.folder / "metrics.toml"
    entry = '[metrics.engine]\ncandidates = "engines.txt"\nranked = true'
    registry.write_text(registry.read_text().replace("[metrics.engine]", entry))
    assert (
        json.loads(expect_success(shell.run_on_metric("plan", *words)))["found"] == ranked["found"]
    )


def test_the_plan_of_sets_compares_numbers_of_items(shell: Shell) -> None:
    """The table of alternatives has the items k, the buckets and `keep` of each design of sets."""
    options = ["--encoding", "set", "--items", "8", "--profile", "once", "--devices", "1e5"]
    words = " ".join(expect_success(shell("plan", *options)).split())
    assert "as in the profile once" in words
    assert "design items k keep p* q*" in words
    assert "items = 4 4 232 0.4803" in words
    assert "sets of 6 items on average" in words
    assert "best known mechanism" not in words
    # With fewer candidates than items, a set has three quarters of the candidates.
    words = " ".join(expect_success(shell("plan", *options, "--candidates", "3")).split())
    assert "sets of 2.25 items on average" in words


def test_a_metric_of_sets_is_planned_within_a_budget(shell: Shell, tmp_path: Path) -> None:
    """With a new budget, the number of buckets of a metric changes, and its items do not."""
    path = tmp_path / "metrics.toml"
    entry = {"encoding": '"set"', "items": "4", "epoch": '"year"', "interval": '"epoch"'}
    path.write_text(format_registry("plugins", profile='"once"', **entry), encoding="utf-8")
    budget = ("--epsilon-1", "2", "--epsilon-inf", "2", "--devices", "1e5")
    text = expect_success(shell("plan", "plugins", "--registry", str(path), *budget))
    params = Registry.loads(text.split("Entry for the registry:")[1]).metric("plugins").params
    assert (params.items, params.k) == (4, design_sets(4, 2, m=1).k)


@pytest.mark.parametrize(
    "keys",
    [
        'encoding = "bloom"\nfields = ["site", "country"]\nnormalize = {country = "casefold"}\n',
        'encoding = "onehot"\ncategories = {a = ["x", "y"], b = ["\\"q", "ü", "t"]}\n',
    ],
)
def test_an_entry_of_a_tuple_keeps_its_fields(shell: Shell, keys: str) -> None:
    """--write changes the noise of a tuple metric, and keeps fields, categories and normalizers.

    The printed entry has the same parameters.
    """
    entry = format_registry("pair", profile='"balanced"', epoch='"quarter"')
    text = entry.replace('encoding = "bloom"\n', keys)
    (shell.folder / "tuples.toml").write_text(text)
    before = Registry.load(shell.folder / "tuples.toml")["pair"].params
    size = ("--reports", "1e5", "--epsilon-1", "1.5", "--epsilon-inf", "3")
    words = ("plan", "--registry", shell.path("tuples.toml"), "pair", *size)
    printed = expect_success(shell(*words)).partition("Entry for the registry:")[2]
    expect_success(shell(*words, "--write"))
    after = Registry.load(shell.folder / "tuples.toml")["pair"].params
    assert Registry.loads(printed)["pair"].params == after
    assert (after.field_names, after.categories) == (before.field_names, before.categories)
    assert (after.normalize, after.f != before.f) == (before.normalize, True)
    head = "[budget]\ntotal = inf\n[metrics.pair]\ndescription = 'a'\nowner = 'b'\n"
    lines = [*format_params_lines(after), "expires = 2099-12-31", "epoch = 'quarter'"]
    assert Registry.loads(head + "\n".join(lines))["pair"].params == after


def test_association_of_two_fields_is_planned(shell: Shell) -> None:
    """--cells adds two fields, and the smallest Cramer's V that an association test detects."""
    words = ("plan", "--profile", "balanced", "--reports", "1e5", "--cells", "20x5")
    assert "Association of 20 x 5 equally frequent values at 5 %" in expect_success(shell(*words))
    document = json.loads(expect_success(shell(*words, "--listed-share", "0.7", "--json")))
    test, (metric,) = document["association"], Registry.loads(document["toml"]).values()
    assert metric.params.field_names == ("first_field", "second_field")
    assert (test["n_values"], test["listed"]) == ([20, 5], 0.7)
    assert 0 < test["cramers_v"] < 1
    plain = json.loads(expect_success(shell(*words[:-2], "--json")))
    assert "association" not in plain
    assert "field" not in plain["toml"]
