"""Queries of an audit: which devices receive which values, and how often.

There are five kinds of queries:

- New devices, the trials: each receives a random value of a pair, once or a few times.
- Returning devices: each receives the same value twice, then the other value of the pair, then a
  second metric.
- Long-running devices: each receives one value 64 times in one run, and once after a restart.
- Independent devices: all receive the same values.
- Extra values, outside the pairs: new devices receive each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rappor.auditing.encoder_under_test import EncoderUnderTest, Request
from rappor.auditing.evidence import (
    Evidence,
    Occasion,
    ResponseBatch,
    Stage,
)
from rappor.auditing.lower_bound import compute_game_keys
from rappor.auditing.pairs import TrueBits, unpack
from rappor.auditing.reference_encoder import SECOND_METRIC, Response
from rappor.base.errors import ReportError
from rappor.base.progress import Progress
from rappor.counts.arrays import Booleans, Integers
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES
from rappor.simulation.keystream import Keystream

_MAX_BLOCK_BITS: Final = 1 << 22
"""Largest number of bits of responses in memory: one byte each, so 4 MB in each array."""

REPORTS_PER_RUN: Final = 64
"""Number of reports that a long-running device makes in one run."""

_MAX_BLOCK_DEVICES: Final = 1 << 14
"""Largest number of devices in a block.

The reference encoder takes one or two seconds for a block.
"""


class QuerySession:
    """Sends values to the encoder under test and adds its responses to the evidence."""

    def __init__(
        self,
        encoder: EncoderUnderTest,
        params: Params,
        metric: str,
        truth: TrueBits,
        others: TrueBits,
        rng: Keystream,
    ) -> None:
        """Store the encoder, the values and the random generator of the auditor.

        `truth` contains the values of the pairs, `others` the extra values.
        """
        self._encoder, self._params, self._metric = encoder, params, metric
        self._truth, self._others, self._rng = truth, others, rng
        n_values = len(truth.values) + len(others.values)
        self.evidence = Evidence(params, n_values, rng.spawn(1).generator())

    def query_trials(self, trials: int, *, n_reports: int, progress: Progress) -> None:
        """Query new devices: `n_reports` times each if repeated queries are cheap, else once."""
        repeats = (
            n_reports
            if self._encoder.supports_secrets and self._encoder.supports_cheap_repeats
            else 1
        )
        for n in self._blocks("asking new devices", trials, repeats, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=repeats > 1), self._draw_values(n)
            requests = self._create_requests(secrets, self._metric, values)
            self._record_trials(self._query([requests] * repeats), values)

    def query_extra_values(self, devices: int, *, progress: Progress) -> None:
        """Query new devices for one extra value each."""
        texts = self._others.values
        for n in self._blocks("asking about other values", devices, 1, progress):
            secrets, values = (
                self._draw_secrets(n, reuse_devices=False),
                self._draw_values(n, len(texts)),
            )
            requests = self._create_requests(secrets, self._metric, values, texts)
            (answers,) = self._query([requests])
            indices = values + len(self._truth.values)
            self._record_bits(answers, self._others.bits(values, answers.cohorts), indices)

    def query_spellings(self, devices: int, spellings: TrueBits, *, progress: Progress) -> None:
        """Query devices for two equivalent spellings of a value, from the pairs in `spellings`."""
        for n in self._blocks("asking about spellings", devices, 2, progress):
            secrets = self._draw_secrets(n, reuse_devices=True)
            values = self._draw_values(n, len(spellings.values))
            rounds = [
                self._create_requests(secrets, self._metric, each, spellings.values)
                for each in (values, values ^ 1)
            ]
            answers = self._query(rounds)
            truth = spellings.bits(values, answers[0].cohorts)
            self._record_repeats("in another spelling", answers, truth)

    def query_independent_devices(
        self, devices: int, n_values: int, *, progress: Progress
    ) -> list[ResponseBatch]:
        """Query new devices, all for the same values, and return one batch for each value.

        If the encoder cannot repeat a device cheaply, only one value is queried.
        """
        reuse_devices = self._encoder.supports_secrets and self._encoder.supports_cheap_repeats
        n_values = min(n_values, len(self._truth.values)) if reuse_devices else 1
        blocks = []
        for n in self._blocks("comparing devices", devices, n_values, progress):
            secrets = self._draw_secrets(n, reuse_devices=reuse_devices)
            blocks.append(
                self._query(
                    [
                        self._create_requests(secrets, self._metric, np.full(n, value))
                        for value in range(n_values)
                    ]
                )
            )
        return [_join_batches(answers) for answers in zip(*blocks, strict=True)]

    def query_single_device(
        self, n_reports: int, *, progress: Progress
    ) -> tuple[Booleans, Booleans | None]:
        """Query one device for many reports; return the reports and their permanent responses."""
        secret = (
            self._draw_secrets(1, reuse_devices=True) if self._encoder.supports_secrets else [b""]
        )
        blocks = []
        for n in self._blocks("asking one device", n_reports, 1, progress):
            requests = self._create_requests(secret * n, self._metric, np.zeros(n, dtype=np.int64))
            blocks += self._query([requests])
        answers = _join_batches(blocks)
        # With f = 0 the permanent response equals the true bits, even if the encoder does not
        # reveal it.
        if self._params.f == 0:
            return answers.reports, self._truth.bits(np.zeros(n_reports, int), answers.cohorts)
        return answers.reports, answers.permanents

    def query_long_running(self, devices: int, *, progress: Progress) -> None:
        """Query devices 64 times for one value, and once more after a restart of the encoder."""
        for n in self._blocks("asking devices often", devices, REPORTS_PER_RUN, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=True), self._draw_values(n)
            own = self._create_requests(secrets, self._metric, values)
            answers = self._query([own] * REPORTS_PER_RUN)
            (restarted,) = self._query([own], self._encoder.restart())
            truth = self._truth.bits(values, answers[0].cohorts)
            self._record_repeats("after 64 reports", answers, truth)
            self._record_repeats("after a restart", [answers[0], restarted], truth)

    def query_returning(self, devices: int, *, progress: Progress) -> None:
        """Query devices twice for a value, then for other values and for another metric.

        One of the other values is of the pair, which has one length. The other is an extra value of
        any length, and only its cohort is compared: a cohort that follows the length of the value
        may be uniform for every value.
        """
        texts = self._others.values
        for n in self._blocks("asking devices again", devices, 5, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=True), self._draw_values(n)
            own = self._create_requests(secrets, self._metric, values)
            rounds = [own, own, self._create_requests(secrets, self._metric, values ^ 1)]
            if self._encoder.supports_cheap_repeats:
                rounds.append(self._create_requests(secrets, SECOND_METRIC, values))
            if has_extra := bool(texts) and self._params.m > 1:
                extra = self._draw_values(n, len(texts))
                rounds.append(self._create_requests(secrets, self._metric, extra, texts))
            batches = self._query(rounds)
            if has_extra:
                self.evidence.changed_cohorts += _count_changed_cohorts([batches[0], batches.pop()])
            self._record_returning(batches, values)

    def _blocks(self, stage: str, n: int, repeats: int, progress: Progress) -> Iterator[int]:
        """Yield the sizes of blocks of devices that fit into memory, and report the progress."""
        size = max(1, min(_MAX_BLOCK_DEVICES, _MAX_BLOCK_BITS // (self._params.k * repeats)))
        for start in range(0, n, size):
            progress(stage, start, n)
            yield min(size, n - start)

    def _draw_secrets(self, n: int, *, reuse_devices: bool) -> list[bytes]:
        """Draw n secrets, or return empty secrets if the devices need not be repeated.

        A command with a secret starts a new process for each secret. Without secrets, one process
        serves all devices of a block.
        """
        if not reuse_devices and not self._encoder.supports_cheap_repeats:
            return [b""] * n
        stream = self._rng.coins((n, SECRET_BYTES // 4)).tobytes()
        return [
            stream[start : start + SECRET_BYTES] for start in range(0, len(stream), SECRET_BYTES)
        ]

    def _draw_values(self, n: int, n_choices: int | None = None) -> Integers:
        """Draw the indices of n values. The other value of the pair of index i is i ^ 1."""
        n_choices = len(self._truth.values) if n_choices is None else n_choices
        pick = self._rng.coins(n).astype(np.uint64) * np.uint64(n_choices)
        return (pick >> np.uint64(32)).astype(np.int64)

    def _create_requests(
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

    def _query(
        self, rounds: Sequence[Sequence[Request]], encoder: EncoderUnderTest | None = None
    ) -> list[ResponseBatch]:
        """Send all requests of a device before the next device's; return one batch a round."""
        requests = [each for device in zip(*rounds, strict=True) for each in device]
        responses = (encoder or self._encoder).respond(requests)
        return [
            self._parse_responses(responses[number :: len(rounds)]) for number in range(len(rounds))
        ]

    def _parse_responses(self, responses: Sequence[Response]) -> ResponseBatch:
        cohorts = np.array([each.cohort for each in responses], dtype=np.int64)
        if cohorts.size and not 0 <= cohorts.min() <= cohorts.max() < self._params.m:
            most = self._params.m - 1
            raise ReportError(f"cohort must be an integer in [0, {most}] in a response")
        permanents = [each.permanent for each in responses if each.permanent is not None]
        # An encoder that reveals only some permanent responses could hide the faulty ones: ignore
        # all.
        visible = len(permanents) == len(responses)
        return ResponseBatch(
            cohorts=cohorts,
            reports=unpack(b"".join(each.report for each in responses), self._params),
            permanents=unpack(b"".join(permanents), self._params) if visible else None,
        )

    def _record_trials(self, rounds: Sequence[ResponseBatch], values: Integers) -> None:
        evidence, first = self.evidence, rounds[0]
        truth = self._truth.bits(values, first.cohorts)
        other = self._truth.bits(values ^ 1, first.cohorts)
        evidence.trials += len(values)
        np.add.at(evidence.cohorts, (values & 1, first.cohorts), 1)
        self._record_bits(first, truth, values)
        self._play_game("report", [first.reports], truth, other)
        pair = values < 2  # the learned rule is for the first pair
        zero = np.where((values & 1)[:, None] == 0, truth, other)[pair]
        one = np.where((values & 1)[:, None] == 0, other, truth)[pair]
        evidence.distinguisher.add(
            first.cohorts[pair], first.reports[pair], (zero, one), values[pair] & 1
        )
        if len(rounds) > 1:
            self._record_repeats("when asked again", rounds, truth)
            self._play_game("reports", [each.reports for each in rounds], truth, other)
        if first.permanents is not None:
            self._play_game("permanent", [first.permanents], truth, other)

    def _record_bits(self, answers: ResponseBatch, truth: Booleans, values: Integers) -> None:
        """Add the first response of each device."""
        for stage, bits in answers.stages().items():
            self.evidence.stages[stage].add(bits, truth, values)
        if answers.permanents is not None:
            everyone = np.zeros(len(values), dtype=np.int64)
            self.evidence.noiseless_reports.add(answers.reports, answers.permanents, everyone)

    def _record_repeats(
        self, occasion: Occasion, rounds: Sequence[ResponseBatch], truth: Booleans
    ) -> None:
        """Add several responses of devices to one value.

        Reports are compared between first and last round.
        """
        self.evidence.changed_cohorts += _count_changed_cohorts(rounds)
        first, last = rounds[0], rounds[-1]
        counts = self.evidence.repeats[occasion]
        counts.matches.add(first.reports, last.reports, (truth, truth))
        permanents = [each.permanents for each in rounds if each.permanents is not None]
        if len(permanents) == len(rounds):
            changed = np.stack([each != permanents[0] for each in permanents])
            counts.returned += len(truth)
            counts.changed += int(changed.any(axis=(0, 2)).sum())

    def _play_game(
        self, stage: Stage, responses: Sequence[Booleans], own: Booleans, other: Booleans
    ) -> None:
        ones: Integers = np.stack(responses).sum(axis=0, dtype=np.int64)
        keys = compute_game_keys(ones, own, other, self._params, len(responses))
        self.evidence.add_game(stage, keys)

    def _record_returning(self, rounds: Sequence[ResponseBatch], values: Integers) -> None:
        first, again, of_value, *of_metric = rounds
        own = self._truth.bits(values, first.cohorts)
        self._record_repeats("when asked again", [first, again], own)
        self.evidence.changed_cohorts += _count_changed_cohorts([first, of_value])
        pairs = [("other_value", of_value, values ^ 1)]
        pairs += [("other_metric", answers, values) for answers in of_metric]
        for name, answers, value_indices in pairs:
            other, later = self._truth.bits(value_indices, answers.cohorts), answers.stages()
            # Values with the same bits in a cohort share their response, as they should.
            included = (own != other).any(axis=1) | (name == "other_metric")
            for stage, bits in first.stages().items():
                if stage in later:
                    counts = getattr(self.evidence.stages[stage], name)
                    counts.add(bits, later[stage], (own, other), included)


def _join_batches(blocks: Sequence[ResponseBatch]) -> ResponseBatch:
    """Concatenate the responses of all blocks of devices."""
    permanents = [each.permanents for each in blocks if each.permanents is not None]
    return ResponseBatch(
        cohorts=np.concatenate([each.cohorts for each in blocks]),
        reports=np.concatenate([each.reports for each in blocks]),
        permanents=np.concatenate(permanents) if len(permanents) == len(blocks) else None,
    )


def _count_changed_cohorts(rounds: Sequence[ResponseBatch]) -> int:
    """Count the devices whose cohort is not the same in all rounds."""
    cohorts = np.stack([each.cohorts for each in rounds])
    return int((cohorts != cohorts[0]).any(axis=0).sum())
