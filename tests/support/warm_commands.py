"""Commands of a shell script as forks of one process that has imported the libraries.

A page of the documentation runs a dozen commands. Each command would import numpy, scipy and other
libraries, which takes a second of CPU time, longer than most commands. This module runs one server
for all scripts of a process of pytest:

    script   -> server      words, folder, environment, and the three standard files of a command
    script   -> server      signals that the command gets, each as a number
    server   -> script      the exit code of the command

A command differs from a new interpreter only in its imports of other projects: the fork imports the
packages of this project itself. Tests of the start, such as `tests/test_architecture.py`, start an
interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Final, NoReturn

_LIBRARIES: Final = (
    *("alembic.command", "click.shell_completion", "httpx", "jinja2", "mmh3", "msgspec", "numba"),
    *("cryptography.hazmat.primitives.ciphers.aead", "publicsuffixlist", "rich.table"),
    *("scipy.linalg", "scipy.optimize", "scipy.sparse.linalg", "scipy.special"),
    *("sklearn.linear_model", "sqlalchemy.dialects.sqlite", "starlette.routing"),
    *("uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.on"),
)
"""Modules of other projects that the commands import."""

_COMMANDS: Final = {
    name: f"{name.replace('-', '_')}.cli" for name in ("rappor", "rappor-client", "rappor-server")
}
"""Maps the name of each command of the project to the module with its function `main`."""

_MESSAGE_BYTES: Final = 200_000
"""Largest message. The environment is most of it. Linux allows 212,992 bytes by default."""

_SENDER: Final = """
import _signal
import _socket
import marshal
import os
import sys

name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
is_python = name.startswith("python")
is_outside = os.readlink("/proc/self/ns/mnt") != {namespace!r}
if is_python and (is_outside or not (words and words[0].endswith(".py"))):
    os.execv(sys.executable, [sys.executable, *words])
if is_outside:
    module = name.replace("-", "_") + ".cli"
    program = "import sys; from " + module + " import main; sys.exit(main())"
    os.execv(sys.executable, [sys.executable, "-c", program, *words])
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
connection.connect({address!r})
files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
message = marshal.dumps(([name, *words], os.getcwd(), dict(os.environ)))
connection.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM):
    _signal.signal(number, lambda number, _: connection.send(b"%d" % number))
code = int(connection.recv(16) or 1)
os._exit(code if code >= 0 else 128 - code)
"""
"""Program that stands for a command in a script. It imports no module that takes time, because each
command of a script starts it. It starts an interpreter if `python` has other words than a file, and
in another mount namespace, where the server would see other files."""


def write_commands(folder: Path) -> None:
    """Write the commands of this project, and `python`, as programs into a folder."""
    namespace = str(Path("/proc/self/ns/mnt").readlink())
    sender = _SENDER.format(address=_start_server(), namespace=namespace)
    text = f"#!{sys.executable} -IS\n{sender}"
    for name in (*_COMMANDS, "python", "python3"):
        program = folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)


@functools.cache
def locate_commands() -> Path:
    """Return a folder with the commands of this project, which this process removes when it ends.

    It is for tests that run one command. A script of a page has its commands in its own folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_commands(folder)
    return folder


@functools.cache
def _start_server() -> str:
    """Start the server, and return its address. The server ends with this process."""
    address = f"\0commands-{secrets.token_hex(8)}"  # Linux needs no file for such an address
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(100)
    end_of_test, end_of_server = os.pipe()
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {__name__}; "
        f"del sys.path[0]; {__name__}.main({listener.fileno()}, {end_of_test})"
    )
    subprocess.Popen(
        # A child process of a command would import a main module that is a file.
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=[listener.fileno(), end_of_test],
    ).returncode = 0  # nobody waits for it
    listener.close()
    os.close(end_of_test)
    _OPEN_ENDS.append(end_of_server)
    return address


_OPEN_ENDS: Final[list[int]] = []
"""Ends of pipes that close with this process, which ends the servers."""


def main(listener_number: int, end_of_test: int) -> None:
    """Fork a process for each command, until the test process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes supervisors that have ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=listener_number)
    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # a collection of garbage in a fork would copy the memory of the libraries
    poll = select.poll()
    poll.register(end_of_test)
    poll.register(listener, select.POLLIN)
    while (listener.fileno(), select.POLLIN) in poll.poll():
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(end_of_test)
            _supervise(connection)
        connection.close()


def _supervise(connection: socket.socket) -> NoReturn:
    """Fork the command, pass signals to it, send its exit code, and end.

    The command is killed if its script ends without it, for example because a test was too slow.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, *_ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
    if (child := os.fork()) == 0:
        connection.close()
        _set_up(files, *marshal.loads(message))  # noqa: S302 - the message of a test
        _run_and_end()
    for number in files:
        os.close(number)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(end := os.pidfd_open(child), select.POLLIN)
    while end not in dict(poll.poll()):
        received_signal = connection.recv(16)
        os.kill(child, int(received_signal) if received_signal else signal.SIGKILL)
        if not received_signal:
            poll.unregister(connection)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the script has ended
        connection.send(b"%d" % code)
    os._exit(0)


def _set_up(files: list[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Give this fork the words, the folder, the environment and the standard files of a command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard_number, number in enumerate(files):
        os.dup2(number, standard_number)
        os.close(number)
    # The streams of the server know whether its own files can seek.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words


def _run_and_end() -> NoReturn:
    """Run the command in `sys.argv` as a shell would start it, and end with its exit code.

    The end of an interpreter would remove each object of the libraries, which takes longer than a
    short command. So only threads, exit handlers and files end in order.
    """
    code = 0
    try:
        if (module := _COMMANDS.get(sys.argv[0])) is not None:
            code = importlib.import_module(module).main()
        else:
            _run_program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)  # noqa: T201 - as an interpreter does
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    os._exit(code or 0)


def _run_program() -> None:
    """Run the file that `sys.argv` names after `python`, as the main module."""
    del sys.argv[0]
    path = Path(sys.argv[0])
    sys.path.insert(0, str(path.resolve().parent))
    # A child process of the program imports the file of the main module.
    program = types.ModuleType("__main__")
    program.__file__ = str(Path.cwd() / path)
    sys.modules["__main__"] = program
    exec(compile(path.read_bytes(), program.__file__, "exec"), program.__dict__)  # noqa: S102
