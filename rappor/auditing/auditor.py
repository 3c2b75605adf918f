"""Audit of an encoder as a black box: compare its responses with the claim of its parameters.

Authors and users of an encoder call `audit`. The input is an adapter to the encoder
(`encoder_under_test`) and a metric whose parameters the encoder claims to have. The output is an
`Audit`: a list of checks, and a list of what the audit did not examine.

An encoder adds noise to a value twice. It first draws a permanent response: noisy bits that a
device stores or derives from its secret, and repeats. Each report is the permanent response with
fresh noise. So the parameters promise limits on the privacy loss, in nats: epsilon_1 for one report
of a device, epsilon_n for n reports, and epsilon_inf for any number of reports, which can reveal no
more than the permanent response. The audit measures lower bounds on the losses of the encoder.

Example: the parameters promise epsilon_1 = 1.1. From the reports of 100,000 devices the audit
concludes that one report loses at least 1.3. The encoder has a fault, for example coins that are
not fair. A bound of 1.0 would not show a fault.

The steps of `audit`:

1. `pairs` chooses the values: pairs that differ as much as possible, and extra values.
2. `queries` sends the values to simulated devices, and adds the responses to the counters of
   `evidence`. Most devices are new: each gives `n_reports` reports of one value. Returning devices
   are queried for several values, and long-running devices 64 times for one value.
3. `lower_bound` turns the trials into lower bounds on the losses. A bound above the claim is a
   fault. `probabilities`, `independent_devices` and `randomness` compare counts with the
   distributions of a correct encoder.
4. `scope` lists what the audit did not examine.

Some checks need more than a report. To query one device twice, the encoder must take the secret of
the device as an input. To compare permanent responses, the encoder must reveal them. A check whose
condition the encoder does not meet has the verdict "not seen".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Final

from rappor.auditing.check import FALSE_ALARM_RATE, Check, check_condition, mark_not_seen
from rappor.auditing.encoder_under_test import EncoderUnderTest, Request
from rappor.auditing.evidence import Evidence, ResponseBatch, Stage
from rappor.auditing.independent_devices import check_independent_devices, choose_n_values
from rappor.auditing.lower_bound import LEVEL, bound_loss, estimate_reachable_bound
from rappor.auditing.pairs import (
    TrueBits,
    choose_pairs,
    choose_spellings,
    draw_random_values,
    list_special_values,
)
from rappor.auditing.probabilities import check_probabilities, check_restart
from rappor.auditing.queries import REPORTS_PER_RUN, QuerySession
from rappor.auditing.randomness import (
    check_coins,
    check_report_coins,
    create_permanent_source,
    shows_top_bits,
)
from rappor.auditing.reference_encoder import check_separate_bits
from rappor.auditing.scope import list_not_examined
from rappor.base.display import DisplayedRecord
from rappor.base.errors import ParamsError
from rappor.base.progress import Progress, no_progress
from rappor.base.ranges import read_count
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.protocol.responses.response import Coins
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_RETURNING_DEVICES: Final = 2000
"""Largest number of returning devices, which are queried again.

A single device shows that the encoder draws a new permanent response in each report. 1,000 devices
are needed to find an encoder that uses the same noise for two values or for two metrics. More
devices take more time.
"""

_LONG_RUNNING_DEVICES: Final = 256
"""Largest number of long-running devices, which are queried 64 times.

If permanent responses are visible, 16 devices are enough to find an encoder that redraws them
within 64 reports. If only reports are visible, 100 devices are. More devices take more time.
"""

_EXTRA_VALUES: Final = 16
"""Number of random values, of random lengths, that are queried in addition to the pairs.

The random values find an encoder that treats a length or a character specially. More values leave
fewer devices for each value.
"""

_EXPENSIVE_DEVICES: Final = 16
"""Number of returning and of long-running devices if a second request to a device is expensive.

A command that takes one secret for each run needs a process of 0.1 seconds or more for each such
device.
"""

_MIN_TRIALS, _MAX_TRIALS = 1000, 10**9
"""Smallest and largest number of trials.

With fewer than 1,000 devices the lower bounds on the losses would be near 0. A billion devices take
the reference encoder days.
"""

_TRIALS_PER_EXTRA_DEVICE: Final = 8
"""Number of trials for each device that is queried for an extra value.

With a smaller number, more devices have extra values. The audit then finds rarer faults of special
values, and takes longer.
"""

_MAX_REPORTS: Final = 100
"""Largest number of reports of each device.

An observer of 100 reports knows the permanent response nearly exactly. So 100 reports lose nearly
as much as any number of reports, and more reports show nothing new. Memory grows with the number.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(DisplayedRecord):
    """Result of an audit: the checks, and the list of what the audit did not examine.

    Attributes
    ----------
    metric : Metric
        The metric whose encoder was audited.
    trials : int
        Number of devices that were queried.
    n_reports : int
        Number of reports of each device. For the audit of a client: number of days.
    level : float
        Largest probability that a bound of a loss exceeds the true loss.
    checks : tuple of Check
        One check for each question.
    not_examined : tuple of str
        Sentences about what the audit did not test.
    """

    _renderer: ClassVar[str] = "audit"

    metric: Metric
    trials: int
    n_reports: int
    level: float
    checks: tuple[Check, ...]
    not_examined: tuple[str, ...]

    @property
    def faults(self) -> tuple[Check, ...]:
        """Checks that found a fault."""
        return tuple(check for check in self.checks if check.verdict == "fault")

    @property
    def false_alarms(self) -> float:
        """Upper bound on the probability that an audit of a correct encoder finds a fault.

        The bound is the sum over the checks: `level` for each bound of a loss, and FALSE_ALARM_RATE
        for each other check.
        """
        n_bounds = sum(check.bound is not None for check in self.checks)
        return n_bounds * self.level + (len(self.checks) - n_bounds) * FALSE_ALARM_RATE

    @property
    def passed(self) -> bool:
        """Whether no check found a fault."""
        return not self.faults

    def _table(self) -> dict[str, list[Any]]:
        """Return the columns of a table with one row for each check."""
        fields = ("name", "verdict", "detail", "p_value", "bound", "claim", "reach")
        return {field: [getattr(check, field) for check in self.checks] for field in fields}


def audit(  # noqa: PLR0913 - the options of an audit
    encoder: EncoderUnderTest,
    metric: Metric,
    *,
    trials: int = 100_000,
    n_reports: int = 2,
    values: Sequence[str] = (),
    level: float = LEVEL,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Audit:
    """Compare the responses of an encoder with the claim of a metric's parameters.

    Parameters
    ----------
    encoder : EncoderUnderTest
        The encoder: a `Function`, `Sampler`, `Command` or `JsonLines`.
    metric : Metric
        The metric whose parameters the encoder claims to have.
    trials : int
        Number of new devices, from 1,000 to 10^9. More devices find smaller faults.
    n_reports : int
        Number of reports of each device, from 1 to 100. If the encoder does not recognise devices,
        or a second request to a device is expensive, each device gives one report.
    values : sequence of str
        Values to query in addition to those that the audit chooses.
    level : float
        Largest probability that a bound of a loss exceeds the true loss.
    seed : int, optional
        Seed of the auditor's requests. The encoder's own coins do not depend on the seed.
    progress : callable
        Called with a stage, the completed devices and all devices.

    Returns
    -------
    Audit

    Raises
    ------
    ParamsError
        If `trials` or `n_reports` is outside its range, if one report under these parameters
        reveals the value, or if the metric has parts (devices of such a metric choose their own
        parameters). Also if exactly one bit of each report is 1 (generalized randomized response):
        the tests of this audit assume that each bit has noise of its own.
    ReportError
        If a response is not a report, or a value does not fit the encoding.

    Examples
    --------
    >>> import datetime, random
    >>> from rappor import Metric, Params
    >>> from rappor.auditing import Sampler, audit
    >>> params = Params(k=1, encoding="boolean", f=0.0, p=0.25, q=0.75)
    >>> metric = Metric(
    ...     name="member",
    ...     params=params,
    ...     description="Is a member",
    ...     owner="survey@example.org",
    ...     expires=datetime.date(2030, 12, 31),
    ...     epoch="year",
    ... )
    >>> def always_one():
    ...     return lambda value: "1"
    >>> audit(Sampler(params, always_one), metric, trials=1000).passed
    False
    """
    if metric.parts:
        raise ParamsError("a metric with parts must be audited bit by bit: rappor audit --exact")
    check_separate_bits(metric)
    trials = read_count("trials", trials, _MIN_TRIALS, _MAX_TRIALS)
    n_reports = read_count("n_reports", n_reports, 1, _MAX_REPORTS)
    # Parameters with an infinite loss claim nothing that an audit could refute. Without the flag
    # `insecure` they are refused here.
    params = replace(metric.params, insecure=False)
    rng = Keystream(seed)
    truth = TrueBits(params, chain.from_iterable(choose_pairs(params)))
    generator = rng.generator()
    # Devices of a complete metric have only the listed values.
    special = [] if metric.complete else list_special_values(params, generator)
    extra = TrueBits(
        params, [*values, *draw_random_values(params, _EXTRA_VALUES, generator), *special]
    )
    # Refuse values of the caller that do not fit the encoding, before any device is queried.
    extra.check()
    session = QuerySession(encoder, params, metric.name, truth, extra, rng)
    session.query_trials(trials, n_reports=n_reports, progress=progress)
    if extra.values:
        session.query_extra_values(trials // _TRIALS_PER_EXTRA_DEVICE, progress=progress)
    if encoder.supports_secrets:
        _query_known_devices(session, encoder, params, trials, progress)
    secret = rng.coins(SECRET_BYTES // 4).tobytes() if encoder.supports_secrets else b""
    checks = (
        *_yield_loss_checks(session.evidence, params, n_reports, level),
        *check_probabilities(session.evidence, params),
        *_check_devices(session, truth, params, trials, progress),
        *_check_fresh_coins(session, encoder, params, trials, progress),
        check_restart(encoder, params, Request(secret, metric.name, truth.values[0])),
    )
    return Audit(
        metric=metric,
        trials=trials,
        n_reports=n_reports,
        level=level,
        checks=checks,
        not_examined=list_not_examined(
            params,
            checks,
            trials=trials,
            n_values=len(truth.values) + len(extra.values),
            n_reports=max(REPORTS_PER_RUN, n_reports) if encoder.supports_secrets else 1,
        ),
    )


def _query_known_devices(
    session: QuerySession,
    encoder: EncoderUnderTest,
    params: Params,
    trials: int,
    progress: Progress,
) -> None:
    """Query devices that the encoder recognises by their secrets."""
    n_returning = n_long_running = _EXPENSIVE_DEVICES
    if encoder.supports_cheap_repeats:
        n_returning = min(trials, _RETURNING_DEVICES)
        # A long-running device gives 64 reports, and a trial gives one. So this number of devices,
        # 1 / 32 of the trials, takes at most twice the time of all trials.
        n_long_running = min(trials // 32, _LONG_RUNNING_DEVICES)
    session.query_returning(n_returning, progress=progress)
    session.query_long_running(n_long_running, progress=progress)
    spellings = TrueBits(params, chain.from_iterable(choose_spellings(params)))
    if spellings.values:
        session.query_spellings(n_long_running, spellings, progress=progress)


def _check_devices(
    session: QuerySession, truth: TrueBits, params: Params, trials: int, progress: Progress
) -> list[Check]:
    """Compare independent devices, if their permanent responses are visible.

    An eighth of the trials is queried again for this comparison: at least 500 devices, because the
    number of pairs that can share a secret grows with the square, and at most 20,000, to limit the
    time.
    """
    rounds: Sequence[ResponseBatch] = []
    if session.evidence.stages["permanent"].ones.n.any():
        devices = max(500, min(trials // 8, 20_000))
        n_values = choose_n_values(params, devices)
        rounds = session.query_independent_devices(devices, n_values, progress=progress)
    return check_independent_devices(rounds, truth, params)


def _check_fresh_coins(
    session: QuerySession,
    encoder: EncoderUnderTest,
    params: Params,
    trials: int,
    progress: Progress,
) -> list[Check]:
    """Test the coins of one device's reports, if the permanent response of the reports is known.

    With f = 0 the permanent response is the true bits, so it is known without being revealed. The
    number of reports is a sixteenth of the trials. If the reports show the top bits of coins, it is
    half of the trials: from 82,000 trials on, the audit recognises the Mersenne Twister. This
    generator is a shift register of 19,937 bits, and a test finds a register from twice as many
    output bits, 39,874 (`randomness`).
    """
    is_permanent_revealed = (
        session.evidence.stages["permanent"].ones.n.any() and encoder.supports_secrets
    )
    if not is_permanent_revealed and params.f > 0:
        return check_report_coins(None, None, params)
    n_reports = trials // 2 if shows_top_bits(params) else max(500, trials // 16)
    return check_report_coins(*session.query_single_device(n_reports, progress=progress), params)


def audit_coins(params: Params, coins: Coins, *, seed: int | None = None) -> list[Check]:
    """Test a source of fresh coins, and the coins of a device's permanent responses.

    Parameters
    ----------
    params : Params
        Parameters of an encoder. The encoder compares each coin with a threshold that follows from
        the parameters, such as p times 2^32, so the coins are tested at these thresholds.
    coins : callable
        Takes an integer n and returns n uniform 32-bit integers.
    seed : int, optional
        Seed of the secret from which the permanent coins follow.

    Returns
    -------
    list of Check

    Examples
    --------
    >>> from rappor import Params
    >>> from rappor.auditing import audit_coins
    >>> checks = audit_coins(Params.profile("balanced"), lambda n: [7] * n, seed=1)
    >>> checks[0].verdict
    'fault'
    """
    secret = Keystream(seed).coins(SECRET_BYTES // 4).tobytes()
    return [
        *check_coins("fresh coins", coins, params),
        *check_coins("permanent coins", create_permanent_source(params, secret), params),
    ]


def _yield_loss_checks(evidence: Evidence, params: Params, n: int, level: float) -> Iterable[Check]:
    """Yield the checks of epsilon_1, epsilon_n, epsilon_inf, and of epsilon_1 by a classifier."""
    yield _check_loss(evidence, params, "report", 1, level)
    if n > 1:
        yield _check_loss(evidence, params, "reports", n, level)
    yield _check_loss(evidence, params, "permanent", None, level)
    yield _check_learned_bound(evidence, params, level)


def _check_learned_bound(evidence: Evidence, params: Params, level: float) -> Check:
    """Check epsilon_1 against the lower bound of a trained classifier.

    `_check_loss` reads only the bits that one of the two values sets. The classifier reads whole
    reports and the cohort, so this check finds leaks in the other bits, too. A bound above the
    claim is a fault. The bound exceeds the true loss with probability `level` at most.
    """
    name, claim = "epsilon_1 by a learned rule", epsilon_1(params)
    bound = evidence.distinguisher.bound(level)
    if bound is None:
        return replace(mark_not_seen(name, "too few devices had the first two values"), claim=claim)
    detail = f"at least {bound:.4f} of {claim:.4f}, by boosted trees on whole reports"
    return replace(check_condition(name, detail, is_fault=bound > claim), bound=bound, claim=claim)


def _check_loss(
    evidence: Evidence, params: Params, stage: Stage, n: int | None, level: float
) -> Check:
    """Check the loss of n reports, or of any number of reports if n is None.

    `stage` names the responses that the observer sees. Any number of reports reveals at most the
    permanent response, so if n is None the observer sees that response. The lower bound on the loss
    comes from a game (`lower_bound`): an observer sees the responses of a device and guesses which
    of two values the device has. The more often the observer is right, the larger the loss is. A
    bound above the claim is a fault. The bound exceeds the true loss with probability `level` at
    most.
    """
    claim = epsilon_inf(params) if n is None else epsilon_n(params, n)
    name = "epsilon_inf" if n is None else f"epsilon_{n}"
    game_keys = evidence.get_game_keys(stage)
    if game_keys is None:
        detail = "no permanent response was seen" if n is None else "each device gave one report"
        return replace(mark_not_seen(name, detail), claim=claim)
    bound, reach = bound_loss(*game_keys, level=level), None
    detail = f"at least {bound:.4f} of {claim:.4f}"
    if 0 < claim < math.inf:
        detail += f" ({100 * bound / claim:.1f} %)"
    # `reach` is the bound that a correct encoder would give with as many trials. Its estimate
    # assumes two values that set h bits each and none in common, which needs k >= 2 h.
    if get_encoding(params).is_hashed and params.k >= 2 * params.h:
        reach = estimate_reachable_bound(params, n, evidence.trials, level=level)
        detail += f"; {evidence.trials:,} trials can reach about {reach:.4f}"
    check = check_condition(name, detail, is_fault=bound > claim)
    return replace(check, bound=bound, claim=claim, reach=reach)
