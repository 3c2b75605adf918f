"""Layers point one way, and a device loads only what it needs: read from the imports."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import rappor_client

import rappor

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "rappor": ROOT / "rappor",
    "rappor_client": ROOT / "client" / "rappor_client",
    "rappor_server": ROOT / "server" / "rappor_server",
}

LIGHT = {
    "rappor": {"rappor.errors"},
    "rappor.errors": set(),
    "rappor.files": {"rappor.errors"},
    "rappor.params": {"rappor.errors"},
    "rappor.privacy": {"rappor.errors", "rappor.params"},
    "rappor.normalize": {"rappor.errors", "rappor.params"},
    "rappor.report": {"rappor.errors", "rappor.params"},
    "rappor.encoding": {"rappor.errors", "rappor.params", "rappor.normalize"},
    "rappor.registry_file": {"rappor.errors", "rappor.params", "rappor.files"},
    "rappor.metric": {
        "rappor.errors",
        "rappor.files",
        "rappor.params",
        "rappor.registry_file",
        "rappor.report",
    },
    "rappor.randomize": {
        "rappor.encoding",
        "rappor.errors",
        "rappor.metric",
        "rappor.params",
        "rappor.report",
    },
    "rappor.collects": {"rappor.metric", "rappor.params", "rappor.privacy"},
    "rappor.limits": {"rappor.errors", "rappor.params"},
    "rappor.accounting": {"rappor.errors", "rappor.metric", "rappor.privacy"},
    "rappor.changing": {"rappor.errors", "rappor.params", "rappor.limits", "rappor.privacy"},
    "rappor.histories": {"rappor.errors", "rappor.params", "rappor.privacy"},
    "rappor.linking": {"rappor.errors", "rappor.params"},
    "rappor.shuffling": {"rappor.errors"},
    "rappor.trust": {
        "rappor.errors",
        "rappor.params",
        "rappor.privacy",
        "rappor.randomize",
        "rappor.shuffling",
    },
}
"""Modules that a device may load, and what each of them may import of the project."""

OUTSIDE = {"mmh3", "publicsuffixlist"}
"""What light modules import beside the standard library; the second one late and optional."""


@cache
def modules() -> dict[str, Path]:
    """Return every module of the three packages by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = path
    return found


@cache
def behind_the_door() -> dict[str, str]:
    """Return the module that each public name of `rappor` loads when it is touched."""
    tree = ast.parse(modules()["rappor"].read_text(encoding="utf-8"))
    (typing_only,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module)
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return what a module imports, at any depth of its code, type checking apart."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else str(node.module))
                if node.module == "rappor" and alias.name in rappor.__all__:
                    found.add(behind_the_door()[alias.name])
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("rappor."):
            found |= {behind_the_door()[node.attr]} if node.attr in rappor.__all__ else set()
    return frozenset(found)


def project_imports(name: str) -> set[str]:
    """Return the modules of the project that a module imports."""
    return {target for target in imports_of(name) if target.split(".")[0] in PACKAGES}


def reachable(name: str) -> set[str]:
    """Return all modules of the project that a module imports, through others too."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += project_imports(current)
    return seen


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_light_modules_import_only_what_lies_below_them(name: str) -> None:
    """A device's module imports the standard library, mmh3 and the layers below it."""
    assert project_imports(name) <= LIGHT[name]
    others = {target.split(".")[0] for target in imports_of(name)} - set(PACKAGES)
    assert others <= OUTSIDE | sys.stdlib_module_names


def test_no_module_reaches_itself() -> None:
    """There is no circle of imports."""
    for name in modules():
        assert all(name not in reachable(target) for target in project_imports(name) - {name})


def test_method_knows_neither_device_nor_collector() -> None:
    """Nothing in rappor imports rappor_client or rappor_server."""
    for name in modules():
        if name.split(".")[0] == "rappor":
            assert {target.split(".")[0] for target in project_imports(name)} <= {"rappor"}


def test_device_imports_only_light_modules() -> None:
    """rappor_client imports itself, light modules and the standard library."""
    for name in modules():
        if name.startswith("rappor_client"):
            foreign = {t for t in project_imports(name) if not t.startswith("rappor_client")}
            assert foreign <= set(LIGHT)
            others = {target.split(".")[0] for target in imports_of(name)} - set(PACKAGES)
            assert others <= sys.stdlib_module_names


def test_export_list_of_the_device_is_sorted_and_complete() -> None:
    """Every public name is there, in order, and is what its module calls by it."""
    assert rappor_client.__all__ == sorted(set(rappor_client.__all__))
    for name in rappor_client.__all__:
        assert getattr(rappor_client, name).__module__.startswith("rappor_client.")


def test_collector_could_not_report_if_it_wanted_to() -> None:
    """rappor_server reaches neither the randomizer nor the simulator."""
    for name in modules():
        if name.startswith("rappor_server"):
            assert not reachable(name) & {"rappor.randomize", "rappor.simulate"}


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import rappor",
        "import rappor_client",
        "import rappor_client.testing",
        "import rappor_client.cli",
        "import rappor_client.http_transport",
        "from rappor import Metric, Params, Registry, Upload, encode_value, describe, epsilon_inf",
    ],
)
def test_imports_of_a_device_are_light(statement: str) -> None:
    """No array library, statistics, compiler or command line comes with them."""
    heavy = [
        "numpy",
        "scipy",
        "sklearn",
        "numba",
        "click",
        "rich",
        "cryptography",
        "pandas",
        "altair",
        "opendp",
    ]
    answer = run(f"import sys\n{statement}\nassert not set({heavy}) & set(sys.modules)")
    assert answer.returncode == 0, answer.stderr


def test_importing_the_device_loads_no_network() -> None:
    """What speaks HTTP, 40 ms of import, waits until a collector is named."""
    answer = run("import sys, rappor_client\nassert 'http.client' not in sys.modules")
    assert answer.returncode == 0, answer.stderr


def test_importing_a_submodule_loads_no_lasso() -> None:
    """scikit-learn waits until a lasso is asked for."""
    answer = run("import sys, rappor\nrappor.decode\nassert 'sklearn' not in sys.modules")
    assert answer.returncode == 0, answer.stderr


def test_public_names_are_sorted_and_all_there() -> None:
    """The export list is in order, without doubles, and every name can be touched."""
    assert rappor.__all__ == sorted(set(rappor.__all__))
    for name in rappor.__all__:
        assert getattr(rappor, name) is not None
        assert name in dir(rappor)


def test_function_decode_stays_a_function_when_its_room_is_imported() -> None:
    """No module shadows the public name decode, in whatever order things are imported."""
    program = (
        "import rappor\nfrom rappor import Estimates\nimport importlib, pkgutil\n"
        "for found in pkgutil.walk_packages(rappor.__path__, 'rappor.'):\n"
        "    importlib.import_module(found.name)\n"
        "assert all(type(getattr(rappor, n)).__name__ != 'module' for n in rappor.__all__)\n"
    )
    answer = run(program)
    assert answer.returncode == 0, answer.stderr


def test_a_short_list_is_decoded_without_the_compiler() -> None:
    """Loading it takes longer than the whole decode, and more memory; both hash layouts."""
    program = (
        "import sys\n"
        "import rappor\n"
        "for layout in ('rappor-1', 'google'):\n"
        "    params = rappor.Params(k=8, h=2, m=4, f=0.5, p=0.25, q=0.75, layout=layout)\n"
        "    counts = rappor.Counts(params, [[50] * 7 + [90]] * 4, [100] * 4)\n"
        "    rappor.decode(counts, ['a', 'b', 'c'], distribution=True)\n"
        "print('rappor.decoding' in sys.modules, 'numba' in sys.modules)\n"
    )
    answer = run(program)
    assert answer.stdout.split() == ["True", "False"], answer.stderr


def test_door_opens_to_the_module_that_type_checkers_see() -> None:
    """A name's real home is the one of its TYPE_CHECKING import, which the layers are read from."""
    assert sorted(behind_the_door()) == rappor.__all__
    for name, module in behind_the_door().items():
        assert getattr(rappor, name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("missing", ["numpy", "scipy", "sklearn", "numba", "cryptography"])
def test_a_missing_library_never_shows_as_such(missing: str) -> None:
    """Each public name either works without it or names the extra analysis."""
    program = (
        f"import sys\nsys.modules['{missing}'] = None\nimport rappor\n"
        "for name in rappor.__all__:\n"
        "    try:\n        getattr(rappor, name)\n"
        "    except rappor.MissingExtraError as error:\n        print(name, error.extra)\n"
    )
    answer = run(program)
    assert answer.returncode == 0, answer.stderr
    refused = dict(line.split() for line in answer.stdout.splitlines())
    assert set(refused.values()) <= {"analysis"}
    heavy = {name for name, home in behind_the_door().items() if home not in LIGHT}
    assert set(refused) == heavy if missing == "numpy" else set(refused) <= heavy


@pytest.mark.parametrize(("missing", "name"), [("mmh3", "encoder"), ("rappor.kernels", "sum_bits")])
def test_no_extra_is_named_that_would_not_help(missing: str, name: str) -> None:
    """The base dependency, or a module of the project itself, is missing under its own name."""
    program = (
        f"import sys\nsys.modules['{missing}'] = None\nimport rappor\n"
        f"try:\n    rappor.{name}\n"
        "except ModuleNotFoundError as error:\n    print(type(error).__name__, error.name)\n"
    )
    assert run(program).stdout.split() == ["ModuleNotFoundError", missing]


def test_missing_extra_is_named() -> None:
    """Without numpy, touching the analyst's side says which extra to install."""
    program = (
        "import sys\nsys.modules['numpy'] = None\nimport rappor\n"
        "try:\n    rappor.Counts\n"
        "except rappor.MissingExtraError as error:\n    print(error)\n"
    )
    assert "rappor[analysis]" in run(program).stdout


def test_command_line_without_its_extra_says_so() -> None:
    """Without click, the command ends with one sentence that names the extra."""
    answer = run("import sys\nsys.modules['click'] = None\nfrom rappor.cli import main\nmain()")
    assert answer.returncode == 2
    assert "rappor[cli]" in answer.stderr
    assert "Traceback" not in answer.stderr
