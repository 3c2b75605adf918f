"""Plans of a discovery: parts of strings, and the number of found strings."""

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
SPREAD = 4.0
"""Standard deviation of the strings found in one collection of `small`, at most: some sixty strings
are neither certain nor impossible, each with a variance of at most 1/4."""


def small() -> DiscoveryPlan:
    """Plan for 200 strings of four letters, from an alphabet of twelve."""
    return plan_discovery(
        200, epsilon_1=2, epsilon_inf=4, reports=1e6, longest=4, characters=len(TWELVE)
    )


def look(planned: DiscoveryPlan, seed: int) -> tuple[DiscoveredStrings, set[str]]:
    """Simulate a collection of the plan, and discover its strings."""
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
    """The mean number of found strings agrees with the plan within two strings.

    The numbers of candidates and of kept prefixes equal those of `discover`.
    """
    planned, n_detected = small(), []
    for seed in range(n_runs):
        discovered, words = look(planned, seed)
        n_detected.append(len(set(discovered.strings) & words))
        (prefix,) = discovered.prefixes
        assert prefix.candidates == planned.layout.candidates[0]
        # Prefixes with a positive estimate: six standard deviations of as many even coins.
        assert abs(prefix.kept - planned.layout.kept[0]) < 3 * prefix.candidates**0.5
    assert abs(np.mean(n_detected) - planned.layout.found) < off + 6 * SPREAD / n_runs**0.5


def test_parts_divide_the_devices_and_reach_the_longest_string() -> None:
    """The prefixes have increasing lengths, the shares sum to 1, and the registry reads back."""
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
    """More reports, or a larger loss, find more strings."""
    expected = [
        plan_discovery(1000, epsilon_1=e, epsilon_inf=2 * e, reports=n, longest=6).layout.found
        for e, n in ((2, 1e5), (2, 1e6), (2, 1e7), (4, 1e7))
    ]
    assert expected == sorted(expected)


def test_strings_that_no_parts_reach_are_refused() -> None:
    """Strings that five prefixes cannot reach are refused."""
    with pytest.raises(DecodeError, match="do not reach strings of 40"):
        plan_discovery(1000, epsilon_1=2, epsilon_inf=4, reports=1e6, longest=40)


def test_what_cannot_be_planned_is_refused() -> None:
    """Other corrections, repeated reports and numbers outside their range are refused."""
    ask = functools.partial(plan_discovery, epsilon_1=2, epsilon_inf=4, reports=1e6)
    frequencies = Frequencies.zipf(100)
    for question in (
        DetectionTarget(frequencies=frequencies, error_control=ErrorControl(method="bonferroni")),
        DetectionTarget(frequencies=frequencies, reports_per_device=2),
    ):
        with pytest.raises(ParamsError, match="Benjamini-Hochberg and one report a device"):
            ask(question, longest=6)
    with pytest.raises(ParamsError, match="longest must be"):
        ask(100, longest=1)
    with pytest.raises(ParamsError, match="characters must be"):
        ask(100, longest=6, characters=0)
    planned = ask(100, longest=4)
    with pytest.raises(MetricError, match="name must match"):
        planned.to_toml("No Name", expires=EXPIRES, epoch="quarter", interval="day")
