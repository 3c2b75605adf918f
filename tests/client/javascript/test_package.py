"""The npm package: small, complete, and without anything that it needs."""

from __future__ import annotations

import graphlib
import gzip
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from node import CLIENT, run_node
from tools import need

MOST_BYTES: Final = 16_000


def bundled(door: str) -> bytes:
    """Return what a page loads, minified and compressed."""
    bundler = [str(need("esbuild")), "--bundle", "--minify", "--format=esm", "--target=es2022"]
    minifier = [str(need("node")), str(need("terser")), "--module", "--ecma", "2020"]
    seldom = ("./src/hosts.js", "./data/suffixes.js")
    tables = [f"--external:{each}" for each in seldom]
    bundle = [*bundler, *tables, door]
    minify = [*minifier, "--compress", "passes=2", "--mangle"]
    whole = subprocess.run(bundle, cwd=CLIENT, capture_output=True, check=True).stdout
    debian = {**os.environ, "NODE_PATH": "/usr/share/nodejs"}  # where its packages lie
    small = subprocess.run(minify, input=whole, capture_output=True, check=True, env=debian).stdout
    return gzip.compress(small, 9, mtime=0)


def test_a_page_loads_little() -> None:
    """Without panel and registry, and what few ask for, at most 16 kB."""
    assert 5_000 < len(bundled("index.js")) < MOST_BYTES


def packed_into(folder: Path) -> set[str]:
    """Install what npm packs into a folder; return the paths that it holds."""
    npm = need("node").parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    run_node(str(npm), "pack", str(CLIENT), "--offline", "--pack-destination", str(folder))
    (archive,) = folder.glob("rappor-client-*.tgz")
    with tarfile.open(archive) as packed:
        names = {name.removeprefix("package/") for name in packed.getnames()}
        packed.extractall(folder / "node_modules", filter="data")
    (folder / "node_modules" / "package").rename(folder / "node_modules" / "rappor-client")
    return names


def test_the_package_is_whole(tmp_path: Path) -> None:
    """What npm packs can be imported by its doors from elsewhere, and holds no test."""
    names = packed_into(tmp_path)
    here = {str(path.relative_to(CLIENT)) for path in CLIENT.rglob("*") if path.is_file()}
    assert names == here
    program = tmp_path / "program.mjs"
    program.write_text(
        'import { Client } from "rappor-client";\n'
        'import { fileStore } from "rappor-client/file";\n'
        'import { memoryStore } from "rappor-client/testing";\n'
        "console.log(typeof Client.open, typeof fileStore, typeof memoryStore);\n"
    )
    assert run_node(str(program)).split() == ["function"] * 3


def test_the_declarations_are_whole(tmp_path: Path) -> None:
    """A program elsewhere is checked against them, without the sources."""
    packed_into(tmp_path)
    program = tmp_path / "program.mts"
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
        "// @ts-expect-error a document that there is not\n"
        "export const nothing = store.documents.nothing;\n"
    )
    words = ("--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", str(program))
    ended = subprocess.run(
        [str(need("tsc")), *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


def test_the_package_needs_no_other() -> None:
    """No dependency is declared, and only the file store imports anything of Node."""
    declared = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))
    assert not [key for key in declared if "ependencies" in key]
    for path in CLIENT.rglob("*.js"):
        sources = re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8"))
        foreign = {source for source in sources if not source.startswith(".")}
        own = {f"node:{name}" for name in ("crypto", "fs", "os", "path")}
        assert foreign <= (own if path.name == "file_store.js" else set()), path.name


def test_coins_come_from_the_system() -> None:
    """Nothing draws from a generator that can be foreseen."""
    for path in CLIENT.rglob("*.js"):
        assert "Math.random" not in path.read_text(encoding="utf-8"), path.name


def test_modules_import_each_other_in_no_circle() -> None:
    """They can be read in an order."""
    graph = {
        path.stem: set(re.findall(r'from "\./(\w+)\.js"', path.read_text(encoding="utf-8")))
        for path in (CLIENT / "src").glob("*.js")
    }
    assert len(graph) > 20
    graphlib.TopologicalSorter(graph).prepare()
