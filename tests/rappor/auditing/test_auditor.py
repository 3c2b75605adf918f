"""The black-box audit: correct encoders pass, planted faults are found, and the record is complete.

The audit sends values to many simulated devices and tests the reports. It knows no secrets and no
coins. A check of a correct encoder finds a fault with probability at most 1e-9, and the bounds of
the losses are computed at the same level here. A planted fault is missed with about the same
probability, for which the comment at each fault has the computation.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice
from typing import NamedTuple

import numpy as np
import pytest
from audits import ENCODINGS, SMALL, checks_of, faults_of, metric, run_audit
from planted_faults import (
    FORCED,
    Instantaneous,
    Permanent,
    bits_0_and_5_share_a_coin,
    cohort_by_length,
    f_too_large,
    keyed_by_spelling,
    last_bit_skipped,
    leak_in_last_bit,
    never_cleared,
    noiseless_canary,
    noiseless_empty_text,
    noiseless_first_report,
    noiseless_in_some_reports,
    noiseless_long_text,
    noiseless_on_some_devices,
    not_keyed_by_metric,
    one_coin_for_all,
    p_for_q,
    redrawn,
    redrawn_after_50_reports,
    redrawn_by_process,
    secrets_of_twelve_bits,
    shared_by_two_devices,
    shared_coins,
    start,
    third_coin_from_two_others,
    twister,
    twister_for_system,
    with_wrong_thresholds,
    without_fresh_noise_on_some_devices,
    xorshift_for_system,
)

from rappor import Metric, ParamsError, ReportError, epsilon_1
from rappor.auditing import (
    Function,
    Sampler,
    audit,
    create_reference_encoder,
    create_reference_function,
)
from rappor.auditing.check import FALSE_ALARM_RATE
from rappor.auditing.exact import draw_random_params
from rappor.auditing.pairs import choose_pairs, unpack
from rappor.auditing.randomness import check_report_coins
from rappor.auditing.reference_encoder import Respond
from rappor.protocol.parts import Part
from rappor.protocol.randomizer import draw_instantaneous_response, draw_system_coins


@pytest.mark.slow
@pytest.mark.parametrize(
    "audited", [*ENCODINGS.values(), metric(k=8, m=64)], ids=[*ENCODINGS, "colliding"]
)
def test_shipped_encoder_passes(audited: Metric) -> None:
    """Every encoding passes with bounds above 0 and at most the claim.

    The audit compares pairs of values. With the parameters "colliding", 64 cohorts of eight bits,
    some pairs have equal bits. A device then has the same permanent response to both values.
    """
    result = run_audit(create_reference_encoder(audited), audited, trials=5000)
    assert result.passed, faults_of(result)
    checks = checks_of(result)
    for name in ("epsilon_1", "epsilon_2", "epsilon_inf"):
        bound, claim = checks[name].bound, checks[name].claim
        assert bound is not None
        assert claim is not None
        assert 0 < bound <= claim, name
    seen = [check.verdict for check in result.checks]
    # With few bits a correct device is often without noise by chance, so more checks are not seen.
    k = audited.params.k
    assert seen.count("not seen") <= (3 if k > 3 else 5 if k > 1 else 10)


@pytest.mark.slow
def test_a_lower_claim_is_refuted() -> None:
    """With less noise than the metric claims, the bounds of all three losses exceed the claims."""
    audited = metric(k=8, f=0.6, p=0.35, q=0.7)
    noisy = metric(k=8, f=0.5, p=0.25, q=0.75)
    result = run_audit(Function(lambda: create_reference_function(noisy)), audited, trials=20_000)
    assert {"epsilon_1", "epsilon_2", "epsilon_inf"} <= faults_of(result)


# --- planted faults -----------------------------------------------------------------------------


class Planted(NamedTuple):
    """A fault, the name of the check that must fail, and an audit large enough to show the fault.

    `trials` is the number of devices in the audit, and `n_reports` the reports of each device.
    """

    make: Callable[[Metric], Respond]
    failed_check: str
    audited: Metric = SMALL
    trials: int = 1000
    n_reports: int = 2
    is_slow: bool = False


def permanent(fault: Permanent, *, seen: bool = True) -> Callable[[Metric], Respond]:
    """Plant a fault in the permanent response."""
    return partial(start, permanently=fault, permanent_seen=seen)


def fresh(fault: Instantaneous) -> Callable[[Metric], Respond]:
    """Plant a fault in the reports."""
    return partial(start, instantly=fault)


IN_PARTS = dataclasses.replace(metric(k=8), parts=(Part("prefix:3", 0.2), Part("whole")))
FEW_BITS, MANY_BITS, HALF, G = metric(k=8), metric(k=128), metric(q=0.5), metric(g=0.1)
BALANCED = metric(k=128, f=0.238406, p=0.059601, q=0.559601)
ONES, TRUE = "permanent: share of ones", "permanent: equal to the true bits"
FRESH, DEVICES = "report: equal to the permanent response", "other devices: independent noise"
PAIRS, AGAIN = "permanent: bits independent", "two reports: one permanent response"
METRIC, BARE = "another metric: independent noise", "permanent: no device without noise"

# Each comment says why the fault is found: the share or count with the fault, the correct share,
# and their distance in standard deviations. A check finds about 6 to 7 standard deviations.
FAULTS = {
    # A true 1 gives a permanent 1 on .75 of the devices. 1,000 of 1,000 has probability .75^1000.
    "a set bit is never cleared": Planted(permanent(never_cleared), ONES),
    # A true 0 gives a permanent 1 on .25 of the devices. None of 968 has probability .75^968.
    "the last bit is skipped": Planted(permanent(last_bit_skipped), ONES),
    # A true 1 is reported as 1 with p = .25 instead of q* = .625: 24 standard deviations in 1,000.
    "p is used for q": Planted(fresh(p_for_q), "report: share of ones"),
    # .95 or .75 instead of .55 of 1,000 devices keep a true 1: 12 standard deviations.
    **{
        fault: Planted(permanent(with_wrong_thresholds(fault)), ONES, G)
        for fault in list(FORCED)[1:]
    },
    # f/2 changes by 1/256, 13 standard deviations over 16,000 devices of 128 bits. 6.3 are found.
    "f is off by 1/128": Planted(permanent(f_too_large), ONES, MANY_BITS, 16_000, 1),
    # A new response of 32 bits equals the first with probability below (5/8)^32 on each device.
    "redrawn": Planted(permanent(redrawn), "permanent: same when asked again"),
    # The bits of two reports agree too seldom, by 30 standard deviations or more.
    "redrawn, in reports alone": Planted(permanent(redrawn, seen=False), AGAIN, trials=4000),
    # Both metrics have one response: two permanent bits of a true 0 are both 1 in .25 of 30,000,
    # instead of .0625.
    "not keyed by metric": Planted(permanent(not_keyed_by_metric), METRIC),
    "not keyed by metric, in reports alone": Planted(
        permanent(not_keyed_by_metric, seen=False), METRIC, trials=4000
    ),
    # Each metric has its own cohort. Devices with equal true bits in both cohorts show the fault.
    "not keyed by metric, in cohorts": Planted(
        permanent(not_keyed_by_metric), METRIC, metric(k=32, m=8), 2000
    ),
    # 1,000 devices receive values of two lengths, and 7 of 8 change their cohort.
    "a cohort for each length of the value": Planted(
        cohort_by_length, "cohorts: uniform and fixed", metric(k=32, m=8)
    ),
    "one coin decides on all bits": Planted(permanent(one_coin_for_all), PAIRS),
    # Two bits of true 0 are both 1 on .25 of 1,000 devices, not on .0625: 24 standard deviations.
    "bits 1 and 2, 3 and 4, ... share their permanent coins": Planted(
        permanent(shared_coins), PAIRS
    ),
    # The same in reports: .28 instead of .14 of 900 devices, 12 standard deviations. 7.2 are found.
    "bits 0 and 5 share their fresh coin": Planted(
        fresh(bits_0_and_5_share_a_coin), "report: bits independent"
    ),
    # Half of the 64 patterns of three bits never occur. Each has probability 1/64 or more, so its
    # absence in 3,000 responses has probability e^-47.
    "three permanent coins have one parity": Planted(
        permanent(third_coin_from_two_others), "permanent: patterns of bits", FEW_BITS, 6000
    ),
    # 50 of 1,000 responses equal their true bits, and 30 of 3,000. A correct one does with 1e-4.
    "one device of 20 without permanent noise": Planted(
        permanent(noiseless_on_some_devices(0.05)), TRUE
    ),
    "one device of 100": Planted(
        permanent(noiseless_on_some_devices(0.01)), TRUE, trials=3000, n_reports=1
    ),
    # 100 of 100,000 devices respond with all 128 true bits. Fewer than one is expected.
    "one device of 1,000": Planted(
        permanent(noiseless_on_some_devices(0.001)), TRUE, BALANCED, 100_000, is_slow=True
    ),
    # 500 devices respond to 8 values of 8 bits: 31 have no noise, 2 are a fault, 5e-6 are expected.
    "one device of 16, few bits": Planted(
        permanent(noiseless_on_some_devices(1 / 16)), BARE, FEW_BITS
    ),
    # About 42 of 12,500 devices of 8 bits have no permanent noise. 3 are a fault.
    "one device of 300, few bits": Planted(
        permanent(noiseless_on_some_devices(1 / 300)), BARE, FEW_BITS, 100_000, is_slow=True
    ),
    "one device of 16 without fresh noise, few bits": Planted(
        partial(without_fresh_noise_on_some_devices, 1 / 16),
        "report: no device without fresh noise",
        FEW_BITS,
    ),
    "one report of 20 without fresh noise": Planted(fresh(noiseless_in_some_reports(0.05)), FRESH),
    "one report of 1,000": Planted(
        fresh(noiseless_in_some_reports(0.001)), FRESH, BALANCED, 100_000, is_slow=True
    ),
    # One of 32 values on 375 devices: two noiseless reports are a fault, fewer have chance 1e-4.
    "the empty text has no noise": Planted(noiseless_empty_text, TRUE, trials=6000),
    "a text of 257 bytes has no noise": Planted(noiseless_long_text, TRUE, trials=6000),
    # The first report has the same 32 bits after each of three restarts.
    "the first report of a process has no noise": Planted(
        noiseless_first_report, "restart: no repeated reports"
    ),
    # The permanent responses of 32 bits change on all 31 long-running devices.
    "each process redraws": Planted(redrawn_by_process, "permanent: same after a restart"),
    # 62 devices of 127 true zeros: a bit is 1 in both reports in .141 instead of .188, which is 10
    # standard deviations.
    "each process redraws, in reports alone": Planted(
        partial(redrawn_by_process, permanent_seen=False), AGAIN, MANY_BITS, 2000, 1
    ),
    "redrawn after 50 reports": Planted(
        redrawn_after_50_reports, "permanent: same after 64 reports"
    ),
    # 31 devices have equal responses of 32 bits to both spellings with probability below 1e-100.
    **{
        f"coins depend on the spelling before {normalizer}": Planted(
            keyed_by_spelling, "permanent: same in another spelling", metric(normalize=normalizer)
        )
        for normalizer in ("nfc", "casefold", "strip", "host")
    },
    # 500 devices with 4,096 possible secrets give 30 pairs with one secret. 3 or more are found.
    "a secret has 12 bits": Planted(secrets_of_twelve_bits, "secrets: devices differ"),
    # .28 instead of .14 of 15,000 bits that are true 0 on both devices: far more than 9 standard
    # deviations.
    "two devices in a row share their fresh coins": Planted(shared_by_two_devices, DEVICES),
    # 3,000 pairs of devices share 31 coins each.
    "devices three places apart share their fresh coins": Planted(
        partial(shared_by_two_devices, apart=3), DEVICES, trials=6000
    ),
    # The coins are the same after each start.
    "a constant seed": Planted(twister_for_system, "restart: no repeated reports"),
    # With q = 1/2 a report shows top bits of coins. 500 reports show a register of 32 bits.
    "a shift register": Planted(xorshift_for_system, "own coins: no shift register", HALF),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=pytest.mark.acceptance if fault.is_slow else ())
        for name, fault in FAULTS.items()
    ],
)
def test_planted_fault_is_found(fault: str) -> None:
    """The check for the property that the fault violates finds the fault."""
    planted = FAULTS[fault]
    audited, trials, n_reports = planted.audited, planted.trials, planted.n_reports
    result = run_audit(Function(lambda: planted.make(audited)), audited, trials, n_reports)
    assert planted.failed_check in faults_of(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audited", "permanent_seen"),
    [(SMALL, True), (SMALL, False), (G, True), (metric(normalize="casefold"), True)],
)
def test_the_encoder_without_a_planted_fault_passes(audited: Metric, permanent_seen: bool) -> None:
    """The encoder into which the tests plant faults passes as long as it has none."""
    make = partial(start, audited, permanent_seen=permanent_seen)
    assert run_audit(Function(make), audited).passed


@pytest.mark.slow
def test_a_learned_rule_finds_a_leak_outside_the_true_bits() -> None:
    """The first value of a pair also sets the last bit, which is no true bit of either value.

    The bound from counts of true bits does not show this leak. A rule learned from whole reports
    does.
    """
    result = run_audit(Function(lambda: leak_in_last_bit(FEW_BITS)), FEW_BITS, trials=30_000)
    checks = checks_of(result)
    assert checks["epsilon_1 by a learned rule"].verdict == "fault"
    assert checks["epsilon_1"].verdict == "pass"


@pytest.mark.slow
def test_the_rate_of_false_alarms_is_a_sum() -> None:
    """The rate of false alarms of an audit is the sum over its checks.

    Each of three bounds has the default level 1e-4. Every other check has 1e-9, which adds nothing
    here. 1,000 trials are too few for the learned bound, which would be a fourth one.
    """
    result = audit(create_reference_encoder(SMALL), SMALL, trials=1000)
    assert result.false_alarms == pytest.approx(3e-4, rel=0.01)


@pytest.mark.slow
def test_a_value_without_noise_is_found_if_the_audit_sends_it() -> None:
    """375 devices receive 17 values. Two noiseless reports are a fault; none has chance 1e-8."""
    canary = Function(partial(noiseless_canary, SMALL))
    result = audit(
        canary, SMALL, trials=3000, n_reports=1, values=["canary"], level=FALSE_ALARM_RATE
    )
    failed_checks = {"report: equal to the true bits", "permanent: equal to the true bits"}
    assert failed_checks <= faults_of(result)
    assert run_audit(canary, SMALL).passed


def test_values_of_the_wrong_kind_are_refused() -> None:
    """The message has the type and the length of the value."""
    yes = ENCODINGS["boolean"]
    with pytest.raises(ReportError, match="a value must be one of"):
        audit(create_reference_encoder(yes), yes, trials=1000, values=["perhaps"])


def test_a_mersenne_twister_behind_the_reports_is_found() -> None:
    """41,000 reports are more than twice the 19,937 bits of its state, for every seed."""
    params = metric(k=2, q=0.5).params
    coins = twister(int.from_bytes(os.urandom(4)))
    reports = b"".join(draw_instantaneous_response(b"\3", params, coins) for _ in range(41_000))
    bits = unpack(reports, params)
    checks = check_report_coins(bits, np.ones_like(bits), params)
    assert {check.name: check.verdict for check in checks} == {
        "own coins: lags": "pass",
        "own coins: repetition": "pass",
        "own coins: no shift register": "fault",
    }


def test_a_short_period_of_reports_is_found() -> None:
    """A generator with a period of 1,000 coins repeats whole rows of reports."""
    params = metric(k=4).params
    period = cycle(draw_system_coins(1000))
    reports = [
        draw_instantaneous_response(b"\0", params, lambda n: list(islice(period, n)))
        for _ in range(4000)
    ]
    bits = unpack(b"".join(reports), params)
    checks = check_report_coins(bits, np.zeros_like(bits), params)
    faults = [check.name for check in checks if check.verdict == "fault"]
    # The check of lags may find a fault by chance too, so other faults are allowed.
    assert "own coins: repetition" in faults


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, pytest.param(200, marks=pytest.mark.acceptance)])
def test_random_parameters_give_no_false_alarm(n: int) -> None:
    """Audits under n random parameter sets of at most 64 bits find no fault."""
    rng = np.random.default_rng()
    sets = (draw_random_params(rng) for _ in count())
    small = (params for params in sets if params.k <= 64)
    for params in islice(small, n):
        audited = dataclasses.replace(SMALL, params=params)
        result = run_audit(Function(partial(create_reference_function, audited)), audited)
        assert result.passed, (params, faults_of(result))


@pytest.mark.parametrize(
    ("audited", "numbers", "sentence"),
    [
        (SMALL, {"trials": 999}, "must be an integer in"),
        (SMALL, {"trials": 10**10}, "must be an integer in"),
        (SMALL, {"n_reports": 0}, "must be an integer in"),
        (SMALL, {"n_reports": 101}, "must be an integer in"),
        # Parameters with an infinite loss claim nothing that could be compared.
        (metric(f=0.0, p=0.0, insecure=True), {}, "one report reveals the value"),
        # Devices with different parts have different parameters, so there is no single claim.
        (IN_PARTS, {}, "a metric with parts must be audited bit by bit"),
    ],
)
def test_metrics_and_numbers_without_an_audit_are_refused(
    audited: Metric, numbers: dict[str, int], sentence: str
) -> None:
    """The error is raised before the first request."""
    with pytest.raises(ParamsError, match=sentence):
        audit(create_reference_encoder(audited), audited, **numbers)  # type: ignore[arg-type]


@pytest.mark.slow
def test_progress_is_reported_in_blocks() -> None:
    """The audit requests reports in blocks of 2^14 devices, also if all reports fit in memory."""
    audited = metric(k=1, encoding="boolean")
    steps: list[tuple[str, int, int | None]] = []
    never = Sampler(audited.params, lambda: lambda _value: "0")
    audit(never, audited, trials=50_000, progress=lambda *step: steps.append(step))
    assert steps == [("asking new devices", done, 50_000) for done in range(0, 50_000, 1 << 14)]


@pytest.mark.slow
def test_the_sentence_of_a_bound_has_its_claim_and_its_reach() -> None:
    """The sentence has the bound, the claim, and the largest bound that the trials can reach."""
    check = checks_of(run_audit(create_reference_encoder(SMALL), SMALL))["epsilon_1"]
    assert check.bound is not None
    assert check.claim == epsilon_1(SMALL.params)
    assert check.detail == (
        f"at least {check.bound:.4f} of {check.claim:.4f} "
        f"({100 * check.bound / check.claim:.1f} %); "
        f"1,000 trials can reach about {check.reach:.4f}"
    )


@pytest.mark.slow
def test_an_audit_lists_its_limits() -> None:
    """The record lists the compared values and reports, the unseen checks, and other limits."""
    strings = run_audit(create_reference_encoder(SMALL), SMALL, n_reports=3).not_examined
    n_values = len(choose_pairs(SMALL.params)) * 2 + 16 + 3
    assert strings[0].startswith(f"Values: {n_values} values were sent.")
    assert (
        "Reports: a device may change its behaviour after 64 reports, or with the date." in strings
    )
    unseen = next(sentence for sentence in strings if sentence.startswith("Not seen: "))
    assert "permanent: same in another spelling" in unseen
    yes = ENCODINGS["boolean"]
    one_bit = run_audit(Sampler(yes.params, lambda: lambda _value: "0"), yes).not_examined
    assert one_bit[0].startswith("Values: 2 values were sent.")
    end = "after one report, with the date, or after a restart."
    assert any(sentence.endswith(end) for sentence in one_bit)
