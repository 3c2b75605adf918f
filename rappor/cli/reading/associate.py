"""`rappor associate`: how two fields of a tuple depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, get_width
from rappor.cli.options import (
    Output,
    RepetitionOptions,
    option_field,
    option_group,
    save_chart,
)
from rappor.cli.reading.count_inputs import CountInputs
from rappor.estimator.error_control import ErrorControl

if TYPE_CHECKING:
    from rappor.association.association import Association
    from rappor.candidates.candidates import Candidates
    from rappor.protocol.params import Params
    from rappor.registry.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class _TupleInputs(CountInputs):
    """Options for the counts of a metric with fields.

    The candidates of --candidates replace the candidates of the metric's entry. In `rappor decode`
    they are added to them. An association needs a complete table: one list of values for each
    field, and every combination of these values as a candidate. Two complete tables added together
    usually lack combinations. Example: (a, x) and (b, y) lack (a, y) and (b, x).
    """

    candidates_path: str | None = option_field(
        "FILE",
        "Combinations whose shares are estimated, one per line with tabs between the fields, plain "
        "or gzip; - is standard input. The lines must be all combinations of one list for each "
        "field. Default: the candidates of the metric.",
        type=click.Path(allow_dash=True),
    )

    def _read_candidates(self, params: Params, metric: Metric | None) -> Candidates:
        """Read the candidates of --candidates, or the candidates of the metric's entry."""
        return self._read_candidates_file(params, metric)


@command(
    "rappor associate editors.counts --registry editors.toml",
    "rappor associate editors.counts --registry editors.toml --fields editor system",
    "rappor associate editors.counts --registry editors.toml --html editors.html",
    "rappor associate editors.counts --registry editors.toml --chart editors.svg",
    "rappor associate editors.counts --candidates pairs.txt --json",
)
def associate(
    *,
    inputs: CountInputs = option_group(_TupleInputs),
    fields: tuple[str, str] | None = option_field(
        "ROWS COLUMNS",
        "The two fields to compare: the field of the rows, then the field of the columns. Needed "
        "if the metric has more than two; the cells are summed over the other fields.",
        nargs=2,
    ),
    repetition: RepetitionOptions = option_group(RepetitionOptions),
    confidence: float = option_field("SHARE", "Confidence level of the intervals.", default=0.95),
    output: Output = option_group(Output),
) -> None:
    """Show how two fields of a tuple depend on each other.

    COUNTS are files as for `rappor decode`, of a metric whose values have fields, such as the
    editor and the system of a device. The command estimates the share of each combination of
    listed values (cells), the sums of rows and columns (margins), and the conditional shares: of
    the reports with an editor, the share of each system. Every share has its standard error.

    A test shows whether the fields depend on each other within the listed values. Cramer's V is
    the strength of the dependence, from 0 to 1. The p-value is compared with 1 minus --confidence.

    A metric may have a closed list of values for each field. The combinations of these values are
    then estimated, and the command takes no candidates. For strings, the candidates must be all
    combinations of one list for each field, as in the metric's table of candidates. At most 2,048
    combinations are possible.
    """
    from rappor.association.associate import associate as associate_estimates
    from rappor.association.field_cells import (
        choose_fields,
        find_field_names,
        load_combinations,
    )
    from rappor.decoding.decoder import decode

    counts = inputs.read_counts()
    # Wrong fields and too many combinations are refused before the decode. The decode takes
    # seconds, and hours for the combinations of long lists. click passes an empty tuple without
    # --fields.
    chosen = choose_fields(
        find_field_names(collection.params for collection in counts), fields or None
    )
    candidates = inputs.read_candidates(counts)
    if candidates is not None:
        candidates = load_combinations(candidates)
    with ProgressDisplay() as progress:
        estimates = decode(
            inputs.add_counts_of_epoch(counts),
            candidates,
            error_control=ErrorControl(confidence=confidence),
            devices=repetition.devices,
            reports_per_device=repetition.reports_per_device,
            complete=inputs.is_complete(counts),
            progress=progress,
        )
    _write_outputs(associate_estimates(estimates, chosen), output, inputs)


def _write_outputs(association: Association, output: Output, inputs: CountInputs) -> None:
    """Write the requested files, and print the association."""
    from rappor.reporting.association_text import association_text

    if output.csv_path is not None:
        association.to_csv(output.csv_path)
    if output.html_path is not None:
        association.to_html(output.html_path)
    save_chart(association, output.chart, days=inputs.describe_days())
    if output.as_json:
        click.echo(association.to_json())
    else:
        click.echo(association_text(association, width=get_width()))
