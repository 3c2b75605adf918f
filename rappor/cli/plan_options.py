"""Options of `rappor plan`: one record for each group of options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rappor.base.atomic_files import read_text, replace_file
from rappor.cli.alphabet import characters
from rappor.cli.numbers import COUNT, WholeNumber
from rappor.cli.options import (
    PROFILE_NAME,
    flag_field,
    metric_option,
    option_field,
    registry_option,
)
from rappor.estimator.error_control import ErrorControl
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.encodings import ENCODINGS
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import EPOCHS, INTERVALS, MAX_HASHES, Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.planning.discovery_plan import DiscoveryPlan
    from rappor.planning.plans import Plan
    from rappor.planning.power import DetectionTarget


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
    symmetric: bool = flag_field("Consider only designs in which q is 1 - p.")

    def plan(self, subject: Subject, question: DetectionTarget, size: Size) -> Plan:
        """Choose the parameters, or use fixed ones, and predict their power.

        A metric with a list gets as many cohorts as the reports of an interval fill.
        """
        from rappor import planning

        sized: dict[str, Any] = {"reports": size.reports_of(question), "share": size.share}
        planned = self._plan(subject, question, sized)
        m = subject.cohorts(size.reports_of(question), question.reports_per_device)
        if m is None or m == planned.params.m:
            return planned
        params = dataclasses.replace(planned.params, m=m, insecure=True)
        return planning.predict_power(params, question, **sized)

    def _plan(self, subject: Subject, question: DetectionTarget, sized: dict[str, Any]) -> Plan:
        from rappor import planning

        given = self._given(subject)
        if given is not None:
            return planning.predict_power(given, question, **sized)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError(
                "give --epsilon-1 and --epsilon-inf, or --profile, or --registry and --metric"
            )
        budget = {"epsilon_1": self.epsilon_1, "epsilon_inf": self.epsilon_inf}
        chosen: dict[str, Any] = budget | {"symmetric": self.symmetric} | sized
        if subject.n_answers is not None:
            if self.max_bytes is not None or self.hashes is not None:
                raise click.UsageError("--max-bytes and --hashes go with encoding bloom")
            name, answers = subject.encoding_name, subject.answers
            return planning.plan_categorical(name, answers, question=question, **chosen)
        limits: dict[str, Any] = {"max_bytes": self.max_bytes, "hashes": self.hashes}
        return planning.plan(question, **chosen, **limits)

    @property
    def is_bare(self) -> bool:
        """Whether a report is the permanent response itself, because both losses are equal."""
        if self.profile is not None:
            return Params.profile(self.profile).is_bare
        return self.epsilon_1 is not None and self.epsilon_1 == self.epsilon_inf

    def of_discovery(self) -> tuple[float, float]:
        """Return the budget of a discovery: epsilon_1 and epsilon_inf."""
        if self.max_bytes is not None or self.hashes is not None or self.symmetric:
            raise click.UsageError("--discover chooses the design: give only the budget")
        if self.profile is not None:
            params = Params.profile(self.profile)
            return epsilon_1(params), epsilon_inf(params)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError("--discover needs --epsilon-1 and --epsilon-inf, or --profile")
        return self.epsilon_1, self.epsilon_inf

    def _given(self, subject: Subject) -> Params | None:
        """Return the fixed parameters, or None if a budget chooses them."""
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        free = any(limit is not None for limit in limits) or self.symmetric
        if self.profile is None:
            return None if subject.metric is None or free else subject.metric.params
        if free:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")
        return subject.of_profile(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The planned encoding with its categories, or a metric of a registry."""

    encoding: str | None = option_field(
        list(ENCODINGS), "How values become bits.  [default: bloom]"
    )
    categories: str | None = option_field(
        "LIST", "Categories, or edges of buckets, separated by commas."
    )
    registry_path: str | None = registry_option(required=False)
    metric_name: str | None = metric_option()
    write: bool = flag_field("Write the planned numbers into the metric's entry in the registry.")

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if (self.registry_path is None) != (self.metric_name is None):
            raise click.UsageError("--registry and --metric go together")
        if self.registry_path is not None and (self.encoding or self.categories):
            raise click.UsageError("a --metric has its own encoding: leave --encoding out")
        if self.registry_path is None:
            if self.write:
                raise click.UsageError("--write needs --registry and --metric")
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
    def answers(self) -> tuple[str, ...]:
        """The categories, flags or edges."""
        if self.metric is not None:
            return self.metric.params.categories
        return tuple(self.categories.split(",")) if self.categories else ()

    @property
    def n_answers(self) -> int | None:
        """The number of categories; None for strings."""
        return ENCODINGS[self.encoding_name].implied_bits(self.answers)

    def of_profile(self, profile: str) -> Params:
        """Return the profile's parameters for this encoding."""
        return Params.profile(profile, encoding=self.encoding_name, categories=self.answers)

    def cohorts(self, reports: int | None, reports_per_device: float) -> int | None:
        """Return the number of cohorts of a metric with a list, or None."""
        metric = self.metric
        if metric is None or not metric.listed or reports is None:
            return None
        expected = metric.smallest_part * reports / reports_per_device
        return choose_list_cohorts(expected, min_cohort=metric.min_cohort)

    def entry(self, params: Params) -> str:
        """Return the metric's entry with the planned numbers, as `write_numbers` writes it."""
        from rappor.planning.entry import write_changed_entry

        assert self.registry_path is not None
        assert self.metric_name is not None
        return write_changed_entry(read_text(self.registry_path), self.metric_name, params)

    def write_numbers(self, params: Params) -> None:
        """Write the planned numbers into the metric's entry."""
        from rappor.planning.entry import replace_numbers

        assert self.registry_path is not None
        assert self.metric_name is not None
        changed = replace_numbers(read_text(self.registry_path), self.metric_name, params)
        with replace_file(self.registry_path) as file:
            file.write(changed.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
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

    def answered(self, share: float) -> Size:
        """Return the size for the share of devices that have reported."""
        return (
            self
            if self.devices is None
            else dataclasses.replace(self, devices=round(share * self.devices))
        )

    def of_discovery(self) -> int:
        """Return the number of reports of a discovery, one for each device."""
        number = self.devices if self.reports is None else self.reports
        if number is None:
            raise click.UsageError("--discover needs --reports or --devices, not --share")
        return number

    def reports_of(self, question: DetectionTarget) -> int | None:
        """Return the number of reports of all devices, or None if a share is planned."""
        if self.devices is None:
            return self.reports
        return round(self.devices * question.reports_per_device)


class Repeats(NamedTuple):
    """Number of reports of each device.

    With `once`, a device reports once in an epoch, on a day that its secret determines. `each` is
    the mean number of reports of a device, less than 1 if some devices have not reported yet. The
    reports have at most `epochs` permanent responses.
    """

    interval: str
    epoch: str
    once: bool
    each: float
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOptions:
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
        [name for name in INTERVALS if name != "none"],
        "Time in which a device reports once.  [default: the metric's, or day; epoch "
        "where both losses are equal]",
    )
    epoch: str | None = option_field(
        list(EPOCHS),
        "How long a permanent response lasts: life, year, quarter or month.  [default: the "
        "metric's, or quarter]",
        metavar="EPOCH",
    )

    def settled(self, metric: Metric | None, *, bare: bool) -> Repeats:
        """Return the reports of each device, from the options or from the metric.

        A permanent response without fresh noise is reported once in an epoch.
        """
        from rappor.planning.repeats import count_epochs, count_reports, count_responses

        usual = "epoch" if bare else "day"
        interval = self.interval or (metric.interval if metric else usual)
        epoch = self.epoch or (metric.epoch if metric else "quarter")
        if self.days is not None and self.reports_per_device is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        if bare and interval != "epoch":
            raise click.UsageError(
                f"--interval must be epoch where both losses are equal, got {interval}: each "
                "report would be the permanent response itself"
            )
        if interval == "epoch" and epoch == "life":
            raise click.UsageError(
                "--epoch must be year, quarter or month under interval epoch, got life"
            )
        if interval == "epoch" and (self.reports_per_device or 1) > 1:
            raise click.UsageError(
                "--reports-per-device must be 1 under interval epoch: give --days of several epochs"
            )
        once = interval == "epoch"
        if self.days is None:
            return Repeats(interval, epoch, once, self.reports_per_device or 1, 1)
        each = count_responses(self.days, epoch) if once else count_reports(self.days, interval)
        return Repeats(interval, epoch, once, each, count_epochs(self.days, epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings:
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

    def question(
        self, detection: ErrorControl, power: float, subject: Subject, each: float
    ) -> DetectionTarget:
        """Return the target of the planner."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import DetectionTarget
        from rappor.simulation.population import Population

        n = subject.n_answers
        if self.candidates is not None and n is not None:
            raise click.UsageError(f"--candidates must be omitted: there are {n} answers")
        n = n or self.candidates or 1000
        if self.table is None:
            frequencies = Frequencies.zipf(n, 1.0 if self.zipf is None else self.zipf)
        elif self.zipf is None:
            frequencies = Frequencies.of_shares(Population.from_csv(self.table).weights, n)
        else:
            raise click.UsageError("give --zipf or --table, not both")
        return DetectionTarget(
            frequencies=frequencies,
            error_control=detection,
            power=power,
            reports_per_device=each,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
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
            characters=len(characters(self.alphabet or "a-z")),
        )
