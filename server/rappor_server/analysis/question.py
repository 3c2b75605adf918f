"""What a reader of estimates asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rappor.errors import DecodeError
from rappor_server.analysis.releases import Release

JSON: Final = "application/json"


CSV: Final = "text/csv"


ARROW: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about a release.

    `candidates` is a list, the path of a file, or None where the encoding has its own answers
    or only the counts are wanted (`what` is "counts", else "estimates").
    """

    what: str
    release: Release
    media_type: str
    candidates: Sequence[str] | str | None = None
    level: float = 0.05
    correction: str = "bh"
    confidence: float = 0.95
    distribution: bool = False
    everything: bool = False

    def digest(self) -> bytes:
        """Return a hash of all that the answer depends on; of a file, its bytes."""
        listed = self.candidates
        if isinstance(listed, str):
            try:
                with Path(listed).open("rb") as file:
                    listed = [hashlib.file_digest(file, "sha256").hexdigest()]
            except OSError:
                raise DecodeError("the metric's own candidates cannot be read") from None
        parts = (self.what, self.release.to_json(), self.media_type, listed, self.level)
        options = (self.correction, self.confidence, self.distribution, self.everything)
        return hashlib.sha256(msgspec.json.encode((parts, options))).digest()
