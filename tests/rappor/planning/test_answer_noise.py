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
from rappor.simulation import simulate_repeated

FALSE_ALARM = 1e-9

NAMES = tuple(f"c{i}" for i in range(20))
CATEGORIES_OF: dict[str, tuple[str, ...]] = {
    "onehot": NAMES,
    "buckets": ("0", "0.5", "10"),
    "boolean": (),
}
EXPIRES = date(2030, 12, 31)


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
@pytest.mark.parametrize("budget", [(0.1, 0.1), (1, 2), (2, 4), (4, 5), (3, 30)])
def test_noise_spends_the_budget_and_not_more(encoding: str, budget: tuple[float, float]) -> None:
    """No loss exceeds its limit, and at least one loss is at its limit to a millionth."""
    one, inf = budget
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=one, epsilon_inf=inf, reports=1e5
    )
    assert epsilon_1(planned.params) <= one
    assert epsilon_inf(planned.params) <= inf
    assert max(epsilon_1(planned.params) / one, epsilon_inf(planned.params) / inf) > 1 - 1e-6


def test_large_losses_of_one_bit_are_spent_too() -> None:
    """Large budgets are spent too. Coins of 32 bits allow losses up to about 22 nats."""
    planned = plan_categorical("boolean", epsilon_1=15, epsilon_inf=18, reports=1000)
    assert 14.99 < epsilon_1(planned.params) <= 15
    assert 17.99 < epsilon_inf(planned.params) <= 18


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_no_other_noise_of_the_budget_has_less_variance(encoding: str) -> None:
    """At the planned f and g, no other p and q have a smaller variance at the mean share."""
    one, inf = 1.0, 3.0
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=one, epsilon_inf=inf, reports=1e5
    )
    shape = planned.params
    level = 1 / shape.k if get_encoding(shape).is_exclusive else 0.5
    for p in np.linspace(0, 0.6, 61):
        for q in np.linspace(p + 0.02, 1, 60):
            other = dataclasses.replace(shape, p=float(p), q=float(q))
            if epsilon_1(other) <= one:
                assert variance(other, level) >= variance(shape, level) * (1 - 1e-6)


def variance(params: Params, level: float) -> float:
    """Return the variance of a category's share, times the number of reports."""
    gap = params.q_star - params.p_star
    mean = params.p_star + gap * level
    return mean * (1 - mean) / gap**2


@pytest.mark.parametrize("k", range(2, 13))
@pytest.mark.parametrize("budget", [(1, 2), (2, 4), (4, 8)])
def test_noise_for_rare_categories_hardly_harms_the_most_frequent_one(
    budget: tuple[float, float], k: int
) -> None:
    """The error of the most frequent category is at most a tenth larger than with other noise.

    The other noise has q* = 1/2 and g = 1/2. Devices send 30 reports.
    """
    one, inf = budget
    # With g = 1/2, f = 2a has a loss of `inf` nats over the two bits in which two values differ.
    names, a = NAMES[:k], 1 / (1 + math.exp(inf / 2))
    question = DetectionTarget(frequencies=Frequencies.zipf(k), reports_per_device=30)
    planned = plan_categorical(
        "onehot", names, epsilon_1=one, epsilon_inf=inf, reports=300_000, question=question
    )
    p_star = 1 / (1 + math.exp(one))
    p = (p_star - a / 2 - a * p_star) / (1 - 2 * a)
    q = p + (0.5 - p_star) / (1 - 2 * a)
    plain = Params(encoding="onehot", k=k, categories=names, f=2 * a, p=p, q=q)
    assert epsilon_1(plain) == pytest.approx(one, abs=1e-6)
    error = predict_power(plain, question, reports=300_000).prediction.largest_error
    assert planned.prediction.largest == pytest.approx(1 / sum(1 / i for i in range(1, k + 1)))
    assert planned.prediction.largest_error < 1.1 * error


def test_excess_over_the_best_known_mechanism_is_1() -> None:
    """`excess` is the variance in units of the best known mechanism of the same epsilon_1.

    For one bit it is randomized response, for categories optimised unary encoding. The plan reaches
    both.
    """
    for encoding, best in (
        ("boolean", compute_optimal_variance(1) / 4),
        ("onehot", compute_optimal_variance(1)),
    ):
        planned = plan_categorical(
            encoding, CATEGORIES_OF[encoding], epsilon_1=1, epsilon_inf=2, reports=1e5
        )
        assert planned.excess == pytest.approx(1, abs=1e-6 if encoding == "boolean" else 1e-3)
        assert planned.prediction.rare_error**2 * 1e5 == pytest.approx(planned.excess * best)
        assert json.loads(json.dumps(planned.to_dict()))["excess"] == planned.excess


def planned_choice(*, reports_per_device: int = 1, devices: int = 10_000) -> Plan:
    """Return a plan for 20 categories, three of them present."""
    question = DetectionTarget(
        frequencies=Frequencies.of_shares([5, 3, 2], 20), reports_per_device=reports_per_device
    )
    return plan_categorical(
        "onehot",
        NAMES,
        epsilon_1=2,
        epsilon_inf=4,
        reports=devices * reports_per_device,
        question=question,
    )


@pytest.mark.slow
@pytest.mark.parametrize("reports_per_device", [1, 30])
def test_errors_are_those_of_the_decoder(reports_per_device: int) -> None:
    """Predicted errors and detections of categories equal those of the decoder.

    Categories are frequent or absent, and devices report once or several times.
    """
    planned = planned_choice(reports_per_device=reports_per_device)
    share = planned.share
    assert share is not None
    shares = np.array([0.5 - share, 0.3, 0.2, share] + [0.0] * 16)
    n_runs, detected, errors = 60, 0, []
    for seed in range(n_runs):
        people = Population(list(NAMES), shares.tolist())
        counts = simulate_repeated(
            people, planned.params, devices={reports_per_device: 10_000}, seed=seed
        ).counts
        estimates = decode(counts)
        detected += int(estimates.detected[3])
        errors.append(estimates.std_error)
    mean = np.mean(errors, axis=0)
    assert mean[4:].mean() == pytest.approx(planned.prediction.rare_error, rel=0.03)
    assert mean[3] == pytest.approx(planned.prediction.error, rel=0.03)
    # The share is planned to be detected in 80 % of the collections. .75 and .85 allow for the
    # normal approximation, and the binomial bounds for 60 runs.
    assert detected >= stats.binom.ppf(FALSE_ALARM, n_runs, 0.75)
    assert detected <= stats.binom.isf(FALSE_ALARM, n_runs, 0.85)


@pytest.mark.parametrize("reports_per_device", [1, 30])
def test_sampling_is_of_devices(reports_per_device: int) -> None:
    """The part "sampling" is the variance of the shares of so many devices, without any noise."""
    planned = planned_choice(reports_per_device=reports_per_device)
    share = planned.share
    assert share is not None
    prediction = planned.prediction
    assert prediction.parts["sampling"] * prediction.error**2 == pytest.approx(
        share * (1 - share) / 10_000
    )
    assert sum(prediction.parts.values()) == pytest.approx(1)


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_symmetric_noise_is_planned_on_request(encoding: str) -> None:
    """Symmetric noise has q = 1 - p.

    The error of a rare category is larger than with free noise, and that of one bit is the same.
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
    rare_error = symmetric_plan.prediction.rare_error
    assert (rare_error > 1.001 * free.prediction.rare_error) == two_bits
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
    """The detectable share falls from 1 to 30 to endless reports of each device, in this order.

    Thirty times the devices with one report each have a smaller detectable share than all of these.
    """
    repeated = planned_choice(reports_per_device=30)
    once, thirty, endless = compare_repeats(repeated)
    shares = [plan.share or 1 for plan in (once, thirty, endless, planned_choice(devices=300_000))]
    assert 1 > shares[0] > shares[1] > shares[2] > shares[3]
    assert thirty.rare_error == repeated.prediction.rare_error
    assert [plan.reports_per_device for plan in (once, thirty, endless)] == [1, 30, None]
    losses = [plan.epsilon for plan in (once, thirty, endless)]
    params = repeated.params
    assert losses == [epsilon_1(params), epsilon_n(params, 30), epsilon_inf(params)]


def test_epochs_add_their_losses() -> None:
    """Sixty reports in two months are thirty in each, and the losses of the two months add."""
    planned = planned_choice(reports_per_device=60)
    once, sixty, endless = compare_repeats(planned, epochs=2)
    assert once.epsilon == epsilon_1(planned.params)
    assert sixty.epsilon == 2 * epsilon_n(planned.params, 30)
    assert endless.epsilon == 2 * epsilon_inf(planned.params)


@pytest.mark.parametrize(("days", "interval", "reports"), [(30, "day", 30), (30, "week", 5)])
def test_reports_per_device_of_an_interval(days: int, interval: str, reports: int) -> None:
    """A device reports once in each interval. 30 days count as 30 days or as 5 weeks.

    "epoch" is no interval of `count_reports`.
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
    """Days as long as a shortest or longest epoch count as one epoch.

    Other days overlap with at most `most` epochs, and the mean number over all first days is less.
    """
    assert {count_reports_once_per_epoch(n, epoch) for n in lengths} == {1}
    assert {count_epochs(n, epoch) for n in (1, *lengths)} == {1}
    assert most - 1 < count_reports_once_per_epoch(days, epoch) < most == count_epochs(days, epoch)
    assert count_epochs(days, "life") == 1


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_entries_load_with_the_same_parameters(encoding: str) -> None:
    """An entry reads back with exactly the same parameters, epoch and interval."""
    for one, inf in ((0.3, 1.1), (2, 4), (5, 30)):
        planned = plan_categorical(
            encoding, CATEGORIES_OF[encoding], epsilon_1=one, epsilon_inf=inf, reports=1000
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


def test_numbers_of_an_entry_are_replaced_and_nothing_else() -> None:
    """Comments, other metrics and other keys stay, line by line."""
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
    """An unknown metric, a small budget, an ambiguous text and an inline table are refused."""
    params = Params(k=64, h=2, m=32, f=0.3, p=0.25, q=0.75)
    with pytest.raises(MetricError, match=reason):
        replace_numbers(text, "page", params)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `rappor plan`; return exit code and output."""
    code = run(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("encoding", CATEGORIES_OF)
def test_command_plans_every_encoding(capsys: pytest.CaptureFixture[str], encoding: str) -> None:
    """The command prints the library's numbers, repeated reports, and an entry that loads."""
    words = ["--encoding", encoding, "--devices", "1e4", "--days", "30"]
    if CATEGORIES_OF[encoding]:
        words += ["--categories", ",".join(CATEGORIES_OF[encoding])]
    code, out, _ = command(
        capsys, *words, "--epsilon-1", "2", "--epsilon-inf", "4", "--name", "theme", "--json"
    )
    assert code == 0
    answer = json.loads(out)
    planned = plan_categorical(
        encoding, CATEGORIES_OF[encoding], epsilon_1=2, epsilon_inf=4, reports=300_000
    )
    assert Registry.loads(answer["toml"]).metric("theme").params == dataclasses.replace(
        planned.params, interval="day", epoch="quarter"
    )
    assert (answer["reports"], answer["reports_per_device"]) == (300_000, 30)
    assert [repeat["reports_per_device"] for repeat in answer["repeats"]] == [1, 30, None]
    code, out, _ = command(capsys, *words, "--profile", "strict")
    assert code == 0
    assert f"encoding          {encoding}" in out
    assert "any number" in out


@pytest.mark.slow
def test_command_plans_for_a_metric_and_writes_its_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a budget the metric's parameters stay.

    With a budget and --write its noise is replaced.
    """
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    words = ("--registry", str(path), "theme.dark", "--devices", "1000", "--days", "9")
    code, out, _ = command(capsys, *words, "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["fingerprint"] == Registry.loads(REGISTRY)["theme.dark"].params.fingerprint
    assert answer["reports"] == 9000
    budget = ("--epsilon-1", "1", "--epsilon-inf", "3")
    code, out, _ = command(capsys, *words, *budget, "--json")
    assert code == 0
    assert path.read_text() == REGISTRY
    printed = json.loads(out)["toml"].partition("\n\n")[2]
    code, out, _ = command(capsys, *words, *budget, "--write", "--json")
    assert path.read_text().endswith(printed)
    assert code == 0
    written = Registry.load(path)["theme.dark"].params
    assert written.fingerprint == json.loads(out)["fingerprint"]
    assert get_encoding(written).category_labels == ("light", "dark")
    of_page = ("--registry", str(path), "page", "--devices", "1e5")
    assert command(capsys, *of_page, *budget, "--write")[0] == 0
    page = Registry.load(path)["page"].params
    assert page.normalize == "host"
    assert epsilon_inf(page) <= 3
    answer = json.loads(command(capsys, *of_page, "--json")[1])
    assert answer["fingerprint"] == page.fingerprint
    assert Registry.loads(answer["toml"])["page"] == Registry.load(path)["page"]


@pytest.mark.parametrize("k", [2, 3, 8, 24])
def test_a_plan_of_single_buckets_predicts_the_error_of_the_closed_form(k: int) -> None:
    """The prediction equals the variance of the decoder.

    No other design with these losses has less.
    """
    names = tuple(map(str, range(k)))
    params = Params.profile("once", encoding="onehot", categories=names)
    plan = predict_power(params, k, reports=1e5)
    gap = params.q_star - params.p_star
    rare = params.p_star * (1 - params.p_star) / gap**2
    assert plan.prediction.rare_error**2 * 1e5 == pytest.approx(rare)
    assert plan.excess == pytest.approx(1)
    # Noise of single bits needs two to three times the devices for a rare category.
    ratios = [other.variance / rare for other in plan.alternatives if other.name == "asymmetric"]
    assert all(1.9 < ratio < 12 for ratio in ratios)
    assert Registry.loads(plan.to_toml("page", expires=EXPIRES))["page"].params.keep == params.keep
    with pytest.raises(ParamsError, match=f"candidates must number {k}, as the answers"):
        predict_power(params, k + 1, reports=1e5)


@pytest.mark.parametrize(
    ("items", "variance"),
    [(1, 0.076), (2, 0.153), (4, 0.308), (8, 0.618), (16, 1.24), (32, 2.48)],
)
def test_the_variance_of_an_item_grows_with_the_size_of_sets(items: int, variance: float) -> None:
    """Variance times devices of a rare item at 4 nats, computed by another program."""
    params = Params.profile("once", encoding="set", items=items)
    assert compute_rare_variance(params) == pytest.approx(variance, rel=0.01)
    error = compute_standard_error(params, 1_000_000)
    assert error == pytest.approx(math.sqrt(1e6 * compute_rare_variance(params)))
