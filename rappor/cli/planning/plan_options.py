"""Options of `rappor plan`: a record for each group of options.

The records read the command line, raise usage errors for options that contradict each other, and
call `rappor.planning`, which computes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rappor.cli.option_values import COUNT, PROFILE_NAME, WholeNumber, expand_alphabet
from rappor.cli.options import (
    flag_field,
    metric_argument,
    option_field,
    registry_option,
)
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.encodings import ENCODINGS
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import EPOCHS, INTERVALS, MAX_HASHES, Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.planning.collection_pace import CollectionPace
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.plans import Plan
    from rappor.planning.power import DetectionTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMetric:
    """The planned encoding with its categories, or a metric of a registry."""

    metric_name: str | None = metric_argument(required=False)
    registry_path: str | None = registry_option(required=False)
    encoding: str | None = option_field(
        [name for name, kind in ENCODINGS.items() if kind.supports_rappor],
        "How values become bits.  [default: bloom]",
    )
    categories: str | None = option_field(
        "LIST", "Categories, or edges of buckets, separated by commas."
    )
    write: bool = flag_field("Write the planned numbers into the metric's entry in the registry.")

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if (self.registry_path is None) != (self.metric_name is None):
            raise click.UsageError("METRIC and --registry go together")
        if self.registry_path is not None and (self.encoding or self.categories):
            raise click.UsageError("a METRIC has its own encoding: leave --encoding out")
        if self.registry_path is None:
            if self.write:
                raise click.UsageError("--write needs METRIC and --registry")
            needed = ENCODINGS[self.encoding_name].categories_key is not None
            if needed != bool(self.categories):
                verb = "needs" if needed else "has no"
                raise click.UsageError(f"encoding {self.encoding_name} {verb} --categories")

    @property
    def metric(self) -> Metric | None:
        """The metric of the registry, or None."""
        if self.registry_path is None or self.metric_name is None:
            return None
        return Registry.load(self.registry_path).metric(self.metric_name)

    @property
    def encoding_name(self) -> str:
        """The name of the planned encoding."""
        return self.metric.params.encoding if self.metric else self.encoding or "bloom"

    @property
    def category_names(self) -> tuple[str, ...]:
        """The categories, or the edges of buckets."""
        if self.metric is not None:
            return self.metric.params.categories
        return tuple(self.categories.split(",")) if self.categories else ()

    @property
    def n_categories(self) -> int | None:
        """The number of categories; None for strings."""
        return ENCODINGS[self.encoding_name].count_bits(self.category_names)

    def params_of_profile(self, profile: str) -> Params:
        """Return the profile's parameters for this encoding."""
        names = self.category_names
        return Params.profile(profile, encoding=self.encoding_name, categories=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """The number of reports or devices, or the share to detect."""

    reports: int | None = option_field(
        "N", "Expected reports, such as 1e6. Prints the smallest share detected."
    )
    devices: int | None = option_field(
        COUNT, "Devices instead of reports; see --reports-per-device and --days."
    )
    share: float | None = option_field(
        "SHARE", "Smallest share to detect (0.01 is 1 %). Prints the reports needed."
    )

    def __post_init__(self) -> None:
        """Raise a usage error unless exactly one option is present."""
        if [self.reports, self.devices, self.share].count(None) != 2:
            raise click.UsageError("give either --reports or --devices or --share")

    def count_reports(self, pace: CollectionPace) -> int | None:
        """Return the number of reports of all devices, or None if a share is planned."""
        if self.devices is None:
            return self.reports
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
    """The privacy budget of a plan, or the profile whose power is predicted."""

    epsilon_1: float | None = option_field("NATS", "Largest privacy loss of one report.")
    epsilon_inf: float | None = option_field(
        "NATS", "Largest privacy loss of all reports of one value."
    )
    profile: str | None = option_field(
        PROFILE_NAME, "Predict for these named parameters instead of choosing some."
    )
    max_bytes: int | None = option_field("BYTES", "Largest size of the bits of a report.")
    hashes: int | None = option_field(
        WholeNumber(1, MAX_HASHES),
        f"Consider only designs with N hash functions, 1 to {MAX_HASHES}.",
    )
    symmetric: bool = flag_field(
        "Consider only designs whose fresh noise changes a 0 and a 1 with the same probability: "
        "q is 1 - p. Use it to compare with other systems, because other designs detect more."
    )

    @property
    def is_bare(self) -> bool:
        """Whether a report is the permanent response itself, because both losses are equal."""
        if self.profile is not None:
            return not Params.profile(self.profile).has_instantaneous_noise
        return self.epsilon_1 is not None and self.epsilon_1 == self.epsilon_inf

    def plan(
        self,
        planned: PlannedMetric,
        question: DetectionTarget,
        *,
        reports: int | None,
        share: float | None,
    ) -> Plan:
        """Choose parameters, or use fixed parameters, and predict their power."""
        from rappor import planning

        size: dict[str, Any] = {"reports": reports, "share": share}
        fixed = self._fixed_params(planned)
        if fixed is not None:
            return planning.predict_power(fixed, question, **size)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError(
                "give --epsilon-1 and --epsilon-inf, or --profile, or METRIC and --registry"
            )
        budget: dict[str, Any] = {
            "epsilon_1": self.epsilon_1,
            "epsilon_inf": self.epsilon_inf,
            "symmetric": self.symmetric,
        }
        if planned.n_categories is None:
            limits: dict[str, Any] = {"max_bytes": self.max_bytes, "hashes": self.hashes}
            return planning.plan(question, **budget, **size, **limits)
        if self.max_bytes is not None or self.hashes is not None:
            raise click.UsageError("--max-bytes and --hashes go with encoding bloom")
        return planning.plan_categorical(
            planned.encoding_name, planned.category_names, question=question, **budget, **size
        )

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

    def _fixed_params(self, planned: PlannedMetric) -> Params | None:
        """Return the parameters of the profile or the metric, or None if a budget chooses them."""
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        has_budget = any(limit is not None for limit in limits) or self.symmetric
        if self.profile is None:
            return None if planned.metric is None or has_budget else planned.metric.params
        if has_budget:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")
        return planned.params_of_profile(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """Options for the number of reports of each device."""

    reports_per_device: int | None = option_field(
        WholeNumber(1, 10**6), "Reports that each device sends.  [default: 1]"
    )
    days: int | None = option_field(
        WholeNumber(1, 36_500),
        "Days of collection, from the first day of an epoch on. A device reports once in each "
        "interval.",
    )
    interval: str | None = option_field(
        INTERVALS,
        "Time in which a device reports once.  [default: the metric's, or day; epoch "
        "where both losses are equal]",
    )
    epoch: str | None = option_field(
        list(EPOCHS),
        "How long a permanent response lasts: life, year, quarter or month.  [default: the "
        "metric's, or quarter]",
        metavar="EPOCH",
    )

    def choose(self, metric: Metric | None, *, is_bare: bool) -> CollectionPace:
        """Return the pace of the collection, from the options or from the metric."""
        from rappor.planning.collection_pace import choose_pace

        if self.days is not None and self.reports_per_device is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        return choose_pace(metric, is_bare=is_bare, **dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class StringOptions:
    """The distribution of the strings, and the number of candidates."""

    candidates: int | None = option_field(
        "N", "Candidate strings that will be tested.  [default: 1,000, or all answers]"
    )
    zipf: float | None = option_field(
        "EXPONENT", "Assume shares in proportion to rank^-EXPONENT.  [default: 1]"
    )
    table: str | None = option_field(
        "FILE", "Take the shares from a CSV file with the header value,weight."
    )

    def read_target(
        self,
        n_categories: int | None,
        error_control: ErrorControl,
        *,
        power: float,
        reports_per_device: float,
    ) -> DetectionTarget:
        """Return the strings or categories to detect, and how they are tested."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import DetectionTarget
        from rappor.simulation.population import Population

        if self.candidates is not None and n_categories is not None:
            raise click.UsageError(
                f"--candidates must be omitted: there are {n_categories} answers"
            )
        n = n_categories or self.candidates or 1000
        if self.table is None:
            frequencies = Frequencies.zipf(n, 1.0 if self.zipf is None else self.zipf)
        elif self.zipf is None:
            frequencies = Frequencies.of_shares(Population.from_csv(self.table).weights, n)
        else:
            raise click.UsageError("give --zipf or --table, not both")
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
        "Plan parts that find strings without a list of candidates. --candidates is then the "
        "number of strings."
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
        self, question: DetectionTarget, *, budget: tuple[float, float], reports: int
    ) -> DiscoveryPlan:
        """Choose the parts."""
        from rappor.planning.discovery_plan import plan_discovery

        assert self.longest is not None
        return plan_discovery(
            question,
            epsilon_1=budget[0],
            epsilon_inf=budget[1],
            reports=reports,
            longest=self.longest,
            characters=len(expand_alphabet(self.alphabet or "a-z")),
        )
