"""The black-box audit: correct encoders pass, planted faults are found, and the record is complete.

The audit sends values to many simulated devices and tests their reports. It has neither the secrets
nor the coins of the devices. Each check of a correct encoder raises a false alarm with a
probability of at most 1e-9. The bounds of the losses have the same error rate in these tests. A
planted fault is missed with about the same probability. The comment at each fault has the
computation.
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
from audits import (
    ENCODINGS,
    SMALL_METRIC,
    build_audited_metric,
    list_faulty_checks,
    map_checks_by_name,
    run_audit,
)
from planted_faults import (
    FORCED,
    Instantaneous,
    Permanent,
    derive_cohort_from_length,
    derive_coins_from_spelling,
    derive_third_coin_from_two,
    enlarge_f,
    ignore_metric_name,
    keep_true_ones,
    leak_in_last_bit,
    make_twister_coins,
    make_wrong_thresholds,
    omit_fresh_noise_in_some_reports,
    omit_fresh_noise_of_first_report,
    omit_fresh_noise_on_some_devices,
    omit_noise_for_canary,
    omit_noise_for_empty_text,
    omit_noise_for_long_text,
    omit_permanent_noise_on_some_devices,
    redraw_after_50_reports,
    redraw_at_each_call,
    redraw_at_each_start,
    share_coin_of_bits_0_and_5,
    share_coins_of_neighbours,
    share_coins_of_two_devices,
    shorten_secrets_to_twelve_bits,
    skip_last_bit,
    start,
    use_one_coin_for_all_bits,
    use_p_for_q,
    use_twister_coins,
    use_xorshift_coins,
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

COLLIDING = {"colliding": build_audited_metric(k=8, m=64)}

SMALL_AUDITS = {"pair", "onehot", "buckets", "colliding"}
"""Encodings that the second stage audits with 1,000 trials."""

LARGE_AUDITS = {"bloom", "boolean"}
"""Encodings that the second stage audits with 5,000 trials. One bit shows little in 1,000. The
values of "cohorts" are chosen as those of "pair", and of "choice" as of "onehot"."""


@pytest.mark.parametrize(
    ("audited", "trials"),
    [
        pytest.param(audited, trials, id=f"{name}-{trials}", marks=stage)
        for name, audited in (ENCODINGS | COLLIDING).items()
        for trials, stage in (
            *([(1000, pytest.mark.slow)] if name in SMALL_AUDITS else []),
            (5000, pytest.mark.slow if name in LARGE_AUDITS else pytest.mark.acceptance),
        )
    ],
)
def test_reference_encoder_passes(audited: Metric, trials: int) -> None:
    """Every encoding passes, and the lower bound of each loss is in (0, claim].

    The audit compares pairs of values. With 64 cohorts of eight bits ("colliding"), both values of
    some pairs have equal bits. A device then has the same permanent response to both values.

    A check with a wrong probability would raise an alarm here. With 1,000 trials, the error of the
    probability must be sqrt(5) times as large as with 5,000, and the lower bound may be 0.
    """
    result = run_audit(create_reference_encoder(audited), audited, trials)
    assert result.passed, list_faulty_checks(result)
    checks = map_checks_by_name(result)
    for name in ("epsilon_1", "epsilon_2", "epsilon_inf"):
        bound, claim = checks[name].bound, checks[name].claim
        assert bound is not None
        assert claim is not None
        assert 0 <= bound <= claim, name
        assert bound > 0 or trials == 1000, name
    verdicts = [check.verdict for check in result.checks]
    # With few bits, the noise of a correct device often changes no bit by chance. Checks for
    # devices without noise are then "not seen".
    k = audited.params.k
    assert verdicts.count("not seen") <= (3 if k > 3 else 5 if k > 1 else 10)


@pytest.mark.slow
def test_a_claim_below_the_loss_is_refuted() -> None:
    """If an encoder has less noise than the metric states, all three bounds exceed the claims."""
    audited = build_audited_metric(k=8, f=0.6, p=0.35, q=0.7)
    encoded = build_audited_metric(k=8, f=0.4, p=0.2, q=0.8)
    result = run_audit(Function(lambda: create_reference_function(encoded)), audited, trials=10_000)
    assert {"epsilon_1", "epsilon_2", "epsilon_inf"} <= list_faulty_checks(result)


# --- planted faults -----------------------------------------------------------------------------


class Planted(NamedTuple):
    """A fault, the name of the check that must fail, and an audit large enough to show the fault.

    `trials` is the number of devices in the audit, and `n_reports` the reports of each device. The
    stage acceptance has the audit if `is_slow`.
    """

    make: Callable[[Metric], Respond]
    failed_check: str
    audited: Metric = SMALL_METRIC
    trials: int = 1000
    n_reports: int = 2
    is_slow: bool = False


def permanent(fault: Permanent, *, shows_permanent: bool = True) -> Callable[[Metric], Respond]:
    """Plant a fault in the permanent response.

    If `shows_permanent` is False, the encoder returns reports and no permanent responses.
    """
    return partial(start, permanently=fault, shows_permanent=shows_permanent)


def fresh(fault: Instantaneous) -> Callable[[Metric], Respond]:
    """Plant a fault in the instantaneous response."""
    return partial(start, instantly=fault)


IN_PARTS = dataclasses.replace(
    build_audited_metric(k=8), parts=(Part("prefix:3", 0.2), Part("whole"))
)
FEW_BITS, MANY_BITS, HALF, G = (
    build_audited_metric(k=8),
    build_audited_metric(k=128),
    build_audited_metric(q=0.5),
    build_audited_metric(g=0.1),
)
BALANCED = build_audited_metric(k=128, f=0.238406, p=0.059601, q=0.559601)
# Names of checks.
ONES, TRUE = "permanent: share of ones", "permanent: equal to the true bits"
FRESH, DEVICES = "report: equal to the permanent response", "other devices: independent noise"
PAIRS, AGAIN = "permanent: bits independent", "two reports: one permanent response"
METRIC, NOISELESS = "another metric: independent noise", "permanent: no device without noise"

# Each comment states the evidence of the fault: the share or count with the fault, the share of a
# correct encoder, and their distance in standard deviations. A check needs about 6 to 7 standard
# deviations to find a fault. "6.3 are found" means that the check with its many counts needs 6.3.
FAULTS = {
    # A true 1 gives a permanent 1 on .75 of the devices. 1,000 of 1,000 has probability .75^1000.
    "a set bit is never cleared": Planted(permanent(keep_true_ones), ONES),
    # A true 0 gives a permanent 1 on .25 of the devices. None of 968 has probability .75^968.
    "the last bit is skipped": Planted(permanent(skip_last_bit), ONES),
    # A true 1 is reported as 1 with p = .25 instead of q* = .625: 24 standard deviations in 1,000.
    "p is used for q": Planted(fresh(use_p_for_q), "report: share of ones"),
    # .95 or .75 instead of .55 of 1,000 devices keep a true 1: 12 standard deviations.
    **{
        fault: Planted(permanent(make_wrong_thresholds(fault)), ONES, G)
        for fault in list(FORCED)[1:]
    },
    # f/2 changes by 1/64, or by 1/256 in the next fault: 13 standard deviations over 1,000 devices
    # of 128 bits, or 16,000. 6.3 are found. A single bit has 1.1 standard deviations.
    "f is off by 1/32": Planted(permanent(partial(enlarge_f, 1 / 32)), ONES, MANY_BITS, 1000, 1),
    "f is off by 1/128": Planted(
        permanent(partial(enlarge_f, 1 / 128)), ONES, MANY_BITS, 16_000, 1, is_slow=True
    ),
    # On each device, a redrawn response of 32 bits equals the first response with a probability
    # below (5/8)^32.
    "redrawn": Planted(permanent(redraw_at_each_call), "permanent: same when asked again"),
    # Two bits of one permanent response agree more often than two bits of different responses. The
    # distance is 30 standard deviations or more.
    "redrawn, in reports alone": Planted(
        permanent(redraw_at_each_call, shows_permanent=False), AGAIN, trials=4000
    ),
    # Both metrics have the same permanent response. The two permanent bits of a true 0 are both 1
    # in .25 of 30,000 pairs, instead of .0625.
    "not keyed by metric": Planted(permanent(ignore_metric_name), METRIC),
    "not keyed by metric, in reports alone": Planted(
        permanent(ignore_metric_name, shows_permanent=False), METRIC, trials=4000
    ),
    # A device may have another cohort in the other metric. Devices whose true bits are equal in
    # both cohorts show the fault.
    "not keyed by metric, in cohorts": Planted(
        permanent(ignore_metric_name), METRIC, build_audited_metric(k=32, m=8), 2000
    ),
    # 1,000 devices receive values of two lengths. The second value changes the cohort of 7 of 8.
    "a cohort for each length of the value": Planted(
        derive_cohort_from_length, "cohorts: uniform and fixed", build_audited_metric(k=32, m=8)
    ),
    "one coin decides on all bits": Planted(permanent(use_one_coin_for_all_bits), PAIRS),
    # Two bits of true 0 are both 1 on .25 of 1,000 devices, not on .0625: 24 standard deviations.
    "bits 1 and 2, 3 and 4, ... share their permanent coins": Planted(
        permanent(share_coins_of_neighbours), PAIRS
    ),
    # The same in reports: .28 instead of .14 of 900 devices, 12 standard deviations. 7.2 are found.
    "bits 0 and 5 share their fresh coin": Planted(
        fresh(share_coin_of_bits_0_and_5), "report: bits independent"
    ),
    # Half of the 64 patterns of three bits never occur. Each has probability 1/64 or more, so its
    # absence in 3,000 responses has probability e^-47.
    "three permanent coins have one parity": Planted(
        permanent(derive_third_coin_from_two), "permanent: patterns of bits", FEW_BITS, 6000
    ),
    # 50 of 1,000 responses equal their true bits, in the next fault 30 of 3,000. A correct response
    # of 32 bits does so with probability 1e-4.
    "one device of 20 without permanent noise": Planted(
        permanent(omit_permanent_noise_on_some_devices(0.05)), TRUE
    ),
    "one device of 100": Planted(
        permanent(omit_permanent_noise_on_some_devices(0.01)), TRUE, trials=3000, n_reports=1
    ),
    # 100 of 100,000 permanent responses equal all 128 true bits. Of a correct encoder, fewer than
    # one is expected.
    "one device of 1,000": Planted(
        permanent(omit_permanent_noise_on_some_devices(0.001)),
        TRUE,
        BALANCED,
        100_000,
        is_slow=True,
    ),
    # 500 devices respond to 8 values of 8 bits, and 31 devices have no noise. Of a correct encoder,
    # 5e-6 devices are expected. Two are a fault.
    "one device of 16, few bits": Planted(
        permanent(omit_permanent_noise_on_some_devices(1 / 16)), NOISELESS, FEW_BITS
    ),
    # About 42 of 12,500 devices of 8 bits have no permanent noise. Three are a fault.
    "one device of 300, few bits": Planted(
        permanent(omit_permanent_noise_on_some_devices(1 / 300)),
        NOISELESS,
        FEW_BITS,
        100_000,
        is_slow=True,
    ),
    "one device of 16 without fresh noise, few bits": Planted(
        partial(omit_fresh_noise_on_some_devices, 1 / 16),
        "report: no device without fresh noise",
        FEW_BITS,
    ),
    "one report of 20 without fresh noise": Planted(
        fresh(omit_fresh_noise_in_some_reports(0.05)), FRESH
    ),
    "one report of 1,000": Planted(
        fresh(omit_fresh_noise_in_some_reports(0.001)), FRESH, BALANCED, 100_000, is_slow=True
    ),
    # 375 devices receive one of 32 values, so about 12 receive the value without noise. Two
    # noiseless reports are a fault. Fewer than two have probability 1e-4.
    "the empty text has no noise": Planted(omit_noise_for_empty_text, TRUE, trials=6000),
    # This text is sent like the empty text: `test_pairs.py` tests the list of such values.
    "a text of 257 bytes has no noise": Planted(
        omit_noise_for_long_text, TRUE, trials=6000, is_slow=True
    ),
    # The first report has the same 32 bits after each of three restarts.
    "the first report of a process has no noise": Planted(
        omit_fresh_noise_of_first_report, "restart: no repeated reports"
    ),
    # The permanent responses of 32 bits change on all 31 long-running devices.
    "each process redraws": Planted(redraw_at_each_start, "permanent: same after a restart"),
    # 62 devices have 127 bits of true 0. A bit is 1 in both reports in .141 of them instead of
    # .188, a distance of 10 standard deviations.
    "each process redraws, in reports alone": Planted(
        partial(redraw_at_each_start, shows_permanent=False), AGAIN, MANY_BITS, 2000, 1
    ),
    "redrawn after 50 reports": Planted(
        redraw_after_50_reports, "permanent: same after 64 reports"
    ),
    # Responses of 32 bits to both spellings are equal on all of 31 devices with a probability below
    # 1e-100. `test_pairs.py` tests the spellings of each normalizer.
    **{
        f"coins depend on the spelling before {normalizer}": Planted(
            derive_coins_from_spelling,
            "permanent: same in another spelling",
            build_audited_metric(normalize=normalizer),
            is_slow=normalizer != "host",
        )
        for normalizer in ("nfc", "casefold", "strip", "host")
    },
    # Of 500 devices with 4,096 possible secrets, about 30 pairs have the same secret. Three pairs
    # are a fault.
    "a secret has 12 bits": Planted(shorten_secrets_to_twelve_bits, "secrets: devices differ"),
    # Of 15,000 bits of true 0 on both devices, .28 instead of .14 are 1 on both: far more than 9
    # standard deviations.
    "two devices in a row share their fresh coins": Planted(share_coins_of_two_devices, DEVICES),
    # 3,000 pairs of devices share 31 coins each.
    "devices three places apart share their fresh coins": Planted(
        partial(share_coins_of_two_devices, distance=3), DEVICES, trials=6000
    ),
    # The coins are the same after each start.
    "a constant seed": Planted(use_twister_coins, "restart: no repeated reports"),
    # With q = 1/2, a bit of a report is the highest bit of a coin. 500 reports determine the 32
    # bits of the register.
    "a shift register": Planted(use_xorshift_coins, "own coins: no shift register", HALF),
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
    """The named check finds the planted fault."""
    planted = FAULTS[fault]
    audited, trials, n_reports = planted.audited, planted.trials, planted.n_reports
    result = run_audit(Function(lambda: planted.make(audited)), audited, trials, n_reports)
    assert planted.failed_check in list_faulty_checks(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audited", "shows_permanent"),
    [
        (SMALL_METRIC, True),
        (SMALL_METRIC, False),
        (G, True),
        (build_audited_metric(normalize="casefold"), True),
    ],
)
def test_the_encoder_without_a_planted_fault_passes(audited: Metric, shows_permanent: bool) -> None:
    """The encoder of the planted faults passes without a fault, so the faults are what is found."""
    make = partial(start, audited, shows_permanent=shows_permanent)
    assert run_audit(Function(make), audited).passed


@pytest.mark.slow
def test_a_learned_rule_finds_a_leak_outside_the_true_bits() -> None:
    """A rule learned from all bits finds a leak that counts of true bits do not show.

    The encoder sets the last bit for the first value of a pair. It is a true bit of neither value.
    """
    result = run_audit(Function(lambda: leak_in_last_bit(FEW_BITS)), FEW_BITS, trials=10_000)
    checks = map_checks_by_name(result)
    assert checks["epsilon_1 by a learned rule"].verdict == "fault"
    assert checks["epsilon_1"].verdict == "pass"


@pytest.mark.slow
def test_the_rate_of_false_alarms_is_a_sum() -> None:
    """The false-alarm rate of an audit is the sum of the rates of its checks.

    Each of three bounds has the default level 1e-4. Every other check has 1e-9, which is negligible
    here. 1,000 trials are too few for a fourth bound, the learned one.
    """
    result = audit(create_reference_encoder(SMALL_METRIC), SMALL_METRIC, trials=1000)
    assert result.false_alarms == pytest.approx(3e-4, rel=0.01)


@pytest.mark.slow
def test_a_value_without_noise_is_found_if_the_audit_sends_it() -> None:
    """A value without noise is found if it is passed in `values`, and not found otherwise.

    375 devices receive 17 values. Two noiseless reports are a fault. No noiseless report has a
    probability of 1e-8.
    """
    canary = Function(partial(omit_noise_for_canary, SMALL_METRIC))
    result = audit(
        canary, SMALL_METRIC, trials=3000, n_reports=1, values=["canary"], level=FALSE_ALARM_RATE
    )
    failed_checks = {"report: equal to the true bits", "permanent: equal to the true bits"}
    assert failed_checks <= list_faulty_checks(result)
    assert run_audit(canary, SMALL_METRIC).passed


def test_values_of_the_wrong_kind_are_refused() -> None:
    """A value that the encoding cannot represent is refused before the audit."""
    yes = ENCODINGS["boolean"]
    with pytest.raises(ReportError, match="a value must be one of"):
        audit(create_reference_encoder(yes), yes, trials=1000, values=["perhaps"])


def test_coins_of_a_mersenne_twister_are_found() -> None:
    """Fresh coins of a Mersenne Twister are found to be those of a shift register, for every seed.

    The 41,000 reports have more than twice as many bits as its state of 19,937 bits.
    """
    params = build_audited_metric(k=2, q=0.5).params
    coins = make_twister_coins(int.from_bytes(os.urandom(4)))
    reports = b"".join(draw_instantaneous_response(b"\3", params, coins) for _ in range(41_000))
    bits = unpack(reports, params)
    checks = check_report_coins(bits, np.ones_like(bits), params)
    assert {check.name: check.verdict for check in checks} == {
        "own coins: lags": "pass",
        "own coins: repetition": "pass",
        "own coins: no shift register": "fault",
    }


def test_a_short_period_of_coins_is_found() -> None:
    """Coins with a period of 1,000 repeat sequences of reports."""
    params = build_audited_metric(k=4).params
    period = cycle(draw_system_coins(1000))
    reports = [
        draw_instantaneous_response(b"\0", params, lambda n: list(islice(period, n)))
        for _ in range(4000)
    ]
    bits = unpack(b"".join(reports), params)
    checks = check_report_coins(bits, np.zeros_like(bits), params)
    faults = [check.name for check in checks if check.verdict == "fault"]
    # The check of lags may also find the period, so other faults are allowed.
    assert "own coins: repetition" in faults


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, pytest.param(200, marks=pytest.mark.acceptance)])
def test_random_parameters_give_no_false_alarm(n: int) -> None:
    """Audits of the reference encoder with n random parameter sets, of at most 64 bits, pass."""
    rng = np.random.default_rng()
    sets = (draw_random_params(rng) for _ in count())
    small = (params for params in sets if params.k <= 64)
    for params in islice(small, n):
        audited = dataclasses.replace(SMALL_METRIC, params=params)
        result = run_audit(Function(partial(create_reference_function, audited)), audited)
        assert result.passed, (params, list_faulty_checks(result))


@pytest.mark.parametrize(
    ("audited", "numbers", "sentence"),
    [
        (SMALL_METRIC, {"trials": 999}, "must be an integer in"),
        (SMALL_METRIC, {"trials": 10**10}, "must be an integer in"),
        (SMALL_METRIC, {"n_reports": 0}, "must be an integer in"),
        (SMALL_METRIC, {"n_reports": 101}, "must be an integer in"),
        # Parameters with an infinite loss claim nothing that could be compared.
        (build_audited_metric(f=0.0, p=0.0, insecure=True), {}, "one report reveals the value"),
        # Devices with different parts have different parameters, so there is no single claim.
        (IN_PARTS, {}, "a metric with parts must be audited bit by bit"),
    ],
)
def test_metrics_and_numbers_without_an_audit_are_refused(
    audited: Metric, numbers: dict[str, int], sentence: str
) -> None:
    """Numbers out of range, and metrics that a black-box audit cannot examine, are refused."""
    with pytest.raises(ParamsError, match=sentence):
        audit(create_reference_encoder(audited), audited, **numbers)  # type: ignore[arg-type]


@pytest.mark.slow
def test_progress_is_reported_in_blocks() -> None:
    """Progress is reported after each block of 2^14 devices."""
    audited = build_audited_metric(k=1, encoding="boolean")
    steps: list[tuple[str, int, int | None]] = []
    never = Sampler(audited.params, lambda: lambda _value: "0")
    audit(never, audited, trials=50_000, progress=lambda *step: steps.append(step))
    assert steps == [
        ("asking new devices", n_devices, 50_000) for n_devices in range(0, 50_000, 1 << 14)
    ]


@pytest.mark.slow
def test_the_detail_of_a_bound_has_the_claim_and_the_reachable_bound() -> None:
    """The detail has the bound, the claim, and the bound that so many trials can reach."""
    check = map_checks_by_name(run_audit(create_reference_encoder(SMALL_METRIC), SMALL_METRIC))[
        "epsilon_1"
    ]
    assert check.bound is not None
    assert check.claim == epsilon_1(SMALL_METRIC.params)
    assert check.detail == (
        f"at least {check.bound:.4f} of {check.claim:.4f} "
        f"({100 * check.bound / check.claim:.1f} %); "
        f"1,000 trials can reach about {check.reach:.4f}"
    )


@pytest.mark.slow
def test_an_audit_lists_its_limits() -> None:
    """`not_examined` states the numbers of values and reports, and the checks that are not seen."""
    strings = run_audit(
        create_reference_encoder(SMALL_METRIC), SMALL_METRIC, n_reports=3
    ).not_examined
    # Both values of each pair, random values and special values (see `rappor.auditing.pairs`).
    n_values = len(choose_pairs(SMALL_METRIC.params)) * 2 + 16 + 3
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
