"""Files and folders that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rappor.base.atomic_files import create_folder, lock_folder, read_text, replace_file
from rappor.base.errors import FileError


def test_a_finished_file_takes_the_name(tmp_path: Path) -> None:
    """After the block the path has the new content, and no other file is left."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replace_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_file_is_durable_before_it_has_its_name(
    tmp_path: Path,
) -> None:
    """A rename before the flush could leave an empty file after a power failure."""
    calls: list[str] = []

    def watch(_frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and arg.__name__ in ("fsync", "replace", "rename"):
            calls.append(arg.__name__)

    sys.setprofile(watch)
    try:
        with replace_file(tmp_path / "x") as file:
            file.write(b"new")
        with create_folder(tmp_path / "out") as fresh:
            (fresh / "a").write_text("1")
    finally:
        sys.setprofile(None)
    assert calls == ["fsync", "replace", "fsync", "fsync", "rename", "fsync"]


def test_a_failed_block_changes_nothing(tmp_path: Path) -> None:
    """The old content stays, and no draft is left."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replace_file(path) as file:
        file.writelines([b"new", "text"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    """Pipes, folders and names in /dev stay as they are. Links to such names stay, too."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    names = [tmp_path / "pipe", tmp_path / "folder", tmp_path / "link", Path("/dev/rappor-test")]
    for path in names:
        with pytest.raises(FileExistsError, match="it must be a file"), replace_file(path) as file:
            file.write(b"x")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]
    assert not names[-1].exists()


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """Errors of writing name the path, and errors of opening do not name the draft."""
    with pytest.raises(OSError, match=rf"full.*{tmp_path}/x'"), replace_file(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "full")
    with (
        pytest.raises(FileNotFoundError, match=f"{tmp_path}/none/x'"),
        replace_file(tmp_path / "none" / "x"),
    ):
        pass


def test_text_is_read_as_utf_8_or_refused(tmp_path: Path) -> None:
    """A byte-order mark is dropped, and line ends stay. An error has the line of the wrong byte."""
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(path) == "a\r\nb"
    path.write_bytes(b"a\nb\nM\xfcller\n")
    with pytest.raises(FileError, match="line 3: it is not UTF-8"):
        read_text(path)
    with pytest.raises(FileError, match="nothing: No such file"):
        read_text(tmp_path / "nothing")


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    """The folder has a temporary name in the block. It replaces an empty folder."""
    (tmp_path / "out").mkdir()
    with create_folder(tmp_path / "out") as fresh:
        (fresh / "a").write_text("1")
        assert not any((tmp_path / "out").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "1"


def test_a_failed_folder_is_deleted(tmp_path: Path) -> None:
    """The folder and its content are deleted, and the error is raised again."""
    with pytest.raises(TypeError), create_folder(tmp_path / "out") as fresh:
        (fresh / "a").write_bytes("text")  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    """A file, a filled folder or a dangling link has the name, or gets it during the block."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "full", "link"):
        with pytest.raises(FileError, match="there already"), create_folder(tmp_path / name):
            pass
    with pytest.raises(FileError, match="there already"), create_folder(tmp_path / "new"):
        (tmp_path / "new").write_text("mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link", "new"]
    assert (tmp_path / "new").read_text() == "mine"


def test_the_current_folder_may_be_filled(tmp_path: Path) -> None:
    """A path without a name, such as ".", works like any other path."""
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "from rappor.base.atomic_files import create_folder\nwith create_folder('.') as f:\n"
            "    (f / 'a').write_text('1')",
        ],
        cwd=tmp_path,
        check=False,
    )
    assert child.returncode == 0
    assert (tmp_path / "a").read_text() == "1"


@pytest.mark.skipif(os.name != "posix", reason="POSIX locks")
def test_a_folder_is_locked_exclusively(tmp_path: Path) -> None:
    """The second thread begins when the first one has released the lock."""
    order: list[str] = []

    def second() -> None:
        with lock_folder(tmp_path):
            order.append("second")

    waiting = threading.Thread(target=second)
    with lock_folder(tmp_path):
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []
