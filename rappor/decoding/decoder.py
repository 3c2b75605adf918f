"""Decode: from counts and candidates to estimates with honest errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.counts.counts import Counts
from rappor.decoding import closed_form, diagnostics
from rappor.decoding.blas_threads import one_thread
from rappor.decoding.debias import Target, debias
from rappor.decoding.design import Design, Progress
from rappor.decoding.distribution import estimate_shares
from rappor.decoding.estimates import Estimates
from rappor.decoding.inference import Question, Raw, conclude
from rappor.decoding.selection import Selection, select
from rappor.decoding.significance import null_tail
from rappor.decoding.ties import drop_ties, find_ties, spread_ties
from rappor.errors import DecodeError
from rappor.protocol.encodings import encoding_of


def decode(
    counts: Counts | Sequence[Counts],
    candidates: Candidates | Iterable[str] | None = None,
    *,
    level: float = 0.05,
    correction: str = "bh",
    confidence: float = 0.95,
    distribution: bool = False,
    progress: Progress | None = None,
) -> Estimates:
    """Estimate how many devices hold each candidate.

    Parameters
    ----------
    counts : one collection, or several under any mixture of parameter sets.
    candidates : the strings asked about. Other encodings than Bloom answer for all their
        categories and take none.
    level : error rate of detection.
    correction : "bh" bounds the expected share of false detections [BH95]; "bonferroni"
        the chance of any.
    confidence : of the two-sided intervals.
    distribution : also answer for the whole list at once (`Estimates.share`).
    progress : called with a stage and how far it is.

    Returns
    -------
    Estimates, a row for every candidate. Deterministic.

    Raises
    ------
    DecodeError
        There are no reports or no candidates, or the collections do not go together.

    Examples
    --------
    >>> from rappor import Params, Population, decode, simulate_counts
    >>> params = Params.profile("balanced")
    >>> population = Population(["cat", "dog"], [3, 1])
    >>> counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    >>> found = decode(counts, ["cat", "dog", "emu"])
    >>> [found.candidates[i] for i in range(3) if found.detected[i]]
    ['cat', 'dog']
    """
    collections = [counts] if isinstance(counts, Counts) else list(counts)
    question = Question(level=level, correction=correction, confidence=confidence)
    target = debias(collections)
    if not all(encoding_of(collection.params).hashed for collection in collections):
        return _decode_closed(target, candidates, question, distribution=distribution)
    listed = _listed(candidates, collections)
    with one_thread():
        return _decode_bloom(
            target, listed, question, distribution=distribution, progress=progress or _silent
        )


def _silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def _listed(
    candidates: Candidates | Iterable[str] | None, collections: Sequence[Counts]
) -> Candidates:
    """Normalise candidates as the devices did."""
    normalizers = {collection.params.normalize for collection in collections}
    if len(normalizers) > 1:
        raise DecodeError(f"counts must share one normalizer, got {sorted(normalizers)}")
    normalizer = normalizers.pop()
    if not isinstance(candidates, Candidates):
        candidates = Candidates.from_list(candidates or [], normalize=normalizer)
    if candidates.normalize != normalizer:
        raise DecodeError(
            f"candidates must be normalised by {normalizer!r} as on the devices, "
            f"got {candidates.normalize!r}"
        )
    if len(candidates) == 0:
        raise DecodeError("candidates must number at least 1, got 0")
    return candidates


def _decode_bloom(
    target: Target,
    candidates: Candidates,
    question: Question,
    *,
    distribution: bool,
    progress: Progress,
) -> Estimates:
    """Decode strings: the regression."""
    params = [counts.params for counts in target.counts]
    design = Design(candidates, params)
    ties = find_ties(design, target.reports > 0, progress)
    if ties:
        design = Design(drop_ties(candidates, ties), params)
    selection = select(target, design, progress)
    tail = null_tail(target, selection.fit)
    p_value = tail.p_values(selection.estimate / selection.std_error)
    shares = estimate_shares(selection.estimate, selection.std_error) if distribution else None
    raw = Raw(
        estimate=selection.estimate,
        std_error=_with_sampling(target, selection),
        p_value=p_value,
        share=shares,
    )
    return conclude(
        candidates.strings,
        raw,
        question,
        place=spread_ties(len(candidates), ties),
        ties=ties,
        reports=target.n_reports,
        exclusive=True,
        diagnostics={
            **diagnostics.describe_cohorts(target),
            **diagnostics.describe_fit(
                target, selection.fit, selection.std_error, question.next_cut(raw.p_value)
            ),
            "selected": len(selection.chosen),
            "groups": [[candidates.strings[i] for i in group] for group in ties],
        },
    )


def _with_sampling(target: Target, selection: Selection) -> NDArray[np.float64]:
    """Add what rows of one string share: its devices' uneven spread over the cohorts.

    The rows' noise counts that spread as if each of a string's h bits had its own; it is
    common to them, so (1 - 1/h) of beta (1 - beta) / N is missing from the mean of h bits.
    """
    repeated = sum(c.n_reports * (1 - 1 / c.params.h) for c in target.counts) / target.n_reports
    share = np.clip(selection.estimate, 0.0, 1.0)
    extra = repeated * share * (1 - share) / target.n_reports
    return np.sqrt(selection.std_error**2 + extra)


def _decode_closed(
    target: Target,
    candidates: Candidates | Iterable[str] | None,
    question: Question,
    *,
    distribution: bool,
) -> Estimates:
    """Decode categories, flags, booleans and buckets: the closed form."""
    if candidates is not None:
        raise DecodeError("candidates must be left out: this encoding answers for every bit")
    params = target.counts[0].params
    estimate, std_error, p_value = closed_form.estimate_bits(target, params)
    encoding = encoding_of(params)
    names, exclusive = encoding.answers, encoding.exclusive
    share = (
        closed_form.simplex_shares(estimate, std_error) if exclusive else np.clip(estimate, 0, 1)
    )
    return conclude(
        names,
        Raw(
            estimate=estimate,
            std_error=std_error,
            p_value=p_value,
            share=share if distribution else None,
        ),
        question,
        place=np.arange(len(names)),
        ties=[],
        reports=target.n_reports,
        exclusive=exclusive,
        diagnostics=diagnostics.describe_cohorts(target),
    )
