"""Structure of the packages: eleven rules about imports, checked by reading the source.

The rules keep a device light (1, 2), the layers of the analysis in order (3, 4, 6, 7, 9), random
numbers away from the collector (5), public interfaces clean (8), and network, device, collector and
library separate (10, 11).
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys

import pytest
import rappor_client
from import_graph import (
    find_package,
    list_foreign_imports,
    list_modules,
    list_project_imports,
    list_reachable_modules,
    map_imports_by_module,
    read_imports,
    read_public_names,
)

import rappor

LIGHT = {"base", "protocol", "registry", "privacy", "encode"}
"""Packages that a device may load. They need only the standard library and mmh3. Of `base` a device
loads all modules except the compiler."""

COMPILER = "rappor.base.jit"
"""Module of `base` that imports numba. Light packages and the device must not import the module,
because they must run without numba."""

METHOD = {"base", "protocol", "registry", "privacy"}
"""Packages that every package of the analyst may import."""

ESTIMATES = METHOD | {"counts", "candidates", "estimator"}
"""Packages that `decoding`, and the packages above it, may import."""

MAY_IMPORT = {
    "base": set(),
    "api": {"base"},
    "protocol": {"base"},
    "registry": {"base", "protocol"},
    "encode": {"base", "protocol", "registry"},
    "privacy": {"base", "protocol", "registry"},
    "counts": METHOD,
    "candidates": METHOD,
    "estimator": METHOD | {"counts", "candidates"},
    "decoding": ESTIMATES,
    "engines": ESTIMATES | {"decoding"},
    "association": ESTIMATES | {"decoding"},
    "comparison": ESTIMATES | {"decoding"},
    "discovery": ESTIMATES | {"decoding"},
    "planning": ESTIMATES | {"decoding", "discovery"},
    "google": ESTIMATES | {"decoding"},
    "reporting": ESTIMATES | {"decoding", "association", "comparison", "planning"},
    "remote": METHOD | {"counts"},
    "simulation": METHOD | {"encode", "counts", "candidates"},
    "trust": METHOD,
    "auditing": METHOD
    | {
        "encode",
        "simulation",
        "trust",
        "counts",
        "candidates",
        "estimator",
        "decoding",
        "planning",
    },
}
"""Packages that the modules of a package may import (rules 1, 3, 4 and 6). `cli` may import all."""

OUTSIDE = {"mmh3", "publicsuffixlist"}
"""Libraries that light modules import beside the standard library. publicsuffixlist is optional and
imported at its first use."""

RANDOM_PACKAGES = {"encode", "simulation"}
"""Packages that draw random numbers, beside the module `randomizer` of the protocol (rule 5)."""


def is_of_library(name: str) -> bool:
    """Return whether a module belongs to `rappor`, and not to the device or the collector."""
    return name.split(".", maxsplit=1)[0] == "rappor"


@pytest.mark.parametrize(
    "package", sorted({find_package(name) for name in list_modules() if is_of_library(name)})
)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    """Rules 1, 3, 4 and 6: every package of the library imports only the packages of its row."""
    if package == "cli":
        return
    for name, imported in map_imports_by_module({package}).items():
        assert imported <= MAY_IMPORT[package], name


def test_light_packages_import_the_standard_library_and_the_hash() -> None:
    """Rule 2: the modules that a device loads import no other installed library."""
    for name in list_modules():
        if is_of_library(name) and find_package(name) in LIGHT | {"api"} and name != COMPILER:
            assert list_foreign_imports(name) <= OUTSIDE | sys.stdlib_module_names, name
            assert COMPILER not in read_imports(name), name


def test_device_imports_light_packages_only() -> None:
    """Rule 2: rappor_client imports light packages, itself and the standard library.

    Two exceptions: its plugin for pytest imports pytest, and the kit's modules for a framework
    import the framework. No other module imports the plugin.
    """
    plugin = "rappor_client.pytest_plugin"
    libraries_of_module = {plugin: {"pytest"}, "rappor_client.kit.click": {"click", "typer"}}
    libraries_of_module["rappor_client.kit.mcp"] = {"fastmcp"}
    libraries_of_module["rappor_client.kit.web"] = {"flask", "starlette"}
    for name, imported in map_imports_by_module({"rappor_client"}).items():
        assert imported <= LIGHT, name
        assert not {plugin, COMPILER} & read_imports(name), name
        assert list_foreign_imports(name) <= sys.stdlib_module_names | libraries_of_module.get(
            name, set()
        ), name


DEVICE = (
    {"version", "periods", "switches"},
    {"network"},
    {"settings"},
    {"folder"},
    {"budget"},
    {"outbox", "person"},
    {"client"},
    {"audited", "cli", "kit", "testing"},
    {"pytest_plugin"},
)
"""Packages and modules of the device, in layers. Each may import the layers before it."""


def test_packages_of_the_device_import_only_layers_below_them() -> None:
    """Each package and each module of the device imports only layers that are listed before it."""
    levels = {package: level for level, group in enumerate(DEVICE) for package in group}
    for name in list_modules():
        root, _, inside = name.partition(".")
        if root == "rappor_client" and inside:
            package = inside.split(".")[0]
            imported = {
                target.split(".")[1]
                for target in read_imports(name)
                if target.startswith(f"{root}.")
            }
            assert all(levels[used] < levels[package] for used in imported - {package}), name


def test_collector_cannot_make_reports() -> None:
    """Rule 5: rappor_server imports no module that draws random numbers, also not indirectly."""
    for name in list_modules():
        if name.startswith("rappor_server"):
            reached = list_reachable_modules(name)
            assert "rappor.protocol.randomizer" not in reached, name
            assert not {find_package(target) for target in reached} & RANDOM_PACKAGES, name


def test_the_network_is_in_one_package() -> None:
    """Rule 11: only `remote` uses the network. Only `cli` and the public API import `remote`."""
    network = {"socket", "ssl", "http", "asyncio", "ftplib", "smtplib", "requests"}
    for name, path in list_modules().items():
        if is_of_library(name) and find_package(name) != "remote":
            assert not list_foreign_imports(name) & network, name
            assert "urllib.request" not in path.read_text(encoding="utf-8"), name
            if find_package(name) != "cli":
                assert "remote" not in {
                    find_package(target) for target in list_project_imports(name)
                }, name


def test_only_the_command_line_imports_the_audit() -> None:
    """Rule 6: no package except `cli` imports `auditing`."""
    for name in list_modules():
        if find_package(name) not in ("cli", "auditing"):
            assert "auditing" not in {
                find_package(target) for target in list_project_imports(name)
            }, name


def test_renderers_import_no_arithmetic_library() -> None:
    """Rule 7: packages that render records compute nothing, so they need no numerical library."""
    for name in list_modules():
        if find_package(name) in ("cli", "reporting") or name.startswith("rappor_server.pages"):
            assert not list_foreign_imports(name) & {"scipy", "sklearn", "numba", "mmh3"}, name


def test_package_inits_define_nothing() -> None:
    """Rule 8: the __init__ of a package contains a docstring, imports and a list of names."""
    for name, path in list_modules().items():
        if path.name == "__init__.py" and not name.endswith(".cli"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign), name
                if isinstance(node, ast.Assign):
                    names = set(re.findall(r"\w+", ast.unparse(node.targets[0])))
                    assert names <= {"__all__", "__getattr__", "__dir__"}, name


def test_an_encoding_is_known_in_one_folder() -> None:
    """Rule 9: only the package of encodings compares the name of an encoding.

    Migrations of the collector's database are an exception: they describe old databases and never
    change.
    """
    exceptions = ("rappor.protocol.encodings", "rappor_server.storage.migrations")
    comparison = re.compile(
        r"\.encoding\)? (==|!=|in|not in) |(==|!=) \S*\.encoding\b|match \S*\.encoding\b|"
        r'case "(bloom|onehot|boolean|buckets|set)"|(==|!=) "(bloom|onehot|buckets|set)"'
    )
    assert comparison.search('if params.encoding == "buckets":')
    for name, path in list_modules().items():
        if not name.startswith(exceptions):
            code = ast.unparse(ast.parse(path.read_text(encoding="utf-8"))).replace("'", '"')
            lines = [line for line in code.splitlines() if comparison.search(line)]
            assert not lines, f"{name}: {lines}"


def test_a_response_is_known_in_one_folder() -> None:
    """Rule 9: only the package of responses asks which response a parameter set has."""
    exceptions = ("rappor.protocol.responses", "rappor.protocol.params")
    question = re.compile(
        r"isinstance\([^()]*(Rappor|Generalized)Response\)|if .*\.keep is (not )?None|"
        r"case (Rappor|Generalized)Response\("
    )
    assert question.search("if params.keep is not None:")
    for name, path in list_modules().items():
        if not name.startswith(exceptions):
            code = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))
            lines = [line for line in code.splitlines() if question.search(line)]
            assert not lines, f"{name}: {lines}"


def test_library_device_and_collector_are_separate() -> None:
    """Rule 10: rappor imports neither device nor collector, and these do not import each other."""
    for name in list_modules():
        own = name.split(".")[0]
        other_packages = {target.split(".")[0] for target in list_project_imports(name)} - {own}
        assert other_packages <= ({"rappor"} if own != "rappor" else set()), name


def test_no_module_reaches_itself() -> None:
    """The imports contain no cycle."""
    for name in list_modules():
        assert all(
            name not in list_reachable_modules(target)
            for target in list_project_imports(name) - {name}
        )


def test_no_module_hides_a_public_name() -> None:
    """No module of a package has the name of a function or class that the package exports."""
    for package in list_modules():
        submodules = {
            inner for outer, inner in map(_split_name, list_modules()) if outer == package
        }
        assert not set(read_public_names(package)) & submodules


def _split_name(name: str) -> tuple[str, str]:
    outer, _, inner = name.rpartition(".")
    return outer, inner


PUBLIC_PACKAGES = {
    "rappor",
    *(f"rappor.{name}" for name in ("auditing", "engines", "planning", "privacy", "simulation")),
    "rappor_client",
}


def test_public_names_are_few_and_mean_one_thing() -> None:
    """Seven packages export public names. A name that two packages export is one object."""
    exported = {package: read_public_names(package) for package in list_modules()}
    exports = [pair for names in exported.values() for pair in names.items()]
    assert {package for package, names in exported.items() if names} == PUBLIC_PACKAGES
    assert len({name for name, _ in exports}) == len(set(exports)) <= 110


def test_every_public_name_can_be_imported() -> None:
    """Every public name is an object of the module in its stub, and dir() lists it."""
    for package in list_modules():
        api = importlib.import_module(package) if read_public_names(package) else None
        for name, home in read_public_names(package).items():
            assert getattr(api, name) is getattr(importlib.import_module(home), name)
            assert name in dir(api)


def test_export_lists_are_sorted_and_complete() -> None:
    """`__all__` contains every name of the stub, in alphabetical order."""
    for package in PUBLIC_PACKAGES - {"rappor_client"}:
        assert importlib.import_module(package).__all__ == sorted(read_public_names(package))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A lazy package has the names of its stub and no other names."""
    with pytest.raises(AttributeError, match="has no attribute 'decoder'"):
        _ = rappor.decoder  # type: ignore[attr-defined]


def test_export_list_of_the_device_is_sorted_and_complete() -> None:
    """dir() lists the public names of the device in order, and each is defined in the device."""
    listed = dir(rappor_client)
    assert listed == sorted(set(listed))
    assert {"Client", "Outcome"} <= set(listed)
    for name in listed:
        assert getattr(rappor_client, name).__module__.startswith("rappor_client.")


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import rappor",
        "import rappor.privacy, rappor.planning, rappor.decoding, rappor.auditing",
        "import rappor_client",
        "import rappor_client.testing",
        "import rappor_client.cli.command_line",
        "import rappor_client.network.http_transport",
        "from rappor import Metric, Params, Registry, Upload, encode_value, privacy_notice",
    ],
)
def test_imports_of_a_device_are_light(statement: str) -> None:
    """Imports of a device load no array library, statistics, compiler or command line."""
    heavy = [
        "numpy",
        "scipy",
        "sklearn",
        "numba",
        "click",
        "rich",
        "cryptography",
        "pandas",
        "resvg_py",
    ]
    process = run(f"import sys\n{statement}\nassert not set({heavy}) & set(sys.modules)")
    assert process.returncode == 0, process.stderr


def test_importing_the_device_loads_no_network() -> None:
    """The HTTP library, 40 ms of import, is loaded only when a collector is configured."""
    process = run("import sys, rappor_client\nassert 'http.client' not in sys.modules")
    assert process.returncode == 0, process.stderr


def test_importing_the_client_loads_no_module_of_rare_cases() -> None:
    """The import loads no module for sending, for reading a registry, or for errors."""
    late = ["http.client", "asyncio", "tomllib", "logging", "textwrap", "difflib", "random"]
    late += ["unicodedata", "rappor_client.outbox.uploader", "rappor_client.person.erasure"]
    process = run(
        f"import sys\nfrom rappor_client import Client\nassert not set({late}) & set(sys.modules)"
    )
    assert process.returncode == 0, process.stderr


def test_estimates_load_no_package_that_takes_half_a_second() -> None:
    """scikit-learn is loaded only when a decode computes a lasso, and `scipy.stats` by an audit."""
    homes = {
        home
        for package in ("rappor", "rappor.planning")
        for home in read_public_names(package).values()
        if find_package(home) != "auditing"
    }
    assert {"rappor.association.associate", "rappor.decoding.decoder"} <= homes
    imports = ", ".join(sorted(homes | {"rappor.planning.association_power"}))
    process = run(
        f"import sys, {imports}\nassert not {{'sklearn', 'scipy.stats'}} & set(sys.modules)"
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_imports_of_modules_shadow_no_public_name() -> None:
    """After all modules are imported, every public name is still a function or class."""
    program = (
        "import rappor\nfrom rappor import *\nimport importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(rappor.__path__, 'rappor.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert len(rappor.__all__) > 30\n"
        "assert all(type(getattr(rappor, n)).__name__ != 'module' for n in rappor.__all__)\n"
        "assert decode is rappor.decode\n"
    )
    process = run(program)
    assert process.returncode == 0, process.stderr


def test_a_short_list_is_decoded_without_the_compiler() -> None:
    """A short list is decoded without numba, whose import takes longer than the decode."""
    program = (
        "import sys\n"
        "import rappor\n"
        "for layout in ('rappor-1', 'google'):\n"
        "    params = rappor.Params(k=8, h=2, m=4, f=0.5, p=0.25, q=0.75, layout=layout)\n"
        "    counts = rappor.Counts(params, [[50] * 7 + [90]] * 4, [100] * 4)\n"
        "    rappor.decode(counts, ['a', 'b', 'c'], distribution=True)\n"
        "print('rappor.decoding' in sys.modules, 'numba' in sys.modules)\n"
    )
    process = run(program)
    assert process.stdout.split() == ["True", "False"], process.stderr


LIST_REFUSED_NAMES = """
import json, os, sys
import cryptography.hazmat.primitives.ciphers.aead, numba, scipy.optimize, scipy.stats
import sklearn.linear_model

refused = {}
for missing in sys.argv[1:]:
    output, child_end = os.pipe()
    if os.fork() == 0:
        for module in list(sys.modules):
            if module.partition(".")[0] == missing:
                sys.modules[module] = None
        sys.modules[missing] = None
        import rappor
        extras = {}
        for name in rappor.__all__:
            try:
                getattr(rappor, name)
            except rappor.MissingExtraError as error:
                extras[name] = error.extra
        os.write(child_end, json.dumps(extras).encode())
        os._exit(0)
    os.close(child_end)
    assert not any(name.startswith("rappor") for name in sys.modules)
    with open(output) as file:
        refused[missing] = json.loads(file.read())
print(json.dumps(refused))
"""
"""Program that prints, for each missing library of its arguments, the public names that cannot be
imported without it, and the extra that the error names.

It imports the libraries once, and each fork imports this project without one of them."""


@pytest.mark.slow
def test_a_missing_library_is_reported_by_its_extra() -> None:
    """Each public name works without the library, or the error names the extra "analysis"."""
    libraries = ("numpy", "scipy", "sklearn", "numba", "cryptography")
    process = run(LIST_REFUSED_NAMES, *libraries)
    assert process.returncode == 0, process.stderr
    homes = read_public_names("rappor").items()
    heavy = {name for name, home in homes if find_package(home) not in LIGHT | {"trust"}} - {
        "ErrorControl"
    }
    refused = json.loads(process.stdout)
    assert set(refused) == set(libraries)
    for missing, extras in refused.items():
        assert set(extras.values()) <= {"analysis"}, missing
        assert set(extras) == heavy if missing == "numpy" else set(extras) <= heavy, missing


@pytest.mark.parametrize(
    ("missing", "name"), [("mmh3", "encode_value"), ("rappor.counts.counts", "Counts")]
)
def test_no_extra_is_named_for_a_library_that_no_extra_contains(missing: str, name: str) -> None:
    """A missing base dependency, or a missing module of the project, is named by its own name."""
    program = (
        f"import sys\nsys.modules['{missing}'] = None\nimport rappor\n"
        f"try:\n    rappor.{name}\n"
        "except ModuleNotFoundError as error:\n    print(type(error).__name__, error.name)\n"
    )
    assert run(program).stdout.split() == ["ModuleNotFoundError", missing]


def test_missing_extra_is_named() -> None:
    """Without numpy, the error of `rappor.Counts` names the extra to install."""
    program = (
        "import sys\nsys.modules['numpy'] = None\nimport rappor\n"
        "try:\n    rappor.Counts\n"
        "except rappor.MissingExtraError as error:\n    print(error)\n"
    )
    assert "rappor[analysis]" in run(program).stdout


@pytest.mark.parametrize("package", ["rappor", "rappor_client", "rappor_server"])
def test_an_interruption_of_the_imports_shows_no_traceback(package: str) -> None:
    """Ctrl-C during the imports of a command ends it with exit code 130, without a traceback."""
    process = run(
        f"import sys\nfrom {package}.cli import main\nclass Interrupt:\n"
        "    def find_spec(self, *_):\n        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\nsys.exit(main())"
    )
    assert (process.returncode, process.stderr) == (130, "")


def test_command_line_without_its_extra_says_so() -> None:
    """Without click, the command ends with one sentence that names the extra."""
    process = run("import sys\nsys.modules['click'] = None\nfrom rappor.cli import main\nmain()")
    assert process.returncode == 2
    assert "rappor[cli]" in process.stderr
    assert "Traceback" not in process.stderr
