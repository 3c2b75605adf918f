"""Options of `rappor plan`: a dataclass for each group of options.

The dataclasses declare the options, raise usage errors for options that contradict each other, and
call `rappor.planning`, which computes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.cli.option_values import COUNT, PROFILE_NAME, WholeNumber, expand_alphabet
from rappor.cli.options import (
    flag_field,
    metric_argument,
    option_field,
    refuse_options_without,
    registry_option,
)
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import ENCODINGS, get_encoding
from rappor.protocol.encodings.sets import DEFAULT_ITEMS, MAX_ITEMS
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import EPOCHS, INTERVALS, MAX_HASHES, Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.planning.association_power import AssociationPower
    from rappor.planning.collection_pace import CollectionPace
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.plans import Plan
    from rappor.planning.power import DetectionTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMetric:
    """Planned encoding with its categories, or a metric of a registry."""

    metric_name: str | None = metric_argument(required=False)
    registry_path: str | None = registry_option(required=False)
    encoding: str | None = option_field(
        list(ENCODINGS),
        "Encoding of a new metric, the rule that turns a value into bits.  [default: bloom, for "
        "strings]",
    )
    categories: str | None = option_field(
        "LIST", "Categories of a new metric, or edges of its buckets, separated by commas."
    )
    items: int | None = option_field(
        WholeNumber(1, MAX_ITEMS),
        "Largest number of items of a set, with --encoding set. The prediction assumes that a set "
        "has three quarters of this number of items on average, or of the candidates if they are "
        "fewer.  "
        f"[default: {DEFAULT_ITEMS}]",
    )
    write: bool = flag_field("Write the planned numbers into the entry of METRIC in the registry.")

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if (self.registry_path is None) != (self.metric_name is None):
            raise click.UsageError("METRIC and --registry go together")
        if self.registry_path is not None and (self.encoding or self.categories or self.items):
            raise click.UsageError(
                "--encoding, --categories and --items must be omitted with METRIC, whose entry has "
                "them"
            )
        if self.items is not None and not self.has_sets:
            raise click.UsageError(f"encoding {self.encoding_name} has no --items")
        if self.registry_path is None:
            if self.write:
                raise click.UsageError("--write needs METRIC and --registry")
            has_categories = ENCODINGS[self.encoding_name].categories_key is not None
            if has_categories != bool(self.categories):
                verb = "needs" if has_categories else "has no"
                raise click.UsageError(f"encoding {self.encoding_name} {verb} --categories")

    @property
    def metric(self) -> Metric | None:
        """The metric of the registry; None for a new metric."""
        if self.registry_path is None or self.metric_name is None:
            return None
        return Registry.load(self.registry_path).metric(self.metric_name)

    @property
    def encoding_name(self) -> str:
        """The name of the planned encoding."""
        return self.metric.params.encoding if self.metric else self.encoding or "bloom"

    @property
    def has_sets(self) -> bool:
        """Whether a value is a set of items."""
        return ENCODINGS[self.encoding_name].supports_items

    @property
    def n_items(self) -> int | None:
        """The largest number of items of a set; None for values that are not sets."""
        if not self.has_sets:
            return None
        return self.metric.params.items if self.metric else self.items or DEFAULT_ITEMS

    @property
    def category_names(self) -> tuple[str, ...]:
        """The categories, or the edges of buckets.

        For a metric whose categories are combinations of fields, the names are "1", "2" and so on,
        one for each combination.
        """
        if self.metric is not None:
            params = self.metric.params
            # Case: the categories are combinations such as (vim, linux). The parameters of a plan
            # have no fields, so they cannot contain combinations. The plan depends only on their
            # number, and numbers serve as names.
            numbers = tuple(map(str, range(1, len(params.categories) + 1)))
            return numbers if params.field_names else params.categories
        return tuple(self.categories.split(",")) if self.categories else ()

    @property
    def n_categories(self) -> int | None:
        """The number of bits, if each bit is a category; None for strings and sets.

        Yes-or-no has one bit, and buckets have one bit more than edges.
        """
        return ENCODINGS[self.encoding_name].count_bits(self.category_names)

    def make_profile_params(self, profile: str) -> Params:
        """Return the profile's parameters for this encoding."""
        names = self.category_names
        return Params.profile(
            profile,
            encoding=self.encoding_name,
            categories=names,
            # Without sets, the encoding has no items and ignores the number.
            items=self.n_items or DEFAULT_ITEMS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """Options for the size of a collection: reports, devices, or the share to detect."""

    reports: int | None = option_field(
        "N", "Expected reports of all devices, such as 1e6. Prints the smallest detected share."
    )
    devices: int | None = option_field(
        COUNT,
        "Expected devices, in place of --reports. --reports-per-device or --days says how often "
        "each reports.",
    )
    share: float | None = option_field(
        "SHARE",
        "Smallest share of the reports to detect (0.01 is 1 %), in place of --reports. Prints the "
        "necessary number of reports.",
    )

    def __post_init__(self) -> None:
        """Raise a usage error unless exactly one option is present."""
        if [self.reports, self.devices, self.share].count(None) != 2:
            raise click.UsageError("give either --reports or --devices or --share")

    def count_reports(self, pace: CollectionPace) -> int | None:
        """Return the number of reports of all devices; None if --share is present."""
        if self.devices is None:
            return self.reports
        # Case: each device reports once in an epoch, on a random day. If --days is a part of the
        # epoch, only this share of the devices has reported.
        n_reporting = round(pace.share_of_devices * self.devices)
        return round(n_reporting * pace.reports_per_device)

    def count_reports_of_discovery(self, pace: CollectionPace) -> int:
        """Return the number of reports of a discovery, which uses one report of each device."""
        if self.devices is not None:
            return round(pace.share_of_devices * self.devices)
        if self.reports is None:
            raise click.UsageError("--discover needs --reports or --devices, not --share")
        return self.reports


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """Options for the privacy budget of a plan, or for a profile whose power is predicted."""

    epsilon_1: float | None = option_field(
        "NATS",
        "Largest privacy loss of one report. A loss of 1 nat changes the odds of a guess by a "
        "factor of 2.7 at most.",
    )
    epsilon_inf: float | None = option_field(
        "NATS",
        "Largest privacy loss of all reports of one value in one epoch. At least --epsilon-1.",
    )
    profile: str | None = option_field(
        PROFILE_NAME, "Predict for these named parameters instead of choosing parameters."
    )
    max_bytes: int | None = option_field("BYTES", "Largest size of the bits of a report.")
    hashes: int | None = option_field(
        WholeNumber(1, MAX_HASHES),
        f"Number of hash functions, 1 to {MAX_HASHES}. Default: the best number.",
    )
    symmetric: bool = flag_field(
        "Choose noise that changes a 0 and a 1 of a report with the same probability (q is 1 - p). "
        "It detects less than the default, and serves comparisons with other systems."
    )

    @property
    def has_instantaneous_noise(self) -> bool:
        """Whether each report adds new noise to the permanent response.

        With equal --epsilon-1 and --epsilon-inf, a report is the permanent response itself.
        """
        if self.profile is not None:
            return Params.profile(self.profile).has_instantaneous_noise
        return self.epsilon_1 is None or self.epsilon_1 != self.epsilon_inf

    def plan(
        self,
        planned: PlannedMetric,
        target: DetectionTarget,
        *,
        reports: int | None,
        share: float | None,
    ) -> Plan:
        """Choose parameters, or use fixed parameters, and predict their power."""
        from rappor import planning

        size: dict[str, Any] = {"reports": reports, "share": share}
        fixed = self._read_fixed_params(planned)
        if fixed is not None:
            return planning.predict_power(fixed, target, **size)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError(
                "give --epsilon-1 and --epsilon-inf, or --profile, or METRIC and --registry"
            )
        budget: dict[str, Any] = {
            "epsilon_1": self.epsilon_1,
            "epsilon_inf": self.epsilon_inf,
            "symmetric": self.symmetric,
        }
        if planned.n_items is not None:
            return self._plan_sets(planned.n_items, target, **size)
        if planned.n_categories is None:
            limits: dict[str, Any] = {"max_bytes": self.max_bytes, "hashes": self.hashes}
            return planning.plan(target, **budget, **size, **limits)
        if self.max_bytes is not None or self.hashes is not None:
            raise click.UsageError("--max-bytes and --hashes go with encoding bloom")
        return planning.plan_categorical(
            planned.encoding_name, planned.category_names, target=target, **budget, **size
        )

    def _plan_sets(self, items: int, target: DetectionTarget, **size: Any) -> Plan:
        """Choose parameters of sets within the budget."""
        from rappor import planning

        if self.max_bytes is not None or self.hashes is not None or self.symmetric:
            raise click.UsageError("--max-bytes, --hashes and --symmetric do not go with sets")
        if self.epsilon_1 is None or self.epsilon_1 != self.epsilon_inf:
            raise click.UsageError(
                "--epsilon-inf must equal --epsilon-1 for sets: every report of a set is the same"
            )
        return planning.plan_sets(target, items=items, epsilon=self.epsilon_1, **size)

    def read_budget_of_discovery(self) -> tuple[float, float]:
        """Return epsilon_1 and epsilon_inf of a discovery, which chooses its own design."""
        if self.max_bytes is not None or self.hashes is not None or self.symmetric:
            raise click.UsageError("--discover chooses the design: give only the budget")
        if self.profile is not None:
            params = Params.profile(self.profile)
            return epsilon_1(params), epsilon_inf(params)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError("--discover needs --epsilon-1 and --epsilon-inf, or --profile")
        return self.epsilon_1, self.epsilon_inf

    def _read_fixed_params(self, planned: PlannedMetric) -> Params | None:
        """Return the parameters of the profile or the metric; None if a budget determines them."""
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        has_budget = any(limit is not None for limit in limits) or self.symmetric
        if self.profile is None:
            return None if planned.metric is None or has_budget else planned.metric.params
        if has_budget:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")
        return planned.make_profile_params(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """Options for the number of reports of each device."""

    reports_per_device: int | None = option_field(
        WholeNumber(1, 10**6),
        "Reports that each device sends, all with one permanent noise.  [default: 1]",
    )
    days: int | None = option_field(
        WholeNumber(1, 36_500),
        "Days of collection, from the first day of an epoch on, in place of --reports-per-device. "
        "A device reports once in each interval.",
    )
    interval: str | None = option_field(
        INTERVALS,
        "Time in which a device reports once.  [default: the metric's interval, or day; epoch "
        "if --epsilon-1 and --epsilon-inf are equal]",
    )
    epoch: str | None = option_field(
        list(EPOCHS),
        "Time for which a device repeats its permanent noise: life, year, quarter or month.  "
        "[default: the metric's epoch, or quarter]",
        metavar="EPOCH",
    )

    def choose(self, metric: Metric | None, *, has_instantaneous_noise: bool) -> CollectionPace:
        """Return the pace of the collection, from the options or from the metric."""
        from rappor.planning.collection_pace import choose_pace

        if self.days is not None and self.reports_per_device is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        return choose_pace(
            metric, has_instantaneous_noise=has_instantaneous_noise, **dataclasses.asdict(self)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StringOptions:
    """Options for the distribution of the strings, and the number of candidates."""

    candidates: int | None = option_field(
        "N",
        "Candidate strings that will be tested.  [default: 1,000; for categories, all categories]",
    )
    zipf: float | None = option_field(
        "EXPONENT",
        "Assume Zipf's law: the share of the n-th most frequent string is proportional to "
        "n^-EXPONENT. The items of a set are drawn one by one, with probabilities in the same "
        "proportion.  [default: 1]",
    )
    table: str | None = option_field(
        "FILE", "Take the shares from a CSV file with the header value,weight, in place of --zipf."
    )

    def read_target(
        self,
        planned: PlannedMetric,
        error_control: ErrorControl,
        *,
        power: float,
        reports_per_device: float,
    ) -> DetectionTarget:
        """Return the strings or categories to detect, and how they are tested."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import DetectionTarget
        from rappor.simulation.population import Population

        n_categories, items = planned.n_categories, planned.n_items
        if self.candidates is not None and n_categories is not None:
            raise click.UsageError(
                f"--candidates must be omitted: the candidates are the {n_categories} categories"
            )
        n = n_categories or (1000 if self.candidates is None else self.candidates)
        if self.table is None:
            frequencies = Frequencies.zipf(n, 1.0 if self.zipf is None else self.zipf)
        elif self.zipf is None:
            frequencies = Frequencies.of_shares(Population.from_csv(self.table).weights, n)
        else:
            raise click.UsageError("give --zipf or --table, not both")
        if items is not None:
            # So far, a share is the probability that one draw gives the item. A set has several
            # items, so the share of the devices that have an item is larger.
            frequencies = frequencies.as_sets(items)
        return DetectionTarget(
            frequencies=frequencies,
            error_control=error_control,
            power=power,
            reports_per_device=reports_per_device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """Options of a discovery: strings without a list of candidates."""

    discover: bool = flag_field(
        "Plan a metric that finds strings without a list of candidates: each device reports a part "
        "of its string. --candidates is then the assumed number of strings."
    )
    longest: int | None = option_field(
        WholeNumber(2), "Length of the longest string to find, in characters, with --discover."
    )
    alphabet: str | None = option_field(
        "CHARACTERS", "Characters of the strings, with --discover.  [default: a-z]"
    )

    def __post_init__(self) -> None:
        """Raise a usage error for a length without --discover, or the reverse."""
        if not self.discover and (self.longest is not None or self.alphabet is not None):
            raise click.UsageError("--longest and --alphabet go with --discover")
        if self.discover and self.longest is None:
            raise click.UsageError("--discover needs --longest, the characters of a string")

    def plan(
        self, target: DetectionTarget, *, budget: tuple[float, float], reports: int
    ) -> DiscoveryPlan:
        """Choose the parts of strings that devices report."""
        from rappor.planning.discovery_plan import plan_discovery

        assert self.longest is not None
        return plan_discovery(
            target,
            epsilon_1=budget[0],
            epsilon_inf=budget[1],
            reports=reports,
            longest=self.longest,
            characters=len(expand_alphabet(self.alphabet or "a-z")),
        )


_PLACEHOLDER_FIELDS: Final = ("first_field", "second_field")
"""Names of the two fields of --cells in the entry of a new metric. The author of the entry replaces
them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationOptions:
    """Options for the test of independence of two fields of a tuple."""

    cells: str | None = option_field(
        "AxB",
        "Also predict the test of independence of two fields with A and B listed values, such as "
        "20x5. Default: the lists of the first two fields of METRIC.",
    )
    listed_share: float = option_field(
        "SHARE", "Share of the devices whose values are listed in both fields.", default=1.0
    )

    def add_fields(self, plan: Plan) -> Plan:
        """Return the plan with two fields in its parameters, so that the printed entry has them.

        The fields have placeholder names, because nobody has named them. A plan without --cells is
        returned unchanged. So is a plan of categories: the entry of such a metric names its fields
        in the table of its categories.
        """
        encoding = get_encoding(plan.params)
        if self.cells is None or not (encoding.is_hashed and encoding.supports_fields):
            return plan
        params = dataclasses.replace(plan.params, field_names=_PLACEHOLDER_FIELDS)
        return dataclasses.replace(plan, params=params)

    def predict(
        self, planned: PlannedMetric, plan: Plan, *, reports_per_device: float
    ) -> AssociationPower | None:
        """Predict how strong an association must be, so that the test of independence detects it.

        Returns None for a metric without fields, or without lists of their values. The level of the
        test is 5 %, as for the default confidence of `rappor associate`.
        """
        from rappor.planning.association_power import count_listed_values, predict_association

        sizes = () if planned.metric is None else count_listed_values(planned.metric)
        if self.cells is not None:
            sizes = _parse_cells(self.cells)
        if len(sizes) < 2:
            refuse_options_without("--cells, or METRIC with lists of two fields", "listed_share")
            return None
        return predict_association(
            plan.params,
            (sizes[0], sizes[1]),
            reports=plan.reports,
            # A cell of the two fields is a sum over the combinations of all other fields.
            n_summed=math.prod(sizes[2:]),
            listed=self.listed_share,
            reports_per_device=reports_per_device,
            power=plan.target.power,
        )


def _parse_cells(text: str) -> tuple[int, int]:
    """Return the two numbers of a text such as 20x5; a usage error for another text."""
    if not re.fullmatch(r"[1-9][0-9]{0,5}x[1-9][0-9]{0,5}", text):
        raise click.UsageError(f"--cells must be two numbers such as 20x5, got '{text}'")
    n_rows, n_columns = text.split("x")
    return int(n_rows), int(n_columns)
