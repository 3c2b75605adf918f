"""The device: what a host program embeds to record values that no one can read back.

    from rappor_client import Client

    with Client.open("~/.local/share/myapp/telemetry", registry="metrics.toml",
                     collector="https://telemetry.example.org") as client:
        client.record("search_engine", "duckduckgo")

It owns what must be right on a device for the guarantee to hold: the secret, the ledger of what
was spent, the spool, consent. Layers: facts, made <- ledger, latch, spool <- reservoir <-
delivery <- sender <- client.
"""

from __future__ import annotations

from rappor_client.client import Client
from rappor_client.errors import BudgetError, IdentityError, UploadError
from rappor_client.ledger import Caps, MetricSpent, Spent
from rappor_client.outcome import Outcome
from rappor_client.remote_params import OfferCap
from rappor_client.spool import Sent, SentReport, SpoolLimits
from rappor_client.transport import Answer, Transport

__all__ = [
    "Answer",
    "BudgetError",
    "Caps",
    "Client",
    "IdentityError",
    "MetricSpent",
    "OfferCap",
    "Outcome",
    "Sent",
    "SentReport",
    "Spent",
    "SpoolLimits",
    "Transport",
    "UploadError",
]
