"""What developers see at once while they build a device into a program: example reports.

They are made under a secret that is thrown away and go to the collector's debug door, which shows
them and counts none. Of what is recorded this module is told the metric's name, never the value.
"""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from typing import Final

from rappor.encode import encode_value
from rappor.ground.threads import begin
from rappor.protocol.encodings import encoding_of, parse_value
from rappor.protocol.randomizer import SECRET_BYTES, Secret
from rappor.protocol.wire import Upload
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry
from rappor_client.folder.failures import warn
from rappor_client.network.transport import Answer, Transport, UploadError

_MOST_THREADS: Final = 4
_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
_TEXT: Final = "example.org"


class DebugDoor:
    """Sends an example of each metric that is recorded, and logs what becomes of it."""

    def __init__(self, registry: Registry, transport: Transport) -> None:
        self._registry = registry.in_segment({})
        self._transport = transport
        self._secret = Secret(os.urandom(SECRET_BYTES))
        self._threads: list[threading.Thread] = []  # no lock: a child of a fork has no threads
        self._is_closed = False

    def show(self, name: str) -> None:
        """Send examples of a metric, and of what is answered together with it, in a thread.

        Where some are under way, further ones are dropped.
        """
        self._threads = [each for each in self._threads if each.is_alive()]
        if self._is_closed or len(self._threads) >= _MOST_THREADS:
            return
        thread = threading.Thread(target=self._send, args=(name,), daemon=True)
        try:
            begin(thread)
        except RuntimeError:  # no thread is to be had
            return
        self._threads.append(thread)

    def close(self, *, patience: float = _CLOSE_SECONDS) -> None:
        """Send nothing more; wait some seconds for what is under way, and sever the rest."""
        self._is_closed = patience <= 0
        deadline = time.monotonic() + patience
        for each in self._threads:
            each.join(max(deadline - time.monotonic(), 0.0))
        self._is_closed = True
        self._transport.close()

    def _send(self, name: str) -> None:
        for each in self._registry.together(name):
            told = "" if self._is_closed else self._told(self._registry[each])
            if not self._is_closed:
                warn("debug: an example of %s: %s", each, told)

    def _told(self, metric: Metric) -> str:
        """Send an example and say in words what became of it."""
        try:
            answer = self._transport.send(self._example(metric), timeout=_SECONDS)
        except UploadError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
            return type(error).__name__
        return _words(answer)

    def _example(self, metric: Metric) -> bytes:
        values = (first for first, _ in encoding_of(metric.params).contrasts)
        value = parse_value(metric.params, next(values, _TEXT))
        epoch = metric.epoch_at(datetime.datetime.now(datetime.UTC).date())
        report = encode_value(self._secret, metric, value, epoch=epoch).report
        return Upload(id=Upload.new_id(), reports=(report,)).to_json()


def _words(answer: Answer) -> str:
    """Read what the door says of one report."""
    try:
        (entry,) = json.loads(answer.body)["reports"]
        return f"{entry['status']} {entry.get('reason', '')}".rstrip()
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"the collector answered with status {answer.status}"
