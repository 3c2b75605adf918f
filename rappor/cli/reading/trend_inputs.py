"""Arguments of `rappor trend` and `rappor publish`: counts with their days, and candidates."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rappor.base.errors import DecodeError
from rappor.cli.option_values import WholeNumber
from rappor.cli.options import option_field
from rappor.cli.reading.count_inputs import CountInputs

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.released_counts import ReleasedCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendInputs(CountInputs):
    """Options for files of counts, their days, and the length of a period."""

    by: str | None = option_field(
        ["day", "week", "month"],
        "Length of a period, at least the length of the periods in COUNTS. Default: the length in "
        "COUNTS.",
    )
    # RUF009 warns because all objects share the result of a call in a default. `option_field`
    # returns a dataclass field, which is no default itself.
    first: datetime.datetime | None = option_field(  # noqa: RUF009
        "DAY",
        "First day (UTC) of the first file, for files without days. Each further file is one day "
        "more, or one period of --by more: 14 files with --by week are 14 weeks, also if each "
        "contains a day.",
        flags="--from",
    )
    smooth: int = option_field(
        WholeNumber(1),
        "Also estimate each period together with the N - 1 periods before it.",
        default=1,
        show_default=False,
    )

    def read_periods(self) -> tuple[ReleasedCounts, Candidates | None]:
        """Read the counts with their days, and the candidates if the encoding hashes strings."""
        if self.first is None:
            released = self._read_files_with_days()
        else:
            released = self._read_files_without_days(self.first.date())
        if not released.n_reports:
            raise DecodeError("counts must have at least 1 report, got 0")
        # `read_candidates` raises an error for a period with fewer reports than the metric's
        # minimum. A period without reports is shown as missing, so it is not checked.
        collections_of_periods = [
            list(period.collections) for period in released.periods if period.n_reports
        ]
        return released, self.read_candidates(*collections_of_periods)

    def _read_files_with_days(self) -> ReleasedCounts:
        """Read and join files with days, the results of a collector."""
        from rappor.counts.input_files import join_released, read_released

        results = []
        for path in self.paths:
            released = read_released(path, self.find_named_metric())
            if released is None:
                raise click.UsageError(
                    f"{path} has no days: give --from, the first day of the first file"
                )
            results.append(released)
        return join_released(results)

    def _read_files_without_days(self, first: datetime.date) -> ReleasedCounts:
        """Read files without days, and assign consecutive periods to them, beginning at `first`."""
        from rappor.counts.input_files import assign_periods, read_days

        files = [(path, self.read_file(path)) for path in self.paths]
        for path in self.paths:
            if read_days(path):
                raise click.UsageError(f"{path} has its own days: omit --from")
        return assign_periods(files, first, self.by or "day")
