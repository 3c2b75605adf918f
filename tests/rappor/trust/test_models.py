"""Models of trust: surveys over all their coins, noise against its exact law, trials."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enumeration import coin_classes
from places import ROOT
from scipy import integrate, stats

from rappor import CoinSurvey
from rappor.cli.app import run
from rappor.errors import ParamsError
from rappor.privacy.shuffling import shuffle
from rappor.protocol.loss import epsilon_inf, epsilon_n
from rappor.protocol.params import ONE, threshold
from rappor.trust.central import geometric, laplace
from rappor.trust.models import (
    Central,
    Local,
    geometric_error,
    laplace_error,
    rappor_bit,
    trust_models,
)
from rappor.trust.survey import MOST_EPSILON
from rappor.trust.trials import run_trials

FALSE_ALARM = 1e-9
"""Chance that one statistical check fails although the code is right."""

SURVEYS = [(0.5, 0.5), (0.7, 0.25), (0.01, 0.9), (0.3, 0.0), (1.0, 0.5), (0.4, 1.0)]


def chance_of_yes(survey: CoinSurvey, *, truth: bool) -> Fraction:
    """Run the real answer for every way that its two coins can fall."""
    classes = coin_classes((threshold(survey.alpha), threshold(survey.beta)))
    yes = Fraction(0)
    for (first, x), (second, y) in itertools.product(classes, repeat=2):

        def coins(n: int, fixed: Sequence[int] = (first, second)) -> Sequence[int]:
            return fixed[:n]

        yes += x * y * survey.answer(truth, coins)
    return yes


def loss_of(survey: CoinSurvey) -> float:
    """Return the log of the largest ratio of an answer's chances over all coins."""
    low, high = (chance_of_yes(survey, truth=truth) for truth in (False, True))
    pairs = ((high, low), (1 - low, 1 - high))
    if any(of_liar == 0 < of_truth for of_truth, of_liar in pairs):
        return math.inf
    return math.log(max(of_truth / of_liar for of_truth, of_liar in pairs if of_liar))


@pytest.mark.parametrize(("alpha", "beta"), SURVEYS)
def test_survey_is_what_its_coins_do(alpha: float, beta: float) -> None:
    """The chances of a yes, and so the loss, over all coins of the real answer."""
    survey = CoinSurvey(alpha, beta)
    assert survey.p == pytest.approx(float(chance_of_yes(survey, truth=False)), rel=1e-12)
    assert survey.q == pytest.approx(float(chance_of_yes(survey, truth=True)), rel=1e-12)
    assert survey.epsilon == pytest.approx(loss_of(survey), rel=1e-9)


def test_two_fair_coins_lose_ln_3() -> None:
    """The truth on heads; else yes on heads of a second coin."""
    assert CoinSurvey(0.5, 0.5).epsilon == pytest.approx(math.log(3), rel=1e-15)
    assert loss_of(CoinSurvey(0.5, 0.5)) == math.log(3)


def test_the_classic_survey() -> None:
    """70 % have it, 60 % say yes, 70 % are recovered."""
    survey = CoinSurvey(0.5, 0.5)
    said = 0.7 * survey.q + 0.3 * survey.p
    assert said == pytest.approx(0.6)
    assert survey.estimate(600, 1000) == pytest.approx(0.7)


@pytest.mark.parametrize("odds", [Fraction(3, 2), Fraction(2), Fraction(5, 2), Fraction(3)])
def test_which_gain_of_randomized_response_is_right(odds: Fraction) -> None:
    """With g = (e^eps - 1) / (2 (e^eps + 1)) the loss is eps, over all coins.

    A widely copied slide prints twice this g: it loses more than twice eps, and at e^eps = 3,
    two fair coins, all of its answers are true.
    """
    right = (odds - 1) / (2 * (odds + 1))
    epsilon = math.log(odds)
    assert loss_of(CoinSurvey(float(2 * right), 0.5)) == pytest.approx(epsilon, rel=1e-8)
    assert CoinSurvey.at(epsilon).alpha == pytest.approx(float(2 * right), abs=2 / ONE)
    assert loss_of(CoinSurvey(float(4 * right), 0.5)) > 2 * epsilon


@pytest.mark.parametrize("beta", [0.5, 0.25, 0.9])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, MOST_EPSILON])
def test_survey_at_an_epsilon_keeps_it(epsilon: float, beta: float) -> None:
    """It loses no more than asked, and a coin's step more would."""
    survey = CoinSurvey.at(epsilon, beta)
    assert survey.epsilon <= epsilon * (1 + 1e-9)
    assert CoinSurvey(survey.alpha + 1 / ONE, beta).epsilon > epsilon * (1 - 1e-9)


@pytest.mark.parametrize("beta", [1e-3, 1e-7, 1e-9, 1 - 1e-7])
def test_survey_with_a_rare_second_coin_keeps_its_epsilon(beta: float) -> None:
    """The second coin is rounded to 32 bits too, which changes a rare one a good deal."""
    survey = CoinSurvey.at(3.0, beta)
    assert loss_of(survey) <= 3.0 * (1 + 1e-12)
    assert CoinSurvey(survey.alpha + 1 / ONE, beta).epsilon > 3.0


def law_of_yes(survey: CoinSurvey, n_held: int, n: int) -> np.ndarray:
    """Return the law of the number that say yes."""
    held = stats.binom.pmf(np.arange(n_held + 1), n_held, survey.q)
    others = stats.binom.pmf(np.arange(n - n_held + 1), n - n_held, survey.p)
    return np.convolve(held, others)


@pytest.mark.parametrize(("alpha", "beta"), [*SURVEYS[:2], (0.3, 0.0)])
def test_estimate_and_variance_are_exact(alpha: float, beta: float) -> None:
    """Over the exact law of answers: no bias, and the variance of the closed form."""
    survey, n, n_held = CoinSurvey(alpha, beta), 300, 90
    law = law_of_yes(survey, n_held, n)
    estimates = np.array([survey.estimate(yes, n) for yes in range(n + 1)])
    mean = float(law @ estimates)
    assert mean == pytest.approx(n_held / n, rel=1e-9)
    assert survey.variance(n_held / n, n) == pytest.approx(
        float(law @ (estimates - mean) ** 2), rel=1e-9
    )


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_interval_covers(share: float, confidence: float) -> None:
    """Over the exact law of answers, within what a normal interval can be wrong."""
    survey, n = CoinSurvey(0.5, 0.5), 2_000
    law = law_of_yes(survey, round(share * n), n)
    covered = 0.0
    for yes in range(n + 1):
        low, high = survey.interval(yes, n, confidence=confidence)
        covered += law[yes] * (low <= share <= high)
    assert covered == pytest.approx(confidence, abs=0.008)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, MOST_EPSILON])
def test_rappor_of_one_bit(epsilon: float) -> None:
    """Epsilon by one report and twice that for ever, as near as 32-bit coins come."""
    params = rappor_bit(epsilon)
    rough = 1e-7 if epsilon < 5 else 0.02
    assert epsilon_n(params, 1) == pytest.approx(epsilon, rel=rough)
    assert epsilon_inf(params) == pytest.approx(2 * epsilon, rel=rough)
    assert epsilon_n(params, 1) <= epsilon * (1 + 1e-14)
    assert epsilon_inf(params) <= 2 * epsilon * (1 + 1e-14)
    assert params.p_star + params.q_star == pytest.approx(1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_errors_of_the_curator_are_those_of_the_laws(epsilon: float) -> None:
    """By numeric integration, and by the sum over the integers."""
    square, _ = integrate.quad(lambda x: x * x * epsilon * math.exp(-epsilon * x), 0, 60 / epsilon)
    assert laplace_error(epsilon) == pytest.approx(math.sqrt(square), rel=1e-9)
    x = math.exp(-epsilon)
    total = sum((1 - x) / (1 + x) * 2 * x**k * k * k for k in range(1, round(60 / epsilon)))
    assert geometric_error(epsilon) == pytest.approx(math.sqrt(total), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_curators_noise_has_its_law(epsilon: float) -> None:
    """OpenDP's samples against the Laplace law and P(k) = (1-x)/(1+x) x^|k|.

    20,000 draws see another scale: noise at 1.5 epsilon fails (14 standard deviations).
    """
    n = 20_000
    x = math.exp(-epsilon)
    drawn = np.array(geometric([100] * n, epsilon)) - 100
    edge = round(2 / epsilon)
    seen = [np.sum(drawn == k) for k in range(-edge, edge + 1)]
    laws = [(1 - x) / (1 + x) * x ** abs(k) for k in range(-edge, edge + 1)]
    seen, laws = [*seen, n - sum(seen)], [*laws, 1 - sum(laws)]
    assert stats.chisquare(seen, np.array(laws) * n).pvalue > FALSE_ALARM
    smooth = np.array(laplace([100.0] * n, epsilon)) - 100
    assert stats.kstest(smooth, stats.laplace(scale=1 / epsilon).cdf).pvalue > FALSE_ALARM
    other = np.array(laplace([0.0] * n, 1.5 * epsilon))
    assert stats.kstest(other, stats.laplace(scale=1 / epsilon).cdf).pvalue < FALSE_ALARM


def test_tail_of_laplace() -> None:
    """P(|error| >= b ln(1/delta)) = delta, at delta = 5 %."""
    n, delta = 20_000, 0.05
    far = int(np.sum(np.abs(laplace([0.0] * n, 2.0)) >= math.log(1 / delta) / 2))
    assert stats.binomtest(far, n, delta).pvalue > FALSE_ALARM


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_models_keep_the_same_epsilon(epsilon: float) -> None:
    """Each by its own account: answers by their chances, the batch by its bound."""
    for model in trust_models(epsilon, 100_000):
        assert model.epsilon == pytest.approx(epsilon, rel=1e-6)
        if isinstance(model, Central):
            assert model.collector == math.inf
            continue
        loss = math.log(max(model.q / model.p, (1 - model.p) / (1 - model.q)))
        assert model.collector == pytest.approx(loss, rel=1e-6)
        if model.delta:
            assert shuffle(loss * (1 - 1e-6), 100_000, delta=model.delta).epsilon <= epsilon
            assert loss > 1.2 * epsilon
        else:
            assert loss == pytest.approx(epsilon, rel=1e-6)


def test_only_rappor_bounds_many_answers() -> None:
    """Ten answers lose ten times epsilon, or, with a permanent response, at most twice."""
    ten = {model.name: model.ten for model in trust_models(1.0, 1000)}
    assert ten.pop("RAPPOR") == pytest.approx(2, abs=0.01)
    assert all(loss == pytest.approx(10) for loss in ten.values())


def test_local_noise_grows_and_central_noise_does_not() -> None:
    """A hundred times the devices: ten times the error, and the same."""
    few, many = (
        [model.std_error(3 * n // 10, n) for model in trust_models(1.0, n)]
        for n in (10_000, 1_000_000)
    )
    growth = np.array(many) / np.array(few)
    assert growth[:3] == pytest.approx([10, 10, 10], rel=1e-6)
    assert growth[3] < 1.1
    assert list(growth[4:]) == [1, 1]


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_trials_agree_with_closed_forms(epsilon: float) -> None:
    """Mean and mean square error of 60,000 trials; a tenth more or less would be seen.

    Fourth moments in units of sd^4 give the variance of a mean square: 3 for sums of answers,
    6 for Laplace, 6 + 1/sd^2, here below 9, for the geometric. The factor 1.3 is for the skewness
    of squares: at these runs it changes tails by less.
    """
    n, n_held, runs = 50_000, 15_000, 60_000
    z = float(stats.norm.isf(FALSE_ALARM / 2))
    for model in trust_models(epsilon, n):
        error = model.std_error(n_held, n)
        estimates = run_trials(model, n_held=n_held, n=n, runs=runs, seed=1)
        assert abs(estimates.mean() - n_held) < z * error / math.sqrt(runs)
        square = float(np.mean((estimates - n_held) ** 2)) / error**2
        fourth = 9.0 if isinstance(model, Central) else 3.0
        assert abs(square - 1) < 1.3 * z * math.sqrt((fourth - 1) / runs)
        assert (1.3 + 1.21) * z * math.sqrt((fourth - 1) / runs) < 1.1**2 - 1  # the power


def test_a_seed_repeats_the_answers() -> None:
    """Of the devices; the curator's noise takes none."""
    local = trust_models(1.0, 1000)[0]
    assert isinstance(local, Local)
    one, same, other = (
        run_trials(local, n_held=300, n=1000, runs=20, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CoinSurvey(0, 0.5), r"alpha must be a number in \(0, 1\], got 0"),
        (lambda: CoinSurvey(math.nan, 0.5), r"alpha must be a number in \(0, 1\], got nan"),
        (lambda: CoinSurvey(0.5, 1.5), r"beta must be a number in \[0, 1\], got 1.5"),
        (lambda: CoinSurvey(0.5, math.nan), r"beta must be a number in \[0, 1\], got nan"),
        (lambda: CoinSurvey.at(1.0, 0.0), r"beta must be a number in \(0, 1\), got 0.0"),
        (lambda: CoinSurvey.at(1e-3, 1e-7), "epsilon must be larger for 32-bit coins at beta"),
        (lambda: CoinSurvey.at(1.0, 1e-12), "epsilon must be larger for 32-bit coins at beta"),
        (lambda: CoinSurvey(0.5, 0.5).estimate(2, 1), "n_yes must be in"),
        (lambda: CoinSurvey(0.5, 0.5).estimate(0, 0), "n_yes must be in"),
        (lambda: CoinSurvey(0.5, 0.5).interval(1, 2, confidence=1.0), "confidence must be"),
        (lambda: trust_models(1.0, 0), r"n must be an integer in \[1, 2\^53\], got 0"),
        (lambda: trust_models(1.0, 10, delta=0.0), r"delta must be a number in \(0, 1\)"),
        (lambda: run_trials(trust_models(1.0, 9)[0], n_held=10, n=9, runs=1), "n_held must be"),
        (lambda: run_trials(trust_models(1.0, 9)[0], n_held=1, n=9, runs=0), "runs must be"),
    ],
)
def test_nonsense_is_refused(call: Callable[[], object], message: str) -> None:
    """One sentence each."""
    with pytest.raises(ParamsError, match=message):
        call()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, 10.1])
def test_no_epsilon_of_nonsense(epsilon: float) -> None:
    """Wherever one is asked for."""
    for ask in (lambda e: trust_models(e, 10), rappor_bit, lambda e: laplace([1.0], e)):
        with pytest.raises(ParamsError, match=r"epsilon must be a number in \(2\^-30, 10\], got"):
            ask(epsilon)


def test_counts_beyond_32_bits() -> None:
    """All models answer for as many devices as there can be."""
    n = 2**53
    for model in trust_models(1.0, n):
        estimates = run_trials(model, n_held=n // 2, n=n, runs=10, seed=1)
        assert np.abs(estimates - n // 2).max() < 100 * model.std_error(n // 2, n) + 2
    with pytest.raises(ParamsError, match="n must be"):
        trust_models(1.0, n + 1)


def test_figures_of_the_readme() -> None:
    """303, 8.5 and 1.4 devices, and 2 nats by ten answers."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, symmetric, rappor, shuffled, *central = trust_models(1.0, 100_000)
    errors = [model.std_error(30_000, 100_000) for model in (symmetric, shuffled, *central)]
    assert f"{errors[0]:.0f}" == "303"
    assert [f"{error:.1f}" for error in errors[1:]] == ["8.5", "1.4", "1.4"]
    assert f"{rappor.ten:.2f}" == "2.00"
    assert "303 devices where nobody is trusted" in readme
    assert "8.5 in a shuffled batch, 1.4 for a curator" in readme


def trust(*words: str) -> int:
    return run(["trust", *words])


def test_command_prints_what_the_models_say(capfd: pytest.CaptureFixture[str]) -> None:
    """Closed forms as they are, trials near them; infinite losses are null."""
    words = ("--devices", "1e4", "--epsilon", "1", "--runs", "500", "--seed", "3", "--json")
    assert trust(*words) == 0
    facts: dict[str, Any] = json.loads(capfd.readouterr().out)
    rows = facts["models"]
    assert [row["model"] for row in rows] == [model.name for model in trust_models(1.0, 10_000)]
    for row, model in zip(rows, trust_models(1.0, 10_000), strict=True):
        assert row["std_error"] == model.std_error(3_000, 10_000)
        assert row["observed"] == pytest.approx(row["std_error"], rel=0.8)
        assert (row["epsilon_collector"] is None) == isinstance(model, Central)
    assert trust(*words[:-1]) == 0
    out = capfd.readouterr().out
    assert "symmetric randomized response" in out
    assert "1.41" in out
    assert max(map(len, out.splitlines())) <= 100


def test_command_draws(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Three panels, six lines each, with dots of trials."""
    path = tmp_path / "trust.svg"
    assert trust("--devices", "1000", "--chart", str(path), "--runs", "2") == 0
    text = path.read_text(encoding="utf-8")
    assert text.count('aria-roledescription="line mark"') == 18
    assert text.count('aria-roledescription="point"') > 60
    capfd.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epsilon", "0"), "epsilon must be a number in (2^-30, 10], got 0.0"),
        (("--epsilon", "inf"), "epsilon must be a number in (2^-30, 10], got inf"),
        (("--epsilon", "nan"), "epsilon must be a number in (2^-30, 10], got nan"),
        (("--share", "1.1"), "share must be a number in [0, 1], got 1.1"),
        (("--share", "nan"), "share must be a number in [0, 1], got nan"),
        (("--devices", "0"), "n must be an integer in [1, 2^53], got 0"),
        (("--devices", "1.5"), "is not a whole number"),
        (("--delta", "1"), "delta must be a number in (0, 1), got 1.0"),
        (("--beta", "0"), "beta must be a number in (0, 1), got 0.0"),
        (("--runs", "1"), "--runs"),
        (("--seed", "-1"), "-1 is not in the range x>=0"),
        (("--beta", "1e-12"), "epsilon must be larger for 32-bit coins at beta = 1e-12"),
    ],
)
def test_bad_input_gets_one_sentence(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing on standard output."""
    assert trust(*words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in " ".join(err.split())


def test_missing_library_names_the_extra() -> None:
    """Without OpenDP the command says which extra to install."""
    program = (
        "import sys\nsys.modules['opendp'] = None\nfrom rappor.cli.app import run\n"
        "sys.exit(run(['trust']))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "rappor[trust]" in answer.stderr
