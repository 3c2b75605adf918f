"""Whom an audit asks about what: new devices, and devices that come back.

Trials are new devices, each with a value drawn from the pairs. Returning devices are asked about
the same value again, about another one and about another metric. Staying devices are asked many
times in one run, and once more after a restart. Other values than the pairs' are asked about once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rappor.auditing.evidence import (
    Answers,
    Evidence,
    Occasion,
    Stage,
)
from rappor.auditing.lower_bound import game_keys
from rappor.auditing.pairs import Truth, unpack
from rappor.auditing.shipped_encoder import SECOND_METRIC, Response
from rappor.auditing.subject import Request, Subject
from rappor.base.errors import ReportError
from rappor.base.progress import Progress
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

_BLOCK_BITS: Final = 1 << 22
"""Bits of responses that are looked at at a time: a byte each, they take 4 MB in each array."""

STAYED: Final = 64
"""Reports of a device that stays, in one run."""

_BLOCK: Final = 1 << 14
"""Devices that are asked at a time: the shipped encoder takes a second or two for each block."""


class Interview:
    """Asks a subject about the values of pairs and keeps the evidence."""

    def __init__(
        self,
        subject: Subject,
        params: Params,
        metric: str,
        truth: Truth,
        others: Truth,
        rng: Keystream,
    ) -> None:
        """Keep whom to ask, about what, and the auditor's own coins.

        `truth` are the values of pairs, `others` those that are asked about beside them.
        """
        self._subject, self._params, self._metric = subject, params, metric
        self._truth, self._others, self._rng = truth, others, rng
        n_values = len(truth.values) + len(others.values)
        self.evidence = Evidence(params, n_values, rng.spawn(1).generator())

    def ask_trials(self, trials: int, *, n_reports: int, progress: Progress) -> None:
        """Ask new devices, each `n_reports` times if asking one twice is cheap."""
        repeats = n_reports if self._subject.remembers and self._subject.quick else 1
        for n in self._blocks("asking new devices", trials, repeats, progress):
            secrets, values = self._secrets(n, known=repeats > 1), self._values(n)
            requests = self._requests(secrets, self._metric, values)
            self._keep_trials(self._ask([requests] * repeats), values)

    def ask_others(self, devices: int, *, progress: Progress) -> None:
        """Ask new devices about the other values, once each."""
        texts = self._others.values
        for n in self._blocks("asking about other values", devices, 1, progress):
            secrets, values = self._secrets(n, known=False), self._values(n, len(texts))
            requests = self._requests(secrets, self._metric, values, texts)
            (answers,) = self._ask([requests])
            places = values + len(self._truth.values)
            self._keep_bits(answers, self._others.bits(values, answers.cohorts), places)

    def ask_spellings(self, devices: int, spellings: Truth, *, progress: Progress) -> None:
        """Ask devices about a value and about another spelling of it, in pairs of `spellings`."""
        for n in self._blocks("asking about spellings", devices, 2, progress):
            secrets = self._secrets(n, known=True)
            values = self._values(n, len(spellings.values))
            rounds = [
                self._requests(secrets, self._metric, each, spellings.values)
                for each in (values, values ^ 1)
            ]
            answers = self._ask(rounds)
            truth = spellings.bits(values, answers[0].cohorts)
            self._keep_repeats("in another spelling", answers, truth)

    def ask_strangers(self, devices: int, n_values: int, *, progress: Progress) -> list[Answers]:
        """Ask new devices all about the same values, and return the answers by value.

        A subject whose devices cannot be known again is asked about one value.
        """
        known = self._subject.remembers and self._subject.quick
        n_values = min(n_values, len(self._truth.values)) if known else 1
        blocks = []
        for n in self._blocks("comparing devices", devices, n_values, progress):
            secrets = self._secrets(n, known=known)
            blocks.append(
                self._ask(
                    [
                        self._requests(secrets, self._metric, np.full(n, value))
                        for value in range(n_values)
                    ]
                )
            )
        return [_joined(answers) for answers in zip(*blocks, strict=True)]

    def ask_one(self, n_reports: int, *, progress: Progress) -> tuple[Booleans, Booleans | None]:
        """Ask one device for many reports; return them and the permanent response behind each."""
        secret = self._secrets(1, known=True) if self._subject.remembers else [b""]
        blocks = []
        for n in self._blocks("asking one device", n_reports, 1, progress):
            requests = self._requests(secret * n, self._metric, np.zeros(n, dtype=np.int64))
            blocks += self._ask([requests])
        answers = _joined(blocks)
        if self._params.f == 0:
            return answers.reports, self._truth.bits(np.zeros(n_reports, int), answers.cohorts)
        return answers.reports, answers.permanents

    def ask_staying(self, devices: int, *, progress: Progress) -> None:
        """Ask devices 64 times about a value, and once more after a restart of the subject."""
        for n in self._blocks("asking devices often", devices, STAYED, progress):
            secrets, values = self._secrets(n, known=True), self._values(n)
            own = self._requests(secrets, self._metric, values)
            answers = self._ask([own] * STAYED)
            (restarted,) = self._ask([own], self._subject.restart())
            truth = self._truth.bits(values, answers[0].cohorts)
            self._keep_repeats("after 64 reports", answers, truth)
            self._keep_repeats("after a restart", [answers[0], restarted], truth)

    def ask_returning(self, devices: int, *, progress: Progress) -> None:
        """Ask devices twice about a value, then about another one and another metric."""
        for n in self._blocks("asking devices again", devices, 4, progress):
            secrets, values = self._secrets(n, known=True), self._values(n)
            own = self._requests(secrets, self._metric, values)
            rounds = [own, own, self._requests(secrets, self._metric, values ^ 1)]
            if self._subject.quick:
                rounds.append(self._requests(secrets, SECOND_METRIC, values))
            self._keep_returning(self._ask(rounds), values)

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

    def _values(self, n: int, among: int | None = None) -> Integers:
        """Draw the positions of n values; the other one of its pair is position ^ 1."""
        among = len(self._truth.values) if among is None else among
        pick = self._rng.coins(n).astype(np.uint64) * np.uint64(among)
        return (pick >> np.uint64(32)).astype(np.int64)

    def _requests(
        self,
        secrets: Sequence[bytes],
        metric: str,
        values: Integers,
        texts: Sequence[str] | None = None,
    ) -> list[Request]:
        texts = self._truth.values if texts is None else texts
        return [
            Request(secret, metric, texts[value])
            for secret, value in zip(secrets, values.tolist(), strict=True)
        ]

    def _ask(
        self, rounds: Sequence[Sequence[Request]], subject: Subject | None = None
    ) -> list[Answers]:
        """Ask each device in all rounds before the next device, and return the answers by round."""
        requests = [each for device in zip(*rounds, strict=True) for each in device]
        responses = (subject or self._subject).respond(requests)
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
        np.add.at(evidence.cohorts, (values & 1, first.cohorts), 1)
        self._keep_bits(first, truth, values)
        self._play("report", [first.reports], truth, other)
        pair = values < 2  # the learned rule is for the first pair
        zero = np.where((values & 1)[:, None] == 0, truth, other)[pair]
        one = np.where((values & 1)[:, None] == 0, other, truth)[pair]
        evidence.lessons.add(
            first.cohorts[pair], first.reports[pair], (zero, one), values[pair] & 1
        )
        if len(rounds) > 1:
            self._keep_repeats("when asked again", rounds, truth)
            self._play("reports", [each.reports for each in rounds], truth, other)
        if first.permanents is not None:
            self._play("permanent", [first.permanents], truth, other)

    def _keep_bits(self, answers: Answers, truth: Booleans, values: Integers) -> None:
        """Keep one response of each device, none of which has been seen before."""
        for stage, bits in answers.stages().items():
            self.evidence.stages[stage].add(bits, truth, values)
        if answers.permanents is not None:
            everyone = np.zeros(len(values), dtype=np.int64)
            self.evidence.bare_reports.add(answers.reports, answers.permanents, everyone)

    def _keep_repeats(self, occasion: Occasion, rounds: Sequence[Answers], truth: Booleans) -> None:
        """Keep what devices responded about one value several times: the first and the last."""
        self.evidence.moved += _moved(rounds)
        first, last = rounds[0], rounds[-1]
        kept = self.evidence.repeats[occasion]
        kept.matches.add(first.reports, last.reports, (truth, truth))
        permanents = [each.permanents for each in rounds if each.permanents is not None]
        if len(permanents) == len(rounds):
            changed = np.stack([each != permanents[0] for each in permanents])
            kept.returned += len(truth)
            kept.changed += int(changed.any(axis=(0, 2)).sum())

    def _play(
        self, stage: Stage, responses: Sequence[Booleans], own: Booleans, other: Booleans
    ) -> None:
        ones: Integers = np.stack(responses).sum(axis=0, dtype=np.int64)
        keys = game_keys(ones, own, other, self._params, len(responses))
        self.evidence.add_game(stage, keys)

    def _keep_returning(self, rounds: Sequence[Answers], values: Integers) -> None:
        first, again, of_value, *of_metric = rounds
        own = self._truth.bits(values, first.cohorts)
        self._keep_repeats("when asked again", [first, again], own)
        self.evidence.moved += _moved([first, of_value])
        pairs = [("other_value", of_value, values ^ 1)]
        pairs += [("other_metric", answers, values) for answers in of_metric]
        for name, answers, about in pairs:
            other, later = self._truth.bits(about, answers.cohorts), answers.stages()
            # Values with the same bits in a cohort share their response, as they should.
            asked = (own != other).any(axis=1) | (name == "other_metric")
            for stage, bits in first.stages().items():
                if stage in later:
                    kept = getattr(self.evidence.stages[stage], name)
                    kept.add(bits, later[stage], (own, other), asked)


def _joined(blocks: Sequence[Answers]) -> Answers:
    """Put the answers of all blocks of devices into one."""
    permanents = [each.permanents for each in blocks if each.permanents is not None]
    return Answers(
        cohorts=np.concatenate([each.cohorts for each in blocks]),
        reports=np.concatenate([each.reports for each in blocks]),
        permanents=np.concatenate(permanents) if len(permanents) == len(blocks) else None,
    )


def _moved(rounds: Sequence[Answers]) -> int:
    """Return the number of devices that were not in one cohort in all rounds."""
    cohorts = np.stack([each.cohorts for each in rounds])
    return int((cohorts != cohorts[0]).any(axis=0).sum())
