"""Discovery of strings without a list of candidates, and signs of strings that it misses."""

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
"""40 % of the devices report the first two letters of their string, the others the whole string."""
LETTERS = string.ascii_lowercase
"""Alphabet of most searches. It has 1 + 26 + 26^2 = 703 strings of at most two letters."""


def collect(
    words: dict[str, float],
    parts: Sequence[Part] = PARTS,
    *,
    params: Params = PARAMS,
    n_reports: float = 200_000,
    seed: int = 1,
) -> tuple[Counts, ...]:
    """Return simulated counts of each part. `words` maps each string to its relative frequency."""
    population = Population(list(words), list(words.values()))
    return simulate_parts(population, params, parts, n_reports=n_reports, seed=seed)


def select_true(discoveries: DiscoveredStrings, words: dict[str, float]) -> set[str]:
    """Return the detected strings that devices have.

    A false discovery rate of 5 % allows a few other detected strings, so the tests do not compare
    all of them.
    """
    return set(discoveries.strings) & set(words)


@pytest.mark.slow
def test_strings_are_found_without_a_list() -> None:
    """Frequent strings are detected without a list, with estimates from the last part.

    The devices that report the whole string took no part in the choice of its candidates, so their
    estimates are unbiased. The devices of the prefix only choose the candidates.
    """
    words = {"kiwi": 4.0, "lime": 3.0, "plum": 2.0, "pear": 1.0}
    counts = collect(words)
    discoveries = discover(counts, LETTERS)
    assert select_true(discoveries, words) == set(words)
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
    """Strings that are shorter than the prefix, empty or of any script are found.

    A device normalizes its string before it cuts a prefix. A prefix such as "a " must not be
    normalized again: without its blank it would have other bits.
    """
    params = dataclasses.replace(PARAMS, normalize=normalize)
    discoveries = discover(collect(words, params=params), alphabet, longest=longest, keep=20)
    assert select_true(discoveries, words) == set(words)


def test_a_search_goes_from_the_shortest_part_to_the_longest() -> None:
    """The candidates of the second part continue the kept prefixes of the first part.

    The order of the counts does not matter. "zip" is shorter than the second part.
    """
    words = {"abacus": 3.0, "abatis": 2.0, "zebras": 2.0, "zip": 1.0}
    parts = (Part("prefix:2", 0.25), Part("prefix:4", 0.25), Part("whole"))
    counts = collect(words, parts, n_reports=400_000)
    discoveries = discover(reversed(counts), LETTERS, keep=20)
    assert select_true(discoveries, words) == set(words)
    assert [prefix.part for prefix in discoveries.prefixes] == ["prefix:2", "prefix:4"]
    assert [prefix.kept for prefix in discoveries.prefixes] == [20, 20]
    assert discoveries.longest == 6


@pytest.mark.slow
def test_known_strings_are_candidates_as_well() -> None:
    """Known strings are tested together with the discovered candidates.

    The search alone cannot find a string with a character outside the alphabet. A known string that
    no device has is not among the first results.
    """
    words = {"kiwi": 2.0, "piña colada": 1.0}
    counts = collect(words)
    assert select_true(discover(counts, LETTERS, keep=20), words) == {"kiwi"}
    discoveries = discover(counts, LETTERS, known=["piña colada", "banana split"], keep=20)
    assert select_true(discoveries, words) == set(words)
    assert "banana split" not in discoveries.strings[:2]


def test_an_alphabet_is_learned_from_the_first_part() -> None:
    """A learned alphabet has the characters of detected first prefixes and of known strings."""
    words = {"K9": 2.0, "9K9K": 1.0, "KKK": 1.0}
    discoveries = discover(collect(words), known=["x"], keep=20)
    assert discoveries.learned
    assert set("K9x") <= set(discoveries.alphabet)
    assert select_true(discoveries, words) == set(words)


@pytest.mark.slow
def test_a_first_part_of_one_character_is_searched_in_all_of_unicode() -> None:
    """Prefixes of one character are searched in all of Unicode, so any script can be learned.

    Unicode has more than 100,000 characters. Pairs of them would be too many candidates.
    """
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
    assert select_true(discoveries, words) == set(words)


def test_characters_outside_the_alphabet_leave_signs() -> None:
    """A missing character shows as unallocated share of the prefixes, and as unfinished prefixes.

    "étui" begins with é, so 20 % of the prefixes are unallocated. "café" has the prefix "ca", whose
    share of 30 % no detected string explains: the prefix is unfinished. An analyst sees both signs
    and extends the alphabet.
    """
    words = {"kiwi": 5.0, "café": 3.0, "étui": 2.0}
    discoveries = discover(collect(words, n_reports=400_000), LETTERS, keep=20)
    assert select_true(discoveries, words) == {"kiwi"}
    (prefix,) = discoveries.prefixes
    # Six standard errors: further off with probability 2e-9.
    assert abs(prefix.unallocated - 0.2) < 6 * prefix.unallocated_std_error + 0.01
    (cafe,) = [unfinished for unfinished in discoveries.unfinished if unfinished.prefix == "ca"]
    assert abs(cafe.undetected_share - 0.3) < 6 * cafe.undetected_std_error
    assert "ki" not in [unfinished.prefix for unfinished in discoveries.unfinished]
    # The JSON has the keys of a decode, and further keys for the parts.
    document = json.loads(discoveries.to_json())
    assert document["estimates"][0]["candidate"] == "kiwi"
    assert document["candidates"] == discoveries.estimates.n_candidates
    assert document["prefixes"][0]["part"] == "prefix:2"
    assert document["unfinished"][0]["prefix"] == "ca"
    assert np.isclose(
        document["unfinished"][0]["undetected_share"], discoveries.unfinished[0].undetected_share
    )
    assert document["alphabet"] == LETTERS
    assert repr(discoveries).startswith("DiscoveredStrings(")


def test_strings_that_are_too_long_leave_an_unfinished_prefix() -> None:
    """A string longer than the longest candidate leaves an unfinished prefix.

    The default length is two letters more than the prefix, so "watermelon" cannot be found.
    """
    words = {"kiwi": 1.0, "watermelon": 1.0}
    discoveries = discover(collect(words), LETTERS, keep=20)
    assert select_true(discoveries, words) == {"kiwi"}
    assert discoveries.unfinished[0].prefix == "wa"
    assert discoveries.unfinished[0].detected_share < 0.1


def test_days_of_a_part_are_taken_together() -> None:
    """Several counts of one part, such as days, are decoded together, as `decode` does."""
    words = {"kiwi": 4.0, "lime": 3.0}
    days = [*collect(words, seed=1), *collect(words, seed=2)]
    discoveries = discover(days, LETTERS, keep=20)
    assert select_true(discoveries, words) == set(words)
    assert discoveries.reports == 400_000


def test_progress_says_which_part_it_is_of() -> None:
    """Each report of progress names its part, and an exception of the callback ends the search.

    A search of hours can therefore be interrupted.
    """
    stages = []

    def stop_at_the_last(stage: str, n_done: int, total: int | None) -> None:
        stages.append((stage, n_done, total))
        if stage.startswith("whole"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discover(collect({"kiwi": 1.0}), LETTERS, keep=700, progress=stop_at_the_last)
    assert {stage.partition(":")[0] for stage, _, _ in stages} == {"prefix", "whole"}


def test_counts_other_than_all_parts_of_one_metric_are_refused() -> None:
    """`discover` needs the counts of every part of one metric, and refuses others with the reason.

    Cases: another metric, another permanent response, a missing part, counts of a metric without
    parts, no list, a part without reports, and a part in which no prefix has a positive estimate.
    """
    prefix, whole = collect({"kiwi": 1.0})
    other_counts = Counts(whole.params, whole.bit_counts, whole.cohort_reports, metric="other")
    counts_of_fruit = Counts(
        prefix.params, prefix.bit_counts, prefix.cohort_reports, metric="fruit"
    )
    noisy = collect({"kiwi": 1.0}, params=dataclasses.replace(PARAMS, f=0.5))[1]
    without_parts = simulate_counts(Population(["kiwi"], [1]), PARAMS, n_reports=10, seed=1)
    without_reports = Counts(prefix.params, 0 * prefix.bit_counts, 0 * prefix.cohort_reports)
    without_ones = Counts(prefix.params, 0 * prefix.bit_counts, prefix.cohort_reports)
    refused: list[tuple[Any, str]] = [
        ([counts_of_fruit, other_counts], "parts of one metric, got fruit, other"),
        ([prefix, noisy], "several parameter sets"),
        ([prefix], "got parts: prefix:2"),
        ([whole], "got parts: whole"),
        ([], "got parts: none"),
        ([without_parts], "a metric without parts"),
        (whole, "one of each part, got one"),
        (["prefix:2"], "must be a list of Counts"),
        ([without_reports, whole], "counts of prefix:2 must have at least 1 report"),
        ([without_ones, whole], "none of 703 prefixes has a positive estimate"),
    ]
    for counts, reason in refused:
        with pytest.raises(DecodeError, match=reason):
            discover(counts, LETTERS)


def test_parts_may_differ_in_their_instantaneous_noise() -> None:
    """Parts with different p and q are parts of one metric.

    The registry may change the instantaneous noise of a live metric, which changes no permanent
    response.
    """
    prefix, _ = collect({"kiwi": 1.0})
    noisy = dataclasses.replace(PARAMS, p=PARAMS.p + 0.1)
    _, whole = collect({"kiwi": 1.0}, params=noisy)
    assert "kiwi" in discover([prefix, whole], LETTERS, keep=20).strings


def test_decode_refuses_to_mix_parts() -> None:
    """`decode` refuses counts of several parts and names `discover`.

    A prefix and a whole string have different bits, so one list of candidates cannot fit both.
    """
    with pytest.raises(DecodeError, match=r"got prefix:2, whole: rappor\.discover takes all parts"):
        decode(collect({"kiwi": 1.0}), ["kiwi"])


def test_too_many_candidates_are_refused_with_their_number() -> None:
    """More than 1e9 candidates of a part are refused with their number before the search begins.

    32,000 characters have 32,000^2 prefixes of two characters. A search up to eight letters
    continues each kept prefix by up to 26^6 endings.
    """
    counts = collect({"kiwi": 1.0})
    with pytest.raises(
        ParamsError, match=r"at most 1,000,000,000 strings, got 1,\d{3},\d{3},\d{3}"
    ):
        discover(counts, "".join(map(chr, range(0x4E00, 0x4E00 + 32_000))))
    with pytest.raises(ParamsError, match=r"got \d+,\d{3},\d{3},\d{3}"):
        discover(counts, LETTERS, longest=8)


@pytest.mark.parametrize(
    ("options", "reason"),
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
def test_options_outside_their_ranges_are_refused(options: dict[str, Any], reason: str) -> None:
    """Repeated or invalid characters of an alphabet, and numbers outside a range, are refused."""
    with pytest.raises(ParamsError, match=reason):
        discover(collect({"kiwi": 1.0}), **options)


def test_without_a_detected_prefix_no_alphabet_is_learned() -> None:
    """If no first prefix is detected, the search is refused instead of using an empty alphabet."""
    prefix, whole = collect({"kiwi": 1.0}, params=dataclasses.replace(PARAMS, m=1), n_reports=40)
    without_ones = Counts(prefix.params, 0 * prefix.bit_counts, prefix.cohort_reports)
    with pytest.raises(DecodeError, match="no alphabet can be learned"):
        discover([without_ones, whole])


@pytest.mark.acceptance
def test_the_false_discovery_rate_holds() -> None:
    """The mean share of absent strings among the detected strings is at most 5 %.

    60 collections have 200 random strings each. The last part alone tests, and its devices took no
    part in the choice of the candidates, so the rate holds although the candidates are discovered.
    """
    false_share = n_announced = 0.0
    for seed in range(60):
        rng = np.random.default_rng([seed, 15])
        words = {"".join(rng.choice(list(LETTERS), 4)): 1 / rank for rank in range(1, 201)}
        discoveries = discover(collect(words, n_reports=100_000, seed=seed), LETTERS)
        n_true = len(select_true(discoveries, words))
        false_share += (len(discoveries.strings) - n_true) / max(len(discoveries.strings), 1)
        n_announced += len(discoveries.strings)
    assert n_announced > 60 * 10  # else a search that finds nothing would pass
    # The share of false strings in a collection has a standard deviation below .08, so the mean of
    # 60 collections exceeds .05 by six standard errors with probability 1e-9.
    assert false_share / 60 < 0.05 + 6 * 0.08 / 60**0.5
