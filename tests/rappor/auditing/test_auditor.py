"""The audit: its bounds are sound and tight, its laws exact, and planted faults are found.

A correct encoder is called faulty with a chance of 1e-9 a check; the level of the loss is set to
the same here. Planted faults are missed as rarely: beside each stands why.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from enumeration import histories_of, permanent_of
from planted_faults import (
    biased,
    f_off,
    last_bit_skipped,
    never_cleared,
    not_keyed_by_metric,
    one_coin_for_all,
    p_for_q,
    redrawn,
    start,
    twister,
    twister_for_system,
    xorshift,
)
from scipy import stats

from rappor import Metric, Params, ParamsError, ReportError, epsilon_1, epsilon_inf, epsilon_n
from rappor.auditing.auditor import Audit, audit, audit_coins, audit_timing
from rappor.auditing.check import ALARM, binomial_p
from rappor.auditing.lower_bound import LEVEL, game_keys, log_ratio_bound, loss_bound, reachable
from rappor.auditing.pairs import Truth, choose_pairs, unpack
from rappor.auditing.randomness import register_p, shortest_register
from rappor.auditing.shipped_encoder import Show, shipped_show
from rappor.auditing.subject import Command, Function, Sampler, shipped, split_command
from rappor.auditing.timing import timing_check
from rappor.protocol.encodings.buckets import edge_text
from rappor.protocol.randomizer import system_coins


def metric(**fields: object) -> Metric:
    """Return a metric with these parameters over a small set."""
    chosen: dict[str, object] = {"k": 32, "f": 0.5, "p": 0.25, "q": 0.75, **fields}
    params = Params(**chosen)  # type: ignore[arg-type]
    expires = datetime.date(2030, 1, 1)
    return Metric(name="audited", params=params, description="d", owner="o", expires=expires)


def found(result: Audit) -> set[str]:
    """Return the names of the checks that found a fault."""
    return {check.name for check in result.checks if check.verdict == "fault"}


def run_audit(subject: object, audited: Metric, trials: int = 1000, n_reports: int = 2) -> Audit:
    """Audit at the suite's false-alarm rate."""
    return audit(subject, audited, trials=trials, n_reports=n_reports, level=ALARM)  # type: ignore[arg-type]


# --- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("h", "n"), [(1, 1), (1, 2), (2, 1)])
def test_best_rule_of_the_game_reaches_the_loss_exactly(h: int, n: int) -> None:
    """Over all the ways that coins can fall, the largest right / wrong ratio of any key is e^eps.

    The keys therefore lose nothing, and no rule on them can show more than the truth.
    """
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    own = (1 << h) - 1
    law = histories_of(bytes([own]), params, n)
    assert _largest_ratio(law, params, own, n) == pytest.approx(epsilon_n(params, n), rel=1e-12)
    ever = permanent_of(bytes([own]), params)
    assert _largest_ratio(ever, params, own, 1) == pytest.approx(epsilon_inf(params), rel=1e-12)


def _largest_ratio(law: dict[bytes, Fraction], params: Params, own: int, n: int) -> float:
    """Return the log of the largest ratio between right and wrong chances of a key."""
    shown = unpack(b"".join(law), params).reshape(len(law), n, params.k).sum(axis=1)
    mine = np.broadcast_to(unpack(bytes([own]), params), shown.shape)
    right, wrong = game_keys(shown, mine, ~mine, params, n)
    chances: dict[int, list[Fraction]] = {}
    for side, keys in enumerate((right.tolist(), wrong.tolist())):
        for key, weight in zip(keys, law.values(), strict=True):
            chances.setdefault(key, [Fraction(0), Fraction(0)])[side] += weight
    return math.log(max(a / b for a, b in chances.values()))


@pytest.mark.parametrize("n", [5, 40, 300])
def test_each_frequency_is_bounded_as_often_as_said(n: int) -> None:
    """Clopper and Pearson's limits miss a chance at most with half the level, summed exactly."""
    counts = np.arange(n + 1)
    level = 0.02
    alone = np.full(n + 1, n)  # ln of an upper limit of 1 is 0
    low = np.exp(log_ratio_bound(counts, alone, n, level))
    sure = log_ratio_bound(np.full(n + 1, n), np.zeros(n + 1, dtype=int), n, level)[0]
    assert np.isfinite(sure)
    least_of_all = math.exp(float(log_ratio_bound(alone, alone, n, level)[0]))
    high = least_of_all / np.exp(log_ratio_bound(alone, counts, n, level))
    for chance in np.linspace(0.01, 0.99, 99):
        law = stats.binom.pmf(counts, n, chance)
        assert law[low > chance].sum() <= level / 2
        assert law[high < chance].sum() <= level / 2


@pytest.mark.parametrize(("h", "n"), [(1, 1), (2, 1), (1, 2)])
def test_bound_is_above_the_loss_as_rarely_as_said(h: int, n: int) -> None:
    """Of a correct encoder, for every rule of the best kind, summed over all counts."""
    params = Params(k=2 * h, h=h, f=0.5, p=0.25, q=0.625)
    law = histories_of(bytes([(1 << h) - 1]), params, n)
    shown = unpack(b"".join(law), params).reshape(len(law), n, params.k).sum(axis=1)
    mine = np.broadcast_to(np.arange(params.k) < h, shown.shape)
    chances: dict[int, list[float]] = {}
    for side, keys in enumerate(game_keys(shown, mine, ~mine, params, n)):
        for key, weight in zip(keys.tolist(), law.values(), strict=True):
            chances.setdefault(key, [0.0, 0.0])[side] += float(weight)
    rules = np.cumsum(sorted(chances.values(), key=lambda pair: -pair[0] / pair[1]), axis=0)
    tested, level = 60, 0.05
    counts = np.arange(tested + 1)
    bounds = log_ratio_bound(counts[:, None], counts[None, :], tested, level)
    above = (bounds > epsilon_n(params, n)) & (counts[:, None] + counts[None, :] <= tested)
    assert above.any()
    for right, wrong in rules:
        if right + wrong > 1 - 1e-9:  # the rule names somebody always: nothing bounds it
            continue
        seen = stats.binom.pmf(counts, tested, right)[:, None]
        others = stats.binom.pmf(
            counts[None, :], tested - counts[:, None], wrong / (1 - right)
        )  # what was named right was not named wrong
        assert (seen * others)[above].sum() <= level


def test_nothing_seen_bounds_nothing() -> None:
    """Without a right answer the bound is 0, and a certain loss is bounded by the trials alone."""
    same = np.zeros(1000, dtype=np.int64)
    assert loss_bound(same, same) == 0
    certain = loss_bound(same, same + 1)
    assert certain == pytest.approx(
        math.log(stats.beta.ppf(LEVEL / 2, 500, 1) / stats.beta.isf(LEVEL / 2, 1, 500))
    )


@pytest.mark.parametrize("h", [1, 2])
def test_reach_tends_to_the_claim(h: int) -> None:
    """With ever more trials a correct encoder shows all that is claimed."""
    params = Params(k=8, h=h, f=0.5, p=0.25, q=0.75)
    for n, claim in ((1, epsilon_1(params)), (3, epsilon_n(params, 3)), (None, None)):
        limit = epsilon_inf(params) if claim is None else claim
        assert reachable(params, n, 10**12) == pytest.approx(limit, rel=2e-3)
        assert reachable(params, n, 10**4) < reachable(params, n, 10**6) < limit
    assert reachable(params, None, 10**6) > 0.95 * epsilon_inf(params)
    assert reachable(params, 1, 10**6) > 0.9 * epsilon_1(params)


ENCODINGS = {
    "bloom": metric(k=8, h=2),
    "cohorts": metric(k=64, m=16),
    "onehot": metric(k=5, encoding="onehot", categories=("a", "b", "c", "d", "e")),
    "boolean": metric(k=1, encoding="boolean"),
    "flags": metric(k=3, encoding="flags", categories=("x", "y", "z")),
    "buckets": metric(k=4, encoding="buckets", categories=tuple(map(edge_text, (0.5, 1, 2)))),
}


@pytest.mark.parametrize("audited", ENCODINGS.values(), ids=ENCODINGS)
def test_shipped_encoder_passes(audited: Metric) -> None:
    """The short audit of every encoding: no fault, some loss shown, and never too much."""
    result = run_audit(shipped(audited), audited, trials=5000)
    assert result.passed, found(result)
    for check in result.checks[:3]:
        assert check.bound is not None
        assert check.claim is not None
        assert 0 < check.bound <= check.claim, check.name
    seen = [check.verdict for check in result.checks]
    assert seen.count("not seen") <= (1 if audited.params.k > 1 else 3)


def test_values_that_share_their_bits_in_a_cohort_may_share_their_noise() -> None:
    """In 64 cohorts of eight bits some pairs collide; a device then repeats its response."""
    audited = metric(k=8, m=64)
    result = run_audit(shipped(audited), audited, trials=5000)
    assert result.passed, found(result)
    checks = {check.name: check for check in result.checks}
    assert checks["another value, other noise"].verdict == "pass"


def test_parameters_without_a_promise_are_not_audited() -> None:
    """There is no claim to hold them against."""
    audited = metric(f=0.0, p=0.0, insecure=True)
    with pytest.raises(ParamsError, match="one report reveals the value"):
        audit(shipped(audited), audited, trials=1000)


def test_a_lower_claim_is_refuted() -> None:
    """An encoder with less noise than claimed is found by its loss alone."""
    audited = metric(k=8, f=0.6, p=0.35, q=0.7)
    noisy = metric(k=8, f=0.5, p=0.25, q=0.75)
    result = run_audit(Function(lambda: shipped_show(noisy)), audited, trials=20_000)
    assert {"loss for one report", "loss for 2 reports", "loss for ever"} <= found(result)


def test_short_audit_shows_as_much_as_it_can() -> None:
    """One string hash: the bounds fall short of their mean by at most 7 standard deviations.

    At 20,000 devices that leaves half of eps_1 and two thirds of eps_inf at least.
    """
    audited, trials = metric(k=8), 20_000
    result = run_audit(shipped(audited), audited, trials=trials, n_reports=1)
    one, _, ever = result.checks[:3]
    params = audited.params
    chances = {
        (1, one.bound): params.p_star * (1 - params.q_star),
        (None, ever.bound): (params.f / 2) ** 2,
    }
    for (n, bound), wrong in chances.items():
        slack = 7 * math.sqrt(2 / (wrong * trials / 2))  # right answers are more frequent
        assert bound is not None
        assert bound > reachable(params, n, trials, level=ALARM) - slack


@pytest.mark.acceptance
@pytest.mark.parametrize("h", [1, 2])
def test_full_audit_reaches_the_claims(h: int) -> None:
    """A million devices show at least 90 % of eps_1 and 95 % of eps_inf, and never more."""
    audited = metric(k=8, h=h)
    result = audit(shipped(audited), audited, trials=1_000_000, n_reports=1)
    assert result.passed, found(result)
    one, _, ever = result.checks[:3]
    assert 0.9 * epsilon_1(audited.params) <= one.bound <= epsilon_1(audited.params)  # type: ignore[operator]
    assert 0.95 * epsilon_inf(audited.params) <= ever.bound <= epsilon_inf(audited.params)  # type: ignore[operator]


@pytest.mark.acceptance
def test_bound_never_exceeds_the_claim() -> None:
    """A hundred audits, three bounds each, both h: no bound is above what is claimed.

    Each is with a chance of at most 1e-5, summed exactly for the worst rule; the level, 1e-4,
    is each frequency's, and both have to be at their limits. All three hundred: 1e-3.
    """
    for number in range(100):
        audited = metric(k=8, h=1 + number % 2)
        result = audit(shipped(audited), audited, trials=20_000)
        for check in result.checks[:3]:
            assert check.bound <= check.claim, (number, check)  # type: ignore[operator]
        assert result.passed, (number, found(result))


# --- planted faults -----------------------------------------------------------------------------

SMALL = metric()
FAULTS: dict[str, tuple[Callable[[Metric], Show], set[str]]] = {
    # true ones show .75 at most by right: 1,000 of 1,000 has a chance of .75^1000
    "a set bit is never cleared": (
        partial(start, permanently=never_cleared),
        {"permanent: share of ones"},
    ),
    # a true 0 shows a one in a quarter of all devices by right: none has .75^968
    "the last bit is skipped": (
        partial(start, permanently=last_bit_skipped),
        {"permanent: share of ones"},
    ),
    # true ones fall from q* = .625 to p = .25 in 1,000: 24 standard deviations
    "p is used for q": (partial(start, instantly=p_for_q), {"report: share of ones"}),
    # 32 bits come again with a chance below (5/8)^32 in each of 1,000 devices
    "the permanent response is redrawn": (
        partial(start, permanently=redrawn),
        {"permanent: the same again", "two reports share it"},
    ),
    # zeros agree as often as one bit with itself: .25 for .0625 in 30,000
    "the permanent response is not keyed by metric": (
        partial(start, permanently=not_keyed_by_metric),
        {"another metric, other noise"},
    ),
    "one coin decides on all bits": (
        partial(start, permanently=one_coin_for_all),
        {"permanent: bits independent"},
    ),
    # the same coins after each start
    "fresh coins come from a constant seed": (
        twister_for_system,
        {"no repetition after a restart"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    """Each fault is found by the check that is about it."""
    make, expected = FAULTS[fault]
    result = run_audit(Function(lambda: make(SMALL)), SMALL)
    assert expected <= found(result)
    assert not result.passed


def test_the_same_encoder_without_a_fault_passes() -> None:
    """What the faults are planted in is correct."""
    assert run_audit(Function(lambda: start(SMALL)), SMALL).passed


def test_f_off_by_a_128th_is_found() -> None:
    """16,000 devices of 128 bits: f/2 moves by 1/256, which is 13 standard deviations.

    The check sounds at 6.3 of them, so it misses with a chance below 1e-9.
    """
    audited = metric(k=128)
    result = run_audit(
        Function(lambda: start(audited, permanently=f_off)), audited, trials=16_000, n_reports=1
    )
    assert "permanent: share of ones" in found(result)


@pytest.mark.parametrize("permanently", [redrawn, not_keyed_by_metric])
def test_faults_are_found_in_the_reports_alone(permanently: Callable[..., bytes]) -> None:
    """Where the permanent response is not shown, reports tell: 30 standard deviations or more."""
    expected = {
        redrawn: "two reports share it",
        not_keyed_by_metric: "another metric, other noise",
    }[permanently]
    make = partial(start, SMALL, permanently=permanently, show_permanent=False)
    result = run_audit(Function(make), SMALL, trials=4000)
    assert expected in found(result)
    assert run_audit(Function(partial(start, SMALL, show_permanent=False)), SMALL).passed


def test_shared_noise_is_found_where_cohorts_differ() -> None:
    """Each metric has a cohort of its own; devices with the same bits in both show the fault."""
    audited = metric(k=32, m=8)
    result = run_audit(
        Function(partial(start, audited, permanently=not_keyed_by_metric)), audited, trials=2000
    )
    assert "another metric, other noise" in found(result)


# --- coins --------------------------------------------------------------------------------------


def coin_faults(coins: Callable[[int], object]) -> set[str]:
    """Return the checks of the fresh coins that found a fault."""
    checks = audit_coins(SMALL.params, coins)  # type: ignore[arg-type]
    assert all(check.verdict == "pass" for check in checks if check.name.startswith("permanent"))
    return {
        check.name.removeprefix("fresh coins: ") for check in checks if check.verdict == "fault"
    }


def test_system_coins_and_permanent_coins_pass() -> None:
    """What ships is called faulty with a chance below 12e-9."""
    assert coin_faults(system_coins) == set()


def test_bad_coins_are_found() -> None:
    """Whatever its seed a Mersenne Twister is a shift register; so are smaller ones."""
    assert coin_faults(twister(int.from_bytes(os.urandom(4)))) == {"no shift register"}
    assert "no shift register" in coin_faults(xorshift())
    assert "ones, by place" in coin_faults(biased)
    assert "repetition" in coin_faults(lambda n: twister(n)(n))
    counter = itertools.count()
    assert len(coin_faults(lambda n: [next(counter) for _ in range(n)])) >= 4


@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_register_lengths_have_their_exact_law(n: int) -> None:
    """All 2^n sequences: as many need each length as the formula says; shorter ones fail."""
    lengths = [shortest_register(bits) for bits in itertools.product((0, 1), repeat=n)]
    for length in range(n + 1):
        below = sum(each <= length for each in lengths) / 2**n
        above = sum(each >= length for each in lengths) / 2**n
        assert register_p(length, n) == pytest.approx(min(1, 2 * min(below, above)))


def test_shortest_register_is_the_shortest() -> None:
    """Against all registers of all lengths, for every sequence of 8 bits."""
    for bits in itertools.product((0, 1), repeat=8):
        length = next(
            size
            for size in range(9)
            for taps in itertools.product((0, 1), repeat=size)
            if all(
                bits[i] == sum(t & bits[i - 1 - j] for j, t in enumerate(taps)) % 2
                for i in range(size, 8)
            )
        )
        assert shortest_register(bits) == length


@pytest.mark.parametrize(("n", "chance"), [(1, 0.3), (20, 0.5), (50, 0.01)])
def test_p_values_are_exact(n: int, chance: float) -> None:
    """A p-value below any level has at most that chance, summed over all counts."""
    counts = np.arange(n + 1)
    law, p_values = (
        stats.binom.pmf(counts, n, chance),
        binomial_p(counts, np.full(n + 1, n), np.full(n + 1, chance)),
    )
    for level in p_values:
        assert law[p_values <= level].sum() <= level * (1 + 1e-12)


# --- pairs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("audited", ENCODINGS.values(), ids=ENCODINGS)
def test_pairs_differ_most_and_set_every_bit(audited: Metric) -> None:
    """In every cohort the loss between the two values is the metric's, and no bit stays dark."""
    params = audited.params
    truth = Truth(params, choose_pairs(params))
    seen = np.zeros(params.k, dtype=np.bool_)
    most = {"bloom": 2 * params.h, "boolean": 1, "flags": params.k}.get(params.encoding, 2)
    for cohort in range(params.m):
        positions = np.arange(len(truth.values))
        bits = truth.bits(positions, np.full(len(positions), cohort))
        assert ((bits[0::2] ^ bits[1::2]).sum(axis=1) == most).all()
        seen |= bits.any(axis=0)
    assert seen.all()


# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slower", "verdict"), [(0, "pass"), (100, "fault"), (20, "not seen")])
def test_verdict_on_time_follows_the_interval(slower: int, verdict: str) -> None:
    """On a clock that only encoding moves: no difference, 10 % of it, and 2 %, the very bound."""
    now = [0]

    def show(secret: bytes, name: str, value: str) -> object:
        del secret, name
        now[0] += 1000 + (slower + now[0] % 7 if value == "b" else now[0] % 7)
        return None

    check = timing_check(
        "time",
        show,  # type: ignore[arg-type]
        "audited",
        ("a", "b"),
        rounds=200,
        progress=lambda _stage, _done, _total: None,
        clock=lambda: now[0],
    )
    assert check.verdict == verdict


def test_time_of_the_shipped_encoder_is_told() -> None:
    """One line for each pair, with both intervals; what it says depends on the machine."""
    checks = audit_timing(SMALL, rounds=20)
    assert len(checks) == 3
    assert all("the same value twice" in check.detail for check in checks)


# --- subjects -----------------------------------------------------------------------------------

ANSWERING = """
import os, sys
from rappor.protocol.encodings import encoder
from rappor.protocol.params import Params
from rappor.protocol.randomizer import instantaneous_response, permanent
params = Params.from_json(sys.argv[1])
for line in sys.stdin:
    bits = encoder(params).encode(line.strip(), 0)
    shown = instantaneous_response(permanent(os.urandom(32), "audited", "", params, bits), params)
    print(*(shown[0] >> i & 1 for i in range(8)), sep="")
"""


def test_a_command_that_answers_in_bits_is_audited() -> None:
    """Only what one report shows can be seen: the rest is said not to be."""
    audited = metric(k=8)
    command = [sys.executable, "-c", ANSWERING, audited.params.to_json()]
    result = run_audit(Command(audited.params, command), audited, trials=4000)
    assert result.passed, found(result)
    verdicts = {check.name: check.verdict for check in result.checks}
    assert verdicts["loss for one report"] == verdicts["report: share of ones"] == "pass"
    assert verdicts["loss for ever"] == verdicts["permanent: the same again"] == "not seen"


def test_a_plain_callable_is_audited() -> None:
    """A function from a value to bits, packed or not: the coin-flip survey, right and wrong."""
    audited = metric(k=1, encoding="boolean", f=0.0)

    def survey(chance: float) -> Callable[[str], str]:
        rng = np.random.default_rng()
        return lambda value: str(int(rng.random() < (chance if value == "true" else 1 - chance)))

    right = Sampler(audited.params, lambda: survey(0.75))
    assert run_audit(right, audited, trials=20_000).passed
    wrong = Sampler(audited.params, lambda: survey(0.85))
    result = run_audit(wrong, audited, trials=20_000)
    assert {"loss for one report", "report: share of ones"} <= found(result)


SEEDED = """
import random, sys
coins = random.Random(7)
for line in sys.stdin:
    print(*(int(coins.random() < 0.5) for _ in range(8)), sep="")
"""


def test_a_command_with_a_constant_seed_repeats() -> None:
    """Two runs of it print the same reports."""
    audited = metric(k=8)
    command = Command(audited.params, [sys.executable, "-c", SEEDED])
    assert "no repetition after a restart" in found(run_audit(command, audited))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("import sys; [print('1') for _ in sys.stdin]", "a report must be 8 bits"),
        ("[print('0' * 8) for _ in range(3)]", "got 3 lines for"),
        ("raise SystemExit('no such metric')", "got exit code 1: no such metric"),
        ("while True: print('0' * 8)", "got more lines for"),
        ("while True: print('0' * 8, end='')", "got more lines for"),
        ("import sys; [print('{') for _ in sys.stdin]", "must be JSON"),
        ("import sys; [print('{\"a\":' * 5000) for _ in sys.stdin]", "must be JSON"),
        ("import os, sys; [os.write(1, b'\\xff\\n') for _ in sys.stdin]", "must be 8 bits"),
        ("import sys; [print('{}') for _ in sys.stdin]", "a report must be 8 bits"),
        (
            'import sys; [print(\'{"report": "00000000", "cohort": 9}\') for _ in sys.stdin]',
            r"cohort must be an integer in \[0, 0\]",
        ),
    ],
)
def test_answers_that_are_none_are_refused(program: str, sentence: str) -> None:
    """One sentence says what the command should have done."""
    audited = metric(k=8)
    with pytest.raises(ReportError, match=sentence):
        audit(Command(audited.params, [sys.executable, "-c", program]), audited, trials=1000)


def test_a_command_that_is_none_is_refused() -> None:
    """So is one that does not exist, or cannot be split."""
    with pytest.raises(ReportError, match="must start"):
        audit(Command(SMALL.params, ["/no/such/program"]), SMALL, trials=1000)
    for text in ("", "'"):
        with pytest.raises(ReportError, match="a command must"):
            split_command(text)


@pytest.mark.parametrize(("trials", "n_reports"), [(999, 2), (10**10, 2), (1000, 0), (1000, 101)])
def test_ranges_are_checked(trials: int, n_reports: int) -> None:
    """Too few trials bound nothing."""
    with pytest.raises(ParamsError, match="must be an integer in"):
        audit(shipped(SMALL), SMALL, trials=trials, n_reports=n_reports)


def test_progress_is_shown_on_the_way() -> None:
    """Also of short reports, which all fit in the memory at once."""
    audited = metric(k=1, encoding="boolean")
    steps: list[tuple[str, int, int | None]] = []
    never = Sampler(audited.params, lambda: lambda _value: "0")
    audit(never, audited, trials=50_000, progress=lambda *step: steps.append(step))
    assert steps == [("asking new devices", done, 50_000) for done in range(0, 50_000, 1 << 14)]


def test_epochs_do_not_matter() -> None:
    """A metric with epochs is audited in one of them."""
    yearly = dataclasses.replace(metric(k=8), epoch="year")
    assert json.dumps(sorted(found(run_audit(shipped(yearly), yearly)))) == "[]"
