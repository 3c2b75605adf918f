"""The one small state of a device: its secret, what it has answered for, what it has reserved.

It is a value: whoever changes it makes another one, and `budget/identity` keeps it on the disk. The
bytes of the secret are in no attribute that shows them.
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
from rappor_client.budget.reservation import Reserved
from rappor_client.budget.scopes import Key, Scope
from rappor_client.folder.copies import Sealed

_MARK_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a device must not forget.

    `mark` is a keyed name of the secret, which tells nothing of it. Without a secret the identity
    has ended.
    """

    secret: Secret | None
    sealed: Sealed = field(compare=False)
    mark: bytes
    scopes: Mapping[Key, Scope] = field(default_factory=dict, repr=False)
    reserved: Reserved = field(default_factory=Reserved)

    @classmethod
    def of(cls, sealed: Sealed, **given: Any) -> Self:
        """Return the state of a secret; of no bytes, that of an identity that has ended."""
        if not sealed.bytes:
            return cls(secret=None, sealed=sealed, mark=b"", **given)
        secret = Secret(sealed.bytes)
        return cls(secret=secret, sealed=sealed, mark=mark_of(secret), **given)

    @classmethod
    def fresh(cls, reserved: Reserved) -> Self:
        """Become a new device, where others have reserved before."""
        return cls.of(Sealed(os.urandom(SECRET_BYTES)), reserved=reserved)

    def with_scope(self, scope: Scope) -> State:
        """Return the same after a report of a scope."""
        if self.scopes.get(scope.key) == scope:
            return self
        return dataclasses.replace(self, scopes={**self.scopes, scope.key: scope})

    def with_reserved(self, reserved: Reserved) -> State:
        """Return the same with something more reserved."""
        return self if reserved is self.reserved else dataclasses.replace(self, reserved=reserved)

    def ended(self) -> State:
        """Return the same without the secret: what was reserved."""
        return State.of(Sealed(b""), reserved=self.reserved)

    def to_text(self) -> Sealed:
        """Write it as JSON."""
        params = {scope.params.fingerprint: scope.params for scope in self.scopes.values()}
        plain = {
            "params": {name: each.to_json() for name, each in params.items()},
            "scopes": [scope.to_plain() for scope in self.scopes.values()],
            **self.reserved.to_plain(),
        }
        return Sealed(self.sealed.bytes.hex().encode() + b"\n" + json.dumps(plain).encode())

    @classmethod
    def from_text(cls, text: Sealed) -> Self | None:
        """Read what `to_text` wrote; None for anything else."""
        try:
            sealed = Sealed(bytes.fromhex(text.bytes.partition(b"\n")[0].decode()))
            plain = json.loads(text.bytes.partition(b"\n")[2])
            params = {name: Params.from_json(each) for name, each in plain["params"].items()}
            scopes = [Scope.from_plain(each, params) for each in plain["scopes"]]
            known = {scope.key: scope for scope in scopes}
            return cls.of(sealed, scopes=known, reserved=Reserved.from_plain(plain))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ParamsError):
            return None


def mark_of(secret: bytes | Secret) -> bytes:
    """Return the name of a secret, which tells nothing of it."""
    return expand(secret, b"rappor-client/1/identity", _MARK_BYTES)
