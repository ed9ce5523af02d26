"""The interpreter that forks workers and commands for the tests."""

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from drivers import zygote


@contextlib.contextmanager
def begun(*, stderr: int | None = None) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A zygote, and this side of its socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", zygote.__file__, "worker", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=stderr)
        theirs.close()
        try:
            yield ours, process
        finally:
            process.kill()
            process.wait()


def test_an_order_that_is_cut_off_ends_it() -> None:
    """A test that is killed while it sends an order leaves no zygote that waits for the rest."""
    with begun() as (ours, process):
        socket.send_fds(ours, [(100).to_bytes(4, sys.byteorder)], [0, 1, 2])
        ours.sendall(b"half")
        ours.close()
        assert process.wait(60) == 0


def test_an_answer_that_nobody_reads_ends_it(tmp_path: Path) -> None:
    """A supervisor that is killed before it has read an answer leaves no zygote, and no traceback of one."""
    order = {"module": "this", "arguments": [], "environment": dict(os.environ), "folder": str(tmp_path), "umask": 0o77}
    text = json.dumps(order).encode()
    with begun(stderr=subprocess.PIPE) as (ours, process), (tmp_path / "out").open("w") as out:
        socket.send_fds(ours, [array.array("i", [len(text)]).tobytes()], [0, out.fileno(), out.fileno()])
        ours.sendall(text)
        answer = ours.recv(8, socket.MSG_PEEK)  # it stays unread
        ours.close()
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, b"")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(int.from_bytes(answer, "little"), 0)
