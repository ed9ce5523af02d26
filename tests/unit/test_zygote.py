"""The interpreter that forks workers and commands for the tests."""

import socket
import subprocess
import sys

from drivers import zygote


def test_an_order_that_is_cut_off_ends_it() -> None:
    """A test that is killed while it sends an order leaves no zygote that waits for the rest."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", zygote.__file__, "worker", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        socket.send_fds(ours, [(100).to_bytes(4, sys.byteorder)], [0, 1, 2])
        ours.sendall(b"half")
        ours.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
