"""`rappor demo`: the whole way, on real words or on a person's own."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rappor.cli.console import NUMBER, Slow, json_option, print_json, seed_option
from rappor.errors import FileError
from rappor.files import read_text
from rappor.privacy.notice import at_most
from rappor.protocol.loss import belief_bound, epsilon_1, epsilon_inf
from rappor.protocol.params import PROFILES, Params

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rappor.counts.counts import Counts
    from rappor.decoding.estimates import Estimates
    from rappor.simulation.collection import ReportBlock
    from rappor.simulation.population import Population

CANDIDATES = 10_000
REPORTS = 1_000_000


@click.command()
@click.option(
    "--values",
    "path",
    type=click.Path(),
    help="Your own data: one value a line, or CSV with the header value,count.",
)
@click.option(
    "--reports", type=NUMBER, help="Number of devices [default: a million, or your data's]."
)
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    default="balanced",
    show_default=True,
    help="Noise level.",
)
@seed_option
@json_option
def demo(
    path: str | None, reports: int | None, profile: str, seed: int | None, as_json: bool
) -> None:
    """Let a million devices each report one English word, and find the common ones.

    Every device draws its own noisy report; the decoder sees only their sums and asks about
    10,000 words. The truth stands beside each estimate.
    """
    from rappor.cli.estimates_table import print_estimates
    from rappor.decoding.decoder import decode
    from rappor.simulation.collection import simulate_reports

    params = Params.profile(profile)
    population, values = _population(path)
    if values is not None and reports is not None:
        raise click.UsageError("--reports must be left out with --values: each value reports once")
    with Slow() as slow:
        drawn = simulate_reports(
            population, params, n_reports=reports or REPORTS, seed=seed, values=values
        )
        n_reports = len(values) if values is not None else reports or REPORTS
        counts, held = _collect(drawn, params, len(population), n_reports=n_reports, slow=slow)
        asked = _most_frequent(population)
        estimates = decode(counts, asked, progress=slow)
    truth = dict(zip(population.values, map(int, held), strict=True))
    if as_json:
        print_json(_document(estimates, truth, params))
        return
    click.echo(_opening(counts, len(population), len(asked), profile))
    print_estimates(estimates, detected_only=True, truth=truth)
    click.echo(_privacy(params))


def _population(path: str | None) -> tuple[Population, NDArray[np.int64] | None]:
    """Return the values, and each device's where the data say so."""
    import numpy as np

    from rappor.simulation.population import Population, english_words

    if path is None:
        return english_words(), None
    lines = read_text(path).splitlines()
    if lines and lines[0].strip() == "value,count":
        population, held = Population.from_csv(path), _counts_column(lines[1:], path)
    else:
        population = Population.from_values(line for line in lines if line)
        held = np.rint(population.weights * sum(map(bool, lines))).astype(np.int64)
    return population, np.repeat(np.arange(len(held)), held)


def _counts_column(lines: list[str], path: str) -> NDArray[np.int64]:
    """Read the devices of each value; `Population.from_csv` has checked everything else."""
    import numpy as np

    counts = [row[-1] for row in csv.reader(lines) if row]
    for line, count in enumerate(counts, start=2):
        if not float(count).is_integer():
            raise FileError(path, f"count must be a whole number, got {count!r}", line=line)
    return np.array([int(float(count)) for count in counts], dtype=np.int64)


def _collect(
    drawn: Iterator[ReportBlock], params: Params, n_values: int, *, n_reports: int, slow: Slow
) -> tuple[Counts, NDArray[np.int64]]:
    """Sum every device's report; return the sums and how many hold each value."""
    import numpy as np

    from rappor.counts.counts import Counts

    counts = Counts.zero(params)
    held = np.zeros(n_values, dtype=np.int64)
    for block in drawn:
        counts += Counts.from_packed(block.packed, block.cohorts, params)
        held += np.bincount(block.values, minlength=n_values)
        slow("devices report", counts.n_reports, n_reports)
    return counts, held


def _most_frequent(population: Population) -> list[str]:
    """Return the candidates to ask about: the commonest values, at most 10,000."""
    import numpy as np

    order = np.argsort(-population.weights, kind="stable")[:CANDIDATES]
    return [population.values[i] for i in order]


def _document(estimates: Estimates, truth: dict[str, int], params: Params) -> dict[str, Any]:
    document = estimates.to_dict(detected_only=True)
    for row in document["estimates"]:
        row["truth"] = truth.get(row["candidate"], 0)
    document["epsilon_1"] = epsilon_1(params)
    document["epsilon_inf"] = epsilon_inf(params)
    return document


def _opening(counts: Counts, n_values: int, n_asked: int, profile: str) -> str:
    return (
        f"{counts.n_reports:,} devices hold {n_values:,} different values and have sent one noisy\n"
        f"report each ({counts.params.k} bits, profile {profile}). Their sums are asked about "
        f"{n_asked:,} candidates:\n"
    )


def _privacy(params: Params) -> str:
    one, ever = epsilon_1(params), epsilon_inf(params)
    sure, sure_for_ever = (at_most(belief_bound(loss, 0.5)[1]) for loss in (one, ever))
    return (
        f"Privacy loss of a device: {one:.2f} nats by this report, at most {ever:.2f} for ever. A\n"
        "suspicion of 50 % that it holds some value can become at most "
        f"{sure} by this report,\n{sure_for_ever} for ever."
    )
