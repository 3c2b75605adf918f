"""False discovery rate of every detection flag in the records and on the pages of a comparison.

Flags are the detection of a candidate in a sample, in smoothed estimates, or overall, and the
directions newcomer and leaver. A mark is one row with the flag. The false share of a flag is the
share of its marks that are wrong in one simulated comparison, and 0 without marks. Its expectation
is at most 5 %, the level, for every method of error control. Bonferroni's method even bounds the
probability of one wrong mark. The mean over n comparisons may exceed the level by six standard
errors, which a right program does about once in 1e9.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import decodings
import numpy as np
import pytest

from rappor import Comparison, Params, Population, compare_samples, simulate_counts, trend
from rappor.comparison.overview import compute_overview
from rappor.counts.counts import Counts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.params import Params as ParameterSet

LEVEL = 0.05
NAMES = tuple(f"c{i:02}" for i in range(20))
ONCE = dataclasses.replace(
    Params.profile("once"), k=20, m=1, h=1, encoding="onehot", categories=NAMES
)
"""Parameters of 20 categories with permanent noise alone: few devices are enough to detect one."""

STRINGS = Params(k=16, h=1, m=16, f=0.1, p=0.1, q=0.9)
"""Parameters of strings, in so few rows that the strings often collide."""
MONDAY = datetime.date(2026, 11, 2)

Usage = Sequence[Sequence[int]]
"""Numbers of the categories that are in use on each day."""

FEW: Usage = [(0, 1)]
"""Two categories are in use on the only day."""

STEADY: Usage = [(0, 1)] * 3
"""The same two categories are in use on each of three days."""

MOVING: Usage = [range(7), range(7, 14), range(14, 20)]
"""Each day has other categories. All 20 categories are in use over the three days. No overall
detection can be wrong, but a detection on a day can."""

REPLACED: Usage = [range(10), range(5, 15)]
"""The second day has lost five of ten categories and has five new ones."""


def simulate_usage(params: ParameterSet, usage: Usage, n_reports: int, seed: int) -> list[Counts]:
    """Return counts of each day. Shares decrease linearly over the categories in use."""
    return [
        simulate_counts(
            Population([NAMES[i] for i in used], [float(len(used) - j) for j in range(len(used))]),
            params,
            n_reports=n_reports,
            seed=100 * seed + day,
        )
        for day, used in enumerate(usage)
    ]


def compute_false_shares(comparison: Comparison, usage: Usage) -> dict[str, float]:
    """Return the share of wrong marks of each flag that has a mark.

    A detection of a day is right if the category is in use on the day, and a smoothed one if the
    category is in use on any day of its window. A newcomer is right if the category is in use on
    the later day, and a leaver if it was in use on the earlier day.
    """
    names = [sample.name for sample in comparison.samples]
    marks: Mapping[str, list[bool]] = defaultdict(list)
    for row in comparison.to_dict(include_all=True)["rows"]:
        number = NAMES.index(row["candidate"])
        is_used = [number in used for used in usage]
        if row["what"] in ("share", "smoothed"):
            day = names.index(row["name"])
            window = is_used[day - comparison.window + 1 : day + 1]
            is_true = any(window) if row["what"] == "smoothed" else is_used[day]
            if row["detected"]:
                marks[f"{row['what']}: detected"].append(is_true)
        elif row["what"] in ("step", "difference") and row["direction"] in ("newcomer", "leaver"):
            contrast = next(
                contrast
                for contrast in comparison.contrasts
                if (contrast.kind, contrast.name) == (row["what"], row["name"])
            )
            sign = 1 if row["direction"] == "newcomer" else -1
            day = int(np.flatnonzero(sign * contrast.weights > 0)[0])
            marks[row["direction"]].append(is_used[day])
    for name, is_detected in zip(
        comparison.candidates, comparison.detected_overall.tolist(), strict=True
    ):
        if is_detected:
            marks["overall"].append(any(NAMES.index(name) in used for used in usage))
    return {flag: 1 - float(np.mean(are_true)) for flag, are_true in marks.items()}


def count_contradictions(comparison: Comparison) -> int:
    """Return the number of candidates that a sample detects and the comparison does not."""
    estimates = (
        [comparison.per_sample]
        if comparison.smoothed is None
        else [comparison.per_sample, comparison.smoothed]
    )
    return sum(
        int((samples.detected.any(axis=0) & ~comparison.detected_overall).sum())
        for samples in estimates
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(
    ("params", "usage", "method", "n_reports", "n_comparisons"),
    [
        (ONCE, FEW, "bh", 300, (40, 900)),
        (ONCE, STEADY, "adaptive", 300, (6, 120)),
        (ONCE, MOVING, "bh", 300, (6, 120)),
        (ONCE, REPLACED, "bonferroni", 1000, (6, 120)),
        (STRINGS, FEW, "bh", 1000, (12, 120)),
        (STRINGS, MOVING, "bh", 1000, (6, 60)),
    ],
    ids=["one day", "steady", "moving", "replaced", "strings of one day", "moving strings"],
)
def test_no_flag_of_detection_is_false_more_often_than_the_level(
    params: ParameterSet,
    usage: Usage,
    method: str,
    n_reports: int,
    n_comparisons: tuple[int, int],
    is_full: bool,
) -> None:
    """The mean false share of every flag is at most the level, and flags do not contradict.

    A candidate that a sample detects must be detected overall, or a page would show both.

    `n_comparisons` has the number of simulated comparisons of the second stage, and of the stage
    acceptance. Six comparisons detect a fault with a mean false share above .58. Such a fault is a
    flag of a day that repeats the flag of all days: with each category in use on one of three
    days, its false share is .67. The stage acceptance detects a mean false share of .17, and 40
    comparisons of one day detect .26.
    """
    error_control = ErrorControl(alpha=LEVEL, method=method)
    candidates = None if params.encoding == "onehot" else list(NAMES)
    n_drawn = n_comparisons[is_full]
    shares: dict[str, list[float]] = defaultdict(list)
    n_marked: dict[str, int] = defaultdict(int)
    for seed in range(n_drawn):
        days = simulate_usage(params, usage, n_reports, seed)
        if usage is REPLACED:
            comparison = compare_samples(
                dict(zip("ab", days, strict=True)),
                candidates,
                error_control=error_control,
                device_correlation=0.0,
            )
        else:
            dated = {MONDAY + datetime.timedelta(i): counts for i, counts in enumerate(days)}
            smooth = min(len(days), 2)
            comparison = trend(
                decodings.build_released_counts(dated),
                candidates,
                error_control=error_control,
                smooth=smooth,
            )
        assert count_contradictions(comparison) == 0
        for flag, share in compute_false_shares(comparison, usage).items():
            shares[flag].append(share)
            n_marked[flag] += 1
    # A flag without marks is never false, so detections must be frequent.
    assert n_marked["share: detected"] > n_drawn / 2
    margin = 6 * math.sqrt(LEVEL * (1 - LEVEL) / n_drawn)
    for flag, false_shares_of_flag in shares.items():
        # Comparisons without a mark have the false share 0.
        assert sum(false_shares_of_flag) / n_drawn < LEVEL + margin, flag


@pytest.mark.slow
def test_an_overview_has_the_flags_of_its_comparison_and_its_estimates() -> None:
    """A row of an overview has the flag of the pooled estimates, and one flag for each day."""
    days = simulate_usage(ONCE, STEADY, 300, seed=1)
    dated = {MONDAY + datetime.timedelta(i): counts for i, counts in enumerate(days)}
    overview = compute_overview(decodings.build_released_counts(dated), days, n_latest=3, by="day")
    rows = {row["candidate"]: row["detected"] for row in overview.estimates.rows()}
    for line in overview.list_rows():
        column = overview.comparison.candidates.index(line.name)
        assert line.detected == rows[line.name]
        assert [row["detected"] for row in line.course] == overview.comparison.per_sample.detected[
            :, column
        ].tolist()
