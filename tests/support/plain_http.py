"""The functions of httpx for requests without TLS, which start faster and wait longer.

By default httpx reads all certificates of the system for each request. Reading them takes longer
than most requests of a test, and a collector on this machine has no certificate.
"""

from __future__ import annotations

import functools
import ssl
from typing import Final

import httpx

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Context that contains no certificate. A request with TLS fails."""

TIMEOUT: Final = 60.0
"""Longest wait for a response in seconds, unless a test passes another one. The default of httpx is
5 seconds, which a collector on a busy machine may need."""

request = functools.partial(httpx.request, verify=NO_CERTIFICATES, timeout=TIMEOUT)
get = functools.partial(httpx.get, verify=NO_CERTIFICATES, timeout=TIMEOUT)
post = functools.partial(httpx.post, verify=NO_CERTIFICATES, timeout=TIMEOUT)
delete = functools.partial(httpx.delete, verify=NO_CERTIFICATES, timeout=TIMEOUT)
options = functools.partial(httpx.options, verify=NO_CERTIFICATES, timeout=TIMEOUT)
