"""What a reader asks the analysis for: counts as a table, or estimates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rappor.errors import DecodeError
from rappor_server.analysis.release_json import write_release
from rappor_server.analysis.releases import Release

JSON: Final = "application/json"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesFile:
    """The file of candidates that a metric of the registry names; `name` is the registry's own."""

    metric: str
    name: str
    path: Path

    def unreadable(self, reason: str) -> DecodeError:
        """Return the error that says why the file cannot be read, without its place on the disk."""
        return DecodeError(
            f"{self.metric}: its candidates file {self.name} cannot be read: {reason}"
        )

    def digest(self) -> str:
        """Return a hash of the file's bytes."""
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self.unreadable(error.strerror or type(error).__name__) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsRequest:
    """Ask for the counts of a release, of one parameter set, as CSV or Arrow."""

    release: Release
    media_type: str

    def digest(self) -> bytes:
        """Return a hash of everything that the answer depends on."""
        return _hash("counts", self.release, self.media_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """Ask how many devices hold each candidate.

    `candidates` is None where the encoding has answers of its own.
    """

    release: Release
    media_type: str
    candidates: Sequence[str] | CandidatesFile | None = None
    level: float = 0.05
    correction: str = "bh"
    confidence: float = 0.95
    distribution: bool = False
    everything: bool = False

    def digest(self) -> bytes:
        """Return a hash of everything that the answer depends on."""
        candidates = self.candidates
        listed = candidates.digest() if isinstance(candidates, CandidatesFile) else candidates
        options = (self.correction, self.confidence, self.distribution, self.everything)
        return _hash("estimates", self.release, self.media_type, listed, self.level, options)


def _hash(what: str, release: Release, *parts: object) -> bytes:
    """Hash a release and what is asked about it."""
    parted = msgspec.json.encode((what, write_release(release), parts))
    return hashlib.sha256(parted).digest()
