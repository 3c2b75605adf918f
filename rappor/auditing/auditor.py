"""Audit: what an encoder really promises, measured from outside."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rappor.auditing.check import Check
from rappor.auditing.interview import Evidence, Interview
from rappor.auditing.lower_bound import LEVEL, loss_bound, reachable
from rappor.auditing.pairs import Truth, choose_pairs
from rappor.auditing.probabilities import law_checks, restart_check
from rappor.auditing.randomness import coin_checks, permanent_source
from rappor.auditing.shipped_encoder import shipped_show
from rappor.auditing.subject import Ask, Subject
from rappor.auditing.timing import timing_check
from rappor.errors import ParamsError
from rappor.privacy.loss import epsilon_inf, epsilon_n
from rappor.progress import Progress
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES, Coins
from rappor.registry.metric import Metric
from rappor.simulation.keystream import Keystream

_RETURNING, _RETURNING_SLOWLY = 2000, 16
"""Devices that are asked again, and how many where each is a process."""


_MOST_REPORTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The checks of one audit, in the order in which they are read."""

    metric: Metric
    trials: int
    n_reports: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check found a fault."""
        return all(check.verdict != "fault" for check in self.checks)


def audit(
    subject: Subject,
    metric: Metric,
    *,
    trials: int = 100_000,
    n_reports: int = 2,
    level: float = LEVEL,
    seed: int | None = None,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Audit:
    """Hold a subject against what the metric's parameters claim.

    `trials` are devices, each asked for `n_reports` reports where that is cheap; `seed` repeats
    the auditor's questions (not the subject's answers).

    Raises ParamsError for trials or reports outside their range and for parameters under which
    one report reveals the value, ReportError for answers that
    are no reports.
    """
    _check_range("trials", trials, 1000, 10**9)
    _check_range("n_reports", n_reports, 1, _MOST_REPORTS)
    params = replace(metric.params, insecure=False)  # nothing claimed, nothing audited
    chance = Keystream(seed)
    truth = Truth(params, choose_pairs(params))
    interview = Interview(subject, params, metric.name, truth, chance)
    interview.ask_trials(trials, n_reports=n_reports, progress=progress)
    if subject.remembers:
        devices = min(trials, _RETURNING) if subject.quick else _RETURNING_SLOWLY
        interview.ask_returning(devices, progress=progress)
    secret = chance.coins(SECRET_BYTES // 4).tobytes() if subject.remembers else b""
    ask = Ask(secret, metric.name, truth.values[0])
    checks = (
        *_loss_checks(interview.evidence, params, n_reports, level),
        *law_checks(interview.evidence, params),
        restart_check(subject, params, ask),
    )
    return Audit(metric=metric, trials=trials, n_reports=n_reports, checks=checks)


def audit_coins(params: Params, coins: Coins, *, seed: int | None = None) -> list[Check]:
    """Test the fresh coins, and those of a device's permanent responses."""
    secret = Keystream(seed).coins(SECRET_BYTES // 4).tobytes()
    return [
        *coin_checks("fresh coins", coins, params),
        *coin_checks("permanent coins", permanent_source(params, secret), params),
    ]


def audit_timing(
    metric: Metric, *, rounds: int = 1000, progress: Progress = lambda _stage, _done, _total: None
) -> list[Check]:
    """Time the shipped encoder on the two values of each of the first pairs.

    Strings of a pair have one length: that a longer one takes longer to hash is not shown.
    """
    show = shipped_show(metric)
    pairs = choose_pairs(metric.params)[:3]
    return [
        timing_check(
            f"time, pair {number}", show, metric.name, pair, rounds=rounds, progress=progress
        )
        for number, pair in enumerate(pairs, start=1)
    ]


def _loss_checks(evidence: Evidence, params: Params, n: int, level: float) -> list[Check]:
    return [
        _loss_check(evidence, params, "report", 1, level),
        _loss_check(evidence, params, "reports", n, level),
        _loss_check(evidence, params, "permanent", None, level),
    ]


def _loss_check(
    evidence: Evidence, params: Params, stage: str, n: int | None, level: float
) -> Check:
    claim = epsilon_inf(params) if n is None else epsilon_n(params, n)
    reports = "ever" if n is None else "one report" if stage == "report" else f"{n} reports"
    name = f"loss for {reports}"
    game = evidence.game(stage)
    if game is None:
        return Check(name=name, verdict="not seen", detail="it was not shown", claim=claim)
    bound = loss_bound(*game, level=level)
    share = f" ({bound / claim:.1%})" if 0 < claim < math.inf else ""
    if encoding_of(params).hashed and params.k >= 2 * params.h:
        share += f"; so many trials show about {reachable(params, n, evidence.trials):.4f}"
    return Check(
        name=name,
        verdict="fault" if bound > claim else "pass",
        detail=f"at least {bound:.4f} of {claim:.4f} nats{share}",
        bound=bound,
        claim=claim,
    )


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ParamsError(f"{name} must be an integer in [{low:,}, {high:,}], got {value!r}")
