"""Plans of encodings with one bit for each category: one-hot, buckets and boolean.

`plan_categorical` chooses f, g, p and q so that the losses epsilon_1 and epsilon_inf stay within
the budget and the variance of a rare category is smallest. The tests check the noise, the predicted
errors against a decoder, repeated reports, entries of the registry, and the command.
"""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rappor import Population, Registry, decode
from rappor.base.errors import MetricError, ParamsError
from rappor.cli.app import run
from rappor.planning import (
    DetectionTarget,
    Frequencies,
    compare_repeats,
    plan_categorical,
    predict_power,
)
from rappor.planning.detection_limit import compute_rare_variance, compute_standard_error
from rappor.planning.entry import replace_numbers
from rappor.planning.noise import compute_optimal_variance
from rappor.planning.plans import Plan
from rappor.planning.repeats import count_epochs, count_reports, count_reports_once_per_epoch
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.randomizer import choose_day
from rappor.simulation import simulate_repeated

FALSE_ALARM = 1e-9
"""Probability that a statistical check fails although the code is right."""

NAMES = tuple(f"c{i}" for i in range(20))
CATEGORIES_OF: dict[str, tuple[str, ...]] = {
    "onehot": NAMES,
    "buckets": ("0", "0.5", "10"),
    "boolean": (),
}
"""Categories of a plan for each encoding. Buckets have the edges of their intervals instead, and a
boolean has one bit without a name."""
EXPIRES = date(2030, 12, 31)


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
@pytest.mark.parametrize("budget", [(0.1, 0.1), (1, 2), (2, 4), (4, 5), (3, 30)])
def test_noise_spends_the_budget_and_not_more(encoding: str, budget: tuple[float, float]) -> None:
    """No loss exceeds its limit, and at least one loss is at its limit to a millionth.

    An unused part of a budget would be noise without protection. Rounding to 32-bit thresholds
    must not make a loss larger than its limit.
    """
    limit_1, limit_inf = budget
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=limit_1, epsilon_inf=limit_inf, reports=1e5
    )
    assert epsilon_1(planned.params) <= limit_1
    assert epsilon_inf(planned.params) <= limit_inf
    assert (
        max(epsilon_1(planned.params) / limit_1, epsilon_inf(planned.params) / limit_inf) > 1 - 1e-6
    )


def test_large_losses_of_one_bit_are_spent_too() -> None:
    """Budgets of 15 and 18 nats for one bit are spent to a hundredth.

    The smallest probability of a coin is 2^-32, so one bit can lose at most ln(2^32) = 22 nats.
    Near this end, the rounding of thresholds matters most.
    """
    planned = plan_categorical("boolean", epsilon_1=15, epsilon_inf=18, reports=1000)
    assert 14.99 < epsilon_1(planned.params) <= 15
    assert 17.99 < epsilon_inf(planned.params) <= 18


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_no_other_noise_of_the_budget_has_less_variance(encoding: str) -> None:
    """At the planned f and g, no other p and q within the budget have a smaller variance.

    The variance is compared at the mean share of a category: 1/k for categories that exclude each
    other, 1/2 for a boolean. p and q run over a grid.
    """
    limit_1, limit_inf = 1.0, 3.0
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=limit_1, epsilon_inf=limit_inf, reports=1e5
    )
    params = planned.params
    share = 1 / params.k if get_encoding(params).is_exclusive else 0.5
    for p in np.linspace(0, 0.6, 61):
        for q in np.linspace(p + 0.02, 1, 60):
            alternative = dataclasses.replace(params, p=float(p), q=float(q))
            if epsilon_1(alternative) <= limit_1:
                least = compute_variance(params, share)
                assert compute_variance(alternative, share) >= least * (1 - 1e-6)


def compute_variance(params: Params, share: float) -> float:
    """Return the variance of the estimate of a category with a share, times the reports.

    A bit of a report is 1 with probability mu = p* + (q* - p*) share, and its variance is
    mu (1 - mu). The de-biased estimate divides by q* - p*.
    """
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * share
    return mean * (1 - mean) / gap**2


@pytest.mark.parametrize("k", range(2, 13))
@pytest.mark.parametrize("budget", [(1, 2), (2, 4), (4, 8)])
def test_noise_for_rare_categories_hardly_harms_the_most_frequent_one(
    budget: tuple[float, float], k: int
) -> None:
    """The error of the most frequent category is at most a tenth larger than with plainer noise.

    The planner minimises the variance of a rare category, and its permanent response is asymmetric.
    A symmetric permanent response (g = 1/2) suits a frequent category better, but not much. Devices
    send 30 reports, so the permanent response determines most of the error.
    """
    limit_1, limit_inf = budget
    # The permanent response with f = 2 a and g = 1/2 changes each bit with probability a. Two
    # values differ in two bits, so its loss is 2 ln((1 - a) / a) = `limit_inf` nats.
    names, a = NAMES[:k], 1 / (1 + math.exp(limit_inf / 2))
    target = DetectionTarget(frequencies=Frequencies.zipf(k), reports_per_device=30)
    planned = plan_categorical(
        "onehot",
        names,
        epsilon_1=limit_1,
        epsilon_inf=limit_inf,
        reports=300_000,
        target=target,
    )
    p_star = 1 / (1 + math.exp(limit_1))
    p = (p_star - a / 2 - a * p_star) / (1 - 2 * a)
    q = p + (0.5 - p_star) / (1 - 2 * a)
    plain = Params(encoding="onehot", k=k, categories=names, f=2 * a, p=p, q=q)
    assert epsilon_1(plain) == pytest.approx(limit_1, abs=1e-6)
    error = predict_power(plain, target, reports=300_000).prediction.largest_std_error
    assert planned.prediction.largest_share == pytest.approx(
        1 / sum(1 / i for i in range(1, k + 1))
    )
    assert planned.prediction.largest_std_error < 1.1 * error


def test_excess_over_the_best_known_mechanism_is_1() -> None:
    """A plan has the variance of the best known mechanism with the same epsilon_1.

    `excess` is the quotient of both variances. The best known mechanism for one bit is randomized
    response, with a quarter of the variance of optimised unary encoding, which is the best one for
    many categories [WBLJ17].
    """
    for encoding, best in (
        ("boolean", compute_optimal_variance(1) / 4),
        ("onehot", compute_optimal_variance(1)),
    ):
        planned = plan_categorical(
            encoding, CATEGORIES_OF[encoding], epsilon_1=1, epsilon_inf=2, reports=1e5
        )
        assert planned.excess == pytest.approx(1, abs=1e-6 if encoding == "boolean" else 1e-3)
        assert planned.prediction.absent_std_error**2 * 1e5 == pytest.approx(planned.excess * best)
        assert json.loads(json.dumps(planned.to_dict()))["excess"] == planned.excess


def make_plan(*, reports_per_device: int = 1, devices: int = 10_000) -> Plan:
    """Return a plan for 20 categories, three of them present."""
    target = DetectionTarget(
        frequencies=Frequencies.of_shares([5, 3, 2], 20), reports_per_device=reports_per_device
    )
    return plan_categorical(
        "onehot",
        NAMES,
        epsilon_1=2,
        epsilon_inf=4,
        reports=devices * reports_per_device,
        target=target,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reports_per_device", "n_runs"),
    [(1, 60), (30, 40), pytest.param(30, 60, marks=pytest.mark.acceptance)],
)
def test_errors_are_those_of_the_decoder(reports_per_device: int, n_runs: int) -> None:
    """The planner predicts the standard errors of the decoder, and the probability of a detection.

    Categories are frequent, as rare as the plan can detect, or absent. Devices report once or 30
    times. With too small predicted errors, a collection would be made in vain. A share that is
    detected with probability .2 in place of .8 is found by 40 collections with probability .91, and
    a probability of .3 by 60 collections with probability .90.
    """
    planned = make_plan(reports_per_device=reports_per_device)
    share = planned.share
    assert share is not None
    shares = np.array([0.5 - share, 0.3, 0.2, share] + [0.0] * 16)
    detected, errors = 0, []
    for seed in range(n_runs):
        people = Population(list(NAMES), shares.tolist())
        counts = simulate_repeated(
            people, planned.params, devices={reports_per_device: 10_000}, seed=seed
        ).counts
        estimates = decode(counts)
        detected += int(estimates.detected[3])
        errors.append(estimates.std_error)
    mean = np.mean(errors, axis=0)
    assert mean[4:].mean() == pytest.approx(planned.prediction.absent_std_error, rel=0.03)
    assert mean[3] == pytest.approx(planned.prediction.std_error, rel=0.03)
    # The share is planned to be detected in 80 % of the collections. .75 and .85 allow for the
    # normal approximation, and the binomial bounds for the runs.
    assert detected >= stats.binom.ppf(FALSE_ALARM, n_runs, 0.75)
    assert detected <= stats.binom.isf(FALSE_ALARM, n_runs, 0.85)


@pytest.mark.parametrize("reports_per_device", [1, 30])
def test_sampling_variance_depends_on_devices_and_not_on_reports(reports_per_device: int) -> None:
    """The part "sampling" of an error is s (1 - s) / n for n devices, however often they report.

    More reports of the same devices do not show more devices. All parts add up to the variance.
    """
    planned = make_plan(reports_per_device=reports_per_device)
    share = planned.share
    assert share is not None
    prediction = planned.prediction
    assert prediction.parts["sampling"] * prediction.std_error**2 == pytest.approx(
        share * (1 - share) / 10_000
    )
    assert sum(prediction.parts.values()) == pytest.approx(1)


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_symmetric_noise_is_planned_on_request(encoding: str) -> None:
    """Symmetric noise has q = 1 - p, as in [EPK14], and needs more devices for a rare category.

    For one bit, symmetric noise is optimal, so both plans have the same error and the list of
    alternatives does not distinguish them.
    """
    free, symmetric_plan = (
        plan_categorical(
            encoding,
            CATEGORIES_OF[encoding],
            epsilon_1=2,
            epsilon_inf=6,
            reports=1e5,
            symmetric=symmetric,
        )
        for symmetric in (False, True)
    )
    assert symmetric_plan.params.p + symmetric_plan.params.q == pytest.approx(1, abs=1e-8)
    # Two categories differ in two bits, the two values of a boolean in one.
    two_bits = encoding in ("onehot", "buckets")
    absent_std_error = symmetric_plan.prediction.absent_std_error
    assert (absent_std_error > 1.001 * free.prediction.absent_std_error) == two_bits
    names = [alternative.name for alternative in free.alternatives]
    assert names == ["this one", *(["asymmetric", "symmetric"] if two_bits else ["best"])]


def test_plans_of_categories_refuse_other_encodings() -> None:
    """Strings and unknown encodings are refused."""
    with pytest.raises(
        ParamsError, match="encoding must have one bit for each category, got bloom"
    ):
        plan_categorical("bloom", epsilon_1=1, epsilon_inf=2, reports=100)
    with pytest.raises(ParamsError, match="encoding must be one of"):
        plan_categorical("blom", epsilon_1=1, epsilon_inf=2, reports=100)


def test_repeated_reports_help_less_than_more_devices() -> None:
    """More reports of a device lower the detectable share, and more devices lower it further.

    Repeated reports lower the noise of the instantaneous response only. So 30 times as many devices
    with one report each beat any number of reports of these devices. The loss of privacy grows with
    the number of reports from epsilon_1 to epsilon_inf.
    """
    repeated = make_plan(reports_per_device=30)
    once, thirty, endless = compare_repeats(repeated)
    shares = [plan.share or 1 for plan in (once, thirty, endless, make_plan(devices=300_000))]
    assert 1 > shares[0] > shares[1] > shares[2] > shares[3]
    assert thirty.absent_std_error == repeated.prediction.absent_std_error
    assert [plan.reports_per_device for plan in (once, thirty, endless)] == [1, 30, None]
    losses = [plan.epsilon for plan in (once, thirty, endless)]
    params = repeated.params
    assert losses == [epsilon_1(params), epsilon_n(params, 30), epsilon_inf(params)]


def test_epochs_add_their_losses() -> None:
    """The losses of two epochs add, because each epoch has a permanent response of its own.

    Sixty reports in two epochs are thirty reports in each.
    """
    planned = make_plan(reports_per_device=60)
    once, sixty, endless = compare_repeats(planned, epochs=2)
    assert once.epsilon == epsilon_1(planned.params)
    assert sixty.epsilon == 2 * epsilon_n(planned.params, 30)
    assert endless.epsilon == 2 * epsilon_inf(planned.params)


@pytest.mark.parametrize(("days", "interval", "reports"), [(30, "day", 30), (30, "week", 5)])
def test_reports_per_device_of_an_interval(days: int, interval: str, reports: int) -> None:
    """A device reports once in each interval, the last one included, which may be incomplete.

    30 days are four weeks and two days, hence five weekly reports. Devices that report once in an
    epoch have a function of their own, so "epoch" is refused.
    """
    assert count_reports(days, interval) == reports
    with pytest.raises(ParamsError, match="interval must be one of day, week, got 'epoch'"):
        count_reports(days, "epoch")


@pytest.mark.parametrize(
    ("epoch", "lengths", "days", "most"),
    [("month", (30, 31), 40, 2), ("quarter", (90, 92), 200, 3), ("year", (365, 366), 1000, 3)],
)
def test_epochs_of_a_number_of_days(
    epoch: str, lengths: tuple[int, int], days: int, most: int
) -> None:
    """A number of days is converted to a mean number of epochs, and to the largest number.

    A month has 28 to 31 days, so 30 and 31 days both count as one epoch. 40 days overlap with at
    most two months, and with less in the mean over all first days. Losses need the largest number,
    and errors the mean number. A device's life is one epoch.
    """
    assert {count_reports_once_per_epoch(n, epoch) for n in lengths} == {1}
    assert {count_epochs(n, epoch) for n in (1, *lengths)} == {1}
    assert most - 1 < count_reports_once_per_epoch(days, epoch) < most == count_epochs(days, epoch)
    assert count_epochs(days, "life") == 1


@pytest.mark.parametrize("n", [1, 7, 20, 25])
def test_share_of_reported_devices_is_that_of_the_drawn_days(n: int) -> None:
    """After n days of a month, the share of the devices is the share of the coins on these days.

    The month of a plan has 30.4 days, and the month of the device here has 30.
    """
    coins = range(0, 2**32, 2**22)
    share = sum(choose_day(coin, 30) < n for coin in coins) / len(coins)
    assert count_reports_once_per_epoch(n, "month") == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_entries_load_with_the_same_parameters(encoding: str) -> None:
    """The entry that a plan prints loads as a metric with exactly the planned parameters.

    A person pastes the entry into a registry. A lost digit of f or p would change the loss.
    """
    for limit_1, limit_inf in ((0.3, 1.1), (2, 4), (5, 30)):
        planned = plan_categorical(
            encoding,
            CATEGORIES_OF[encoding],
            epsilon_1=limit_1,
            epsilon_inf=limit_inf,
            reports=1000,
        )
        text = planned.to_toml("theme", expires=EXPIRES, epoch="month", interval="week")
        metric = Registry.loads(text).metric("theme")
        assert metric.params == dataclasses.replace(planned.params, interval="week", epoch="month")
        assert (metric.epoch, metric.interval) == ("month", "week")


REGISTRY = """# ours
[budget]
total = 100

[metrics.page]
description = "Where people start"  # asked in March
owner = "web@example.org"
expires = 2030-12-31
epoch = "quarter"
encoding = "bloom"
normalize = "host"
candidates = "pages.txt"
profile = "balanced"  # for now

[metrics.page.segments]
platform = ["desktop", "phone"]

# and
[metrics."theme.dark"]
description = "Light or dark"
owner = "design@example.org"
expires = 2030-12-31
epoch = "month"
encoding = "onehot"
categories = [
  "light",
  "dark",
]
f = 0.5
p = 0.25
q = 0.75
"""
"""Registry as people write it, with comments, a table inside an entry, and a list over lines."""


def test_numbers_of_an_entry_are_replaced_and_nothing_else() -> None:
    """`replace_numbers` changes the parameters of one entry, and leaves every other line as it is.

    People read the changes of a registry in a diff, so comments, other metrics, the order of keys
    and the ends of lines must stay.
    """
    params = Params(k=64, h=2, m=32, f=0.5, p=0.25, q=0.75)
    changed = replace_numbers(REGISTRY, "page", params)
    old, new = Registry.loads(REGISTRY), Registry.loads(changed)
    assert new["theme.dark"] == old["theme.dark"]
    page = new["page"].params
    assert page == dataclasses.replace(
        params, normalize="host", insecure=False, interval="day", epoch="quarter"
    )
    removed_lines = set(REGISTRY.splitlines()) - set(changed.splitlines())
    assert removed_lines == {'profile = "balanced"  # for now'}
    dark = Params(encoding="onehot", k=2, categories=("light", "dark"), f=0.25, p=0.125, q=0.625)
    again = Registry.loads(replace_numbers(changed, "theme.dark", dark))
    assert again["theme.dark"].params == dataclasses.replace(dark, interval="day", epoch="month")
    assert again["page"] == new["page"]
    # A line separator of Unicode inside a comment, and line ends of Windows, stay as they are.
    odd = REGISTRY.replace("# and", "# and\u2028more").replace("\n", "\r\n")
    changed = replace_numbers(odd, "page", params)
    assert "# and\u2028more\r\n" in changed
    assert Registry.loads(changed)["page"].params.k == 64


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (REGISTRY.replace("[metrics.page", "[metrics.pages"), "unknown metric 'page'"),
        (REGISTRY.replace("total = 100", "total = 45"), "total"),
        (
            REGISTRY.replace("# asked in March", "").replace(
                '"Where people start"', '"""Where\nk = 3\nstarts"""'
            ),
            "a line for each number",
        ),
        (
            '[budget]\ntotal = 100\n[metrics]\npage = {description = "a", owner = "b", expires = '
            '2030-12-31, epoch = "quarter", encoding = "bloom", profile = "strict"}\n',
            r"one line \[metrics.page\]",
        ),
    ],
)
def test_an_entry_that_cannot_be_changed_is_refused(text: str, reason: str) -> None:
    """An entry whose lines cannot be replaced safely is refused with the reason.

    The cases are an unknown metric, a total that the new losses exceed, a text of several lines
    that contains a line such as "k = 3", and an inline table, which has no lines of its own.
    """
    params = Params(k=64, h=2, m=32, f=0.3, p=0.25, q=0.75)
    with pytest.raises(MetricError, match=reason):
        replace_numbers(text, "page", params)


def run_plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `rappor plan`; return the exit code, the output and the errors."""
    code = run(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_command_plans_every_encoding(capsys: pytest.CaptureFixture[str], encoding: str) -> None:
    """`rappor plan` prints the numbers of the library, and an entry that loads."""
    words = ["--encoding", encoding, "--devices", "1e4", "--days", "30"]
    if CATEGORIES_OF[encoding]:
        words += ["--categories", ",".join(CATEGORIES_OF[encoding])]
    code, out, _ = run_plan(
        capsys, *words, "--epsilon-1", "2", "--epsilon-inf", "4", "--name", "theme", "--json"
    )
    assert code == 0
    document = json.loads(out)
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=2, epsilon_inf=4, reports=300_000
    )
    assert Registry.loads(document["toml"]).metric("theme").params == dataclasses.replace(
        planned.params, interval="day", epoch="quarter"
    )
    assert (document["reports"], document["reports_per_device"]) == (300_000, 30)
    assert [repeat["reports_per_device"] for repeat in document["repeats"]] == [1, 30, None]
    code, out, _ = run_plan(capsys, *words, "--profile", "strict")
    assert code == 0
    assert f"encoding          {encoding}" in out
    assert "any number" in out


@pytest.mark.slow
def test_command_plans_for_a_metric_and_writes_its_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`rappor plan` for a metric of a registry changes the file only with `--write` and a budget.

    Without a budget, the plan is for the parameters that the metric has. With a budget and without
    `--write`, the command prints the changed registry.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    words = ("--registry", str(path), "theme.dark", "--devices", "1000", "--days", "9")
    code, out, _ = run_plan(capsys, *words, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["fingerprint"] == Registry.loads(REGISTRY)["theme.dark"].params.fingerprint
    assert document["reports"] == 9000
    budget = ("--epsilon-1", "1", "--epsilon-inf", "3")
    code, out, _ = run_plan(capsys, *words, *budget, "--json")
    assert code == 0
    assert path.read_text() == REGISTRY
    printed = json.loads(out)["toml"].partition("\n\n")[2]
    code, out, _ = run_plan(capsys, *words, *budget, "--write", "--json")
    assert path.read_text().endswith(printed)
    assert code == 0
    written = Registry.load(path)["theme.dark"].params
    assert written.fingerprint == json.loads(out)["fingerprint"]
    assert get_encoding(written).category_labels == ("light", "dark")
    words_of_page = ("--registry", str(path), "page", "--devices", "1e5")
    assert run_plan(capsys, *words_of_page, *budget, "--write")[0] == 0
    page = Registry.load(path)["page"].params
    assert page.normalize == "host"
    assert epsilon_inf(page) <= 3
    document = json.loads(run_plan(capsys, *words_of_page, "--json")[1])
    assert document["fingerprint"] == page.fingerprint
    assert Registry.loads(document["toml"])["page"] == Registry.load(path)["page"]


@pytest.mark.parametrize("k", [2, 3, 8, 24])
def test_a_plan_of_grr_predicts_the_error_of_the_closed_form(k: int) -> None:
    """Under the profile `once`, the predicted variance of a category is p* (1 - p*) / (q* - p*)^2.

    This is the variance of generalized randomized response, whose report names one of k categories.
    No other design with its losses has a smaller variance: noise of single bits needs 1.9 to 12
    times as many devices for a rare category.
    """
    names = tuple(map(str, range(k)))
    params = Params.profile("once", encoding="onehot", categories=names)
    plan = predict_power(params, k, reports=1e5)
    gap = params.q_star - params.p_star
    rare = params.p_star * (1 - params.p_star) / gap**2
    assert plan.prediction.absent_std_error**2 * 1e5 == pytest.approx(rare)
    assert plan.excess == pytest.approx(1)
    ratios = [
        alternative.variance / rare
        for alternative in plan.alternatives
        if alternative.name == "asymmetric"
    ]
    assert all(1.9 < ratio < 12 for ratio in ratios)
    assert Registry.loads(plan.to_toml("page", expires=EXPIRES))["page"].params.keep == params.keep
    with pytest.raises(ParamsError, match=f"candidates must number {k}, as the categories"):
        predict_power(params, k + 1, reports=1e5)


@pytest.mark.parametrize(
    ("items", "variance"),
    [(1, 0.076), (2, 0.153), (4, 0.308), (8, 0.618), (16, 1.24), (32, 2.48)],
)
def test_the_variance_of_an_item_grows_with_the_size_of_sets(items: int, variance: float) -> None:
    """The variance of a rare item at 4 nats is proportional to the size of the sets.

    The numbers are variances times the number of devices, and come from a program that is
    independent of this one.
    """
    params = Params.profile("once", encoding="set", items=items)
    assert compute_rare_variance(params) == pytest.approx(variance, rel=0.01)
    error = compute_standard_error(params, 1_000_000)
    assert error == pytest.approx(math.sqrt(1e6 * compute_rare_variance(params)))
