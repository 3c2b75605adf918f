"""A metric with listed candidates, compared with the pair of metrics that it replaced.

A team often knows the popular values of a metric before the collection, but not the rare values.
The registry's entry of a metric of strings may therefore list candidates, such as the five most
popular editors. Estimates show the listed candidates first, detected or not. Other strings, such as
the names of rare editors, are found by a search, or in a longer list of candidates.

The list replaced a pair of metrics: a one-hot metric, whose categories were the listed values and
`other`, and a metric of strings for the values in no category. A device sent a report of both
metrics, and their privacy losses add. With the profile "balanced" a report of one metric has a loss
of 2 nats, so the pair cost 2 + 2 = 4 nats, and the metric with a list costs 2 nats.

The collector releases only sums of many reports. It adds the reports of one cohort to a *block*,
and closes the block when it has `min_cohort` = 10 reports for each interval that has a day in the
block. Only a closed block can be read. So a small program must divide its devices among few
cohorts. *Example.* 300 devices report every day. In the 128 cohorts of the pair, a cohort has 2.3
reports a day, fewer than 10, so no block ever closes. The metric with a list has 8 cohorts of 37
devices, and their first blocks close after one day.

The benchmark answers two questions in two tables:

1. How large is the error of a listed value, how many rare names are detected, and at which privacy
   loss? With a million devices, both ways to find rare names are measured. With 300 devices, rare
   names cannot be found, and only the error of a listed value is measured.
2. After how many days does the first block close?

The pair does not exist any more. Its figures are constants of this module. They were measured on
commit fb2222d5, with the population of this module and the same search.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from benchmarks.tables import Table
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.discovery.part_by_part import discover
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.registry.metric import MIN_COHORT
from rappor.simulation.collection import simulate_counts
from rappor.simulation.part_collections import simulate_parts
from rappor.simulation.population import Population, english_words

LISTED: Final = {"vscode": 0.40, "neovim": 0.20, "emacs": 0.10, "vim": 0.05, "helix": 0.03}
"""Listed values of the metric, with their true shares of the devices."""

N_RARE: Final = 300
"""Number of names that the list does not contain."""
_RARE_SHARE: Final = 0.22
"""Share of the devices that have one of these names."""
_FIRST_WORD: Final = 2000
"""Frequency rank, from 0, of the English word at which the choice of rare names begins. The rare
names are the next words with a suitable length (`_is_name`)."""

_PARTS: Final = (Part("prefix:3", 0.2), Part("whole"))
"""Parts of the metric. A device reports only one part: a fifth of the devices reports the first
three letters of the name, and all other devices report the whole name. The search finds frequent
beginnings first, and then extends them to names."""
_FEW: Final = 300
"""A program with few users has this number of devices."""

_QUICK_DEVICES: Final = 100_000
"""A quick run simulates this number of devices instead of a million."""

_DAYS, _EPOCH_DAYS, _COLLECTIONS = 360, 30, 40
"""The benchmark simulates 40 collections of 360 days each. An epoch has 30 days."""


class MeanResult(NamedTuple):
    """Mean results of one way to collect over several collections.

    Attributes
    ----------
    way : name of the way to collect and decode
    std_error : standard error of the share of "vscode", which is 40 %
    rare : number of detected names of rare editors. If no rare names are searched for, the cell of
        the table contains the text "not looked for"
    false : number of detected names that no device has. If no rare names are searched for, the
        cell of the table is empty
    epsilon_1, epsilon_inf : privacy losses of one report and of all reports, in nats
    """

    way: str
    std_error: float
    rare: float | str
    false: float | str
    epsilon_1: float
    epsilon_inf: float


class FirstBlock(NamedTuple):
    """Days until the first blocks close, so that their sums can be read.

    Attributes
    ----------
    way : name of the way to collect
    first : days until the first block of any cohort closes, the median over collections. "never"
        if no block closes
    share : share of the cohorts that have a closed block after 30 days
    """

    way: str
    first: float | str
    share: float


PAIR: Final[Mapping[tuple[str, int], MeanResult]] = {
    ("balanced", 1_000_000): MeanResult("pair (recorded)", 0.001168, 6.0, 0.0, 4.0, 8.0),
    ("low-noise", 1_000_000): MeanResult("pair (recorded)", 0.000805, 20.0, 1.3, 8.0, 12.0),
    ("balanced", _FEW): MeanResult("pair (recorded)", 0.0673, "not looked for", "", 4.0, 8.0),
    ("once", _FEW): MeanResult("pair (recorded)", 0.0488, "not looked for", "", 8.0, 8.0),
}
"""Figures of the pair by (profile, number of devices), measured on commit fb2222d5. They are means
over 6, 3, 200 and 200 collections, in the order of the entries. A full run of this module simulates
the same numbers of collections."""

PAIR_BLOCKS: Final[Mapping[str, tuple[FirstBlock, ...]]] = {
    interval: (
        FirstBlock("pair, categories (recorded)", 1.0, 1.0),
        FirstBlock("pair, strings in 128 cohorts (recorded)", "never", 0.0),
    )
    for interval in ("day", "epoch")
}
"""Maps an interval to the first blocks of the two metrics of the pair. They were measured on commit
fb2222d5 with 300 devices. The module docstring explains "never"."""


def compare_list_with_pair(*, quick: bool) -> list[Table]:
    """Compare a list with the recorded pair: errors, detections and the first block."""
    accuracy = Table(
        title="listed: a list of candidates against the pair that it replaced",
        columns=(
            *("profile", "devices", "way", "std error at 40 %", "rare found", "false"),
            *("epsilon_1", "epsilon_inf"),
        ),
        note="Five listed editors (40, 20, 10, 5, 3 %) and 300 rare ones, Zipf 1 over 22 %. Pair: "
        "measured on commit fb2222d5 with the pair. Detections: false discovery rate 5 %.",
    )
    for (profile, devices), pair in PAIR.items():
        ways = (
            _measure_few_devices(profile, quick=quick)
            if devices == _FEW
            else _compare_many_devices(profile, quick=quick)
        )
        n = _QUICK_DEVICES if quick and devices != _FEW else devices
        accuracy.rows.append([profile, f"{devices:,}", *pair])
        accuracy.rows += [[profile, f"{n:,}", *row] for row in ways]
    blocks = Table(
        title="listed: days until blocks close, 300 devices",
        columns=("interval", "way", "first block, days", "cohorts with one after 30 days"),
        note=f"A block closes with {MIN_COHORT} reports for each interval that has a day in the "
        "block. An epoch is a month, and each device reports on one random day of it.",
    )
    m = choose_list_cohorts(_FEW, min_cohort=MIN_COHORT)
    for interval, pairs in PAIR_BLOCKS.items():
        of_list = simulate_first_block(
            f"list, m = {m}", _FEW, m, interval, n=4 if quick else _COLLECTIONS
        )
        blocks.rows += [[interval, *row] for row in (*pairs, of_list)]
    return [accuracy, blocks]


def make_population() -> tuple[Population, tuple[str, ...]]:
    """Return the population, and the names of the rare editors."""
    words = (word for word in english_words().values[_FIRST_WORD:] if _is_name(word))
    rare = tuple(next(words) for _ in range(N_RARE))
    zipf = 1 / np.arange(1.0, N_RARE + 1)
    shares = [*LISTED.values(), *(_RARE_SHARE * zipf / zipf.sum())]
    return Population((*LISTED, *rare), shares), rare


def _is_name(word: str) -> bool:
    """Return whether a word has four to six letters a to z, so that the search can find it."""
    return word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 6


def _compare_many_devices(profile: str, *, quick: bool) -> Iterator[MeanResult]:
    """Yield the results of both ways to find names outside the list, with a million devices.

    The ways are a metric with parts, and a decode of a list of 10,000 words.
    """
    params, (devices, rare) = Params.profile(profile), make_population()
    n = _QUICK_DEVICES if quick else 1_000_000
    seeds = range(1, 2 if quick else 4 if profile == "low-noise" else 7)
    by_parts = [
        discover(
            simulate_parts(devices, params, _PARTS, n_reports=n, seed=seed),
            string.ascii_lowercase,
            listed=tuple(LISTED),
            longest=6,
            # The search extends this number of three-letter prefixes.
            keep=50 if quick else 200,
        ).estimates
        for seed in seeds
    ]
    yield _summarize("list with parts", by_parts, rare, params)
    words = [word for word in english_words().values if _is_name(word)][:10_000]
    by_list = [
        decode(
            simulate_counts(devices, params, n_reports=n, seed=seed),
            [*words, *rare],
            listed=tuple(LISTED),
        )
        for seed in seeds
    ]
    yield _summarize("list, then 10,000 words", by_list, rare, params)


def _measure_few_devices(profile: str, *, quick: bool) -> Iterator[MeanResult]:
    """Yield the results of a list with few devices.

    The metric has so few cohorts that each cohort has three times `MIN_COHORT` reports.
    """
    m = choose_list_cohorts(_FEW, min_cohort=MIN_COHORT)
    params = dataclasses.replace(Params.profile(profile), m=m, insecure=True)
    devices, rare = make_population()
    estimates = [
        decode(simulate_counts(devices, params, n_reports=_FEW, seed=seed), listed=tuple(LISTED))
        for seed in range(1, 11 if quick else 201)
    ]
    row = _summarize(f"list, m = {m}", estimates, rare, params)
    yield row._replace(rare="not looked for", false="")


def _summarize(
    way: str, collections: Sequence[Estimates], rare: Sequence[str], params: Params
) -> MeanResult:
    """Return the mean of each result over the collections.

    Listed values count neither as rare names nor as false names.
    """
    detected = [{*estimates.detected_candidates} - estimates.listed for estimates in collections]
    errors = [
        estimates.std_error[estimates.candidates.index("vscode")] for estimates in collections
    ]
    return MeanResult(
        way=way,
        std_error=float(np.mean(errors)),
        rare=float(np.mean([len(names & {*rare}) for names in detected])),
        false=float(np.mean([len(names - {*rare}) for names in detected])),
        epsilon_1=epsilon_1(params),
        epsilon_inf=epsilon_inf(params),
    )


def simulate_first_block(way: str, devices: int, m: int, interval: str, *, n: int) -> FirstBlock:
    """Simulate when the first block of each of m cohorts closes, in n collections.

    The first block of a cohort begins on the first day. It closes on the first day on which it has
    `MIN_COHORT` reports for each interval that contains one of its days. Devices draw a new cohort
    in each epoch.
    """
    rng = np.random.default_rng(1)
    days = np.arange(_DAYS)
    # (days,): number of intervals that contain a day of a block from the first day to this day.
    n_intervals = days // _EPOCH_DAYS + 1 if interval == "epoch" else days + 1
    first, share = [], []
    for _ in range(n):
        reports = np.zeros((m, _DAYS), dtype=np.int64)
        for start in range(0, _DAYS, _EPOCH_DAYS):
            cohorts = rng.integers(0, m, devices)
            if interval == "epoch":
                # Each device reports on a drawn day of the epoch.
                np.add.at(reports, (cohorts, start + rng.integers(0, _EPOCH_DAYS, devices)), 1)
            else:
                # Each device reports on every day.
                devices_of_cohort = np.bincount(cohorts, minlength=m)[:, None]
                reports[:, start : start + _EPOCH_DAYS] = devices_of_cohort
        is_full = reports.cumsum(axis=1) >= MIN_COHORT * n_intervals
        # (m,): number of days until the block closes, infinity if it does not.
        closed = np.where(is_full.any(axis=1), is_full.argmax(axis=1) + 1, np.inf)
        first.append(closed.min())
        share.append((closed <= _EPOCH_DAYS).mean())
    return FirstBlock(way, float(np.median(first)), float(np.mean(share)))
