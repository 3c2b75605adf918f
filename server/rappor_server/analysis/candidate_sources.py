"""Where the candidates of an estimate come from: the registry's file, or a saved list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rappor.ground.errors import DecodeError, FileError
from rappor.registry.metric import Metric
from rappor_server.analysis import candidate_lists
from rappor_server.analysis.candidate_lists import KeptList
from rappor_server.storage.store import Store

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates


class CandidateSource(Protocol):
    """Candidates as text, one a line."""

    def contents(self, store: Store) -> bytes:
        """Return the text, nothing if it cannot be read."""
        ...

    def read(self, store: Store, normalize: str) -> Candidates:
        """Read the candidates; DecodeError or NotFoundError where they cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesFile:
    """The file of candidates that a metric of the registry names; `name` is the registry's own."""

    metric: str
    name: str
    path: Path

    def contents(self, store: Store) -> bytes:  # noqa: ARG002 - a list that was kept needs it
        """Return the bytes of the file, none if it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def read(self, store: Store, normalize: str) -> Candidates:  # noqa: ARG002 - as above
        """Read the file; the error does not show its place on the disk."""
        from rappor.candidates.candidates import Candidates  # noqa: PLC0415

        try:
            return Candidates.from_file(self.path, normalize=normalize)
        except FileError as error:
            place = "" if error.line is None else f"line {error.line}: "
            raise DecodeError(
                f"{self.metric}: its candidates file {self.name} cannot be read: "
                f"{place}{error.reason}"
            ) from None


def candidates_file(metric: Metric, *, registry: str) -> CandidatesFile | None:
    """Return the file of candidates that a metric of a registry names, None if it names none."""
    if metric.candidates is None:
        return None
    path = Path(registry).parent / metric.candidates
    return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)


def candidate_source(
    store: Store, metric: Metric, listed: str, *, registry: str
) -> CandidateSource | None:
    """Return the list of a name; else the registry's file, else the list that was kept last."""
    if not listed and (file := candidates_file(metric, registry=registry)) is not None:
        return file
    name = listed or candidate_lists.newest(store, metric.name)
    return KeptList(metric=metric.name, name=name) if name else None
