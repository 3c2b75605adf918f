"""The npm package: its size, its files, its declarations, and its lack of dependencies."""

from __future__ import annotations

import graphlib
import gzip
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from node import CLIENT, TESTS, run_node
from tools import need

MAX_BYTES: Final = 16_300
"""Largest size of the client in bytes, minified and compressed, as its README says. A larger client
delays the pages that load it."""


def bundle(entry: str) -> bytes:
    """Return the code that a page loads for an entry point, minified and compressed."""
    bundler = [str(need("esbuild")), "--bundle", "--minify", "--format=esm", "--target=es2022"]
    minifier = [str(need("node")), str(need("terser")), "--module", "--ecma", "2020"]
    on_demand = ("./src/hosts.js", "./data/suffixes.js")
    external = [f"--external:{path}" for path in on_demand]
    build = [*bundler, *external, entry]
    minify = [*minifier, "--compress", "passes=2", "--mangle"]
    code = subprocess.run(build, cwd=CLIENT, capture_output=True, check=True).stdout
    env = {**os.environ, "NODE_PATH": "/usr/share/nodejs"}  # the packages of Debian
    small = subprocess.run(minify, input=code, capture_output=True, check=True, env=env).stdout
    return gzip.compress(small, 9, mtime=0)


@pytest.mark.slow
def test_a_page_loads_little() -> None:
    """A page loads 16.3 kB at most, without the panel, the registry and the tables of hosts."""
    assert 5_000 < len(bundle("index.js")) < MAX_BYTES


class InstalledPackage(NamedTuple):
    """The package as npm installs it: the folder of a program that imports it, and its files."""

    folder: Path
    files: set[str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledPackage:
    """Pack the package, and install it into a folder."""
    folder = tmp_path_factory.mktemp("installed")
    npm = need("node").parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    run_node(str(npm), "pack", str(CLIENT), "--offline", "--pack-destination", str(folder))
    (archive,) = folder.glob("rappor-client-*.tgz")
    with tarfile.open(archive) as tar_file:
        names = {name.removeprefix("package/") for name in tar_file.getnames()}
        tar_file.extractall(folder / "node_modules", filter="data")
    (folder / "node_modules" / "package").rename(folder / "node_modules" / "rappor-client")
    return InstalledPackage(folder, names)


@pytest.mark.slow
def test_the_package_is_complete(installed: InstalledPackage) -> None:
    """The package has all files of its folder, and its entry points can be imported."""
    files = {str(path.relative_to(CLIENT)) for path in CLIENT.rglob("*") if path.is_file()}
    assert installed.files == files
    program = installed.folder / "program.mjs"
    program.write_text(
        'import { Client } from "rappor-client";\n'
        'import { fileStore } from "rappor-client/file";\n'
        'import { memoryStore } from "rappor-client/testing";\n'
        "console.log(typeof Client.open, typeof fileStore, typeof memoryStore);\n"
    )
    assert run_node(str(program)).split() == ["function"] * 3


@pytest.mark.slow
def test_types_hold(installed: InstalledPackage) -> None:
    """TypeScript accepts the sources, the declarations and two programs, under `strict`.

    One program uses the declarations of the repository, the other those of the installed package.
    One run of TypeScript checks all of them, because each run reads the declarations of browsers.
    """
    program = installed.folder / "declared.mts"
    program.write_text(
        'import { Client, type OpenOptions } from "rappor-client";\n'
        'import { fileStore } from "rappor-client/file";\n'
        'import { RapporPanel } from "rappor-client/panel";\n'
        'import { memoryStore } from "rappor-client/testing";\n'
        "declare const options: OpenOptions;\n"
        "const store = memoryStore();\n"
        'const client = await Client.open({ ...options, store: fileStore("x") });\n'
        "new RapporPanel().client = client;\n"
        "export const waiting: number | undefined = store.documents.spool?.reports.length;\n"
        "// @ts-expect-error a document that does not exist\n"
        "export const nothing = store.documents.nothing;\n"
    )
    settings = json.loads((TESTS / "tsconfig.json").read_text(encoding="utf-8"))
    include = [str(TESTS / pattern) for pattern in settings["include"]]
    project = installed.folder / "tsconfig.json"
    project.write_text(json.dumps({**settings, "include": [*include, str(program)]}))
    process = subprocess.run(
        [str(need("tsc")), "--project", str(project), "--listFiles"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    checked = process.stdout.splitlines()
    assert {str(program), str(TESTS / "usage.mts"), str(CLIENT / "src" / "client.js")} <= set(
        checked
    )
    assert [path for path in checked if "node_modules/rappor-client" in path]


def test_the_package_has_no_dependency() -> None:
    """The package declares no dependency, and only the file store imports modules of Node."""
    package = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))
    assert not [key for key in package if "dependencies" in key.lower()]
    node_modules = {f"node:{name}" for name in ("crypto", "fs", "os", "path")}
    for path in CLIENT.rglob("*.js"):
        sources = re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8"))
        foreign = {source for source in sources if not source.startswith(".")}
        assert foreign <= (node_modules if path.name == "file_store.js" else set()), path.name


def test_coins_come_from_the_system() -> None:
    """No file uses `Math.random`, whose numbers can be predicted."""
    for path in CLIENT.rglob("*.js"):
        assert "Math.random" not in path.read_text(encoding="utf-8"), path.name


def test_imports_have_no_cycle() -> None:
    """No module imports itself through others.

    So a reader can read the modules in an order in which each module needs earlier ones only.
    """
    graph = {
        path.stem: set(re.findall(r'from "\./(\w+)\.js"', path.read_text(encoding="utf-8")))
        for path in (CLIENT / "src").glob("*.js")
    }
    assert len(graph) > 20
    graphlib.TopologicalSorter(graph).prepare()
