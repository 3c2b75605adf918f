"""Client for a device: records values of a program as noisy reports and sends them.

    from rappor_client import Client

    with Client.open("~/.local/share/myapp/telemetry", registry="metrics.toml",
                     collector="https://telemetry.example.org", consent=True) as client:
        client.record("search_engine", "duckduckgo")

The package contains everything that must be right on a device for the privacy guarantee to hold:
the secret, the memoized responses, the reserved budget, the spool and consent. `rappor/README.md`
has a map of its folders.

A public name is imported at its first use. So the pytest plugin, which is in this package and which
pytest loads in every run, loads nothing else of it.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
