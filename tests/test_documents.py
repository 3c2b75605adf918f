"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

from rappor import Registry

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_example_runs_and_finds_both_engines() -> None:
    """The 15-line example runs as it stands and detects what was simulated."""
    example = blocks("python")[0]
    answer = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True
    )
    first, *table = answer.stdout.splitlines()
    assert first.startswith("search_engine ")
    assert first.endswith("16 bytes")
    assert [line.split()[0] for line in table[1:3]] == ["duckduckgo", "qwant"]
    assert table[3].startswith("2 of 5 candidates detected in 100,000 reports")


def test_embedding_in_a_tool_runs(tmp_path: Path) -> None:
    """With a folder of its own and no one listening, the value waits for the next run."""
    (registry,) = blocks("toml")
    (tmp_path / "metrics.toml").write_text(registry)
    example = next(block for block in blocks("python") if "client.flush" in block)
    program = "from types import SimpleNamespace\nsettings = SimpleNamespace(telemetry=True)\n"
    program += example.replace("~/.local/share/myapp", str(tmp_path)).replace(
        "https://telemetry.example.org", "http://127.0.0.1:9"
    )
    program += "\nprint(client.waiting())\n"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["1"]


def test_embedding_in_an_application_runs(tmp_path: Path) -> None:
    """The life span opens a client, the handler records, the end closes it."""
    (registry,) = blocks("toml")
    (tmp_path / "metrics.toml").write_text(registry)
    example = next(block for block in blocks("python") if "lifespan" in block)
    program = (
        "import asyncio\nfrom types import SimpleNamespace\nfrom rappor_client import Client\n"
        f"folder, url = {str(tmp_path / 'device')!r}, 'http://127.0.0.1:9'\n{example}\n"
        "async def main():\n    app = SimpleNamespace()\n    async with lifespan(app):\n"
        "        await search(SimpleNamespace(app=app, cookies={}))\n"
        "        print(app.telemetry.waiting())\nasyncio.run(main())\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["1"]


def test_registry_example_is_a_registry() -> None:
    """The TOML block loads and holds the three metrics that it shows."""
    (example,) = blocks("toml")
    assert list(Registry.loads(example)) == ["search_engine", "theme", "start_seconds"]


def test_demo_output_is_what_the_demo_prints() -> None:
    """The demo's output in the README comes from the command above it."""
    (shown,) = blocks("text")
    answer = subprocess.run(
        [sys.executable, "-c", "from rappor.cli import main; main()", "demo", "--seed", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    words = [line.split()[0] for line in shown.splitlines()[3:-7]]
    assert words[1:6] == ["the", "to", "and", "of", "a"]
    printed = [line.rstrip() for line in answer.stdout.splitlines()]
    # The last digits may differ between versions of numpy; what was found may not.
    assert [line.split()[:1] for line in printed[:25]] == [
        line.split()[:1] for line in shown.splitlines()[:25]
    ]
    assert printed[-3:] == shown.splitlines()[-3:]


def test_plan_is_what_the_planner_prints() -> None:
    """The plan in the README comes from the command above it, line by line."""
    (shown,) = [block for block in blocks("console") if block.startswith("$ rappor plan")]
    command, *lines = shown.splitlines()
    program = "from rappor.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program, *command.split()[2:]],
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [line.rstrip() for line in answer.stdout.splitlines()]
    assert printed[: len(lines)] == lines


def test_test_command_is_the_one_that_ci_runs() -> None:
    """Exactly one line of the README is the test command, and CI reads it from there."""
    commands = [line for line in README.splitlines() if re.match(r"python3 -m venv .*pytest", line)]
    assert len(commands) == 1
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert 'grep -E "^python3 -m venv .*pytest" README.md' in script
