"""Requests without TLS.

Each client of httpx reads all certificates of the system first, which takes longer than most
requests of a test.
"""

from __future__ import annotations

import functools
import ssl

import httpx

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

request = functools.partial(httpx.request, verify=NO_CERTIFICATES)
get = functools.partial(httpx.get, verify=NO_CERTIFICATES)
post = functools.partial(httpx.post, verify=NO_CERTIFICATES)
delete = functools.partial(httpx.delete, verify=NO_CERTIFICATES)
options = functools.partial(httpx.options, verify=NO_CERTIFICATES)
