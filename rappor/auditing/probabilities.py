"""Checks of a black-box audit that compare counters with the probabilities of a correct encoder.

The input is the counters of `rappor.auditing.evidence` and the parameters that the encoder claims
to have. The output is one `Check` for each question.

Symbols, for one bit of a device: the permanent response is 1 with probability f1 if the true bit is
0, and with probability 1 - f0 if the true bit is 1. A report shows 1 with probability p if the
permanent bit is 0, and with probability q if the permanent bit is 1. Together a report shows 1 with
probability p* for a true 0 and q* for a true 1.

    check                                 count                        probability if correct
    share of ones                         ones of a bit                p*, q*; permanent f1, 1 - f0
    bits independent                      bits i and j both 1          product of both
    patterns of bits                      a pattern of 3 to 10 bits    product over the bits
    equal to the true bits                copies of the true bits      (1 - p*)^zeros q*^ones
    equal to the permanent response       copies of the response       (1 - p)^zeros q^ones
    permanent: same ...                   changed responses            0
    two reports: one permanent response   a bit 1 in both reports      a q^2 + (1 - a) p^2
    another metric, value, other devices  a bit 1 in both responses    p*^2, q*^2
    cohorts: uniform and fixed            devices in a cohort          1 / m
    restart: no repeated reports          equal runs of reports        below the false-alarm rate

a is the probability of a permanent 1: f1 or 1 - f0. m is the number of cohorts.

Every count is exactly binomial: the bits of a response, devices, metrics and values have
independent coins, and two reports of a device share only their permanent response.

False alarms: each check errs with probability at most `FALSE_ALARM_RATE` for all its counts
together. A count of n misses a deviation of its probability below about 7 standard errors,
7 sqrt(probability (1 - probability) / n).
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
"""Largest number of runs of an encoder in the check of restarts.

The limit bounds the time: each run may start a process. With few bits, more runs would make equal
first reports surer evidence.
"""

_Pair = tuple[float, float]
"""Probability of a 1 for a true bit 0, and probability of a 1 for a true bit 1. For a bit of a
report, the pair is (p*, q*). A check compares the measured numbers of ones with the pair."""


def check_probabilities(evidence: Evidence, params: Params) -> list[Check]:
    """Return all checks that need only the evidence and no further query."""
    expected: dict[Stage, _Pair] = {
        "report": (params.p_star, params.q_star),
        "permanent": (params.f1, 1 - params.f0),
    }
    stages = [(stage, counters, expected[stage]) for stage, counters in evidence.stages.items()]
    return [
        *(
            check
            for stage, counters, pair in stages
            for check in _check_bits(stage, counters, pair)
        ),
        *(
            _check_copies(f"{stage}: equal to the true bits", counters.copies_of_true_bits, pair)
            for stage, counters, pair in stages
        ),
        _check_copies(
            "report: equal to the permanent response",
            evidence.copied_permanents,
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
        _check_independence(
            "another metric", ((counters.other_metric, pair) for _, counters, pair in stages)
        ),
        _check_independence(
            "another value", ((counters.other_value, pair) for _, counters, pair in stages)
        ),
        _check_independence(
            "other devices", ((counters.next_device, pair) for _, counters, pair in stages)
        ),
        _check_cohorts(evidence, params),
    ]


def check_restart(encoder: EncoderUnderTest, params: Params, request: Request) -> Check:
    """Restart the encoder several times and test that its fresh coins differ from run to run.

    Each run asks one device n times for the same value. Three cases are faults:

    - all reports of one run are equal: the encoder adds no fresh noise;
    - two runs have the same reports: the generator starts from the same seed;
    - all runs begin with the same report, although later reports differ: the first report of each
      process has no fresh noise.

    Two correct reports of a device are equal with probability at most s^k, where s = max over x in
    {p, q} of x^2 + (1 - x)^2 is the probability that two fresh coins decide a bit alike. n is
    chosen so that n equal reports are rarer than half the false-alarm rate. A generator that
    repeats only after more than `_MOST_RUNS` runs is missed.
    """
    name = "restart: no repeated reports"
    # Without secrets each request reaches a new device, whose permanent bits are new too.
    p_of_ones = (params.p, params.q) if encoder.supports_secrets else (params.p_star, params.q_star)
    p_same_bit = max(p_one**2 + (1 - p_one) ** 2 for p_one in p_of_ones)
    # With p = 0 a permanent 0 is always sent as 0, and with q = 1 a permanent 1 as 1. If all
    # permanent bits are such bits, two correct reports are always equal: a repetition is no fault.
    if p_same_bit == 1:
        return mark_not_seen(name, "equal reports are no fault with p = 0 or q = 1")
    log_p_same_report = params.k * math.log(p_same_bit)
    n = 2 + math.ceil(math.log(FALSE_ALARM_RATE / 2) / log_p_same_report)
    n_runs = min(n, _MOST_RUNS)
    runs = [
        [response.report for response in encoder.restart().respond([request] * n)]
        for _ in range(n_runs)
    ]
    if any(len(set(run)) == 1 for run in runs):
        return check_condition(name, f"all {n} reports of a device are equal", is_fault=True)
    is_repeated = len({tuple(run) for run in runs}) < n_runs
    # With few bits, the first reports of a correct encoder can be equal in all runs by chance. Then
    # equal first reports are no fault.
    is_conclusive = (n_runs - 1) * log_p_same_report < math.log(FALSE_ALARM_RATE)
    have_same_start = is_conclusive and len({run[0] for run in runs}) == 1
    outcome = "were repeated" if is_repeated else "were not repeated"
    if have_same_start:
        outcome = "begin with one report"
    detail = f"{n} reports of a device {outcome} after {format_count(n_runs - 1, 'restart')}"
    return check_condition(name, detail, is_fault=is_repeated or have_same_start)


def _check_bits(stage: Stage, counters: StageCounts, expected: _Pair) -> list[Check]:
    """Return the checks of single responses: each bit, pairs of bits, and larger sets of bits."""
    return [
        check_binomial(f"{stage}: share of ones", _yield_bit_cases(counters.ones, expected)),
        _check_pairs(f"{stage}: bits independent", counters.bit_pairs, expected),
        counters.patterns.check(f"{stage}: patterns of bits", expected),
    ]


def _check_pairs(name: str, bit_pairs: BitPairCounts, expected: _Pair) -> Check:
    """Compare all pairs of bits, and the sum over the neighbours (0, 1), (2, 3), ...

    A small dependence that all neighbours share is too weak to show in one pair. The sum finds it.
    The pairs of the sum have no bit in common, so the sum is binomial too.
    """
    both, n, probabilities, pairs = [], [], [], []
    for first_bit, second_bit in product((0, 1), repeat=2):
        # (k, k) arrays: responses with both bits 1, and all responses with these true bits.
        both_ones, n_observed = bit_pairs.count_pairs((first_bit, second_bit))
        # Only pairs i < j: the pair (j, i) is the same count with the true bits exchanged.
        i, j = np.nonzero(np.triu(n_observed, k=1))
        both.append(both_ones[i, j])
        n.append(n_observed[i, j])
        probabilities.append(np.full(len(i), expected[first_bit] * expected[second_bit]))
        true_bits = np.full(len(i), first_bit), np.full(len(i), second_bit)
        pairs.append(np.stack([i, j, *true_bits], axis=1))
        n_neighbours = np.diag(n_observed, 1)[::2].sum()
        if first_bit == second_bit and n_neighbours:
            both.append(np.array([np.diag(both_ones, 1)[::2].sum()]))
            n.append(np.array([n_neighbours]))
            probabilities.append(np.array([expected[first_bit] ** 2]))
            # -1 in place of an index marks the sum over all neighbours.
            pairs.append(np.array([[-1, -1, first_bit, second_bit]]))
    if not sum(map(len, n)):
        return mark_not_seen(name, "no response can be compared")
    compared = np.concatenate(pairs)

    def describe_pair(index: int) -> str:
        i, j, first_bit, second_bit = compared[index].tolist()
        bits = "all neighbours" if i < 0 else f"bits {i} and {j}"
        return f"{bits} both one given true {first_bit} and {second_bit}"

    return check_counts(
        name, np.concatenate(both), np.concatenate(n), np.concatenate(probabilities), describe_pair
    )


def _check_copies(name: str, copies: CopyCounts, p_of_ones: _Pair) -> Check:
    """Compare the number of responses that equal their input, by value and over all values.

    An input with s ones in k bits has a copy with probability (1 - p_0)^(k - s) p_1^s, where
    `p_of_ones` = (p_0, p_1) are the probabilities of a 1 for an input bit 0 and 1. With many bits a
    single copy in thousands of responses is a fault.
    """
    # From the description of a group of devices to the numbers of responses and of copies, each
    # (k + 1,) by the number of ones in the input.
    counts_of_group = {"": (copies.n.sum(axis=0), copies.equal.sum(axis=0))}
    if len(copies.n) > 1:
        by_value = enumerate(zip(copies.n, copies.equal, strict=True))
        counts_of_group |= {f" to value {number + 1}": counts for number, counts in by_value}
    k = copies.n.shape[1] - 1
    return check_binomial(
        name,
        (
            Case(
                f"unchanged responses{group} with {n_ones} bits set",
                int(n_equal[n_ones]),
                int(n[n_ones]),
                (1 - p_of_ones[0]) ** (k - n_ones) * p_of_ones[1] ** n_ones,
            )
            for group, (n, n_equal) in counts_of_group.items()
            for n_ones in np.flatnonzero(n).tolist()
        ),
    )


def _check_independence(
    name: str, counters: Iterable[tuple[Iterable[MatchCounts], _Pair]]
) -> Check:
    """Compare pairs of bits that must have independent coins, in reports and permanent responses.

    `counters` has, for each stage, its counts and the probabilities of a one.
    """
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

    With a = P(permanent bit is 1), P(both one) = a q^2 + (1 - a) p^2. A device that redraws its
    permanent response has fewer such bits, and a device that repeats its fresh coins has more.
    `when` is the occasion of the second report, for the message.
    """
    for truth, p_permanent_1 in enumerate((params.f1, 1 - params.f0)):
        case = _create_case(
            tally, truth, p_permanent_1 * params.q**2 + (1 - p_permanent_1) * params.p**2
        )
        yield case._replace(description=f"{case.description} {when}")


def _create_case(tally: MatchCounts, truth: int, probability: float) -> Case:
    """Create the case of pairs of bits whose true bits are both `truth`."""
    both, n = int(tally.both[truth]), int(tally.n[truth])
    return Case(f"both bits one given true {truth}", both, n, probability)


def _check_permanence(occasion: Occasion, observed: RepeatCounts) -> Check:
    """Check that no permanent response of a device changed: a correct encoder never changes one."""
    name = f"permanent: same {occasion}"
    if not observed.returned:
        return mark_not_seen(name, "no permanent response was seen twice")
    detail = f"{observed.changed:,} of {observed.returned:,} permanent responses changed"
    return check_condition(name, detail, is_fault=observed.changed > 0)


def _check_cohorts(evidence: Evidence, params: Params) -> Check:
    """Compare the cohorts with the uniform distribution, for both values of the pairs.

    A cohort that depends on the value would reveal the value without noise. So the devices with the
    first value of a pair (side 0) and with the second value (side 1) are counted separately.
    """
    name = "cohorts: uniform and fixed"
    if evidence.changed_cohorts:
        return check_condition(
            name, f"{evidence.changed_cohorts:,} devices changed their cohort", is_fault=True
        )
    devices_by_side = evidence.cohorts.sum(axis=1).tolist()
    cases = (
        Case(
            f"cohort {j} given value {side + 1} of a pair",
            int(n),
            devices_by_side[side],
            1 / params.m,
        )
        for (side, j), n in np.ndenumerate(evidence.cohorts)
    )
    return check_binomial(name, cases)
