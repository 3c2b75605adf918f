"""The tables of [EPK14] section 5: the published figure, the closed form and our measurement.

The tables show which figures of the paper this project reproduces. Each experiment has a table:

    section 5.1         integers from a normal distribution, one bin for each integer
    section 5.2         200 candidates; the shares of the first 100 fall exponentially (its Table 1)
    section 5.3         names of processes
    section 5.4         home pages
    figure of a grid    combinations of bits k, hashes h and cohorts m

A row of a table is one figure, such as a standard error or a number of detected strings. The
columns:

- *Published* is the figure of the paper, "-" if it states none.
- *Closed form* is a formula for the figure, mostly from the standard error of a count.
- *Ours* is the mean over simulated collections with the paper's parameters.
- *Reproduced* is "yes" or "no", with the reason.

A level is the probability that an absent string is detected. A string is detected if its estimate,
in standard errors, exceeds the quantile of the normal distribution for the level. Bonferroni's
correction for c candidates uses the level 5 % / c for each of them.

[EPK14] is Erlingsson, Pihur, Korolova: RAPPOR, CCS 2014 (arXiv 1407.6981).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.accuracy import DESIGNS, Run, detect, run_many, start_pool
from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.estimator.error_control import ErrorControl
from rappor.planning.detection_limit import compute_standard_error
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.simulation.collection import simulate, simulate_counts
from rappor.simulation.population import Population

_COLUMNS = ("what", "published", "closed form", "ours", "reproduced")
_NONE = float("nan")
"""Value of a cell without a figure. It is printed as a dash."""

NORMAL = Params(
    k=101,
    h=1,
    m=1,
    f=0.0,
    p=0.5,
    q=0.75,
    encoding="onehot",
    categories=tuple(f"{i:03}" for i in range(101)),
)
"""Parameters of section 5.1. A category is a bin, and each bin has one bit."""

PROCESSES = Params(k=128, h=2, m=8, f=0.5, p=0.5, q=0.75)
"""Section 5.3 of the paper collected names of processes with these parameters."""

HOMEPAGES = Params(k=128, h=2, m=32, f=0.75, p=0.5, q=0.75)
"""Section 5.4 of the paper collected home pages with these parameters."""

N_PROCESSES, N_HOMEPAGES, N_CANDIDATES = 186_792, 14_000_000, 8_616
"""The paper states these numbers of reports in section 5.3, of reports in section 5.4, and of
candidates in section 5.4."""


def tables(*, quick: bool) -> list[Table]:
    """Measure every table. A quick run has few collections."""
    n_runs = 4 if quick else 40
    with start_pool() as pool:
        normal = {
            n: run_many(partial(_measure_bin_error, n_clients=n), n_runs, pool) for n in _SIZES
        }
        table_1 = run_many(partial(detect, params=DESIGNS["paper"]), n_runs, pool)
        processes = run_many(_find_processes, n_runs, pool)
        homepages = run_many(_find_homepages, max(n_runs // 4, 2), pool)
        results_by_params = {
            cell: run_many(partial(_run_grid_cell, params=cell), 3 if quick else 10, pool)
            for cell in list_grid_cells(quick=quick)
        }
    return [
        _tabulate_normal(normal),
        _tabulate_exponential(table_1),
        _tabulate_processes(processes),
        _tabulate_homepages(homepages),
        *_tabulate_grid(results_by_params),
    ]


_SIZES = (10_000, 100_000, 1_000_000)
"""Numbers of clients in section 5.1. Each number has a row of the table."""


def _measure_bin_error(seed: int, n_clients: int) -> tuple[float, float]:
    """Return the root mean square error of the counts of the bins, and the mean standard error.

    Both are in clients. Clients have integers from a Normal(50, 10), one bin for each integer from
    0 to 100.
    """
    # The probability of integer i is the probability of the normal distribution from i - .5 to
    # i + .5.
    edges = np.arange(-0.5, 101.5)
    weights = np.diff(stats.norm.cdf(edges, 50, 10))
    population = Population(list(NORMAL.categories), weights)
    collection = simulate(population, NORMAL, n_reports=n_clients, seed=seed)
    estimates = decode(collection.counts)
    true_counts = dict(zip(population.values, collection.devices.tolist(), strict=True))
    truth = np.array([true_counts[name] for name in estimates.candidates])
    errors = estimates.share * n_clients - truth
    return float(np.sqrt(np.mean(errors**2))), float(np.mean(estimates.std_error)) * n_clients


def _tabulate_normal(runs: dict[int, list[tuple[float, float]]]) -> Table:
    """Return the table of section 5.1. `runs` has the results by number of clients."""
    table = Table(
        title="tables, [EPK14] 5.1: Normal(50, 10), one bin a bit, f = 0, p = .5, q = .75",
        columns=_COLUMNS,
        note="The paper has figures without numbers, except the loss. Ours: root mean square error "
        "of the 101 bins, in clients.\nClosed form: standard deviation of an empty bin, 2 sqrt(N).",
    )
    loss = epsilon_1(NORMAL)
    table.rows.append(
        ["eps_1", math.log(3), math.log(3), loss, _judge_published(math.log(3), loss)]
    )
    for n, results in runs.items():
        closed = compute_standard_error(NORMAL, n)
        ours = float(np.mean([error for error, _ in results]))
        table.rows.append(
            [f"sd of a bin, N = {n:,}", _NONE, closed, ours, _judge_closed_form(closed, ours)]
        )
    return table


def _judge_published(published: float, ours: float, within: float = 0.01) -> str:
    """Return "yes" if our figure is within a relative distance of the published figure, or "no"."""
    return "yes" if abs(ours / published - 1) <= within else "no"


def _judge_closed_form(closed: float, ours: float) -> str:
    """Return the verdict on a figure that the paper does not state.

    The verdict says whether our figure is within 10 % of the closed form.
    """
    return f"not published; closed form {_judge_published(closed, ours, within=0.1)}"


def _judge_one_run(published: int, values: list[int]) -> str:
    """Return the verdict on a count that the paper measured in one run.

    The verdict is "yes" if the published count is within two standard deviations of the mean of our
    runs. The standard deviation is that of single runs.
    """
    # Bad case: all runs have the same count, and the standard deviation is 0. Then 0.1 replaces it.
    distance = abs(published - float(np.mean(values))) / max(float(np.std(values)), 0.1)
    return f"{'yes' if distance <= 2 else 'no'}: {distance:.1f} sd of a run away"


def _tabulate_exponential(runs: list[Run]) -> Table:
    """Return the table of section 5.2, whose published figures are in Table 1 of the paper."""
    design = DESIGNS["paper"]
    error = compute_standard_error(design, 1_000_000)
    ours = _measure_error(design)
    expected = _expect_detections(error / 1_000_000, level=0.05 / 200)
    counted = (
        ("true strings, Bonferroni", 45, expected, [run.bonferroni.true for run in runs]),
        ("false strings, Bonferroni", 2, 0.05, [run.bonferroni.false for run in runs]),
        ("true strings, BH 5 %", 45, _NONE, [run.bh.true for run in runs]),
        ("false strings, BH 5 %", 2, _NONE, [run.bh.false for run in runs]),
    )
    lifetime_loss, variation = epsilon_inf(design), [run.total_variation for run in runs]
    table = Table(
        title=f"tables, [EPK14] 5.2 (Table 1): exp(-.05 i), N = 1e6, {len(runs)} runs",
        columns=_COLUMNS,
        note="Closed form of the strings found: sum over strings of the probability to pass "
        "Bonferroni's limit, 5 % over 200.\n45 with 2 false is not what Bonferroni gives: "
        f"{expected:.0f} are to be expected, and a false one in 5 % of all runs.\nIt is what the "
        "false discovery rate gives. The standard error is of a fit on the selected strings, as "
        "printed;\nno unbiased fit of all 200 has less than 2,913 in the mean (Cramer-Rao).",
    )
    table.rows += [
        ["eps_1", 1.0743, _NONE, epsilon_1(design), _judge_published(1.0743, epsilon_1(design))],
        [
            "eps_inf",
            4 * math.log(3),
            _NONE,
            lifetime_loss,
            _judge_published(4 * math.log(3), lifetime_loss),
        ],
    ]
    table.rows += [
        [label, published, closed, float(np.mean(values)), _judge_one_run(published, values)]
        for label, published, closed, values in counted
    ]
    table.rows += [
        [
            "standard error of a count",
            2842,
            error,
            ours,
            f"{'yes' if 2801 <= ours <= 2882 else 'no'}: 2,801 to 2,882",
        ],
        ["total variation", _NONE, _NONE, float(np.mean(variation)), "not published"],
    ]
    return table


def _measure_error(params: Params) -> float:
    """Decode one collection of section 5.2, and return the mean standard error of a count."""
    names = [f"v{i}" for i in range(200)]
    population = Population(names[:100], np.exp(-0.05 * np.arange(100)))
    counts = simulate_counts(population, params, n_reports=1_000_000, seed=1)
    return float(np.mean(decode(counts, names).std_error)) * 1_000_000


def _expect_detections(error: float, *, level: float) -> float:
    """Return the expected number of detected strings of 5.2 at a one-sided level.

    A string is detected if its estimate exceeds the quantile of the level, in standard errors. Its
    probability is Phi(share / error - quantile), where Phi is the normal distribution function. The
    result is the sum over the strings.

    Parameters
    ----------
    error : standard error of a share
    level : probability that an absent string is detected
    """
    weights = np.exp(-0.05 * np.arange(100))
    shares = weights / weights.sum()
    return float(stats.norm.sf(stats.norm.isf(level) - shares / error).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Figures of one run of a simulated deployment.

    Attributes
    ----------
    true, false : number of detected strings that devices have, and that no device has
    error : mean standard error of a count, in reports
    """

    true: int
    false: int
    error: float


def _run_deployment(
    seed: int, shares: NDArray[np.float64], params: Params, *, n_reports: int, n_candidates: int
) -> Deployment:
    """Decode one collection: strings with these shares, a tail, and absent candidates.

    The devices that have none of the strings have one of 5,000 equally frequent strings, which are
    not candidates (the tail). The candidates are the strings, and absent candidates up to the
    number `n_candidates`.
    """
    names = [f"{seed}/found/{i}" for i in range(len(shares))]
    tail = [f"{seed}/tail/{i}" for i in range(5_000)]
    tail_shares = np.full(len(tail), (1 - shares.sum()) / len(tail))
    population = Population([*names, *tail], np.concatenate([shares, tail_shares]))
    counts = simulate_counts(population, params, n_reports=n_reports, seed=seed)
    absent = [f"{seed}/absent/{i}" for i in range(n_candidates - len(names))]
    estimates = decode(counts, [*names, *absent], error_control=ErrorControl(method="bonferroni"))
    hits = [name for name, hit in zip(estimates.candidates, estimates.detected, strict=True) if hit]
    # Strings of the tail are not candidates, so a detection is either of `names` or absent.
    true_names = set(names)
    return Deployment(
        true=sum(name in true_names for name in hits),
        false=sum(name not in true_names for name in hits),
        error=float(np.mean(estimates.std_error)) * n_reports,
    )


def _find_processes(seed: int) -> Deployment:
    """Run section 5.3 once: ten strings of 4.5 to 2.5 %, as published."""
    shares = np.linspace(0.045, 0.025, 10)
    return _run_deployment(seed, shares, PROCESSES, n_reports=N_PROCESSES, n_candidates=200)


def _find_homepages(seed: int) -> Deployment:
    """Run section 5.4 once: strings of 1 %, .65 % and .1 %."""
    shares = np.array([0.01] * 5 + [0.0065] * 10 + [0.001] * 10)
    return _run_deployment(
        seed, shares, HOMEPAGES, n_reports=N_HOMEPAGES, n_candidates=N_CANDIDATES
    )


def _tabulate_processes(runs: list[Deployment]) -> Table:
    """Return the table of section 5.3."""
    error = compute_standard_error(PROCESSES, N_PROCESSES)
    share = error / N_PROCESSES
    limit = stats.norm.isf(0.05 / 200)
    expected = float(stats.norm.sf(limit - np.linspace(0.045, 0.025, 10) / share).sum())
    table = Table(
        title=f"tables, [EPK14] 5.3: {N_PROCESSES:,} reports of processes, {len(runs)} runs",
        columns=_COLUMNS,
        note="Its data are not public. Simulated: ten strings of 4.5 to 2.5 %, as published, a "
        "tail of 5,000 other strings\nthat are not candidates, and 190 absent candidates; "
        "Bonferroni 5 %. The paper publishes only the ten strings that\nit found: of more such "
        "strings, some would be missed.",
    )
    detections = [run.true for run in runs]
    ours = float(np.mean([run.error for run in runs]))
    table.rows += [
        ["standard error of a count", 1212, error, ours, _judge_published(1212, ours, within=0.05)],
        ["strings found", 10, expected, float(np.mean(detections)), _judge_one_run(10, detections)],
        [
            "false strings",
            _NONE,
            0.05,
            _average_false(runs),
            "not published",
        ],
    ]
    return table


def _tabulate_homepages(runs: list[Deployment]) -> Table:
    """Return the table of section 5.4."""
    error = compute_standard_error(HOMEPAGES, N_HOMEPAGES)
    share = 100 * error / N_HOMEPAGES
    limit = float(stats.norm.isf(0.05 / N_CANDIDATES)) * share
    ours = float(np.mean([run.error for run in runs]))
    table = Table(
        title=f"tables, [EPK14] 5.4: {N_HOMEPAGES:,} reports of home pages, {len(runs)} runs",
        columns=_COLUMNS,
        note="Simulated: 5 strings of 1 %, 10 of .65 % and 10 of .1 %, a tail of 5,000 strings "
        f"that are not candidates, and {N_CANDIDATES:,} candidates.\nThe paper promises strings "
        f"from .1 % on, which is {0.1 / share:.2f} standard errors: noise alone exceeds it for a "
        f"quarter\nof all candidates. Bonferroni over {N_CANDIDATES:,} candidates needs "
        f"{limit:.2f} %.",
    )
    report_loss, lifetime_loss = epsilon_1(HOMEPAGES), epsilon_inf(HOMEPAGES)
    expected, detections = _expect_homepages(share), _average_true(runs)
    table.rows += [
        ["eps_1", 0.5343, _NONE, report_loss, _judge_published(0.5343, report_loss)],
        ["eps_inf", 2.0433, _NONE, lifetime_loss, _judge_published(2.0433, lifetime_loss)],
        ["standard error of a count", _NONE, error, ours, _judge_closed_form(error, ours)],
        [
            "smallest share found, %",
            0.1,
            limit,
            _NONE,
            f"{_judge_published(0.1, limit)}: it is {0.1 / share:.2f} standard errors",
        ],
        [
            "of 5 at 1 %, 10 at .65 %, 10 at .1 %",
            _NONE,
            expected,
            detections,
            _judge_closed_form(expected, detections),
        ],
        ["false strings", _NONE, 0.05, _average_false(runs), "not published"],
    ]
    return table


def _average_true(runs: list[Deployment]) -> float:
    """Return the mean number of true detections."""
    return float(np.mean([run.true for run in runs]))


def _average_false(runs: list[Deployment]) -> float:
    """Return the mean number of false detections."""
    return float(np.mean([run.false for run in runs]))


def _expect_homepages(share: float) -> float:
    """Return the expected number of detections of 5.4, as `_expect_detections` does for 5.2.

    `share` is the standard error of a share, in percent.
    """
    limit = stats.norm.isf(0.05 / N_CANDIDATES)
    shares = np.array([1.0] * 5 + [0.65] * 10 + [0.1] * 10)
    return float(stats.norm.sf(limit - shares / share).sum())


GRID_REPORTS = 1_000_000
"""Number of reports of each cell of the grid, as the paper states it."""
GRID_PRESENT, GRID_ABSENT = 100, 100
"""Each cell of the grid has these numbers of candidates with and without devices."""


def list_grid_cells(*, quick: bool) -> list[Params]:
    """Return all combinations of bits, hashes and cohorts.

    The paper's grid begins with two hash functions. One hash function (h = 1) is added here.
    """
    bits = (128, 256) if quick else (128, 256, 512, 1024)
    hashes = (1, 2, 8) if quick else (1, 2, 4, 8, 16)
    cohorts = (8, 32) if quick else (8, 16, 32, 64)
    return [
        Params(k=k, h=h, m=m, f=_find_equal_loss_f(h), p=0.5, q=0.75)
        for h in hashes
        for k in bits
        for m in cohorts
    ]


def _find_equal_loss_f(h: int) -> float:
    """Return the f at which h hash functions have the epsilon_inf of the paper's h = 2, f = .5.

    epsilon_inf / 2 = h ln((1 - f/2) / (f/2)) is 2 ln 3 for all h ([EPK14] Theorem 1).
    """
    return 2 / (1 + math.exp(2 * math.log(3) / h))


def _run_grid_cell(seed: int, params: Params) -> tuple[float, float]:
    """Return precision and recall of one collection of the data of 5.2.

    Precision is the share of the detections that are present strings (NaN without detections).
    Recall is the share of the present strings that are detected.
    """
    names = [f"{seed}/{i}" for i in range(GRID_PRESENT + GRID_ABSENT)]
    weights = np.exp(-0.05 * np.arange(GRID_PRESENT))
    population = Population(names[:GRID_PRESENT], weights)
    counts = simulate_counts(population, params, n_reports=GRID_REPORTS, seed=seed)
    estimates = decode(counts, names)
    present = set(population.values)
    hits = [name for name, hit in zip(estimates.candidates, estimates.detected, strict=True) if hit]
    true = sum(name in present for name in hits)
    return (true / len(hits) if hits else _NONE), true / GRID_PRESENT


def _tabulate_grid(results_by_params: dict[Params, list[tuple[float, float]]]) -> list[Table]:
    """Return the table of the grid, and the table of preferred values of each letter.

    `results_by_params` has precision and recall of each collection, by the parameters of the cell.
    """
    table = Table(
        title=f"tables, [EPK14] grid: bits, hashes and cohorts, N = {GRID_REPORTS:,}",
        columns=("h", "k", "m", "f", "eps_1", "precision", "recall", "closed recall"),
        note="All cells have eps_inf = 2 h ln((1-f/2)/(f/2)) = 4.394: at the same f, more hashes "
        "would mean less privacy.\nBenjamini-Hochberg 5 %. Closed recall: from the closed form's "
        "standard error, at the measured number of detections.",
    )
    for params, results in results_by_params.items():
        precision = float(np.nanmean([run_precision for run_precision, _ in results]))
        recall = _average_recall(results)
        table.rows.append(
            [
                *(str(params.h), params.k, params.m, params.f),
                *(epsilon_1(params), precision, recall, _expect_recall(params, recall)),
            ]
        )
    return [table, _describe_preferences(results_by_params)]


def _describe_preferences(results_by_params: dict[Params, list[tuple[float, float]]]) -> Table:
    """Compare the best value of h, k and m on the grid with the paper's choice."""
    table = Table(
        title="tables, [EPK14] grid: mean recall by hashes, bits and cohorts",
        columns=_COLUMNS,
        note="The paper's grid starts at h = 2 and finds it best, and k and m without a clear "
        "preference; its figure shows no numbers.\nReproduced for k and m: the means lie within "
        "10 % of each other. One hash finds more still, and loses less in one\nreport (eps_1): "
        "the noise could be lower.",
    )
    by_h = _average_recalls(results_by_params, "h")
    best = max((recall, h) for h, (_, recall) in by_h.items() if h > 1)[1]
    for h, means in by_h.items():
        published = "not tried" if h == 1 else "best" if h == 2 else "worse than 2"
        verdict = "new" if h == 1 else "yes" if (h == best) == (h == 2) else "no"
        table.rows.append([f"h = {h}", published, *means, verdict])
    for letter in ("k", "m"):
        by_letter = _average_recalls(results_by_params, letter)
        recalls = [recall for _, recall in by_letter.values()]
        verdict = _judge_published(min(recalls), max(recalls), within=0.1)
        for value, means in by_letter.items():
            table.rows.append([f"{letter} = {value:,}", "no preference", *means, verdict])
    return table


def _average_recalls(
    results_by_params: dict[Params, list[tuple[float, float]]], letter: str
) -> dict[int, tuple[float, float]]:
    """Return the mean recall of the closed form and of ours at each value of one letter."""
    recalls: dict[int, list[tuple[float, float]]] = {}
    for params, results in results_by_params.items():
        recall = _average_recall(results)
        pair = (_expect_recall(params, recall), recall)
        recalls.setdefault(getattr(params, letter), []).append(pair)
    return {
        value: (float(np.mean([c for c, _ in pairs])), float(np.mean([r for _, r in pairs])))
        for value, pairs in recalls.items()
    }


def _average_recall(results: list[tuple[float, float]]) -> float:
    """Return the mean recall of the collections of a cell."""
    return float(np.mean([recall for _, recall in results]))


def _expect_recall(params: Params, recall: float) -> float:
    """Return the expected recall at Benjamini-Hochberg's limit.

    With n detections among c candidates, a string is detected if its p-value is at most 5 % * n /
    c. The number of detections is taken from the measured `recall`.
    """
    error = compute_standard_error(params, GRID_REPORTS) / GRID_REPORTS
    n_detected = max(recall * GRID_PRESENT, 1)
    level = 0.05 * n_detected / (GRID_PRESENT + GRID_ABSENT)
    return _expect_detections(error, level=level) / GRID_PRESENT
