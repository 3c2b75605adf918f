"""`rappor-client preview`: the upload that a value would lead to, and its privacy loss.

The command runs without a device. Its registry has a metric of strings, `search_engine` with
profile "balanced", and a metric of two categories, `editor` with profile "strict".
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from devices import build_metric, read_secret
from programs import run_python
from rappor_client import Outcome
from rappor_client.cli import main
from rappor_client.cli.preview import make_preview
from rappor_client.testing import Device, constant_coins
from registries import build_registry, format_entry, format_registry

from rappor import Registry
from rappor.privacy.notice import describe_belief
from rappor.protocol.wire import Report, parse_upload

DAY = datetime.date(2026, 11, 21)
"""The day on which the clock of a `Device` begins."""
TOML = format_registry(
    "search_engine",
    description='"Where a typed query goes"',
    epoch='"quarter"',
    segments='{version = ["1"]}',
) + format_entry(
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
    # The last two bits of the flags of `open` are 0 if a file is only read.
    writes = event == "open" and arguments[2] & 3
    assert not writes and not event.startswith(("socket", "os.mkdir", "sqlite3")), event

sys.addaudithook(watch)
sys.exit(main())
"""
"""Program that runs the command and fails at the first write, folder, database or connection."""


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """The file of the registry."""
    path = tmp_path / "metrics.toml"
    path.write_text(TOML)
    return path


@pytest.mark.parametrize("name", ["search_engine", "editor"])
def test_preview_is_what_the_device_sends(name: str, rappor_device: Device) -> None:
    """A preview with the secret and the coins of a device has the bytes of the device's upload.

    Only the random id at the beginning differs.
    """
    device = rappor_device.open(Registry.loads(TOML), coins=constant_coins(1 << 30))
    assert device.record(name, "vim") == Outcome.RECORDED
    rappor_device.clock.advance(days=1)
    assert device.flush()
    secret = read_secret(rappor_device.folder)
    coins = constant_coins(1 << 30)  # the coins of the device above
    preview = make_preview(device.registry, name, "vim", today=DAY, secret=secret, coins=coins)
    head = len(b'{"v":1,"id":"0123456789012345678901"')
    assert [preview.body[head:]] == [body[head:] for body in rappor_device.transport.bodies]


def test_preview_writes_nothing_and_sends_nothing(registry: Path) -> None:
    """`preview` prints a valid report and its privacy loss, without a write or a connection.

    An audit hook would fail the run at the first write or connection.
    """
    words = [str(registry), "search_engine", "duckduckgo.com", "--segment", "version=1"]
    home = registry.parent
    process = run_python("-B", "-c", WATCHED, "preview", *words, folder=home, HOME=str(home))
    assert [path.name for path in home.iterdir()] == ["metrics.toml"]
    body, _, sentences = process.stdout.partition("\n\n")
    segment_registry = Registry.load(registry).in_segment({"version": "1"})
    _, (report,) = parse_upload(body.encode(), segment_registry.lookup)
    assert isinstance(report, Report)
    assert report.params == segment_registry["search_engine"].fingerprint
    # Profile "balanced" has epsilon_1 = 2 and epsilon_inf = 4 nats.
    assert f"One report: {describe_belief(2)}." in sentences
    assert f"All reports of one value in one quarter: {describe_belief(4)}." in sentences


def test_preview_of_a_value_that_fits_nowhere() -> None:
    """The preview of a value without a category says how the value is reported.

    An empty text has no such sentence, because a Bloom filter encodes every text.
    """
    preview = make_preview(build_registry(build_metric()), "page", "", today=DAY)
    # Two sentences about the random numbers, and two about the losses of one report and of all.
    assert len(preview.sentences) == 4
    registry = Registry.loads(TOML)
    assert "no place for this value" in str(make_preview(registry, "editor", "ed", today=DAY))
    # Generalized randomized response has a bucket for other values, so the report is no noise only.
    registry_of_once = TOML.replace('profile = "strict"', 'profile = "once"\ninterval = "epoch"')
    registry = Registry.loads(registry_of_once)
    assert "bucket for all other values" in str(make_preview(registry, "editor", "ed", today=DAY))


def test_preview_of_an_empty_set(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty text previews the report of a device without an item, as the help says.

    The report of an empty set names one bucket, as that of any other set.
    """
    entry = format_entry(
        "plugins", epoch='"quarter"', encoding='"set"', profile='"once"', interval='"epoch"'
    )
    registry.write_text(TOML + entry)
    assert main(["preview", str(registry), "plugins", ""]) == 0
    body, _, sentences = capsys.readouterr().out.partition("\n\n")
    _, (report,) = parse_upload(body.encode(), Registry.load(registry).lookup)
    assert isinstance(report, Report)
    assert int.from_bytes(report.bits, "little").bit_count() == 1
    assert "left out" not in sentences
    with pytest.raises(SystemExit):
        main(["preview", "--help"])
    assert "or '' for the empty set" in " ".join(capsys.readouterr().out.split())


def test_mistakes_have_a_message(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown metric, an expired metric and a wrong text have messages without the value.

    The changed registries let all metrics expire in 2020, and make `search_engine` a boolean.
    """
    assert main(["preview", str(registry), "editer", "secretive"]) == 2
    assert "unknown metric 'editer'; did you mean 'editor'?" in capsys.readouterr().err
    registry.write_text(TOML.replace("2099", "2020"))
    assert main(["preview", str(registry), "search_engine", "secretive"]) == 2
    assert "expired on 2020-12-31" in capsys.readouterr().err
    registry.write_text(TOML.replace('"bloom"', '"boolean"'))
    assert main(["preview", str(registry), "search_engine", "secretive"]) == 2
    captured = capsys.readouterr()
    assert "a value must be one of true, false" in captured.err
    assert "secretive" not in captured.out + captured.err
