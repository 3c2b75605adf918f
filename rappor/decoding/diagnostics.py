"""Diagnostics: what the counts say about the collection itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.debias import Target
from rappor.decoding.fit import Fit
from rappor.protocol.encodings import encoding_of

FALSE_ALARM: Final = 1e-9
"""Probability that the popcounts of an honest collection are called odd, at either end."""

FIT_FALSE_ALARM: Final = 1e-6
"""P-value of the goodness of fit below which a table warns: once in a million tables, if the
candidates are all that the devices hold and every report comes from another one."""

_POWER: Final = 0.8
"""Probability with which `detectable_share` is detected: the usual power of a study, and the
planner's default."""

_LISTED_BITS: Final = 10
"""Unexplained bits that are listed: enough to look at, few enough to print."""


def describe_cohorts(target: Target) -> dict[str, Any]:
    """Return how evenly reports fall into cohorts, and cohorts with odd numbers of ones."""
    balance = []
    popcounts = []
    for number, counts in enumerate(target.counts):
        reports = counts.reports
        p_value = 1.0
        if counts.params.m > 1:
            mean = reports.mean()
            squares = ((reports - mean) ** 2 / mean).sum()
            p_value = float(special.chdtrc(counts.params.m - 1, squares))
        balance.append(
            {
                "smallest": int(reports.min()),
                "largest": int(reports.max()),
                "empty": int((reports == 0).sum()),
                "p_value": p_value,
            }
        )
        popcounts.extend(_odd_popcounts(target, number))
    return {"cohorts": balance, "odd_popcounts": popcounts}


def _odd_popcounts(target: Target, number: int) -> list[dict[str, Any]]:
    """Find cohorts whose mean number of ones no mixture of honest devices has."""
    counts = target.counts[number]
    params = counts.params
    true_bits = encoding_of(params).true_bits
    gap = params.q_star - params.p_star
    live = np.flatnonzero(counts.reports)
    n = counts.reports[live]
    bits = (counts.ones[live].sum(axis=1) / n - params.k * params.p_star) / gap
    # Independent bits: the variance of a popcount is at most k/4.
    margin = -special.ndtri(FALSE_ALARM / params.m) * np.sqrt(params.k / 4 / n) / gap
    odd = (bits < true_bits[0] - margin) | (bits > true_bits[-1] + margin)
    return [
        {"collection": number, "cohort": cohort, "true_bits": mean}
        for cohort, mean in zip(live[odd].tolist(), bits[odd].tolist(), strict=True)
    ]


def describe_fit(
    target: Target, fit: Fit, std_error: NDArray[np.float64], *, threshold: float
) -> dict[str, Any]:
    """Return how well the candidates explain the bits, and what limits detection.

    Parameters
    ----------
    std_error : (c,) float64. Standard errors of the candidates, as shares.
    threshold : the p-value at which one candidate more would be detected.
    """
    live = target.reports > 0
    squares = (fit.residual[live] ** 2 / fit.noise[live]).sum()
    noise = float(np.mean(fit.noise[live]))
    known = std_error[np.isfinite(std_error)]
    reach = float(special.ndtri(_POWER) - special.ndtri(threshold))
    return {
        "goodness_of_fit": {
            "chi2_per_degree": float(squares / fit.degrees_of_freedom),
            "p_value": float(special.chdtrc(fit.degrees_of_freedom, squares)),
        },
        "collision_share": float(fit.tau2 / (fit.tau2 + noise)),
        "set_aside_rows": int((fit.robust[live] < 1).sum()),
        "unexplained_bits": _unexplained(target, fit),
        "detectable_share": float(np.median(known)) * reach if len(known) else None,
        "half_detectable_with_reports": _reports_for_half(target, fit, noise),
    }


def _unexplained(target: Target, fit: Fit) -> list[dict[str, Any]]:
    """List the bits with the largest excess that no candidate explains."""
    excess = np.where(fit.robust < 1, fit.residual, 0.0)
    found = []
    for row in np.argsort(-excess, kind="stable")[:_LISTED_BITS]:
        if excess[row] <= 0:
            break
        group = int(target.group[row])
        inside = int(row - np.searchsorted(target.group, group))
        k = target.counts[group].params.k
        found.append(
            {
                "collection": group,
                "cohort": inside // k,
                "bit": inside % k,
                "share": float(excess[row]),
            }
        )
    return found


def _reports_for_half(target: Target, fit: Fit, noise: float) -> int | None:
    """Return the reports that halve the smallest detectable share; None if none do.

    Half the share takes half the standard error: (noise n0/n + tau2) must reach a quarter of
    (noise + tau2). Noise falls as reports grow, collisions only as cohorts do.
    """
    left = (noise + fit.tau2) / 4 - fit.tau2
    return int(np.ceil(target.n_reports * noise / left)) if left > 0 else None


def warnings(diagnostics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each finding that questions the whole table."""
    fit = diagnostics.get("goodness_of_fit")
    if fit is None or fit["p_value"] >= FIT_FALSE_ALARM:
        return ()
    return (
        f"The bits scatter {fit['chi2_per_degree']:.3g} times as much as honest reports of these "
        f"candidates would (p = {fit['p_value']:.1e}). Devices may hold strings that are no "
        "candidates, or report several times, or reports may be forged: the counts cannot tell "
        "which. A good fit would not exclude forgeries either.",
    )
