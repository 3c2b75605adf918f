"""The device: what a host program embeds to record values that nobody can read back.

    from rappor_client import Client

    with Client.open("~/.local/share/myapp/telemetry", registry="metrics.toml",
                     collector="https://telemetry.example.org", consent=True) as client:
        client.record("search_engine", "duckduckgo")

The package owns what must be right on a device for the guarantee to hold: the secret, the ledger
of what was spent, the spool and consent. The map of its modules is in client/README.md.
"""

from __future__ import annotations

from rappor_client.client import Client
from rappor_client.errors import IdentityError, UploadError
from rappor_client.flushed import Flushed, FlushReason
from rappor_client.ledger import MetricSpent, Spent
from rappor_client.outcome import Outcome
from rappor_client.settings import Caps, SpoolLimits
from rappor_client.spool import Sent, SentReport
from rappor_client.transport import Answer, Transport
from rappor_client.withdrawal import Withdrawal

__all__ = [
    "Answer",
    "Caps",
    "Client",
    "FlushReason",
    "Flushed",
    "IdentityError",
    "MetricSpent",
    "Outcome",
    "Sent",
    "SentReport",
    "Spent",
    "SpoolLimits",
    "Transport",
    "UploadError",
    "Withdrawal",
]
