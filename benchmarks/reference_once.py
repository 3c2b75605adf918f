"""Decode one recorded collection in a fresh process, and print the result as JSON.

Run as `python -m benchmarks.reference_once FOLDER`, usually by `benchmarks.reference`. The folder
contains one collection:

    params.csv, counts.csv, candidates.txt    the input of a decode
    truth.csv                                 the true shares
    case.json                                 description of the collection, with the recorded CPU
                                              time and memory of the reference implementation
                                              (Google's RAPPOR in R)
    reference_results.csv                     the recorded result of the reference implementation,
                                              if it was run on the collection

Our result and the recorded result are both compared with the true shares. Seconds are CPU seconds
on all cores. Hashing is timed separately, because the reference reads from a file which bits each
candidate sets in each cohort. Both steps run once before the timed run, so that the seconds contain
no imports and no compilation. The memory contains both steps.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.decoding.decoder import decode
from rappor.decoding.estimates import Estimates
from rappor.google import files
from rappor.protocol.params import Params

_TOP = 20
"""Number of the most frequent strings. `rmse` is the root mean square error of their shares."""
Shares = dict[str, float]
"""Shares by string. A string that a result does not contain has share 0."""


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of our decode and of the reference.

    hashing, seconds           CPU seconds of our two steps
    peak                       our largest memory, in bytes
    ours                       figures of our result (`_compare_estimates`)
    theirs                     figures of the recorded result (`_compare_recorded`), or None
    their_seconds, their_peak  recorded CPU seconds and bytes of the reference
    at_their_false             number of true strings that we would detect if we accepted as many
                               false strings as the reference detected (`_count_true`). Example: the
                               reference has 40 true and 3 false strings. Our candidates, sorted by
                               p-value, contain 47 true strings before the fourth false one
    """
    params = files.read_params(folder / "params.csv")
    counts = files.read_counts(folder / "counts.csv", params)
    candidates = files.read_candidates(folder / "candidates.txt")
    truth = {row["string"]: float(row["proportion"]) for row in _read_rows(folder / "truth.csv")}
    # The first hashing and the first decode compile loops and load modules. They are not timed.
    hashed = _hash_candidates(candidates, params)
    start = time.process_time()
    hashed = _hash_candidates(candidates, params)
    hashing = time.process_time() - start
    decode(counts, hashed, distribution=True)
    start = time.process_time()
    estimates = decode(counts, hashed, distribution=True)
    seconds = time.process_time() - start
    theirs = _read_recorded_rows(folder / "reference_results.csv")
    document = json.loads((folder / "case.json").read_text(encoding="utf-8")).get("reference") or {}
    return {
        "hashing": hashing,
        "seconds": seconds,
        "peak": _read_peak_bytes(),
        "ours": _compare_estimates(estimates, truth),
        "theirs": None
        if theirs is None
        else _compare_recorded(theirs, truth, set(candidates.strings)),
        "their_seconds": document.get("user_s", np.nan) + document.get("system_s", np.nan),
        "their_peak": document.get("peak_kB", np.nan) * 1024,
        "at_their_false": None
        if theirs is None
        else _count_true(estimates, truth, sum(row["string"] not in truth for row in theirs)),
    }


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _read_recorded_rows(path: Path) -> list[dict[str, str]] | None:
    """Return the recorded result, or None if the reference was not run on the collection."""
    return _read_rows(path) if path.exists() else None


def _hash_candidates(candidates: Candidates, params: Params) -> files.MappedCandidates:
    """Return the candidates with their cells: the bits that each candidate sets in each cohort."""
    cells = candidates.compute_cells(params, 0, len(candidates))
    shape = (params.k, params.h, params.m)
    return files.MappedCandidates(candidates.strings, cells, shape=shape)


def _compare_estimates(estimates: Estimates, truth: Shares) -> dict[str, float]:
    """Return the figures of our estimates, compared with the true shares.

    true, false, variation, rmse    see `_compute_figures`
    distribution                    total variation of the posterior shares. All strings outside the
                                    candidates together count as one more string
    listed                          the same without this one more string
    coverage                        share of the adjusted intervals of detected strings that contain
                                    the true share
    plain                           the same for their intervals without adjustment
    every                           the same for the intervals of all candidates
    """
    detected_rows = np.flatnonzero(estimates.detected)
    names = [estimates.candidates[i] for i in detected_rows]
    assert estimates.posterior_share is not None
    detected_shares = dict(zip(names, estimates.share[detected_rows], strict=True))
    shares = dict(zip(estimates.candidates, estimates.posterior_share, strict=True))
    inside = _compute_coverage(
        names,
        estimates.ci_low_adjusted[detected_rows],
        estimates.ci_high_adjusted[detected_rows],
        truth,
    )
    plain = _compute_coverage(
        names, estimates.ci_low[detected_rows], estimates.ci_high[detected_rows], truth
    )
    all_coverage = _compute_coverage(
        list(estimates.candidates), estimates.ci_low, estimates.ci_high, truth
    )
    return _compute_figures(names, detected_shares, truth) | {
        "distribution": _compute_variation_with_others(shares, truth, set(estimates.candidates)),
        "listed": total_variation(shares, truth),
        "coverage": inside,
        "plain": plain,
        "every": all_coverage,
    }


def _compare_recorded(
    rows: list[dict[str, str]], truth: Shares, listed: set[str]
) -> dict[str, float]:
    """Return the figures of the recorded result, with the keys of `_compare_estimates`.

    `listed` are the candidates. The recorded result has no intervals of other kinds, so it has no
    `plain` and no `every`.
    """
    names = [row["string"] for row in rows]
    shares = {row["string"]: float(row["proportion"]) for row in rows}
    low, high = (
        np.array([float(row[key]) for row in rows]) for key in ("prop_low_95", "prop_high_95")
    )
    return _compute_figures(names, shares, truth) | {
        "distribution": _compute_variation_with_others(shares, truth, listed),
        "listed": total_variation(shares, truth),
        "coverage": _compute_coverage(names, low, high, truth),
    }


def _compute_figures(names: list[str], shares: Shares, truth: Shares) -> dict[str, float]:
    """Return the figures of a list of detected strings, compared with the true shares.

    true, false    number of detected strings that devices have, and that no device has
    variation      total variation of the shares
    rmse           root mean square error of the 20 most frequent strings, with the estimate 0 for a
                   string that is not detected

    `names` are the detected strings, and `shares` are their estimates.
    """
    top = sorted(truth, key=lambda name: -truth[name])[:_TOP]
    errors = [shares.get(name, 0.0) - truth[name] for name in top]
    n_true = sum(name in truth for name in names)
    return {
        "true": n_true,
        "false": len(names) - n_true,
        "variation": total_variation(shares, truth),
        "rmse": float(np.sqrt(np.mean(np.square(errors)))),
    }


def total_variation(shares: Shares, truth: Shares) -> float:
    """Return half the sum of absolute errors over all strings. A missing string has share 0."""
    names = shares.keys() | truth.keys()
    return sum(abs(shares.get(name, 0.0) - truth.get(name, 0.0)) for name in names) / 2


def _compute_variation_with_others(shares: Shares, truth: Shares, listed: set[str]) -> float:
    """Return the total variation in which all strings outside the candidates count as one string.

    `listed` are the candidates. The estimated share of the other strings is 1 minus the sum of
    `shares`.
    """
    unlisted_share = sum(share for name, share in truth.items() if name not in listed)
    listed_truth = {name: share for name, share in truth.items() if name in listed}
    error_of_others = abs(1 - sum(shares.values()) - unlisted_share)
    return total_variation(shares, listed_truth) + error_of_others / 2


def _compute_coverage(
    names: list[str], low: NDArray[np.float64], high: NDArray[np.float64], truth: Shares
) -> float:
    """Return the share of intervals that contain the truth, NaN without intervals."""
    if not names:
        return float("nan")
    shares = np.array([truth.get(name, 0.0) for name in names])
    return float(np.mean((low <= shares) & (shares <= high)))


def _count_true(estimates: Estimates, truth: Shares, n_false: int) -> int:
    """Return the number of true strings with smaller p-values than all but `n_false` false strings.

    Strings are sorted by p-value, and strings of equal p-values by falling share. The true strings
    before false string number `n_false` + 1 are counted.
    """
    # `lexsort` sorts by the last key first.
    order = np.lexsort((-estimates.share, estimates.p_value))
    is_true = np.array([estimates.candidates[i] in truth for i in order])
    false_before = np.cumsum(~is_true)
    return int(is_true[false_before <= n_false].sum())


def _read_peak_bytes() -> float:
    """Return the largest resident size of this program in bytes (Linux).

    VmHWM of a program does not contain the peak of its parent, unlike ru_maxrss.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    return float("nan")


if __name__ == "__main__":
    json.dump(measure(Path(sys.argv[1])), sys.stdout)
