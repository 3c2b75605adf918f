"""A forger of reports: published figures, exact moves, and what the collector's check refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rappor import Counts, Params, ParamsError
from rappor.auditing import forge
from rappor.auditing.forger import (
    detectable_share,
    most_shift,
    most_strings,
    most_suppression,
    shift,
    suppression,
)
from rappor.auditing.pairs import unpack
from rappor.counts.popcounts import popcount_range
from rappor.decoding.decoder import decode
from rappor.protocol.encodings import encoder
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)
HOME_PAGES = Params(k=128, h=2, m=32, f=0.75, p=0.5, q=0.75)
SMALL = Params(k=2, f=0.5, p=0.25, q=0.625)
BALANCED = Params.profile("balanced")
STRICT = Params.profile("strict")


def test_published_figures_of_forging_come_out() -> None:
    """+3.5 at [EPK14] 5.2, +6.5 at 5.4, where .1 % give an estimate with z = 4.38."""
    assert shift(PAPER) == pytest.approx(3.5)
    assert shift(HOME_PAGES) == pytest.approx(6.5)
    n = 14_000_000
    share = detectable_share(HOME_PAGES, n, n_candidates=8616)
    assert share == pytest.approx(0.001, rel=0.01)
    z = stats.norm.isf(0.05 / 8616)
    assert round(z * 0.001 / share, 2) == 4.38
    lifts = [most_shift(BALANCED, 20), most_shift(BALANCED, 40), most_shift(STRICT, 40)]
    assert [round(lift, 2) for lift in lifts] == [2.26, 1.93, 3.19]


def test_a_forged_report_moves_a_count_by_exactly_the_formula() -> None:
    """One report with the bit set, de-biased, in whole numbers: (1 - p*) / (q* - p*)."""
    params = Params(k=8, f=0.5, p=0.25, q=0.75)
    one = Counts.from_packed(np.array([[255]], np.uint8), np.array([0]), params)
    unbiased = (one.ones - params.p_star * one.reports[:, None]) / (params.q_star - params.p_star)
    assert unbiased == pytest.approx(np.full((1, 8), shift(params)))


def test_poisoning_holds_what_a_forged_report_is_worth() -> None:
    """The record has the closed forms."""
    poisoned = forge(SMALL, n_reports=1000, n_candidates=50)
    for form in (shift, most_shift, suppression, most_suppression, most_strings):
        assert getattr(poisoned, form.__name__) == form(SMALL)
    assert poisoned.detectable_share == detectable_share(SMALL, 1000, n_candidates=50)


def test_what_cannot_be_forged_is_refused() -> None:
    """Without hashing every bit is a value; the correction is over at least one candidate."""
    with pytest.raises(ParamsError, match="encoding must be bloom"):
        forge(Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean"))
    with pytest.raises(ParamsError, match="n_candidates must be an integer of at least 1, got 0"):
        forge(SMALL, n_candidates=0)


@pytest.mark.parametrize("params", [BALANCED, STRICT])
@pytest.mark.parametrize("n_strings", [1, 20, 40])
def test_one_forged_report_lifts_many_strings(params: Params, n_strings: int) -> None:
    """By the formula within 6 %, a mean over how these strings' bits collide.

    The forged reports are expected counts: the strings' bits, and others up to the least number of
    ones that passes.
    """
    strings = Population(["common.com", "other.com"], [1, 1])
    honest = simulate_counts(strings, params, n_reports=200_000, seed=1)
    encode, targets = encoder(params), [f"target{i}.com" for i in range(n_strings)]
    packed = (b"".join(encode.encode(each, j) for j in range(params.m)) for each in targets)
    wanted = np.any([unpack(each, params) for each in packed], axis=0)
    own = wanted.sum(axis=1, keepdims=True)
    rate = np.maximum(popcount_range(params)[0] - own, 0) / (params.k - own)
    n = 200  # in each cohort
    ones = np.round(np.where(wanted, n, n * rate)).astype(np.int64)
    forged = Counts(params, ones, np.full(params.m, n))
    after = decode(honest + forged, [*strings.values, *targets])
    at = [after.candidates.index(target) for target in targets]
    lift = float(after.proportion[at].mean()) * after.reports / forged.n_reports
    assert lift == pytest.approx(most_shift(params, n_strings), rel=0.06)
    assert after.detected[at].all()


@pytest.mark.parametrize("params", [BALANCED, STRICT])
@pytest.mark.parametrize("loud", [False, True])
def test_reports_without_its_bits_take_from_a_string(params: Params, loud: bool) -> None:
    """By p* / (q* - p*) if the rest looks honest, by w / (q* - p*) with the most ones that pass.

    The forged reports are expected counts, rounded; only the honest devices are random.
    """
    strings = Population(["common.com", "other.com"], [1, 1])
    honest = simulate_counts(strings, params, n_reports=200_000, seed=1)
    encode = encoder(params)
    packed = b"".join(encode.encode("common.com", j) for j in range(params.m))
    most = popcount_range(params)[1]
    rate = most / (params.k - 1) if loud else params.p_star
    n = 200  # in each cohort
    ones = np.round(np.where(unpack(packed, params), 0, n * rate)).astype(np.int64)
    forged = Counts(params, ones, np.full(params.m, n))
    before, after = (
        float(found.proportion[found.candidates.index("common.com")]) * found.reports
        for found in (decode(each, strings.values) for each in (honest, honest + forged))
    )
    formula = most_suppression(params) if loud else suppression(params)
    assert (before - after) / forged.n_reports == pytest.approx(formula, rel=0.05)


def test_the_check_admits_a_number_of_strings() -> None:
    """So many that their bits, expected to differ, are no more ones than the check admits.

    It never admits all ones.
    """
    for params in (BALANCED, STRICT, PAPER):
        admitted, most = most_strings(params), popcount_range(params)[1]
        assert most < params.k
        assert admitted is not None
        bits = [params.k * (1 - (1 - params.density) ** n) for n in (admitted, admitted + 1)]
        assert bits[0] <= most < bits[1]
    assert most_strings(SMALL) is None
