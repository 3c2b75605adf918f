"""What `rappor plan` is asked: one record for each group of its options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from rappor.decoding.detection import Detection
from rappor.files import read_text, replacing
from rappor.protocol.encodings import ENCODINGS
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import NOISE, Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.planning.plans import Plan
    from rappor.planning.power import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a plan may spend, or the profile whose plan is asked for."""

    epsilon_1: float | None
    epsilon_inf: float | None
    profile: str | None
    max_bytes: int | None
    hashes: int | None
    symmetric: bool

    def plan(self, subject: Subject, question: Question, size: Size) -> Plan:
        """Choose the parameters, or take given ones, and predict what they find."""
        from rappor import planning
        from rappor.planning.noise import choose_noise

        reports = size.reports_of(question)
        given = self._given(subject)
        if given is not None:
            return planning.plan_for(given, question, reports=reports, share=size.share)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError(
                "give --epsilon-1 and --epsilon-inf, or --profile, or --registry and --metric"
            )
        if subject.n_answers is not None:
            if self.max_bytes is not None or self.hashes is not None:
                raise click.UsageError("--max-bytes and --hashes go with encoding bloom")
            if subject.metric is not None and subject.metric.params.other:
                strings = choose_noise(self.epsilon_1, self.epsilon_inf, symmetric=self.symmetric)
                given = subject.of_strings(strings)
                return planning.plan_for(given, question, reports=reports, share=size.share)
            return planning.plan_answers(
                subject.encoding_name,
                subject.answers,
                epsilon_1=self.epsilon_1,
                epsilon_inf=self.epsilon_inf,
                reports=reports,
                share=size.share,
                question=question,
                symmetric=self.symmetric,
            )
        return planning.plan(
            question,
            epsilon_1=self.epsilon_1,
            epsilon_inf=self.epsilon_inf,
            reports=reports,
            share=size.share,
            max_bytes=self.max_bytes,
            hashes=self.hashes,
            symmetric=self.symmetric,
        )

    def of_discovery(self) -> tuple[float, float]:
        """Return both losses of a discovery, which chooses its bits and noise itself."""
        if self.max_bytes is not None or self.hashes is not None or self.symmetric:
            raise click.UsageError("--discover chooses the design: give only the budget")
        if self.profile is not None:
            params = Params.profile(self.profile)
            return epsilon_1(params), epsilon_inf(params)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError("--discover needs --epsilon-1 and --epsilon-inf, or --profile")
        return self.epsilon_1, self.epsilon_inf

    def _given(self, subject: Subject) -> Params | None:
        """Return the parameters that are fixed, None where a budget chooses them."""
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        free = any(limit is not None for limit in limits) or self.symmetric
        if self.profile is None:
            return None if subject.metric is None or free else subject.metric.params
        if free:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")
        return subject.of_profile(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is collected: an encoding with its categories, or a metric of a registry."""

    encoding: str | None
    categories: str | None
    registry_path: str | None
    metric_name: str | None
    write: bool

    def __post_init__(self) -> None:
        """Refuse half a metric, a metric with another encoding, and writing nowhere."""
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
        """The metric of the registry, if one is named."""
        if self.registry_path is None or self.metric_name is None:
            return None
        return Registry.load(self.registry_path).metric(self.metric_name)

    @property
    def encoding_name(self) -> str:
        """The encoding that is planned."""
        return self.metric.params.encoding if self.metric else self.encoding or "bloom"

    @property
    def answers(self) -> tuple[str, ...]:
        """Categories, flags or edges."""
        if self.metric is not None:
            return self.metric.params.categories
        return tuple(self.categories.split(",")) if self.categories else ()

    @property
    def n_answers(self) -> int | None:
        """How many answers there are; None for strings."""
        return ENCODINGS[self.encoding_name].implied_bits(self.answers)

    def of_profile(self, profile: str) -> Params:
        """Return the profile's noise for this encoding; that of strings where `other` has them."""
        if self.metric is not None and self.metric.params.other:
            return self.of_strings(Params.profile(profile))
        return Params.profile(profile, encoding=self.encoding_name, categories=self.answers)

    def of_strings(self, strings: Params) -> Params:
        """Return the parameters of the metric under the noise of these ones of strings."""
        assert self.metric is not None
        noise = {letter: getattr(strings, letter) for letter in NOISE}
        return dataclasses.replace(self.metric.params, **noise, insecure=True)

    def write_numbers(self, params: Params) -> None:
        """Write the planned numbers into the metric's entry."""
        from rappor.planning.entry import replace_numbers

        assert self.registry_path is not None
        assert self.metric_name is not None
        changed = replace_numbers(read_text(self.registry_path), self.metric_name, params)
        with replacing(self.registry_path) as file:
            file.write(changed.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many reports there will be, or devices, or which share they have to show."""

    reports: int | None
    devices: int | None
    share: float | None

    def __post_init__(self) -> None:
        """Refuse all but one."""
        if [self.reports, self.devices, self.share].count(None) != 2:
            raise click.UsageError("give either --reports or --devices or --share")

    def of_discovery(self) -> int:
        """Return the reports of a discovery, one a device."""
        number = self.devices if self.reports is None else self.reports
        if number is None:
            raise click.UsageError("--discover needs --reports or --devices, not --share")
        return number

    def reports_of(self, question: Question) -> int | None:
        """Return the reports, those of the devices together; None where a share is given."""
        if self.devices is None:
            return self.reports
        return round(self.devices * question.reports_per_device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often each device reports."""

    reports_per_device: int | None
    days: int | None
    interval: str | None
    epoch: str | None

    def each(self, metric: Metric | None) -> int:
        """Return the reports a device."""
        from rappor.planning.repeats import EPOCH_DAYS, reports_in

        if self.days is None:
            return 1 if self.reports_per_device is None else self.reports_per_device
        if self.reports_per_device is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        if (interval := self.interval_of(metric)) != "epoch":
            return reports_in(self.days, interval)
        if self.days < (least := EPOCH_DAYS[self.epoch_of(metric)]):
            raise click.UsageError(
                f"--days must be at least {least} under interval = epoch: before that only "
                "a part of the devices has answered"
            )
        return self.n_epochs(metric)

    def interval_of(self, metric: Metric | None) -> str:
        """Return the interval that is said, the metric's own, or a day."""
        return self.interval or (metric.interval if metric else "day")

    def epoch_of(self, metric: Metric | None) -> str:
        """Return the epoch that is said, the metric's own, or a quarter."""
        return self.epoch or (metric.epoch if metric else "quarter")

    def n_epochs(self, metric: Metric | None) -> int:
        """Return how many permanent responses of a device answer."""
        from rappor.planning.repeats import epochs_in

        return 1 if self.days is None else epochs_in(self.days, self.epoch_of(metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings:
    """Which strings devices hold, and how many candidates there are."""

    candidates: int | None
    zipf: float | None
    table: str | None

    def question(self, detection: Detection, power: float, subject: Subject, each: int) -> Question:
        """Return what the planner is asked."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import Question
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
        return Question(
            frequencies=frequencies,
            detection=detection,
            power=power,
            reports_per_device=each,
        )
