"""False shares of every flag of detection that a comparison has, on its pages and in its records.

Each flag is measured by the share of its marks that are false in one panel, 0 if there are none.
The expectation of that share is at most the level, 5 %, under every correction: that of Bonferroni
bounds the probability of a false mark, which is more. Measured over n panels, six standard errors
allow one false alarm in 1e9.
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
"""One report of a device has the permanent noise alone, so that few devices show much."""

STRINGS = Params(k=16, h=1, m=16, f=0.1, p=0.1, q=0.9)
MONDAY = datetime.date(2026, 11, 2)

Usage = Sequence[Sequence[int]]
"""Numbers of the categories that are in use on each day."""

FEW: Usage = [(0, 1)]
"""One day: no other day shows a category, and a category is found or detected in the same test."""

STEADY: Usage = [(0, 1)] * 3
MOVING: Usage = [range(4 * day, 4 * day + 4) for day in range(5)]
"""Every category is in use, each on a day of its own: all days together detect all of them."""

REPLACED: Usage = [range(10), range(5, 15)]


def collected(params: ParameterSet, usage: Usage, n_reports: int, seed: int) -> list[Counts]:
    """Draw one collection a day."""
    return [
        simulate_counts(
            Population([NAMES[i] for i in used], [float(len(used) - j) for j in range(len(used))]),
            params,
            n_reports=n_reports,
            seed=100 * seed + day,
        )
        for day, used in enumerate(usage)
    ]


def false_shares(panel: Comparison, usage: Usage) -> dict[str, float]:
    """Return the false share of the marks of each flag of a comparison."""
    names = [sample.name for sample in panel.samples]
    marks: Mapping[str, list[bool]] = defaultdict(list)
    for row in panel.to_dict(include_all=True)["rows"]:
        number = NAMES.index(row["candidate"])
        true = [number in used for used in usage]
        if row["what"] in ("share", "smoothed"):
            day = names.index(row["name"])
            window = true[day - panel.window + 1 : day + 1]
            is_true = any(window) if row["what"] == "smoothed" else true[day]
            if row["detected"]:
                marks[f"{row['what']}: detected"].append(is_true)
        elif row["what"] in ("step", "difference") and row["direction"] in ("newcomer", "leaver"):
            contrast = next(
                contrast
                for contrast in panel.contrasts
                if (contrast.kind, contrast.name) == (row["what"], row["name"])
            )
            sign = 1 if row["direction"] == "newcomer" else -1
            marks[row["direction"]].append(true[np.flatnonzero(sign * contrast.weights > 0)[0]])
    for name, is_found in zip(panel.candidates, panel.detected_overall.tolist(), strict=True):
        if is_found:
            marks["found"].append(any(NAMES.index(name) in used for used in usage))
    return {flag: 1 - float(np.mean(some)) for flag, some in marks.items()}


def contradictions(panel: Comparison) -> int:
    """Count candidates that one sample detects and that the comparison does not detect."""
    flags = [panel.per_sample] if panel.smoothed is None else [panel.per_sample, panel.smoothed]
    return sum(
        int((levels.detected.any(axis=0) & ~panel.detected_overall).sum()) for levels in flags
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(
    ("params", "usage", "correction", "n_reports", "n_panels"),
    [
        (ONCE, FEW, "bh", 300, 90),
        (ONCE, STEADY, "adaptive", 300, 12),
        (ONCE, MOVING, "bh", 300, 12),
        (ONCE, REPLACED, "bonferroni", 1000, 12),
        (STRINGS, FEW, "bh", 1000, 12),
        (STRINGS, MOVING, "bh", 1000, 6),
    ],
    ids=["one day", "steady", "moving", "replaced", "strings of one day", "moving strings"],
)
def test_no_flag_of_detection_is_false_more_often_than_the_level(
    params: ParameterSet,
    usage: Usage,
    correction: str,
    n_reports: int,
    n_panels: int,
    times: int,
) -> None:
    """The mean false share of every flag is at most the level, and flags do not contradict."""
    detection = ErrorControl(alpha=LEVEL, method=correction)
    candidates = None if params.encoding == "onehot" else list(NAMES)
    n_panels *= times
    shares: dict[str, list[float]] = defaultdict(list)
    n_marked: dict[str, int] = defaultdict(int)
    for seed in range(n_panels):
        days = collected(params, usage, n_reports, seed)
        if usage is REPLACED:
            panel = compare_samples(
                dict(zip("ab", days, strict=True)),
                candidates,
                error_control=detection,
                device_correlation=0.0,
            )
        else:
            dated = {MONDAY + datetime.timedelta(i): counts for i, counts in enumerate(days)}
            smooth = min(len(days), 2)
            panel = trend(
                decodings.released(dated), candidates, error_control=detection, smooth=smooth
            )
        assert contradictions(panel) == 0
        for flag, share in false_shares(panel, usage).items():
            shares[flag].append(share)
            n_marked[flag] += 1
    assert n_marked["share: detected"] > n_panels / 2  # a flag that is never set is never false
    margin = 6 * math.sqrt(LEVEL * (1 - LEVEL) / n_panels)
    for flag, some in shares.items():
        assert sum(some) / n_panels < LEVEL + margin, flag


@pytest.mark.slow
def test_an_overview_marks_the_strings_that_its_samples_detect() -> None:
    """An overview repeats the flags of the comparison and of the estimates."""
    days = collected(ONCE, STEADY, 300, seed=1)
    dated = {MONDAY + datetime.timedelta(i): counts for i, counts in enumerate(days)}
    seen = compute_overview(decodings.released(dated), days, n_latest=3, by="day")
    rows = {row["candidate"]: row["detected"] for row in seen.estimates.rows()}
    for line in seen.list_rows():
        column = seen.comparison.candidates.index(line.name)
        assert line.detected == rows[line.name]
        assert [row["detected"] for row in line.course] == seen.comparison.per_sample.detected[
            :, column
        ].tolist()
