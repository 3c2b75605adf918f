"""Program that sends uploads without a pause until its standard input ends.

Each upload has one report whose bits are the number of the upload, so the sums of the collector
show which uploads were counted. An upload without a response is sent again with the same bytes. In
the end the program prints JSON:

    acknowledged   numbers of the uploads that the collector has accepted
    open           number and body of the uploads that had no response yet
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from typing import Any

from collectors import build_report, build_upload

N_THREADS = 8
"""Number of senders, so that uploads of several connections come into one batch."""

N_COHORTS = 4
"""Number of cohorts that the uploads use in turn, so that a merge writes several counters. The
metric of the tests must have at least as many cohorts."""


class Sender(threading.Thread):
    """Thread that sends uploads over one connection. It reconnects if the connection breaks.

    The thread with index i sends the numbers i + `N_THREADS`, i + 2 `N_THREADS` and so on, so no
    two threads send the same number.
    """

    def __init__(self, port: int, index: int, stop: threading.Event) -> None:
        super().__init__()
        self._port = port
        self._number = index  # number of the newest upload; none has been sent yet
        self._stop_sending = stop
        self.acknowledged: list[int] = []
        self.open: tuple[int, bytes] | None = None

    def run(self) -> None:
        """Send uploads until the event is set."""
        connection: Any = None
        while not self._stop_sending.is_set():
            if self.open is None:
                self._number += N_THREADS
                cohort = self._number % N_COHORTS
                body = build_upload(build_report(bits=self._number, cohort=cohort))
                self.open = (self._number, body)
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self._port, 5)
                if self._send(connection, self.open[1]):
                    self.acknowledged.append(self.open[0])
                    self.open = None
            except (OSError, http.client.HTTPException):
                connection = None
                self._stop_sending.wait(0.02)

    @staticmethod
    def _send(connection: http.client.HTTPConnection, body: bytes) -> bool:
        """Send an upload, and return whether the collector has accepted its report."""
        connection.request("POST", "/v1/reports", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        document = json.loads(response.read())
        return response.status == 200 and document == {"reports": [{"status": "accepted"}]}


def main(port: int) -> None:
    """Send until standard input ends; print the uploads that were acknowledged or are open."""
    stop = threading.Event()
    senders = [Sender(port, i, stop) for i in range(N_THREADS)]
    for sender in senders:
        sender.start()
    sys.stdin.read()
    stop.set()
    for sender in senders:
        sender.join()
    document = {
        "acknowledged": [n for sender in senders for n in sender.acknowledged],
        "open": [[s.open[0], s.open[1].decode()] for s in senders if s.open is not None],
    }
    sys.stdout.write(json.dumps(document))


if __name__ == "__main__":
    main(int(sys.argv[1]))
