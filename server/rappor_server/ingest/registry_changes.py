"""Conflicts between a registry and the registry before it.

Devices are not updated at once, so reports made under both registries arrive side by side. A change
of parameters is not a conflict, because each parameter set has its own fingerprint and its own
counters. A conflict is one of these changes of a metric:

| change                                      | level   | because                                 |
|---------------------------------------------|---------|-----------------------------------------|
| the metric is gone                          | refused | its name could mean another metric      |
| a category is gone, under the same encoding | refused | devices still send the category         |
| another description and another encoding    | refused | the name would mean two questions       |
| `min_reports` falls                         | warning | waiting reports would be shown in a     |
|                                             |         | sum of fewer reports than was promised  |
| `min_reports` rises from 0                  | warning | an analyst saw waiting reports one by   |
|                                             |         | one, and can subtract them from a block |
| `min_cohort` falls                          | warning | a device could send a larger part of a  |
|                                             |         | block than was promised                 |

The privacy notice of the old registry makes the promises. A report waits from its arrival until
a block that contains its day is closed (`storage/blocks.py`). The minimums of the registry that is
in force then decide about the block, even if devices sent its reports under an earlier registry.

`rappor-server check --against` prints the conflicts, each as "refused". `serve` and a reload refuse
a registry with any conflict while the setting `older` names the registry before
(`app/input_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rappor.protocol.encodings import get_encoding
from rappor.protocol.tuples import format_fields
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a metric of a registry, for the operator.

    Attributes
    ----------
    level : "refused" if `serve` refuses the registry, "warning" if protection or reports may be
        lost, "note" for a consequence of a change
    text : the sentence, without a full stop, beginning with the name of the metric
    """

    level: Literal["refused", "warning", "note"]
    text: str


def find_conflicts(old: Registry, new: Registry) -> Iterator[Finding]:
    """Yield the conflicts of a registry with the registry before it, metric by metric.

    A "refused" conflict holds for good. A "warning" holds only while the collector accepts reports
    of both registries.
    """
    for name, metric in old.items():
        if name not in new:
            yield Finding(
                "refused",
                f"{name}: a metric must stay, with expires in the past, so that its name is "
                "not used again for another",
            )
        else:
            yield from _compare_values(metric, new[name])
            yield from _compare_minimums(metric, new[name])


def _compare_values(old: Metric, new: Metric) -> Iterator[Finding]:
    """Yield a category that devices may still send, and a name that gets another meaning."""
    # Devices that are not updated still send the category. Its counts would be decoded as the
    # counts of another category, or of none.
    removed = [
        category for category in old.params.categories if category not in new.params.categories
    ]
    encoding = get_encoding(old.params)
    has_same_values = encoding.has_same_encoding(new.params)
    if removed and encoding.has_category_values and has_same_values:
        names = ", ".join(map(format_fields, removed))
        yield Finding(
            "refused",
            f"{old.name}: a category must stay, got none of {names}: devices still hold it",
        )
    # The description alone may be corrected, and the encoding alone may be improved. Both together
    # are another question, whose results would continue the trend of the old one. A field more or
    # less is another encoding in this sense.
    has_same_fields = old.params.field_names == new.params.field_names
    if old.description != new.description and not (has_same_values and has_same_fields):
        changed = "fields" if has_same_values else "encoding"
        yield Finding(
            "refused",
            f"{old.name}: a name must keep its meaning, got another description and {changed}: "
            "use a new name",
        )


def _compare_minimums(old: Metric, new: Metric) -> Iterator[Finding]:
    """Yield changed minimums by which waiting reports get less protection than was promised.

    `min_cohort` and `min_reports` are in no fingerprint. So reports before and after the change
    have the same counters, and wait for the same block.
    """
    if old.min_reports and not new.min_reports:
        # Without a minimum, everything is shown at once: the sums of open days grow by one report
        # at a time, and two reads differ by that report.
        yield Finding(
            "warning",
            f"{old.name}: min_reports must not fall from {old.min_reports:,} to 0: reports that "
            "wait for their block would be shown one by one",
        )
    elif new.min_reports and not old.min_reports:
        # An analyst who read the sums after each report knows these reports, and can subtract them
        # from a block.
        yield Finding(
            "warning",
            f"{old.name}: min_reports must not rise from 0 to {new.min_reports:,}: reports that "
            "were shown one by one would be in blocks, and could be subtracted from them",
        )
    elif new.min_reports < old.min_reports:
        # The privacy notice of the old registry says that no sum of fewer reports is shown.
        yield Finding(
            "warning",
            f"{old.name}: min_reports must not fall from {old.min_reports:,} to "
            f"{new.min_reports:,}: people were told that no sum of fewer than "
            f"{old.min_reports:,} reports is shown",
        )
    if old.min_reports and new.min_reports and new.min_cohort < old.min_cohort:
        yield Finding(
            "warning",
            f"{old.name}: min_cohort must not fall from {old.min_cohort:,} to {new.min_cohort:,}: "
            f"reports that wait were sent under the promise that no device makes more than one in "
            f"{old.min_cohort:,} of a block",
        )
