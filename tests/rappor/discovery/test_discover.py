"""Discovery: strings without a list, found part by part, and signs of what is not found."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rappor import Counts, DiscoveredStrings, Params, Population, decode, discover
from rappor.base.errors import DecodeError, ParamsError
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.parts import Part
from rappor.simulation import simulate_counts, simulate_parts

PARAMS = dataclasses.replace(Params.profile("low-noise"), k=64, m=32)
"""Low noise and few rows: a string of 5 % in 100,000 reports is 40 standard errors above nothing,
so it is missed with a probability below 1e-12."""

PARTS = (Part("prefix:2", 0.4), Part("whole"))
LETTERS = string.ascii_lowercase


def collect(
    words: dict[str, float],
    parts: Sequence[Part] = PARTS,
    *,
    params: Params = PARAMS,
    n_reports: float = 200_000,
    seed: int = 1,
) -> tuple[Counts, ...]:
    population = Population(list(words), list(words.values()))
    return simulate_parts(population, params, parts, n_reports=n_reports, seed=seed)


def true_of(discoveries: DiscoveredStrings, words: dict[str, float]) -> set[str]:
    """Return the detected strings that devices have. Others may be detected at 5 %."""
    return set(discoveries.strings) & set(words)


@pytest.mark.slow
def test_strings_are_found_without_a_list() -> None:
    """Frequent strings are detected, with estimates from the devices of the complete string."""
    words = {"kiwi": 4.0, "lime": 3.0, "plum": 2.0, "pear": 1.0}
    counts = collect(words)
    discoveries = discover(counts, LETTERS)
    assert true_of(discoveries, words) == set(words)
    assert discoveries.strings[:2] == ("kiwi", "lime")
    # Six standard errors: missed with probability 2e-9 under the estimate's normal distribution.
    assert abs(discoveries.estimates.share[0] - 0.4) < 6 * discoveries.estimates.std_error[0]
    assert discoveries.estimates.reports == counts[1].n_reports
    assert discoveries.reports == 200_000
    (prefix,) = discoveries.prefixes
    assert (prefix.part, prefix.reports, prefix.candidates) == (
        "prefix:2",
        counts[0].n_reports,
        703,
    )
    assert (discoveries.alphabet, discoveries.learned, discoveries.longest) == (LETTERS, False, 4)


@pytest.mark.parametrize(
    ("words", "alphabet", "longest", "normalize"),
    [
        ({"": 3.0, "a": 2.0, "ab": 2.0, "abc": 2.0, "abcd": 2.0}, "abcdefgh", None, "none"),
        ({"日本語": 2.0, "😀ok": 2.0, "été": 1.0}, "日本語😀éotk", None, "none"),
        ({"a cat": 2.0, "a dog": 1.0}, " acdgot", 5, "strip"),
    ],
    ids=["short and empty", "Unicode scalar values", "not normalised again"],
)
def test_strings_of_every_kind_are_found(
    words: dict[str, float], alphabet: str, longest: int | None, normalize: str
) -> None:
    """Short, empty and Unicode strings are found, and strings are not normalised twice."""
    params = dataclasses.replace(PARAMS, normalize=normalize)
    discoveries = discover(collect(words, params=params), alphabet, longest=longest, keep=20)
    assert true_of(discoveries, words) == set(words)


def test_three_parts_are_followed_one_after_the_other() -> None:
    """The prefixes of the second part continue the kept prefixes of the first part."""
    words = {"abacus": 3.0, "abatis": 2.0, "zebras": 2.0, "zip": 1.0}
    parts = (Part("prefix:2", 0.25), Part("prefix:4", 0.25), Part("whole"))
    counts = collect(words, parts, n_reports=400_000)
    discoveries = discover(reversed(counts), LETTERS, keep=20)
    assert true_of(discoveries, words) == set(words)
    assert [prefix.part for prefix in discoveries.prefixes] == ["prefix:2", "prefix:4"]
    assert [prefix.kept for prefix in discoveries.prefixes] == [20, 20]
    assert discoveries.longest == 6


@pytest.mark.slow
def test_known_strings_are_asked_about_beside() -> None:
    """Known strings are candidates, even with characters outside the alphabet."""
    words = {"kiwi": 2.0, "piña colada": 1.0}
    counts = collect(words)
    assert true_of(discover(counts, LETTERS, keep=20), words) == {"kiwi"}
    discoveries = discover(counts, LETTERS, known=["piña colada", "banana split"], keep=20)
    assert true_of(discoveries, words) == set(words)
    assert "banana split" not in discoveries.strings[:2]


def test_an_alphabet_is_learned_from_the_first_part() -> None:
    """The alphabet has the characters of detected prefixes and of known strings."""
    words = {"K9": 2.0, "9K9K": 1.0, "KKK": 1.0}
    discoveries = discover(collect(words), known=["x"], keep=20)
    assert discoveries.learned
    assert set("K9x") <= set(discoveries.alphabet)
    assert true_of(discoveries, words) == set(words)


@pytest.mark.slow
def test_a_first_part_of_one_character_is_searched_in_all_of_unicode() -> None:
    """A first part of one character finds an alphabet in all of Unicode."""
    words = {"жук": 2.0, "куж": 2.0, "ужк": 1.0}
    parts = (Part("prefix:1", 0.5), Part("whole"))
    params = dataclasses.replace(PARAMS, m=64)
    discoveries = discover(
        collect(words, parts, params=params),
        longest=3,
        error_control=ErrorControl(method="bonferroni"),
    )
    assert discoveries.prefixes[0].candidates > 100_000
    assert set("жук") <= set(discoveries.alphabet)
    assert true_of(discoveries, words) == set(words)


def test_what_an_alphabet_misses_is_told() -> None:
    """Characters outside the alphabet show as unallocated share and as unfinished prefixes."""
    words = {"kiwi": 5.0, "café": 3.0, "étui": 2.0}
    discoveries = discover(collect(words, n_reports=400_000), LETTERS, keep=20)
    assert true_of(discoveries, words) == {"kiwi"}
    (prefix,) = discoveries.prefixes
    # Six standard errors: further off with probability 2e-9.
    assert abs(prefix.unallocated - 0.2) < 6 * prefix.unallocated_std_error + 0.01
    (cafe,) = [unfinished for unfinished in discoveries.unfinished if unfinished.prefix == "ca"]
    assert abs(cafe.rest - 0.3) < 6 * cafe.rest_std_error
    assert "ki" not in [unfinished.prefix for unfinished in discoveries.unfinished]
    # The record is ready for JSON, with the keys of a decode, and what belongs to the parts.
    document = json.loads(discoveries.to_json())
    assert document["estimates"][0]["candidate"] == "kiwi"
    assert document["candidates"] == discoveries.estimates.n_candidates
    assert document["prefixes"][0]["part"] == "prefix:2"
    assert document["unfinished"][0]["prefix"] == "ca"
    assert np.isclose(document["unfinished"][0]["rest"], discoveries.unfinished[0].rest)
    assert document["alphabet"] == LETTERS
    assert repr(discoveries).startswith("DiscoveredStrings(")


def test_strings_that_are_too_long_are_told() -> None:
    """The prefix of strings that are too long is unfinished."""
    words = {"kiwi": 1.0, "watermelon": 1.0}
    discoveries = discover(collect(words), LETTERS, keep=20)
    assert true_of(discoveries, words) == {"kiwi"}
    assert discoveries.unfinished[0].prefix == "wa"
    assert discoveries.unfinished[0].found < 0.1


def test_days_of_a_part_are_taken_together() -> None:
    """Several collections of one part are days of the same devices, as for `decode`."""
    words = {"kiwi": 4.0, "lime": 3.0}
    days = [*collect(words, seed=1), *collect(words, seed=2)]
    discoveries = discover(days, LETTERS, keep=20)
    assert true_of(discoveries, words) == set(words)
    assert discoveries.reports == 400_000


def test_progress_says_which_part_it_is_of() -> None:
    """The progress names the part, and an exception in it ends the search."""
    stages = []

    def stop_at_the_last(stage: str, done: int, total: int | None) -> None:
        stages.append((stage, done, total))
        if stage.startswith("whole"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discover(collect({"kiwi": 1.0}), LETTERS, keep=700, progress=stop_at_the_last)
    assert {stage.partition(":")[0] for stage, _, _ in stages} == {"prefix", "whole"}


def test_what_is_not_all_parts_of_one_metric_is_refused() -> None:
    """Other metrics, missing parts, parts without reports and hopeless prefixes are refused."""
    prefix, whole = collect({"kiwi": 1.0})
    other = Counts(whole.params, whole.bit_counts, whole.cohort_reports, metric="other")
    named = Counts(prefix.params, prefix.bit_counts, prefix.cohort_reports, metric="fruit")
    noisy = collect({"kiwi": 1.0}, params=dataclasses.replace(PARAMS, f=0.5))[1]
    simple = simulate_counts(Population(["kiwi"], [1]), PARAMS, n_reports=10, seed=1)
    empty = Counts(prefix.params, 0 * prefix.bit_counts, 0 * prefix.cohort_reports)
    silent = Counts(prefix.params, 0 * prefix.bit_counts, prefix.cohort_reports)
    refused: list[tuple[Any, str]] = [
        ([named, other], "parts of one metric, got fruit, other"),
        ([prefix, noisy], "several parameter sets"),
        ([prefix], "got parts: prefix:2"),
        ([whole], "got parts: whole"),
        ([], "got parts: none"),
        ([simple], "a metric without parts"),
        (whole, "one of each part, got one"),
        (["prefix:2"], "must be a list of Counts"),
        ([empty, whole], "counts of prefix:2 must have at least 1 report"),
        ([silent, whole], "none of 703 prefixes has a positive estimate"),
    ]
    for counts, reason in refused:
        with pytest.raises(DecodeError, match=reason):
            discover(counts, LETTERS)


def test_parts_may_differ_in_their_instantaneous_noise() -> None:
    """Parts with different p and q are parts of one metric."""
    prefix, _ = collect({"kiwi": 1.0})
    noisy = dataclasses.replace(PARAMS, p=PARAMS.p + 0.1)
    _, whole = collect({"kiwi": 1.0}, params=noisy)
    assert "kiwi" in discover([prefix, whole], LETTERS, keep=20).strings


def test_decode_refuses_to_mix_parts() -> None:
    """`decode` refuses several parts and names `discover`."""
    with pytest.raises(DecodeError, match=r"got prefix:2, whole: rappor\.discover takes all parts"):
        decode(collect({"kiwi": 1.0}), ["kiwi"])


def test_too_many_candidates_are_refused_with_their_number() -> None:
    """Too many candidates of the first or the next part are refused with their number."""
    counts = collect({"kiwi": 1.0})
    with pytest.raises(
        ParamsError, match=r"at most 1,000,000,000 strings, got 1,\d{3},\d{3},\d{3}"
    ):
        discover(counts, "".join(map(chr, range(0x4E00, 0x4E00 + 32_000))))
    with pytest.raises(ParamsError, match=r"got \d+,\d{3},\d{3},\d{3}"):
        discover(counts, LETTERS, longest=8)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"alphabet": ""}, "at least 1"),
        ({"alphabet": "aa"}, "each once"),
        ({"alphabet": "a\ud800"}, "surrogate"),
        ({"alphabet": 7}, "one text"),
        ({"longest": 1}, "longest must be"),
        ({"longest": 2.5}, "longest must be"),
        ({"keep": 0}, "keep must be"),
    ],
)
def test_an_impossible_search_is_refused(asked: dict[str, Any], reason: str) -> None:
    """Values of `longest` and `keep` outside their ranges are refused."""
    with pytest.raises(ParamsError, match=reason):
        discover(collect({"kiwi": 1.0}), **asked)


def test_nothing_detected_teaches_no_alphabet() -> None:
    """If no prefix is detected, no alphabet is learned, and the search is refused."""
    prefix, whole = collect({"kiwi": 1.0}, params=dataclasses.replace(PARAMS, m=1), n_reports=40)
    silent = Counts(prefix.params, 0 * prefix.bit_counts, prefix.cohort_reports)
    with pytest.raises(DecodeError, match="no alphabet can be learned"):
        discover([silent, whole])


@pytest.mark.acceptance
def test_the_false_discovery_rate_holds() -> None:
    """Over 60 collections of 200 random strings the false discovery rate holds."""
    false = announced = 0.0
    for seed in range(60):
        rng = np.random.default_rng([seed, 15])
        words = {"".join(rng.choice(list(LETTERS), 4)): 1 / rank for rank in range(1, 201)}
        discoveries = discover(collect(words, n_reports=100_000, seed=seed), LETTERS)
        n_true = len(true_of(discoveries, words))
        false += (len(discoveries.strings) - n_true) / max(len(discoveries.strings), 1)
        announced += len(discoveries.strings)
    assert announced > 60 * 10
    # The share of false ones in a collection has a standard deviation below .08: .05 + 6 errors.
    assert false / 60 < 0.05 + 6 * 0.08 / 60**0.5
