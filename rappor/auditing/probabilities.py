"""The probabilities that a correct encoder keeps, each compared with the evidence.

All counts are binomial, exactly: the bits of a response, devices, metrics and values have coins of
their own, and two reports of a device share nothing but its permanent response.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import numpy as np

from rappor.auditing.check import (
    FALSE_ALARM_RATE,
    Case,
    Check,
    check_binomial,
    check_condition,
    check_counts,
    mark_not_seen,
)
from rappor.auditing.encoder_under_test import EncoderUnderTest, Request
from rappor.auditing.evidence import (
    BitPairCounts,
    CopyCounts,
    Evidence,
    MatchCounts,
    Occasion,
    OneCounts,
    RepeatCounts,
    Stage,
    StageCounts,
)
from rappor.base.plurals import counted
from rappor.protocol.params import Params

_MOST_RUNS: Final = 8
"""Starts of a encoder at most: each may take a process."""

_Pair = tuple[float, float]
"""Probabilities of a one at a true 0 and at a true 1."""


def probability_checks(evidence: Evidence, params: Params) -> list[Check]:
    """Return every check that needs no request beyond the evidence."""
    expected: dict[Stage, _Pair] = {
        "report": (params.p_star, params.q_star),
        "permanent": (params.f1, 1 - params.f0),
    }
    stages = [(stage, kept, expected[stage]) for stage, kept in evidence.stages.items()]
    return [
        *(check for each in stages for check in _bit_checks(*each)),
        *(
            _copies_check(f"{stage}: equal to the true bits", t.true, pair)
            for stage, t, pair in stages
        ),
        _copies_check(
            "report: equal to the permanent response",
            evidence.noiseless_reports,
            (params.p, params.q),
        ),
        *(_permanence(occasion, seen) for occasion, seen in evidence.repeats.items()),
        check_binomial(
            "two reports: one permanent response",
            (
                case
                for occasion, seen in evidence.repeats.items()
                for case in repeated(seen.matches, params, occasion)
            ),
        ),
        _unrelated_check("another metric", ((t.other_metric, pair) for _, t, pair in stages)),
        _unrelated_check("another value", ((t.other_value, pair) for _, t, pair in stages)),
        _unrelated_check("other devices", ((t.next_device, pair) for _, t, pair in stages)),
        _cohorts(evidence, params),
    ]


def restart_check(encoder: EncoderUnderTest, params: Params, request: Request) -> Check:
    """Start the encoder several times and compare its responses: its fresh coins must differ.

    Runs that begin with one report are a fault too: the first one of each may have no noise.
    """
    name = "restart: no repeated reports"
    ones = (params.p, params.q) if encoder.supports_secrets else (params.p_star, params.q_star)
    same = max(one**2 + (1 - one) ** 2 for one in ones)
    if same == 1:
        return mark_not_seen(name, "reports need no fresh coins: p = 0 and q = 1")
    n = 2 + math.ceil(
        math.log(FALSE_ALARM_RATE / 2) / (params.k * math.log(same))
    )  # all equal: rarer than an alarm
    n_runs = min(n, _MOST_RUNS)
    runs = [
        [response.report for response in encoder.restart().respond([request] * n)]
        for _ in range(n_runs)
    ]
    if any(len(set(run)) == 1 for run in runs):
        return check_condition(name, f"all {n} reports of a device are equal", is_fault=True)
    repeated = len({tuple(run) for run in runs}) < n_runs
    alike = params.k * (n_runs - 1) * math.log(same) < math.log(FALSE_ALARM_RATE)
    begin_alike = alike and len({run[0] for run in runs}) == 1
    outcome = "were repeated" if repeated else "were not repeated"
    if begin_alike:
        outcome = "begin with one report"
    detail = f"{n} reports of a device {outcome} after {counted(n_runs - 1, 'restart')}"
    return check_condition(name, detail, is_fault=repeated or begin_alike)


def _bit_checks(stage: Stage, kept: StageCounts, expected: _Pair) -> list[Check]:
    return [
        check_binomial(f"{stage}: share of ones", _ones(kept.ones, expected)),
        _pairs_check(f"{stage}: bits independent", kept.within, expected),
        kept.patterns.check(f"{stage}: patterns of bits", expected),
    ]


def _pairs_check(name: str, within: BitPairCounts, expected: _Pair) -> Check:
    """Compare every two bits, and the neighbours 0 and 1, 2 and 3, ... together.

    Neighbours together show what all pairs share a little of; they have no bit in common, so
    that their sum is binomial too.
    """
    both, n, probabilities, places = [], [], [], []
    for a, b in product((0, 1), repeat=2):
        ones, seen = within.counts((a, b))
        i, j = np.nonzero(np.triu(seen, k=1))
        both.append(ones[i, j])
        n.append(seen[i, j])
        probabilities.append(np.full(len(i), expected[a] * expected[b]))
        places.append(np.stack([i, j, np.full(len(i), a), np.full(len(i), b)], axis=1))
        if a == b and (total := np.diag(seen, 1)[::2].sum()):
            both.append(np.array([np.diag(ones, 1)[::2].sum()]))
            n.append(np.array([total]))
            probabilities.append(np.array([expected[a] ** 2]))
            places.append(np.array([[-1, -1, a, a]]))
    if not sum(map(len, n)):
        return mark_not_seen(name, "no response can be compared")
    compared = np.concatenate(places)

    def what(place: int) -> str:
        i, j, a, b = compared[place].tolist()
        which = "all neighbours" if i < 0 else f"bits {i} and {j}"
        return f"{which} both one given true {a} and {b}"

    return check_counts(
        name, np.concatenate(both), np.concatenate(n), np.concatenate(probabilities), what
    )


def _copies_check(name: str, copies: CopyCounts, ones: _Pair) -> Check:
    """Compare how often noise left a pattern as it was, by value and over all values."""
    tallies = {"": (copies.n.sum(axis=0), copies.equal.sum(axis=0))}
    if len(copies.n) > 1:
        by_value = enumerate(zip(copies.n, copies.equal, strict=True))
        tallies |= {f" to value {number + 1}": tally for number, tally in by_value}
    k = copies.n.shape[1] - 1
    return check_binomial(
        name,
        (
            Case(
                f"unchanged responses{whose} with {set_bits} bits set",
                int(equal[set_bits]),
                int(n[set_bits]),
                (1 - ones[0]) ** (k - set_bits) * ones[1] ** set_bits,
            )
            for whose, (n, equal) in tallies.items()
            for set_bits in np.flatnonzero(n).tolist()
        ),
    )


def _unrelated_check(name: str, kept: Iterable[tuple[Iterable[MatchCounts], _Pair]]) -> Check:
    cases = (case for some, pair in kept for matches in some for case in independent(matches, pair))
    return check_binomial(f"{name}: independent noise", cases)


def _ones(tally: OneCounts, expected: _Pair) -> Iterator[Case]:
    """Yield every bit by its truth, and all bits together."""
    for truth, probability in enumerate(expected):
        n, ones = tally.n[truth].tolist(), tally.ones[truth].tolist()
        for i in range(len(n)):
            yield Case(f"bit {i} given true {truth}", ones[i], n[i], probability)
        yield Case(f"all bits given true {truth}", sum(ones), sum(n), probability)


def independent(tally: MatchCounts, expected: _Pair) -> Iterator[Case]:
    """Yield pairs of bits that have nothing in common but their truth."""
    for truth, probability in enumerate(expected):
        yield _both(tally, truth, probability**2)


def repeated(tally: MatchCounts, params: Params, when: str) -> Iterator[Case]:
    """Yield pairs of one bit in two reports: they share their permanent bit."""
    for truth, one in enumerate((params.f1, 1 - params.f0)):
        case = _both(tally, truth, one * params.q**2 + (1 - one) * params.p**2)
        yield case._replace(what=f"{case.what} {when}")


def _both(tally: MatchCounts, truth: int, probability: float) -> Case:
    both, n = int(tally.both[truth]), int(tally.n[truth])
    return Case(f"both bits one given true {truth}", both, n, probability)


def _permanence(occasion: Occasion, seen: RepeatCounts) -> Check:
    name = f"permanent: same {occasion}"
    if not seen.returned:
        return mark_not_seen(name, "no permanent response was seen twice")
    detail = f"{seen.changed:,} of {seen.returned:,} permanent responses changed"
    return check_condition(name, detail, is_fault=seen.changed > 0)


def _cohorts(evidence: Evidence, params: Params) -> Check:
    """Compare cohorts with the uniform distribution, for both values of a pair."""
    name = "cohorts: uniform and fixed"
    if evidence.changed_cohorts:
        return check_condition(
            name, f"{evidence.changed_cohorts:,} devices changed their cohort", is_fault=True
        )
    sides = evidence.cohorts.sum(axis=1).tolist()
    cases = (
        Case(f"cohort {j} given value {side + 1} of a pair", int(n), sides[side], 1 / params.m)
        for (side, j), n in np.ndenumerate(evidence.cohorts)
    )
    return check_binomial(name, cases)
