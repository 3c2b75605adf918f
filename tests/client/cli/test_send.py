"""`rappor-client send`: one report of each value, each from a new device, sent at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accepting_collector import AcceptingCollector, accepting
from rappor_client.cli import main
from registries import entry_of, toml_of

from rappor import Registry

YES = {"encoding": '"boolean"', "profile": '"strict"'}
TOML = (
    toml_of(interval='"day"')
    + entry_of("sound", **YES)
    + entry_of("old", **YES | {"expires": "2001-01-01"})
)


@pytest.fixture
def collector() -> Iterator[AcceptingCollector]:
    """A collector that accepts valid reports."""
    with accepting(Registry.loads(TOML)) as server:
        yield server


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """The file of the registry."""
    path = tmp_path / "metrics.toml"
    path.write_text(TOML)
    return path


def test_send_tries_a_collector(
    collector: AcceptingCollector, registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each value has a secret of its own, and no report waits for the end of an interval."""
    arguments = ["--registry", str(registry), "--collector", collector.url]
    assert main(["send", "a", "a", "a", *arguments, "--metric", "page"]) == 0
    assert len(collector.reports) == 3
    assert len({report.bits for report in collector.reports}) == 3
    printed = capsys.readouterr().out
    assert printed.count("page: accepted (") == 3
    assert printed.endswith("The collector counts these 3 reports as 3 more devices.\n")
    assert main(["send", "yes", *arguments, "--metric", "sound"]) == 0
    told = "The collector counts this report as one more device.\n"
    assert capsys.readouterr().out.endswith(told)
    assert main(["send", "maybe", *arguments, "--metric", "sound"]) == 2
    assert "maybe" not in capsys.readouterr().err


def test_key_comes_from_a_file(
    collector: AcceptingCollector, registry: Path, tmp_path: Path
) -> None:
    """The line end of the file is not part of the key."""
    (tmp_path / "key").write_text("sesame\n")
    arguments = ["--registry", str(registry), "--metric", "page", "--collector", collector.url]
    assert main(["send", "a", *arguments, "--key-file", str(tmp_path / "key")]) == 0
    assert collector.keys == ["Bearer sesame"]


def test_refused_report_gives_code_1(
    collector: AcceptingCollector, registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason of the collector is printed."""
    collector.registry = Registry.loads(TOML.replace("balanced", "strict"))
    arguments = ["--registry", str(registry), "--metric", "page", "--collector", collector.url]
    assert main(["send", "a", *arguments]) == 1
    assert "page: refused: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metric", "collector_given", "code", "told"),
    [
        ("pgae", "http://127.0.0.1:9", 2, "unknown metric"),
        ("page", "http://example.org", 2, "https"),
        ("page", "http://127.0.0.1:9", 1, "Not sent: the collector was not reached: "),
        (
            "old",
            "http://127.0.0.1:9",
            2,
            "metric 'old' expired on 2001-01-01",
        ),
    ],
)
def test_send_says_what_is_wrong(
    metric: str,
    collector_given: str,
    code: int,
    told: str,
    registry: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unknown or expired metric, a wrong address, a collector that does not respond."""
    words = ["send", "yes", "--registry", str(registry), "--timeout", "0.1"]
    assert main([*words, "--metric", metric, "--collector", collector_given]) == code
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
