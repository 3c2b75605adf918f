"""Where the candidates of an estimate come from: the registry's list or file, or a saved list.

A source returns its text, one candidate a line, and nothing if that cannot be read: an answer that
was kept follows from it. Reading the candidates raises DecodeError or NotFoundError instead.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from rappor.ground.errors import DecodeError, FileError
from rappor.registry.metric import Metric
from rappor_server.analysis import candidate_lists
from rappor_server.errors import NotFoundError

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesFile:
    """The file of candidates that a metric of the registry names; `name` is the registry's own."""

    metric: str
    name: str
    path: Path

    def contents(self, engine: Engine) -> bytes:  # noqa: ARG002 - a list that was kept needs it
        """Return the bytes of the file."""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def read(self, engine: Engine, normalize: str) -> Candidates:  # noqa: ARG002 - as above
        """Read the file; the error does not show its place on the disk."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            raise _unreadable(f"{self.metric}: its candidates file {self.name}", error) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryList:
    """The candidates that a metric's entry in the registry lists."""

    strings: tuple[str, ...]

    def contents(self, engine: Engine) -> bytes:  # noqa: ARG002 - a list that was kept needs it
        """Return the strings, one a line."""
        return "\n".join(self.strings).encode()

    def read(self, engine: Engine, normalize: str) -> Candidates:  # noqa: ARG002 - as above
        """Return the strings."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        return Candidates.from_list(self.strings, normalize=normalize)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptList:
    """A list of a metric that was kept under a name."""

    metric: str
    name: str

    def contents(self, engine: Engine) -> bytes:
        """Return the list as it was kept."""
        return candidate_lists.find(engine, self.metric, self.name) or b""

    def read(self, engine: Engine, normalize: str) -> Candidates:
        """Read the list."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        contents = candidate_lists.find(engine, self.metric, self.name)
        if contents is None:
            raise NotFoundError(f"{self.metric} has no list of this name")
        try:
            return Candidates.from_lines(io.BytesIO(contents), name="the list", normalize=normalize)
        except FileError as error:
            raise _unreadable("the list", error) from None


CandidateSource = CandidatesFile | EntryList | KeptList


def _unreadable(what: str, error: FileError) -> DecodeError:
    place = "" if error.line is None else f"line {error.line}: "
    return DecodeError(f"{what} cannot be read: {place}{error.reason}")


def registry_candidates(metric: Metric, *, registry: str) -> CandidatesFile | EntryList | None:
    """Return the list of a metric's entry, or the file that the entry names; None without both."""
    if metric.candidates is None:
        return None
    if not isinstance(metric.candidates, str):
        return EntryList(strings=metric.candidates)
    path = Path(registry).parent / metric.candidates
    return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)


def candidate_source(
    engine: Engine, metric: Metric, listed: str, *, registry: str
) -> CandidateSource | None:
    """Return the list of a name; else the registry's candidates, else the list kept last."""
    if not listed and (own := registry_candidates(metric, registry=registry)) is not None:
        return own
    name = listed or candidate_lists.newest(engine, metric.name)
    return KeptList(metric=metric.name, name=name) if name else None
