"""Association of two fields of a tuple: errors of cells, size and power of the test.

Three questions, each a table:

1. *Cells.* How large are the errors of the joint shares of 20 strings and 5 categories, and do the
   intervals contain the truth? Of 100,000 devices, 30 % have other strings. This project sends both
   fields in one report. The comparison is the method of google/rappor: a device sends two separate
   reports (*answers*), one for each field, with a loss of 2 nats each (4 nats in all). Expectation
   maximisation then computes the joint shares with the greatest likelihood. The answer for the
   string has google/rappor's bits (two hash functions, symmetric noise), or the better bits of this
   project (one hash function, optimized unary encoding).
2. *Size.* How often does the test reject independent fields, at a level of 5 %? The tables have
   3 x 3 and 2 x 5 cells of categories (one-hot), and 20 x 5 cells of strings, with and without 30 %
   of values outside the lists.
3. *Power.* How often does the test reject dependent fields, compared with the prediction of
   `rappor plan`?

The first field has the values a of the rows, and the second one the values b of the columns. The
true share of a cell is s(a, b). Errors are measured as the total variation

    sum over the cells of |estimate(a, b) - s(a, b)| / 2,

which is 0 without an error and at most 1 for estimates that are shares. The strength of the
dependence is Cramer's V: 0 for independent fields, 1 if each field determines the other.

The comparison with two answers is `measure_reference`. Let L_i(a) be the probability of the first
answer of device i if its first value is a, and M_i(b) the probability of its second answer if its
second value is b. Expectation maximisation begins with equal shares. Each step multiplies

    s(a, b)   by   sum over i of L_i(a) M_i(b) / (sum over a', b' of s(a', b') L_i(a') M_i(b'))

and divides the shares by their sum. A factor of L_i that is the same for all a has no effect, so
likelihood ratios are enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import run_many, start_pool
from benchmarks.tables import Table
from rappor.association.associate import associate
from rappor.association.association import Association
from rappor.association.share_table import ShareTable
from rappor.decoding.decoder import decode
from rappor.planning.association_power import predict_association
from rappor.protocol.params import Params
from rappor.protocol.tuples import combine_categories
from rappor.simulation.collection import simulate_counts
from rappor.simulation.population import Population

Floats = NDArray[np.float64]

LEVEL: Final = 0.05
"""Probability that the test may reject independent fields."""

SIZE_TARGET: Final = (0.035, 0.065)
"""Smallest and largest accepted share of rejected independent fields, at a level of 5 %. The table
widens the range by two standard errors of the measured share."""

COVERAGE_TARGET: Final = (0.94, 0.96)
"""Smallest and largest accepted share of the intervals of cells that contain the truth."""

TRUE_V: Final = 0.2
"""Cramer's V of the fields whose errors are measured."""

UNLISTED: Final = 0.3
"""Share of the devices whose strings or categories are in no list."""

N_OTHERS: Final = 200
"""Number of different strings outside the lists. All these strings together have the share
`UNLISTED`, so with a larger number each string is rarer."""

EPSILON_EACH: Final = 2.0
"""Each of the two answers of the reference loses this number of nats."""

EM_STEPS: Final = 1000
"""Number of steps of expectation maximisation. The steps approach the greatest likelihood, which is
not the least error: one collection with optimized bits had a total variation of .071 after 300
steps, .077 after 1,000 and .078 after 1,500. Further steps change little."""

REFERENCE_RUNS: Final = 20
"""Largest number of collections of two answers. Each takes 15 seconds of CPU time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting of simulated collections of two fields.

    Attributes
    ----------
    shape : numbers of listed values of the two fields, A and B.
    profile : name of the profile of the reports.
    n_reports : number of devices, each with one report.
    unlisted : share of the devices whose values are in no list.
    cramers_v : true Cramer's V of the fields.
    has_equal_frequencies : True for values of equal frequency. False for frequencies that fall like
        1 / rank (first field) and 1 / sqrt(rank) (second field).
    are_strings : True for strings, False for categories (one-hot).
    """

    shape: tuple[int, int]
    profile: str
    n_reports: int
    unlisted: float = UNLISTED
    cramers_v: float = 0.0
    has_equal_frequencies: bool = False
    are_strings: bool = False

    @property
    def fields(self) -> dict[str, list[str]]:
        """Names of the listed values of each field."""
        n_rows, n_columns = self.shape
        return {
            "site": [f"site {a}" for a in range(n_rows)],
            "country": [f"country {b}" for b in range(n_columns)],
        }

    @property
    def candidates(self) -> tuple[str, ...]:
        """All combinations of the listed values."""
        return combine_categories(self.fields)

    @property
    def params(self) -> Params:
        """Parameters of the reports."""
        names = tuple(self.fields)
        if self.are_strings:
            return Params.profile(self.profile, field_names=names)
        return Params.profile(
            self.profile, encoding="onehot", categories=self.candidates, field_names=names
        )

    @property
    def truth(self) -> Floats:
        """True shares of the cells, (A, B), with the sum 1 - unlisted."""
        return (1 - self.unlisted) * make_dependent_table(
            self.shape, self.cramers_v, has_equal_frequencies=self.has_equal_frequencies
        )

    @property
    def population(self) -> Population:
        """The listed tuples, and the tuples outside the lists."""
        n_others = N_OTHERS if self.are_strings else 1
        columns = itertools.cycle(self.fields["country"])
        other_pairs = [f"other {i}\x1f{next(columns)}" for i in range(n_others)]
        if not self.unlisted:
            return Population(list(self.candidates), self.truth.ravel())
        weights = np.concatenate([self.truth.ravel(), np.full(n_others, self.unlisted / n_others)])
        return Population([*self.candidates, *other_pairs], weights)


def make_dependent_table(
    shape: tuple[int, int], cramers_v: float, *, has_equal_frequencies: bool
) -> Floats:
    """Return shares of cells with a given Cramer's V, (A, B) with the sum 1.

    The table is I + t (D - I), where I is the independent table, and D is a table with the same
    margins whose cells are 0 except around the diagonal. So D is strongly dependent. Cramer's V of
    the table grows in proportion to t, so t is the given V divided by the V of D.
    """
    powers = (0.0, 0.0) if has_equal_frequencies else (1.0, 0.5)
    row, column = (np.arange(1.0, n + 1) ** -power for n, power in zip(shape, powers, strict=True))
    row, column = row / row.sum(), column / column.sum()
    independent = np.outer(row, column)
    # The share of a cell of the second table is the overlap of two intervals of [0, 1], whose
    # lengths are the margins.
    row_ends, column_ends = np.cumsum(row), np.cumsum(column)
    tops = np.minimum.outer(row_ends, column_ends)
    bottoms = np.maximum.outer(row_ends - row, column_ends - column)
    difference = np.maximum(tops - bottoms, 0.0) - independent
    # Cramer's V of D: V^2 = sum of (share - independent)^2 / independent, over (min(A, B) - 1).
    largest = np.sqrt((difference**2 / independent).sum() / (min(shape) - 1))
    return np.asarray(independent + cramers_v / largest * difference)


def associate_once(seed: int, setting: Setting) -> Association:
    """Simulate one collection, and compute its association."""
    counts = simulate_counts(
        setting.population, setting.params, n_reports=setting.n_reports, seed=seed
    )
    return associate(decode(counts, setting.candidates if setting.are_strings else None))


def sort_truth(association: Association, setting: Setting) -> Floats:
    """Return the true shares of the cells in the order of an association, (A, B).

    An association sorts the values of strings by their estimates.
    """
    rows, columns = (
        [values.index(value) for value in order]
        for values, order in zip(
            setting.fields.values(),
            (association.row_values, association.column_values),
            strict=True,
        )
    )
    return setting.truth[np.ix_(rows, columns)]


class Coverage(NamedTuple):
    """Shares of the 95 % intervals that contain the truth, from 0 to 1.

    Attributes
    ----------
    cells : coverage of the intervals of all cells of the table.
    margins : coverage of the intervals of the sums of rows and of columns.
    conditional_shares : coverage of the intervals of the shares within rows and within columns.
    cramers_v : coverage of the single interval of Cramer's V: 0 or 1 in one collection.
    """

    cells: float
    margins: float
    conditional_shares: float
    cramers_v: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionErrors:
    """Errors of one collection.

    Attributes
    ----------
    total_variation : half of the sum of the absolute errors of all cells.
    coverage : share of the intervals that contain the truth, for each kind of interval.
    """

    total_variation: float
    coverage: Coverage


def measure_errors(seed: int, setting: Setting) -> CollectionErrors:
    """Compute the errors of one collection."""
    association = associate_once(seed, setting)
    truth = sort_truth(association, setting)
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    margins = [_is_covered(association.row_margins, rows)]
    margins.append(_is_covered(association.column_margins, columns))
    conditional = [_is_covered(association.within_rows, truth / rows[:, None])]
    conditional.append(_is_covered(association.within_columns, truth / columns))
    strength = association.cramers_v
    return CollectionErrors(
        total_variation=float(np.abs(association.cells.share - truth).sum() / 2),
        coverage=Coverage(
            cells=float(_is_covered(association.cells, truth).mean()),
            margins=float(np.concatenate(margins).mean()),
            conditional_shares=float(np.concatenate([part.ravel() for part in conditional]).mean()),
            cramers_v=float(strength.ci_low <= setting.cramers_v <= strength.ci_high),
        ),
    )


def compute_mean_coverage(coverages: Sequence[Coverage]) -> Coverage:
    """Compute the mean coverage over several collections, of each kind of interval."""
    return Coverage(*(float(mean) for mean in np.mean(coverages, axis=0)))


def _is_covered(table: ShareTable, truth: Floats) -> NDArray[np.bool_]:
    """Return whether each interval contains the truth."""
    return np.asarray((table.ci_low <= truth) & (truth <= table.ci_high))


def measure_p_value(seed: int, setting: Setting) -> float:
    """Return the p-value of the test of independence of one collection."""
    return associate_once(seed, setting).independence.p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class BitAnswer:
    """Answer of one string by bits, with a loss of `EPSILON_EACH` nats.

    Attributes
    ----------
    n_bits, n_hashes : k and h.
    high, low : probabilities that a true and a false bit are sent as 1.
    """

    n_bits: int
    n_hashes: int
    high: float
    low: float


GOOGLE: Final = BitAnswer(
    n_bits=32,
    n_hashes=2,
    high=float(1 / (1 + np.exp(-EPSILON_EACH / 4))),
    low=float(1 / (1 + np.exp(EPSILON_EACH / 4))),
)
"""Bits of google/rappor. Two strings differ in up to four bits, each of which loses a quarter of
the nats: ln(high / low) = `EPSILON_EACH` / 4, with low = 1 - high."""

OPTIMIZED: Final = BitAnswer(
    n_bits=128, n_hashes=1, high=0.5, low=float(1 / (np.exp(EPSILON_EACH) + 1))
)
"""Optimized unary encoding, which has the least variance for rare strings (Wang et al. 2017). Two
strings differ in one bit in each direction: ln(high / low) + ln((1 - low) / (1 - high)) =
`EPSILON_EACH`."""


def measure_reference(seed: int, setting: Setting, bit_design: BitAnswer) -> float:
    """Return the total variation of two separate answers with maximum likelihood.

    The first answer has bits in 128 cohorts. The second answer is generalized randomized response.
    Each loses `EPSILON_EACH` nats.
    """
    rng = np.random.default_rng(seed)
    truth = setting.truth
    n_rows, n_columns = truth.shape
    # A last row for all strings outside the list. Their categories are equally frequent.
    unlisted_shares = np.full((1, n_columns), setting.unlisted / n_columns)
    table = np.vstack([truth, unlisted_shares])
    cell_indices = rng.choice(table.size, setting.n_reports, p=table.ravel() / table.sum())
    rows, columns = np.divmod(cell_indices, n_columns)
    row_likelihood = draw_bit_answers(rng, rows, n_rows, bit_design)
    column_likelihood = draw_bucket_answers(rng, columns, n_columns)
    estimate = maximise_likelihood(row_likelihood, column_likelihood)
    return float(np.abs(estimate[:n_rows] - truth).sum() / 2)


def draw_bit_answers(
    rng: np.random.Generator, rows: NDArray[np.int64], n_rows: int, bit_design: BitAnswer
) -> NDArray[np.float32]:
    """Draw answers of bits, and return the likelihood ratio of each listed row and of all others.

    The ratio is the probability of the answer if the device has the string, divided by the
    probability if no bit is true. It is a product over the true bits of the string:

        bit sent as 1    high / low
        bit sent as 0    (1 - high) / (1 - low)

    A string outside the list has true bits at random, so its ratio is about the mean of these
    factors over all bits, to the power of the number of hash functions.

    Parameters
    ----------
    rng : source of random numbers.
    rows : (devices,) int64. Index of the string of each device; n_rows for all other strings.
    n_rows : number of listed strings.
    bit_design : the bits and their noise.

    Returns
    -------
    (devices, n_rows + 1) float32. The last column stands for all other strings.
    """
    n, n_cohorts, k = len(rows), 128, bit_design.n_bits
    positions = rng.integers(k, size=(n_cohorts, n_rows, bit_design.n_hashes))
    cohort = rng.integers(n_cohorts, size=n)
    # A device with a string outside the list has random true bits.
    unlisted_bits = rng.integers(k, size=(n, bit_design.n_hashes))
    is_listed = (rows < n_rows)[:, None]
    true_bits = np.where(is_listed, positions[cohort, np.minimum(rows, n_rows - 1)], unlisted_bits)
    is_true = np.zeros((n, k), dtype=bool)
    np.put_along_axis(is_true, true_bits, values=True, axis=1)
    sent = rng.random((n, k), dtype=np.float32) < np.where(is_true, bit_design.high, bit_design.low)
    ratio = np.where(
        sent, bit_design.high / bit_design.low, (1 - bit_design.high) / (1 - bit_design.low)
    ).astype(np.float32)
    likelihood = np.empty((n, n_rows + 1), dtype=np.float32)
    for a in range(n_rows):
        bits = positions[cohort, a]
        values = np.take_along_axis(ratio, bits, axis=1)
        # Two hash functions may choose the same bit, which counts once.
        values[:, 1:][bits[:, 1:] == bits[:, :1]] = 1.0
        likelihood[:, a] = values.prod(axis=1)
    likelihood[:, -1] = ratio.mean(axis=1) ** bit_design.n_hashes
    return likelihood


def draw_bucket_answers(
    rng: np.random.Generator, columns: NDArray[np.int64], n_columns: int
) -> NDArray[np.float32]:
    """Draw answers of generalized randomized response, and return their likelihoods.

    With B columns, a device sends its own column with the probability e / (e + B - 1), where e is
    exp(`EPSILON_EACH`), and otherwise one of the other columns at random.

    Returns
    -------
    (devices, n_columns) float32.
    """
    p_own = np.exp(EPSILON_EACH) / (np.exp(EPSILON_EACH) + n_columns - 1)
    # A shift of 1 to B - 1 columns, modulo B, gives each other column with equal probability.
    shift = rng.integers(1, n_columns, size=len(columns))
    is_own = rng.random(len(columns)) < p_own
    sent = np.where(is_own, columns, (columns + shift) % n_columns)
    likelihood = np.full((len(columns), n_columns), (1 - p_own) / (n_columns - 1), np.float32)
    likelihood[np.arange(len(columns)), sent] = p_own
    return likelihood


def maximise_likelihood(
    row_likelihood: NDArray[np.float32], column_likelihood: NDArray[np.float32]
) -> Floats:
    """Compute the joint shares with the greatest likelihood by expectation maximisation.

    The opening of the module has the formula of a step.

    Parameters
    ----------
    row_likelihood : (devices, A + 1). Likelihood of each device's first answer, by row value.
    column_likelihood : (devices, B). Likelihood of its second answer, by column value.

    Returns
    -------
    (A + 1, B) float64.
    """
    n_rows, n_columns = row_likelihood.shape[1], column_likelihood.shape[1]
    shares = np.full((n_rows, n_columns), 1 / (n_rows * n_columns))
    for _ in range(EM_STEPS):
        by_column = row_likelihood @ shares.astype(np.float32)
        weight = 1 / (by_column * column_likelihood).sum(axis=1)
        shares = shares * (row_likelihood.T @ (column_likelihood * weight[:, None]))
        shares /= shares.sum()
    return np.asarray(shares, dtype=float)


def associations(*, quick: bool) -> list[Table]:
    """Measure errors, size and power."""
    # With 200 collections, a measured share of 5 % has a standard error of 1.5 %.
    n_runs = 20 if quick else 200
    with start_pool() as pool:
        return [
            _tabulate_errors(n_runs, pool),
            _tabulate_sizes(n_runs, pool),
            _tabulate_power(n_runs, pool),
        ]


def _tabulate_errors(n_runs: int, pool: Executor) -> Table:
    """Measure the errors of 20 x 5 cells at two losses, and those of the reference."""
    table = Table(
        title=f"association: 20 strings x 5 categories, 30 % others, 1e5 devices, {n_runs} "
        "collections",
        columns=(
            *("reports", "total variation", "cells covered", "margins covered"),
            *("conditional covered", "V covered"),
        ),
        note="Covered: share of the 95 % intervals that contain the truth. Two answers have a "
        "tenth of the collections, and no intervals.",
    )
    setting = Setting(
        shape=(20, 5), profile="", n_reports=100_000, cramers_v=TRUE_V, are_strings=True
    )
    for profile, losses in {"balanced": "2, 4", "low-noise": "4, 6", "once": "4, 4"}.items():
        measure = partial(measure_errors, setting=replace(setting, profile=profile))
        runs = run_many(measure, n_runs, pool)
        coverage = compute_mean_coverage([run.coverage for run in runs])
        variation = float(np.mean([run.total_variation for run in runs]))
        table.rows.append([f"one tuple, {profile} ({losses}) nats", variation, *coverage])
    n_reference = min(max(n_runs // 10, 1), REFERENCE_RUNS)
    for name, bit_design in {"google/rappor's": GOOGLE, "optimized": OPTIMIZED}.items():
        measure_two = partial(measure_reference, setting=setting, bit_design=bit_design)
        variation = float(np.mean(run_many(measure_two, n_reference, pool)))
        label = f"two answers of 2 nats, {name} bits"
        table.rows.append([label, variation, *[float("nan")] * 4])
    return table


def _tabulate_sizes(n_runs: int, pool: Executor) -> Table:
    """Measure how often independent fields are rejected.

    Tables of categories take little time, so they have three times as many collections.
    """
    table = Table(
        title=f"association: rejected independent fields at {LEVEL:.0%}",
        columns=("table", "reports", "unlisted", "devices", "collections", "rejected", "target"),
        note="Target: .035 to .065, widened by two standard errors of the measured share.",
    )
    kinds = [("balanced", (3, 3)), ("once", (3, 3)), ("balanced", (2, 5)), ("once", (2, 5))]
    settings = [
        Setting(shape=shape, profile=profile, n_reports=n, unlisted=unlisted, are_strings=strings)
        for strings, (profile, shape) in [
            *((False, kind) for kind in kinds),
            (True, ("balanced", (20, 5))),
        ]
        for unlisted in (0.0, UNLISTED)
        for n in (20_000, 100_000, 1_000_000)
    ]
    for setting in settings:
        n = n_runs if setting.are_strings else 3 * n_runs
        p_values = np.array(run_many(partial(measure_p_value, setting=setting), n, pool))
        rejected = float(np.mean(p_values <= LEVEL))
        margin = 2 * (LEVEL * (1 - LEVEL) / n) ** 0.5
        is_met = SIZE_TARGET[0] - margin <= rejected <= SIZE_TARGET[1] + margin
        table.rows.append(
            [
                f"{setting.shape[0]} x {setting.shape[1]}",
                f"{'strings' if setting.are_strings else 'one-hot'}, {setting.profile}",
                *(setting.unlisted, setting.n_reports, n, rejected, "met" if is_met else "missed"),
            ]
        )
    return table


def _tabulate_power(n_runs: int, pool: Executor) -> Table:
    """Measure how often dependent fields are rejected, and compare with the prediction."""
    table = Table(
        title=f"association: rejected dependent fields at {LEVEL:.0%}, {n_runs} collections",
        columns=("table", "reports", "unlisted", "devices", "V", "predicted", "rejected"),
        note="All values of a field are equally frequent, as the prediction assumes.",
    )
    for profile, shape, strings, unlisted in (
        ("once", (3, 3), False, 0.0),
        ("balanced", (2, 5), False, UNLISTED),
        ("balanced", (20, 5), True, 0.0),
        ("balanced", (20, 5), True, UNLISTED),
        ("low-noise", (20, 5), True, UNLISTED),
    ):
        independent = Setting(
            shape=shape, profile=profile, n_reports=100_000, unlisted=unlisted,
            are_strings=strings, has_equal_frequencies=True,
        )  # fmt: skip
        for power in (0.5, 0.8):
            planned = predict_association(
                independent.params, shape, reports=100_000, listed=1 - unlisted, power=power
            )
            assert planned.cramers_v is not None
            setting = replace(independent, cramers_v=planned.cramers_v)
            p_values = np.array(run_many(partial(measure_p_value, setting=setting), n_runs, pool))
            kind = f"{'strings' if strings else 'one-hot'}, {profile}"
            table.rows.append(
                [
                    *(f"{shape[0]} x {shape[1]}", kind, unlisted, 100_000, planned.cramers_v),
                    *(power, float(np.mean(p_values <= LEVEL))),
                ]
            )
    return table
