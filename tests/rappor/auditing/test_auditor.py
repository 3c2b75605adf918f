"""The audit: correct encoders pass, planted faults are found, and the record says all of it.

A correct encoder is called faulty with probability 1e-9 a check; the level of the loss is set to
the same here. Planted faults are missed as rarely: beside each stands why.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice

import numpy as np
import pytest
from audits import ENCODINGS, SMALL, checks_of, faults_of, metric, run_audit
from planted_faults import (
    FORCED,
    bare_canary,
    devices_unsent,
    empty_bare,
    f_off,
    far_bits_share,
    first_bare,
    keyed_by_spelling,
    last_bit_skipped,
    long_bare,
    misforced,
    never_cleared,
    not_keyed_by_metric,
    one_coin_for_all,
    p_for_q,
    redrawn,
    redrawn_after_50,
    redrawn_by_process,
    shared_by_two_devices,
    shared_coins,
    sometimes_bare,
    sometimes_unsent,
    start,
    telling,
    three_coins,
    twelve_bits,
    twister,
    twister_for_system,
    xorshift_for_system,
)

from rappor import Metric, ParamsError, ReportError, epsilon_1, epsilon_inf
from rappor.auditing import Check, Function, Sampler, audit, shipped, shipped_respond
from rappor.auditing.check import ALARM
from rappor.auditing.exact import random_params
from rappor.auditing.fresh import fresh_checks
from rappor.auditing.pairs import choose_pairs, unpack
from rappor.auditing.shipped_encoder import Respond
from rappor.protocol.parts import Part
from rappor.protocol.randomizer import instantaneous_response, system_coins


@pytest.mark.parametrize("audited", ENCODINGS.values(), ids=ENCODINGS)
def test_shipped_encoder_passes(audited: Metric) -> None:
    """The short audit of every encoding: no fault, a bound above 0, and none above its claim."""
    result = run_audit(shipped(audited), audited, trials=5000)
    assert result.passed, faults_of(result)
    checks = checks_of(result)
    for name in ("epsilon_1", "epsilon_2", "epsilon_inf"):
        bound, claim = checks[name].bound, checks[name].claim
        assert bound is not None
        assert claim is not None
        assert 0 < bound <= claim, name
    seen = [check.verdict for check in result.checks]
    k = audited.params.k  # with few bits a device without noise is nothing unusual
    assert seen.count("not seen") <= (3 if k > 3 else 5 if k > 1 else 10)


def test_values_that_share_their_bits_in_a_cohort_may_share_their_noise() -> None:
    """In 64 cohorts of eight bits some pairs collide; a device then repeats its response."""
    audited = metric(k=8, m=64)
    result = run_audit(shipped(audited), audited, trials=5000)
    assert result.passed, faults_of(result)
    assert checks_of(result)["another value: independent noise"].verdict == "pass"


def test_parameters_without_a_promise_are_not_audited() -> None:
    """Parameters that claim nothing have nothing to be compared with."""
    audited = metric(f=0.0, p=0.0, insecure=True)
    with pytest.raises(ParamsError, match="one report reveals the value"):
        audit(shipped(audited), audited, trials=1000)


def test_parts_are_not_audited_from_outside() -> None:
    """Devices of different parts have different parameters, which no one claim describes."""
    parts = (Part("prefix:3", 0.2), Part("whole"))
    audited = dataclasses.replace(metric(k=8), parts=parts)
    with pytest.raises(ParamsError, match="a metric with parts must be audited bit by bit"):
        audit(shipped(audited), audited, trials=1000)


def test_a_lower_claim_is_refuted() -> None:
    """An encoder with less noise than claimed is found by its loss alone."""
    audited = metric(k=8, f=0.6, p=0.35, q=0.7)
    noisy = metric(k=8, f=0.5, p=0.25, q=0.75)
    result = run_audit(Function(lambda: shipped_respond(noisy)), audited, trials=20_000)
    assert {"epsilon_1", "epsilon_2", "epsilon_inf"} <= faults_of(result)


def test_short_audit_reaches_as_much_as_it_can() -> None:
    """One string hash: the bounds fall short of their mean by at most 7 standard deviations.

    At 20,000 devices that leaves at least half of epsilon_1 and two thirds of epsilon_inf.
    """
    audited, trials = metric(k=8), 20_000
    result = run_audit(shipped(audited), audited, trials=trials, n_reports=1)
    params, checks = audited.params, checks_of(result)
    rarest = {"epsilon_1": params.p_star * (1 - params.q_star), "epsilon_inf": (params.f / 2) ** 2}
    for name, wrong in rarest.items():
        slack = 7 * math.sqrt(2 / (wrong * trials / 2))  # right answers are more frequent
        bound, reach = checks[name].bound, checks[name].reach
        assert bound is not None
        assert reach is not None
        assert bound > reach - slack


@pytest.mark.acceptance
@pytest.mark.parametrize("h", [1, 2])
def test_full_audit_reaches_the_claims(h: int) -> None:
    """A million devices reach 90 % of epsilon_1 and 95 % of epsilon_inf, and never more."""
    audited = metric(k=8, h=h)
    result = audit(shipped(audited), audited, trials=1_000_000, n_reports=1)
    assert result.passed, faults_of(result)
    for name, claim, share in (
        ("epsilon_1", epsilon_1(audited.params), 0.9),
        ("epsilon_inf", epsilon_inf(audited.params), 0.95),
    ):
        bound = checks_of(result)[name].bound
        assert bound is not None
        assert share * claim <= bound <= claim


@pytest.mark.acceptance
@pytest.mark.parametrize("h", [1, 2])
@pytest.mark.parametrize("_part", range(5))
def test_bound_never_exceeds_the_claim(h: int, _part: int) -> None:
    """A hundred audits in ten parts, three bounds each, both h: no bound is above what is claimed.

    One is above it with probability 1e-5 at most, summed exactly for the worst rule; the level,
    1e-4, is each frequency's, and both have to be at their limits. All three hundred: 3e-3.
    """
    for number in range(10):
        audited = metric(k=8, h=h)
        result = audit(shipped(audited), audited, trials=20_000)
        for name in ("epsilon_1", "epsilon_2", "epsilon_inf"):
            check = checks_of(result)[name]
            assert check.bound is not None
            assert check.claim is not None
            assert check.bound <= check.claim, (number, check)
        assert result.passed, (number, faults_of(result))


# --- planted faults -----------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[Metric], Respond], set[str]]] = {
    # a true 1 should give a one in .75 of all devices: 1,000 of 1,000 has probability .75^1000
    "a set bit is never cleared": (
        partial(start, permanently=never_cleared),
        {"permanent: share of ones"},
    ),
    # a true 0 should give a one in a quarter of all devices: none has probability .75^968
    "the last bit is skipped": (
        partial(start, permanently=last_bit_skipped),
        {"permanent: share of ones"},
    ),
    # true ones fall from q* = .625 to p = .25 in 1,000: 24 standard deviations
    "p is used for q": (partial(start, instantly=p_for_q), {"report: share of ones"}),
    # 32 bits come again with probability below (5/8)^32 in each of 1,000 devices
    "the permanent response is redrawn": (
        partial(start, permanently=redrawn),
        {"permanent: same when asked again", "two reports: one permanent response"},
    ),
    # zeros agree as often as one bit with itself: .25 for .0625 in 30,000
    "the permanent response is not keyed by metric": (
        partial(start, permanently=not_keyed_by_metric),
        {"another metric: independent noise"},
    ),
    "one coin decides on all bits": (
        partial(start, permanently=one_coin_for_all),
        {"permanent: bits independent"},
    ),
    # two zeros are both one in .25 of 1,000 devices, not in .0625: 24 standard deviations
    "bits 1 and 2, 3 and 4, ... share their permanent coins": (
        partial(start, permanently=shared_coins),
        {"permanent: bits independent"},
    ),
    # .28 for .14 of 900 devices, as above: 12 standard deviations, 7.2 are found
    "bits 0 and 5 share their fresh coin": (
        partial(start, instantly=far_bits_share),
        {"report: bits independent"},
    ),
    # 50 of 1,000 responses with probability 1e-4 each
    "permanent noise is left out in one device of 20": (
        partial(start, permanently=sometimes_bare(0.05)),
        {"permanent: equal to the true bits"},
    ),
    "fresh noise is left out in one report of 20": (
        partial(start, instantly=sometimes_unsent(0.05)),
        {"report: equal to the permanent response"},
    ),
    # 32 bits of each of 31 devices
    "each process draws new permanent responses": (
        redrawn_by_process,
        {"permanent: same after a restart"},
    ),
    "a device draws a new permanent response after 50 reports": (
        redrawn_after_50,
        {"permanent: same after 64 reports"},
    ),
    # 500 devices make 30 pairs with one of 4,096 secrets; 3 or more are found
    "a secret has 12 bits": (twelve_bits, {"secrets: devices differ"}),
    # .28 for .14 of 15,000 zeros that are the first and the second device's: far beyond 9
    "two devices in a row share their fresh coins": (
        shared_by_two_devices,
        {"other devices: independent noise"},
    ),
    # the same coins after each start
    "fresh coins come from a constant seed": (
        twister_for_system,
        {"restart: no repeated reports"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    """Each fault is found by the check that is about it."""
    make, expected = FAULTS[fault]
    result = run_audit(Function(lambda: make(SMALL)), SMALL)
    assert expected <= faults_of(result)
    assert not result.passed


FEW_BITS = metric(k=8)

MORE_FAULTS: dict[str, tuple[Callable[[Metric], Respond], Metric, str]] = {
    # half of the 64 patterns of three bits, with probability 1/64 or more, never come: e^-47
    "three permanent coins have one parity": (
        partial(start, permanently=three_coins),
        FEW_BITS,
        "permanent: patterns of bits",
    ),
    # one value of 32 in 375: two bare reports are enough, fewer have probability 1e-4
    "the empty text has no noise": (empty_bare, SMALL, "permanent: equal to the true bits"),
    "a text of 257 bytes has no noise": (long_bare, SMALL, "permanent: equal to the true bits"),
    # 3,000 pairs of devices share 31 coins
    "devices three places apart share their fresh coins": (
        partial(shared_by_two_devices, apart=3),
        SMALL,
        "other devices: independent noise",
    ),
    # the same 32 bits after each of three restarts
    "the first report of a process has no noise": (
        first_bare,
        SMALL,
        "restart: no repeated reports",
    ),
}


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_faults_beyond_pairs_and_neighbours_are_found(fault: str) -> None:
    """Three bits, special values, distant devices and first reports."""
    make, audited, expected = MORE_FAULTS[fault]
    result = run_audit(Function(lambda: make(audited)), audited, trials=6000)
    assert expected in faults_of(result)


def test_a_learned_rule_finds_what_no_count_of_the_true_bits_shows() -> None:
    """The first value of a pair also sets the last bit: an observer of whole reports is sure."""
    result = run_audit(Function(lambda: telling(FEW_BITS)), FEW_BITS, trials=30_000)
    checks = checks_of(result)
    assert checks["epsilon_1 by a learned rule"].verdict == "fault"
    assert checks["epsilon_1"].verdict == "pass"


def test_the_rate_of_false_alarms_is_a_sum() -> None:
    """Each bound has its level, each other check ALARM: below 1 in 200 by far."""
    result = audit(shipped(SMALL), SMALL, trials=1000)  # too few for the learned bound
    assert result.false_alarms == pytest.approx(3e-4, rel=0.01)


@pytest.mark.parametrize("fault", list(FORCED)[1:])
def test_forced_bits_of_other_rates_are_found(fault: str) -> None:
    """Of 1,000 devices .95 or .75 instead of .55 keep a one: 12 standard deviations."""
    audited = metric(g=0.1)
    result = run_audit(Function(partial(start, audited, permanently=misforced(fault))), audited)
    assert "permanent: share of ones" in faults_of(result)
    assert run_audit(shipped(audited), audited).passed


def test_rare_faults_are_found_by_a_share_of_the_trials() -> None:
    """One device in 100 has no permanent noise: 30 of 3,000 respond with their true bits."""
    bare = Function(partial(start, SMALL, permanently=sometimes_bare(0.01)))
    result = run_audit(bare, SMALL, trials=3000, n_reports=1)
    assert faults_of(result) >= {"permanent: equal to the true bits"}


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (partial(start, permanently=sometimes_bare(1 / 16)), "permanent: no device without noise"),
        (partial(devices_unsent, 1 / 16), "report: no device without fresh noise"),
    ],
)
def test_devices_without_noise_are_found_with_few_bits(
    make: Callable[[Metric], Respond], found: str
) -> None:
    """500 devices answer 8 values in 8 bits: 31 are bare, 2 are enough, expected 5e-6."""
    audited = metric(k=8)
    result = run_audit(Function(partial(make, audited)), audited)
    assert found in faults_of(result)


@pytest.mark.acceptance
def test_a_device_in_300_without_noise_is_found_by_default() -> None:
    """12,500 devices: some 42 have no permanent noise, 3 are enough; 8 bits each."""
    audited = metric(k=8)
    bare = Function(partial(start, audited, permanently=sometimes_bare(1 / 300)))
    result = run_audit(bare, audited, trials=100_000)
    assert "permanent: no device without noise" in faults_of(result)


@pytest.mark.acceptance
def test_noise_left_out_once_in_a_thousand_is_found() -> None:
    """100,000 devices: a hundred respond with all 128 true bits, expected less than one."""
    audited = metric(k=128, f=0.238406, p=0.059601, q=0.559601)
    for fault in (
        partial(start, permanently=sometimes_bare(0.001)),
        partial(start, instantly=sometimes_unsent(0.001)),
    ):
        result = run_audit(Function(partial(fault, audited)), audited, trials=100_000)
        assert not result.passed


def test_a_value_without_noise_is_found_if_it_is_named() -> None:
    """375 devices answer 17 values; two bare reports are enough, none has probability 1e-8."""
    canary = Function(partial(bare_canary, SMALL))
    result = audit(canary, SMALL, trials=3000, n_reports=1, values=["canary"], level=ALARM)
    found = {"report: equal to the true bits", "permanent: equal to the true bits"}
    assert found <= faults_of(result)
    assert run_audit(canary, SMALL).passed


def test_values_of_the_wrong_kind_are_refused() -> None:
    """The sentence tells type and length."""
    yes = ENCODINGS["boolean"]
    with pytest.raises(ReportError, match="a value must be one of"):
        audit(shipped(yes), yes, trials=1000, values=["perhaps"])


@pytest.mark.parametrize("normalizer", ["nfc", "casefold", "strip", "host"])
def test_coins_that_depend_on_the_spelling_are_found(normalizer: str) -> None:
    """31 devices have the same 32 bits for both spellings with probability below 1e-100.

    Their two reports may or may not agree too rarely.
    """
    audited = metric(normalize=normalizer)
    result = run_audit(Function(partial(keyed_by_spelling, audited)), audited)
    sure = {"permanent: same in another spelling"}
    assert sure <= faults_of(result) <= sure | {"two reports: one permanent response"}
    assert run_audit(Function(partial(start, audited)), audited).passed


def test_a_new_process_with_new_responses_is_found_in_the_reports_alone() -> None:
    """62 devices of 127 zeros: both reports one in .141 instead of .188, 10 deviations."""
    audited = metric(k=128)
    make = partial(redrawn_by_process, audited, permanent_seen=False)
    result = run_audit(Function(make), audited, trials=2000, n_reports=1)
    assert "two reports: one permanent response" in faults_of(result)


def test_a_shift_register_behind_the_reports_is_found() -> None:
    """With q of one half a report shows top bits; 500 reports tell a register of 32 bits."""
    audited = metric(q=0.5)
    result = run_audit(Function(partial(xorshift_for_system, audited)), audited)
    assert "own coins: no shift register" in faults_of(result)


def test_a_mersenne_twister_behind_the_reports_is_found() -> None:
    """41,000 reports are more than twice its 19,937 bits, whatever its seed."""
    params = metric(k=2, q=0.5).params
    coins = twister(int.from_bytes(os.urandom(4)))
    reports = b"".join(instantaneous_response(b"\3", params, coins) for _ in range(41_000))
    shown = unpack(reports, params)
    checks = fresh_checks(shown, np.ones_like(shown), params)
    assert {check.name: check.verdict for check in checks} == {
        "own coins: lags": "pass",
        "own coins: repetition": "pass",
        "own coins: no shift register": "fault",
    }


def test_a_short_period_of_reports_is_found() -> None:
    """A generator that starts again after 1,000 coins repeats whole rows of reports."""
    params = metric(k=4).params
    period = cycle(system_coins(1000))
    reports = [
        instantaneous_response(b"\0", params, lambda n: list(islice(period, n)))
        for _ in range(4000)
    ]
    shown = unpack(b"".join(reports), params)
    checks = fresh_checks(shown, np.zeros_like(shown), params)
    faults = [check.name for check in checks if check.verdict == "fault"]
    assert "own coins: repetition" in faults  # a short lag may show too, by luck


def test_random_parameters_give_no_false_alarm() -> None:
    """Six audits: no fault, and no bound above its claim."""
    assert_true_encoder_passes(6)


@pytest.mark.acceptance
def test_many_random_parameters_give_no_false_alarm() -> None:
    """200 audits: no fault, and no bound above its claim."""
    assert_true_encoder_passes(200)


def assert_true_encoder_passes(n: int) -> None:
    """Audit the true encoder under n random parameter sets of at most 64 bits."""
    rng = np.random.default_rng()
    sets = (random_params(rng) for _ in count())
    small = (params for params in sets if params.k <= 64)
    for params in islice(small, n):
        audited = dataclasses.replace(SMALL, params=params)
        result = run_audit(Function(partial(shipped_respond, audited)), audited)
        assert result.passed, (params, faults_of(result))
        for check in result.checks:
            assert check.bound is None or check.claim is None or check.bound <= check.claim


def test_the_same_encoder_without_a_fault_passes() -> None:
    """What the faults are planted in is correct."""
    assert run_audit(Function(lambda: start(SMALL)), SMALL).passed


def test_f_off_by_a_128th_is_found() -> None:
    """16,000 devices of 128 bits: f/2 moves by 1/256, which is 13 standard deviations.

    The check finds a fault from 6.3 of them on, so it misses with probability below 1e-9.
    """
    audited = metric(k=128)
    result = run_audit(
        Function(lambda: start(audited, permanently=f_off)), audited, trials=16_000, n_reports=1
    )
    assert "permanent: share of ones" in faults_of(result)


@pytest.mark.parametrize("permanently", [redrawn, not_keyed_by_metric])
def test_faults_are_found_in_the_reports_alone(permanently: Callable[..., bytes]) -> None:
    """Without permanent responses the reports tell: by 30 standard deviations or more."""
    expected = {
        redrawn: "two reports: one permanent response",
        not_keyed_by_metric: "another metric: independent noise",
    }[permanently]
    make = partial(start, SMALL, permanently=permanently, permanent_seen=False)
    result = run_audit(Function(make), SMALL, trials=4000)
    assert expected in faults_of(result)
    assert run_audit(Function(partial(start, SMALL, permanent_seen=False)), SMALL).passed


def test_shared_noise_is_found_where_cohorts_differ() -> None:
    """Each metric has a cohort of its own; devices with the same bits in both reveal the fault."""
    audited = metric(k=32, m=8)
    result = run_audit(
        Function(partial(start, audited, permanently=not_keyed_by_metric)), audited, trials=2000
    )
    assert "another metric: independent noise" in faults_of(result)


@pytest.mark.parametrize(("trials", "n_reports"), [(999, 2), (10**10, 2), (1000, 0), (1000, 101)])
def test_ranges_are_checked(trials: int, n_reports: int) -> None:
    """Too few trials bound nothing."""
    with pytest.raises(ParamsError, match="must be an integer in"):
        audit(shipped(SMALL), SMALL, trials=trials, n_reports=n_reports)


def test_progress_is_told_on_the_way() -> None:
    """Short reports, which all fit in memory at once, are asked for in blocks too."""
    audited = metric(k=1, encoding="boolean")
    steps: list[tuple[str, int, int | None]] = []
    never = Sampler(audited.params, lambda: lambda _value: "0")
    audit(never, audited, trials=50_000, progress=lambda *step: steps.append(step))
    assert steps == [("asking new devices", done, 50_000) for done in range(0, 50_000, 1 << 14)]


def test_epochs_do_not_matter() -> None:
    """A metric is audited in one epoch, however long its epochs are."""
    monthly = dataclasses.replace(metric(k=8), epoch="month")
    assert faults_of(run_audit(shipped(monthly), monthly)) == set()


# --- the record ---------------------------------------------------------------------------------


def test_a_loss_is_told_with_its_claim_and_its_reach() -> None:
    """The sentence of a bound holds the numbers of the record."""
    check = checks_of(run_audit(shipped(SMALL), SMALL))["epsilon_1"]
    assert check.bound is not None
    assert check.claim == epsilon_1(SMALL.params)
    assert check.detail == (
        f"at least {check.bound:.4f} of {check.claim:.4f} ({check.bound / check.claim:.1%}); "
        f"1,000 trials can reach about {check.reach:.4f}"
    )


def test_one_report_a_device_has_one_loss() -> None:
    """With one report for each device there is no epsilon of several."""
    names = [check.name for check in run_audit(shipped(SMALL), SMALL, n_reports=1).checks]
    assert names[:2] == ["epsilon_1", "epsilon_inf"]


def test_counts_may_be_written_as_powers_of_ten() -> None:
    """1e3 is a number of trials, and the record holds it as an integer."""
    result = audit(shipped(SMALL), SMALL, trials=1e3)  # type: ignore[arg-type]
    assert repr(result.trials) == "1000"


def test_more_checks_belong_to_the_same_audit() -> None:
    """An audit passes only if all checks do that were added to it."""
    result = run_audit(shipped(SMALL), SMALL)
    fault = Check(name="coins", verdict="fault", detail="they are constant")
    both = result.with_checks([fault])
    assert result.passed
    assert both.faults == (fault,)
    assert both.checks == (*result.checks, fault)
    assert both.not_examined == result.not_examined


def test_an_audit_says_what_it_did_not_look_at() -> None:
    """The values, pairs of bits and reports that it compared, and what it never asks."""
    strings = run_audit(shipped(SMALL), SMALL, n_reports=3).not_examined
    asked = len(choose_pairs(SMALL.params)) * 2 + 16 + 3
    assert strings[0].startswith(f"Values: {asked} were asked about")
    assert "Reports: a device may change after its first 64, or with the date." in strings
    unseen = next(sentence for sentence in strings if sentence.startswith("Not seen: "))
    assert "permanent: same in another spelling" in unseen
    yes = ENCODINGS["boolean"]
    one_bit = run_audit(Sampler(yes.params, lambda: lambda _value: "0"), yes).not_examined
    assert one_bit[0].startswith("Values: 2 were asked about")
    assert any("after its first, with the date, or after a restart" in each for each in one_bit)
