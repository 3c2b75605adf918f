"""A metric with `other` on the command line: from the registry to what is in it."""

from __future__ import annotations

import json

import pytest
from registries import toml_of
from shell import SECRET, Shell, ok, refused

from rappor import Params, Registry
from rappor.planning.noise import choose_noise
from rappor.protocol.params import NOISE

ENTRY = toml_of(
    "editor",
    encoding='"onehot"',
    categories='["vscode", "vim"]',
    profile='"low-noise"',
    epoch='"quarter"',
    other='"discover"',
    parts='[{name = "prefix:2", share = 0.4}, {name = "whole"}]',
    candidates='"editors.txt"',
)
HELD = "value,weight\nvscode,50\nvim,20\nkate,20\nnano,10\n"
COUNTS = ("week.counts", "week-other-prefix-2.counts", "week-other-whole.counts")


@pytest.fixture
def shop(shell: Shell) -> Shell:
    """A folder with such a registry, who holds what, and a week of counts."""
    (shell.place / "registry.toml").write_text(ENTRY)
    (shell.place / "population.csv").write_text(HELD)
    (shell.place / "editors.txt").write_text("kate\nnano\nemacs\n")
    words = ("--population", "population.csv", "--reports", "50000", "--seed", "1")
    out = shell.path("week.counts")
    where = ("--registry", "registry.toml", "--metric", "editor", "--out", out)
    printed = ok(shell("simulate", *where, *words, "--json"))
    assert [name.rsplit("/", 1)[-1] for name in json.loads(printed)["files"]] == list(COUNTS)
    return shell


def test_counts_of_both_are_decoded_together(shop: Shell) -> None:
    """The categories, and then the texts in other with both of their shares."""
    search = ("--alphabet", "a-z", "--longest", "4", "--keep", "20")
    out = ok(shop("discover", *COUNTS, "--registry", "registry.toml", *search, "--json"))
    document = json.loads(out)
    rows = document["categories"]["estimates"]
    assert [row["candidate"] for row in rows] == ["vscode", "vim", "other"]
    assert [row["candidate"] for row in document["other"]][:2] == ["kate", "nano"]
    kate = document["other"][0]
    assert kate["of_all"]["proportion"] == pytest.approx(0.2, abs=0.05)
    assert kate["of_other"]["proportion"] == pytest.approx(2 / 3, abs=0.15)
    _code, out, _ = shop("discover", *COUNTS, *search)
    assert "What is in other" in out
    assert "vscode" in out


def test_texts_of_other_reach_no_terminal_as_they_are(shop: Shell) -> None:
    """A known one is named by its signs; so is the alphabet."""
    hostile = "\x1b[31mr\u202e"
    (shop.place / "population.csv").write_text(f"value,weight\nvscode,60\n{hostile},40\n")
    (shop.place / "editors.txt").write_text(f"{hostile}\n")
    where = ("--registry", "registry.toml", "--metric", "editor")
    words = ("--population", "population.csv", "--reports", "50000", "--seed", "1")
    ok(shop("simulate", *where, *words, "--out", shop.path("week.counts")))
    search = ("--registry", "registry.toml", "--alphabet", "a\u202e", "--longest", "2")
    out = ok(shop("discover", *COUNTS, *search, "--keep", "20"))
    assert "\N{SYMBOL FOR ESCAPE}[31mr[U+202E]" in out
    assert "alphabet (as given): a[U+202E]" in out
    assert not {"\x1b", "\u202e"} & set(out)


@pytest.mark.acceptance
def test_decode_does_the_same_by_the_metrics_candidates(shop: Shell) -> None:
    """With an alphabet that it learns; what is for one metric only is refused."""
    out = ok(shop("decode", *COUNTS, "--registry", "registry.toml", "--json"))
    assert {"kate", "nano"} <= {row["candidate"] for row in json.loads(out)["other"]}
    err = refused(shop("decode", *COUNTS, "--forged"))
    assert "--forged must be omitted for counts of categories" in err


def test_counts_of_strangers_are_refused(shop: Shell) -> None:
    """Counts whose metrics the registry does not know as a pair."""
    (shop.place / "strange.toml").write_text(ENTRY.replace("metrics.editor", "metrics.tool"))
    err = refused(shop("discover", *COUNTS, "--registry", "strange.toml"))
    assert "counts must be of a metric with other, got editor, editor.other" in err


@pytest.mark.parametrize("command", ["decode", "discover"])
def test_days_of_several_epochs_are_refused(command: str, shop: Shell) -> None:
    """In each epoch a device answers for another part, and may hold another value."""
    answers = []
    for metric, month in (("editor", "2026-09"), ("editor.other", "2026-10")):
        answer = {"metric": metric, "from": f"{month}-01", "to": f"{month}-20", "collections": []}
        (shop.place / f"{month}.json").write_text(json.dumps(answer))
        answers.append(f"{month}.json")
    err = refused(shop(command, *answers, *COUNTS, "--registry", "registry.toml"), 1)
    assert "one epoch of editor.other, got days of 2026-Q3 and 2026-Q4" in err


@pytest.mark.parametrize(("few", "short"), [(0, "editor"), (1, "editor.other")])
def test_both_metrics_have_a_minimum(few: int, short: str, shop: Shell) -> None:
    """Too few reports of either are refused, however many the other one has."""
    words = ("--population", "population.csv", "--reports", "99", "--seed", "1")
    where = ("--registry", "registry.toml", "--metric", "editor")
    ok(shop("simulate", *where, *words, "--out", shop.path("few.counts")))
    small = [name.replace("week", "few") for name in COUNTS]
    mixed = [small[0], *COUNTS[1:]] if few == 0 else [COUNTS[0], *small[1:]]
    err = refused(shop("discover", *mixed, "--registry", "registry.toml", "--alphabet", "a-z"), 1)
    assert f"at least 100 reports, the minimum of {short}, got 99" in err


def test_what_a_device_sends_is_two_reports(shop: Shell) -> None:
    """`encode` shows both, and in JSON the second one under `together`."""
    words = ("--registry", "registry.toml", "--secret-hex", SECRET, "--epoch", "2026-Q4")
    document = json.loads(ok(shop("encode", "editor", "vim", *words, "--json")))
    assert (document["metric"], document["bits"]) == ("editor", "010")
    (second,) = document["together"]
    assert second["metric"] == "editor.other"
    _code, out, _ = shop("encode", "editor", "vim", *words)
    assert out.count("\npermanent  ") == 2


def test_both_prices_are_told(shop: Shell) -> None:
    """By `collects`, with what both reports tell together, and by `privacy`.

    A registry for JavaScript has both metrics, with the parts of the second one.
    """
    first, second = json.loads(ok(shop("collects", "--registry", "registry.toml", "--json")))[
        "metrics"
    ]
    assert [first["name"], second["name"]] == ["editor", "editor.other"]
    assert (first["parts"], second["parts"][-1]["name"]) == ([], "whole")
    assert first["notice"] != second["notice"] != ""
    out = ok(shop("collects", "editor", "--registry", "registry.toml"))
    assert "editor.other: What is in no category of editor" in out
    assert "a device answers both or neither" in out
    told = " ".join(out.partition("both or neither")[2].split())
    one = "Both reports of one value together: somebody who was half sure what your answer is can"
    assert f"{one} become almost certain" in told
    out = ok(shop("privacy", "editor", "--registry", "registry.toml", "--json"))
    assert json.loads(out)["together"] == {
        "metrics": ["editor", "editor.other"],
        "epsilon_1": pytest.approx(8.0, abs=1e-3),
        "epsilon_inf": pytest.approx(12.0, abs=1e-3),
    }
    _code, out, _ = shop("privacy", "editor", "--registry", "registry.toml")
    assert "Answered together" in out


def test_a_plan_writes_an_entry_with_other(shop: Shell) -> None:
    """It reads back to the same two metrics; what is in other has no entry of its own."""
    words = ("--registry", "registry.toml", "--reports", "1e5")
    entry = json.loads(ok(shop("plan", *words, "--metric", "editor", "--json")))["toml"]
    assert 'other = "discover"' in entry
    (shop.place / "planned.toml").write_text(entry)
    assert "editor.other" in ok(shop("collects", "--registry", "planned.toml"))
    err = refused(shop("plan", *words, "--metric", "editor.other"))
    assert "plan the metric whose other it names" in err


@pytest.mark.parametrize(
    ("budget", "strings"),
    [
        (("--profile", "low-noise"), Params.profile("low-noise")),
        (("--epsilon-1", "3", "--epsilon-inf", "5"), choose_noise(3, 5)),
    ],
    ids=["profile", "budget"],
)
def test_a_plan_has_one_noise_for_both(
    shop: Shell, budget: tuple[str, ...], strings: Params
) -> None:
    """That of strings, which have the most to lose, under a profile and under a budget."""
    path = shop.place / "registry.toml"
    words = ("--registry", "registry.toml", "--metric", "editor", "--reports", "1e5")
    code, _, err = shop("plan", *words, *budget, "--write")
    assert (code, err) == (0, "")
    assert "profile" not in path.read_text()
    both = [metric.params for metric in Registry.load(path).values()]
    noise = [[getattr(params, letter) for letter in NOISE] for params in (strings, *both)]
    assert noise[0] == noise[1] == noise[2]


@pytest.mark.acceptance
def test_the_demo_tells_what_is_found_and_what_is_not(shell: Shell) -> None:
    """At the published size the most frequent text is found; the truth stands beside all."""
    words = ("--other", "--reports", "9000", "--profile", "low-noise", "--seed", "1")
    document = json.loads(ok(shell("demo", *words, "--json")))
    (size,) = document["sizes"]
    # A third of other is 12 standard errors: missed with a probability below 1e-9.
    assert "cursor" in [row["candidate"] for row in size["without_a_list"]["other"]]
    assert document["truth"]["of_other"]["cursor"] == pytest.approx(1000 / 2935)
    assert document["epsilon_1"] == pytest.approx(8, abs=1e-3)
    chart = str(shell.place / "other.svg")
    out = ok(shell("demo", *words, "--chart", chart))
    assert "9,000 devices: other is" in out
    assert "Not found without a list:" in out
    assert "Shares of other" in (shell.place / "other.svg").read_text()
