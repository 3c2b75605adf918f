"""`rappor plan`: parameters for a privacy budget, and what they will find."""

from __future__ import annotations

import dataclasses
import datetime
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from rappor.cli.commands import Command
from rappor.cli.console import print_json, show, table
from rappor.cli.numbers import (
    COUNT,
    NUMBER,
    WholeNumber,
    even_odds_become,
)
from rappor.cli.options import (
    Detection,
    chart_option,
    detection_options,
    grouped,
    json_option,
    metric_option,
    registry_option,
    save_chart,
)
from rappor.cli.plan_parts import Search, print_parts_plan
from rappor.files import read_text, replacing
from rappor.protocol.encodings import ENCODINGS, encoding_of
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import MAX_HASHES, PROFILES, Params
from rappor.registry.metric import EPOCHS, INTERVALS, Metric
from rappor.registry.registry import Registry
from rappor.reporting.numbers import nats, percent, short_percent

if TYPE_CHECKING:
    from rappor.planning.plans import Alternative, Plan
    from rappor.planning.power import Question
    from rappor.planning.repeats import Repeat

_CONTROL: Final = {
    "bh": "Benjamini-Hochberg",
    "adaptive": "adaptive Benjamini-Hochberg",
    "bonferroni": "Bonferroni",
}
_PARTS: Final = {
    "coins": "privacy noise",
    "sampling": "sampling of devices",
    "unexplained": "strings that no candidate explains",
    "candidates": "candidates on the same bits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """What a plan may spend, or the profile whose plan is asked for."""

    epsilon_1: float | None
    epsilon_inf: float | None
    profile: str | None
    max_bytes: int | None
    hashes: int | None
    symmetric: bool

    def plan(self, subject: _Subject, question: Question, size: _Size) -> Plan:
        """Choose the parameters, or take given ones, and predict what they find."""
        from rappor import planning

        reports = size.reports_of(question)
        given = self._given(subject)
        if given is not None:
            return planning.assess(given, question, reports=reports, share=size.share)
        if self.epsilon_1 is None or self.epsilon_inf is None:
            raise click.UsageError(
                "give --epsilon-1 and --epsilon-inf, or --profile, or --registry and --metric"
            )
        if subject.n_answers is not None:
            if self.max_bytes is not None or self.hashes is not None:
                raise click.UsageError("--max-bytes and --hashes go with encoding bloom")
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

    def _given(self, subject: _Subject) -> Params | None:
        """Return the parameters that are fixed, None where a budget chooses them."""
        limits = (self.epsilon_1, self.epsilon_inf, self.max_bytes, self.hashes)
        free = any(limit is not None for limit in limits) or self.symmetric
        if self.profile is None:
            return None if subject.metric is None or free else subject.metric.params
        if free:
            raise click.UsageError("a --profile is fixed: give no budget and no limits with it")
        return subject.of_profile(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
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
        """Return the profile's noise for this encoding."""
        if ENCODINGS[self.encoding_name].hashed:
            return Params.profile(profile)
        noise = PROFILES[profile]
        f, p, q = noise["f"], noise["p"], noise["q"]
        encoding, k = self.encoding_name, self.n_answers or 0
        return Params(encoding=encoding, categories=self.answers, k=k, f=f, p=p, q=q)

    def write_numbers(self, params: Params) -> None:
        """Write the planned numbers into the metric's entry."""
        from rappor.planning.entry import replace_numbers

        assert self.registry_path is not None
        assert self.metric_name is not None
        changed = replace_numbers(read_text(self.registry_path), self.metric_name, params)
        with replacing(self.registry_path) as file:
            file.write(changed.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
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
class _Repeats:
    """How often each device reports."""

    reports_per_device: int | None
    days: int | None
    interval: str | None
    epoch: str | None

    def each(self, metric: Metric | None) -> int:
        """Return the reports a device."""
        from rappor.planning.repeats import reports_in

        if self.days is None:
            return 1 if self.reports_per_device is None else self.reports_per_device
        if self.reports_per_device is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        return reports_in(self.days, self.interval_of(metric))

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
class _Strings:
    """Which strings devices hold, and how many candidates there are."""

    candidates: int | None
    zipf: float | None
    table: str | None

    def question(
        self, detection: Detection, power: float, subject: _Subject, each: int
    ) -> Question:
        """Return what the planner is asked."""
        from rappor.planning.frequencies import Frequencies
        from rappor.planning.power import Question
        from rappor.simulation.population import Population

        n = subject.n_answers
        if self.candidates is not None and n is not None:
            raise click.UsageError(f"--candidates must be left out: there are {n} answers")
        n = n or self.candidates or 1000
        if self.table is None:
            frequencies = Frequencies.zipf(n, 1.0 if self.zipf is None else self.zipf)
        elif self.zipf is None:
            frequencies = Frequencies.of_shares(Population.from_csv(self.table).weights, n)
        else:
            raise click.UsageError("give --zipf or --table, not both")
        return Question(
            frequencies=frequencies,
            correction=detection.correction,
            level=detection.level,
            power=power,
            confidence=detection.confidence,
            reports_per_device=each,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """What the printed entry is called, and where the plan goes beside the terminal."""

    name: str
    chart: str | None
    as_json: bool


@click.command(
    cls=Command,
    examples=(
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --reports 1e6",
        "rappor plan --epsilon-1 1 --epsilon-inf 4 --share .01 --chart found.svg",
        "rappor plan --profile balanced --reports 1e6 --table population.csv",
        "rappor plan --encoding onehot --categories light,dark,other \\\n"
        "  --epsilon-1 1 --epsilon-inf 2 --devices 1e4 --days 30",
        "rappor plan --discover --epsilon-1 2 --epsilon-inf 4 --reports 1e7 --longest 6",
        "rappor plan --registry metrics.toml --metric search_engine \\\n"
        "  --devices 1e5 --reports-per-device 30",
    ),
)
@grouped(
    "subject",
    _Subject,
    click.option(
        "--encoding",
        type=click.Choice(list(ENCODINGS)),
        help="How values become bits.  [default: bloom]",
    ),
    click.option(
        "--categories",
        metavar="LIST",
        help="Categories, flags, or edges of buckets, with commas between them.",
    ),
    registry_option(required=False),
    metric_option(),
    click.option(
        "--write",
        is_flag=True,
        help="Write the planned numbers into the metric's entry in the registry.",
    ),
)
@grouped(
    "budget",
    _Budget,
    click.option(
        "--epsilon-1", type=float, metavar="NATS", help="Largest privacy loss of one report."
    ),
    click.option(
        "--epsilon-inf",
        type=float,
        metavar="NATS",
        help="Largest privacy loss of any number of reports of one value.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        help="Predict for these named parameters instead of choosing some.",
    ),
    click.option(
        "--max-bytes",
        type=NUMBER,
        metavar="BYTES",
        help="Largest size of the bits of a report.",
    ),
    click.option(
        "--hashes",
        type=WholeNumber(1, MAX_HASHES),
        metavar="N",
        help=f"Consider only designs with N hash functions, 1 to {MAX_HASHES}.",
    ),
    click.option("--symmetric", is_flag=True, help="Consider only designs in which q is 1 - p."),
)
@grouped(
    "size",
    _Size,
    click.option(
        "--reports",
        type=NUMBER,
        metavar="N",
        help="Reports that are expected, such as 1e6; prints the smallest share detected.",
    ),
    click.option(
        "--devices",
        type=COUNT,
        metavar="N",
        help="Devices instead of reports, each of which reports as often as is said below.",
    ),
    click.option(
        "--share",
        type=float,
        metavar="SHARE",
        help="Smallest share to detect (0.01 is 1 %); prints the reports needed.",
    ),
)
@grouped(
    "repeats",
    _Repeats,
    click.option(
        "--reports-per-device",
        type=WholeNumber(1, 10**6),
        metavar="N",
        help="Reports that each device sends.  [default: 1]",
    ),
    click.option(
        "--days",
        type=WholeNumber(1, 36_500),
        metavar="N",
        help="Days of collection, in each interval of which a device reports once.",
    ),
    click.option(
        "--interval",
        type=click.Choice([name for name in INTERVALS if name != "none"]),
        help="Time in which a device reports once.  [default: the metric's, or day]",
    ),
    click.option(
        "--epoch",
        type=click.Choice(list(EPOCHS)),
        metavar="EPOCH",
        help="How long a permanent response lasts: life, year, quarter or month.  [default: the "
        "metric's, or quarter]",
    ),
)
@grouped(
    "strings",
    _Strings,
    click.option(
        "--candidates",
        type=NUMBER,
        metavar="N",
        help="Candidate strings that will be tested.  [default: 1000, or all answers]",
    ),
    click.option(
        "--zipf",
        type=float,
        metavar="EXPONENT",
        help="Assume shares in proportion to rank^-EXPONENT.  [default: 1]",
    ),
    click.option(
        "--table",
        type=click.Path(),
        metavar="FILE",
        help="Take the shares from a CSV file with the header value,weight.",
    ),
)
@grouped(
    "search",
    Search,
    click.option(
        "--discover",
        is_flag=True,
        help="Plan parts that find strings without a list of candidates; --candidates is then how "
        "many strings there are.",
    ),
    click.option(
        "--longest",
        type=WholeNumber(2),
        metavar="N",
        help="Characters of the longest string to find, with --discover.",
    ),
    click.option(
        "--alphabet",
        metavar="CHARACTERS",
        help="Characters of the strings, with --discover.  [default: a-z]",
    ),
)
@detection_options
@click.option(
    "--power",
    type=float,
    default=0.8,
    show_default=True,
    metavar="PROBABILITY",
    help="Probability with which a string of the smallest share is detected.",
)
@grouped(
    "output",
    _Output,
    click.option(
        "--name",
        default="my_metric",
        show_default=True,
        metavar="NAME",
        help="Name of the metric in the printed entry of a registry.",
    ),
    chart_option,
    json_option,
)
def plan(
    *,
    subject: _Subject,
    budget: _Budget,
    size: _Size,
    repeats: _Repeats,
    strings: _Strings,
    search: Search,
    detection: Detection,
    power: float,
    output: _Output,
) -> None:
    """Choose parameters for a privacy budget before collecting.

    Give the budget (--epsilon-1 and --epsilon-inf), a --profile, or a metric of a registry, whose
    parameters are kept unless a budget is given; and either --reports or --devices, for the
    smallest share that is detected, or --share, for the reports that it takes. Where devices
    report again, what that brings and costs is shown too. The entry for the registry is printed
    at the end.

    With --discover it chooses the parts of a metric whose strings nobody knows, their shares of
    the devices, bits and cohorts, and predicts how many strings `rappor discover` will find.
    """
    from rappor.planning.entry import with_numbers
    from rappor.planning.repeats import compare_repeats

    metric = subject.metric
    each = repeats.each(metric)
    if search.discover:
        if metric is not None or subject.n_answers is not None or output.chart is not None:
            raise click.UsageError("--discover plans a new metric of strings, without a chart")
        print_parts_plan(
            search.plan(
                strings.question(detection, power, subject, each),
                budget=budget.of_discovery(),
                reports=size.of_discovery(),
            ),
            name=output.name,
            epoch=repeats.epoch_of(None),
            interval=repeats.interval_of(None),
            as_json=output.as_json,
        )
        return
    planned = budget.plan(subject, strings.question(detection, power, subject, each), size)
    if metric is not None:
        params = with_numbers(metric.params, planned.params)
        planned = dataclasses.replace(planned, params=params)
    compared = compare_repeats(planned, epochs=repeats.n_epochs(metric)) if each > 1 else ()
    # The library has no clock; a year is a term that somebody will think about again.
    today = datetime.datetime.now(datetime.UTC).date()
    entry = planned.to_toml(
        output.name if metric is None else metric.name,
        expires=today + datetime.timedelta(days=365),
        epoch=repeats.epoch_of(metric),
        interval=repeats.interval_of(metric),
    )
    if subject.write:
        subject.write_numbers(planned.params)
    save_chart(planned, output.chart)
    if output.as_json:
        print_json(planned.to_dict(), toml=entry, **({"repeats": compared} if compared else {}))
    else:
        _print(planned, compared, entry)


def _print(planned: Plan, compared: tuple[Repeat, ...], entry: str) -> None:
    show(_summary(planned))
    if compared:
        show("\nWhat repeated reports of the same devices bring:\n", _repeated(compared))
    show(
        "\nOther designs with the same epsilon, k and m (variance of a rare string's count, per "
        "report):\n",
        _others(planned.alternatives),
    )
    click.echo(f"\nEntry for the registry:\n\n{entry}", nl=False)


def _repeated(compared: tuple[Repeat, ...]) -> Table:
    shown = table("reports of each", "detects", "standard error", "epsilon")
    for each in compared:
        number = each.reports_per_device
        shown.add_row(
            "any number" if number is None else f"{number:,}",
            "nothing" if each.share is None else percent(each.share, 3),
            percent(each.rare_error, 3),
            f"{each.epsilon:.2f}",
        )
    return shown


def _summary(planned: Plan) -> Table:
    params = planned.params
    summary = Table(show_header=False, box=None, pad_edge=False)
    letters = "khmfpq" if encoding_of(params).hashed else "kfpq"
    summary.add_row("encoding", params.encoding)
    summary.add_row("parameters", ", ".join(f"{x} = {getattr(params, x):.6g}" for x in letters))
    for name in PROFILES:
        profile = Params.profile(name)
        if all(_near(getattr(params, x), getattr(profile, x)) for x in "fpq"):
            summary.add_row("noise", f"as in the profile {name}")
    summary.add_row("p*, q*", f"{params.p_star:.6f}, {params.q_star:.6f}")
    summary.add_row("epsilon_1", _loss(epsilon_1(params)))
    summary.add_row("epsilon_inf", _loss(epsilon_inf(params)))
    if encoding_of(params).hashed:
        _add_enough(summary, params)
    summary.add_row("report size", f"{params.n_bytes} bytes of bits")
    if planned.filling.m_is_too_large:
        summary.add_row("m is too large", f"{planned.filling.told}; a collector shows no others")
    _add_prediction(summary, planned)
    return summary


def _add_enough(summary: Table, params: Params) -> None:
    """Say where a smaller epsilon_inf would detect as much."""
    from rappor.planning.noise import enough_epsilon_inf

    enough = enough_epsilon_inf(epsilon_1(params), h=params.h)
    if epsilon_inf(params) > 1.01 * enough and abs(params.q_star - 0.5) < 1e-3:
        summary.add_row(
            "",
            f"an epsilon_inf of {enough:.4f} would detect just as much and protect repeated "
            "reports better, but makes a device's reports easier to link",
        )


def _add_prediction(summary: Table, planned: Plan) -> None:
    from rappor.planning.plans import REMEDIES

    prediction, question = planned.prediction, planned.question
    condition = (
        f"in {planned.reports:,} reports{_devices(planned)}, among "
        f"{question.frequencies.n_candidates:,} candidates "
        f"({_CONTROL[question.correction]} {short_percent(question.level)})"
    )
    if planned.share is None:
        summary.add_row("detects", f"no share {condition}")
        return
    share, power = percent(planned.share, 3), short_percent(question.power)
    summary.add_row("detects", f"a share of {share} with {power} probability {condition}")
    summary.add_row("expected", f"{prediction.found:,.1f} detected strings")
    summary.add_row(
        "interval",
        f"{percent(prediction.width, 3)} wide at {short_percent(question.confidence)} confidence "
        f"for that share, {percent(prediction.adjusted_width, 3)} wide when adjusted for selection "
        "(FCR)",
    )
    parts = (f"{_PARTS[name]} {percent(part)}" for name, part in prediction.parts.items())
    summary.add_row("error comes from", ", ".join(parts))
    summary.add_row("", f"the largest part is {REMEDIES[planned.binding]}")
    if math.isfinite(planned.excess) and question.reports_per_device == 1:
        summary.add_row(
            "variance",
            f"{percent(planned.excess - 1)} above the best known mechanism at this epsilon, for a "
            "rare string",
        )


def _devices(planned: Plan) -> str:
    """Say how many devices the reports come from, where they report again."""
    each = planned.question.reports_per_device
    return "" if each == 1 else f" of {planned.reports / each:,.0f} devices"


def _near(probability: float, other: float) -> bool:
    """Tell whether two probabilities are one to the digits of a profile."""
    return abs(probability - other) < 1e-6


def _loss(epsilon: float) -> str:
    most = even_odds_become(epsilon)
    return f"{nats(epsilon)} nats: an observer who gives even odds can be at most {most} sure"


def _others(alternatives: tuple[Alternative, ...]) -> Table:
    shown = table("design", "f", "p", "q", "p*", "q*", "variance", "x optimum", "detects")
    for other in alternatives:
        params = other.params
        numbers = (params.f, params.p, params.q, params.p_star, params.q_star)
        shown.add_row(
            other.name,
            *(f"{number:.4f}" for number in numbers),
            f"{other.variance:.4g}",
            f"{other.excess:.3f}" if math.isfinite(other.excess) else "-",
            "nothing" if other.share is None else percent(other.share, 3),
        )
    return shown
