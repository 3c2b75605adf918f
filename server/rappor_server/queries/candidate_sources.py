"""Sources of the candidates of a query: the registry, an uploaded list, or the query itself.

| source             | candidates are in                                 | bytes for the key |
|--------------------|---------------------------------------------------|-------------------|
| `CandidatesFile`   | a file that the entry of the metric names         | the whole file    |
| `InlineCandidates` | the entry of the metric, or the body of a request | the strings       |
| `UploadedList`     | a list that an analyst has uploaded               | the list's digest |

A source is pickled with its query, and the worker process reads the candidates. Each source has two
methods:

- `read_contents` returns bytes that change with the candidates, for the key of the query
  (`query.py`). The bytes are empty if the source cannot be read. The query then runs, and fails
  with the reason.
- `read` returns the candidates in the spelling of the metric's normalizer, or raises DecodeError or
  NotFoundError.
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
    """The file of candidates that a metric's entry names.

    Attributes
    ----------
    metric : name of the metric
    name : name of the file in the registry, which messages show
    path : path of the file, which messages do not show
    """

    metric: str
    name: str
    path: Path

    def read_contents(self) -> bytes:
        """Return the bytes of the file."""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def read(self, normalize: str) -> Candidates:
        """Return the candidates of the file. An error shows its name, and not its folder."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            file = f"{self.metric}: its candidates file {self.name}"
            raise _describe_unreadable(file, error) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineCandidates:
    """Candidates in a metric's entry of the registry, or in the body of a request."""

    strings: tuple[str, ...]

    def read_contents(self) -> bytes:
        """Return the strings, one a line."""
        return "\n".join(self.strings).encode()

    def read(self, normalize: str) -> Candidates:
        """Return the candidates."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        return Candidates.from_list(self.strings, normalize=normalize)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedList:
    """A list that an analyst uploaded for a metric.

    Attributes
    ----------
    metric : name of the metric
    digest : SHA-256 of the list, in hexadecimal digits
    path : file of the list, or None if the list was deleted
    """

    metric: str
    digest: str
    path: Path | None = field(repr=False)

    def read_contents(self) -> bytes:
        """Return the digest of the list, because a list never changes."""
        return self.digest.encode()

    def read(self, normalize: str) -> Candidates:
        """Return the candidates of the list."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415 - loads the hashes

        if self.path is None:
            raise NotFoundError(f"{self.metric} has no list {self.digest[:12]}: upload it again")
        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            raise _describe_unreadable("the list", error) from None


CandidateSource = CandidatesFile | InlineCandidates | UploadedList


def _describe_unreadable(file: str, error: FileError) -> DecodeError:
    """Return the error of a file of candidates, without the path.

    Analysts read the error. A path would show them the folders of the server.
    """
    line = "" if error.line is None else f"line {error.line}: "
    return DecodeError(f"{file} cannot be read: {line}{error.reason}")


def find_registry_candidates(
    metric: Metric, *, registry: str
) -> CandidatesFile | InlineCandidates | None:
    """Return the candidates of a metric's entry, listed or in a file; None without candidates."""
    if metric.candidates is None:
        return None
    if not isinstance(metric.candidates, str):
        return InlineCandidates(strings=metric.candidates)
    path = Path(registry).parent / metric.candidates
    return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)


def find_candidates(
    metric: Metric, digest: str, *, registry: str, lists: CandidateLists
) -> CandidateSource | None:
    """Return the source of a metric's candidates, or None if the metric has no candidates.

    The first rule that applies decides:

    1. A digest is given: the uploaded list with this digest, even if it was deleted.
    2. The registry has candidates of the metric: these.
    3. The metric has uploaded lists: the newest one.

    Parameters
    ----------
    metric : the metric
    digest : digest of an uploaded list, or an empty text
    registry : path of the registry, to which the name of a file is relative
    lists : uploaded lists
    """
    if not digest:
        source = find_registry_candidates(metric, registry=registry)
        if source is not None:
            return source
    chosen = digest or lists.find_newest(metric.name)
    if chosen is None:
        return None
    return UploadedList(metric=metric.name, digest=chosen, path=lists.find(metric.name, chosen))
