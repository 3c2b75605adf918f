"""A metric with `other` on its whole way: a device's command, a collector, an analyst."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collectors import make_token, serving

from rappor import Collector, decode

TOML = """
[budget]
total = inf
[metrics.editor]
description = "Which editor people use, for this test only: the noise protects nobody"
owner = "tests"
expires = 2100-01-01
epoch = "life"
interval = "none"
encoding = "onehot"
categories = ["vscode", "vim"]
other = "discover"
f = 0.0
p = 0.0
q = 1.0
insecure = true
min_reports = 0
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_both_reports_of_each_value_arrive(tmp_path: Path, database: str) -> None:
    """Each value in an upload for its category, and in one for a part of what is in other."""
    program = "import sys; from rappor_client.cli import main; sys.exit(main())"
    with serving(tmp_path, database, registry=TOML) as running:
        where = ("--registry", str(tmp_path / "metrics.toml"), "--collector", running.url)
        sent = subprocess.run(
            [
                *(sys.executable, "-c", program),
                *("send", "vim", "helix", "helix", *where, "--metric", "editor"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert sent.returncode == 0, sent.stderr
        running.count()
        collector = Collector(running.admin_url, make_token(database))
        categories = collector.counts("editor").collections
        texts = collector.counts("editor.other").collections
    assert sent.stdout.count("Upload ") == 6
    assert decode(categories).proportion.tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert {each.params.part for each in texts} <= {"prefix:3", "whole"}
    assert sum(each.n_reports for each in texts) == 3
    assert sum(int(each.ones.sum()) for each in texts) == 3
