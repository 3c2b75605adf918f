"""`associate`: the association of two fields, from the estimates of a metric with fields.

The steps, each a module of this package:

    estimates --> cells of two fields --> joint table --> margins and conditional shares (ratios)
                                                     `--> test of independence
                                                     `--> Cramer's V

All numbers come from the estimates of the cells and from their one joint covariance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rappor.association.association import Association
from rappor.association.cramers_v import estimate_cramers_v
from rappor.association.field_cells import (
    FieldCells,
    choose_fields,
    compute_joint_table,
    find_cells,
    find_field_names,
)
from rappor.association.independence import compute_independence_test, has_fixed_sum
from rappor.association.joint_table import JointTable
from rappor.association.ratios import estimate_ratios
from rappor.association.share_table import ShareTable
from rappor.base.argument_checks import check_type
from rappor.decoding.contrasts import Contrast, compute_critical_value
from rappor.decoding.estimates import Estimates


def associate(estimates: Estimates, fields: Sequence[str] | None = None) -> Association:
    """Estimate how two fields of a tuple depend on each other.

    The metric of the estimates has fields, such as the editor and the system of a device. The
    result contains the share of each pair of listed values, the margins, the conditional shares, a
    test of independence and Cramer's V. README.md in this folder explains how to read the result.

    The values of the fields must have been listed before the counts were seen. Values that were
    chosen because their shares are high make margins too large.

    Parameters
    ----------
    estimates : result of `rappor.decode` for a metric with fields. The candidates of strings must
        be all combinations of one list of values for each field, at most 2,048.
    fields : names of the two fields: the field of the rows, then the field of the columns. Cells
        are summed over all other fields. None for both fields of a metric that has two.

    Returns
    -------
    Association. Each interval contains its true number with the confidence of
    `estimates.error_control`. The intervals are not adjusted for their number, so the probability
    that all of them contain their numbers is smaller. The result is deterministic.

    Raises
    ------
    ParamsError
        `estimates` are no `Estimates`.
    DecodeError
        The metric has no fields; `fields` are not two different fields of it; the candidates are
        not all combinations, or too many; or the counts do not determine a cell.

    Examples
    --------
    Three fields of which two are compared. The third field, `theme`, depends on neither.

    >>> from rappor import Params, Population, associate, decode, simulate_counts
    >>> from rappor.protocol.tuples import combine_categories
    >>> lists = {"editor": ["vim", "code"], "system": ["linux", "mac"], "theme": ["light", "dark"]}
    >>> # The last field varies fastest: vim linux light, vim linux dark, vim mac light, ...
    >>> categories = combine_categories(lists)
    >>> params = Params.profile(
    ...     "once", encoding="onehot", categories=categories, field_names=tuple(lists)
    ... )
    >>> population = Population(categories, [8, 8, 2, 2, 4, 4, 6, 6])
    >>> estimates = decode(simulate_counts(population, params, n_reports=100_000, seed=1))
    >>> association = associate(estimates, fields=("system", "editor"))
    >>> association.cells.share.round(2).tolist()
    [[0.4, 0.2], [0.1, 0.3]]
    >>> association.summed_fields
    ('theme',)
    >>> associate(estimates, fields=("system", "theme")).independence.p_value > 0.05
    True
    """
    check_type("estimates", estimates, Estimates, "pass the result of rappor.decode")
    field_names = find_field_names(summary.params for summary in estimates.collections)
    cells = find_cells(estimates, choose_fields(field_names, fields))
    table = compute_joint_table(estimates, cells)
    confidence = estimates.error_control.confidence
    critical_value = compute_critical_value(confidence)
    row_margins, column_margins = _estimate_margins(table, critical_value)
    chosen = (cells.row_field, cells.column_field)
    return Association(
        metric=estimates.collections[0].metric,
        row_field=cells.row_field,
        column_field=cells.column_field,
        summed_fields=tuple(name for name in field_names if name not in chosen),
        row_values=cells.row_values,
        column_values=cells.column_values,
        cells=_estimate_cells(estimates, cells, table, critical_value),
        row_margins=row_margins,
        column_margins=column_margins,
        within_rows=_estimate_within_rows(table, critical_value),
        within_columns=_transpose(_estimate_within_rows(table.transpose(), critical_value)),
        listed=_estimate_listed_share(table, critical_value),
        independence=compute_independence_test(table),
        cramers_v=estimate_cramers_v(table, confidence),
        confidence=confidence,
        reports=estimates.reports,
        assumptions=estimates.assumptions,
        warnings=estimates.warnings,
    )


def _estimate_listed_share(table: JointTable, critical_value: float) -> Contrast:
    """Return the sum of all cells with its interval.

    Case: categories that contain every possible value. Their shares add up to 1 in every estimate,
    so the sum has no error, and the entries of the covariance of the cells add up to 0. A rounding
    error of this 0 would otherwise give an interval.
    """
    covariance = table.covariance
    variance = 0.0 if has_fixed_sum(covariance) else float(covariance.sum())
    return Contrast.from_variance(
        "listed cells", float(table.share.sum()), variance, critical_value
    )


def _estimate_cells(
    estimates: Estimates, cells: FieldCells, table: JointTable, critical_value: float
) -> ShareTable:
    """Return the shares of the cells with their intervals.

    A cell of a single candidate has the interval of the decode. That interval is exact for
    categories, and for strings its limits come from the skewed distribution of the noise instead of
    a normal distribution. A sum over other fields has a normal interval.
    """
    sums = ShareTable.from_variance(
        table.share, table.covariance.diagonal().reshape(table.share.shape), critical_value
    )
    # More candidates than cells: each cell is a sum over other fields.
    if len(cells.cell) > table.share.size:
        return sums
    # `cells.cell` is the index of the cell of each candidate. Sorted by it, the candidates are in
    # the order of the cells.
    order = np.argsort(cells.cell)
    return ShareTable(
        share=sums.share,
        std_error=sums.std_error,
        ci_low=estimates.ci_low[order].reshape(table.share.shape),
        ci_high=estimates.ci_high[order].reshape(table.share.shape),
    )


def _estimate_margins(table: JointTable, critical_value: float) -> tuple[ShareTable, ShareTable]:
    """Return the margins of the rows, (A,), and of the columns, (B,)."""
    row_variance, column_variance = table.compute_margin_variances()
    return (
        ShareTable.from_variance(table.share.sum(axis=1), row_variance, critical_value),
        ShareTable.from_variance(table.share.sum(axis=0), column_variance, critical_value),
    )


def _estimate_within_rows(table: JointTable, critical_value: float) -> ShareTable:
    """Return the conditional shares of the columns within each row, (A, B)."""
    # (A, B, A, B): 2 * (A, B) repeats the tuple.
    covariance = table.covariance.reshape(2 * table.share.shape)
    row_variance, _ = table.compute_margin_variances()
    # Covariance of each cell with the margin of its row, which contains the cell.
    joint = np.einsum("abad->ab", covariance)
    margins, margin_variances = (
        np.broadcast_to(values[:, None], table.share.shape)
        for values in (table.share.sum(axis=1), row_variance)
    )
    variance = table.covariance.diagonal().reshape(table.share.shape)
    return estimate_ratios(
        table.share, margins, (variance, joint, margin_variances), critical_value
    )


def _transpose(table: ShareTable) -> ShareTable:
    """Exchange rows and columns."""
    return ShareTable(
        share=table.share.T,
        std_error=table.std_error.T,
        ci_low=table.ci_low.T,
        ci_high=table.ci_high.T,
    )
