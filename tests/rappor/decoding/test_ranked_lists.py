"""Ranked lists of candidates: the order of a list states how likely each candidate is present.

A candidate of rank r has the weight w = c / (r + 100), with c so that the mean weight is 1.
Weighted Benjamini-Hochberg compares the p-value p of each candidate with level * w * R / n, where R
is the number of detected candidates and n that of all, and never with more than the level. Weighted
Bonferroni has R = 1. The first tests compare these procedures with their definition. The later
tests are of decodes, of a list in memory and of a stream that keeps only its best candidates.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rappor import Candidates, Counts, Params, Population, decode, discover, simulate_counts
from rappor.base.errors import DecodeError, FileError, ParamsError
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.comparison.compare_samples import compare_samples
from rappor.decoding.estimates import Estimates
from rappor.decoding.post_stratification import decode_weighted
from rappor.decoding.suggestions import suggest_candidates
from rappor.estimator.best_candidates import BestCandidates
from rappor.estimator.detection_thresholds import Thresholds
from rappor.estimator.error_control import ErrorControl
from rappor.estimator.p_values import PValues
from rappor.estimator.rank_weights import (
    RankWeights,
    RatioCounts,
    compute_ratios,
    compute_weight_scale,
    count_ratios,
    invert_ranks,
)
from rappor.reporting.text import estimates_text

BALANCED = Params.profile("balanced")
RANKED = ErrorControl(ranked=True)
"""Weighted Benjamini-Hochberg at 5 %. The order of the candidates gives the weights."""
N = 140_000
"""Candidates of the long list: more than the 131,072 that a decode keeps in memory as rows."""

NAMES = [f"example.org/{i}" for i in range(N)]
MANY = Candidates.from_list(NAMES)
"""The long list. A decode treats it as a stream, of which only the best candidates have rows."""
METHODS = ["bh", "bonferroni"]


def detect_by_definition(
    p_values: list[float], members: list[list[int]], level: float, method: str
) -> set[int]:
    """Return the groups that the definition detects, computed with lists and loops.

    Parameters
    ----------
    p_values : p-value of each group.
    members : ranks of the members of each group.
    level : error rate.
    method : "bh" or "bonferroni".
    """
    weights = [sum(1 / (rank + 100) for rank in ranks) for ranks in members]
    total = math.fsum(weights)
    groups = range(len(p_values))
    if method == "bonferroni":
        return {i for i in groups if p_values[i] <= level * weights[i] / total}
    detected: set[int] = set()
    for number in range(1, len(p_values) + 1):
        passing = {
            i for i in groups if p_values[i] <= min(level, level * weights[i] * number / total)
        }
        # The largest number for which as many groups pass is the number of detected groups.
        if len(passing) >= number:
            detected = passing
    return detected


def make_weights(members: list[list[int]]) -> RankWeights:
    """Compute the weights of groups from the ranks of their members."""
    ranks = np.array([rank for group in members for rank in group])
    entry = np.repeat(np.arange(len(members)), [len(group) for group in members])
    return RankWeights.of(ranks, entry, n_ranks=len(ranks))


@st.composite
def draw_groups(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    """Draw groups of ranks 1 to n, each with a p-value. Small p-values are frequent."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=25))
    ranks = iter(draw(st.permutations(range(1, sum(sizes) + 1))))
    members = [sorted(itertools.islice(ranks, size)) for size in sizes]
    exponents = draw(st.lists(st.floats(0, 6), min_size=len(sizes), max_size=len(sizes)))
    return [10**-exponent for exponent in exponents], members


@pytest.mark.parametrize("method", METHODS)
@given(draw_groups(), st.floats(0.001, 0.9))
def test_weighted_procedures_detect_by_their_definition(
    method: str, groups: tuple[list[float], list[list[int]]], level: float
) -> None:
    """Weighted Benjamini-Hochberg and Bonferroni detect the groups of the definition."""
    p_values, members = groups
    thresholds = Thresholds(
        ErrorControl(alpha=level, method=method, ranked=True),
        PValues(in_memory=np.array(p_values)),
        make_weights(members),
    )
    detected = set(np.flatnonzero(thresholds.detected).tolist())
    assert detected == detect_by_definition(p_values, members, level, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(5))
def test_a_long_list_detects_by_the_definition(seed: int, method: str) -> None:
    """Of 600 candidates in any order of ranks, the detected ones are those of the definition."""
    rng = np.random.default_rng(seed)
    # 540 absent candidates with uniform p-values, and 60 present ones whose p-values are near 0.
    p_values = np.concatenate([rng.random(540), rng.random(60) ** 12]).tolist()
    members = [[rank] for rank in rng.permutation(np.arange(1, 601)).tolist()]
    thresholds = Thresholds(
        ErrorControl(method=method, ranked=True),
        PValues(in_memory=np.array(p_values)),
        make_weights(members),
    )
    expected = detect_by_definition(p_values, members, 0.05, method)
    assert set(np.flatnonzero(thresholds.detected).tolist()) == expected
    assert expected


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 100, 10_000, 1_000_000])
def test_weights_have_the_mean_1(n: int) -> None:
    """Weights are proportional to 1 / (rank + 100), and their mean is 1.

    The mean 1 keeps the false discovery rate [GRW06].
    """
    ranks = np.arange(1, n + 1)
    weights = compute_weight_scale(n) * invert_ranks(ranks)
    assert math.fsum(weights) == pytest.approx(n, rel=1e-11)
    np.testing.assert_allclose(weights * (ranks + 100), weights[0] * 101, rtol=1e-9)


def test_the_weight_scale_of_1e8_ranks_is_computed_without_a_loop() -> None:
    """The factor c of the weights c / (r + 100) is n divided by the sum of 1 / (r + 100).

    For 1e8 ranks a loop would take minutes. The test computes the sum by the formula of Euler and
    Maclaurin, with its first correction.
    """
    n = 10**8
    # The sum of 1/x over x from 101 to n + 100.
    first, last = 101, n + 100
    inverse_sum = math.log(last / first) + (1 / first + 1 / last) / 2 + 1 / (12 * first**2)
    assert compute_weight_scale(n) == pytest.approx(n / inverse_sum, rel=1e-9)


def test_thresholds_never_exceed_the_level() -> None:
    """A candidate with a p-value above the level is not detected, however large its weight is.

    Without this rule, the first string of a list would be announced without evidence if enough
    other candidates are detected.
    """
    # One tenth of the candidates has tiny p-values and is detected. Rank 1 has a weight far above
    # 10, so level * weight * (share of detected candidates) would be above the level of .05.
    members = [[1], *([rank] for rank in range(2, 30_001))]
    p_values = np.full(30_000, 0.9)
    p_values[:3000] = 1e-9
    p_values[0] = 0.051  # just above the level
    weights = make_weights(members)
    assert weights.in_memory[0] * 3000 / 30_000 > 1
    detected = Thresholds(RANKED, PValues(in_memory=p_values), weights).detected
    assert not detected[0]
    p_values[0] = 0.049
    assert Thresholds(RANKED, PValues(in_memory=p_values), weights).detected[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(20))
def test_a_histogram_of_ratios_gives_the_threshold_of_all_candidates(
    seed: int, method: str
) -> None:
    """Kept candidates and a histogram of the other ratios p / w give the threshold of all.

    A stream keeps the candidates with the smallest ratios and counts the others, so that its memory
    is bounded. If one detected candidate is not kept, its exact ratio is lost, so the threshold is
    unknown. An error then names the number of kept candidates.
    """
    rng = np.random.default_rng(seed)
    p_values = np.concatenate([rng.random(2000), rng.random(50) ** 20])
    weights = make_weights([[rank] for rank in rng.permutation(np.arange(1, 2051)).tolist()])
    control = ErrorControl(alpha=0.1, method=method, ranked=True)
    expected = Thresholds(control, PValues(in_memory=p_values), weights)
    n_detected = int(expected.detected.sum())
    assert n_detected > 1

    def compute_thresholds(n_rows: int) -> Thresholds:
        """Keep the `n_rows` candidates with the smallest ratios, and count the others."""
        ratios = compute_ratios(p_values, weights.in_memory, 0.1)
        order = np.argsort(ratios)
        stored_rows, dropped_rows = order[:n_rows], order[n_rows:]
        counts = count_ratios(ratios[dropped_rows])
        least = float(ratios[stored_rows].max())
        kept_weights = RankWeights(
            in_memory=weights.in_memory[stored_rows],
            total=weights.total,
            others=RatioCounts(counts=counts, least=least),
        )
        return Thresholds(control, PValues(in_memory=p_values[stored_rows]), kept_weights)

    assert compute_thresholds(n_detected + 200).largest == expected.largest
    with pytest.raises(DecodeError, match=f"more than the {n_detected - 1} best"):
        _ = compute_thresholds(n_detected - 1).largest


@pytest.mark.parametrize("n_present", [0, 1, 5])
@pytest.mark.parametrize("order", ["first", "last"])
def test_the_weighted_procedure_keeps_its_level_exactly(order: str, n_present: int) -> None:
    """The exact false discovery rate of weighted Benjamini-Hochberg is at most its level.

    All outcomes of the p-values of two absent candidates are enumerated. These p-values are uniform
    on a grid of 100 values. Present candidates have the p-value 0. The absent candidates have
    either the first ranks, the worst order of a list, or the last ranks, the best order.
    """
    grid, n = 100, n_present + 2
    absent = [1, 2] if order == "first" else [n - 1, n]
    ranks = [*absent, *(rank for rank in range(1, n + 1) if rank not in absent)]
    weights = make_weights([[rank] for rank in ranks])
    rates = []
    for absent_values in itertools.product(range(1, grid + 1), repeat=2):
        p_values = np.concatenate([np.array(absent_values) / grid, np.zeros(n_present)])
        detected = Thresholds(RANKED, PValues(in_memory=p_values), weights).detected
        rates.append(detected[:2].sum() / max(detected.sum(), 1))
    assert 0 < sum(rates) / grid**2 <= 0.05


def collect(params: Params, present: list[str], *, n_reports: float = 1e6, seed: int = 1) -> Counts:
    """Return simulated counts of present strings, whose shares follow Zipf's law."""
    population = Population(present, 1 / np.arange(1.0, len(present) + 1))
    return simulate_counts(population, params, n_reports=n_reports, seed=seed)


def interleave(n: int) -> tuple[list[str], list[str]]:
    """Return n present strings, and a list in which an absent string follows each of them."""
    present = [f"present {i}" for i in range(n)]
    return present, [text for i in range(n) for text in (present[i], f"absent {i}")]


def map_by_name(estimates: Estimates, column: NDArray[np.float64]) -> dict[str, float]:
    """Return a dict from candidates to a column of estimates."""
    return dict(zip(estimates.candidates, column.tolist(), strict=True))


@pytest.mark.slow
def test_a_ranked_decode_changes_detections_and_no_p_value() -> None:
    """Ranks change which candidates are detected, and no share, interval or p-value.

    The prior opinion of the list must not change an estimate. The definition detects the same
    candidates.
    """
    present, candidates = interleave(1000)
    counts = collect(BALANCED, present)
    ranked = decode(counts, candidates, error_control=RANKED)
    unranked = decode(counts, candidates)
    for name in ("share", "std_error", "ci_low", "ci_high", "p_value"):
        assert np.array_equal(getattr(ranked, name), getattr(unranked, name)), name
    assert ranked.detected.sum() > unranked.detected.sum()
    assert unranked.weight is None
    assert ranked.weight is not None
    weight = map_by_name(ranked, ranked.weight)
    expected = compute_weight_scale(2000) * invert_ranks(np.arange(1, 2001))
    assert [weight[text] for text in candidates] == pytest.approx(expected.tolist())
    p_value = map_by_name(ranked, ranked.p_value)
    detected = detect_by_definition(
        [p_value[text] for text in candidates], [[i] for i in range(1, 2001)], 0.05, "bh"
    )
    assert set(ranked.detected_candidates) == {candidates[i] for i in detected}


@pytest.mark.slow
def test_adjusted_intervals_have_the_level_of_the_bound() -> None:
    """The adjusted interval of a detected row has the confidence 1 - .05 w R / n, and at least .95.

    w is the weight of the row, R the number of detected rows and n the number of candidates. The
    interval then excludes 0 as often as the row is detected, and the false coverage rate is 5 %.
    The first, the middle and the last detected row are compared with a decode at this confidence.
    """
    present, candidates = interleave(500)
    counts = collect(BALANCED, present)
    ranked = decode(counts, candidates, error_control=RANKED)
    assert ranked.weight is not None
    rows = np.flatnonzero(ranked.detected)
    bounds = np.minimum(0.05, 0.05 * ranked.weight * len(rows) / len(ranked))
    for row in rows[[0, len(rows) // 2, -1]].tolist():
        control = ErrorControl(confidence=1 - bounds[row])
        unranked = decode(counts, candidates, error_control=control)
        assert ranked.ci_low_adjusted[row] == pytest.approx(unranked.ci_low[row], abs=1e-9)
        assert ranked.ci_high_adjusted[row] == pytest.approx(unranked.ci_high[row], abs=1e-9)


@pytest.mark.slow
def test_hiding_a_row_takes_more_forged_reports_if_its_weight_is_larger() -> None:
    """`forged_to_hide` is larger for a string with a larger weight, which is easier to detect.

    The most frequent string has the first rank in one list and the last rank in the reversed list.
    """
    present, candidates = interleave(500)
    counts = collect(BALANCED, present)
    forward = decode(counts, candidates, error_control=RANKED)
    backward = decode(counts, candidates[::-1], error_control=RANKED)
    n_as_first, n_as_last = (
        map_by_name(estimates, estimates.forged_to_hide)[present[0]]
        for estimates in (forward, backward)
    )
    assert n_as_first > n_as_last


def test_a_group_has_the_sum_of_the_weights_of_its_members() -> None:
    """Candidates with the same bits have one test, with the sum of their weights.

    The null hypothesis is that all members of the group are absent. The weights of all tests
    still have the mean 1 over the candidates.
    """
    params = dataclasses.replace(BALANCED, k=16, m=1, insecure=True)
    candidates = [f"candidate {i}" for i in range(40)]
    counts = collect(params, candidates[:3], n_reports=1e5)
    estimates = decode(counts, candidates, error_control=RANKED)
    assert estimates.weight is not None
    weight_of = dict(
        zip(candidates, compute_weight_scale(40) * invert_ranks(np.arange(1, 41)), strict=True)
    )
    assert estimates.group.max() >= 2  # 40 candidates have 16 different bits: there are groups
    for name, group, weight in zip(
        estimates.candidates, estimates.group, estimates.weight, strict=True
    ):
        members = [
            candidate
            for candidate, number in zip(estimates.candidates, estimates.group, strict=True)
            if number == group
        ]
        expected = sum(weight_of[member] for member in members) if group else weight_of[name]
        assert weight == pytest.approx(expected)
    assert estimates.weight[estimates.distinct].sum() == pytest.approx(40)


def test_one_candidate_has_the_weight_1() -> None:
    """With one candidate, a ranked list has the same tests and intervals as an unranked one."""
    counts = collect(BALANCED, ["cat"])
    ranked = decode(counts, ["cat"], error_control=RANKED)
    assert ranked.weight == pytest.approx([1.0])
    assert ranked.detected_candidates == ["cat"]
    assert ranked.ci_low_adjusted == pytest.approx(decode(counts, ["cat"]).ci_low_adjusted)


def test_a_repeated_string_keeps_its_first_rank() -> None:
    """A repeated string of a list is removed and keeps its first rank.

    Later strings move up by one rank, as if the repetition did not exist.
    """
    counts = collect(BALANCED, ["cat", "dog"])
    ranked = decode(counts, ["cat", "dog", "cat", "emu"], error_control=RANKED)
    assert ranked.to_json() == decode(counts, ["cat", "dog", "emu"], error_control=RANKED).to_json()


def test_listed_strings_have_the_first_ranks() -> None:
    """Strings that the metric lists (`listed`) have the first ranks. The candidates follow."""
    counts = collect(BALANCED, ["cat", "dog", "emu"])
    ranked = decode(counts, ["emu", "fox"], listed=["cat", "dog"], error_control=RANKED)
    assert ranked.weight is not None
    weight = map_by_name(ranked, ranked.weight)
    assert sorted(weight, key=lambda name: -weight[name]) == ["cat", "dog", "emu", "fox"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_has_the_rows_of_a_list(method: str) -> None:
    """The rows of a ranked stream equal those of a list in memory, to the last bit."""
    params = dataclasses.replace(BALANCED, k=32, m=16)
    counts = collect(params, NAMES[::140])
    control = ErrorControl(method=method, ranked=True)
    streamed = decode(counts, MANY, error_control=control)
    listed = decode(counts, MANY, error_control=control, distribution=True)
    # The stream keeps its best candidates. With distribution=True the decode needs all rows.
    assert len(streamed) < N / 2
    assert len(listed) == N
    assert streamed.weight is not None
    assert streamed.detected.sum() == listed.detected.sum() > 0
    row_of = {candidate: i for i, candidate in enumerate(listed.candidates)}
    rows = [row_of[candidate] for candidate in streamed.candidates]
    for name in ("share", "p_value", "weight", "detected", "ci_low_adjusted", "forged_to_hide"):
        actual, expected = getattr(streamed, name), getattr(listed, name)[rows]
        assert np.array_equal(actual, expected, equal_nan=True), name
    assert np.array_equal(streamed.p_value_counts, listed.p_value_counts)


@pytest.mark.parametrize("seed", range(5))
def test_a_ranked_stream_keeps_the_best_scores_and_the_smallest_ratios(seed: int) -> None:
    """A ranked stream keeps the best scores and the smallest ratios, here 50 of each.

    The best scores are needed for the selection of the fit, and the smallest ratios p / w for the
    detection. All other ratios are counted in a histogram.
    """
    rng = np.random.default_rng(seed)
    n, n_kept = 4000, 50
    z, ratio = rng.standard_normal(n), rng.random(n)
    ratio[rng.random(n) < 0.3] = np.inf  # p-values above the level cannot be detected
    names = [b"%d" % i for i in range(n)]
    best = BestCandidates(n_kept, is_ranked=True)
    for start in range(0, n, 130):
        block = slice(start, start + 130)
        texts = Texts.from_bytes(names[block])
        best.offer(start, texts, hash_texts(texts), z[block], ratio[block])
    rows = best.close()
    stored_rows = {*np.argsort(-z)[:n_kept].tolist(), *np.argsort(ratio)[:n_kept].tolist()}
    assert rows.index.tolist() == sorted(stored_rows)
    dropped_rows = np.setdiff1d(np.arange(n), rows.index)
    assert np.array_equal(best.dropped_ratios, count_ratios(ratio[dropped_rows]))
    assert best.largest_ratio == np.sort(ratio)[n_kept - 1]
    assert ratio[dropped_rows].min() >= best.largest_ratio


@pytest.mark.slow
def test_repeated_strings_of_a_stream_do_not_count() -> None:
    """Copies of a detected string at the end of a stream change neither tests nor weights.

    A stream cannot recognise every repeated string, but the copies of kept strings are among the
    best candidates and are merged.
    """
    params = dataclasses.replace(BALANCED, k=32, m=16)
    counts = collect(params, NAMES[::140])
    repeated = NAMES + [NAMES[0]] * 1000
    estimates = decode(counts, Candidates.from_stream(lambda: repeated), error_control=RANKED)
    expected = decode(counts, MANY, error_control=RANKED)
    assert estimates.candidates == expected.candidates
    assert estimates.n_candidates == expected.n_candidates == N
    assert estimates.detected_candidates == expected.detected_candidates
    assert estimates.weight == pytest.approx(expected.weight)
    detected = estimates.detected
    assert estimates.ci_low_adjusted[detected] == pytest.approx(expected.ci_low_adjusted[detected])


@pytest.mark.slow
def test_a_long_stream_of_few_strings_is_a_short_list() -> None:
    """A stream of three strings, each repeated 50,000 times, is decoded like a list of three."""
    counts = collect(BALANCED, ["cat", "dog"], n_reports=1e5)
    stream = Candidates.from_stream(lambda: ["cat", "dog", "emu"] * 50_000)
    streamed = decode(counts, stream, error_control=RANKED)
    listed = decode(counts, ["cat", "dog", "emu"], error_control=RANKED)
    assert streamed.candidates == listed.candidates
    assert streamed.weight == pytest.approx(listed.weight)
    assert streamed.detected_candidates == listed.detected_candidates == ["cat", "dog"]
    adjusted = streamed.ci_low_adjusted[streamed.detected]
    assert adjusted == pytest.approx(listed.ci_low_adjusted[listed.detected])


def test_tables_show_the_weight() -> None:
    """Text, CSV, rows and page of a ranked list have the weights, and state their assumption.

    The ranks must not come from reports of this metric. Unranked lists have no column of weights.
    """
    counts = collect(BALANCED, ["cat", "dog"])
    ranked = decode(counts, ["cat", "dog", "emu"], error_control=RANKED)
    unranked = decode(counts, ["cat", "dog", "emu"])
    assert "weight" in str(ranked).splitlines()[0]
    assert "weight" not in str(unranked)
    assert ",p_value,weight,detected" in ranked.to_csv().splitlines()[0]
    assert "weight" not in unranked.to_csv()
    assert next(ranked.rows())["weight"] == pytest.approx(1.0, abs=0.02)
    assert "weight" not in next(unranked.rows())
    assert ">weight<" in ranked.to_html()
    assert ">weight<" not in unranked.to_html()
    sentence = "does not come from reports of this metric"
    assert sentence in " ".join(str(ranked).split())
    assert sentence in ranked.to_html()


def test_ranks_with_the_adaptive_procedure_or_categories_are_refused() -> None:
    """The adaptive procedure has no weighted form, and categories have no ranks."""
    with pytest.raises(ParamsError, match="method must be bh or bonferroni for a ranked list"):
        ErrorControl(method="adaptive", ranked=True)
    with pytest.raises(ParamsError, match="ranked must be True or False, got 1"):
        ErrorControl(ranked=1)  # type: ignore[arg-type]
    params = Params.profile("balanced", encoding="onehot", categories=("a", "b"))
    counts = simulate_counts(Population(["a"], [1]), params, n_reports=1000, seed=1)
    with pytest.raises(DecodeError, match="ranked must be False for an encoding with fixed"):
        decode(counts, error_control=RANKED)


def test_a_result_of_the_same_metric_is_refused_as_a_list(tmp_path: Path) -> None:
    """A table of estimates is refused as a list of candidates for its own metric.

    Candidates that were selected by the same reports, or by reports with the same hash functions,
    are too often detected again. A table belongs to the metric if the name of the metric or the
    fingerprint of the parameters is equal. For other metrics a table is an ordinary list.
    """
    counts = dataclasses.replace(collect(BALANCED, ["cat", "=dog"]), metric="pet")
    path = tmp_path / "last.csv"
    decode(counts, ["emu", "cat", "=dog"]).to_csv(path, detected_only=True)
    candidates = Candidates.from_file(path)
    assert candidates.strings == ("cat", "=dog")
    streamed = Candidates.chain(candidates, Candidates.product(["a"], "xy", 0, 1))
    piped = Candidates.from_lines(path.read_text().splitlines(keepends=True))
    renamed = dataclasses.replace(counts, metric="animal")
    other_params = dataclasses.replace(BALANCED, m=64)
    changed = dataclasses.replace(collect(other_params, ["cat"]), metric="pet")
    for same_metric in (counts, renamed, changed):
        for table in (candidates, streamed, piped):
            for control in (RANKED, ErrorControl()):
                with pytest.raises(DecodeError, match="must not be a result of the same metric"):
                    decode(same_metric, table, error_control=control)
    renamed_counts = dataclasses.replace(changed, metric="animal")
    assert decode(renamed_counts, candidates, error_control=RANKED).detected_candidates == ["cat"]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    """A table with a row of another length, or too long a cell, is refused with the line."""
    counts = collect(BALANCED, ["cat"])
    path = tmp_path / "last.csv"
    path.write_text(decode(counts, ["cat"]).to_csv() + "dog\n")
    with pytest.raises(FileError, match="line 3: its rows must have the columns of its titles"):
        Candidates.from_file(path)
    path.write_text(decode(counts, ["cat"]).to_csv().replace("cat", "cat" * 50_000))
    with pytest.raises(FileError, match="line 2: its row cannot be read: field larger than"):
        Candidates.from_file(path)


def test_a_table_with_quoted_titles_is_recognised(tmp_path: Path) -> None:
    """A table is recognised as a result although a spreadsheet has quoted each of its cells.

    If the titles were not recognised, each row would become a candidate, such as "cat,123,4.5", and
    nothing would be detected.
    """
    counts = dataclasses.replace(collect(BALANCED, ["cat"]), metric="pet")
    path = tmp_path / "last.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows(csv.reader(decode(counts, ["cat"]).to_csv().splitlines()))
    candidates = Candidates.from_file(path)
    assert candidates.strings == ("cat",)
    with pytest.raises(DecodeError, match="must not be a result of the same metric"):
        decode(counts, candidates)


def test_results_in_other_forms_are_refused_as_lists(tmp_path: Path) -> None:
    """JSON, text, pages, counts and other tables are refused as lists, with the name of the form.

    Only the CSV of estimates has columns for the metric and the parameters of its reports. Lines of
    other forms would become candidates that no device has.
    """
    counts = dataclasses.replace(collect(BALANCED, ["cat", "dog"]), metric="pet")
    estimates = decode(counts, ["cat", "dog", "emu"])
    samples = {"a": counts, "b": collect(BALANCED, ["cat", "dog"], seed=2)}
    comparison = compare_samples(samples, ["cat", "dog"])
    suggestions = suggest_candidates(counts, ["emu"], Candidates.from_list(["cat", "dog"]))
    table = estimates.to_csv()
    counts.save(tmp_path / "pet.counts")
    forms: dict[str, list[str | bytes]] = {
        "the JSON of a result": [
            estimates.to_json(),
            comparison.to_json(),
            suggestions.to_json(),
            json.dumps({"metric": "pet", "collections": []}),
        ],
        "the printed text of a result": [
            str(estimates),
            "from a to b\ncandidate  change  difference, points\ncat        fall    -9.38\n",
            "1 of 2 listed strings\n\nSuggested\n  string  reports  std error\n  cat  7  3\n",
            estimates_text(estimates, detected_only=False, forged=True, width=40),
        ],
        "a page of HTML": [comparison.to_html()],
        "a file of counts": [(tmp_path / "pet.counts").read_bytes()],
        "a table of results without the columns metric and fingerprint": [
            comparison.to_csv(include_all=True),
            table.replace(",", ";"),
            table.replace(",", "\t"),
            table.replace(",metric", ",measure"),
        ],
    }
    path = tmp_path / "list"
    for form, documents in forms.items():
        for document in documents:
            data = document if isinstance(document, bytes) else document.encode()
            path.write_bytes(b"\xef\xbb\xbf" + data)
            with pytest.raises(FileError, match=f"list: it must be .* got {form}"):
                Candidates.from_file(path)
            with pytest.raises(FileError, match=f"standard input: it must be .* got {form}"):
                Candidates.from_lines(data.splitlines(keepends=True))


@pytest.mark.parametrize(
    "header", ["value,weight\n", "value,count\r\n", '"value","weight"\n', "\ufeffvalue,weight\n"]
)
def test_a_population_is_no_list(tmp_path: Path, header: str) -> None:
    """The CSV file of a population is refused: `cat,5` would be a candidate that no device has."""
    data = f"{header}cat,5\ndog,3\n".encode()
    path = tmp_path / "list"
    path.write_bytes(data)
    with pytest.raises(FileError, match="list: it must be a list of strings, got a population"):
        Candidates.from_file(path)
    with pytest.raises(FileError, match=r"standard input: it must be .*, got a population"):
        Candidates.from_lines(data.splitlines(keepends=True))


@pytest.mark.parametrize(
    "line",
    [
        "value",
        "value,emu",
        "candidate",
        "candidate,emu",
        "candidate  emu",
        "string",
        '{"name":"emu"}',
        "[]",
        "<a>",
        "RAPPOR",
    ],
)
def test_a_list_may_begin_with_words_of_a_result(line: str) -> None:
    """A first line that resembles the beginning of a result does not make a list a result."""
    assert Candidates.from_lines([line, "emu"]).strings == (line, "emu")


def test_analyses_without_weights_refuse_ranks() -> None:
    """Comparisons, discoveries, suggestions and weighted totals refuse ranks.

    They have no weighted tests, and an option without an effect would mislead.
    """
    counts = collect(BALANCED, ["cat", "dog"], n_reports=1e4)
    names = Candidates.from_list(["cat", "dog"])
    samples = {"a": counts, "b": counts}
    calls: dict[str, Callable[[], object]] = {
        "comparisons": lambda: compare_samples(samples, names, error_control=RANKED),
        "discoveries": lambda: discover([counts], error_control=RANKED),
        "suggestions": lambda: suggest_candidates(counts, ["cat"], names, error_control=RANKED),
        "weighted totals": lambda: decode_weighted([counts], names, {"": 1}, error_control=RANKED),
    }
    for noun, call in calls.items():
        with pytest.raises(ParamsError, match=f"ranked must be False for {noun}"):
            call()
