"""Whom an audit asks about what: new devices, and devices that come back.

Trials are new devices, each with a value drawn from the pairs. Returning devices are asked about
the same value again, about another one and about another metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rappor.auditing.evidence import Bits, Evidence, Integers, Matches, Stage, Unrelated
from rappor.auditing.lower_bound import game_keys
from rappor.auditing.pairs import Truth, unpack
from rappor.auditing.shipped_encoder import SECOND_METRIC, Response
from rappor.auditing.subject import Request, Subject
from rappor.errors import ReportError
from rappor.progress import Progress
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

_BLOCK_BITS: Final = 1 << 22
"""Bits of responses that are looked at at a time: a byte each, they take 4 MB in each array."""

_BLOCK: Final = 1 << 14
"""Devices that are asked at a time: the shipped encoder takes a second or two for each block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Responses of n devices to one request each; `permanents` only if all can be seen.

    `cohorts` is (n,) int64, `reports` and `permanents` are (n, k) bool.
    """

    cohorts: Integers
    reports: Bits
    permanents: Bits | None

    def stages(self) -> dict[Stage, Bits]:
        """Return the bits of every stage that can be seen."""
        seen: dict[Stage, Bits] = {"report": self.reports}
        return seen if self.permanents is None else seen | {"permanent": self.permanents}


class Visit(NamedTuple):
    """The answers of returning devices, in the order in which they are asked."""

    first: Answers
    again: Answers
    other_value: Answers
    other_metric: Answers | None = None


class Interview:
    """Asks a subject about the values of pairs and keeps the evidence."""

    def __init__(
        self, subject: Subject, params: Params, metric: str, truth: Truth, rng: Keystream
    ) -> None:
        """Keep whom to ask, about what, and the auditor's own coins."""
        self._subject, self._params, self._metric = subject, params, metric
        self._truth, self._rng = truth, rng
        self.evidence = Evidence(params)

    def ask_trials(self, trials: int, *, n_reports: int, progress: Progress) -> None:
        """Ask new devices, each `n_reports` times if asking one twice is cheap."""
        repeats = n_reports if self._subject.remembers and self._subject.quick else 1
        for n in self._blocks("asking new devices", trials, repeats, progress):
            secrets, values = self._secrets(n, known=repeats > 1), self._values(n)
            requests = self._requests(secrets, self._metric, values)
            self._keep_trials(self._ask([requests] * repeats), values)

    def ask_returning(self, devices: int, *, progress: Progress) -> None:
        """Ask devices twice about a value, then about another one and another metric."""
        for n in self._blocks("asking devices again", devices, len(Visit._fields), progress):
            secrets, values = self._secrets(n, known=True), self._values(n)
            own = self._requests(secrets, self._metric, values)
            visit = [own, own, self._requests(secrets, self._metric, values ^ 1)]
            if self._subject.second_metric:
                visit.append(self._requests(secrets, SECOND_METRIC, values))
            self._keep_returning(Visit(*self._ask(visit)), values)

    def _blocks(self, stage: str, n: int, repeats: int, progress: Progress) -> Iterator[int]:
        size = max(1, min(_BLOCK, _BLOCK_BITS // (self._params.k * repeats)))
        for start in range(0, n, size):
            progress(stage, start, n)
            yield min(size, n - start)

    def _secrets(self, n: int, *, known: bool) -> list[bytes]:
        """Return n secrets; empty ones for commands whose devices need not be known again."""
        if not known and not self._subject.quick:
            return [b""] * n
        stream = self._rng.coins((n, SECRET_BYTES // 4)).tobytes()
        return [stream[at : at + SECRET_BYTES] for at in range(0, len(stream), SECRET_BYTES)]

    def _values(self, n: int) -> Integers:
        """Draw the positions of n values; the other one of its pair is position ^ 1."""
        pick = self._rng.coins(n).astype(np.uint64) * np.uint64(len(self._truth.values))
        return (pick >> np.uint64(32)).astype(np.int64)

    def _requests(self, secrets: Sequence[bytes], metric: str, values: Integers) -> list[Request]:
        texts = self._truth.values
        return [
            Request(secret, metric, texts[value])
            for secret, value in zip(secrets, values.tolist(), strict=True)
        ]

    def _ask(self, rounds: Sequence[Sequence[Request]]) -> list[Answers]:
        """Ask each device in all rounds before the next device, and return the answers by round."""
        requests = [each for device in zip(*rounds, strict=True) for each in device]
        responses = self._subject.respond(requests)
        return [self._read(responses[number :: len(rounds)]) for number in range(len(rounds))]

    def _read(self, responses: Sequence[Response]) -> Answers:
        cohorts = np.array([each.cohort for each in responses], dtype=np.int64)
        if cohorts.size and not 0 <= cohorts.min() <= cohorts.max() < self._params.m:
            most = self._params.m - 1
            raise ReportError(f"cohort must be an integer in [0, {most}] in an answer")
        permanents = [each.permanent for each in responses if each.permanent is not None]
        visible = len(permanents) == len(responses)
        return Answers(
            cohorts=cohorts,
            reports=unpack(b"".join(each.report for each in responses), self._params),
            permanents=unpack(b"".join(permanents), self._params) if visible else None,
        )

    def _keep_trials(self, rounds: Sequence[Answers], values: Integers) -> None:
        evidence, first = self.evidence, rounds[0]
        truth = self._truth.bits(values, first.cohorts)
        other = self._truth.bits(values ^ 1, first.cohorts)
        evidence.trials += len(values)
        evidence.moved += _moved(rounds)
        np.add.at(evidence.cohorts, (values & 1, first.cohorts), 1)
        evidence.reports.add(first.reports, truth)
        evidence.within_reports.add_neighbours(first.reports, truth)
        self._play("report", [first.reports], truth, other)
        if len(rounds) > 1:
            evidence.again.add(first.reports, rounds[1].reports, (truth, truth))
            self._play("reports", [each.reports for each in rounds], truth, other)
        if first.permanents is not None:
            evidence.permanents.add(first.permanents, truth)
            evidence.within_permanents.add_neighbours(first.permanents, truth)
            self._play("permanent", [first.permanents], truth, other)

    def _play(self, stage: Stage, responses: Sequence[Bits], own: Bits, other: Bits) -> None:
        ones: Integers = np.stack(responses).sum(axis=0, dtype=np.int64)
        keys = game_keys(ones, own, other, self._params, len(responses))
        self.evidence.add_game(stage, keys)

    def _keep_returning(self, visit: Visit, values: Integers) -> None:
        evidence, first, again = self.evidence, visit.first, visit.again
        own = self._truth.bits(values, first.cohorts)
        evidence.moved += _moved([first, again, visit.other_value])
        evidence.again.add(first.reports, again.reports, (own, own))
        if first.permanents is not None and again.permanents is not None:
            evidence.returned += len(values)
            evidence.redrawn += int((first.permanents != again.permanents).any(axis=1).sum())
        # Values with the same bits in a cohort share their response, as they should.
        other = self._truth.bits(values ^ 1, visit.other_value.cohorts)
        asked = (own != other).any(axis=1)
        _compare(evidence.other_value, first, visit.other_value, (own, other), asked)
        if visit.other_metric is not None:
            other = self._truth.bits(values, visit.other_metric.cohorts)
            asked = np.ones(len(values), dtype=np.bool_)
            _compare(evidence.other_metric, first, visit.other_metric, (own, other), asked)


def _moved(rounds: Sequence[Answers]) -> int:
    """Return the number of devices that were not in one cohort in all rounds."""
    cohorts = np.stack([each.cohorts for each in rounds])
    return int((cohorts != cohorts[0]).any(axis=0).sum())


def _compare(
    kept: dict[Stage, Unrelated],
    first: Answers,
    second: Answers,
    truths: tuple[Bits, Bits],
    asked: Bits,
) -> None:
    """Add two responses of each device that share no coins, of the devices in `asked`."""
    alike = asked & (truths[0] == truths[1]).all(axis=1)
    later = second.stages()
    for stage, bits in first.stages().items():
        if stage not in later:
            continue
        unrelated = kept.setdefault(stage, Unrelated(Matches(), Matches()))
        for matches, rows in ((unrelated.everyone, asked), (unrelated.same_bits, alike)):
            matches.add(bits[rows], later[stage][rows], (truths[0][rows], truths[1][rows]))
