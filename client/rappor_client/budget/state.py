"""State of a device: its secret, its scopes and its reservations.

The privacy guarantee of a device needs the three parts of the state:

    part           if it were lost
    secret         the device would draw other permanent responses for the same values
    scopes         a value that has changed would get a second permanent response in its epoch
    reservations   the budget of the year would be used twice

(A scope is one metric in one epoch under one permanent fingerprint, with its memoized permanent
response: `budget/scopes.py`. Reservations are the nats that metrics may use in a calendar year:
`budget/reservation.py`.)

A state is immutable. A method returns a changed copy, or the same object if nothing has changed.
`budget/identity.py` writes states to the disk, and its callers compare objects to find out whether
a write is necessary.

The text form of a state has two lines: the secret as hex digits, then a JSON object:

    8f0c...                                         32 bytes; empty after a withdrawal, from which
                                                    only the reservations remain
    {"params": {FINGERPRINT: PARAMETERS, ...},      parameter sets of the scopes
     "scopes": [{"metric": "page", ...}, ...],      `Scope.to_plain`
     "reserved": [[2026, "page", SCOPES, 16.0]],    `Reservations.to_plain`
     "lost": null}
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rappor.base.errors import ParamsError
from rappor.protocol.params import Params
from rappor.protocol.randomizer import SECRET_BYTES, Secret, expand
from rappor_client.budget.reservation import Reservations
from rappor_client.budget.scopes import Scope, ScopeKey
from rappor_client.folder.copies import Sealed

_ID_BYTES: Final = 8
"""Length of a secret's identifier, in bytes. The identifier only has to differ from the identifiers
of earlier secrets in the same folder. With a longer identifier, the name of the spool is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of a device.

    Attributes
    ----------
    secret
        The secret as an object from which coins are derived, None after a withdrawal. Its bytes
        cannot be read back, and its repr is hidden.
    sealed_secret
        The bytes of the secret, for `to_text`; empty after a withdrawal. Their repr is hidden, so
        no traceback with local variables shows them.
    secret_id
        Identifier of the secret, computed from the secret by a one-way function. It reveals nothing
        about the secret, so file names may contain it.
    scopes
        Scopes that have reported.
    reservations
        Reserved nats.
    """

    secret: Secret | None
    sealed_secret: Sealed = field(compare=False)
    secret_id: bytes
    scopes: Mapping[ScopeKey, Scope] = field(default_factory=dict, repr=False)
    reservations: Reservations = field(default_factory=Reservations)

    @classmethod
    def from_secret(cls, sealed_secret: Sealed, **fields: Any) -> Self:
        """Return the state with a secret, and with the other fields from `fields`.

        Empty bytes give a state without a secret, which only a withdrawal writes.
        """
        if not sealed_secret.bytes:
            return cls(secret=None, sealed_secret=sealed_secret, secret_id=b"", **fields)
        secret = Secret(sealed_secret.bytes)
        secret_id = derive_secret_id(secret)
        return cls(secret=secret, sealed_secret=sealed_secret, secret_id=secret_id, **fields)

    @classmethod
    def create(cls, reservations: Reservations) -> Self:
        """Return the state of a new device with a random secret.

        The reservations are those of earlier identities in the same folder.
        """
        return cls.from_secret(Sealed(os.urandom(SECRET_BYTES)), reservations=reservations)

    def with_scope(self, scope: Scope) -> State:
        """Return the state after a report of a scope; the same object if nothing has changed.

        The writer compares objects to decide whether it must write the state.
        """
        if self.scopes.get(scope.key) == scope:
            return self
        return dataclasses.replace(self, scopes={**self.scopes, scope.key: scope})

    def with_reservations(self, reservations: Reservations) -> State:
        """Return the state with other reservations; the same object if they are the same object."""
        if reservations is self.reservations:
            return self
        return dataclasses.replace(self, reservations=reservations)

    def without_secret(self) -> State:
        """Return the state after a withdrawal: the reservations, without secret and scopes."""
        return State.from_secret(Sealed(b""), reservations=self.reservations)

    def to_text(self) -> Sealed:
        """Return the text form, which contains the secret."""
        # Scopes of several epochs often have the same parameters, which are longer than a scope.
        params = {scope.params.fingerprint: scope.params for scope in self.scopes.values()}
        plain = {
            "params": {
                fingerprint: params_of_scope.to_json()
                for fingerprint, params_of_scope in params.items()
            },
            "scopes": [scope.to_plain() for scope in self.scopes.values()],
            **self.reservations.to_plain(),
        }
        return Sealed(self.sealed_secret.bytes.hex().encode() + b"\n" + json.dumps(plain).encode())

    @classmethod
    def from_text(cls, text: Sealed) -> Self | None:
        """Read a state that `to_text` has written; None for any other text.

        The caller has verified the checksum of the text. So another text was written by another
        version of this library.
        """
        try:
            sealed_secret = Sealed(bytes.fromhex(text.bytes.partition(b"\n")[0].decode()))
            plain = json.loads(text.bytes.partition(b"\n")[2])
            params = {
                fingerprint: Params.from_json(document)
                for fingerprint, document in plain["params"].items()
            }
            scopes = [Scope.from_plain(scope, params) for scope in plain["scopes"]]
            return cls.from_secret(
                sealed_secret,
                scopes={scope.key: scope for scope in scopes},
                reservations=Reservations.from_plain(plain),
            )
        # Another version may have other keys, other types, or numbers that no float contains. The
        # readers above let the exceptions of Python through.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ParamsError):
            return None


def derive_secret_id(secret: bytes | Secret) -> bytes:
    """Return the identifier of a secret, from which nobody can compute the secret."""
    return expand(secret, b"rappor-client/1/identity", _ID_BYTES)
