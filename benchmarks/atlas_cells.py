"""The cells of the atlas: settings in which the errors of estimates are compared with the truth.

Words of this module:

- A *factor* is a property of a collection, such as the number of cohorts. A *level* is one of its
  values. The first level of a factor is the usual level.
- A *cell* names one level of every factor: a complete setting, from which collections are drawn.
- A *grid* is the list of the cells of one kind of metric: `strings` (Bloom filters), `answers`
  (encodings with listed values: one-hot, boolean, buckets), `answers once` (listed values under
  generalized randomized response, one report a device) or `sets` (`benchmarks.atlas_sets`).

The complete product of all levels would have millions of cells. A grid contains instead:

1. the usual cell;
2. every other level alone, with the usual levels of the other factors;
3. every pair of levels of two factors at least once, with varying levels of the other factors
   (pairwise testing);
4. combinations of three or four levels that are hard together (`HARD`, `HARD_UNGRIDDED`).

A fault that needs three levels at once, and is not in the fourth list, may be missed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.atlas_sets import SETS, draw_sets
from rappor.counts.counts import Counts
from rappor.protocol.encodings import ENCODINGS, get_encoder
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES
from rappor.simulation.population import Population
from rappor.simulation.repeated_reports import simulate_days, simulate_repeated

Level = str | int
"""Value of a factor. It is a number, or the name of a setting."""
Cell = Mapping[str, Level]
"""Level of each factor, by the name of the factor. In the lists below, a cell has only the levels
that are not the usual levels."""
Factors = Mapping[str, tuple[Level, ...]]
"""Levels of each factor, by the name of the factor. The first level of a factor is its usual
level."""

BY_DAY: Final = "days"
"""Level of the factor "reports a device". Each device sends one report on each of seven days, and
each day is decoded as a collection of its own."""
SUMMED: Final = "sum of days"
"""Level of the factor "reports a device": as `BY_DAY`, but the counts of all days are added before
decoding."""
N_DAYS: Final = 7
"""Number of days that the levels `BY_DAY` and `SUMMED` have."""
CHURN: Final = 0.1
"""Probability that a device has left by the next day, in the cells with several days."""

UNEVEN: Final = "90 % in one"
"""Level of the factor "cohorts": nine tenths of the devices are in one cohort."""
EVEN: Final = "even"
"""Level of the factor "cohorts": devices are spread evenly over the cohorts."""

_REPORTS: Final = (1, 7, 30, 365, BY_DAY, SUMMED)
"""Levels of the factor "reports a device". A number is the number of reports of each device in one
collection."""

_NO_PERMANENT: Final = "no permanent noise"
"""Level of noise in which f is 0, so that only the instantaneous response adds noise."""

_PRESENT_WEIGHTS: Final = {
    "100 falling": np.exp(-0.05 * np.arange(100)),
    "5 heavy": np.array([0.4, 0.3, 0.15, 0.1, 0.05]),
    "500 Zipf": 1 / np.arange(1.0, 501.0),
    "300 equal": np.ones(300),
}
"""Weights of the strings that devices have, by level of the factor "population"."""

_PRESENT_WEIGHTS_HARD: Final = {
    "300 Zipf": 1 / np.arange(1.0, 301.0),
    "two sizes": np.array([10.0] * 30 + [1.0] * 300),
    "one": np.array([1.0]),
    **{f"{n} falling": np.arange(3.0, n + 3.0) ** -1.1 for n in (40, 50, 60)},
}
"""Weights of further levels of the factor "population". Only the cells of `HARD_UNGRIDDED` have
these levels. `STRINGS` does not contain them, so `build_cells` does not combine them with the
levels of other factors."""

_CROWDED: Final[Cell] = {"noise": "low-noise", "k": 64, "m": 8, "absent": 200}
"""Levels under which strings often set the same bits: 64 bits in each of 8 cohorts are 512 bits,
for hundreds of strings."""

STRINGS: Final[Factors] = {
    "reports a device": _REPORTS,
    "noise": ("balanced", "strict", "low-noise", _NO_PERMANENT),
    "m": (128, 1, 2, 4, 8, 16),
    "k": (128, 32, 1024),
    "h": (1, 2),
    "cohorts": (EVEN, UNEVEN),
    "population": tuple(_PRESENT_WEIGHTS),
    "no candidates": ("none", "a random half", "every other", "the heaviest"),
    "absent": (100, 0, 5000),
    "devices": (10**6, 30, 1000, 30_000, 10**9),
}
"""Levels of the factors of Bloom filters. The first level of a factor is the usual level.

"population" is the distribution of the strings that devices have. "no candidates" says which of
these strings are left out of the candidates. "absent" is the number of candidates that no device
has.
"""

HARD: Final[tuple[Cell, ...]] = (
    *(
        {"noise": _NO_PERMANENT, "m": m, "no candidates": left_out, "devices": 10**7}
        for m in (4, 8, 16)
        for left_out in ("a random half", "the heaviest")
    ),
    {"noise": _NO_PERMANENT, "m": 8, "no candidates": "every other", "population": "500 Zipf"},
    {"noise": "low-noise", "m": 16, "k": 32, "population": "300 equal", "devices": 10**7},
    {"noise": "low-noise", "m": 8, "population": "500 Zipf", "devices": 10**7},
    {"m": 2, "absent": 5000},
    {
        "noise": "low-noise",
        "m": 16,
        "population": "5 heavy",
        "reports a device": 30,
        "devices": 20_000,
    },
    {
        "noise": "low-noise",
        "m": 16,
        "population": "5 heavy",
        "reports a device": 365,
        "devices": 20_000,
    },
    {"m": 16, "cohorts": UNEVEN, "reports a device": 30},
)
"""Combinations of levels that are hard together. All other factors have their usual level.

Examples: frequent strings outside the candidates that collide with candidates in few cohorts;
nearly as many strings as equations (k m); devices with many reports, whose repeated permanent noise
dominates the error of frequent strings.
"""

HARD_UNGRIDDED: Final[tuple[Cell, ...]] = (
    {**_CROWDED, "population": "300 Zipf", "no candidates": "the heaviest", "devices": 10**8},
    {**_CROWDED, "population": "two sizes", "absent": 300, "devices": 10**8},
    {"noise": "low-noise", "m": 16, "population": "one", "devices": 30},
    *(
        {
            "m": m,
            "k": 128 if m > 1 else 256,
            "population": distribution,
            "absent": absent,
            "devices": 10**7,
        }
        for m in (1, 2, 3, 4)
        for distribution, absent in (("60 falling", 60), ("50 falling", 100), ("40 falling", 40))
    ),
)
"""Further hard combinations, with levels that `STRINGS` does not contain. `build_cells` does not
know them, so they cover no pair of levels."""

_CATEGORIES: Final = tuple(f"a{i}" for i in range(1000))
"""The categories of one-hot encodings have these names."""

_ENCODINGS: Final = {
    "onehot, 20": ("onehot", _CATEGORIES[:20]),
    "onehot, 1000": ("onehot", _CATEGORIES),
    "onehot, 120": ("onehot", _CATEGORIES[:120]),
    "boolean": ("boolean", ()),
    "buckets, 16": ("buckets", tuple(str(i) for i in range(17))),
}
"""Maps a level of the factor "encoding" to the name of the encoding and its categories or edges."""

_VALUES: Final = {
    "onehot": ("a0", "a1", "a2"),
    "boolean": ("no", "false", "yes"),
    "buckets": ("0.5", "3.5", "7.5"),
}
"""The three values that devices have, by encoding. `_WEIGHTS` has their weights."""

ANSWERS: Final[Factors] = {
    "reports a device": _REPORTS,
    "noise": ("balanced", "strict", "low-noise", _NO_PERMANENT),
    "encoding": ("onehot, 20", "onehot, 1000", "boolean", "buckets, 16"),
    "population": ("several", "one rare", "one"),
    "devices": (10_000, 30, 100, 1000, 10**6, 10**9),
}
"""Levels of the factors of encodings with listed values. Such metrics need no candidates."""

ANSWERS_ONCE: Final[Factors] = {
    "reports a device": (1,),
    "noise": ("once",),
    "encoding": ("onehot, 20", "onehot, 120", "buckets, 16"),
    "population": ANSWERS["population"],
    "devices": ANSWERS["devices"],
}
"""Levels of the factors of listed values under the profile `once`: generalized randomized response.
A device makes one report, so no cell has several reports a device. The encoding `boolean` keeps its
own response."""

GRIDS: Final[Mapping[str, Factors]] = {
    "strings": STRINGS,
    "answers": ANSWERS,
    "answers once": ANSWERS_ONCE,
    "sets": SETS,
}
"""Factors and levels of each grid, by the name of the grid. `list_cells` builds the cells of each
grid."""

_WEIGHTS: Final = {"several": (0.5, 0.4, 0.1), "one rare": (0.5, 0.49, 0.01), "one": (1, 0, 0)}
"""Maps a level of the factor "population" of the grid `answers` to the weights of the three values
in `_VALUES`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeInput:
    """Input of a decode, and the truth.

    Attributes
    ----------
    counts : one collection, or one collection for each day.
    candidates : strings to test; None for encodings with listed values.
    shares : true share of every candidate or category, 0 for absent ones.
    """

    counts: list[Counts]
    candidates: list[str] | None
    shares: dict[str, float]


def list_cells() -> dict[str, list[Cell]]:
    """Return the cells of all grids, by the name of the grid."""
    usual = {name: levels[0] for name, levels in STRINGS.items()}
    further: list[Cell] = [{**usual, **levels} for levels in HARD_UNGRIDDED]
    cells = {name: build_cells(factors) for name, factors in GRIDS.items() if name != "strings"}
    return {"strings": build_cells(STRINGS, HARD) + further, **cells}


def build_cells(factors: Factors, added: Sequence[Cell] = ()) -> list[Cell]:
    """Return the cells of a grid: lists 1 to 4 of the docstring of the module.

    Parameters
    ----------
    factors : levels of each factor
    added : hard combinations, which have only the levels that are not the usual levels
    """
    usual = {name: levels[0] for name, levels in factors.items()}
    chosen: list[Cell] = [usual]
    for name, levels in factors.items():
        chosen += [{**usual, name: level} for level in levels[1:]]
    chosen += [{**usual, **levels} for levels in added]
    # Greedy pairwise testing: a new cell begins with the first pair that no cell has yet
    # (`missing`). Each other factor gets the level that covers most missing pairs. A dictionary
    # with the value None is a set that keeps its order, so the cells are the same in every run.
    missing = dict.fromkeys(pair for pair in _list_all_pairs(factors) if _is_possible(dict(pair)))
    for cell in chosen:
        _remove(missing, cell)
    while missing:
        cell = _fill(dict(next(iter(missing))), factors, missing)
        _remove(missing, cell)
        chosen.append({name: cell[name] for name in factors})
    return chosen


Pair = tuple[tuple[str, Level], tuple[str, Level]]
"""Two factors, each with one of its levels. A cell of the grid must have both levels."""


def _list_all_pairs(factors: Factors) -> Iterator[Pair]:
    """Yield every pair of levels of two different factors."""
    for first, second in itertools.combinations(factors.items(), 2):
        (first_name, first_levels), (second_name, second_levels) = first, second
        for first_level, second_level in itertools.product(first_levels, second_levels):
            yield (first_name, first_level), (second_name, second_level)


def _is_possible(cell: Cell) -> bool:
    """Return whether levels can occur together: uneven cohorts need several cohorts."""
    return not (cell.get("m") == 1 and cell.get("cohorts") == UNEVEN)


def _fill(cell: dict[str, Level], factors: Factors, missing: Mapping[Pair, None]) -> Cell:
    """Return a complete cell from a cell with the levels of two factors.

    Every other factor gets the level that covers most missing pairs with the levels that the cell
    already has. If several levels cover equally many pairs, the first level is taken.
    """
    for name, levels in factors.items():
        if name in cell:
            continue
        possible = [level for level in levels if _is_possible({**cell, name: level})]
        n_covered = [_count_missing(cell, name, level, missing) for level in possible]
        cell[name] = possible[n_covered.index(max(n_covered))]
    return cell


def _count_missing(cell: Cell, name: str, level: Level, missing: Mapping[Pair, None]) -> int:
    """Count the missing pairs of a level with the levels that the cell already has."""
    return sum(
        ((other_name, other_level), (name, level)) in missing
        or ((name, level), (other_name, other_level)) in missing
        for other_name, other_level in cell.items()
    )


def _remove(missing: dict[Pair, None], cell: Cell) -> None:
    """Remove the pairs that a cell has from the missing pairs."""
    for pair in [pair for pair in missing if all(cell[name] == level for name, level in pair)]:
        del missing[pair]


def draw(cell: Cell, seed: int) -> DecodeInput:
    """Draw one collection of a cell.

    The names of the strings contain the seed. So every seed has other strings, which set other
    bits.
    """
    if "items" in cell:
        counts, shares = draw_sets(cell, seed)
        return DecodeInput(counts=[counts], candidates=list(shares), shares=shares)
    # Of the other grids, only the grid of strings has a number of cohorts.
    return _draw_strings(cell, seed) if "m" in cell else _draw_answers(cell, seed)


def _make_params(cell: Cell, encoding: str, categories: tuple[str, ...]) -> Params:
    """Return parameters with the noise of a cell."""
    if cell["noise"] in PROFILES:
        # `balanced`, `strict` or `low-noise`
        return Params.profile(str(cell["noise"]), encoding=encoding, categories=categories)
    k = ENCODINGS[encoding].count_bits(categories) or 128
    return Params(encoding=encoding, k=k, categories=categories, f=0.0, p=0.225, q=0.775)


def _draw_strings(cell: Cell, seed: int) -> DecodeInput:
    """Draw one collection of strings, with its candidates and their true shares."""
    weights = {**_PRESENT_WEIGHTS, **_PRESENT_WEIGHTS_HARD}[str(cell["population"])]
    names = [f"{seed}/held/{i}" for i in range(len(weights))]
    population = Population(names, weights)
    k, h, m = (int(cell[letter]) for letter in "khm")
    params = dataclasses.replace(_make_params(cell, "bloom", ()), k=k, h=h, m=m)
    n = len(names)
    # Indices of the strings that are candidates, by the strings that are no candidates. The weights
    # never rise, so no string is heavier than the string with index 0.
    listed = {
        "none": np.arange(n),
        "a random half": np.sort(np.random.default_rng([seed, 1]).permutation(n)[: n // 2]),
        "every other": np.arange(0, n, 2),
        "the heaviest": np.arange(1, n),
    }[str(cell["no candidates"])]
    shares = {names[i]: float(population.weights[i]) for i in listed}
    shares |= {f"{seed}/absent/{i}": 0.0 for i in range(int(cell["absent"]))}
    return DecodeInput(
        counts=_collect(population, params, cell, seed), candidates=list(shares), shares=shares
    )


def _draw_answers(cell: Cell, seed: int) -> DecodeInput:
    """Draw one collection of an encoding with listed values, with the true share of each value."""
    name, categories = _ENCODINGS[str(cell["encoding"])]
    params = _make_params(cell, name, categories)
    population = Population(_VALUES[name], _WEIGHTS[str(cell["population"])])
    encoding = get_encoder(params)
    shares = dict.fromkeys(encoding.category_labels, 0.0)
    for value, share in zip(population.values, population.weights.tolist(), strict=True):
        for i in encoding.find_set_bits(encoding.parse_value(value), 0):
            shares[encoding.category_labels[i]] += share
    return DecodeInput(
        counts=_collect(population, params, cell, seed), candidates=None, shares=shares
    )


def _collect(population: Population, params: Params, cell: Cell, seed: int) -> list[Counts]:
    """Draw the collections of a cell: one collection, or one for each day."""
    n, reports = int(cell["devices"]), cell["reports a device"]
    if cell.get("cohorts", EVEN) == EVEN:
        days = _draw(population, params, n, reports, seed=2 * seed)
    else:
        # A tenth of the devices are spread evenly over the cohorts. The other nine tenths are in
        # the first cohort: m times as many devices are drawn, of which about one in m is in the
        # first cohort, and the others are dropped.
        spread = _draw(population, params, n // 10, reports, seed=2 * seed)
        many = _draw(population, params, (n - n // 10) * params.m, reports, seed=2 * seed + 1)
        days = [
            spread_day.add(_keep_first_cohort(many_day), same_devices=False)
            for spread_day, many_day in zip(spread, many, strict=True)
        ]
    return [sum(days[1:], days[0])] if reports == SUMMED else days


def _draw(
    population: Population, params: Params, n_devices: int, reports: Level, *, seed: int
) -> list[Counts]:
    """Draw devices with a number of reports each, or the counts of each day."""
    if isinstance(reports, int):
        devices = {reports: n_devices}
        return [simulate_repeated(population, params, devices=devices, seed=seed).counts]
    return simulate_days(
        population, params, n_devices=n_devices, n_days=N_DAYS, churn=CHURN, seed=seed
    )


def _keep_first_cohort(counts: Counts) -> Counts:
    """Return the counts without all cohorts but the first. Reports per device stay the same."""
    first: NDArray[np.int64] = (np.arange(counts.params.m) == 0).astype(np.int64)
    first_cohort_counts = Counts(
        counts.params, counts.bit_counts * first[:, None], counts.cohort_reports * first
    )
    return first_cohort_counts.with_devices(reports_per_device=counts.reports_per_device)
