"""Requests without TLS.

Each client of httpx reads all certificates of the system first, which takes longer than most
requests of a test.
"""

from __future__ import annotations

import functools
import ssl

import httpx

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

request = functools.partial(httpx.request, verify=_NO_CERTIFICATES)
get = functools.partial(httpx.get, verify=_NO_CERTIFICATES)
post = functools.partial(httpx.post, verify=_NO_CERTIFICATES)
delete = functools.partial(httpx.delete, verify=_NO_CERTIFICATES)
options = functools.partial(httpx.options, verify=_NO_CERTIFICATES)
