"""`rappor-client send`: one report of each value, each from a new device, sent at once.

The registry has the metrics `page` of strings, `sound` of booleans, `old`, which has expired,
`pair` of tuples with two fields, and `theme` of the categories light and dark. All have profile
"balanced" or "strict".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accepting_collector import AcceptingCollector, run_accepting_collector
from rappor_client.cli import main
from registries import format_entry, format_registry
from sockets import run_handler

from rappor import Registry

BOOLEAN = {"encoding": '"boolean"', "profile": '"strict"'}
TOML = (
    format_registry(interval='"day"')
    + format_entry("sound", **BOOLEAN)
    + format_entry("old", **BOOLEAN | {"expires": "2001-01-01"})
    + format_entry("pair", fields='["site", "country"]')
    + format_entry("theme", encoding='"onehot"', profile='"strict"', categories='["light", "dark"]')
)


@pytest.fixture
def collector() -> Iterator[AcceptingCollector]:
    """A collector that accepts valid reports."""
    with run_accepting_collector(Registry.loads(TOML)) as server:
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
    """Each value has a secret of its own, and no report waits for the end of an interval.

    A device would send one report of three equal values on a day. Devices with different secrets
    send three reports with different bits. A value of the wrong kind is not printed.
    """
    arguments = ["--registry", str(registry), "--collector", collector.url]
    assert main(["send", "a", "a", "a", *arguments, "--metric", "page"]) == 0
    assert len(collector.reports) == 3
    assert len({report.bits for report in collector.reports}) == 3
    output = capsys.readouterr().out
    assert output.count("page: accepted (") == 3
    assert output.endswith("The collector counts these 3 reports as 3 more devices.\n")
    assert main(["send", "yes", *arguments, "--metric", "sound"]) == 0
    sentence = "The collector counts this report as one more device.\n"
    assert capsys.readouterr().out.endswith(sentence)
    n_reports = len(collector.reports)
    assert main(["send", "yes", "maybe", *arguments, "--metric", "sound"]) == 2
    assert "maybe" not in capsys.readouterr().err
    assert len(collector.reports) == n_reports  # nothing was sent
    assert main(["send", "dark", "drak", *arguments, "--metric", "theme"]) == 0
    output = capsys.readouterr().out
    assert output.count("Warning: theme has no place for this value") == 1
    assert "drak" not in output
    assert main(["send", "a.example\tde", *arguments, "--metric", "pair"]) == 0
    assert main(["send", "a.example", "de", *arguments, "--metric", "pair"]) == 2
    assert "2 fields separated by tabs (site, country), got 1" in capsys.readouterr().err


def test_key_comes_from_a_file(
    collector: AcceptingCollector, registry: Path, tmp_path: Path
) -> None:
    """The upload key is read from a file. The line end of the file is not part of the key."""
    (tmp_path / "key").write_text("sesame\n")
    arguments = ["--registry", str(registry), "--metric", "page", "--collector", collector.url]
    assert main(["send", "a", *arguments, "--key-file", str(tmp_path / "key")]) == 0
    assert collector.keys == ["Bearer sesame"]


def test_key_file_of_the_collector_is_refused(
    collector: AcceptingCollector,
    registry: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file of the collector has names and days, and a program needs the key alone."""
    (tmp_path / "keys").write_text("app sesame 2026-12-31\n")
    arguments = ["--registry", str(registry), "--metric", "page", "--collector", collector.url]
    assert main(["send", "a", *arguments, "--key-file", str(tmp_path / "keys")]) == 2
    error = capsys.readouterr().err
    assert "keys: it must contain the upload key alone, without its name" in error
    assert "sesame" not in error
    assert collector.keys == []


@pytest.mark.parametrize(("status", "has_remedy"), [(401, True), (503, False)])
def test_missing_key_names_the_option(
    registry: Path, capsys: pytest.CaptureFixture[str], status: int, has_remedy: bool
) -> None:
    """After status 401 the message names the option for the key, and after no other status."""
    with run_handler(lambda request: request.send_error(status)) as address:
        arguments = ["--registry", str(registry), "--metric", "page", "--collector", address]
        assert main(["send", "a", *arguments]) == 1
    output = capsys.readouterr().out
    assert output.startswith(f"Not sent: the collector answered with status {status}.")
    assert ("--key-file" in output) is has_remedy


def test_refused_report_gives_code_1(
    collector: AcceptingCollector, registry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused report gives exit code 1, and the collector's reason is printed with a remedy.

    The collector has another registry: the parameters of `page` are those of profile "strict".
    """
    collector.registry = Registry.loads(TOML.replace("balanced", "strict"))
    arguments = ["--registry", str(registry), "--metric", "page", "--collector", collector.url]
    assert main(["send", "a", *arguments]) == 1
    output = capsys.readouterr().out
    assert "page: refused: unknown-params" in output
    assert f"The collector serves another registry than {registry}." in output
    collector.registry = Registry.loads(TOML)
    assert main(["send", "a", *arguments]) == 0
    assert "another registry" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metric", "address", "code", "message"),
    [
        ("pgae", "http://127.0.0.1:9", 2, "unknown metric"),
        ("page", "http://example.org", 2, "https"),
        # No program listens on port 9.
        ("page", "http://127.0.0.1:9", 1, "Not sent: the collector was not reached: "),
        ("page", "https://collector.invalid", 1, "the name of its host was not found (gaierror)"),
        ("old", "http://127.0.0.1:9", 2, "metric 'old' expired on 2001-01-01"),
    ],
)
def test_mistakes_and_failures_have_a_message(
    metric: str,
    address: str,
    code: int,
    message: str,
    registry: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong metric or address gives exit code 2, and a collector without a response gives 1."""
    words = ["send", "yes", "--registry", str(registry), "--timeout", "10"]
    assert main([*words, "--metric", metric, "--collector", address]) == code
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
