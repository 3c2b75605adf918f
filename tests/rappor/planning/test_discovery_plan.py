"""Plans of a discovery: parts of strings, and the number of found strings.

A discovery finds strings without a list of candidates. Some devices report a prefix of their
string, and others the whole string. The prefixes that are found become the candidates of longer
prefixes.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import string

import numpy as np
import pytest

from rappor import DiscoveredStrings, Population, Registry, discover
from rappor.base.errors import DecodeError, MetricError, ParamsError
from rappor.estimator.error_control import ErrorControl
from rappor.planning import DetectionTarget, DiscoveryPlan, Frequencies, plan_discovery
from rappor.simulation import simulate_parts

EXPIRES = datetime.date(2999, 12, 31)
TWELVE = string.ascii_lowercase[:12]
"""Alphabet of the simulated strings. It has 12^4 = 20,736 strings of four letters."""
SPREAD = 4.0
"""Upper bound on the standard deviation of the number of strings that one collection finds. About
60 of the 200 strings are neither certain to be found nor certain to be missed. Each of them adds at
most 1/4 to the variance, and sqrt(60 / 4) < 4."""


def make_small_plan() -> DiscoveryPlan:
    """Return a plan for 200 strings of four letters, from an alphabet of twelve."""
    return plan_discovery(
        200, epsilon_1=2, epsilon_inf=4, reports=1e6, longest=4, characters=len(TWELVE)
    )


def simulate_discovery(planned: DiscoveryPlan, seed: int) -> tuple[DiscoveredStrings, set[str]]:
    """Simulate a collection of the plan; return the discovered strings and the true strings.

    The shares of the 200 random strings follow Zipf's law. Each seed has other strings.
    """
    rng = np.random.default_rng([seed, 3])
    words: set[str] = set()
    while len(words) < 200:
        words.add("".join(rng.choice(list(TWELVE), 4)))
    ordered = rng.permutation(sorted(words)).tolist()
    counts = simulate_parts(
        Population(ordered, 1 / np.arange(1.0, 201)),
        planned.params,
        planned.layout.parts,
        n_reports=planned.reports,
        seed=seed,
    )
    return discover(counts, TWELVE, longest=4), words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_runs", "off"), [(2, 0), pytest.param(100, 2, marks=pytest.mark.acceptance)]
)
def test_as_many_strings_are_found_as_planned(n_runs: int, off: int) -> None:
    """The plan predicts the mean number of strings that `discover` finds.

    The mean of the simulated collections may differ by six standard deviations, and by `off`
    strings, the systematic error of the prediction that is allowed. With 2 collections chance is
    larger than such an error, so `off` is 0. The plan also predicts the number of candidates of a
    prefix exactly, and the number of kept prefixes up to chance.
    """
    planned, n_detected = make_small_plan(), []
    for seed in range(n_runs):
        discovered, words = simulate_discovery(planned, seed)
        n_detected.append(len(set(discovered.strings) & words))
        (prefix,) = discovered.prefixes
        assert prefix.candidates == planned.layout.candidates[0]
        # A prefix is kept if its estimate is positive, which is an even coin for an absent prefix.
        # n coins have the standard deviation sqrt(n) / 2, so six of them are 3 sqrt(n).
        assert abs(prefix.kept - planned.layout.kept[0]) < 3 * prefix.candidates**0.5
    assert abs(np.mean(n_detected) - planned.layout.found) < off + 6 * SPREAD / n_runs**0.5


def test_parts_divide_the_devices_and_reach_the_longest_string() -> None:
    """The planned entry loads with the planned parts and parameters.

    The registry checks that the lengths of the prefixes increase, and that the shares of the parts
    leave devices for whole strings. A part has at most 20 million candidates, which a laptop tests
    in minutes. No other layout of the plan finds more strings than the chosen one.
    """
    planned = plan_discovery(1000, epsilon_1=2, epsilon_inf=4, reports=1e7, longest=12)
    text = planned.to_toml("word", expires=EXPIRES, epoch="quarter", interval="day")
    metric = Registry.loads(text)["word"]
    assert metric is not None
    assert metric.parts == planned.layout.parts
    assert metric.params == dataclasses.replace(planned.params, interval="day", epoch="quarter")
    assert len(planned.layout.candidates) == len(planned.layout.parts)
    assert max(planned.layout.candidates) <= 20_000_000
    assert planned.others == () or planned.others[0].found <= planned.layout.found


def test_more_reports_find_more() -> None:
    """The planned number of found strings grows with the reports, and with the privacy loss."""
    expected = [
        plan_discovery(1000, epsilon_1=e, epsilon_inf=2 * e, reports=n, longest=6).layout.found
        for e, n in ((2, 1e5), (2, 1e6), (2, 1e7), (4, 1e7))
    ]
    assert expected == sorted(expected)


def test_strings_that_are_too_long_are_refused() -> None:
    """Strings of 40 characters are refused, because five parts do not reach them.

    Each part appends a few characters to the kept prefixes, and more parts leave too few devices
    for each part.
    """
    with pytest.raises(DecodeError, match="do not reach strings of 40"):
        plan_discovery(1000, epsilon_1=2, epsilon_inf=4, reports=1e6, longest=40)


def test_targets_and_numbers_outside_the_theory_are_refused() -> None:
    """Bonferroni, repeated reports, and numbers outside their ranges are refused.

    The prediction is derived for the procedure of Benjamini and Hochberg and one report a device.
    """
    plan = functools.partial(plan_discovery, epsilon_1=2, epsilon_inf=4, reports=1e6)
    frequencies = Frequencies.zipf(100)
    for target in (
        DetectionTarget(frequencies=frequencies, error_control=ErrorControl(method="bonferroni")),
        DetectionTarget(frequencies=frequencies, reports_per_device=2),
    ):
        with pytest.raises(ParamsError, match="Benjamini-Hochberg and one report a device"):
            plan(target, longest=6)
    with pytest.raises(ParamsError, match="longest must be"):
        plan(100, longest=1)
    with pytest.raises(ParamsError, match="characters must be"):
        plan(100, longest=6, characters=0)
    planned = plan(100, longest=4)
    with pytest.raises(MetricError, match="name must match"):
        planned.to_toml("No Name", expires=EXPIRES, epoch="quarter", interval="day")
