"""`rappor compare`: samples from files, and the printed differences."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from decodings import build_released_counts
from shell import REGISTRY, Shell, expect_refusal, expect_success

from rappor import Counts, Population, Registry, compare_samples, simulate_counts

DAY = datetime.date(2026, 11, 2)


@pytest.fixture
def samples(shell: Shell) -> Shell:
    """Return a shell in a folder with the counts of two months, and both as days of one file.

    The string qwant has half of the devices in May, and none in June.
    """
    params = Registry.load(shell.folder / "metrics.toml")["engine"].params
    may, june = (
        simulate_counts(
            Population(["duckduckgo", "qwant"], shares),
            params,
            n_reports=5e4,
            seed=i,
            metric="engine",
        )
        for i, shares in enumerate(([5, 5], [10, 0]))
    )
    may.save(shell.folder / "may.counts")
    june.save(shell.folder / "june.counts")
    days = {DAY: may, DAY + datetime.timedelta(1): june}
    build_released_counts(days, "engine").save(shell.folder / "days.json")
    return shell


@pytest.mark.slow
def test_changes_are_listed(samples: Shell) -> None:
    """The output lists qwant as leaver and duckduckgo as rise, and --html writes a page.

    It also states the test that no row changed, and the unknown number of common devices.
    """
    page = samples.path("changes.html")
    words = ("compare", "may.counts", "june.counts", "--candidates", "engines.txt")
    out = expect_success(samples(*words, "--html", page))
    assert "engine: what changed from may to june" in Path(page).read_text(encoding="utf-8")
    lines = out.splitlines()
    assert lines[0] == "from may to june"
    rows = {line.split()[0]: line.split()[1] for line in lines[2:4]}
    assert rows == {"qwant": "leaver", "duckduckgo": "rise"}
    assert 'The difference is not exactly "after" minus "before"' in out
    assert "2 of 3 differences are significant" in out
    assert "significant at the level 1 %: from may to june (p = " in " ".join(out.split())
    assert "It is not known how many devices are in both samples" in " ".join(out.split())
    # `print` of the comparison in Python shows the same text.
    months = {name: Counts.load(samples.path(f"{name}.counts")) for name in ("may", "june")}
    engines = Path(samples.path("engines.txt")).read_text(encoding="utf-8").split()
    assert f"{compare_samples(months, engines)}\n" == out


@pytest.mark.slow
def test_periods_of_one_file_are_samples(samples: Shell) -> None:
    """Each period of a file is a sample, named by its day. --all lists every candidate.

    Each of three candidates has a row for each sample and one for the difference: 9 rows.
    """
    words = ("--candidates", "engines.txt", "--all", "--json")
    document = json.loads(expect_success(samples("compare", "days.json", *words)))
    # Without a registry the epoch is unknown.
    assert "epoch" not in document["assumptions"]
    assert [sample["name"] for sample in document["samples"]] == ["2026-11-02", "2026-11-03"]
    assert len(document["rows"]) == 3 * document["candidates"] == 9


@pytest.mark.slow
@pytest.mark.parametrize(("n_days_later", "is_noted"), [(1, True), (60, False)])
def test_samples_of_one_epoch_have_a_note(
    samples: Shell, n_days_later: int, is_noted: bool
) -> None:
    """The output says that days of one epoch do not show changed values.

    The metric has the epoch "quarter". 2026-11-03 is in the same quarter as `DAY`, and 2027-01-01
    is not. The two days are one file or two files. Files without days have no note.
    """
    quarters = samples.folder / "quarters.toml"
    quarters.write_text(REGISTRY.replace('epoch = "life"', 'epoch = "quarter"', 1))
    assert Registry.load(quarters)["engine"].epoch == "quarter"
    later = DAY + datetime.timedelta(n_days_later)
    may, june = (Counts.load(samples.path(f"{name}.counts")) for name in ("may", "june"))
    days = {DAY: may, later: june}
    build_released_counts(days, "engine").save(samples.folder / "both.json")
    for day, counts in days.items():
        build_released_counts({day: counts}, "engine").save(samples.folder / f"{day}.json")
    words = ("--registry", "quarters.toml", "--candidates", "engines.txt", "--json")
    note = "All days are in one epoch (2026-Q4), in which a device repeats the value of its first"
    for paths, expected in (
        (("both.json",), is_noted),
        ((f"{DAY}.json", f"{later}.json"), is_noted),
        (("may.counts", "june.counts"), False),
    ):
        document = json.loads(expect_success(samples("compare", *paths, *words)))
        assert (note in document["assumptions"]) is expected, paths


def test_the_registry_names_candidates_and_the_minimum(samples: Shell) -> None:
    """With --registry, every sample must have the metric's minimum number of reports, 5,000."""
    strict = Registry.load(samples.folder / "metrics.toml")["engine_strict"].params
    for name, n in (("many", 9000), ("few", 4000)):
        counts = Counts.zero(strict, "engine_strict")
        population = Population(["qwant"], [1])
        counts += simulate_counts(population, strict, n_reports=n, seed=1, metric="engine_strict")
        counts.save(samples.folder / f"{name}.counts")
    words = ("--registry", "metrics.toml")
    assert samples("compare", "many.counts", "many.counts", *words)[0] == 2
    err = expect_refusal(samples("compare", "many.counts", "few.counts", *words), 1)
    assert "at least 5,000 reports" in err
