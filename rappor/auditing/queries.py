"""Queries of a black-box audit: which devices receive which values, and how often.

The input is an encoder under test and the values that the audit has chosen. The output is the
counters in `Evidence`, which `rappor.auditing.probabilities` and `rappor.auditing.lower_bound` turn
into checks. This module has no check.

Words of this module:

- A *request* is one secret, one metric and one value. A *response* is the device's cohort, its
  report and, if the encoder reveals it, its permanent response.
- A *device* is a secret. Two requests with one secret reach the same device. An encoder without
  secrets meets a new device in every request.
- A *pair* is two values whose bits differ as much as the encoding allows. Value indices 2i and
  2i + 1 are pair i, so `index ^ 1` is the other value of the pair.
- A *round* is one request to each device of a block. `batches[r]` has the responses of round r.
- A *game* (`rappor.auditing.lower_bound`): an observer knows both values of a pair, sees responses
  of a device, and names the device's value or passes. There are three games: with one report, with
  several reports, and with the permanent response.
- A *game key* is an integer. It contains everything in a device's responses that the observer's
  rule reads: how many bits only one of the two values sets, and how many of these bits are 1. A
  trial of a game gives two keys: of the device's value, and of the other value.

The queries, and the faults that they can show:

    query                 devices            requests to a device            shows
    trials                new                1 or n_reports of one value     loss, noise of each bit
    extra values          new                1 of a value outside pairs      special treatment
    returning devices     known by a secret  2 of one value, then others     shared, redrawn noise
    long-running devices  known by a secret  64, then 1 after a restart      noise that changes
    spellings             known by a secret  1 of each of two spellings      missing normalization
    independent devices   new                the same values for all         shared secrets
    single device         one                many of one value               dependent fresh coins
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
"""Largest number of bits of the responses to one block of devices.

The limit bounds memory: numpy stores a bit as a byte, so each array of a block takes at most 4 MB.
"""

REPORTS_PER_RUN: Final = 64
"""Number of reports that a long-running device makes in one run.

A device that repeats its permanent response only for a while, such as one with a small cache, shows
the fault within 64 reports. More reports take more time. The name of a check contains the number
("after 64 reports").
"""

_MAX_BLOCK_DEVICES: Final = 1 << 14
"""Largest number of devices in a block.

The reference encoder takes one or two seconds for a block, so the progress is updated that often.
"""


class QuerySession:
    """Sends requests to the encoder under test and adds its responses to `evidence`."""

    def __init__(
        self,
        encoder: EncoderUnderTest,
        params: Params,
        metric: str,
        truth: TrueBits,
        extra: TrueBits,
        rng: Keystream,
    ) -> None:
        """Store the encoder, the values and the random generator of the auditor.

        `truth` contains the values of the pairs, `extra` the values outside the pairs. The counters
        by value number the pairs first and the extra values after them.
        """
        self._encoder, self._params, self._metric = encoder, params, metric
        self._truth, self._extra, self._rng = truth, extra, rng
        n_values = len(truth.values) + len(extra.values)
        self.evidence = Evidence(params, n_values, rng.spawn(1).generator())

    def query_trials(self, trials: int, *, n_reports: int, progress: Progress) -> None:
        """Query `trials` new devices for one value of a pair each.

        Each device gives `n_reports` reports of its value if repeated requests are cheap, else one.
        """
        can_repeat = self._encoder.supports_secrets and self._encoder.supports_cheap_repeats
        repeats = n_reports if can_repeat else 1
        for n in self._yield_block_sizes("asking new devices", trials, repeats, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=repeats > 1), self._draw_values(n)
            requests = self._create_requests(secrets, self._metric, values)
            self._record_trials(self._query([requests] * repeats), values)

    def query_extra_values(self, devices: int, *, progress: Progress) -> None:
        """Query new devices for one extra value each."""
        texts = self._extra.values
        for n in self._yield_block_sizes("asking about other values", devices, 1, progress):
            secrets, values = (
                self._draw_secrets(n, reuse_devices=False),
                self._draw_values(n, len(texts)),
            )
            requests = self._create_requests(secrets, self._metric, values, texts)
            (batch,) = self._query([requests])
            # The counters by value contain the values of the pairs first.
            indices = values + len(self._truth.values)
            self._record_bits(batch, self._extra.bits(values, batch.cohorts), indices)

    def query_spellings(self, devices: int, spellings: TrueBits, *, progress: Progress) -> None:
        """Query devices for two spellings of a value, which the normalizer makes equal.

        `spellings` has the two spellings of a value at the indices 2i and 2i + 1. A correct device
        repeats its permanent response. An encoder that hashes before it normalizes does not.
        """
        for n in self._yield_block_sizes("asking about spellings", devices, 2, progress):
            secrets = self._draw_secrets(n, reuse_devices=True)
            values = self._draw_values(n, len(spellings.values))
            rounds = [
                self._create_requests(secrets, self._metric, spelled_values, spellings.values)
                for spelled_values in (values, values ^ 1)
            ]
            batches = self._query(rounds)
            truth = spellings.bits(values, batches[0].cohorts)
            self._record_repeats("in another spelling", batches, truth)

    def query_independent_devices(
        self, devices: int, n_values: int, *, progress: Progress
    ) -> list[ResponseBatch]:
        """Query new devices, all for the same values, and return one batch for each value.

        If the encoder cannot repeat a device cheaply, only the first value is queried.
        """
        reuse_devices = self._encoder.supports_secrets and self._encoder.supports_cheap_repeats
        n_values = min(n_values, len(self._truth.values)) if reuse_devices else 1
        blocks = []
        for n in self._yield_block_sizes("comparing devices", devices, n_values, progress):
            secrets = self._draw_secrets(n, reuse_devices=reuse_devices)
            blocks.append(
                self._query(
                    [
                        self._create_requests(secrets, self._metric, np.full(n, value))
                        for value in range(n_values)
                    ]
                )
            )
        return [_join_batches(batches) for batches in zip(*blocks, strict=True)]

    def query_single_device(
        self, n_reports: int, *, progress: Progress
    ) -> tuple[Booleans, Booleans | None]:
        """Query one device `n_reports` times for the first value of the first pair.

        Returns the (n_reports, k) reports and the (n_reports, k) permanent responses. The permanent
        responses are None if the encoder does not reveal them and f is not 0.
        """
        # Without secrets no request can name the device, so each request reaches a new device.
        secret = (
            self._draw_secrets(1, reuse_devices=True) if self._encoder.supports_secrets else [b""]
        )
        blocks = []
        for n in self._yield_block_sizes("asking one device", n_reports, 1, progress):
            requests = self._create_requests(secret * n, self._metric, np.zeros(n, dtype=np.int64))
            blocks += self._query([requests])
        batch = _join_batches(blocks)
        # With f = 0 the permanent response equals the true bits, even if the encoder does not
        # reveal it.
        if self._params.f == 0:
            return batch.reports, self._truth.bits(np.zeros(n_reports, int), batch.cohorts)
        return batch.reports, batch.permanents

    def query_long_running(self, devices: int, *, progress: Progress) -> None:
        """Query devices 64 times for one value, and once more after a restart of the encoder."""
        n_rounds = REPORTS_PER_RUN
        for n in self._yield_block_sizes("asking devices often", devices, n_rounds, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=True), self._draw_values(n)
            requests = self._create_requests(secrets, self._metric, values)
            batches = self._query([requests] * n_rounds)
            (restarted,) = self._query([requests], self._encoder.restart())
            truth = self._truth.bits(values, batches[0].cohorts)
            self._record_repeats("after 64 reports", batches, truth)
            self._record_repeats("after a restart", [batches[0], restarted], truth)

    def query_returning(self, devices: int, *, progress: Progress) -> None:
        """Query devices twice for a value, then for other values and for another metric.

        The rounds of each device are:

        1. and 2. its value, for the check that both reports share one permanent response.
        3. the other value of the pair, which must have independent noise.
        4. its value for `SECOND_METRIC`, which must have independent noise. This round is left out
           if a second request to a device is expensive.
        5. an extra value, of which only the cohort is compared. The two values of a pair have equal
           lengths. A cohort that wrongly depends on the length of the value can be uniform for
           every value, and only a value of another length shows the fault.
        """
        texts = self._extra.values
        for n in self._yield_block_sizes("asking devices again", devices, 5, progress):
            secrets, values = self._draw_secrets(n, reuse_devices=True), self._draw_values(n)
            requests = self._create_requests(secrets, self._metric, values)
            rounds = [requests, requests, self._create_requests(secrets, self._metric, values ^ 1)]
            if self._encoder.supports_cheap_repeats:
                rounds.append(self._create_requests(secrets, SECOND_METRIC, values))
            # With one cohort there is nothing to compare.
            if has_extra := bool(texts) and self._params.m > 1:
                extra = self._draw_values(n, len(texts))
                rounds.append(self._create_requests(secrets, self._metric, extra, texts))
            batches = self._query(rounds)
            if has_extra:
                self.evidence.changed_cohorts += _count_changed_cohorts([batches[0], batches.pop()])
            self._record_returning(batches, values)

    def _yield_block_sizes(
        self, stage: str, n: int, repeats: int, progress: Progress
    ) -> Iterator[int]:
        """Split n devices into blocks that fit into memory: yield the number of devices of each.

        `repeats` is the number of requests to each device. `progress` is called before each block
        with the name of the stage and the number of finished devices.
        """
        size = max(1, min(_MAX_BLOCK_DEVICES, _MAX_BLOCK_BITS // (self._params.k * repeats)))
        for start in range(0, n, size):
            progress(stage, start, n)
            yield min(size, n - start)

    def _draw_secrets(self, n: int, *, reuse_devices: bool) -> list[bytes]:
        """Draw n secrets, or return empty secrets if no device is queried again.

        An empty secret means: any new device. Empty secrets save time for a command, which starts
        a new process for each secret: without secrets, one process serves all devices of a block.
        """
        if not reuse_devices and not self._encoder.supports_cheap_repeats:
            return [b""] * n
        stream = self._rng.coins((n, SECRET_BYTES // 4)).tobytes()
        return [
            stream[start : start + SECRET_BYTES] for start in range(0, len(stream), SECRET_BYTES)
        ]

    def _draw_values(self, n: int, n_choices: int | None = None) -> Integers:
        """Draw n indices from 0 to `n_choices` - 1 uniformly. Default: the values of the pairs."""
        n_choices = len(self._truth.values) if n_choices is None else n_choices
        # floor(coin * n_choices / 2^32) for a 32-bit coin, in integers.
        scaled_coins = self._rng.coins(n).astype(np.uint64) * np.uint64(n_choices)
        return (scaled_coins >> np.uint64(32)).astype(np.int64)

    def _create_requests(
        self,
        secrets: Sequence[bytes],
        metric: str,
        values: Integers,
        texts: Sequence[str] | None = None,
    ) -> list[Request]:
        """Create one request for each secret. `values` are indices of `texts`.

        Without `texts` the indices refer to the values of the pairs.
        """
        texts = self._truth.values if texts is None else texts
        return [
            Request(secret, metric, texts[value])
            for secret, value in zip(secrets, values.tolist(), strict=True)
        ]

    def _query(
        self, rounds: Sequence[Sequence[Request]], encoder: EncoderUnderTest | None = None
    ) -> list[ResponseBatch]:
        """Send the requests of all rounds, and return one batch for each round.

        All requests to a device are sent one after the other, before the next device's. A command
        with secrets then starts one process for each device instead of one for each request.
        """
        requests = [request for device in zip(*rounds, strict=True) for request in device]
        responses = (encoder or self._encoder).respond(requests)
        return [
            self._parse_responses(responses[number :: len(rounds)]) for number in range(len(rounds))
        ]

    def _parse_responses(self, responses: Sequence[Response]) -> ResponseBatch:
        """Convert one response of each device to arrays.

        Raises ReportError if a cohort is outside its range.
        """
        cohorts = np.array([response.cohort for response in responses], dtype=np.int64)
        if cohorts.size and not 0 <= cohorts.min() <= cohorts.max() < self._params.m:
            last_cohort = self._params.m - 1
            raise ReportError(f"cohort must be an integer in [0, {last_cohort}] in a response")
        permanents = [
            response.permanent for response in responses if response.permanent is not None
        ]
        # Bad case: an encoder that reveals only some permanent responses could hide the faulty
        # ones. Then none is used, and the checks of permanent responses are "not seen".
        are_all_visible = len(permanents) == len(responses)
        return ResponseBatch(
            cohorts=cohorts,
            reports=unpack(b"".join(response.report for response in responses), self._params),
            permanents=unpack(b"".join(permanents), self._params) if are_all_visible else None,
        )

    def _record_trials(self, batches: Sequence[ResponseBatch], values: Integers) -> None:
        """Add a block of trials to the evidence. `values` has the index of each device's value.

        The first response of each device goes to the counters of bits, to the game of one report
        and to the learned distinguisher. All responses go to the game of several reports.
        """
        evidence, first = self.evidence, batches[0]
        truth = self._truth.bits(values, first.cohorts)
        other_truth = self._truth.bits(values ^ 1, first.cohorts)
        evidence.trials += len(values)
        np.add.at(evidence.cohorts, (values & 1, first.cohorts), 1)
        self._record_bits(first, truth, values)
        self._play_game("report", [first.reports], truth, other_truth)
        # The learned distinguisher compares the values 0 and 1, the two values of the first pair.
        is_first_pair = values < 2
        has_value_0 = (values & 1)[:, None] == 0
        bits_of_value_0 = np.where(has_value_0, truth, other_truth)[is_first_pair]
        bits_of_value_1 = np.where(has_value_0, other_truth, truth)[is_first_pair]
        evidence.distinguisher.add(
            first.cohorts[is_first_pair],
            first.reports[is_first_pair],
            (bits_of_value_0, bits_of_value_1),
            values[is_first_pair] & 1,
        )
        if len(batches) > 1:
            self._record_repeats("when asked again", batches, truth)
            self._play_game("reports", [batch.reports for batch in batches], truth, other_truth)
        if first.permanents is not None:
            self._play_game("permanent", [first.permanents], truth, other_truth)

    def _record_bits(self, batch: ResponseBatch, truth: Booleans, values: Integers) -> None:
        """Add the first response of each device to the counters of single responses.

        `truth` is (n, k), the true bits. `values` is (n,), the index of each device's value.
        """
        for stage, bits in batch.get_bits_by_stage().items():
            self.evidence.stages[stage].add(bits, truth, values)
        if batch.permanents is not None:
            # Count the reports that equal the permanent response, as if they had no fresh noise.
            # All devices are one group, because fresh noise does not depend on the value.
            one_group = np.zeros(len(values), dtype=np.int64)
            self.evidence.copied_permanents.add(batch.reports, batch.permanents, one_group)

    def _record_repeats(
        self, occasion: Occasion, batches: Sequence[ResponseBatch], truth: Booleans
    ) -> None:
        """Add several responses of each device to one value.

        The reports of the first and the last round are compared bit by bit, as binomial counts: one
        pair of reports of each device, so that the pairs are independent. Permanent responses and
        cohorts are compared over all rounds, because a correct device repeats them exactly.
        """
        self.evidence.changed_cohorts += _count_changed_cohorts(batches)
        first, last = batches[0], batches[-1]
        counts = self.evidence.repeats[occasion]
        counts.matches.add(first.reports, last.reports, (truth, truth))
        permanents = [batch.permanents for batch in batches if batch.permanents is not None]
        if len(permanents) == len(batches):
            # (rounds, devices, k): bits that differ from the first permanent response.
            is_changed = np.stack([permanent != permanents[0] for permanent in permanents])
            counts.returned += len(truth)
            counts.changed += int(is_changed.any(axis=(0, 2)).sum())

    def _play_game(
        self, stage: Stage, responses: Sequence[Booleans], truth: Booleans, other_truth: Booleans
    ) -> None:
        """Add one trial of an observer's game for each device: the two game keys of its responses.

        `stage` names the game. `responses` contains an (n, k) array for each round. `truth` and
        `other_truth` are the (n, k) true bits of the device's value and of the other value of the
        pair.
        """
        ones: Integers = np.stack(responses).sum(axis=0, dtype=np.int64)
        keys = compute_game_keys(ones, truth, other_truth, self._params, len(responses))
        self.evidence.add_game(stage, keys)

    def _record_returning(self, batches: Sequence[ResponseBatch], values: Integers) -> None:
        """Add the rounds 1 to 4 of `query_returning`. `values` has the index of each value."""
        first, repeated, of_other_value, *of_other_metric = batches
        truth = self._truth.bits(values, first.cohorts)
        self._record_repeats("when asked again", [first, repeated], truth)
        self.evidence.changed_cohorts += _count_changed_cohorts([first, of_other_value])
        comparisons = [("other_value", of_other_value, values ^ 1)]
        comparisons += [("other_metric", batch, values) for batch in of_other_metric]
        for name, later, later_values in comparisons:
            later_truth, later_stages = (
                self._truth.bits(later_values, later.cohorts),
                later.get_bits_by_stage(),
            )
            # Two values with the same bits in a cohort share one permanent response by design. So
            # these devices are left out, except for another metric, which has its own coins.
            is_included = (truth != later_truth).any(axis=1) | (name == "other_metric")
            for stage, bits in first.get_bits_by_stage().items():
                if stage in later_stages:
                    counts = getattr(self.evidence.stages[stage], name)
                    counts.add(bits, later_stages[stage], (truth, later_truth), is_included)


def _join_batches(blocks: Sequence[ResponseBatch]) -> ResponseBatch:
    """Concatenate the responses of all blocks of devices.

    Permanent responses are joined only if every block reveals its own.
    """
    permanents = [block.permanents for block in blocks if block.permanents is not None]
    return ResponseBatch(
        cohorts=np.concatenate([block.cohorts for block in blocks]),
        reports=np.concatenate([block.reports for block in blocks]),
        permanents=np.concatenate(permanents) if len(permanents) == len(blocks) else None,
    )


def _count_changed_cohorts(batches: Sequence[ResponseBatch]) -> int:
    """Count the devices whose cohort is not the same in all rounds."""
    cohorts = np.stack([batch.cohorts for batch in batches])
    return int((cohorts != cohorts[0]).any(axis=0).sum())
