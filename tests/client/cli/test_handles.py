"""Handles: what the type checkers of both languages let pass, and what they find."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from node import CLIENT as JAVASCRIPT
from programs import CLIENT, run_python
from rappor_client import Client, Outcome
from rappor_client.cli import main
from rappor_client.testing import Device
from tools import need

ENTRY = """
[metrics.{name}]
description = '''{description}'''
owner = "a@example.org"
expires = 2099-12-31
profile = "strict"
epoch = "quarter"
{more}
"""
SEGMENTS = 'segments = {version = ["1", "2"], class = ["beta"]}\n'
TEXT = 'encoding = "bloom"\n'
NAMES = 'categories = ["light", "dark", \'the "old" one\']\n'
ENTRIES = (
    ("search_engine", "Where a query goes", TEXT + SEGMENTS),
    ("theme", "Light or dark", 'encoding = "onehot"\n' + NAMES),
    ('"page.sound-on"', "Sound", 'encoding = "boolean"\n'),
    ("class", 'Ends """ and */\n\\', 'encoding = "flags"\n' + NAMES),
    ("seconds", "Start", 'encoding = "buckets"\nedges = [0.5, 1, 5]\n'),
    ("editor", "Editor", 'encoding = "onehot"\nother = "discover"\ncategories = ["vim", "nano"]\n'),
)
REGISTRY = "[budget]\ntotal = inf\n" + "".join(
    ENTRY.format(name=name, description=description, more=more)
    for name, description, more in ENTRIES
)

GOOD = """
metrics.search_engine.record("anything")
metrics.theme.record("dark")
metrics.theme.record('the "old" one')
metrics.page_sound_on.record(True)
metrics.class_.record(["light", "dark"])
metrics.class_.record(())
metrics.seconds.record(0.7)
metrics.seconds.record(2)
metrics.editor.record("ed")
segment(class_="beta", version="3")
"""
BAD = """
metrics.search_engin.record("anything")
metrics.search_engine.record(7)
metrics.theme.record("drak")
metrics.theme.record(True)
metrics.page_sound_on.record("yes")
metrics.class_.record(["lihgt"])
metrics.class_.record("light")
metrics.seconds.record("2")
segment(class_="beta", verison="3")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a registry and its handles in both languages."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    for out in ("metrics.py", "metrics.ts"):
        assert main(["handles", str(registry), "--out", str(tmp_path / out)]) == 0
    return tmp_path


@pytest.mark.slow
def test_mypy_finds_what_is_misspelt_and_nothing_else(folder: Path) -> None:
    """Metrics, categories, flags, kinds of values and public properties."""
    head = "from metrics import Metrics, segment\n\n\ndef use(metrics: Metrics) -> None:"
    body = (GOOD + BAD.lstrip()).replace("\n", "\n    ")
    (folder / "program.py").write_text(f"{head}{body}\n")
    where = [f"--cache-dir={folder / 'cache'}", f"--python-executable={sys.executable}"]
    words = ("-m", "mypy", "--strict", *where, "--config-file=", "program.py")
    checked = run_python(*words, folder=folder, code=1)
    lines = (folder / "program.py").read_text().splitlines()
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    found = {lines[int(each.split(":")[1]) - 1].strip() for each in errors}
    assert found == set(BAD.split("\n")) - {""}, checked.stdout


def test_tsc_finds_what_is_misspelt_and_nothing_else(folder: Path) -> None:
    """The same in a page's language; an expected error that does not come is one."""
    good = GOOD.replace("True", "true").replace("()", "[]").replace("(class_=", "({ class: ")
    bad = BAD.replace("True", "true").replace("(class_=", "({ class: ")
    program = good + bad.replace("\n", "\n// @ts-expect-error\n").removesuffix(
        "// @ts-expect-error\n"
    )
    for name in ("version", "verison"):
        program = program.replace(f'{name}="3")', f'{name}: "3" }})')
    head = (
        'import type { Client } from "rappor-client";\n'
        'import { metrics as of, type Segment } from "./metrics";\n'
        "declare const client: Client;\nconst metrics = of(client);\n"
        "const segment = (own: Segment): Record<string, string> => own;\n"
    )
    (folder / "program.ts").write_text(head + program)
    paths = {"rappor-client": [str(JAVASCRIPT / "index.d.ts")]}
    options: dict[str, Any] = {"strict": True, "noEmit": True, "baseUrl": ".", "paths": paths}
    options |= {"target": "ES2022", "lib": ["ES2022", "DOM"], "types": []}
    config = {"compilerOptions": options, "files": ["program.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    checked = subprocess.run(
        [str(need("tsc")), "-p", str(folder)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_handles_record(folder: Path, rappor_device: Device) -> None:
    """Every kind of value reaches the metric that its handle names."""
    found = importlib.util.spec_from_file_location("metrics", folder / "metrics.py")
    assert found is not None
    assert found.loader is not None
    written = importlib.util.module_from_spec(found)
    found.loader.exec_module(written)
    own = written.segment(class_="beta", version="3")
    assert own == {"class": "beta", "version": "3"}
    client = rappor_device.open(folder / "metrics.toml", segment=own)
    metrics = written.Metrics(client)
    for name, value in (
        ("search_engine", "any"),
        ("theme", "dark"),
        ("page_sound_on", True),
        ("class_", ("dark",)),
        ("seconds", 2),
        ("editor", "vim"),
    ):
        assert getattr(metrics, name).record(value) == Outcome.KEPT
    held = {each.metric for each in rappor_device.contents.held}
    assert held == set(client.registry)
    assert isinstance(metrics.theme.client, Client)


def test_text_depends_on_the_registry_alone(folder: Path) -> None:
    """Another folder and another process write the same bytes; formatters change nothing."""
    (folder / "other").mkdir()
    (folder / "other" / "metrics.toml").write_text("# the same\n" + REGISTRY)
    for name in ("metrics.py", "metrics.ts"):
        run_python(*CLIENT, "handles", "metrics.toml", "--out", name, folder=folder / "other")
        assert (folder / "other" / name).read_bytes() == (folder / name).read_bytes()
    text = (folder / "metrics.py").read_text()
    formatted = run_python("-m", "ruff", "format", "--isolated", "-", text=text).stdout
    assert formatted == text.replace(r'"the \"old\" one"', "'the \"old\" one'")


def test_what_cannot_be_written_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another ending, a folder that is not there, two metrics of one name in code."""
    registry = folder / "metrics.toml"
    assert main(["handles", str(registry), "--out", "metrics.rs"]) == 2
    assert "--out must end in .py or .ts, got 'metrics.rs'" in capsys.readouterr().err
    assert main(["handles", str(registry), "--out", str(folder / "no" / "metrics.py")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    registry.write_text(REGISTRY.replace('"page.sound-on"', '"search.engine"'))
    assert main(["handles", str(registry), "--out", str(folder / "metrics.py")]) == 2
    expected = "metrics 'search_engine' and 'search.engine' must have different names in code"
    assert expected in capsys.readouterr().err
