"""The laws that a correct encoder keeps, each held against the evidence.

All counts are binomial, exactly: bits of a showing, devices, metrics and values have coins of their
own, and two reports of a device share nothing but its permanent response.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rappor.auditing.check import ALARM, Check, law_check
from rappor.auditing.interview import Evidence, Matches, Ones
from rappor.auditing.subject import Ask, Subject
from rappor.protocol.params import Params

_Cases = Iterator[tuple[str, int, int, float]]


def law_checks(evidence: Evidence, params: Params) -> list[Check]:
    """Return every check that needs no question beyond the evidence."""
    a = params.f / 2
    stages = (
        ("report", evidence.reports, evidence.within_reports, (params.p_star, params.q_star)),
        ("permanent", evidence.permanents, evidence.within_permanents, (a, 1 - a)),
    )
    checks = []
    for stage, ones, within, chances in stages:
        checks.append(law_check(f"{stage}: share of ones", _ones(ones, chances)))
        checks.append(law_check(f"{stage}: bits independent", _apart(within, chances)))
    checks += [_permanence(evidence), law_check("two reports share it", _again(evidence, params))]
    for what in ("metric", "value"):
        cases = [
            case
            for stage, *_, chances in stages
            for matches in evidence.other.get((what, stage), ())
            for case in _apart(matches, chances)
        ]
        checks.append(law_check(f"another {what}, other noise", cases))
    return [*checks, _cohorts(evidence, params)]


def restart_check(subject: Subject, params: Params, ask: Ask) -> Check:
    """Start the subject twice and ask both the same: their fresh coins must differ."""
    name = "no repetition after a restart"
    n = _asks_needed(params, remembers=subject.remembers)
    if n is None:
        return Check(name=name, verdict="not seen", detail="reports take no fresh coins: p=0, q=1")
    first, second = (
        [shown.report for shown in subject.restart().show([ask] * n)] for _ in range(2)
    )
    within = len(set(first)) == 1
    repeated = first == second or within
    told = f"{n} reports of one device"
    detail = f"{told} differ from those before" if not repeated else f"{told} came again"
    return Check(name=name, verdict="fault" if repeated else "pass", detail=detail)


def _asks_needed(params: Params, *, remembers: bool) -> int | None:
    """Return how many reports repeat with a chance below ALARM; None if they always may."""
    chances = (params.p, params.q) if remembers else (params.p_star, params.q_star)
    same = max(chance**2 + (1 - chance) ** 2 for chance in chances)
    if same == 1:
        return None
    return 2 + math.ceil(math.log(ALARM / 2) / (params.k * math.log(same)))


def _ones(tally: Ones, chances: tuple[float, float]) -> _Cases:
    """Yield every bit by its truth, and all bits together."""
    for truth, chance in enumerate(chances):
        seen, ones = tally.seen[truth].tolist(), tally.ones[truth].tolist()
        for i, (n, count) in enumerate(zip(seen, ones, strict=True)):
            yield f"bit {i}, true {truth}", count, n, chance
        yield f"all bits, true {truth}", sum(ones), sum(seen), chance


def _apart(tally: Matches, chances: tuple[float, float]) -> _Cases:
    """Yield pairs of bits that have nothing in common but their truth."""
    for truth, chance in enumerate(chances):
        both, seen = int(tally.both[truth]), int(tally.seen[truth])
        yield f"both ones, true {truth}", both, seen, chance**2


def _again(evidence: Evidence, params: Params) -> _Cases:
    """Yield pairs of one bit in two reports: they share their permanent bit."""
    for truth, one in enumerate((params.f / 2, 1 - params.f / 2)):
        both, seen = int(evidence.again.both[truth]), int(evidence.again.seen[truth])
        chance = one * params.q**2 + (1 - one) * params.p**2
        yield f"both ones, true {truth}", both, seen, chance


def _permanence(evidence: Evidence) -> Check:
    name = "permanent: the same again"
    if not evidence.returned:
        return Check(
            name=name, verdict="not seen", detail="permanent responses are not shown twice"
        )
    detail = f"{evidence.redrawn:,} of {evidence.returned:,} had changed"
    return Check(name=name, verdict="fault" if evidence.redrawn else "pass", detail=detail)


def _cohorts(evidence: Evidence, params: Params) -> Check:
    """Hold cohorts against their uniform law, the same for both values of a pair."""
    name = "cohorts even, fixed, not by value"
    if evidence.moved:
        detail = f"{evidence.moved:,} devices changed their cohort"
        return Check(name=name, verdict="fault", detail=detail)
    sides = evidence.cohorts.sum(axis=1).tolist()
    return law_check(
        name,
        (
            (f"cohort {j}, side {side}", int(evidence.cohorts[side, j]), sides[side], 1 / params.m)
            for side in (0, 1)
            for j in range(params.m)
        ),
    )
