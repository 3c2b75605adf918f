"""Comparison with the reference implementation on recorded collections.

Question: which strings does `decode` find in the collections of `reference_cases.tar.xz`, how exact
is its distribution of the shares, and what does it cost, compared with google/rappor's decoder?

The archive has a folder for each setting (population, parameters and number of reports), and in it
a folder for each seed, which is one collection. The folder of a seed contains the inputs: exact
binomial counts from a generator of this project, with Bloom bits that are chosen by MD5 as in the
reference. It also contains the output of `decode-dist` of google/rappor at its last commit
(a13fa96, 2017; R 4.2, glmnet 4.1.6), and the CPU time and memory of this program. The CPU time
includes the start of R. Time and memory include the reading of its map, a file with the bits of
each candidate in each cohort.

"Ours" in the tables is this project, and "theirs" is the reference. A column "theirs" belongs to
the column on its left. Several columns have this name, followed by different numbers of blanks,
because the JSON of a table needs different names.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Cell, Table

_ROOT = Path(__file__).resolve().parents[1]
_CASES = Path(__file__).with_name("reference_cases.tar.xz")
"""Archive of the recorded collections. It is unpacked for each run."""
_MEGABYTE = 1e6
"""Bytes of a megabyte, the unit of memory in the tables."""
_QUICK = ("exp200_k128_m16_1e6", "zipf2000_k32_m64_1e6")
"""A quick run decodes only these recorded collections."""
Run = dict[str, Any]
"""Figures of one seed of a setting, as `benchmarks.reference_once` prints them, with its name. The
keys "ours" and "theirs" lead to the figures of this project and of the reference. The value of
"theirs" is None if the reference has no result."""


def reference(*, quick: bool, cases: Path | None = None) -> list[Table]:
    """Decode all recorded collections, or others of the same form, each in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        if cases is None:
            with tarfile.open(_CASES) as archive:
                archive.extractall(folder, filter="data")
        root = cases or Path(folder)
        runs = {
            case.name: [_decode_in_process(seed) for seed in sorted(case.iterdir())]
            for case in sorted(root.iterdir())
            if not quick or case.name in _QUICK
        }
    return [
        _tabulate_detections(runs),
        _tabulate_errors(runs),
        _tabulate_cost(runs),
        _summarise(runs),
    ]


def _decode_in_process(folder: Path) -> Run:
    """Decode one recorded collection in a fresh process, so that its memory is measured alone."""
    command = [sys.executable, "-m", "benchmarks.reference_once", str(folder)]
    process = subprocess.run(command, cwd=_ROOT, capture_output=True, check=True)  # noqa: S603
    document: Run = json.loads(process.stdout)
    return document | {"name": f"{folder.parent.name}/{folder.name}"}


def _mean(runs: list[Run], side: str, key: str) -> float:
    """Return the mean of a figure of `reference_once`, NaN if the reference has no result.

    `side` is "ours" or "theirs", and `key` is a key of its figures.
    """
    values = [run[side][key] for run in runs if run[side] is not None]
    return float(np.mean(values)) if values else math.nan


def _tabulate_detections(runs: dict[str, list[Run]]) -> Table:
    """Return the table of detections and total variations, with one row for each collection.

    A string is *true* if a device has it. The column "true at their false" is the number of true
    strings that we would report with as many false strings as the reference (key `at_their_false`).
    If the reference has f false strings, our list is ordered by p-value, and ends before its false
    string number f + 1.

    "variation" is the total variation between the estimated and the true distribution (key
    `distribution`). All strings that are no candidates count as one string, whose estimated share
    is 1 minus the sum of all other estimates. If the reference does not report a candidate, the
    share of this candidate belongs to that one string, too.
    """
    table = Table(
        title="reference: strings and distributions, mean over the recorded seeds",
        columns=(
            "collection", "seeds", "true", "theirs", "false", "theirs ", "true at their false",
            "variation", "theirs  ", "ratio",
        ),
        note="Strings are detected by Benjamini-Hochberg at 5 %. Variation: total variation of the "
        "estimated shares. 1 minus their sum is the estimated share of all strings outside the "
        "candidates. True at their false: our true strings if we report as many false strings "
        "as the reference.",
    )  # fmt: skip
    for name, of_case in runs.items():
        ours, theirs = (_mean(of_case, side, "distribution") for side in ("ours", "theirs"))
        # None if the reference has no result for this seed. NaN stands for a setting without one.
        at_theirs = [run["at_their_false"] for run in of_case if run["at_their_false"] is not None]
        row: list[Cell] = [name, len(of_case)]
        for key in ("true", "false"):
            row += [_mean(of_case, "ours", key), _mean(of_case, "theirs", key)]
        row += [float(np.mean(at_theirs)) if at_theirs else math.nan, ours, theirs, ours / theirs]
        table.rows.append(row)
    return table


def _tabulate_errors(runs: dict[str, list[Run]]) -> Table:
    """Return the table of errors and coverages, with one row for each setting.

    "rmse of top 20" is the root mean squared error of the 20 strings with the largest true shares.
    Coverage is the share of 95 % intervals that contain the true share. "coverage" and "not
    adjusted" (key `plain`) average over our detected strings, with and without the adjustment for
    the selection. "all candidates" (key `every`) averages over the intervals of all candidates,
    detected or not, without adjustment.
    """
    table = Table(
        title="reference: errors and intervals of what is reported",
        columns=(
            "collection", "rmse of top 20", "theirs", "coverage", "theirs ", "not adjusted",
            "all candidates",
        ),
        note="Coverage of 95 % intervals: ours are adjusted for the selection, theirs are the "
        "intervals that the reference prints.",
    )  # fmt: skip
    for name, of_case in runs.items():
        table.rows.append(
            [
                name,
                _mean(of_case, "ours", "rmse"),
                _mean(of_case, "theirs", "rmse"),
                _mean(of_case, "ours", "coverage"),
                _mean(of_case, "theirs", "coverage"),
                _mean(of_case, "ours", "plain"),
                _mean(of_case, "ours", "every"),
            ]
        )
    return table


def _tabulate_cost(runs: dict[str, list[Run]]) -> Table:
    """Return the table of CPU seconds and memory, with one row for each setting.

    "times" is the CPU time of the reference divided by the CPU time of our decode.
    """
    table = Table(
        title="reference: seconds and memory",
        columns=("collection", "decode, s", "hashing, s", "theirs, s", "times", "MB", "theirs"),
        note="CPU seconds. Times: theirs divided by ours. Neither contains the hashing of the "
        "candidates: ours has a column of its own, and the reference reads a map that was hashed "
        "before. Theirs contains the start of R and the reading of the map, because the record has "
        "one number for all. Memory is that of the whole process, in ours with hashing.",
    )
    for name, of_case in runs.items():
        ours, theirs = (
            float(np.mean([run[key] for run in of_case])) for key in ("seconds", "their_seconds")
        )
        hashing = float(np.mean([run["hashing"] for run in of_case]))
        peaks = [float(np.mean([run[k] for run in of_case])) for k in ("peak", "their_peak")]
        table.rows.append(
            [name, ours, hashing, theirs, theirs / ours, *(peak / _MEGABYTE for peak in peaks)]
        )
    return table


def _summarise(runs: dict[str, list[Run]]) -> Table:
    """Return the table of totals over all collections that have a result of the reference."""
    pooled = [run for of_case in runs.values() for run in of_case if run["theirs"] is not None]
    ratios = [run["ours"]["distribution"] / run["theirs"]["distribution"] for run in pooled]
    higher = [run["name"] for run, ratio in zip(pooled, ratios, strict=True) if ratio >= 1]
    sums = {
        key: sum(run["ours"][key] for run in pooled) / sum(run["theirs"][key] for run in pooled)
        for key in ("distribution", "listed")
    }
    n_false, n_true = (sum(run["ours"][key] for run in pooled) for key in ("false", "true"))
    their_false, their_true = (
        sum(run["theirs"][key] for run in pooled) for key in ("false", "true")
    )
    # True strings that we find in addition, with as many false strings as the reference has. The
    # figure exists, because only seeds with a result of the reference are pooled.
    more = [run["at_their_false"] - run["theirs"]["true"] for run in pooled]
    table = Table(
        title="reference: all collections with a recorded result",
        columns=("what", "ours", "theirs"),
        note=f"Total variation not lower: {', '.join(higher) or 'none'}.",
    )
    table.rows += [
        ["false strings", n_false, their_false],
        ["false share", n_false / (n_false + n_true), their_false / (their_false + their_true)],
        ["true strings", n_true, their_true],
        [
            "true strings found in addition, at their number of false strings (mean)",
            float(np.mean(more)),
            0,
        ],
        ["total variation, in sum", sums["distribution"], 1],
        # `listed`: total variation without the further string for all that are no candidates.
        ["total variation of the candidates alone, in sum", sums["listed"], 1],
        ["total variation lower, collections", sum(ratio < 1 for ratio in ratios), len(ratios)],
    ]
    return table
