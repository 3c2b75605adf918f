"""`rappor-client preview`: the bytes that a value would lead to, and what they reveal."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from devices import metric_of, read_secret
from programs import run_python
from rappor_client import Outcome
from rappor_client.cli import main
from rappor_client.cli.preview import make_preview
from rappor_client.testing import Device, constant_coins
from registries import entry_of, registry_of, toml_of

from rappor import Registry
from rappor.privacy.notice import describe_belief
from rappor.protocol.wire import Report, parse_upload

DAY = datetime.date(2026, 11, 21)
TOML = toml_of(
    "search_engine",
    description='"Where a typed query goes"',
    epoch='"quarter"',
    segments='{version = ["1"]}',
) + entry_of(
    "editor",
    epoch='"quarter"',
    encoding='"onehot"',
    categories='["vim", "emacs"]',
    profile='"strict"',
)
WATCHED = """
import sys
from rappor_client.cli import main

def watch(event, arguments):
    writes = event == "open" and arguments[2] & 3
    assert not writes and not event.startswith(("socket", "os.mkdir", "sqlite3")), event

sys.addaudithook(watch)
sys.exit(main())
"""


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """The file of the registry."""
    path = tmp_path / "metrics.toml"
    path.write_text(TOML)
    return path


@pytest.mark.parametrize("name", ["search_engine", "editor"])
def test_preview_is_what_the_device_sends(name: str, rappor_device: Device) -> None:
    """With the secret and the coins of a device the bytes after the random id are equal."""
    device = rappor_device.open(Registry.loads(TOML), coins=constant_coins(1 << 30))
    assert device.record(name, "vim") == Outcome.RECORDED
    rappor_device.clock.advance(days=1)
    assert device.flush()
    secret = read_secret(rappor_device.folder)
    own, coins = device.registry, constant_coins(1 << 30)
    seen = make_preview(own, name, "vim", today=DAY, secret=secret, coins=coins)
    head = len(b'{"v":1,"id":"0123456789012345678901"')
    assert [seen.body[head:]] == [body[head:] for body in rappor_device.transport.bodies]


def test_preview_writes_nothing_and_sends_nothing(registry: Path) -> None:
    """An audit hook fails the run at the first write or connection. The report is valid."""
    words = [str(registry), "search_engine", "duckduckgo.com", "--segment", "version=1"]
    home = registry.parent
    ran = run_python("-B", "-c", WATCHED, "preview", *words, folder=home, HOME=str(home))
    assert [path.name for path in home.iterdir()] == ["metrics.toml"]
    body, _, told = ran.stdout.partition("\n\n")
    own = Registry.load(registry).in_segment({"version": "1"})
    _, (report,) = parse_upload(body.encode(), own.lookup)
    assert isinstance(report, Report)
    assert report.params == own["search_engine"].fingerprint
    assert f"One report: {describe_belief(2)}." in told
    assert f"All reports of one value in one quarter: {describe_belief(4)}." in told


def test_preview_of_a_value_that_fits_nowhere() -> None:
    """A sentence says that the report contains noise only; an empty text fits a Bloom filter."""
    seen = make_preview(registry_of(metric_of()), "page", "", today=DAY)
    assert len(seen.sentences) == 3
    theme = Registry.loads(TOML)
    assert "no place for this value" in str(make_preview(theme, "editor", "ed", today=DAY))


def test_mistakes_have_a_message(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown metric, an expired metric, a wrong text. No message repeats the value."""
    assert main(["preview", str(registry), "editer", "secretive"]) == 2
    assert "unknown metric 'editer'; did you mean 'editor'?" in capsys.readouterr().err
    registry.write_text(TOML.replace("2099", "2020"))
    assert main(["preview", str(registry), "search_engine", "secretive"]) == 2
    assert "expired on 2020-12-31" in capsys.readouterr().err
    registry.write_text(TOML.replace('"bloom"', '"boolean"'))
    assert main(["preview", str(registry), "search_engine", "secretive"]) == 2
    printed = capsys.readouterr()
    assert "a value must be one of true, false" in printed.err
    assert "secretive" not in printed.out + printed.err
