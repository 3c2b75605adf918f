"""Checks that compare the counters of an audit with the probabilities of a correct encoder.

Every count is exactly binomial: the bits of a response, devices, metrics and values have
independent coins, and two reports of a device share only their permanent response.
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
from rappor.base.sentence_numbers import format_count
from rappor.protocol.params import Params

_MOST_RUNS: Final = 8
"""Largest number of restarts of an encoder. Each restart may start a process."""

_Pair = tuple[float, float]
"""Probabilities of a one, given true bit 0 and given true bit 1."""


def check_probabilities(evidence: Evidence, params: Params) -> list[Check]:
    """Return all checks that need only the evidence and no further query."""
    expected: dict[Stage, _Pair] = {
        "report": (params.p_star, params.q_star),
        "permanent": (params.f1, 1 - params.f0),
    }
    stages = [(stage, counters, expected[stage]) for stage, counters in evidence.stages.items()]
    return [
        *(check for each in stages for check in _check_bits(*each)),
        *(
            _check_copies(f"{stage}: equal to the true bits", t.true, pair)
            for stage, t, pair in stages
        ),
        _check_copies(
            "report: equal to the permanent response",
            evidence.noiseless_reports,
            (params.p, params.q),
        ),
        *(_check_permanence(occasion, observed) for occasion, observed in evidence.repeats.items()),
        check_binomial(
            "two reports: one permanent response",
            (
                case
                for occasion, observed in evidence.repeats.items()
                for case in yield_repeated_cases(observed.matches, params, occasion)
            ),
        ),
        _check_independence("another metric", ((t.other_metric, pair) for _, t, pair in stages)),
        _check_independence("another value", ((t.other_value, pair) for _, t, pair in stages)),
        _check_independence("other devices", ((t.next_device, pair) for _, t, pair in stages)),
        _check_cohorts(evidence, params),
    ]


def check_restart(encoder: EncoderUnderTest, params: Params, request: Request) -> Check:
    """Restart the encoder several times and test that its fresh coins differ from run to run.

    Two cases are faults: two runs with the same reports, and runs that all begin with the same
    report. In the second case the first report of each process may have no noise.
    """
    name = "restart: no repeated reports"
    ones = (params.p, params.q) if encoder.supports_secrets else (params.p_star, params.q_star)
    same = max(one**2 + (1 - one) ** 2 for one in ones)
    # Without fresh noise two correct reports are always equal, so a repetition is no fault.
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
    is_repeated = len({tuple(run) for run in runs}) < n_runs
    is_conclusive = params.k * (n_runs - 1) * math.log(same) < math.log(FALSE_ALARM_RATE)
    have_same_start = is_conclusive and len({run[0] for run in runs}) == 1
    outcome = "were repeated" if is_repeated else "were not repeated"
    if have_same_start:
        outcome = "begin with one report"
    detail = f"{n} reports of a device {outcome} after {format_count(n_runs - 1, 'restart')}"
    return check_condition(name, detail, is_fault=is_repeated or have_same_start)


def _check_bits(stage: Stage, counters: StageCounts, expected: _Pair) -> list[Check]:
    return [
        check_binomial(f"{stage}: share of ones", _yield_bit_cases(counters.ones, expected)),
        _check_pairs(f"{stage}: bits independent", counters.within, expected),
        counters.patterns.check(f"{stage}: patterns of bits", expected),
    ]


def _check_pairs(name: str, within: BitPairCounts, expected: _Pair) -> Check:
    """Compare all pairs of bits, and the sum over the neighbours (0, 1), (2, 3), ...

    A small dependence that all neighbours share is too weak to show in one pair. The sum finds it.
    The pairs of the sum have no bit in common, so the sum is binomial too.
    """
    both, n, probabilities, pairs = [], [], [], []
    for a, b in product((0, 1), repeat=2):
        ones, observed = within.counts((a, b))
        i, j = np.nonzero(np.triu(observed, k=1))
        both.append(ones[i, j])
        n.append(observed[i, j])
        probabilities.append(np.full(len(i), expected[a] * expected[b]))
        pairs.append(np.stack([i, j, np.full(len(i), a), np.full(len(i), b)], axis=1))
        if a == b and (total := np.diag(observed, 1)[::2].sum()):
            both.append(np.array([np.diag(ones, 1)[::2].sum()]))
            n.append(np.array([total]))
            probabilities.append(np.array([expected[a] ** 2]))
            pairs.append(np.array([[-1, -1, a, a]]))
    if not sum(map(len, n)):
        return mark_not_seen(name, "no response can be compared")
    compared = np.concatenate(pairs)

    def what(index: int) -> str:
        i, j, a, b = compared[index].tolist()
        which = "all neighbours" if i < 0 else f"bits {i} and {j}"
        return f"{which} both one given true {a} and {b}"

    return check_counts(
        name, np.concatenate(both), np.concatenate(n), np.concatenate(probabilities), what
    )


def _check_copies(name: str, copies: CopyCounts, ones: _Pair) -> Check:
    """Compare the number of responses that equal their input, by value and over all values.

    A copy of an input with s ones in k bits has probability (1 - p*)^(k - s) q*^s.
    """
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


def _check_independence(
    name: str, counters: Iterable[tuple[Iterable[MatchCounts], _Pair]]
) -> Check:
    cases = (
        case
        for matches_of_stage, pair in counters
        for matches in matches_of_stage
        for case in yield_independent_cases(matches, pair)
    )
    return check_binomial(f"{name}: independent noise", cases)


def _yield_bit_cases(tally: OneCounts, expected: _Pair) -> Iterator[Case]:
    """Yield the count of ones of each bit and of all bits, by true bit."""
    for truth, probability in enumerate(expected):
        n, ones = tally.n[truth].tolist(), tally.ones[truth].tolist()
        for i in range(len(n)):
            yield Case(f"bit {i} given true {truth}", ones[i], n[i], probability)
        yield Case(f"all bits given true {truth}", sum(ones), sum(n), probability)


def yield_independent_cases(tally: MatchCounts, expected: _Pair) -> Iterator[Case]:
    """Yield cases for pairs of independent bits with equal true bits: P(both one) = P(one)^2."""
    for truth, probability in enumerate(expected):
        yield _create_case(tally, truth, probability**2)


def yield_repeated_cases(tally: MatchCounts, params: Params, when: str) -> Iterator[Case]:
    """Yield cases for one bit in two reports, which share their permanent bit.

    With a = P(permanent bit is 1), P(both one) = a q^2 + (1 - a) p^2.
    """
    for truth, one in enumerate((params.f1, 1 - params.f0)):
        case = _create_case(tally, truth, one * params.q**2 + (1 - one) * params.p**2)
        yield case._replace(what=f"{case.what} {when}")


def _create_case(tally: MatchCounts, truth: int, probability: float) -> Case:
    both, n = int(tally.both[truth]), int(tally.n[truth])
    return Case(f"both bits one given true {truth}", both, n, probability)


def _check_permanence(occasion: Occasion, observed: RepeatCounts) -> Check:
    name = f"permanent: same {occasion}"
    if not observed.returned:
        return mark_not_seen(name, "no permanent response was seen twice")
    detail = f"{observed.changed:,} of {observed.returned:,} permanent responses changed"
    return check_condition(name, detail, is_fault=observed.changed > 0)


def _check_cohorts(evidence: Evidence, params: Params) -> Check:
    """Compare the cohorts with the uniform distribution, for both values of the pairs."""
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
