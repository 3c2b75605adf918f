"""The debug door: developers see examples at once, and nothing of the device or its values."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from accepting_collector import AcceptingCollector, accepting
from devices import metric_of, open_device
from rappor_client import Answer, Client
from rappor_client.outbox.debug_door import DebugDoor
from rappor_client.testing import MemoryTransport
from registries import registry_of, toml_of

from rappor import Params, Registry
from rappor.protocol.encodings import encoder
from rappor.protocol.segments import Dimension
from rappor.protocol.wire import Report, parse_upload

PLAIN: Final[dict[str, Any]] = {"f": 0.0, "p": 0.0, "q": 1.0, "insecure": True}
"""Without noise: a report shows its value."""
NAMES = ("light", "dark", "grey")
VERSION = (Dimension("version", ("1", "2")),)
REGISTRY = registry_of(
    metric_of("text", Params(k=64, m=16, **PLAIN), segments=VERSION),
    metric_of("theme", Params(k=3, encoding="onehot", categories=NAMES, **PLAIN)),
    metric_of("flags", Params(k=3, encoding="flags", categories=NAMES, **PLAIN)),
    metric_of("sound", Params(k=1, encoding="boolean", **PLAIN)),
    metric_of("seconds", Params(k=3, encoding="buckets", categories=("1", "5"), **PLAIN)),
)
EXAMPLES = {"text": "example.org", "theme": "light", "flags": (), "sound": False, "seconds": 0}
VALUES = {"text": "true value", "theme": "dark", "flags": ["grey"], "sound": True, "seconds": 3}
WRONG: dict[str, object] = {name: object() for name in EXAMPLES}


@pytest.fixture
def collector() -> Iterator[AcceptingCollector]:
    """A collector that keeps whatever is posted to it."""
    with accepting(REGISTRY) as server:
        yield server


def recording(folder: Path, collector: AcceptingCollector, **chosen: object) -> Client:
    """Open a device whose program is being built; its own reports wait."""
    settings = {"registry": REGISTRY, "debug": "sesame", "collector": collector.url, **chosen}
    return open_device(folder, **{"segment": {"version": "2"}, "strict": False} | settings)


@pytest.mark.parametrize("values", [VALUES, WRONG, EXAMPLES], ids=["true", "wrong", "examples"])
def test_examples_do_not_depend_on_values(
    values: dict[str, object], tmp_path: Path, collector: AcceptingCollector
) -> None:
    """Without noise a report shows its value: it is the example, and of no listed segment."""
    for name, value in values.items():
        with recording(tmp_path, collector) as client:  # closing it waits for what is under way
            client.record(name, value)
    sent = {each.metric: each for each in collector.reports}
    assert list(sent) == list(EXAMPLES)
    assert set(collector.keys) == {"Bearer sesame"}
    for name, report in sent.items():
        params = REGISTRY.in_segment({})[name].params
        assert report.params == params.fingerprint
        assert report.bits == encoder(params).encode(EXAMPLES[name], report.cohort)


def test_device_without_consent_shows_nothing(
    tmp_path: Path, collector: AcceptingCollector
) -> None:
    """Nor one that is disabled or has withdrawn, nor a metric that the person refuses."""
    refusing = recording(tmp_path / "a", collector, opted_out=["theme"])
    assert not refusing.record("theme", "dark")
    asked = recording(tmp_path / "b", collector, consent=False)
    assert not asked.record("theme", "dark")
    withdrawn = recording(tmp_path / "c", collector)
    withdrawn.withdraw()
    assert not withdrawn.record("theme", "dark")
    (tmp_path / "d").write_text("in the way")
    disabled = recording(tmp_path / "d", collector)
    assert disabled.disabled
    assert not disabled.record("theme", "dark")
    for client in (refusing, asked, withdrawn, disabled):
        client.close()
    assert collector.reports == []


class Hanging(MemoryTransport):
    """A door that takes what comes, and answers when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def send(self, body: bytes, *, timeout: float) -> Answer:
        """Wait."""
        self.bodies.append(body)
        self.ended.wait()
        return super().send(body, timeout=timeout)

    def close(self) -> None:
        """Let everything end."""
        self.ended.set()


def test_door_that_hangs_holds_nobody_up() -> None:
    """Some examples are under way, others are dropped; none follows a withdrawal."""
    transport = Hanging()
    door = DebugDoor(REGISTRY, transport)
    for _ in range(20):
        door.show("theme")
    door.close(patience=0.0)
    assert len(transport.bodies) <= 2 * 4
    door.show("sound")
    assert not [body for body in transport.bodies if b"sound" in body]


def test_what_becomes_of_an_example_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Accepted, refused and why, or the status of something that is no door."""
    refused = {"reports": [{"status": "refused", "reason": "unknown-metric"}]}
    script = [Answer(status=200, body=json.dumps(refused).encode()), Answer(status=404), None]
    with caplog.at_level(logging.WARNING, "rappor_client"):
        for answers in ([each] for each in script):
            door = DebugDoor(REGISTRY, MemoryTransport(answers))
            door.show("theme")
            door.close()
        door = DebugDoor(REGISTRY, MemoryTransport())
        door.show("sound")
        door.close()
    assert [record.getMessage() for record in caplog.records] == [
        "debug: an example of theme: refused unknown-metric",
        "debug: an example of theme: the collector answered with status 404",
        "debug: an example of theme: the network failed, as the script says",
        "debug: an example of sound: accepted",
    ]


def test_what_is_answered_together_is_shown_together() -> None:
    """Both reports of a metric with `other`, each in an upload."""
    own = {"epoch": '"month"', "encoding": '"onehot"', "other": '"discover"'}
    text = toml_of("editor", categories='["vim", "emacs"]', **own)
    registry, transport = Registry.loads(text), MemoryTransport()
    door = DebugDoor(registry, transport)
    door.show("editor")
    door.close()
    read = [parse_upload(body, registry.lookup)[1] for body in transport.bodies]
    assert [each.metric for (each,) in read if isinstance(each, Report)] == [
        "editor",
        "editor.other",
    ]
