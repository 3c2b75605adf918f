"""What is in `other`: found without a list, and as shares of `other` whose intervals hold."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import string

import pytest
from decodings import released
from scipy import stats

from rappor import (
    Candidates,
    Counts,
    NamedOther,
    Params,
    Population,
    by_segment,
    compare,
    decode,
    name_other,
    trend,
)
from rappor.decoding.detection import Detection
from rappor.decoding.estimates import Estimates
from rappor.discovery.discoveries import Share
from rappor.discovery.other import shares_of_other
from rappor.ground.errors import DecodeError
from rappor.protocol.encodings.catalogue import encoder
from rappor.protocol.parts import Part
from rappor.registry.other import with_other
from rappor.simulation import simulate_other

LETTERS = string.ascii_lowercase
PARTS = (Part("prefix:2", 0.4), Part("whole"))
STRINGS = Params.profile("low-noise")
NAMED = dataclasses.replace(STRINGS, k=2, m=1, encoding="onehot", categories=("vscode", "vim"))
EDITORS = {"vscode": 50.0, "vim": 20.0, "kate": 15.0, "nano": 10.0, "zed": 5.0}


def collect(
    held: dict[str, float] = EDITORS, *, n_reports: float = 100_000, seed: int = 1, m: int = 32
) -> tuple[Counts, ...]:
    categories, texts = with_other(NAMED)
    texts = dataclasses.replace(texts, k=64, m=m)
    population = Population(list(held), list(held.values()))
    return simulate_other(
        population, (categories, texts), PARTS, n_reports=n_reports, seed=seed, metric="editor"
    )


def find(counts: tuple[Counts, ...]) -> NamedOther:
    return name_other(counts, LETTERS, longest=4, keep=20)


def test_texts_in_other_are_named_with_their_shares() -> None:
    """Of all devices and of other; the devices with a category are neither tested nor announced."""
    found = find(collect())
    named = {text.string: text for text in found.strings}
    assert {"kate", "nano", "zed"} <= set(named)
    assert "" not in named
    # Six standard errors: missed with a probability of 2e-9 each.
    for name, share in (("kate", 0.5), ("nano", 1 / 3), ("zed", 1 / 6)):
        of_other = named[name].of_other
        assert abs(of_other.proportion - share) < 6 * of_other.std_error
        assert of_other.low < of_other.proportion < of_other.high
        assert named[name].of_all.proportion == pytest.approx(share * 0.3, rel=0.2)
    other = found.categories.proportion[-1]
    assert abs(other - 0.3) < 6 * found.categories.std_error[-1]
    assert abs(found.unnamed.proportion) < 6 * found.unnamed.std_error


def test_both_collections_are_of_the_same_devices() -> None:
    """Each answers for its category, and for one part of its text."""
    counts = collect(n_reports=1_000)
    assert [each.metric for each in counts] == ["editor", "editor.other", "editor.other"]
    assert counts[0].n_reports == sum(each.n_reports for each in counts[1:]) == 1_000


def test_both_collections_are_of_the_same_values() -> None:
    """Without noise each device in other has told a text, and each other one the empty text."""
    categories, texts = with_other(
        dataclasses.replace(NAMED, f=0.0, p=0.0, q=1.0, insecure=True),
    )
    texts = dataclasses.replace(texts, k=2040, m=1, insecure=True)
    population = Population(list(EDITORS), list(EDITORS.values()))
    first, *parts = simulate_other(population, (categories, texts), PARTS, n_reports=1_000, seed=1)
    (empty,) = encoder(texts).bits("", 0)
    assert first.ones[0, -1] == sum(each.n_reports - each.ones[0, empty] for each in parts)


def check_fieller(
    share: Share, part: float, error: float, categories: Estimates, miss: float
) -> None:
    """Assert that a share of other solves the equation of Fieller's interval at both its ends."""
    whole, whole_error = categories.proportion[-1], categories.std_error[-1]
    reach = stats.norm.isf(miss / 2)
    assert share.proportion == pytest.approx(part / whole)
    relative = math.hypot(error / part, whole_error / whole)
    assert share.std_error == pytest.approx(abs(share.proportion) * relative)
    assert share.low < share.proportion < share.high
    for end in (share.low, share.high):
        spread = reach**2 * (error**2 + end**2 * whole_error**2)
        assert (part - end * whole) ** 2 == pytest.approx(spread)


def test_shares_have_fiellers_interval() -> None:
    """At the false coverage rate of the detected texts, as their shares of all devices have it."""
    categories, _, whole = collect(n_reports=20_000)
    answers = decode(categories, detection=Detection(confidence=0.9))
    texts = decode(whole, ["kate", "nano", "emacs", "helix"], detection=Detection(confidence=0.9))
    found = shares_of_other(answers, texts)
    assert [text.string for text in found] == ["kate", "nano"]
    for text in found:
        i = texts.candidates.index(text.string)
        ends = (texts.ci_low_adjusted[i], texts.ci_high_adjusted[i])
        assert (text.of_all.low, text.of_all.high) == ends
        part = (float(texts.proportion[i]), float(texts.std_error[i]))
        assert (text.of_all.proportion, text.of_all.std_error) == part
        check_fieller(text.of_other, *part, answers, 0.1 * 2 / 5)


def test_what_has_no_name_has_an_interval_of_its_own() -> None:
    """At the confidence that was asked for, which is that of the categories too."""
    asked = Detection(level=0.01, correction="bonferroni", confidence=0.8)
    found = name_other(
        collect(n_reports=20_000), LETTERS, known=["kate"], longest=2, keep=20, detection=asked
    )
    texts = found.found.estimates
    for each in (found.categories, texts):
        assert each.detection == asked
    assert found.unnamed.proportion > 0.3
    part = (texts.unallocated, texts.unallocated_std_error)
    check_fieller(found.unnamed, *part, found.categories, 0.2)


def test_a_share_of_less_than_nothing_is_unknown() -> None:
    """Where noise, or whoever forges, leaves other far below 0."""
    categories, _, whole = collect(n_reports=20_000)
    ones = categories.ones.copy()
    ones[:, -1] = 0
    forged = Counts(categories.params, ones, categories.reports)
    answers = decode(forged)
    assert answers.proportion[-1] < -6 * answers.std_error[-1]
    for text in shares_of_other(answers, decode(whole, ["kate", "nano"])):
        assert math.isnan(text.of_other.proportion)
        assert math.isinf(text.of_other.std_error)


def test_the_empty_text_is_compared_and_never_announced() -> None:
    """It explains its bits in both samples; that more devices have a category is no new text."""
    before, after = ({"vscode": 80.0, "kate": 20.0}, {"vscode": 55.0, "kate": 30.0, "nano": 15.0})
    samples = {"before": collect(before)[-1], "after": collect(after, seed=2)[-1]}
    found = compare(samples, ["kate", "nano", "zed"])
    (each,) = found.contrasts
    kinds = dict(zip(found.candidates, each.direction.tolist(), strict=True))
    assert kinds == {"kate": "rise", "nano": "newcomer", "zed": "", "": ""}
    i = found.candidates.index("")
    assert (each.p_value[i], each.changed[i]) == (1.0, False)
    assert each.estimate[i] == pytest.approx(-0.25, abs=0.03)
    assert found.warnings == ()


def test_the_empty_text_is_in_trends_and_segments_and_never_announced() -> None:
    """Whether the list of candidates names it or not."""
    held = {"vscode": 70.0, "kate": 30.0}
    both = [collect(held, n_reports=20_000, seed=seed)[-1] for seed in (1, 2)]
    days = [datetime.date(2026, 11, day) for day in (1, 2)]
    over_days = released(dict(zip(days, both, strict=True)))
    segments = [
        Counts(each.params.in_segment((("version", version),)), each.ones, each.reports)
        for version, each in zip(("1", "2"), both, strict=True)
    ]
    for candidates in (["kate", "zed"], ["zed", "", "kate"]):
        for found in (trend(over_days, candidates), by_segment(segments, candidates)):
            assert [found.candidates[i] for i in found.shown] == ["kate"]
            assert len(found.candidates) == 3


@pytest.mark.parametrize("many", [False, True])
def test_the_empty_text_is_explained_whoever_lists_the_candidates(many: bool) -> None:
    """A list need not name it, nor have a row for each; its share is not called unallocated."""
    *_, whole = collect()
    listed = ["kate", "nano", "zed", "emacs"]
    product = Candidates.product(["kat", "nan", *LETTERS[:8]], LETTERS, 0, 3)
    found = decode(whole, product if many else listed)
    assert found.n_candidates == (10 * (1 + 26 + 26**2 + 26**3) + 1 if many else 5)
    assert (len(found) < found.n_candidates) is many
    assert {"", "kate", "nano"} <= set(found.candidates)
    row = found.row(found.candidates.index(""))
    assert row["proportion"] == pytest.approx(0.7, abs=0.05)
    assert (row["p_value"], row["detected"]) == (1.0, False)
    if not many:
        assert abs(found.unallocated) < 6 * found.unallocated_std_error + 0.01


def test_a_learned_alphabet_has_the_characters_of_the_categories() -> None:
    """As devices write them: what normalizing replaces is in no text."""
    named = dataclasses.replace(NAMED, categories=("VSCode", "Qt"), normalize="casefold")
    categories, texts = with_other(named)
    texts = dataclasses.replace(texts, k=64, m=32)
    population = Population(["kate", "nano"], [2, 1])
    counts = simulate_other(population, (categories, texts), PARTS, n_reports=20_000, seed=1)
    found = name_other(counts, longest=2, keep=5).found
    assert set("vscodeqtkan") <= set(found.alphabet)
    assert found.alphabet == found.alphabet.lower()


def test_nothing_is_named_where_other_is_empty() -> None:
    """Shares of what is not significant are unknown, and JSON writes null for them."""
    found = find(collect({"vscode": 1.0, "vim": 1.0}, n_reports=2_000))
    assert math.isnan(found.unnamed.proportion)
    document = json.loads(found.to_json())
    assert document["unnamed"]["low"] is None
    assert document["categories"]["estimates"][-1]["candidate"] == "other"


@pytest.mark.parametrize("wrong", ["categories", "parts", "others", "plain"])
def test_counts_that_are_no_pair_are_refused(wrong: str) -> None:
    """Either kind alone, and texts beside other categories, or beside a category named other."""
    counts = collect(n_reports=1_000)
    first, *parts = counts
    chosen = {"categories": [first], "parts": parts}
    for name, change in (
        ("others", {"categories": ("vscode", "emacs", "other")}),
        ("plain", {"other": False}),
    ):
        params = dataclasses.replace(first.params, **change)
        chosen[name] = [Counts(params, first.ones, first.reports, "editor"), *parts]
    with pytest.raises(DecodeError, match=r"counts (must be of a metric of|of what is in)"):
        find(tuple(chosen[wrong]))
