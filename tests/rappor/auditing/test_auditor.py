"""The audit: correct encoders pass, planted faults are found, and the record says all of it.

A correct encoder is called faulty with probability 1e-9 a check; the level of the loss is set to
the same here. Planted faults are missed as rarely: beside each stands why.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import pytest
from audits import ENCODINGS, SMALL, checks_of, faults_of, metric, run_audit
from planted_faults import (
    f_off,
    last_bit_skipped,
    never_cleared,
    not_keyed_by_metric,
    one_coin_for_all,
    p_for_q,
    redrawn,
    start,
    twister_for_system,
)

from rappor import Metric, ParamsError, epsilon_1, epsilon_inf
from rappor.auditing import (
    Check,
    Function,
    Respond,
    Sampler,
    audit,
    shipped,
    shipped_respond,
)
from rappor.auditing.pairs import choose_pairs


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
    assert seen.count("not seen") <= (1 if audited.params.k > 1 else 3)


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
def test_bound_never_exceeds_the_claim() -> None:
    """A hundred audits, three bounds each, both h: no bound is above what is claimed.

    One is above it with probability 1e-5 at most, summed exactly for the worst rule; the level,
    1e-4, is each frequency's, and both have to be at their limits. All three hundred: 3e-3.
    """
    for number in range(100):
        audited = metric(k=8, h=1 + number % 2)
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
        {"permanent: neighbours independent"},
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
    n_values = 2 * len(choose_pairs(SMALL.params))
    assert strings[0].startswith(f"Values: {n_values} were asked about")
    assert strings[1].startswith("Bits: 16 of 496 pairs were compared")
    assert strings[2] == "Reports: a device may change after its first 3."
    assert any(sentence.startswith("Restarts: ") for sentence in strings)
    yes = ENCODINGS["boolean"]
    one_bit = run_audit(Sampler(yes.params, lambda: lambda _value: "0"), yes).not_examined
    assert one_bit[0].startswith("Values: 2 were asked about")
    assert one_bit[1] == "Reports: a device may change after its first."
