"""The functions of httpx for requests without TLS, which start faster.

By default httpx reads all certificates of the system for each request. Reading them takes longer
than most requests of a test, and a collector on this machine has no certificate.
"""

from __future__ import annotations

import functools
import ssl

import httpx

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Context that contains no certificate. A request with TLS fails."""

request = functools.partial(httpx.request, verify=NO_CERTIFICATES)
get = functools.partial(httpx.get, verify=NO_CERTIFICATES)
post = functools.partial(httpx.post, verify=NO_CERTIFICATES)
delete = functools.partial(httpx.delete, verify=NO_CERTIFICATES)
options = functools.partial(httpx.options, verify=NO_CERTIFICATES)
