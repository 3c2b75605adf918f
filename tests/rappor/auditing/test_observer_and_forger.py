"""The demonstrations: their exact parts against enumeration, their check values, their bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from enumeration import histories_of
from scipy import stats

from rappor import Counts, Params, ParamsError
from rappor.auditing.forger import detectable_share, forge, shift
from rappor.auditing.observer import _tables, learn, permanent_bits_known
from rappor.cli.app import run
from rappor.privacy.linkability import reports_to_recover
from rappor.protocol.encodings.buckets import edge_text

PAPER = Params(k=128, h=2, m=16, f=0.5, p=0.5, q=0.75)
BROWSER = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
HOME_PAGES = Params(k=128, h=2, m=32, f=0.75, p=0.5, q=0.75)
SMALL = Params(k=2, f=0.5, p=0.25, q=0.625)
SIGMAS = 6.2  # of a normal law: a false alarm once in 1e9


# --- longitudinal -------------------------------------------------------------------------------


@pytest.mark.parametrize(("params", "n"), [(PAPER, 207), (BROWSER, 51)])
def test_published_figures_of_averaging_come_out(params: Params, n: int) -> None:
    """All 128 permanent bits are known with 99 % after 207 reports, or 51."""
    assert permanent_bits_known(params, n) ** 128 >= 0.99
    assert permanent_bits_known(params, n - 1) ** 128 < 0.99
    assert reports_to_recover(params) == n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_bits_recovered_are_those_of_all_histories(n: int) -> None:
    """Over every way that coins can fall, the likelier truth of a bit is right this often."""
    kept = learn(SMALL, memoised=True, reports=[n], devices=10, candidates=2)[0]
    laws = []
    for truth in (0, 1):
        law = [Fraction(0)] * (n + 1)
        for history, chance in histories_of(bytes([truth]), SMALL, n).items():
            law[sum(report & 1 for report in history)] += chance
        laws.append(law)
    right = sum(max(zero, one) for zero, one in zip(*laws, strict=True)) / 2
    assert kept.true_bits == pytest.approx(float(right), rel=1e-12)


def test_without_noise_on_reports_the_permanent_response_is_all_there_is() -> None:
    """With p = 0 and q = 1 one report tells every permanent bit, and no more tell more."""
    bare = Params(k=16, f=0.5, p=0, q=1)
    first, later = learn(bare, memoised=True, reports=[1, 50], devices=50, candidates=8, seed=3)
    assert first.permanent_bits == later.permanent_bits == 1
    assert first.true_bits == later.true_bits == pytest.approx(0.75)
    assert first.values == later.values


@pytest.mark.parametrize(
    "params",
    [
        Params.profile("balanced"),
        BROWSER,
        Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean"),
        Params(k=3, f=0.5, p=0.25, q=0.75, encoding="onehot", categories=("a", "b", "c")),
        Params(
            k=3,
            f=0.5,
            p=0.25,
            q=0.75,
            encoding="buckets",
            categories=(edge_text(1), edge_text(2)),
        ),
    ],
    ids=lambda params: f"{params.encoding}-{params.h}",
)
def test_no_observer_beats_the_bound(params: Params) -> None:
    """With n reports the share of values named stays below e^eps_n / (C - 1 + e^eps_n)."""
    for memoised in (True, False):
        rows = learn(params, memoised=memoised, devices=1000, candidates=50, seed=5)
        for row in rows:
            assert row.values <= row.bound + SIGMAS * row.std_error
            assert 0.5 <= row.true_bits <= 1
        assert (np.diff([row.true_bits for row in rows]) > -1e-9).all()


def test_boolean_observer_is_as_good_as_it_can_be() -> None:
    """Of two values it names the share that the bit's laws tell apart, exactly in the mean."""
    params = Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean")
    for row in learn(params, memoised=True, reports=[1, 7, 40], devices=20_000, seed=2):
        assert abs(row.values - row.true_bits) <= SIGMAS * math.sqrt(0.25 / 20_000)


def test_only_the_permanent_response_keeps_values_back() -> None:
    """After 1,000 reports: without it all that the true bits tell is known, with it a tenth."""
    params = Params.profile("balanced")
    kept = learn(params, memoised=True, devices=1000, seed=1)[-1]
    bare = learn(params, memoised=False, devices=1000, seed=1)[-1]
    error = SIGMAS * math.sqrt(0.25 / 1000)
    assert abs(bare.values - bare.ceiling) < error
    assert bare.true_bits == pytest.approx(1)
    assert kept.values + error < bare.values
    assert kept.true_bits == pytest.approx(1 - params.f / 2)
    assert kept.permanent_bits == pytest.approx(1)


def test_ceiling_counts_patterns() -> None:
    """Candidates that set the same bits share one chance to be named."""
    table = _tables(SMALL, 10)[0]
    row = learn(SMALL, memoised=True, reports=[1], devices=10, candidates=10)[0]
    assert row.ceiling == len({tuple(bits) for bits in table.tolist()}) / 10


@pytest.mark.parametrize("reports", [[], [0], [2, 1], [1, 1]])
def test_reports_must_grow(reports: Sequence[int]) -> None:
    """A ladder that is none is refused."""
    with pytest.raises(ParamsError, match="reports must be integers"):
        learn(SMALL, memoised=True, reports=reports)


# --- poisoning ----------------------------------------------------------------------------------


def test_published_figures_of_forging_come_out() -> None:
    """+3.5 at [EPK14] 5.2, +6.5 at 5.4, where .1 % stand at 4.38 standard errors."""
    assert shift(PAPER) == pytest.approx(3.5)
    assert shift(HOME_PAGES) == pytest.approx(6.5)
    n = 14_000_000
    share = detectable_share(HOME_PAGES, n, n_candidates=8616)
    assert share == pytest.approx(0.001, rel=0.01)
    z = stats.norm.isf(0.05 / 8616)
    assert round(z * 0.001 / share, 2) == 4.38


def test_a_forged_report_moves_a_count_by_exactly_the_formula() -> None:
    """One report with the bit set, de-biased, in whole numbers: (1 - p*) / (q* - p*)."""
    params = Params(k=8, f=0.5, p=0.25, q=0.75)
    one = Counts.from_packed(np.array([[255]], np.uint8), np.array([0]), params)
    unbiased = (one.ones - params.p_star * one.reports[:, None]) / (params.q_star - params.p_star)
    assert unbiased == pytest.approx(np.full((1, 8), shift(params)))


def test_check_stops_all_ones_and_not_what_looks_honest() -> None:
    """All ones never pass, matched forgeries do, and those move the decoder by the formula.

    The forged reports' other bits, 5,000 draws each, leave an error below 1 % of the move.
    """
    params = Params(k=64, m=16, f=0.238406, p=0.059601, q=0.559601)
    rows = forge(params, shares=[0.05], n_reports=100_000, runs=2)
    seen = {(row.forgery, row.checked): row for row in rows}
    formula = 5000 * shift(params)
    assert all(row.formula == pytest.approx(formula) for row in rows)
    loud, caught = seen["all ones", False], seen["all ones", True]
    assert loud.counted == 1
    assert loud.bits == pytest.approx(formula)
    assert abs(loud.decoded) < 0.05 * formula  # what lifts all bits alike is no string
    assert (caught.counted, caught.bits, caught.decoded) == (0, 0, 0)
    quiet = seen["matched", True]
    assert quiet.counted > 0.999
    assert quiet.bits == pytest.approx(formula, rel=1e-3)
    assert quiet.decoded == pytest.approx(formula, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shares": [0.0]}, "share must be in"),
        ({"shares": [math.nan]}, "share must be in"),
        ({"shares": [1e-9]}, "make at least one report"),
        ({"n_reports": 10}, "reports must be in"),
        ({"runs": 1}, "runs in"),
    ],
)
def test_forging_checks_its_ranges(changes: dict[str, object], sentence: str) -> None:
    """One sentence for each."""
    with pytest.raises(ParamsError, match=sentence):
        forge(SMALL, **changes)  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="n_candidates"):
        detectable_share(SMALL, 1000, n_candidates=0)


def test_other_encodings_have_no_string_to_forge() -> None:
    """They are told apart without a decoder."""
    yes = Params(k=1, f=0.5, p=0.25, q=0.75, encoding="boolean")
    with pytest.raises(ParamsError, match="encoding must be bloom"):
        forge(yes)


# --- commands -----------------------------------------------------------------------------------

LETTERS = ["-k", "32", "-f", "0.5", "-p", "0.25", "-q", "0.75", "--cohorts", "4", "--seed", "1"]


def test_longitudinal_prints_and_draws(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each number of reports; JSON has both worlds; a chart is written."""
    assert run(["attack", "longitudinal", *LETTERS, "--devices", "50"]) == 0
    out = capfd.readouterr().out
    assert "1,000" in out
    assert "32 permanent bits are known with 99 % probability after" in out
    chart = tmp_path / "learned.svg"
    words = ["--devices", "50", "--json", "--chart", str(chart)]
    assert run(["attack", "longitudinal", *LETTERS, *words]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [row["n"] for row in document["rows"] if row["memoised"]][-1] == 1000
    assert document["cohort_bits"] == 2
    assert chart.read_text().startswith("<svg")


def test_poisoning_prints_and_draws(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each share has four rows: both forgeries, with and without the check."""
    chart = tmp_path / "moved.svg"
    words = ["--share", "0.01", "--share", "0.1", "--reports", "2e4", "--runs", "2"]
    assert run(["attack", "poisoning", *LETTERS, *words, "--json", "--chart", str(chart)]) == 0
    document = json.loads(capfd.readouterr().out)
    assert len(document["rows"]) == 8
    assert document["shift"] == pytest.approx(shift(Params(k=32, f=0.5, p=0.25, q=0.75)))
    assert chart.read_text().startswith("<svg")
    assert run(["attack", "poisoning", *LETTERS, *words[2:]]) == 0
    assert "One forged report counts as" in capfd.readouterr().out


def test_bad_input_of_attacks_gets_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and no traceback."""
    for words in (
        ["longitudinal"],
        ["longitudinal", *LETTERS, "--devices", "1"],
        ["poisoning", *LETTERS, "--share", "2"],
        ["poisoning", *LETTERS, "--chart", "x.pdf"],
    ):
        assert run(["attack", *words]) == 2
        captured = capfd.readouterr()
        assert not captured.out
        assert "Traceback" not in captured.err
