"""Segments on their whole way: a device's command, a collector, an analyst."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from collectors import make_token, serving

from rappor import Collector, by_segment, decode

TOML = """
[budget]
total = inf
[metrics.theme]
description = "Light or dark, for this test only: the noise protects nobody"
owner = "tests"
expires = 2100-01-01
epoch = "life"
interval = "none"
encoding = "onehot"
categories = ["light", "dark"]
f = 0.0
p = 0.01
q = 0.99
insecure = true
min_reports = 0
segments = {version = ["1", "2"]}
"""


def send(url: str, registry: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `rappor-client send` for the metric."""
    program = "import sys; from rappor_client.cli import main; sys.exit(main())"
    given = ("send", *words, "--registry", str(registry), "--metric", "theme")
    return subprocess.run(
        [sys.executable, "-c", program, *given, "--collector", url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_devices_tell_is_counted_apart(tmp_path: Path, database: str) -> None:
    """Listed versions, another one, and none; all of them are one sum unless asked for."""
    with serving(tmp_path, database, registry=TOML) as running:
        registry = tmp_path / "metrics.toml"
        for words in (
            ("light", "light", "dark", "--segment", "version=1"),
            ("dark", "dark", "--segment", "version=2"),
            ("dark", "--segment", "version=3"),
            ("light",),
        ):
            sent = send(running.url, registry, *words)
            assert sent.returncode == 0, sent.stderr
        wrong = send(running.url, registry, "light", "--segment", "version")
        assert wrong.returncode != 0
        assert "NAME=VALUE" in wrong.stderr
        running.count()
        collector = Collector(running.admin_url, make_token(database, "theme"))
        whole = collector.counts("theme")
        apart = collector.counts("theme", segments=True)
    assert {each.params.segment: each.n_reports for each in apart.collections} == {
        (("version", "1"),): 3,
        (("version", "2"),): 2,
        (("version", "other"),): 2,
    }
    (together,) = whole.collections
    assert (together.n_reports, together.params.segment) == (7, ())
    assert decode(whole.collections).reports == 7
    found = by_segment(apart.collections)
    assert json.loads(found.to_json())["samples"][0]["segment"] == {"version": "1"}
