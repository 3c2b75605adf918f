"""The command `rappor publish`, which writes a site of results.

Each edition is a folder with a page, the counts and the candidates from which it was computed, and
the command that computes it again. An edition never changes. The site lists the editions of a
metric, the newest first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import re
import resource
import shlex
import shutil
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest
from decodings import build_released_counts
from pages import parse_tags
from registries import format_registry
from shell import Shell, expect_refusal, expect_success

from rappor import Counts, Population, Registry, privacy_notice, simulate_counts
from rappor.base.atomic_files import lock_folder
from rappor.comparison.site_edition import EditionSummary, sort_newest_first
from rappor.reporting.numbers import format_share
from rappor.simulation import simulate_days

MONDAY = datetime.date(2026, 11, 2)
REGISTRY = format_registry(
    "engine",
    description='"Where a typed query goes"',
    k="16",
    m="4",
    f="0.25",
    p="0.1",
    q="0.9",
    candidates='"engines.txt"',
    min_reports="20_000",
)


@pytest.fixture
def weeks(shell: Shell) -> Shell:
    """Return a shell in a folder with weeks.json (two weeks) and more.json (one more week)."""
    (shell.folder / "metrics.toml").write_text(REGISTRY)
    params = Registry.load(shell.folder / "metrics.toml")["engine"].params
    population = Population(["duckduckgo", "qwant"], [7, 3])
    counts = simulate_days(population, params, n_devices=2e4, n_days=3, seed=1, metric="engine")
    for name, n in (("weeks", 2), ("more", 3)):
        days = {
            (MONDAY + datetime.timedelta(7 * i), MONDAY + datetime.timedelta(7 * i + 6)): week
            for i, week in enumerate(counts[:n])
        }
        build_released_counts(days, "engine").save(shell.folder / f"{name}.json")
    return shell


def publish(shell: Shell, name: str, *words: str) -> dict[str, object]:
    """Run `rappor publish --json` on a file, and return the parsed output."""
    site = shell.path("site")
    out = expect_success(
        shell("publish", name, "--registry", "metrics.toml", "--out", site, "--json", *words)
    )
    return dict(json.loads(out))


def read_contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file in a folder, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--smooth", "2"),
        ("--by", "month"),
        ("--level", "0.04", "--correction", "bonferroni", "--confidence", "0.5"),
    ],
)
def test_the_command_of_an_edition_computes_it_again(weeks: Shell, words: tuple[str, ...]) -> None:
    """The command in `edition.json` prints a trend.json with the same bytes.

    The hashes in `edition.json` are those of the counts and the candidates. The page states the
    privacy notice and the most frequent string of the last period.
    """
    published = publish(weeks, "weeks.json", *words)
    folder = Path(str(published["page"])).parent
    described = json.loads((folder / "edition.json").read_bytes())
    program, *command = shlex.split(described["command"])
    assert program == "rappor"
    assert shlex.join(words) in described["command"]
    with contextlib.chdir(folder):
        code, out, _ = weeks(*command)
    assert (code, out.encode()) == (0, (folder / "trend.json").read_bytes())
    assert described["sha256"] == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("counts.json", "candidates.txt")
    }
    document = json.loads((folder / "trend.json").read_bytes())
    assert {key: described[key] for key in ("metric", "by", "version")} == {
        "metric": "engine",
        "by": document["by"],
        "version": metadata.version("rappor"),
    }
    assert (described["first"], described["last"]) == ("2026-11-02", "2026-11-15")
    assert (described["reports"], described["strings"]) == (40_000, 2)
    page = (folder / "index.html").read_text()
    metric = Registry.load(weeks.folder / "metrics.toml")["engine"]
    for line in privacy_notice(metric).splitlines():
        assert line in page
    sentence = re.search(r'class="answer"><bdi>(.*?)</bdi> leads with ([\d.]+)\u00a0% of', page)
    assert sentence is not None
    last = document["samples"][-1]["name"]
    rows = [row for row in document["rows"] if (row["what"], row["name"]) == ("share", last)]
    first = max(rows, key=lambda row: row["estimate"])
    share = format_share(first["estimate"], first["std_error"]).removesuffix(" %")
    assert sentence.groups() == (first["candidate"], share)


def test_an_edition_of_a_complete_metric_is_complete(shell: Shell) -> None:
    """The shares of a complete list sum to 1, and the command of the edition knows it, too.

    `rappor trend` with the registry computes the same document, with a note that all days lie in
    one epoch. The edition has no registry, so its command and its document have no such note.
    """
    themes = '["dark", "light", "system"]'
    entry = format_registry("theme", encoding='"onehot"', categories=themes, complete="true")
    (shell.folder / "metrics.toml").write_text(entry)
    params = Registry.load(shell.folder / "metrics.toml")["theme"].params
    population = Population(["dark", "light", "system"], [5, 3, 2])
    weeks = {
        (MONDAY + datetime.timedelta(7 * i), MONDAY + datetime.timedelta(7 * i + 6)): counts
        for i, counts in enumerate(
            simulate_counts(population, params, n_reports=2000, seed=seed, metric="theme")
            for seed in (1, 2)
        )
    }
    build_released_counts(weeks, "theme").save(shell.folder / "weeks.json")
    folder = Path(str(publish(shell, "weeks.json")["page"])).parent
    published = json.loads((folder / "trend.json").read_bytes())
    trend = json.loads(
        expect_success(shell("trend", "weeks.json", "--registry", "metrics.toml", "--json"))
    )
    note = " All days are in one epoch"
    assert trend["assumptions"].partition(note)[:2] == (published["assumptions"], note)
    assert {**trend, "assumptions": published["assumptions"]} == published
    _, *command = shlex.split(json.loads((folder / "edition.json").read_bytes())["command"])
    with contextlib.chdir(folder):
        assert json.loads(expect_success(shell(*command))) == published
        command.remove("--complete")
        assert json.loads(expect_success(shell(*command)))["rows"] != published["rows"]


@pytest.mark.slow
def test_an_edition_is_never_written_over(weeks: Shell) -> None:
    """The same input gives the same edition and writes nothing. Other counts give a new edition.

    A new edition changes the two lists of editions only. If a file of an edition was changed or
    deleted, publishing it again is an error.
    """
    site = Path(weeks.path("site"))
    first = publish(weeks, "weeks.json")
    before = read_contents(site)
    second = publish(weeks, "weeks.json")
    assert (first["new"], second["new"]) == (True, False)
    assert read_contents(site) == before
    later = publish(weeks, "more.json")
    assert later["edition"] != first["edition"]
    after = read_contents(site)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"index.html", "engine/index.html"}
    listed = re.findall(r'href="([0-9a-f]{16})/index.html"', after["engine/index.html"].decode())
    assert listed == [later["edition"], first["edition"]]
    for name in ("trend.json", "index.html"):
        path = site / "engine" / str(first["edition"]) / name
        original = path.read_bytes()
        path.write_text("{}")
        words = ("--registry", "metrics.toml", "--out", str(site))
        assert f"{name}: it was changed" in expect_refusal(weeks("publish", "weeks.json", *words))
        path.unlink()
        assert f"{name}: it was changed" in expect_refusal(weeks("publish", "weeks.json", *words))
        path.write_bytes(original)


@pytest.mark.slow
def test_the_name_of_an_edition_depends_on_all_inputs(weeks: Shell) -> None:
    """Other options, candidates, or another privacy notice give another edition."""
    (weeks.folder / "few.txt").write_text("qwant\n")
    published = [
        publish(weeks, "weeks.json", *words)
        for words in ((), ("--confidence", "0.9"), ("--candidates", "few.txt"))
    ]
    (weeks.folder / "metrics.toml").write_text(REGISTRY.replace("a typed query", "each query"))
    published.append(publish(weeks, "weeks.json"))
    assert len({publication["edition"] for publication in published}) == 4
    listed = (weeks.folder / "site" / "engine" / "index.html").read_text()
    assert all(f'href="{publication["edition"]}/index.html"' in listed for publication in published)


def test_all_headings_begin_with_the_name_of_the_program(weeks: Shell) -> None:
    """The registry's [program] names the program. Another name gives another edition."""
    unnamed = publish(weeks, "weeks.json")
    (weeks.folder / "metrics.toml").write_text('[program]\nname = "<Sketch>"\n' + REGISTRY)
    named = publish(weeks, "weeks.json")
    site = weeks.folder / "site"
    pages = [Path(str(publication["page"])) for publication in (unnamed, named)]
    assert pages[0] != pages[1]
    headings = {
        pages[0]: "engine, 2026-11-02 to 2026-11-15",
        pages[1]: "&lt;Sketch&gt;: engine, 2026-11-02 to 2026-11-15",
        site / "engine" / "index.html": "&lt;Sketch&gt;: engine",
        site / "index.html": "&lt;Sketch&gt;: what was found",
    }
    for page, heading in headings.items():
        text = page.read_text()
        assert f"<title>{heading}</title>" in text
        assert f"<h1>{heading}</h1>" in text


@pytest.mark.slow
def test_a_site_has_every_metric_with_its_newest_edition(weeks: Shell) -> None:
    """The first page of a site links each metric, and its newest edition.

    Counts without a metric need --metric. The output states whether the edition is new.
    """
    tables = REGISTRY + REGISTRY.partition("inf")[2].replace("metrics.engine", "metrics.browser")
    (weeks.folder / "metrics.toml").write_text(tables)
    for name in ("weeks", "more"):
        path = weeks.folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"metric": ""}))
    site = weeks.folder / "public" / "site"
    newest: dict[str, dict[str, object]] = {}
    for name, metric in (("more", "engine"), ("weeks", "engine"), ("weeks", "browser")):
        published = publish(weeks, f"{name}.json", "--metric", metric, "--out", str(site))
        assert published["metric"] == metric
        newest.setdefault(metric, published)
    links = [
        f"{name}/{'' if publication is None else str(publication['edition']) + '/'}index.html"
        for name in ("browser", "engine")
        for publication in (None, newest[name])
    ]
    page = (site / "index.html").read_text()
    assert [attributes["href"] for name, attributes in parse_tags(page) if name == "a"] == links
    # Both lists name the string that leads in the last period of the newest edition.
    path = site / "engine" / str(newest["engine"]["edition"]) / "edition.json"
    summary = EditionSummary.from_json(path.read_bytes(), str(path))
    row = page[page.index('href="engine/index.html"') :]
    shown = re.search(r">(duckduckgo: ([\d.]+)\u00a0% of the reports)<", row)
    assert shown
    assert summary.leader == "duckduckgo"
    assert float(shown[2]) == pytest.approx(100 * summary.leader_share, abs=0.05)
    assert f"{shown[1]} in the last week." in (site / "engine" / "index.html").read_text()
    words = ("publish", "weeks.json", "--registry", "metrics.toml", "--metric", "browser")
    for out, sentence in ((site, "was already in"), (weeks.folder / "new", "is in")):
        folder = f"browser/{newest['browser']['edition']}"
        expected = f"edition {folder[8:]} of browser {sentence} {out}/{folder}/index.html\n"
        assert weeks(*words, "--out", str(out)) == (0, expected, "")


def test_editions_are_listed_by_their_days() -> None:
    """Editions are sorted by last day, then by first day. Equal days have a fixed order."""
    days = [MONDAY + datetime.timedelta(n) for n in range(3)]
    entries = [
        EditionSummary(
            id=digit * 16, metric="engine", by="day", first=first, last=last, reports=1, strings=1
        )
        for digit, first, last in (
            ("c", days[0], days[1]),
            ("d", days[0], days[1]),
            ("b", days[0], days[2]),
            ("a", days[1], days[1]),
        )
    ]
    assert "".join(entry.id[0] for entry in sort_newest_first(entries)) == "badc"


@pytest.mark.slow
def test_editions_of_two_processes_are_both_listed(weeks: Shell) -> None:
    """A process waits for the lock of the site, and then lists the edition of the other process.

    The test holds the lock and hides the first edition, until a second process has waited for three
    times the duration of a publication.
    """
    site = weeks.folder / "site"
    publish(weeks, "weeks.json", "--out", weeks.path("warm"))
    start = time.monotonic()
    first = publish(weeks, "weeks.json")
    seconds = time.monotonic() - start
    folder = site / "engine" / str(first["edition"])
    words = ("publish", "more.json", "--registry", "metrics.toml", "--out", str(site))
    second = threading.Thread(target=weeks, args=words)
    with lock_folder(site):
        folder.rename(weeks.folder / "hidden")
        second.start()
        second.join(3 * seconds)
        (weeks.folder / "hidden").rename(folder)
    second.join()
    listed = (site / "engine" / "index.html").read_text()
    names = {path.parent.name for path in site.glob("engine/*/edition.json")}
    assert len(names) == 2
    assert all(f'href="{name}/index.html"' in listed for name in names)


@pytest.mark.slow
def test_a_failed_publication_changes_nothing(weeks: Shell) -> None:
    """A failed write leaves no part of the edition and no draft.

    The limit of 2,000 bytes a file makes the write fail.
    """
    publish(weeks, "weeks.json")
    site = weeks.folder / "site"
    before = read_contents(site)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        words = ("--registry", "metrics.toml", "--out", str(site))
        code, _, err = weeks("publish", "more.json", *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, "File too large" in err) == (2, True), err
    assert read_contents(site) == before
    assert len(list((site / "engine").iterdir())) == 2


def test_every_link_of_the_site_leads_to_the_site(weeks: Shell) -> None:
    """Links lead to files of the site and to existing anchors.

    A page has one script and one style sheet in itself, and loads nothing.
    """
    publish(weeks, "weeks.json")
    site = Path(weeks.path("site"))
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == 3
    for page in pages:
        page_tags = parse_tags(page.read_text())
        ids = {attributes.get("id") for _, attributes in page_tags}
        links = [str(attributes["href"]) for name, attributes in page_tags if name == "a"]
        assert links
        for link in links:
            path, _, anchor = link.partition("#")
            assert (page.parent / path).exists(), link
            assert not anchor or path or anchor in ids
        names = [name for name, _ in page_tags]
        assert names.count("script") == names.count("style") == 1
        assert not {"img", "link", "iframe", "form"} & set(names)


def test_a_site_needs_the_minimum_of_reports(weeks: Shell) -> None:
    """Counts with fewer reports than the metric's minimum are refused, and no site is written."""
    site = weeks.path("site")
    words = ("publish", "weeks.json", "--candidates", "engines.txt", "--out", site)
    (weeks.folder / "metrics.toml").write_text(REGISTRY.replace("20_000", "20_001"))
    assert "at least 20,001 reports" in expect_refusal(
        weeks(*words, "--registry", "metrics.toml"), 1
    )
    assert not Path(site).exists()


def test_each_set_of_other_parameters_has_a_sentence(weeks: Shell) -> None:
    """Each parameter set of reports, except that of the metric, has a sentence with its losses.

    The sentences are sorted by fingerprint. Segments of the metric's parameters, and parameters
    without reports, have no sentence. The list of editions has none either.
    """
    (weeks.folder / "metrics.toml").write_text(REGISTRY + 'segments = {channel = ["beta"]}\n')
    metric = Registry.load(weeks.folder / "metrics.toml")["engine"]
    params_of_metric = metric.params.with_segment((("channel", "beta"),))
    other_params = [dataclasses.replace(params_of_metric, q=q) for q in (0.8, 0.7, 0.85, 0.75)]
    population = Population(["duckduckgo", "qwant"], [7, 3])
    counts = [
        simulate_counts(population, params, n_reports=2e4, seed=1, metric="engine")
        for params in (params_of_metric, *other_params)
    ]
    unused = dataclasses.replace(params_of_metric, q=0.6)
    all_counts = (*counts, Counts.zero(unused, "engine"))
    build_released_counts({MONDAY: all_counts}, "engine").save(weeks.folder / "mixed.json")
    page = Path(str(publish(weeks, "mixed.json")["page"]))
    sentence = "Some of these reports have other parameters"
    lines = [line for line in page.read_text().split("<p>") if sentence in line]
    fingerprints = [re.findall(r"parameters \(([0-9a-f]{16})\)", line) for line in lines]
    assert fingerprints == [
        [fingerprint] for fingerprint in sorted(params.fingerprint for params in other_params)
    ]
    assert all("All reports of one value under them: " in line for line in lines)
    assert sentence not in (page.parent.parent / "index.html").read_text()


@pytest.mark.slow
def test_an_edition_with_another_description_is_an_error(weeks: Shell) -> None:
    """An `edition.json` with wrong fields, or of another edition, is an error before any write."""
    published = publish(weeks, "weeks.json")
    site = Path(weeks.path("site"))
    path = Path(str(published["page"])).parent / "edition.json"
    document = json.loads(path.read_bytes())
    changes = {"id": "javascript:alert(1)", "metric": "other", "reports": float("inf"), "first": 5}
    changed = [document | {key: value} for key, value in changes.items()]
    changed.append(document | {"first": "never"})
    for text in [*map(json.dumps, changed), "{}", "[" * 100_000]:
        path.write_text(text)
        before = read_contents(site)
        words = ("--registry", "metrics.toml", "--out", str(site))
        assert "it is not the description of" in expect_refusal(
            weeks("publish", "more.json", *words)
        )
        assert read_contents(site) == before


@pytest.mark.slow
def test_folders_that_are_no_editions_stay_and_are_not_listed(weeks: Shell) -> None:
    """Folders and files of other programs stay and are not listed.

    Drafts of a killed `rappor publish` are deleted.
    """
    site = Path(weeks.path("site"))
    published = publish(weeks, "weeks.json")
    page = Path(str(published["page"]))
    foreign = site / "javascript:alert(1)" / page.parent.name
    foreign.mkdir(parents=True)
    shutil.copy(page.parent / "edition.json", foreign)
    unnamed = page.parent.parent / "copy"
    shutil.copytree(page.parent, unnamed)
    notes = site / ".notes.tmp"
    notes.write_text("mine")
    abandoned = site / "engine" / f".{16 * 'a'}.{16 * 'b'}.tmp"
    abandoned.mkdir()
    (abandoned / "counts.json").write_text("half")
    (site / f".index.html.{16 * 'c'}.tmp").write_text("half")
    publish(weeks, "more.json")
    assert "javascript" not in (site / "index.html").read_text()
    hidden = list(site.rglob(".*"))
    assert "copy" not in (site / "engine" / "index.html").read_text()
    assert (foreign / "edition.json").exists()
    assert (unnamed / "edition.json").exists()
    assert hidden == [notes]


def test_candidates_that_a_file_cannot_contain_are_refused(weeks: Shell) -> None:
    """A candidate that begins with a byte-order mark is refused.

    At the beginning of a file, the mark is no part of a string. The command of the edition would
    read another candidate.
    """
    (weeks.folder / "odd.txt").write_text(2 * "\ufeff" + "duckduckgo\nqwant\n", encoding="utf-8")
    words = ("--registry", "metrics.toml", "--candidates", "odd.txt")
    err = expect_refusal(weeks("publish", "weeks.json", *words, "--out", weeks.path("site")), 1)
    assert "must not change when a file of lines is written" in err
