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

BALANCED = Params.profile("balanced")
RANKED = ErrorControl(ranked=True)
N = 140_000
"""Candidates of the long list: more than the 131,072 that a decode keeps in memory as rows."""

NAMES = [f"example.org/{i}" for i in range(N)]
MANY = Candidates.from_list(NAMES)
METHODS = ["bh", "bonferroni"]


def detect_by_definition(
    p_values: list[float], members: list[list[int]], level: float, method: str
) -> set[int]:
    """Detect groups by the definition, with lists and loops.

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
    """The weights are proportional to 1 / (rank + 100), and their mean is 1."""
    ranks = np.arange(1, n + 1)
    weights = compute_weight_scale(n) * invert_ranks(ranks)
    assert math.fsum(weights) == pytest.approx(n, rel=1e-11)
    assert weights * (ranks + 100) == pytest.approx(weights[0] * 101)


def test_the_weight_scale_of_1e8_ranks_is_computed_without_a_loop() -> None:
    """The weight scale of 1e8 ranks equals n divided by the sum of 1 / (rank + 100).

    The sum is computed by the formula of Euler and Maclaurin, with its first correction.
    """
    n = 10**8
    # Euler-Maclaurin: the sum of 1/x from 101 to n + 100.
    first, last = 101, n + 100
    inverse_sum = math.log(last / first) + (1 / first + 1 / last) / 2 + 1 / (12 * first**2)
    assert compute_weight_scale(n) == pytest.approx(n / inverse_sum, rel=1e-9)


def test_thresholds_never_exceed_the_level() -> None:
    """A candidate with a p-value above the level is not detected, however large its weight is."""
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
    """A stream keeps the candidates with the smallest p / w and a histogram of the other ratios.

    Both together give the threshold of all candidates if all detected ones are kept. If one of them
    is not kept, the threshold is open, and an error names the number of kept candidates.
    """
    rng = np.random.default_rng(seed)
    p_values = np.concatenate([rng.random(2000), rng.random(50) ** 20])
    weights = make_weights([[rank] for rank in rng.permutation(np.arange(1, 2051)).tolist()])
    control = ErrorControl(alpha=0.1, method=method, ranked=True)
    expected = Thresholds(control, PValues(in_memory=p_values), weights)
    n_detected = int(expected.detected.sum())
    assert n_detected > 1

    def keep(n_rows: int) -> Thresholds:
        """Keep the `n_rows` candidates with the smallest ratios, and count the others."""
        ratios = compute_ratios(p_values, weights.in_memory, 0.1)
        order = np.argsort(ratios)
        kept, others = order[:n_rows], order[n_rows:]
        counts = count_ratios(ratios[others])
        least = float(ratios[kept].max())
        kept_weights = RankWeights(
            in_memory=weights.in_memory[kept],
            total=weights.total,
            others=RatioCounts(counts=counts, least=least),
        )
        return Thresholds(control, PValues(in_memory=p_values[kept]), kept_weights)

    assert keep(n_detected + 200).largest == expected.largest
    with pytest.raises(DecodeError, match=f"more than the {n_detected - 1} best"):
        _ = keep(n_detected - 1).largest


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
    """Simulate devices whose strings follow Zipf's law."""
    population = Population(present, 1 / np.arange(1.0, len(present) + 1))
    return simulate_counts(population, params, n_reports=n_reports, seed=seed)


def interleave(n: int) -> tuple[list[str], list[str]]:
    """Return n present strings, and a list in which an absent string follows each of them."""
    present = [f"present {i}" for i in range(n)]
    return present, [text for i in range(n) for text in (present[i], f"absent {i}")]


def by_name(estimates: Estimates, column: NDArray[np.float64]) -> dict[str, float]:
    """Return a column by candidate."""
    return dict(zip(estimates.candidates, column.tolist(), strict=True))


@pytest.mark.slow
def test_a_ranked_decode_changes_detections_and_no_p_value() -> None:
    """P-values, shares and intervals of single rows are those of a decode without ranks."""
    present, candidates = interleave(2000)
    counts = collect(BALANCED, present)
    ranked = decode(counts, candidates, error_control=RANKED)
    unranked = decode(counts, candidates)
    for name in ("share", "std_error", "ci_low", "ci_high", "p_value"):
        assert np.array_equal(getattr(ranked, name), getattr(unranked, name)), name
    assert ranked.detected.sum() > unranked.detected.sum()
    assert unranked.weight is None
    assert ranked.weight is not None
    weight = by_name(ranked, ranked.weight)
    expected = compute_weight_scale(4000) * invert_ranks(np.arange(1, 4001))
    assert [weight[text] for text in candidates] == pytest.approx(expected.tolist())
    p_value = by_name(ranked, ranked.p_value)
    detected = detect_by_definition(
        [p_value[text] for text in candidates], [[i] for i in range(1, 4001)], 0.05, "bh"
    )
    assert set(ranked.detected_candidates) == {candidates[i] for i in detected}


@pytest.mark.slow
def test_adjusted_intervals_have_the_level_of_the_bound() -> None:
    """The adjusted interval of a detected row has the confidence 1 - .05 w R / n, and at least .95.

    w is the weight of the row, R the number of detected rows and n the number of candidates. The
    first, the middle and the last detected row are compared with a decode at this confidence.
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
    """The number of forged reports that hides a row uses the threshold of this row.

    The most frequent string has the first rank in one list and the last rank in the reversed list.
    """
    present, candidates = interleave(500)
    counts = collect(BALANCED, present)
    forward = decode(counts, candidates, error_control=RANKED)
    backward = decode(counts, candidates[::-1], error_control=RANKED)
    hide = [by_name(estimates, estimates.forged_to_hide) for estimates in (forward, backward)]
    assert hide[0][present[0]] > hide[1][present[0]]


def test_a_group_has_the_sum_of_the_weights_of_its_members() -> None:
    """Candidates with the same bits have one test, whose weight is the sum of their weights."""
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
            other
            for other, number in zip(estimates.candidates, estimates.group, strict=True)
            if number == group
        ]
        expected = sum(weight_of[member] for member in members) if group else weight_of[name]
        assert weight == pytest.approx(expected)
    assert estimates.weight[estimates.distinct].sum() == pytest.approx(40)


def test_one_candidate_has_the_weight_1() -> None:
    """A ranked list of one candidate has the tests and intervals of the same list without ranks."""
    counts = collect(BALANCED, ["cat"])
    ranked = decode(counts, ["cat"], error_control=RANKED)
    assert ranked.weight == pytest.approx([1.0])
    assert ranked.detected_candidates == ["cat"]
    assert ranked.ci_low_adjusted == pytest.approx(decode(counts, ["cat"]).ci_low_adjusted)


def test_a_repeated_string_keeps_its_first_rank() -> None:
    """A list with repeated strings is the list without the repetitions."""
    counts = collect(BALANCED, ["cat", "dog"])
    ranked = decode(counts, ["cat", "dog", "cat", "emu"], error_control=RANKED)
    assert ranked.to_json() == decode(counts, ["cat", "dog", "emu"], error_control=RANKED).to_json()


def test_listed_strings_have_the_first_ranks() -> None:
    """Strings that the metric lists (`listed`) have the first ranks. The candidates follow."""
    counts = collect(BALANCED, ["cat", "dog", "emu"])
    ranked = decode(counts, ["emu", "fox"], listed=["cat", "dog"], error_control=RANKED)
    assert ranked.weight is not None
    weight = by_name(ranked, ranked.weight)
    assert sorted(weight, key=lambda name: -weight[name]) == ["cat", "dog", "emu", "fox"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_has_the_rows_of_a_list(method: str) -> None:
    """The rows of a ranked stream are those of a list in memory, to the last bit."""
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
    """The 50 best scores and the 50 smallest ratios p / w are kept. Other ratios are counted."""
    rng = np.random.default_rng(seed)
    n, most = 4000, 50
    z, ratio = rng.standard_normal(n), rng.random(n)
    ratio[rng.random(n) < 0.3] = np.inf  # p-values above the level cannot be detected
    names = [b"%d" % i for i in range(n)]
    best = BestCandidates(most, is_ranked=True)
    for start in range(0, n, 130):
        block = slice(start, start + 130)
        texts = Texts.from_bytes(names[block])
        best.offer(start, texts, hash_texts(texts), z[block], ratio[block])
    rows = best.close()
    kept = {*np.argsort(-z)[:most].tolist(), *np.argsort(ratio)[:most].tolist()}
    assert rows.index.tolist() == sorted(kept)
    others = np.setdiff1d(np.arange(n), rows.index)
    assert np.array_equal(best.dropped_ratios, count_ratios(ratio[others]))
    assert best.largest_ratio == np.sort(ratio)[most - 1]
    assert ratio[others].min() >= best.largest_ratio


@pytest.mark.slow
def test_repeated_strings_of_a_stream_do_not_count() -> None:
    """Copies of a detected string at the end of a stream change neither tests nor weights."""
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


def test_a_long_stream_of_few_strings_is_a_short_list() -> None:
    """A stream of three strings, each repeated many times, has the tests of a list of three."""
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
    """The column `weight` is in the text, the CSV, the JSON and the page of a ranked list only."""
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
    """A table of estimates is a list of candidates for any metric except its own.

    Ranks from the same reports would be chosen after seeing the data. A table is of the same metric
    if the name of the metric or the fingerprint of its parameters is equal.
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
    other = dataclasses.replace(changed, metric="animal")
    assert decode(other, candidates, error_control=RANKED).detected_candidates == ["cat"]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    """A table with a row of another length is an error that names the line."""
    counts = collect(BALANCED, ["cat"])
    path = tmp_path / "last.csv"
    path.write_text(decode(counts, ["cat"]).to_csv() + "dog\n")
    with pytest.raises(FileError, match="line 3: its rows must have the columns of its titles"):
        Candidates.from_file(path)
    path.write_text(decode(counts, ["cat"]).to_csv().replace("cat", "cat" * 50_000))
    with pytest.raises(FileError, match="line 2: its row cannot be read: field larger than"):
        Candidates.from_file(path)


def test_a_table_with_quoted_titles_is_recognised(tmp_path: Path) -> None:
    """A spreadsheet may quote each cell. The candidates of such a table come from the metric, too.

    If the titles were not recognised, each row would be a candidate, and nothing would be detected.
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


def test_analyses_without_weights_refuse_ranks() -> None:
    """Comparisons, discoveries, suggestions and weighted totals refuse a ranked list."""
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
