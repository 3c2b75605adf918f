"""The secret: created once, private, agreed on by all processes, never silently replaced."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from devices import Opener, secret_of
from rappor_client import Client, IdentityError, Outcome
from rappor_client.folder.store import Store
from rappor_client.person.identity import Identity

from rappor import Registry
from rappor.ground.errors import ParamsError
from rappor.protocol.randomizer import expand

WHOLE = 58


def test_secret_is_private_and_stays(open_client: Opener, tmp_path: Path) -> None:
    """The file is created at the first opening, for the user only, and then stays the same."""
    open_client().close()
    folder = tmp_path / "device"
    first = secret_of(folder)
    open_client().record("page", "x")
    assert secret_of(folder) == first
    assert stat.S_IMODE((folder / "identity").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_two_folders_have_two_secrets(open_client: Opener, tmp_path: Path) -> None:
    """No two devices share a secret."""
    open_client(folder="one")
    open_client(folder="two")
    assert secret_of(tmp_path / "one") != secret_of(tmp_path / "two")


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    """Eight processes open one new folder at once: one secret, and each one's report is kept."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(
        "[budget]\ntotal = inf\n"
        '[metrics.page]\ndescription = "a"\nowner = "b"\nexpires = 2030-01-01\n'
        'epoch = "life"\ninterval = "none"\n'
        'encoding = "bloom"\nprofile = "balanced"\n'
    )
    program = (
        "import sys\nfrom pathlib import Path\nfrom rappor_client import Client\n"
        "from rappor_client.folder.secret_file import SecretFile\nsys.stdin.readline()\n"
        f"folder = Path({str(tmp_path / 'new')!r})\n"
        f"client = Client.open(folder, registry={str(registry)!r}, consent=True)\n"
        "secret = SecretFile(folder).read()\n"
        "print(client.record('page', 'x').name, secret.hex())\n"
        "client.close()\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    answers = [child.communicate("go\n", timeout=60)[0].split() for child in children]
    assert {outcome for outcome, _ in answers} <= {"RECORDED", "QUEUED"}  # the lock was another's
    assert len({secret for _, secret in answers}) == 1
    client = Client.open(tmp_path / "new", registry=registry, consent=True)
    assert client.waiting() == 8
    spent = client.spent().metrics["page"]
    assert (spent.reports, spent.patterns) == (8, 1)  # one value under one secret
    client.close()


def damages() -> dict[str, Any]:
    """Return what can happen to the file."""
    return {
        "truncated": lambda data: data[:-1],
        "emptied": lambda _: b"",
        "longer": lambda data: data + b"\n",
        "flipped": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        "foreign": lambda _: b"x" * WHOLE,
        "other version": lambda data: data.replace(b"identity 1", b"identity 2"),
    }


@pytest.mark.parametrize("damage", damages())
def test_damaged_file_is_an_error_by_default(
    damage: str, open_client: Opener, tmp_path: Path
) -> None:
    """It is raised at opening, tells nothing of the file's bytes, and leaves the file alone."""
    open_client().close()
    path = tmp_path / "device" / "identity"
    data = damages()[damage](path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(IdentityError) as caught:
        open_client()
    assert "on_bad_identity" in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", [*damages(), "lost", "swapped"])
def test_policy_reset_makes_a_new_device_and_keeps_the_ledger(
    damage: str, open_client: Opener, tmp_path: Path
) -> None:
    """It is counted; what was spent stays spent, and the same value is charged anew."""
    client = open_client()
    client.record("page", "x")
    before = client.spent().nats
    client.close()
    path = tmp_path / "device" / "identity"
    if damage == "lost":
        path.unlink()
    elif damage == "swapped":
        open_client(folder="other").close()
        shutil.copy(tmp_path / "other" / "identity", path)
    else:
        path.write_bytes(damages()[damage](path.read_bytes()))
    with pytest.raises(IdentityError):
        open_client()
    client = open_client(on_bad_identity="reset")
    assert client.counters()["identity_resets"] == 1
    assert client.spent().nats == before
    client.record("page", "x")
    assert client.spent().metrics["page"].patterns == 2
    assert client.spent().nats == pytest.approx(2 * before, rel=1e-12)
    client.close()
    assert open_client().counters()["identity_resets"] == 1


def test_policy_disable_records_nothing(open_client: Opener, tmp_path: Path) -> None:
    """The client opens, refuses, and the file stays as it is."""
    open_client().close()
    path = tmp_path / "device" / "identity"
    path.write_bytes(b"")
    client = open_client(on_bad_identity="disable")
    assert client.record("page", "x") is Outcome.DISABLED
    assert client.waiting() == 0
    assert path.read_bytes() == b""


def test_policies_have_names(open_client: Opener) -> None:
    """Whatever else is no policy."""
    with pytest.raises(ParamsError, match="on_bad_identity must be one of error, reset, disable"):
        open_client(on_bad_identity="ignore")


def test_unreadable_file_is_an_identity_error(open_client: Opener, tmp_path: Path) -> None:
    """A file that cannot be read is not taken for a missing one."""
    open_client().close()
    path = tmp_path / "device" / "identity"
    path.unlink()
    path.mkdir()
    with pytest.raises(IdentityError, match="must be readable"):
        open_client()


def test_identity_replaced_by_another_process_is_noticed(
    open_client: Opener, tmp_path: Path
) -> None:
    """A running client goes on under the secret that the folder has now."""
    running, folder = open_client(), tmp_path / "device"
    running.record("page", "x")
    (folder / "identity").write_bytes(b"")
    other = open_client(on_bad_identity="reset")
    assert running.record("page", "x") is Outcome.RECORDED
    assert other.record("page", "x") is Outcome.RECORDED
    spent = running.spent().metrics["page"]
    assert (spent.reports, spent.patterns) == (3, 2)  # both go on under the new secret


def test_nothing_shows_the_secret(open_client: Opener, tmp_path: Path) -> None:
    """Neither the client's representation nor the identity's."""
    client = open_client()
    secret = secret_of(tmp_path / "device")
    identity = Identity(tmp_path / "device", Store(tmp_path / "device"), "error", time.time)
    assert expand(identity.secret(), b"", 32) == expand(secret, b"", 32)
    for shown in (repr(client), str(vars(client)), repr(identity), repr(identity.secret())):
        assert secret.hex() not in shown
        assert repr(secret) not in shown
    assert isinstance(client.registry, Registry)
