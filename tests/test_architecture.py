"""Eleven rules about which package may import which, read from the imports of folders."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys

import pytest
import rappor_client
from import_graph import (
    foreign_imports,
    imports_by_module,
    imports_of,
    modules,
    package_of,
    project_imports,
    public_names_of,
    reachable,
)

import rappor

LIGHT = {"base", "protocol", "registry", "privacy", "encode"}
"""What a device may load: the standard library and mmh3. Of `base` all modules but the compiler."""

COMPILER = "rappor.base.jit"

METHOD = {"base", "protocol", "registry", "privacy"}
"""Packages that every package of the analyst may import."""

ESTIMATES = METHOD | {"counts", "candidates", "estimator"}
"""Packages below `decoding`."""

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
    "comparison": ESTIMATES | {"decoding"},
    "discovery": ESTIMATES | {"decoding"},
    "planning": ESTIMATES | {"decoding", "discovery"},
    "google": ESTIMATES | {"decoding"},
    "reporting": ESTIMATES | {"decoding", "comparison", "planning"},
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
"""Rules 1, 3, 4 and 6: the packages that the modules of a package may import; `cli` may all."""

OUTSIDE = {"mmh3", "publicsuffixlist"}
"""What light modules import beside the standard library; the second one late and optional."""

RANDOM_PACKAGES = {"encode", "simulation"}
"""Rule 5: the packages that draw random numbers, beside the protocol's randomizer."""


def is_of_method(name: str) -> bool:
    """Tell a module of `rappor` from those of the device and the collector."""
    return name.split(".", maxsplit=1)[0] == "rappor"


@pytest.mark.parametrize(
    "package", sorted({package_of(name) for name in modules() if is_of_method(name)})
)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    """Rules 1, 3, 4 and 6: every package of the method stands on the packages named for it."""
    if package == "cli":
        return
    for name, imported in imports_by_module({package}).items():
        assert imported <= MAY_IMPORT[package], name


def test_light_packages_import_the_standard_library_and_the_hash() -> None:
    """Rule 2: nothing else that is installed is imported by what a device loads."""
    for name in modules():
        if is_of_method(name) and package_of(name) in LIGHT | {"api"} and name != COMPILER:
            assert foreign_imports(name) <= OUTSIDE | sys.stdlib_module_names, name
            assert COMPILER not in imports_of(name), name


def test_device_imports_light_packages_only() -> None:
    """Rule 2: rappor_client imports light packages, itself and the standard library.

    Its plugin of pytest, which nothing imports but pytest, imports that too, and the kit's hook the
    library that the program is made with.
    """
    plugin = "rappor_client.pytest_plugin"
    beside = {plugin: {"pytest"}, "rappor_client.kit.click": {"click", "typer"}}
    beside["rappor_client.kit.mcp"] = {"fastmcp"}
    beside["rappor_client.kit.web"] = {"flask", "starlette"}
    for name, imported in imports_by_module({"rappor_client"}).items():
        assert imported <= LIGHT, name
        assert not {plugin, COMPILER} & imports_of(name), name
        assert foreign_imports(name) <= sys.stdlib_module_names | beside.get(name, set()), name


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
"""The packages and files of the device. Each may import the ones before it."""


def test_packages_of_the_device_stand_on_those_below_them() -> None:
    """Each folder, and each file beside them, imports only what is listed before it."""
    levels = {package: level for level, group in enumerate(DEVICE) for package in group}
    for name in modules():
        root, _, inside = name.partition(".")
        if root == "rappor_client" and inside:
            package = inside.split(".")[0]
            imported = {
                target.split(".")[1] for target in imports_of(name) if target.startswith(f"{root}.")
            }
            assert all(levels[used] < levels[package] for used in imported - {package}), name


def test_collector_could_not_report_if_it_wanted_to() -> None:
    """Rule 5: rappor_server reaches no room of chance, not even through others."""
    for name in modules():
        if name.startswith("rappor_server"):
            reached = reachable(name)
            assert "rappor.protocol.randomizer" not in reached, name
            assert not {package_of(target) for target in reached} & RANDOM_PACKAGES, name


def test_the_network_is_in_one_package() -> None:
    """Rule 11: `remote` alone uses the network; `cli` and the public API import it."""
    network = {"socket", "ssl", "http", "asyncio", "ftplib", "smtplib", "requests"}
    for name, path in modules().items():
        if is_of_method(name) and package_of(name) != "remote":
            assert not foreign_imports(name) & network, name
            assert "urllib.request" not in path.read_text(encoding="utf-8"), name
            if package_of(name) != "cli":
                assert "remote" not in {package_of(target) for target in project_imports(name)}, (
                    name
                )


def test_only_the_command_line_imports_the_audit() -> None:
    """Rule 6: auditing stands above all of it."""
    for name in modules():
        if package_of(name) not in ("cli", "auditing"):
            assert "auditing" not in {package_of(target) for target in project_imports(name)}, name


def test_renderers_import_no_arithmetic_library() -> None:
    """Rule 7: what renders records computes nothing, so it needs no scipy and no lasso."""
    for name in modules():
        if package_of(name) in ("cli", "reporting") or name.startswith("rappor_server.pages"):
            assert not foreign_imports(name) & {"scipy", "sklearn", "numba", "mmh3"}, name


def test_package_inits_define_nothing() -> None:
    """Rule 8: the __init__ of a package holds its docstring, imports and a list of names."""
    for name, path in modules().items():
        if path.name == "__init__.py" and not name.endswith(".cli"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign), name
                if isinstance(node, ast.Assign):
                    names = set(re.findall(r"\w+", ast.unparse(node.targets[0])))
                    assert names <= {"__all__", "__getattr__", "__dir__"}, name


def test_an_encoding_is_known_in_one_folder() -> None:
    """Rule 9: nothing else compares `encoding` or names one in a match.

    Migrations may: they speak of what a database held, and never change.
    """
    apart = ("rappor.protocol.encodings", "rappor_server.storage.migrations")
    told = re.compile(
        r"\.encoding\)? (==|!=|in|not in) |(==|!=) \S*\.encoding\b|match \S*\.encoding\b|"
        r'case "(bloom|onehot|boolean|buckets)"|(==|!=) "(bloom|onehot|buckets)"'
    )
    assert told.search('if params.encoding == "buckets":')
    for name, path in modules().items():
        if not name.startswith(apart):
            code = ast.unparse(ast.parse(path.read_text(encoding="utf-8"))).replace("'", '"')
            found = [line for line in code.splitlines() if told.search(line)]
            assert not found, f"{name}: {found}"


def test_method_device_and_collector_are_apart() -> None:
    """Rule 10: rappor imports neither of the others, and these not each other."""
    for name in modules():
        own = name.split(".")[0]
        others = {target.split(".")[0] for target in project_imports(name)} - {own}
        assert others <= ({"rappor"} if own != "rappor" else set()), name


def test_no_module_reaches_itself() -> None:
    """There is no circle of imports."""
    for name in modules():
        assert all(name not in reachable(target) for target in project_imports(name) - {name})


def test_no_module_hides_a_public_name() -> None:
    """No module of a package has the name of a function or class that the package exports."""
    for package in modules():
        beside = {inner for outer, inner in map(_split_name, modules()) if outer == package}
        assert not set(public_names_of(package)) & beside


def _split_name(name: str) -> tuple[str, str]:
    outer, _, inner = name.rpartition(".")
    return outer, inner


PUBLIC_PACKAGES = {
    "rappor",
    *(f"rappor.{name}" for name in ("auditing", "engines", "planning", "privacy", "simulation")),
    "rappor_client",
}


def test_public_names_are_few_and_mean_one_thing() -> None:
    """Seven packages export them; a name that two packages export is the same object."""
    exported = {package: public_names_of(package) for package in modules()}
    shown = [pair for names in exported.values() for pair in names.items()]
    assert {package for package, names in exported.items() if names} == PUBLIC_PACKAGES
    assert len({name for name, _ in shown}) == len(set(shown)) <= 110


def test_every_public_name_can_be_imported() -> None:
    """Every public name is where its stub says, and dir() lists it."""
    for package in modules():
        api = importlib.import_module(package) if public_names_of(package) else None
        for name, home in public_names_of(package).items():
            assert getattr(api, name) is getattr(importlib.import_module(home), name)
            assert name in dir(api)


def test_export_lists_are_sorted_and_complete() -> None:
    """`__all__` has every name of the stub, in order."""
    for package in PUBLIC_PACKAGES - {"rappor_client"}:
        assert importlib.import_module(package).__all__ == sorted(public_names_of(package))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A lazy package has the names of its stub and no others."""
    with pytest.raises(AttributeError, match="has no attribute 'decoder'"):
        _ = rappor.decoder  # type: ignore[attr-defined]


def test_export_list_of_the_device_is_sorted_and_complete() -> None:
    """Every public name is there, in order, and is what its module calls by it."""
    listed = dir(rappor_client)
    assert listed == sorted(set(listed))
    assert {"Client", "Outcome"} <= set(listed)
    for name in listed:
        assert getattr(rappor_client, name).__module__.startswith("rappor_client.")


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
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
        "resvg_py",
    ]
    answer = run(f"import sys\n{statement}\nassert not set({heavy}) & set(sys.modules)")
    assert answer.returncode == 0, answer.stderr


def test_importing_the_device_loads_no_network() -> None:
    """What speaks HTTP, 40 ms of import, waits until a collector is named."""
    answer = run("import sys, rappor_client\nassert 'http.client' not in sys.modules")
    assert answer.returncode == 0, answer.stderr


def test_importing_the_client_loads_nothing_that_it_may_never_need() -> None:
    """Neither for sending, nor for reading a registry, nor for failures and mistakes."""
    late = ["http.client", "asyncio", "tomllib", "logging", "textwrap", "difflib", "random"]
    late += ["unicodedata", "rappor_client.outbox.uploader", "rappor_client.person.withdrawal"]
    answer = run(
        f"import sys\nfrom rappor_client import Client\nassert not set({late}) & set(sys.modules)"
    )
    assert answer.returncode == 0, answer.stderr


def test_importing_a_submodule_loads_no_lasso() -> None:
    """scikit-learn waits until a lasso is asked for."""
    answer = run("import sys, rappor\nrappor.decode\nassert 'sklearn' not in sys.modules")
    assert answer.returncode == 0, answer.stderr


def test_public_names_stay_what_they_are_whatever_is_imported() -> None:
    """No module shadows a public name, in whatever order things are imported."""
    program = (
        "import rappor\nfrom rappor import *\nimport importlib, pkgutil\n"
        "for found in pkgutil.walk_packages(rappor.__path__, 'rappor.'):\n"
        "    importlib.import_module(found.name)\n"
        "assert len(rappor.__all__) > 30\n"
        "assert all(type(getattr(rappor, n)).__name__ != 'module' for n in rappor.__all__)\n"
        "assert decode is rappor.decode\n"
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


@pytest.mark.slow
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
    homes = public_names_of("rappor").items()
    heavy = {name for name, home in homes if package_of(home) not in LIGHT | {"trust"}} - {
        "ErrorControl"
    }
    assert set(refused) == heavy if missing == "numpy" else set(refused) <= heavy


@pytest.mark.parametrize(
    ("missing", "name"), [("mmh3", "encode_value"), ("rappor.counts.counts", "Counts")]
)
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


@pytest.mark.parametrize("package", ["rappor", "rappor_client", "rappor_server"])
def test_an_interruption_of_the_imports_shows_no_traceback(package: str) -> None:
    """Ctrl-C just after a command was started: the exit code is that of any interruption."""
    answer = run(
        f"import sys\nfrom {package}.cli import main\nclass Interrupt:\n"
        "    def find_spec(self, *_):\n        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\nsys.exit(main())"
    )
    assert (answer.returncode, answer.stderr) == (130, "")


def test_command_line_without_its_extra_says_so() -> None:
    """Without click, the command ends with one sentence that names the extra."""
    answer = run("import sys\nsys.modules['click'] = None\nfrom rappor.cli import main\nmain()")
    assert answer.returncode == 2
    assert "rappor[cli]" in answer.stderr
    assert "Traceback" not in answer.stderr
