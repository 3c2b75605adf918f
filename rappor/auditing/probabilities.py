"""The probabilities that a correct encoder keeps, each compared with the evidence.

All counts are binomial, exactly: the bits of a response, devices, metrics and values have coins of
their own, and two reports of a device share nothing but its permanent response.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rappor.auditing.check import ALARM, Case, Check, binomial_check
from rappor.auditing.evidence import Evidence, Matches, Ones, Stage, Unrelated
from rappor.auditing.subject import Request, Subject
from rappor.protocol.params import Params

_Pair = tuple[float, float]
"""Probabilities of a one at a true 0 and at a true 1."""


def probability_checks(evidence: Evidence, params: Params) -> list[Check]:
    """Return every check that needs no request beyond the evidence."""
    a = params.f / 2
    reports, permanents = (params.p_star, params.q_star), (a, 1 - a)
    ones: dict[Stage, _Pair] = {"report": reports, "permanent": permanents}
    return [
        *_bit_checks("report", evidence.reports, evidence.within_reports, reports),
        *_bit_checks("permanent", evidence.permanents, evidence.within_permanents, permanents),
        _permanence(evidence),
        binomial_check("two reports: one permanent response", _again(evidence, params)),
        _unrelated_check("another metric: independent noise", evidence.other_metric, ones),
        _unrelated_check("another value: independent noise", evidence.other_value, ones),
        _cohorts(evidence, params),
    ]


def restart_check(subject: Subject, params: Params, request: Request) -> Check:
    """Start the subject twice and compare its responses: its fresh coins must differ."""
    name = "restart: no repeated reports"
    n = _requests_needed(params, remembers=subject.remembers)
    if n is None:
        detail = "reports take no fresh coins: p = 0 and q = 1"
        return Check(name=name, verdict="not seen", detail=detail)
    first, second = (
        [response.report for response in subject.restart().respond([request] * n)] for _ in range(2)
    )
    if len(set(first)) == 1:
        return Check(name=name, verdict="fault", detail=f"all {n} reports of a device are equal")
    repeated = first == second
    outcome = "were repeated" if repeated else "were not repeated"
    return Check(
        name=name,
        verdict="fault" if repeated else "pass",
        detail=f"{n} reports of a device {outcome} after a restart",
    )


def _requests_needed(params: Params, *, remembers: bool) -> int | None:
    """Return how many reports repeat with probability below ALARM; None if all may repeat."""
    ones = (params.p, params.q) if remembers else (params.p_star, params.q_star)
    same = max(one**2 + (1 - one) ** 2 for one in ones)
    if same == 1:
        return None
    return 2 + math.ceil(math.log(ALARM / 2) / (params.k * math.log(same)))


def _bit_checks(stage: Stage, ones: Ones, within: Matches, expected: _Pair) -> list[Check]:
    return [
        binomial_check(f"{stage}: share of ones", _ones(ones, expected)),
        binomial_check(f"{stage}: neighbours independent", _independent(within, expected)),
    ]


def _unrelated_check(name: str, kept: dict[Stage, Unrelated], ones: dict[Stage, _Pair]) -> Check:
    cases = [
        case
        for stage, unrelated in kept.items()
        for matches in unrelated
        for case in _independent(matches, ones[stage])
    ]
    return binomial_check(name, cases)


def _ones(tally: Ones, expected: _Pair) -> Iterator[Case]:
    """Yield every bit by its truth, and all bits together."""
    for truth, probability in enumerate(expected):
        n, ones = tally.n[truth].tolist(), tally.ones[truth].tolist()
        for i in range(len(n)):
            yield Case(f"bit {i} given true {truth}", ones[i], n[i], probability)
        yield Case(f"all bits given true {truth}", sum(ones), sum(n), probability)


def _independent(tally: Matches, expected: _Pair) -> Iterator[Case]:
    """Yield pairs of bits that have nothing in common but their truth."""
    for truth, probability in enumerate(expected):
        yield _both(tally, truth, probability**2)


def _again(evidence: Evidence, params: Params) -> Iterator[Case]:
    """Yield pairs of one bit in two reports: they share their permanent bit."""
    for truth, one in enumerate((params.f / 2, 1 - params.f / 2)):
        yield _both(evidence.again, truth, one * params.q**2 + (1 - one) * params.p**2)


def _both(tally: Matches, truth: int, probability: float) -> Case:
    both, n = int(tally.both[truth]), int(tally.n[truth])
    return Case(f"both bits one given true {truth}", both, n, probability)


def _permanence(evidence: Evidence) -> Check:
    name = "permanent: same when asked again"
    if not evidence.returned:
        detail = "no permanent response was seen twice"
        return Check(name=name, verdict="not seen", detail=detail)
    detail = f"{evidence.redrawn:,} of {evidence.returned:,} permanent responses changed"
    return Check(name=name, verdict="fault" if evidence.redrawn else "pass", detail=detail)


def _cohorts(evidence: Evidence, params: Params) -> Check:
    """Compare cohorts with the uniform distribution, for both values of a pair."""
    name = "cohorts: uniform and fixed"
    if evidence.moved:
        detail = f"{evidence.moved:,} devices changed their cohort"
        return Check(name=name, verdict="fault", detail=detail)
    sides = evidence.cohorts.sum(axis=1).tolist()
    return binomial_check(
        name,
        (
            Case(
                f"cohort {j} given value {side + 1} of a pair",
                int(evidence.cohorts[side, j]),
                sides[side],
                1 / params.m,
            )
            for side in (0, 1)
            for j in range(params.m)
        ),
    )
