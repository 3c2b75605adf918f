"""A metric as a program records it: an attribute with a type, in place of a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rappor_client.client import Client
from rappor_client.outcome import Outcome

_Value_contra = TypeVar("_Value_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Handle(Generic[_Value_contra]):
    """One metric of a client; `rappor-client handles` writes them for a whole registry."""

    client: Client
    name: str

    def record(self, value: _Value_contra) -> Outcome:
        """Record a value, as `Client.record` does."""
        return self.client.record(self.name, value)
