"""Sources of the candidates of a query: the registry, an uploaded list, or the query itself.

`contents` returns bytes that change with the candidates, for the key of the result; they are empty
if the source cannot be read. `read` returns the candidates, or raises DecodeError or NotFoundError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rappor.base.errors import DecodeError, FileError
from rappor.registry.metric import Metric
from rappor_server.base.errors import NotFoundError
from rappor_server.queries.candidate_lists import CandidateLists

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesFile:
    """The file of candidates that a metric of the registry names; `name` is the registry's own."""

    metric: str
    name: str
    path: Path

    def contents(self) -> bytes:
        """Return the bytes of the file."""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def read(self, normalize: str) -> Candidates:
        """Read the file; the error does not show its folder."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            raise _unreadable(f"{self.metric}: its candidates file {self.name}", error) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedCandidates:
    """Candidates that a metric's entry in the registry lists, or the body of a request."""

    strings: tuple[str, ...]

    def contents(self) -> bytes:
        """Return the strings, one a line."""
        return "\n".join(self.strings).encode()

    def read(self, normalize: str) -> Candidates:
        """Return the strings."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        return Candidates.from_list(self.strings, normalize=normalize)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedList:
    """A list that an analyst has uploaded for a metric; None in place of a file that is gone."""

    metric: str
    digest: str
    path: Path | None = field(repr=False)

    def contents(self) -> bytes:
        """Return the digest: a list never changes."""
        return self.digest.encode()

    def read(self, normalize: str) -> Candidates:
        """Read the list."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        if self.path is None:
            raise NotFoundError(f"{self.metric} has no list {self.digest[:12]}: upload it again")
        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            raise _unreadable("the list", error) from None


CandidateSource = CandidatesFile | StatedCandidates | UploadedList


def _unreadable(what: str, error: FileError) -> DecodeError:
    line = "" if error.line is None else f"line {error.line}: "
    return DecodeError(f"{what} cannot be read: {line}{error.reason}")


def registry_candidates(
    metric: Metric, *, registry: str
) -> CandidatesFile | StatedCandidates | None:
    """Return the list of a metric's entry, or the file that the entry names; None without both."""
    if metric.candidates is None:
        return None
    if not isinstance(metric.candidates, str):
        return StatedCandidates(strings=metric.candidates)
    path = Path(registry).parent / metric.candidates
    return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)


def find_candidates(
    metric: Metric, digest: str, *, registry: str, lists: CandidateLists
) -> CandidateSource | None:
    """Return the list of a digest; else the registry's candidates, else the newest list."""
    if not digest and (own := registry_candidates(metric, registry=registry)) is not None:
        return own
    chosen = digest or lists.newest(metric.name)
    if chosen is None:
        return None
    return UploadedList(metric=metric.name, digest=chosen, path=lists.find(metric.name, chosen))
