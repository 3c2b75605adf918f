"""The design of many candidates: every pass reads all and holds the best ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.candidates.murmur3 import add_rows
from rappor.candidates.sha256 import digest_texts
from rappor.candidates.texts import Texts
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.best_candidates import Best, Held
from rappor.estimator.debias import Target
from rappor.estimator.identifiability_groups import Strings
from rappor.estimator.p_values import EDGES, count_p_values, least_p_value
from rappor.estimator.screening import Screening, Tail, Task
from rappor.protocol.encodings.bloom import LAYOUT

_FEW_PATTERNS: Final = 1e-3
"""Candidates for each pattern of bits that a string can have, up to which they are streamed:
beyond, many indistinguishable ones would have to be held together."""

_KEPT: Final = 10_000_000
"""Digests that are kept between passes: 160 MB, which save four seconds a pass."""


def can_stream(target: Target, n_candidates: int) -> bool:
    """Return whether the best of these candidates can stand for all."""
    ours = all(counts.params.layout == LAYOUT for counts in target.counts)
    return ours and n_candidates <= _FEW_PATTERNS * _patterns(target)


def _patterns(target: Target) -> float:
    """Return how many patterns of bits a string can have."""
    return 1 / max(least_p_value(target), np.finfo(float).tiny)


class StreamedDesign:
    """The (n, c) matrix of zeros and ones over candidates, of which the best columns are held.

    Attributes
    ----------
    strings : those that the last pass has held, in their order.
    n_streamed, n_candidates : how many strings a pass reads; less those that are held and repeat
        others, or are in a group.
    """

    def __init__(
        self, candidates: Candidates, target: Target, keep: int, *, n_first: int = 0
    ) -> None:
        """Remember the candidates, and how many of them are held.

        The first `n_first` of the stream are always held, however small their estimates are.

        Raises DecodeError where the hash layout is foreign.
        """
        self._candidates = candidates
        self._target = target
        self._keep = keep
        self._params = [counts.params for counts in target.counts]
        if any(params.layout != LAYOUT for params in self._params):
            raise DecodeError(
                f"candidates under another layout than {LAYOUT} must be held: give a list"
            )
        self.n_terms = sum(params.m * params.h for params in self._params)
        self.n_streamed = self.n_candidates = 0
        self._words: list[NDArray[np.uint32]] = []
        self._first = np.arange(n_first)
        self._hold(self._read_first(n_first), np.array([], dtype=np.int64))

    def screen(self, task: Task, always: Integers, progress: Progress) -> Screening:
        """Estimate every candidate, and hold the best and those in `always`."""
        values = np.column_stack([task.scores, task.weights])
        # After the first pass the fit is worth an answer, which is told of those not held too.
        tail = task.tail() if len(always) else None
        best, counts = Best(self._keep), np.zeros(len(EDGES) - 1, dtype=np.int64)
        number = 0
        for texts, words in self._digested():
            estimate, std_error = self._judge(words, values, task)
            best.offer(number, texts, words, estimate / std_error)
            if tail is not None:
                counts += count_p_values(_p_values(tail, estimate, std_error))
            number += len(texts)
            progress("screening candidates", number, self.n_streamed or None)
        self._check(number)
        held = best.close()
        stay = np.union1d(always, self._first)
        before = self._held.take(np.flatnonzero(np.isin(self._held.index, stay)))
        missing = before.take(np.flatnonzero(~np.isin(before.index, held.index)))
        self._hold(held.and_then(missing).each_once(), always)
        self.n_candidates = number - int(self._held.copies.sum()) + self.strings.design.n_candidates
        estimate, std_error = self._judge(self._held.words, values, task)
        if tail is not None:
            places = np.searchsorted(EDGES[1:-1], _p_values(tail, estimate, std_error))
            np.subtract.at(counts, places, self._held.copies)
        rows = self.strings.first
        return Screening(
            index=self._held.index[rows],
            estimate=estimate[rows],
            std_error=std_error[rows],
            others=None if tail is None else counts,
            least=0.0 if tail is None else float(tail(np.array([best.least]))[0]),
        )

    def _read_first(self, n: int) -> Held:
        """Return the first n candidates of the stream."""
        held, number = Held.none(), 0
        if n == 0:
            return held
        for texts, words in self._digested():
            block = Held.of(number, texts, words, np.zeros(len(texts)))
            held = held.and_then(block.take(np.arange(min(len(texts), n - number))))
            number += len(texts)
            if number >= n:
                break
        return held

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of candidates that are held, by their numbers in the stream."""
        return self.strings.design.columns(
            np.searchsorted(self._held.index[self.strings.first], chosen)
        )

    def _digested(self) -> Iterator[tuple[Texts, NDArray[np.uint32]]]:
        """Read all candidates with their digests; those of the first are kept for other passes."""
        for number, (texts, words) in enumerate(self._candidates.digested()):
            if words is None and number < len(self._words):
                words = self._words[number]  # noqa: PLW2901
            if words is None or len(words) != len(texts):
                words = digest_texts(texts)  # noqa: PLW2901
                if number == len(self._words) and sum(map(len, self._words)) < _KEPT:
                    self._words.append(words)
            yield texts, words

    def _judge(
        self, words: NDArray[np.uint32], values: Floats, task: Task
    ) -> tuple[Floats, Floats]:
        """Estimate strings by their words, (b, 4)."""
        sums = np.zeros((len(words), 2))
        start = 0
        for params in self._params:
            stop = start + params.m * params.k
            add_rows(words, params, values[start:stop], sums)
            start = stop
        return task.judge(sums[:, 0], sums[:, 1])

    def _hold(self, held: Held, always: Integers) -> None:
        """Hold these; of a group of indistinguishable ones, one of `always` stands for it."""
        self._held = held
        kept = Candidates(
            Texts.of(held.strings.tolist()),
            normalize=self._candidates.normalize,
            words=held.words,
        )
        self.strings = Strings(
            kept, self._target, stands_back=lambda place: held.index[place] not in always
        )

    def _check(self, number: int) -> None:
        """Refuse a stream that changes, and one whose strings can hardly be distinguished."""
        if self.n_streamed not in (0, number):
            raise DecodeError(
                f"candidates must be the same in every pass, got {self.n_streamed:,} and then "
                f"{number:,} from {self._candidates.name}"
            )
        self.n_streamed = number
        if not can_stream(self._target, number):
            raise DecodeError(
                f"{number:,} candidates have {_patterns(self._target):,.0f} patterns of bits in "
                "these cohorts: too many cannot be distinguished: ask about fewer, or collect "
                "with more cohorts"
            )


def _p_values(tail: Tail, estimate: Floats, std_error: Floats) -> Floats:
    """Return p-values; nothing speaks for a candidate about which the counts say nothing."""
    return np.where(np.isfinite(std_error), tail(estimate / std_error), 1.0)
