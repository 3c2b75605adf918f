"""Instructions of the Dockerfile, run in a Debian folder without a registry of images."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from collectors import REGISTRY, build_upload, find_free_port
from places import ROOT
from programs import wait_until
from tools import need

DOCKERFILE = (ROOT / "server" / "packaging" / "Dockerfile").read_text(encoding="utf-8")
MIRROR = "http://deb.debian.org/debian"
"""Server from which the test downloads the packages of the image."""
CHROOT = "/usr/sbin/chroot"
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def list_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile and their arguments."""
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


class Image:
    """A folder with a Debian system in which the instructions run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {
            name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")
        } | {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environment["DEBIAN_FRONTEND"] = "noninteractive"
        self.environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        self.folder = "/"
        self.user = "root"

    def follow(self, instruction: str, rest: str) -> None:
        """Carry out an instruction of the container file."""
        match instruction:
            case "RUN":
                self.run(["sh", "-ec", rest], user="root")
            case "WORKDIR":
                self.folder = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY" if not rest.startswith("--from"):
                *sources, target = rest.split()
                self.copy(sources, target)
            case "ENV":
                self.environment |= dict(re.findall(r"(\w+)=(\S+)", rest))
            case "USER":
                self.user = rest

    def copy(self, sources: list[str], target: str) -> None:
        """Copy files or one folder of the repository."""
        base = self.root / self.folder.lstrip("/")
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "node_modules")
                shutil.copytree(source, base / target, ignore=skipped)
            else:
                shutil.copy(source, base / target)

    def lend(self, name: str) -> None:
        """Copy the file or folder that a variable of pip names into the image.

        The variable of the image then names the copy. No package of the image has a file at the
        path of the copy.
        """
        path = Path(os.environ.get(name, ""))
        if path.is_absolute() and path.exists():
            copy = self.root / "lent" / name
            copy.parent.mkdir(exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
            self.environment[name] = f"/lent/{name}"

    def command(self, arguments: list[str], user: str) -> list[str]:
        """Return a command line that runs a command in the image."""
        inside = ["env", "-C", self.folder, *arguments]
        return [CHROOT, f"--userspec={user}", str(self.root), *inside]

    def run(self, arguments: list[str], *, user: str) -> None:
        """Run a command in the image, and wait for its end."""
        subprocess.run(self.command(arguments, user), env=self.environment, check=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image after the instructions of both stages, which share one folder."""
    root = tmp_path_factory.mktemp("image") / "root"
    subprocess.run(
        [str(need("debootstrap")), "--variant=minbase", "bookworm", str(root), MIRROR],
        check=True,
    )
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(name, root / name.lstrip("/"))
    container = Image(root)
    for name in ("PIP_CERT", "PIP_FIND_LINKS"):
        container.lend(name)
    try:
        for instruction, rest in list_instructions():
            container.follow(instruction, rest)
        yield container
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_command_of_the_image_serves(image: Image) -> None:
    """The command runs as the user of the image, stores an upload, and stops in order."""
    data = image.root / "data"
    (data / "metrics.toml").write_text(REGISTRY)
    (line,) = [rest for word, rest in list_instructions() if word == "CMD"]
    port = find_free_port()
    image.environment |= {"RAPPOR_SERVER_PORT": str(port), "RAPPOR_SERVER_HOST": "127.0.0.1"}
    process = subprocess.Popen(image.command(json.loads(line), image.user), env=image.environment)
    try:
        wait_until(lambda: _is_ready(port))
        response = httpx.post(
            f"http://127.0.0.1:{port}/v1/reports",
            content=build_upload(),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == 200
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert (data / "metrics.sqlite3").stat().st_size > 0
    assert (data / "metrics.sqlite3").stat().st_uid != 0


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
