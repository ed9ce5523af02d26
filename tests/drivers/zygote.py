"""Forks workers and commands for the tests, from an interpreter that has imported what they import;
see forking.py.

    zygote.py worker|model|command|gpu FD

Each order on the socket FD is answered by the new process itself, as soon as it is what a new
interpreter would be: a session of its own, the environment and the streams of the order, and a
parent that is not this process but the one whose child this process is (CLONE_PARENT, clone(2)).
"""

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import sys
import termios
import threading
import time
from typing import Any, NoReturn

MARK = "CHUNKVISOR_TEST"
"""Every process that a test starts bears it."""
ROOM = "CHUNKVISOR_TEST_ROOM"
"""A variable that is long, so that there is room for another environment where /proc shows a
zygote's."""
ROOM_FILLED = "." * (32 << 10)
COMMAND = "chunkvisor.cli"
"""In an order, in the place of a module: the command line."""
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""Number of clone(2)."""
_ENV_START, _ENV_END = 50, 51
"""Where in /proc/self/stat the addresses of the environment stand (proc(5), counted from 1)."""


def umask() -> int:
    """Of this process."""
    # os.umask would have to change it for a moment, in which another thread may make a file
    # (proc(5), since Linux 4.7).
    with open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith(b"Umask:"))


def can_fork() -> bool:
    """Whether this machine's clone(2) is known."""
    return platform.machine() in _SYS_CLONE


def prepare(kind: str) -> None:
    """Import what the children import."""
    modules = ["chunkvisor_worker.job", "chunkvisor_worker.drill"]
    if kind not in ("worker", "model"):
        names = ("cli.run", "sources.stage", "supervise.session", "supervise.work")
        modules += [f"chunkvisor.{name}" for name in names]
        modules += ["duckdb", "forking"]
    for module in modules:
        importlib.import_module(module)
    if kind in ("gpu", "model"):
        prepare_models()
    # At its end a child would look through all that was imported, and so copy its pages: most of
    # what it costs.
    gc.collect()
    gc.freeze()


def prepare_models() -> None:
    """Import what workers with a model import, and a template's own modules, as they do it."""
    gc.disable()
    for module in ("sentence_transformer", "template"):
        importlib.import_module(f"chunkvisor_worker.{module}")
    for module in ("torch", "sentence_transformers", "transformers.models.bert.modeling_bert"):
        importlib.import_module(module)
    gc.enable()


def fork_sibling() -> int:
    """As os.fork, but the child is a child of this process's parent; its pid is no business of
    ours.
    """
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    # Not by ctypes.CDLL, which would let go of the GIL: the child would have to get it back.
    pid = ctypes.PyDLL(None).syscall(
        _SYS_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0
    )
    python.PyOS_AfterFork_Parent() if pid else python.PyOS_AfterFork_Child()
    return int(pid)


def next_order(orders: socket.socket) -> tuple[bytes, list[int]]:
    """The next order and its streams; ends the process where none will come."""
    try:
        head, fds, _, _ = socket.recv_fds(orders, array.array("i").itemsize, 3)
        size, text = int.from_bytes(head, sys.byteorder), b""
        while len(text) < size and (part := orders.recv(size - len(text))):
            text += part
    except ConnectionResetError:  # whoever sent one was killed before it had read the answer
        os._exit(0)
    if not text or len(text) < size:
        os._exit(0)  # there is no other, or who sent it was killed in the middle
    return text, fds


def serve(orders: socket.socket) -> dict[str, Any]:
    """Fork for each order; ends with the socket. Returns in the forked processes only, with their
    order.
    """
    path = [
        each for each in sys.path if each not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ]
    while True:
        text, descriptors = next_order(orders)
        if fork_sibling() == 0:
            order: dict[str, Any] = json.loads(text)
            become(order, path, descriptors)
            orders.sendall(os.getpid().to_bytes(8, "little"))
            orders.close()
            return order
        for fd in descriptors:
            os.close(fd)


def become(order: dict[str, Any], path: list[str], streams: list[int]) -> None:
    """Be what subprocess.Popen and a new interpreter would have made."""
    os.setsid()
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in streams:
        os.close(fd)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    os.chdir(order["folder"])
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    show_environment(order["environment"])
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch and threads.isdigit():
        torch.set_num_threads(int(threads))  # which it would read while it is imported
    sys.path[:] = [
        *filter(None, order["environment"].get("PYTHONPATH", "").split(os.pathsep)),
        *path,
    ]
    sys.argv = [order["module"], *order["arguments"]]


def show_environment(environment: dict[str, str]) -> None:
    """Write it where others see it, in /proc/PID/environ: by what is in it, orphans of a run are
    found.
    """
    shown = as_shown(environment)
    with open("/proc/self/stat", encoding="utf-8") as file:
        numbers = file.read().rpartition(")")[2].split()
    start, end = (int(numbers[field - 3]) for field in (_ENV_START, _ENV_END))
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, min(len(shown), end - start))


def as_shown(environment: dict[str, str]) -> bytes:
    """As the kernel lays it out."""
    return b"".join(
        f"{name}={value}\0".encode("utf-8", "surrogateescape")
        for name, value in environment.items()
    )


def play(order: dict[str, Any]) -> None:
    """Be the program of the order."""
    if order["module"] != COMMAND:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        return
    import forking
    from chunkvisor.cli import main

    if order["arguments"][:1] in (["run"], ["drill"], ["doctor"]):
        forking.fork_children_of_this_process()
    main()


def end(code: int) -> None:
    """As the interpreter does it, but for taking down what was imported: every page of that would
    be copied first.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls first
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        sys.exit(code)  # it flushes again, and says what it says then
    os._exit(code)


def main(orders: socket.socket) -> NoReturn:
    """Serve as a fork of another program, to whose lines no child must return."""
    code = 1
    try:
        play(serve(orders))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    prepare(kind)
    order = serve(socket.socket(fileno=int(fd)))
    try:
        play(order)
        code = 0
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    end(code)
