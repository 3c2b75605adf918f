"""The device: what a host program embeds to record values that nobody can read back.

    from rappor_client import Client

    with Client.open("~/.local/share/myapp/telemetry", registry="metrics.toml",
                     collector="https://telemetry.example.org", consent=True) as client:
        client.record("search_engine", "duckduckgo")

The package owns what must be right on a device for the guarantee to hold: the secret, the ledger
of what was spent, the spool and consent. rappor/README.md has the map of its folders.
Nothing is imported before it is touched, so the pytest plugin beside it costs nothing.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
