"""Fit all candidates if the present strings fill a large part of the rows.

The decoder calls `fit_all_if_saturated` after the selection. The input is the `Selection` of
`rappor.estimator.selection`. The output is the same selection, or another selection whose fit
contains all candidates. At the end, the decoder calls `describe_capacity` for the diagnostics of
the result.

A *row* of the regression is one bit of one cohort. With m cohorts and h hash functions, a string
sets at most m h rows: h bits in each cohort. Two strings *collide* in a row that both set. A string
is *present* if some device has it.

Theory of operation
-------------------
A selection omits the candidates that it cannot detect. This is right if most of these candidates
are absent. It is wrong if hundreds of strings share hundreds of rows, for two reasons:

- The omitted strings collide with the selected strings: they set some of the same rows.
- The search for the selection chooses the candidates that follow the noise. The residuals become
  too small, as if the fit had more coefficients.

A fit of all candidates searches nothing, and its candidates explain each other's collisions. But n
rows supply n degrees of freedom, and each candidate uses one of them. Let n be the effective number
of rows (below), c the number of candidates, and s the number of selected candidates.

- The selection is *saturated* if s >= n / 6 (`SATURATED_SHARE`), or s >= n / 8 if a candidate has
  fewer than three rows (`_SATURATED_SHARE_FEW_ROWS`).
- There are *many collisions* if collisions cause more than half of the variance of a row
  (`_MANY_COLLISIONS`). The randomized responses cause the other part.

The first case that is true determines the fit:

| case | fit |
|---|---|
| 1. saturated, c <= 3/4 n and c <= 6,000 | least squares of all candidates |
| 2. not saturated, and either c < n / 2 or not many collisions | the selection |
| 3. the shrunken fit would be invalid or too slow | the selection |
| 4. strings that are no candidates cause most collisions | the selection |
| 5. all other cases | shrunken fit of all candidates |

The shrunken fit (`rappor.estimator.shrinkage`) treats the shares of the candidates as random
effects of one variance. It is possible with more candidates than rows.

*Example.* 16 cohorts of 32 bits have n = 512 rows. A selection of 100 strings is saturated, because
512 / 6 = 85. From a list of 300 candidates, all are fitted by least squares (300 <= 384). From a
list of 1,000, all are fitted by the shrunken fit.

| symbol | meaning |
|---|---|
| m, k, h | cohorts, bits of a cohort, and bits that a string sets in a cohort |
| n | effective number of rows (below) |
| c, s | number of candidates, and of selected candidates |
| v, tau^2 | variance of the randomized responses of a row, and of collisions |
| i_r | information of row r: 1 / (v + tau^2) |

Two numbers measure the size of a collection.

- The *effective number of rows* is (sum of i_r)^2 / sum of i_r^2. It is the number of rows if all
  rows have the same variance. Rows of a small cohort have a large variance and add little.
- The *rows per candidate* is the same formula over the rows that one candidate sets. It is at most
  m h.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy import sparse

from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Columns, Design
from rappor.estimator.fit import LEAST_NOISE, Fit, fit_rows
from rappor.estimator.selection import Selection
from rappor.estimator.shrinkage import ShrunkenFit, fit_shrunken

_MOST_CANDIDATES_BY_LEAST_SQUARES: Final = 0.75
"""Largest number of candidates, as a share of the effective rows, for a least-squares fit of all
candidates. A fit of c candidates on n rows has standard errors 1 / sqrt(1 - c/n) times as large as
a fit of one candidate: twice as large at three quarters. (The other candidates explain the part c/n
of a random column, so the part 1 - c/n of the information about a candidate remains.)"""

_MOST_FITTED: Final = 6000
"""Largest number of candidates for a least-squares fit of all. The inverse takes 300 MB and about
ten seconds."""

_MOST_TESTED: Final = 4000
"""Largest number of candidates that `fit_all_for_test` fits. The fit takes 1.5 seconds of CPU time
for 2,500 candidates. The time grows with the third power of the number."""

SATURATED_SHARE: Final = 1 / 6
"""Number of selected strings, as a share of the effective rows, from which all candidates are
fitted. If the selected strings are a seventh of the rows, 94.4 % of the 95 % intervals of the
selection still contain the true share. If they are a third, 92 % do."""

_MANY_COLLISIONS: Final = 0.5
"""Share of the variance of a row that collisions cause, above which the collisions may come from
candidates that were not selected. The shrunken fit decides whether they do."""

_MOST_ROWS: Final = 1024
"""Largest number of rows for the shrunken fit, which inverts a matrix of this size about thirty
times. The time grows with the third power of the number."""

_MOST_CANDIDATES_PER_ROW: Final = 4
"""Largest number of candidates per row for the shrunken fit. Its time and memory grow in proportion
to the number."""

_FEWEST_ROWS_FOR_SHRUNKEN_FIT: Final = 2
"""Smallest number of rows per candidate for the shrunken fit. If a candidate has only one row, a
large proportion of ones in the row may come from the candidate or from a collision. No other row
can separate the two causes."""

_FEWEST_ROWS_TO_AVERAGE: Final = 6.0
"""Number of rows per candidate below which the collisions of a candidate with strings outside the
fit do not average out over its rows. In collections with little noise, adjusted intervals (the
wider 95 % intervals of detected candidates) contain the true share in 86 to 91 % of the cases with
4 rows, and in 94 % with 8 rows."""

_MOST_FOREIGN_COLLISIONS: Final = 0.5
"""Variance of collisions with strings that are not candidates, relative to the variance of
collisions among candidates, above which the errors of a shrunken fit may be too small. Measured
with 300 strings on 512 rows, whose shares follow Zipf's law: if the most frequent string is not a
candidate, the ratio is .75 or more, and 91 to 94 % of the 95 % intervals contain the true share. If
all present strings are candidates, the ratio is at most .001."""

_FEWEST_ROWS_FOR_STRONG: Final = 3.0
"""Number of rows per candidate below which the shrunken fit has no strong candidates. A *strong*
candidate is a fixed effect with a column of its own, because its share exceeds many standard
errors. With 2 cohorts, 92 % of the 95 % intervals of the 20 most frequent strings contain the true
share if strong candidates are allowed, and 96 % if not."""

_SATURATED_SHARE_FEW_ROWS: Final = 1 / 8
"""Replacement for `SATURATED_SHARE` if there are fewer than `_FEWEST_ROWS_FOR_STRONG` rows per
candidate. With two rows for each string, n / 8 selected strings set about n / 4 rows. Another
string then collides in both of its rows with probability (1/4)^2 = 1/16."""

_MOST_OVERLAP_EXCESS: Final = 8.0
"""Excess of shared rows among selected candidates (`compute_overlap_excess`), in standard
deviations, above which the collection is reported as overfull if its fit is bad, too. Measured with
16 cohorts of 32 bits: the excess is 17 to 27 if all candidates were chosen because they share bits
with one string that 60 % of the devices have, and at most 3 for other lists."""

_FEWEST_CANDIDATES_PER_ROW: Final = 0.5
"""Number of candidates per effective row from which many collisions may come from present
candidates that the selection missed. With fewer candidates, strings that are not candidates
probably cause the collisions, so the selection is returned."""


def fit_all_if_saturated(target: Target, design: Design, selection: Selection) -> Selection:
    """Return a fit of all candidates if present strings fill the rows, otherwise the selection.

    The module docstring lists the cases.

    Parameters
    ----------
    target : n rows.
    design : columns of all candidates.
    selection : the result of `select_candidates`.
    """
    if (complete_fit := fit_all_by_least_squares(target, design, selection)) is not None:
        return complete_fit
    n_rows = count_effective_rows(selection.fit)
    rows_per_candidate = count_effective_rows_per_candidate(target, selection.fit)
    n_candidates = design.n_candidates
    may_collide = (
        n_candidates >= _FEWEST_CANDIDATES_PER_ROW * n_rows
        and compute_collision_share(selection.fit) > _MANY_COLLISIONS
    )
    # Case 2: the present strings fill few rows and cause few collisions, so the selection is best.
    # Case 3: the shrunken fit is invalid in two situations:
    # - Some rows have one-sided noise: a true 0 is never sent as 1, or a true 1 never as 0. Such a
    #   row may have no noise at all, but the shrunken fit treats all noise as normal.
    # - A candidate has only one row.
    if (
        not (_is_saturated(target, selection) or may_collide)
        or target.has_one_sided_noise.any()
        or round(rows_per_candidate) < _FEWEST_ROWS_FOR_SHRUNKEN_FIT
    ):
        return selection
    # Case 3: the shrunken fit inverts a matrix of all rows many times, which would be too slow.
    if len(target) > _MOST_ROWS or n_candidates > _MOST_CANDIDATES_PER_ROW * len(target):
        return selection
    columns = design.columns(np.arange(n_candidates))
    has_fixed_effects = rows_per_candidate >= _FEWEST_ROWS_FOR_STRONG
    shrunken = fit_shrunken(target, columns, selection.fit, has_fixed_effects=has_fixed_effects)
    # `collisions` is the mean variance of a row from collisions among candidates, and `tau2` the
    # variance from collisions with strings that are not candidates. Case 4: `tau2` is larger. The
    # shrunken fit would take a frequent string that is no candidate for noise, and would attribute
    # its rows to candidates. With 300 strings on 512 rows, whose shares follow Zipf's law, and
    # without the most frequent string as a candidate, 18 % of the detections were false.
    if shrunken.collisions < shrunken.tau2:
        return selection
    return Selection(
        selected=selection.selected,
        fit=shrunken,
        estimate=shrunken.estimate,
        std_error=shrunken.std_error,
    )


def fit_all_by_least_squares(
    target: Target, design: Design, selection: Selection
) -> Selection | None:
    """Return the least-squares fit of all candidates, or None if it should not be used.

    The fit should be used if the selection is saturated, and if all candidates together leave
    enough degrees of freedom (`_MOST_CANDIDATES_BY_LEAST_SQUARES`).
    """
    if not _is_saturated(target, selection):
        return None
    n_candidates = design.n_candidates
    most = _MOST_CANDIDATES_BY_LEAST_SQUARES * count_effective_rows(selection.fit)
    if n_candidates > min(most, _MOST_FITTED):
        return None
    every_candidate = np.arange(n_candidates)
    fit = fit_rows(target, design.columns(every_candidate), start=selection.fit)
    estimate, std_error = fit.compute_selected_estimates()
    return Selection(selected=every_candidate, fit=fit, estimate=estimate, std_error=std_error)


def fit_all_for_test(target: Target, design: Columns, selection: Selection) -> Fit | None:
    """Fit all candidates by least squares, only to test the goodness of their fit.

    Case: all present strings are candidates, but some are too rare to be selected. They collide
    with the selected candidates, so the fit of the selected candidates is bad. The fit of all
    candidates has no such collisions, and is good.

    Returns
    -------
    The fit, or None if the candidates are too many, or were read from a stream. Of a stream, only
    the best candidates are in memory.
    """
    n_candidates = design.n_candidates
    most = _MOST_CANDIDATES_BY_LEAST_SQUARES * count_effective_rows(selection.fit)
    # `other_counts` is the histogram of the p-values of the candidates that are not in memory. It
    # is None for a list, whose candidates are all in memory.
    if selection.other_counts is not None or n_candidates > min(most, _MOST_TESTED):
        return None
    return fit_rows(target, design.columns(np.arange(n_candidates)), start=selection.fit)


def _is_saturated(target: Target, selection: Selection) -> bool:
    """Return whether the selected strings are at least a sixth of the effective number of rows.

    The limit is an eighth if each string has fewer than `_FEWEST_ROWS_FOR_STRONG` rows.
    """
    rows_per_candidate = count_effective_rows_per_candidate(target, selection.fit)
    has_few_rows = rows_per_candidate < _FEWEST_ROWS_FOR_STRONG
    limit = _SATURATED_SHARE_FEW_ROWS if has_few_rows else SATURATED_SHARE
    return len(selection.selected) >= limit * count_effective_rows(selection.fit)


def compute_collision_share(fit: Fit) -> float:
    """Compute the share of the variance of a mean row that collisions cause, in [0, 1].

    The variance of a row is tau^2 of the collisions plus v of the randomized responses.
    """
    # Rows of cohorts without reports have infinite noise.
    noise = fit.coin_variance[np.isfinite(fit.coin_variance)]
    return float(fit.tau2 / (fit.tau2 + noise.mean()))


def count_effective_rows_per_candidate(target: Target, fit: Fit) -> float:
    """Compute the effective number of rows that a random candidate sets, at most m h.

    The number is (sum of i_r)^2 / sum of i_r^2 over the rows r of a candidate, with i_r the mean
    information of a row of the cohort. If one cohort is much larger than the others, only its rows
    have much information, and the number is about h.
    """
    information = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
    # One entry for each cohort of each collection: number of bits k, number of hash functions h.
    m = [counts.params.m for counts in target.counts]
    n_bits = np.repeat([counts.params.k for counts in target.counts], m)
    n_hashes = np.repeat([counts.params.h for counts in target.counts], m)
    cohort = np.repeat(np.arange(len(n_bits)), n_bits)
    mean_information = np.bincount(cohort, information) / n_bits
    return float((n_hashes * mean_information).sum() ** 2 / (n_hashes * mean_information**2).sum())


def count_effective_rows(fit: Fit) -> float:
    """Compute the effective number of rows, (sum of i_r)^2 / sum of i_r^2, i_r the information.

    If one cohort is much larger than the others, only its rows have much information. The number is
    then about k, the number of bits of that cohort.
    """
    information = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
    return float(information.sum() ** 2 / (information**2).sum())


def compute_overlap_excess(target: Target, columns: sparse.csc_array) -> float:
    """Compute the excess of shared rows among the selected candidates, in standard deviations.

    Case: the candidates were chosen because they share bits with one frequent string. Such
    candidates also share more rows with each other than candidates do by chance.

    Two strings share h^2 / k bits of a cohort on average, because bits are hashes. So s strings
    share s (s - 1) / 2 h^2 / k bits of a cohort, summed over all pairs of strings. With b = s h,
    the number of bits that they set together, this is b (b - h) / (2 k). The code computes b from
    the columns, because two hash functions of a string may choose one bit.

    The variance of this number is at most its mean: two strings share a bit seldom, so the number
    of bits that one pair shares has a variance of at most its mean, as a count of rare events has.
    The numbers of different pairs are uncorrelated, so their variances add, as their means do. The
    excess is the number of shared rows minus its mean, divided by the square root of the mean.

    *Example.* 20 candidates with h = 1 in 16 cohorts of 32 bits share 16 * 20 * 19 / 64 = 95 rows
    on average. If they share 180, the excess is 85 / sqrt(95) = 8.7.

    Parameters
    ----------
    target : n rows.
    columns : (n, s) sparse. The rows of the selected candidates.
    """
    # Number a of selected candidates that set each row, (n,). They form a (a - 1) / 2 pairs.
    n_candidates = np.asarray(abs(columns).sum(axis=1)).ravel()
    shared = expected = 0.0
    start = 0
    for counts in target.counts:
        params = counts.params
        stop = start + params.m * params.k
        in_cohort = n_candidates[start:stop].reshape(params.m, params.k)
        n_bits = in_cohort.sum(axis=1)
        shared += float((in_cohort * (in_cohort - 1) / 2).sum())
        expected += float((n_bits * (n_bits - params.h) / (2 * params.k)).sum())
        start = stop
    return (shared - expected) / float(np.sqrt(expected)) if expected > 0 else 0.0


def describe_capacity(
    target: Target, selection: Selection, columns: sparse.csc_array, *, misfit: bool
) -> dict[str, Any]:
    """Describe the number of rows, the kind of the fit, and whether the collection is overfull.

    *Overfull* means that more strings are present than the rows can separate. Intervals may then
    contain the true share less often than their confidence level states. A collection is overfull
    in these cases:

    - *Saturated*: the selection is saturated, but neither fit of all candidates was used.
    - *Few rows*: a candidate has so few rows that collisions with strings outside the fit do not
      average out, and such strings are present. Whether they are present is decided by the kind of
      the fit. For a selection, they are present if collisions cause more than half of the variance
      of the rows, or if the fit is bad. A shrunken fit is used only if present strings fill the
      rows, so they are assumed to be present.
    - *Foreign collisions*: a shrunken fit finds many collisions with strings that are not
      candidates.
    - *Shared rows*: the selected candidates share more rows than strings do by chance, and the fit
      is bad. A frequent string is outside the candidates, and the candidates were chosen because
      they share rows with it. Together they explain the rows of that string, and each seems to be
      present.

    Parameters
    ----------
    target : n rows.
    selection : the final fit.
    columns : (n, s) sparse. Columns of the selected candidates.
    misfit : True if the test of the goodness of the fit failed.

    Returns
    -------
    A dictionary for the diagnostics: `rows`, the effective number of rows; `rows_per_candidate`;
    `fitted`, which candidates have a column ("selected", "all" or "shrunken"); and `overfull`.
    """
    n_rows = count_effective_rows(selection.fit)
    rows_per_candidate = count_effective_rows_per_candidate(target, selection.fit)
    has_few_rows = rows_per_candidate < _FEWEST_ROWS_TO_AVERAGE
    # `estimate` has one number for each candidate in memory.
    is_all_selected = len(selection.selected) == len(selection.estimate)
    if isinstance(selection.fit, ShrunkenFit):
        limit = _MOST_FOREIGN_COLLISIONS * selection.fit.collisions
        has_foreign_collisions = selection.fit.tau2 > limit
        fitted, is_overfull = "shrunken", has_few_rows or has_foreign_collisions
    # All candidates of a saturated selection were fitted by least squares. This fit is valid, so a
    # full selection is no reason to call the collection overfull.
    elif is_all_selected and _is_saturated(target, selection):
        fitted, is_overfull = "all", False
    else:
        may_collide = misfit or compute_collision_share(selection.fit) > _MANY_COLLISIONS
        fitted = "selected"
        is_overfull = _is_saturated(target, selection) or (may_collide and has_few_rows)
    is_overfull |= misfit and compute_overlap_excess(target, columns) > _MOST_OVERLAP_EXCESS
    return {
        "rows": round(n_rows),
        "rows_per_candidate": round(rows_per_candidate, 1),
        "fitted": fitted,
        "overfull": bool(is_overfull),
    }
