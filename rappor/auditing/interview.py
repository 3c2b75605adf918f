"""What an audit asks and what it keeps of the answers: tallies, a block of devices at a time.

Trials are new devices, each with a value drawn from the pairs. Returning devices are asked again:
about the same value, about another one and about another metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.auditing.lower_bound import game_keys
from rappor.auditing.pairs import Truth, unpack
from rappor.auditing.shipped_encoder import SECOND_METRIC, Shown
from rappor.auditing.subject import Ask, Subject
from rappor.errors import ReportError
from rappor.progress import Progress
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

_BLOCK_BITS: Final = 1 << 22
"""Bits that are looked at at a time: bounds the memory."""

_BLOCK: Final = 1 << 14
"""Devices that are asked at a time: bounds what passes between two signs of progress."""

_Bits = NDArray[np.bool_]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of n devices to r asks each; `permanents` only where they can be seen.

    `cohorts` is (n, r) int64, `reports` and `permanents` are (n, r, k) bool.
    """

    cohorts: _Counts
    reports: _Bits
    permanents: _Bits | None


class Ones:
    """How often each bit showed a one, by its true bit: (2, k) int64, true 0 first."""

    def __init__(self, k: int) -> None:
        """Start at nothing."""
        self.seen = np.zeros((2, k), dtype=np.int64)
        self.ones = np.zeros((2, k), dtype=np.int64)

    def add(self, shown: _Bits, truth: _Bits) -> None:
        """Add (n, k) bits and what they truly are."""
        self.seen += (~truth).sum(axis=0), truth.sum(axis=0)
        self.ones += (shown & ~truth).sum(axis=0), (shown & truth).sum(axis=0)


class Matches:
    """How often two bits with the same truth are both one: (2,) int64, true 0 first."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.seen = np.zeros(2, dtype=np.int64)
        self.both = np.zeros(2, dtype=np.int64)

    def add(self, first: _Bits, second: _Bits, truths: tuple[_Bits, _Bits]) -> None:
        """Add two arrays of bits of one shape, and their truths."""
        both = first & second
        for truth in (0, 1):
            alike = (truths[0] == truth) & (truths[1] == truth)
            self.seen[truth] += alike.sum()
            self.both[truth] += (both & alike).sum()


class Evidence:
    """All tallies of one audit."""

    def __init__(self, params: Params) -> None:
        """Start at nothing."""
        self.trials = 0
        self.keys: dict[str, list[tuple[_Counts, _Counts]]] = {}
        self.cohorts = np.zeros((2, params.m), dtype=np.int64)
        """Devices by side of their pair and cohort."""
        self.reports = Ones(params.k)
        self.permanents = Ones(params.k)
        self.within_reports, self.within_permanents = Matches(), Matches()
        """Different bits of one showing."""
        self.again = Matches()
        """The same bit in two reports of one device and value."""
        self.returned = self.redrawn = self.moved = 0
        """Permanent responses seen twice, and those that had changed; cohorts that had."""
        self.other: dict[tuple[str, str], tuple[Matches, Matches]] = {}
        """By "metric" or "value" and "report" or "permanent": of all devices, and of those whose
        true bits were the same both times, where shared coins show best."""

    def game(self, name: str) -> tuple[_Counts, _Counts] | None:
        """Return the keys of a game over all trials, None if it was not played."""
        if name not in self.keys:
            return None
        right, wrong = zip(*self.keys[name], strict=True)
        return np.concatenate(right), np.concatenate(wrong)


class Interview:
    """Asks a subject about the values of pairs and keeps the evidence."""

    def __init__(
        self, subject: Subject, params: Params, metric: str, truth: Truth, chance: Keystream
    ) -> None:
        """Take whom to ask, about what, and the auditor's own coins."""
        self._subject, self._params, self._metric = subject, params, metric
        self._truth, self._chance = truth, chance
        self.evidence = Evidence(params)

    def ask_trials(self, trials: int, *, n_reports: int, progress: Progress) -> None:
        """Ask new devices, each `n_reports` times where it is cheap to ask one twice."""
        repeats = n_reports if self._subject.remembers and self._subject.quick else 1
        for n in self._blocks("asking new devices", trials, repeats, progress):
            secrets, values = self._secrets(n, known=repeats > 1), self._values(n)
            answers = self._ask(
                [
                    Ask(secret, self._metric, self._truth.values[value])
                    for secret, value in zip(secrets, values.tolist(), strict=True)
                    for _ in range(repeats)
                ],
                repeats,
            )
            self._keep_trials(answers, values)

    def ask_returning(self, devices: int, *, progress: Progress) -> None:
        """Ask devices twice about a value, then about another one and another metric."""
        repeats = 3 + self._subject.second_metric
        for n in self._blocks("asking devices again", devices, repeats, progress):
            secrets, values = self._secrets(n, known=True), self._values(n)
            asks: list[Ask] = []
            for secret, value in zip(secrets, values.tolist(), strict=True):
                text, another = self._truth.values[value], self._truth.values[value ^ 1]
                asks += [Ask(secret, self._metric, each) for each in (text, text, another)]
                asks += [Ask(secret, SECOND_METRIC, text)] * (repeats - 3)
            self._keep_returning(self._ask(asks, repeats), values)

    def _blocks(self, stage: str, n: int, repeats: int, progress: Progress) -> Iterator[int]:
        size = max(1, min(_BLOCK, _BLOCK_BITS // (self._params.k * repeats)))
        for start in range(0, n, size):
            progress(stage, start, n)
            yield min(size, n - start)

    def _secrets(self, n: int, *, known: bool) -> list[bytes]:
        """Return n secrets; empty ones for commands whose devices need not be known again."""
        if not known and not self._subject.quick:
            return [b""] * n
        stream = self._chance.coins((n, SECRET_BYTES // 4)).tobytes()
        return [stream[at : at + SECRET_BYTES] for at in range(0, len(stream), SECRET_BYTES)]

    def _values(self, n: int) -> _Counts:
        """Draw the positions of n values; the other one of its pair is position ^ 1."""
        pick = self._chance.coins(n).astype(np.uint64) * np.uint64(len(self._truth.values))
        return (pick >> np.uint64(32)).astype(np.int64)

    def _ask(self, asks: list[Ask], repeats: int) -> Answers:
        shown = self._subject.show(asks)
        params, shape = self._params, (-1, repeats, self._params.k)
        cohorts = np.array([each.cohort for each in shown], dtype=np.int64)
        if cohorts.size and not 0 <= cohorts.min() <= cohorts.max() < params.m:
            raise ReportError(f"cohort must be an integer in [0, {params.m - 1}] in an answer")
        return Answers(
            cohorts=cohorts.reshape(-1, repeats),
            reports=unpack(b"".join(each.report for each in shown), params).reshape(shape),
            permanents=_permanents(shown, params, shape),
        )

    def _keep_trials(self, answers: Answers, values: _Counts) -> None:
        evidence = self.evidence
        cohorts, first = answers.cohorts[:, 0], answers.reports[:, 0]
        truth = self._truth.bits(values, cohorts)
        other = self._truth.bits(values ^ 1, cohorts)
        evidence.trials += len(values)
        np.add.at(evidence.cohorts, (values & 1, cohorts), 1)
        evidence.reports.add(first, truth)
        _add_neighbours(evidence.within_reports, first, truth)
        self._play("report", first.astype(np.int64), truth, other, 1)
        n = answers.reports.shape[1]
        if n > 1:
            self._play("reports", answers.reports.sum(axis=1), truth, other, n)
            evidence.again.add(first, answers.reports[:, 1], (truth, truth))
        if answers.permanents is not None:
            permanent = answers.permanents[:, 0]
            evidence.permanents.add(permanent, truth)
            _add_neighbours(evidence.within_permanents, permanent, truth)
            self._play("permanent", permanent.astype(np.int64), truth, other, 1)
        evidence.moved += int((answers.cohorts != cohorts[:, None]).any(axis=1).sum())

    def _play(self, name: str, ones: _Counts, own: _Bits, other: _Bits, n: int) -> None:
        keys = game_keys(ones, own, other, self._params, n)
        self.evidence.keys.setdefault(name, []).append(keys)

    def _keep_returning(self, answers: Answers, values: _Counts) -> None:
        evidence, cohorts = self.evidence, answers.cohorts
        own = self._truth.bits(values, cohorts[:, 0])
        truths = {"value": self._truth.bits(values ^ 1, cohorts[:, 2])}
        if cohorts.shape[1] > 3:
            truths["metric"] = self._truth.bits(values, cohorts[:, 3])
        evidence.moved += int((cohorts[:, :3] != cohorts[:, :1]).any(axis=1).sum())
        evidence.again.add(answers.reports[:, 0], answers.reports[:, 1], (own, own))
        kinds = {"report": answers.reports}
        if answers.permanents is not None:
            kinds["permanent"] = answers.permanents
            changed = answers.permanents[:, 0] != answers.permanents[:, 1]
            evidence.returned += len(values)
            evidence.redrawn += int(changed.any(axis=1).sum())
        for at, (what, truth) in enumerate(truths.items(), start=2):
            alike = (own == truth).all(axis=1)
            # Values with the same bits in a cohort share their response, as they should.
            asked = ~alike if what == "value" else np.ones_like(alike)
            for kind, shown in kinds.items():
                everyone, same = evidence.other.setdefault((what, kind), (Matches(), Matches()))
                for matches, rows in ((everyone, asked), (same, asked & alike)):
                    matches.add(shown[rows, 0], shown[rows, at], (own[rows], truth[rows]))


def _permanents(shown: list[Shown], params: Params, shape: tuple[int, ...]) -> _Bits | None:
    responses = [each.permanent for each in shown]
    known = [response for response in responses if response is not None]
    return unpack(b"".join(known), params).reshape(shape) if len(known) == len(shown) else None


def _add_neighbours(matches: Matches, shown: _Bits, truth: _Bits) -> None:
    """Compare bits 0 and 1, 2 and 3, ... of each showing: pairs without a common bit."""
    even = shown.shape[1] // 2 * 2
    first, second = slice(0, even, 2), slice(1, even, 2)
    matches.add(shown[:, first], shown[:, second], (truth[:, first], truth[:, second]))
